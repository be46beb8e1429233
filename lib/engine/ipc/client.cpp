// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/client.h"

#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <utility>

#include "base/local_socket.h"
#include "base/lock.h"
#include "base/os_memory.h"
#include "base/process.h"
#include "base/thread.h"
#include "engine/ipc/directory.h"

namespace gmm {
namespace {

constexpr uint64_t kRetryMs = 10;

bool seems_alive(const IpcEndpoint &exporter) {
  uint64_t start_time = 0;
  const int error = process_start_time(static_cast<int32_t>(exporter.pid), &start_time);
  // Other errors, such as a lack of descriptors, say nothing about the exporter; the connection shows its end.
  return error == 0 ? start_time == exporter.start_time : error != ESRCH;
}

// Whether the exporter's process number means the same process here. Otherwise the exporter runs in another container,
// and only the connection shows its end.
bool is_visible(const IpcEndpoint &exporter) {
  return exporter.pid_namespace != 0 && exporter.pid_namespace == pid_namespace();
}

bool seems_gone(const IpcEndpoint &exporter) { return is_visible(exporter) && !seems_alive(exporter); }

Status gone() { return fail(GMM_ERROR_IPC_PEER_GONE, "the exporter ended, and its memory with it"); }

// One request over one connection. ipc_connect() puts the exporter's process before each message.
struct Attempt {
  const IpcHandle &handle;
  const IpcWant want;
  const uint64_t deadline;
  const IpcPolicy &policy;
  Peer &link;  // the caller closes it after a failure
  os::Descriptors &fds;
  IpcReply &reply;

  // GMM_ERROR_BUSY: the caller tries again.
  Status run() {
    GMM_TRY(connect());
    GMM_TRY(check_peer());
    GMM_TRY(send_request());
    return receive_reply();
  }

  Status timeout(const char *what) const {
    if (seems_gone(handle.exporter)) return gone();
    return fail(GMM_ERROR_IPC_TIMEOUT, "the exporter %s in time; it may be stopped or busy", what);
  }

  // Tries each directory in which the exporter's socket may be.
  Status connect() {
    char name[kIpcNameSize], path[kIpcPathSize];
    ipc_socket_name(handle.exporter, name);
    if (const int error = os::make_socket(&link.connection); error != 0) return system_failure(error, "socket");
    for (unsigned n = 0; n < kIpcDirectoryCandidates; ++n) {
      if (!ipc_directory_candidate(n, path, policy)) continue;
      int directory, error;
      const Status opened = ipc_directory_open(path, false, &directory, &error, policy);
      if (!opened.ok()) {
        if (error == EMFILE || error == ENFILE) return opened;
        if (error == ENOENT || n == 1) continue;
        return Status(GMM_ERROR_IPC_REFUSED);  // the message stays that of the directory
      }
      const int result = connect_to(directory, name);
      os::close_file(directory).ignore();
      if (result == 0) return Status();
      if (result == ENOENT) continue;
      if (result == ECONNREFUSED) return gone();
      if (result == ETIMEDOUT) return timeout("did not take the connection");
      return system_failure(result, "connect");
    }
    if (seems_gone(handle.exporter)) return gone();
    return fail(GMM_ERROR_IPC_PEER_GONE,
                "there is no socket %s in the directories that this process searches; the exporter's context was "
                "destroyed, or GMM_IPC_DIR or XDG_RUNTIME_DIR differ between the processes",
                name);
  }

  // Returns 0 or an error number.
  int connect_to(int directory, const char *name) {
    for (;;) {
      const int error = os::connect_socket(link.connection, directory, name);
      // EAGAIN: the queue of the socket is full, and the system does not report when it has a place.
      if (error != EAGAIN) return error;
      if (monotonic_ms() >= deadline) return ETIMEDOUT;
      sleep_us(5000);
    }
  }

