// SPDX-License-Identifier: Apache-2.0
// gmm-bench ipc: an import of another process's memory by gmm, beside the driver's or the system's own calls. The other
// process is a child that is forked before any driver is opened. It answers over a Unix socket.
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

// A request's `what`.
constexpr char kNew = 'n';   // new memory of the kind, of gmm and by hand; answers gmm's handle
constexpr char kRaw = 'r';   // the message for the memory made by hand
constexpr char kFree = 'f';  // frees gmm's memory; answers one byte
struct Request {
  char what;
  uint32_t kind;
};

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
  Importer(const Run &run, gmm_context *context, uint32_t kind, int fd)
      : run_(run), context_(context), kind_(kind), fd_(fd) {}

  bool measure(std::vector<Row> *rows) {
    std::string error;
    const auto raw = ipc_raw(run_.platform.cuda(), kind_, run_.options.device, &error);
    if (raw == nullptr) return failed("raw", error);
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
      if (!ask(kNew) || !receive_all(fd_, &handle, sizeof handle) || !calls(&before)) return lost();
      let_sleep();
      const uint64_t begin = now();
      if (!gmm(gmm_ipc_import(context_, &handle, &desc, &memory), "import")) return false;
      const uint64_t end = now();
      if (!calls(&after) || !gmm(gmm_ipc_close(context_, memory), "close")) return false;
      if (!ask(kFree) || !receive_all(fd_, &done, 1)) return lost();
      let_sleep();
      IpcRawMessage message;
      const uint64_t start = now();
      if (!ask(kRaw) || !receive_raw(fd_, &message)) return lost();
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
  bool ask(char what) {
    const Request request = {what, kind_};
    return send_all(fd_, &request, sizeof request);
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
  const int fd_;
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

// The second process: answers requests until the other end of the socket is closed.
bool serve(gmm_context *context, bool cuda, gmm_device device, int fd) {
  void *block = nullptr;
  std::unique_ptr<IpcRaw> raw;
  std::string error;
  for (Request request; receive_all(fd, &request, sizeof request);) {
    const gmm_alloc_desc desc = block_of(request.kind, device);
    gmm_ipc_handle handle;
    IpcRawMessage message;
    bool sent = false;
    if (request.what == kNew) {
      raw = ipc_raw(cuda, request.kind, device, &error);
      if (raw == nullptr || !raw->make(kSize)) return failed("raw", raw == nullptr ? error : raw->error);
      if (!gmm(gmm_alloc(context, kSize, &desc, &block), "allocation") ||
          !gmm(gmm_fill(context, block, 1, kSize, GMM_STREAM_DEFAULT), "fill") ||
          !gmm(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT), "fill") ||
          !gmm(gmm_ipc_export(context, block, &handle), "export"))
        return false;
      sent = send_all(fd, &handle, sizeof handle);
    } else if (request.what == kFree) {
      if (!gmm(gmm_free(context, block, GMM_STREAM_DEFAULT), "free")) return false;
      sent = send_all(fd, &request.what, 1);
    } else {
      if (!raw->give(&message)) return failed("raw", raw->error);
      sent = send_raw(fd, message);
      if (message.fd >= 0) close(message.fd);
    }
    if (!sent) return false;
  }
  return true;
}

bool measure_kinds(const Run &run, gmm_context *context, int fd) {
  std::vector<Row> rows;
  bool good = true;
  for (const uint32_t kind : kinds_or(run, {GMM_BENCH_DEVICE, GMM_BENCH_VMM, GMM_BENCH_HOST})) {
    if (!can_share(context, kind, run.options.device))
      std::fprintf(stderr, "gmm-bench: warning: left out: %s memory cannot be shared here\n", kind_name(kind));
    else
      good = Importer(run, context, kind, fd).measure(&rows) && good;
  }
  compare(&rows, [](const Row &a, const Row &b) { return a.kind == b.kind; });
  print_rows(run, "", rows);
  return good;
}

}  // namespace

ExitCode run_ipc(const Options &options) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
    return failed("socketpair", std::strerror(errno)), kFailed;
  const pid_t child = fork();
  if (child < 0) return failed("fork", std::strerror(errno)), kFailed;
  close(pair[child == 0 ? 0 : 1]);
  const int fd = pair[child == 0 ? 1 : 0];
  Platform platform;
  const std::vector<const gmm_bench_subject *> subjects;
  gmm_context *context = nullptr;
  bool good = open_platform(options, &platform) && gmm(create_gmm_context(&context), "context") &&
              (child == 0 ? serve(context, platform.cuda(), options.device, fd)
                          : measure_kinds({options, platform, subjects}, context, fd));
  good = (context == nullptr || gmm(gmm_context_release(context), "release")) && good;
  close(fd);
  if (child != 0) waitpid(child, nullptr, 0);
  return good ? kGood : kFailed;
}

}  // namespace gmm_bench
