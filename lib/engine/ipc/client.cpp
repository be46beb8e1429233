// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/client.h"

#include <cerrno>
#include <cinttypes>

#include "base/local_socket.h"
#include "base/os_memory.h"
#include "base/process.h"
#include "base/thread.h"
#include "engine/ipc/directory.h"

namespace gmm {
namespace {

constexpr uint64_t kRetryMs = 10;
// Reads before this thread sleeps, about 20 us together. An exporter usually answers in less, and a sleeping processor
// takes as long again to wake.
constexpr uint32_t kSpins = 64;

class OwnedFd {
 public:
  explicit OwnedFd(int fd = -1) : fd_(fd) {}
  ~OwnedFd() { reset(-1); }
  OwnedFd(const OwnedFd &) = delete;
  OwnedFd &operator=(const OwnedFd &) = delete;
  int get() const { return fd_; }
  void reset(int fd) {
    if (fd_ >= 0) os::close_socket(fd_);
    fd_ = fd;
  }
  int take() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_;
};

Status system_failure(uint32_t pid, int error, const char *what) {
  char text[128];
  return fail_native(GMM_ERROR_SYSTEM, error, "import from process %" PRIu32 ": %s: %s", pid, what,
                     system_error_text(error, text, sizeof text));
}

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

Status gone(uint32_t pid) {
  return fail(GMM_ERROR_IPC_PEER_GONE, "import from process %" PRIu32 ": the exporter ended, and its memory with it",
              pid);
}

// One request over one connection. The destructor closes every descriptor that run() did not hand out.
class Attempt {
 public:
  Attempt(const IpcHandle &handle, IpcWant want, uint64_t deadline, const IpcPolicy &policy, bool watch,
          IpcMeanwhile *meanwhile)
      : handle_(handle),
        want_(want),
        deadline_(deadline),
        pid_(handle.exporter.pid),
        policy_(policy),
        watch_(watch),
        meanwhile_(meanwhile) {}

  // For an idle connection, or a live one that asks for its next piece. Its peer was checked when it was made.
  void use_connection(IpcConnection &&made, bool is_live = false) {
    const Peer peer = made.take();
    socket_.reset(peer.connection);
    process_.reset(peer.process);
    is_reused_ = true;
    is_live_ = is_live;
  }
  // After BUSY a live connection is what it was.
  IpcConnection take_connection(uint64_t allocation) {
    return IpcConnection(socket_.take(), process_.take(), handle_.exporter, allocation);
  }
  // Whether run() failed because the exporter had closed the idle connection. Then it has granted nothing.
  bool found_connection_closed() const { return found_connection_closed_; }

  // GMM_ERROR_BUSY: the caller tries again, over a new connection.
  Status run(IpcImport *out) {
    if (!is_reused_) GMM_TRY(connect());
    if (!is_reused_ || (watch_ && process_.get() < 0)) GMM_TRY(check_peer());
    GMM_TRY(send_request());
    if (meanwhile_->call != nullptr) meanwhile_->call(meanwhile_->self);
    meanwhile_->call = nullptr;
    GMM_TRY(receive_reply());
    GMM_TRY(check_reply());
    out->fd = descriptor_.take();
    out->allocation_size = reply_.allocation_size;
    if (!is_live_) out->connection = take_connection(handle_.allocation);
    return Status();
  }

 private:
  Status timeout(const char *what) const {
    if (seems_gone(handle_.exporter)) return gone(pid_);
    return fail(GMM_ERROR_IPC_TIMEOUT,
                "import from process %" PRIu32 ": the exporter %s in time; it may be stopped or busy", pid_, what);
  }

