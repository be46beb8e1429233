// SPDX-License-Identifier: Apache-2.0
#include "ipc_process.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace gmm_bench {

bool send_all(int fd, const void *bytes, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t n = send(fd, static_cast<const char *>(bytes) + done, size - done, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

bool receive_all(int fd, void *bytes, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t n = recv(fd, static_cast<char *>(bytes) + done, size - done, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

bool send_raw(int fd, const IpcRawMessage &message) {
  iovec part = {const_cast<uint8_t *>(message.bytes), sizeof message.bytes};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (message.fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr *first = CMSG_FIRSTHDR(&header);
    first->cmsg_level = SOL_SOCKET;
    first->cmsg_type = SCM_RIGHTS;
    first->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(first), &message.fd, sizeof message.fd);
  }
  return sendmsg(fd, &header, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof message.bytes);
}

bool receive_raw(int fd, IpcRawMessage *message) {
  iovec part = {message->bytes, sizeof message->bytes};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  message->fd = -1;
  if (recvmsg(fd, &header, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof message->bytes)) return false;
  if (const cmsghdr *first = CMSG_FIRSTHDR(&header); first != nullptr && first->cmsg_type == SCM_RIGHTS)
    std::memcpy(&message->fd, CMSG_DATA(first), sizeof message->fd);
  return true;
}

bool start_process(const char *role, gmm_backend backend, gmm_device device, uint32_t kind, IpcProcess *out) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return false;
  const std::string words[] = {role, std::to_string(backend), std::to_string(device), std::to_string(kind)};
  out->pid = fork();
  if (out->pid == 0) {
    dup2(pair[1], 3);  // without the flag that closes it
    if (pair[1] == 3) _exit(126);
    execl("/proc/self/exe", "gmm-bench", "--ipc-second", words[0].c_str(), words[1].c_str(), words[2].c_str(),
          words[3].c_str(), nullptr);
    _exit(127);
  }
  close(pair[1]);
  if (out->pid < 0) return close(pair[0]), false;
  out->fd = pair[0];
  return true;
}

int end_process(IpcProcess *process) {
  close(process->fd);
  int status = 0;
  if (waitpid(process->pid, &status, 0) != process->pid) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

bool open_context(gmm_backend backend, uint64_t host_memory, gmm_context **out, std::string *error) {
  gmm_context_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.backend = backend;
  desc.host_memory = host_memory;
  if (gmm_context_create(&desc, out) == GMM_OK) return true;
  *error = gmm_last_error_message();
  return false;
}

gmm_alloc_desc block_of(uint32_t kind, gmm_device device, uint32_t flags) {
  gmm_alloc_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.kind = kind;
  desc.device = device;
  desc.flags = flags;
  return desc;
}

namespace {

int say(const char *what) {
  return std::fprintf(stderr, "gmm-bench: second process: %s: %s\n", what, gmm_last_error_message()), 1;
}

int serve(gmm_context *context, gmm_backend backend, gmm_device device, uint32_t kind) {
  std::vector<void *> blocks;
  std::unique_ptr<IpcRaw> raw;
  std::string error;
  IpcAsk ask;
  while (receive_all(3, &ask, sizeof ask)) {
    if (ask.what == 'e' || ask.what == 'p') {
      const gmm_alloc_desc desc = block_of(kind, device, ask.what == 'e' ? GMM_ALLOC_DEDICATED : 0);
      void *block = nullptr;
      gmm_ipc_handle handle;
      if (gmm_alloc(context, ask.size, &desc, &block) != GMM_OK) return say("allocation");
      if (gmm_fill(context, block, kMark, ask.size, GMM_STREAM_DEFAULT) != GMM_OK ||
          gmm_stream_synchronize(context, GMM_STREAM_DEFAULT) != GMM_OK)
        return say("fill");
      if (gmm_ipc_export(context, block, &handle) != GMM_OK) return say("export");
      blocks.push_back(block);
      if (!send_all(3, &handle, sizeof handle)) return 2;
    } else if (ask.what == 'f') {
      for (void *block : blocks)
        if (gmm_free(context, block, GMM_STREAM_DEFAULT) != GMM_OK) return say("free");
      blocks.clear();
      if (!send_all(3, &ask.what, 1)) return 2;
    } else if (ask.what == 'm') {
      raw = backend == GMM_BACKEND_CUDA ? cuda_ipc_raw(kind, device, &error) : host_ipc_raw(kind);
      if (raw == nullptr || !raw->make(ask.size))
        return std::fprintf(stderr, "gmm-bench: raw: %s\n", (raw == nullptr ? error : raw->error).c_str()), 3;
      if (!send_all(3, &ask.what, 1)) return 2;
    } else {
      IpcRawMessage message;
      if (!raw->give(&message)) return std::fprintf(stderr, "gmm-bench: raw: %s\n", raw->error.c_str()), 3;
      if (!send_raw(3, message)) return 2;
      if (message.fd >= 0) close(message.fd);
    }
  }
  return gmm_context_release(context) == GMM_OK ? 0 : say("end");
}

int import_once(gmm_context *context, gmm_device device) {
  gmm_ipc_handle handle;
  gmm_ipc_import_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.device = device;
  desc.timeout_ms = 60000;
  void *memory = nullptr;
  uint32_t seen = 0;
  char go = 0;
  if (!receive_all(3, &handle, sizeof handle)) return 2;
  if (gmm_ipc_import(context, &handle, &desc, &memory) != GMM_OK) return say("import");
  if (gmm_copy(context, &seen, memory, sizeof seen, GMM_STREAM_DEFAULT) != GMM_OK ||
      gmm_stream_synchronize(context, GMM_STREAM_DEFAULT) != GMM_OK)
    return say("copy");
  if (seen != kMark * 0x01010101u) return std::fprintf(stderr, "gmm-bench: second process: it sees %08x\n", seen), 4;
  if (!send_all(3, "i", 1) || !receive_all(3, &go, 1)) return 2;  // until all are there
  if (gmm_ipc_close(context, memory) != GMM_OK) return say("close");
  return gmm_context_release(context) == GMM_OK ? 0 : say("end");
}

}  // namespace

int run_second_process(int argc, char **argv) {
  if (argc != 6) return 100;
  const auto backend = static_cast<gmm_backend>(std::atoi(argv[3]));
  const auto device = static_cast<gmm_device>(std::atoi(argv[4]));
  const auto kind = static_cast<uint32_t>(std::atoi(argv[5]));
  gmm_context *context = nullptr;
  std::string error;
  if (!open_context(backend, uint64_t{256} << 30, &context, &error))
    return std::fprintf(stderr, "gmm-bench: second process: %s\n", error.c_str()), 101;
  return std::strcmp(argv[2], "serve") == 0 ? serve(context, backend, device, kind) : import_once(context, device);
}

}  // namespace gmm_bench