  // The user of the process that called listen(), before the token is sent to it.
  Status check_peer() {
    PeerUser peer;
    const int error = check_peer_user(link.connection, policy, &peer);
    if (error == EACCES)
      return fail(GMM_ERROR_IPC_REFUSED,
                  "its socket belongs to user %u, this process to user %u; only the same user may import, and those "
                  "that gmm_ipc_configure() names on both sides",
                  peer.user, current_user());
    if (error != 0) return system_failure(error, "getsockopt(SO_PEERCRED)");
    if (is_visible(handle.exporter) && static_cast<uint32_t>(peer.process) != handle.exporter.pid)
      return fail(GMM_ERROR_IPC_REFUSED, "its socket belongs to process %d", peer.process);
    // The system may have given the number to another process by now. But only the process that listens can answer with
    // the memory of the token, so an answer proves that it was alive after this call. A child after fork() has no
    // broker.
    if (peer.process > 0) link.process = open_process(peer.process);
    return Status();
  }

  Status send_request() {
    IpcRequest request;
    request.want = want;
    request.allocation = handle.allocation;
    std::memcpy(request.token, handle.token, sizeof request.token);
    request.start_time = handle.exporter.start_time;
    request.serial = handle.exporter.serial;
    const int64_t sent = os::send_bytes(link.connection, &request, sizeof request);
    if (sent == static_cast<int64_t>(sizeof request)) return Status();
    // An exporter that refuses sends its reason and closes. receive_reply() reads the reason.
    if (sent == -EPIPE || sent == -ECONNRESET) return Status();
    return system_failure(sent < 0 ? static_cast<int>(-sent) : EMSGSIZE, "send");
  }

  Status receive_reply() {
    const auto take = [&] { return os::receive_with_descriptors(link.connection, &reply, sizeof reply, &fds); };
    int64_t got;
    while ((got = take()) == -EAGAIN) GMM_TRY(wait_for_more());
    // An exporter that refuses closes before it reads the request: the error comes first, and its packet after that.
    if (got == -ECONNRESET) got = take();
    if (got < 0 && got != -ECONNRESET) return system_failure(static_cast<int>(-got), "recvmsg");
    if (fds.any_lost)
      return fail(GMM_ERROR_IPC_REFUSED,
                  "a file descriptor was lost on the way: too many were sent, or this process has as many open as it "
                  "may (ulimit -n)");
    // One byte alone is a revocation.
    if (got <= 1) {
      if (seems_gone(handle.exporter)) return gone();
      return fail(GMM_ERROR_IPC_PEER_GONE,
                  "the exporter closed the connection without an answer; its context is probably being destroyed");
    }
    GMM_TRY(check_form(static_cast<uint64_t>(got)));
    if (static_cast<uint64_t>(got) == IpcReply::size_with(reply.extents)) return check_reply();
    return fail(GMM_ERROR_IPC_REFUSED, "its answer has %" PRId64 " bytes, which are not those of its extents", got);
  }

  // Waits until bytes arrive, or until the next check whether the exporter lives.
  Status wait_for_more() {
    const uint64_t now = monotonic_ms();
    if (now >= deadline) return timeout("did not answer");
    const uint64_t left = deadline - now;
    // At most 200 ms, since no byte and no hang-up shows the death of an exporter whose child holds the socket.
    const int error = os::wait_until_readable(link.connection, left < 200 ? left : 200);
    if (error != 0 && error != EAGAIN) return system_failure(error, "poll");
    if (error != 0 && (Peer{-1, link.process}.state() != PeerState::kAlive || seems_gone(handle.exporter)))
      return gone();
    return Status();
  }

  Status check_form(uint64_t size) {
    if (size < IpcReply::size_with(0) || reply.magic != IpcReply::kMagic)
      return fail(GMM_ERROR_IPC_REFUSED, "its answer is not a reply (%" PRIu64 " bytes, magic %08x)", size,
                  reply.magic);
    if (reply.version != kIpcProtocolVersion)
      return fail(GMM_ERROR_IPC_REFUSED,
                  "it speaks version %u, this library version %u; use the same release on both sides", reply.version,
                  kIpcProtocolVersion);
    if (reply.result != GMM_OK) return refused();
    const uint32_t least = want == IpcWant::kDescriptors ? 1 : 0, most = least * kIpcMaxExtents;
    if (reply.reserved == 0 && reply.extents >= least && reply.extents <= most) return Status();
    return fail(GMM_ERROR_IPC_REFUSED, "its reply has %u extents where %u to %u were expected", reply.extents, least,
                most);
  }