  // Tries each directory in which the exporter's socket may be.
  Status connect() {
    char name[kIpcNameSize], path[kIpcPathSize];
    ipc_socket_name(handle_.exporter, name);
    int32_t made = -1;
    if (const int error = os::make_socket(&made); error != 0) return system_failure(pid_, error, "socket");
    socket_.reset(made);
    for (unsigned n = 0; n < kIpcDirectoryCandidates; ++n) {
      if (!ipc_directory_candidate(n, path, policy_)) continue;
      int directory, error;
      const Status opened = ipc_directory_open(path, false, &directory, &error, policy_);
      if (!opened.ok()) {
        if (error == EMFILE || error == ENFILE) return opened;
        if (error == ENOENT || n == 1) continue;
        // The message stays that of the directory. The code becomes one of imports.
        return prefix(Status(GMM_ERROR_IPC_REFUSED), "import from process %" PRIu32 ": ", pid_);
      }
      const int result = connect_to(directory, name);
      os::close_file(directory).ignore();
      if (result == 0) return Status();
      if (result == ENOENT) continue;
      if (result == ECONNREFUSED) return gone(pid_);
      if (result == ETIMEDOUT) return timeout("did not take the connection");
      return system_failure(pid_, result, "connect");
    }
    if (seems_gone(handle_.exporter)) return gone(pid_);
    return fail(GMM_ERROR_IPC_PEER_GONE,
                "import from process %" PRIu32
                ": there is no socket %s in the directories that this process searches; the "
                "exporter's context was destroyed, or GMM_IPC_DIR or XDG_RUNTIME_DIR differ between the processes",
                pid_, name);
  }

  // Returns 0 or an error number.
  int connect_to(int directory, const char *name) {
    for (;;) {
      const int error = os::connect_socket(socket_.get(), directory, name);
      // EAGAIN: the queue of the socket is full, and nothing tells when it has a place.
      if (error != EAGAIN) return error;
      if (monotonic_ms() >= deadline_) return ETIMEDOUT;
      sleep_us(5000);
    }
  }

  // The user of the process that called listen(), before the token is sent to it.
  Status check_peer() {
    PeerUser peer;
    if (const int error = check_peer_user(socket_.get(), policy_, &peer); error != 0)
      return system_failure(pid_, error, "getsockopt(SO_PEERCRED)");
    if (!peer.is_allowed)
      return fail(
          GMM_ERROR_IPC_REFUSED,
          "import from process %" PRIu32
          ": its socket belongs to user %u, this process to user %u; only the same user may import, and those that "
          "gmm_ipc_configure() names on both sides",
          pid_, peer.user, current_user());
    if (is_visible(handle_.exporter) && static_cast<uint32_t>(peer.process) != pid_)
      return fail(GMM_ERROR_IPC_REFUSED, "import from process %" PRIu32 ": its socket belongs to process %d", pid_,
                  peer.process);
    // The system may have given the number to another process by now. But only the process that listens can answer with
    // the memory of the token, so an answer proves that it was alive after this call. A child after fork() has no
    // broker.
    if (watch_ && peer.process > 0) process_.reset(open_process(peer.process));
    return Status();
  }

  Status send_request() {
    IpcRequest request;
    request.want = static_cast<uint16_t>(want_);
    request.allocation = handle_.allocation;
    std::memcpy(request.token, handle_.token, sizeof request.token);
    request.start_time = handle_.exporter.start_time;
    request.serial = handle_.exporter.serial;
    uint8_t bytes[kIpcRequestSize];
    request.encode(bytes);
    const int64_t sent = os::send_bytes(socket_.get(), bytes, sizeof bytes);
    if (sent == static_cast<int64_t>(sizeof bytes)) return Status();
    // An exporter that refuses sends its reason and closes. receive_reply() reads the reason.
    if (sent == -EPIPE || sent == -ECONNRESET) return Status();
    return system_failure(pid_, sent < 0 ? static_cast<int>(-sent) : EMSGSIZE, "send");
  }

  Status receive_reply() {
    uint8_t bytes[kIpcReplySize];
    uint64_t received = 0;
    for (uint32_t spins = 0; received < sizeof bytes; ++spins) {
      int64_t got = 0;
      GMM_TRY(receive_some(bytes + received, sizeof bytes - received, &got));
      if (got == 0) return closed();
      if (got > 0) {
        received += static_cast<uint64_t>(got);
      } else if (spins >= kSpins) {
        GMM_TRY(wait_for_more());
      }
    }
    reply_.decode(bytes);
    return Status();
  }

