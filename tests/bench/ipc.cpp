// SPDX-License-Identifier: Apache-2.0
// gmm-bench ipc: an import of another process's memory by gmm, beside the driver's or the system's own calls. The other
// process is this program, started again. It answers over a Unix socket.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "commands.h"
#include "ipc_raw.h"

namespace gmm_bench {
namespace {

constexpr uint64_t kSize = uint64_t{2} << 20;
constexpr uint32_t kIpcSamples = 200, kWarmRounds = 20;
constexpr int kSocket = 3;  // of the second process

// Requests, a byte each.
constexpr char kNew = 'n';   // new memory, of gmm and by hand; answers gmm's handle
constexpr char kRaw = 'r';   // the message for the memory made by hand
constexpr char kFree = 'f';  // frees gmm's memory; answers this byte

bool send_all(int fd, const void *bytes, size_t size) {
  return send(fd, bytes, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}
bool receive_all(int fd, void *bytes, size_t size) {
  return recv(fd, bytes, size, MSG_WAITALL) == static_cast<ssize_t>(size);
}

// A message with space for one descriptor.
struct Packet {
  explicit Packet(IpcRawMessage *message) : part{message->bytes, sizeof message->bytes} {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
  iovec part;
  msghdr header = {};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
};

bool send_raw(int fd, IpcRawMessage message) {
  Packet packet(&message);
  if (message.fd >= 0) {
    cmsghdr *first = CMSG_FIRSTHDR(&packet.header);
    *first = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    std::memcpy(CMSG_DATA(first), &message.fd, sizeof message.fd);
  } else {
    packet.header.msg_controllen = 0;
  }
  return sendmsg(fd, &packet.header, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof message.bytes);
}

bool receive_raw(int fd, IpcRawMessage *message) {
  Packet packet(message);
  message->fd = -1;
  if (recvmsg(fd, &packet.header, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof message->bytes)) return false;
  if (const cmsghdr *first = CMSG_FIRSTHDR(&packet.header); first != nullptr && first->cmsg_type == SCM_RIGHTS)
    std::memcpy(&message->fd, CMSG_DATA(first), sizeof message->fd);
  return true;
}

bool gmm(gmm_result result, const char *what) {
  if (result == GMM_OK) return true;
  std::fprintf(stderr, "gmm-bench: %s: %s\n", what, gmm_last_error_message());
  return false;
}
bool failed(const char *what, const std::string &reason) {
  std::fprintf(stderr, "gmm-bench: %s: %s\n", what, reason.c_str());
  return false;
}

gmm_alloc_desc block_of(uint32_t kind, gmm_device device) {
  gmm_alloc_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.kind = kind;
  desc.device = device;
  desc.flags = GMM_ALLOC_DEDICATED;
  return desc;
}

// As long as the exporter sleeps in the life of a program. Without it the thread that answers `raw` is still awake, and
// the thread of gmm's broker is not: the difference would be the time in which a processor wakes.
void let_sleep() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

// This process, which imports.
class Importer {
 public:
  Importer(const Run &run, gmm_context *context, uint32_t kind) : run_(run), context_(context), kind_(kind) {}
  ~Importer() {
    if (fd_ >= 0) close(fd_);
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
  }

  bool measure(std::vector<Row> *rows) {
    std::string error;
    const auto raw = ipc_raw(run_.platform.cuda(), kind_, run_.options.device, &error);
    if (raw == nullptr) return failed("raw", error);
    if (!start()) return failed("second process", std::strerror(errno));
    gmm_ipc_import_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.device = run_.options.device;
    const uint32_t samples = run_.options.samples != 0 ? run_.options.samples : kIpcSamples;
    std::vector<double> imports, by_hand;
    uint64_t before = 0, after = 0;
    for (uint32_t i = 0; i < samples + kWarmRounds; ++i) {
      // New memory for both each time: a second import may cost less.
      gmm_ipc_handle handle;
      void *memory = nullptr;
      char done = 0;
      if (!send_all(fd_, &kNew, 1) || !receive_all(fd_, &handle, sizeof handle) || !calls(&before)) return lost();
      let_sleep();
      const uint64_t begin = now();
      if (!gmm(gmm_ipc_import(context_, &handle, &desc, &memory), "import")) return false;
      const uint64_t end = now();
      if (!calls(&after) || !gmm(gmm_ipc_close(context_, memory), "close")) return false;
      if (!send_all(fd_, &kFree, 1) || !receive_all(fd_, &done, 1)) return lost();
      let_sleep();
      IpcRawMessage message;
      const uint64_t start = now();
      if (!send_all(fd_, &kRaw, 1) || !receive_raw(fd_, &message)) return lost();
      const bool taken = raw->take(message);
      if (message.fd >= 0) close(message.fd);  // a part of the import, as in gmm: a process has few descriptors
      const uint64_t taken_at = now();
      if (!taken || !raw->drop()) return failed("raw", raw->error);
      if (i < kWarmRounds) continue;
      imports.push_back(static_cast<double>(end - begin));
      by_hand.push_back(static_cast<double>(taken_at - start));
    }
    add(rows, "gmm", imports);
    rows->back().handles = after - before;
    add(rows, "raw", by_hand);
    return true;
  }

 private:
  bool start() {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return false;
    const std::string words[] = {std::to_string(run_.platform.backend), std::to_string(run_.options.device),
                                 std::to_string(kind_)};
    pid_ = fork();
    if (pid_ == 0) {
      if (pair[1] != kSocket) dup2(pair[1], kSocket);  // without the flag that closes it
      execl("/proc/self/exe", "gmm-bench", "--ipc-second", words[0].c_str(), words[1].c_str(), words[2].c_str(),
            nullptr);
      _exit(127);
    }
    close(pair[1]);
    fd_ = pair[0];
    return pid_ > 0;
  }
  bool lost() { return failed("second process", "it has ended"); }
  bool calls(uint64_t *out) {
    gmm_stats_info stats = {};
    stats.struct_size = sizeof stats;
    if (!gmm(gmm_stats_query(context_, nullptr, &stats), "statistics")) return false;
    *out = stats.backend_calls;
    return true;
  }
  void add(std::vector<Row> *rows, const char *subject, const std::vector<double> &samples) {
    Row &row = rows->emplace_back(row_of(run_, subject, kind_));
    row.size = kSize;
    row.words.emplace_back("operation", "import");
    row.ns = median(samples);
    row.samples = samples;
  }

  const Run &run_;
  gmm_context *context_;
  const uint32_t kind_;
  pid_t pid_ = -1;
  int fd_ = -1;
};

bool can_share(gmm_context *context, uint32_t kind, gmm_device device) {
  const gmm_alloc_desc desc = block_of(kind, device);
  void *block = nullptr;
  gmm_pointer_info info = {};
  info.struct_size = sizeof info;
  if (gmm_alloc(context, kSize, &desc, &block) != GMM_OK) return false;
  return gmm(gmm_query(context, block, &info), "query") && gmm(gmm_free(context, block, GMM_STREAM_DEFAULT), "free") &&
         info.ipc_routes != 0;
}

// The second process: answers requests.
bool serve(gmm_context *context, bool cuda, gmm_device device, uint32_t kind) {
  const gmm_alloc_desc desc = block_of(kind, device);
  void *block = nullptr;
  std::unique_ptr<IpcRaw> raw;
  std::string error;
  for (char request; receive_all(kSocket, &request, 1);) {
    gmm_ipc_handle handle;
    IpcRawMessage message;
    bool sent = false;
    if (request == kNew) {
      raw = ipc_raw(cuda, kind, device, &error);
      if (raw == nullptr || !raw->make(kSize)) return failed("raw", raw == nullptr ? error : raw->error);
      if (!gmm(gmm_alloc(context, kSize, &desc, &block), "allocation") ||
          !gmm(gmm_fill(context, block, 1, kSize, GMM_STREAM_DEFAULT), "fill") ||
          !gmm(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT), "fill") ||
          !gmm(gmm_ipc_export(context, block, &handle), "export"))
        return false;
      sent = send_all(kSocket, &handle, sizeof handle);
    } else if (request == kFree) {
      if (!gmm(gmm_free(context, block, GMM_STREAM_DEFAULT), "free")) return false;
      sent = send_all(kSocket, &request, 1);
    } else {
      if (!raw->give(&message)) return failed("raw", raw->error);
      sent = send_raw(kSocket, message);
      if (message.fd >= 0) close(message.fd);
    }
    if (!sent) return false;
  }
  return gmm(gmm_context_release(context), "release");
}

}  // namespace

ExitCode run_ipc(const Run &run) {
  gmm_context *context = nullptr;
  if (!gmm(create_gmm_context(&context), "context")) return kFailed;
  std::vector<Row> rows;
  ExitCode code = kGood;
  for (const uint32_t kind : kinds_or(run, {GMM_BENCH_DEVICE, GMM_BENCH_VMM, GMM_BENCH_HOST})) {
    if (!can_share(context, kind, run.options.device))
      std::fprintf(stderr, "gmm-bench: warning: left out: %s memory cannot be shared here\n", kind_name(kind));
    else if (!Importer(run, context, kind).measure(&rows))
      code = kFailed;
  }
  compare(&rows, [](const Row &a, const Row &b) { return a.kind == b.kind; });
  print_rows(run, "", rows);
  return gmm(gmm_context_release(context), "release") ? code : kFailed;
}

int run_second_process(char **words) {
  const auto backend = static_cast<gmm_backend>(std::atoi(words[0]));
  set_gmm_backend(backend, uint64_t{256} << 30);
  gmm_context *context = nullptr;
  const bool good = gmm(create_gmm_context(&context), "context") &&
                    serve(context, backend == GMM_BACKEND_CUDA, static_cast<gmm_device>(std::atoi(words[1])),
                          static_cast<uint32_t>(std::atoi(words[2])));
  return good ? kGood : kFailed;
}

}  // namespace gmm_bench