  Status check_reply() {
    if (fds.count != reply.extents)
      return fail(GMM_ERROR_IPC_REFUSED, "it sent %u file descriptors where %u were expected", fds.count,
                  reply.extents);
    if (reply.allocation_size == 0 || reply.allocation_size > handle.allocation_size ||
        reply.generation != handle.generation)
      return fail(GMM_ERROR_IPC_PEER_GONE,
                  "the memory of this handle was freed or replaced; ask the exporter for a new handle");
    uint64_t left = reply.allocation_size;
    for (uint32_t i = 0; i < reply.extents; ++i) {
      const uint64_t size = reply.sizes[i];
      // An access to a mapping beyond the end of its file ends the process with SIGBUS.
      os::FileFacts file;
      if (os::file_facts(fds.each[i], &file) == 0 && file.is_file && file.size < size)
        return fail(GMM_ERROR_IPC_REFUSED, "its file has %" PRIu64 " bytes where it promised %" PRIu64, file.size,
                    size);
      if (size == 0 || size > left) left = UINT64_MAX;
      left -= size;
    }
    if (reply.extents == 0 || left == 0) return Status();
    return fail(GMM_ERROR_IPC_REFUSED, "its extents are not the memory it promised");
  }

  Status refused() {
    switch (reply.result) {
      case GMM_ERROR_BUSY:
        return Status(GMM_ERROR_BUSY);  // without a message: the caller tries again
      case GMM_ERROR_IPC_PEER_GONE:
        return fail(GMM_ERROR_IPC_PEER_GONE, "the exporter has freed this memory");
      case GMM_ERROR_PAUSED:
        return fail(GMM_ERROR_IPC_REFUSED, "the memory is paused there; resume its tag first");
      case GMM_ERROR_IPC_REFUSED:
        return fail(GMM_ERROR_IPC_REFUSED,
                    "the exporter refused: the handle's token is wrong, or this process runs as another user; the "
                    "exporter's log says which");
      default:
        return fail(GMM_ERROR_IPC_REFUSED, "the exporter could not share the memory (result %d); its log says why",
                    reply.result);
    }
  }
};

// BUSY is no refusal: it asks again until the deadline.
Status ask_until(uint64_t deadline, const IpcHandle &handle, IpcWant want, const IpcPolicy &policy,
                 IpcConnection *connection, IpcAnswer *out) {
  connection->exporter = handle.exporter;
  for (bool was_busy = false;;) {
    const Status status = Attempt{handle, want, deadline, policy, connection->peer, out->fds, out->reply}.run();
    if (!status.ok()) connection->close();
    const bool is_busy = status.code() == GMM_ERROR_BUSY;
    if (!is_busy && (!was_busy || status.code() != GMM_ERROR_IPC_TIMEOUT)) return status;
    was_busy = true;
    const uint64_t left = milliseconds_until(deadline);
    if (left == 0)
      return fail(GMM_ERROR_IPC_TIMEOUT,
                  "the exporter was busy until the deadline: it pauses or resumes the memory, or it serves as many "
                  "importers as it can (%u)",
                  kIpcMaxImporters);
    sleep_us((left < kRetryMs ? left : kRetryMs) * 1000);
  }
}

}  // namespace

void IpcConnection::close() {
  const Peer old = std::exchange(peer, Peer());
  if (old.connection >= 0) os::end_connection(old.connection);
  if (old.process >= 0) os::close_file(old.process).ignore();
}

PeerState IpcConnection::state() const {
  const PeerState state = peer.state();
  // Without a descriptor of the process its entry in /proc shows its end.
  if (state == PeerState::kAlive && open() && peer.process < 0 && seems_gone(exporter)) return PeerState::kGone;
  return state;
}

Status ipc_connect(const IpcHandle &handle, IpcWant want, uint64_t timeout_ms, IpcConnection *connection,
                   IpcAnswer *out, const IpcPolicy &policy) {
  check_may_wait("another process");
  const Status status = ask_until(deadline_after(timeout_ms), handle, want, policy, connection, out);
  return status.ok() ? status : prefix(status, "import from process %" PRIu32 ": ", handle.exporter.pid);
}

}  // namespace gmm