  // Waits until bytes arrive, or until the next check whether the exporter lives.
  Status wait_for_more() {
    const uint64_t now = monotonic_ms();
    if (now >= deadline_) return timeout("did not answer");
    const uint64_t left = deadline_ - now;
    // At most 200 ms, since no byte and no hang-up shows the death of an exporter whose child holds the socket.
    const int error = os::wait_until_readable(socket_.get(), left < 200 ? left : 200);
    if (error != 0 && error != EAGAIN) return system_failure(pid_, error, "poll");
    if (error != 0 && (Peer{-1, process_.get()}.state() != PeerState::kAlive || seems_gone(handle_.exporter)))
      return gone(pid_);
    return Status();
  }

  // The exporter closed the connection instead of an answer.
  Status closed() {
    if (is_live_ && !seems_gone(handle_.exporter))
      return fail(GMM_ERROR_IPC_PEER_GONE,
                  "import from process %" PRIu32 ": the exporter took the memory back while this process mapped it",
                  pid_);
    if (is_reused_ && !is_live_) {
      found_connection_closed_ = true;
      return Status(GMM_ERROR_IPC_PEER_GONE);  // without a message: the next attempt, over a new connection, has one
    }
    if (seems_gone(handle_.exporter)) return gone(pid_);
    return fail(GMM_ERROR_IPC_PEER_GONE,
                "import from process %" PRIu32
                ": the exporter closed the connection without an answer; its context is probably being destroyed",
                pid_);
  }

  // *got: the number of bytes; 0 at the end of the connection; below 0 when there are none yet.
  Status receive_some(uint8_t *to, uint64_t size, int64_t *got) {
    os::ReceivedDescriptors received;
    *got = os::receive_with_descriptors(socket_.get(), to, size, &received);
    for (uint32_t i = 0; i < received.count; ++i) {
      ++descriptors_;
      descriptor_.reset(received.each[i]);  // closes the one before, if there are too many
    }
    if (*got < 0) {
      if (*got == -EAGAIN) return Status();
      if (*got != -ECONNRESET) return system_failure(pid_, static_cast<int>(-*got), "recvmsg");
      *got = 0;
      return Status();
    }
    if (received.any_lost)
      return fail(GMM_ERROR_IPC_REFUSED,
                  "import from process %" PRIu32
                  ": a file descriptor was lost on the way: too many were sent, or this process has as many open as it "
                  "may (ulimit -n)",
                  pid_);
    return Status();
  }

  Status check_reply() {
    if (reply_.magic != kIpcReplyMagic)
      return fail(GMM_ERROR_IPC_REFUSED,
                  "import from process %" PRIu32 ": what it answered is not a reply (magic %08x)", pid_, reply_.magic);
    if (reply_.version != kIpcProtocolVersion)
      return fail(GMM_ERROR_IPC_REFUSED,
                  "import from process %" PRIu32
                  ": it speaks version %u, this library version %u; use the same release on both sides",
                  pid_, reply_.version, kIpcProtocolVersion);
    if (reply_.result != GMM_OK) return refused();
    const unsigned wanted = want_ == IpcWant::kDescriptor ? 1 : 0;
    if (reply_.reserved != 0 || reply_.descriptors != wanted || descriptors_ != wanted)
      return fail(GMM_ERROR_IPC_REFUSED,
                  "import from process %" PRIu32 ": it sent %u file descriptors where %u were expected", pid_,
                  descriptors_, wanted);
    if (reply_.allocation_size == 0 || reply_.allocation_size > handle_.allocation_size ||
        reply_.generation != handle_.generation)
      return fail(GMM_ERROR_IPC_PEER_GONE,
                  "import from process %" PRIu32
                  ": the memory of this handle was freed or replaced; ask the exporter for a new handle",
                  pid_);
    // An access to a mapping beyond the end of its file ends the process with SIGBUS.
    os::FileFacts file;
    if (wanted != 0 && os::file_facts(descriptor_.get(), &file) == 0 && file.is_file &&
        file.size < reply_.allocation_size)
      return fail(GMM_ERROR_IPC_REFUSED,
                  "import from process %" PRIu32 ": its file has %" PRIu64 " bytes where it promised %" PRIu64, pid_,
                  file.size, reply_.allocation_size);
    return Status();
  }

  Status refused() {
    switch (reply_.result) {
      case GMM_ERROR_BUSY:
        return Status(GMM_ERROR_BUSY);  // without a message: the caller tries again
      case GMM_ERROR_IPC_PEER_GONE:
        return fail(GMM_ERROR_IPC_PEER_GONE, "import from process %" PRIu32 ": the exporter has freed this memory",
                    pid_);
      case GMM_ERROR_PAUSED:
        return fail(GMM_ERROR_IPC_REFUSED,
                    "import from process %" PRIu32 ": the memory is paused there; resume its tag first", pid_);
      case GMM_ERROR_IPC_REFUSED:
        return fail(
            GMM_ERROR_IPC_REFUSED,
            "import from process %" PRIu32
            ": the exporter refused: the handle's token is wrong, or this process runs as another user; the exporter's "
            "log says which",
            pid_);
      default:
        return fail(GMM_ERROR_IPC_REFUSED,
                    "import from process %" PRIu32
                    ": the exporter could not share the memory (result %d); its log says why",
                    pid_, reply_.result);
    }
  }

  const IpcHandle &handle_;
  const IpcWant want_;
  const uint64_t deadline_;
  const uint32_t pid_;
  const IpcPolicy &policy_;
  const bool watch_;
  IpcMeanwhile *const meanwhile_;
  bool is_reused_ = false;
  bool is_live_ = false;
  bool found_connection_closed_ = false;
  OwnedFd socket_;
  OwnedFd process_;
  OwnedFd descriptor_;
  unsigned descriptors_ = 0;
  IpcReply reply_;
};

// After BUSY: waits before the next attempt. An error: the time is over.
Status wait_while_busy(const IpcHandle &handle, uint64_t deadline, uint64_t timeout_ms) {
  const uint64_t now = monotonic_ms();
  if (now >= deadline)
    return fail(GMM_ERROR_IPC_TIMEOUT,
                "import from process %" PRIu32 ": the exporter was busy for %" PRIu64
                " ms: it pauses or resumes the memory, or it serves as many importers as it can (%u)",
                handle.exporter.pid, timeout_ms, kIpcMaxImporters);
  const uint64_t left = deadline - now;
  sleep_us((left < kRetryMs ? left : kRetryMs) * 1000);
  return Status();
}

// Attempts over new connections until the deadline, while the exporter has no place for another importer.
Status connect_until(const IpcHandle &handle, IpcWant want, uint64_t deadline, uint64_t timeout_ms, IpcImport *out,
                     const IpcPolicy &policy, bool watch, IpcMeanwhile *meanwhile) {
  bool busy = false;
  for (;;) {
    const Status status = Attempt(handle, want, deadline, policy, watch, meanwhile).run(out);
    if (status.code() == GMM_ERROR_BUSY) {
      busy = true;
    } else if (!busy || status.code() != GMM_ERROR_IPC_TIMEOUT) {
      return status;
    }
    GMM_TRY(wait_while_busy(handle, deadline, timeout_ms));
  }
}

}  // namespace

IpcConnection &IpcConnection::operator=(IpcConnection &&other) noexcept {
  if (this == &other) return *this;
  close();
  peer_ = other.peer_;
  exporter_ = other.exporter_;
  allocation_ = other.allocation_;
  other.peer_ = Peer();
  return *this;
}

bool IpcConnection::release() {
  if (!open()) return false;
  IpcRequest request;
  request.want = static_cast<uint16_t>(IpcWant::kRelease);
  request.allocation = allocation_;
  request.start_time = exporter_.start_time;
  request.serial = exporter_.serial;
  uint8_t bytes[kIpcRequestSize];
  request.encode(bytes);
  return os::send_bytes(peer_.connection, bytes, sizeof bytes) == static_cast<int64_t>(sizeof bytes);
}

void IpcConnection::close() {
  const Peer old = peer_;
  peer_ = Peer();
  if (old.connection >= 0) os::close_socket(old.connection);
  if (old.process >= 0) os::close_file(old.process).ignore();
}

PeerState IpcConnection::state() const {
  const PeerState state = peer_.state();
  // Without a descriptor of the process its entry in /proc shows its end.
  if (state == PeerState::kAlive && open() && peer_.process < 0 && seems_gone(exporter_)) return PeerState::kGone;
  return state;
}

Status ipc_connect(const IpcHandle &handle, IpcWant want, uint64_t timeout_ms, IpcImport *out, const IpcPolicy &policy,
                   bool watch, IpcMeanwhile meanwhile) {
  check_may_wait("another process");
  return connect_until(handle, want, deadline_after(timeout_ms), timeout_ms, out, policy, watch, &meanwhile);
}

Status IpcClient::connect(const IpcHandle &handle, IpcWant want, uint64_t timeout_ms, IpcImport *out, bool watch,
                          IpcMeanwhile meanwhile) {
  check_may_wait("another process");
  const uint64_t deadline = deadline_after(timeout_ms);
  IpcConnection idle;
  while (take_idle(handle.exporter, &idle)) {
    Attempt attempt(handle, want, deadline, policy_, watch, &meanwhile);
    attempt.use_connection(static_cast<IpcConnection &&>(idle));
    const Status status = attempt.run(out);
    if (attempt.found_connection_closed()) continue;
    if (status.code() != GMM_ERROR_BUSY) return status;
    break;
  }
  return connect_until(handle, want, deadline, timeout_ms, out, policy_, watch, &meanwhile);
}

Status IpcClient::next_piece(const IpcHandle &handle, uint64_t timeout_ms, IpcConnection *connection, IpcImport *out) {
  check_may_wait("another process");
  const uint64_t deadline = deadline_after(timeout_ms), first = connection->allocation();
  for (;;) {
    IpcMeanwhile nothing;
    Attempt attempt(handle, IpcWant::kDescriptor, deadline, policy_, false, &nothing);
    attempt.use_connection(static_cast<IpcConnection &&>(*connection), true);
    const Status status = attempt.run(out);
    if (!status.ok() && status.code() != GMM_ERROR_BUSY) return status;
    if (!status.ok()) GMM_TRY(wait_while_busy(handle, deadline, timeout_ms));
    *connection = attempt.take_connection(first);
    if (status.ok()) return status;
  }
}

void IpcClient::release(IpcConnection &&connection) {
  IpcConnection idle = static_cast<IpcConnection &&>(connection);
  if (idle.release()) keep(static_cast<IpcConnection &&>(idle));
}

Status IpcClient::check(const IpcHandle &handle, uint64_t timeout_ms) {
  IpcImport answer;
  GMM_TRY(connect(handle, IpcWant::kCheck, timeout_ms, &answer, false));
  keep(static_cast<IpcConnection &&>(answer.connection));
  return Status();
}

void IpcClient::keep(IpcConnection &&idle) {
  LockGuard guard(mutex_);
  if (idle_count_ == kMaxIdle) {
    for (uint32_t i = 1; i < kMaxIdle; ++i) idle_[i - 1] = static_cast<IpcConnection &&>(idle_[i]);
    --idle_count_;
  }
  idle_[idle_count_++] = static_cast<IpcConnection &&>(idle);
}

// False: there is no idle connection to this exporter. The exporter may have closed the one that it finds.
bool IpcClient::take_idle(const IpcEndpoint &exporter, IpcConnection *out) {
  LockGuard guard(mutex_);
  // The newest first, since an exporter that needs places closes the oldest first.
  for (uint32_t i = idle_count_; i-- > 0;) {
    if (!(idle_[i].exporter() == exporter)) continue;
    *out = static_cast<IpcConnection &&>(idle_[i]);
    for (--idle_count_; i < idle_count_; ++i) idle_[i] = static_cast<IpcConnection &&>(idle_[i + 1]);
    return true;
  }
  return false;
}

void IpcClient::close_idle() {
  LockGuard guard(mutex_);
  while (idle_count_ != 0) idle_[--idle_count_].close();
}

}  // namespace gmm
