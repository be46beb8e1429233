// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/broker.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "base/bytes.h"
#include "base/os_memory.h"
#include "base/process.h"

namespace gmm {
namespace {

constexpr int kAcceptsPerRound = 64;  // then the connections that exist are served
constexpr uint64_t kListenAgainMs = 100;
constexpr uint32_t kComplaintsPerSecond = 20;

// The brokers of one process, one for each context, have different serials.
std::atomic<uint32_t> g_serial{1};

Status failure(int error, const char *what, const char *of = "") {
  return fail_native(GMM_ERROR_SYSTEM, error, "start of the thread that answers importers: %s%s: %s", what, of,
                     ErrorText(error).text);
}

void close_fd(int *fd) {
  const int old = *fd;
  *fd = -1;
  if (old >= 0) os::close_socket(old);
}

}  // namespace

bool ipc_token_equal(const uint8_t a[kIpcTokenSize], const uint8_t b[kIpcTokenSize]) {
  return equal_constant_time(a, b, kIpcTokenSize);
}

// --- Start and stop -------------------------------------------------------------------------------------------------

Status IpcBroker::start(IpcEndpoint *out) {
  LockGuard guard(mutex_);
  if (running_.load(std::memory_order_relaxed)) {
    if (!has_socket()) GMM_TRY(restore_socket());
  } else if (const Status status = start_thread(); !status.ok()) {
    MessageGuard message_guard;
    close_files();
    return status;
  }
  *out = endpoint_;
  return Status();
}

Status IpcBroker::start_thread() {
  GMM_TRY(open_socket());
  slots_ = static_cast<Slot *>(allocator_.allocate(sizeof(Slot) * kSlots, alignof(Slot)));
  if (slots_ == nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY,
                "start of the thread that answers importers: no host memory for %u connections", kSlots);
  for (uint32_t i = 0; i < kSlots; ++i) ::new (static_cast<void *>(slots_ + i)) Slot;
  pending_ = live_ = complaints_ = 0;
  listen_again_ = complaints_since_ = 0;
  stopping_.store(false, std::memory_order_relaxed);
  if (const int error = gmm::start_thread(&thread_, ThreadSignals::kNone, thread_main, this); error != 0)
    return failure(error, "pthread_create");
  running_.store(true, std::memory_order_release);
  return Status();
}

Status IpcBroker::open_socket() {
  GMM_TRY(ipc_directory_open_own(&directory_, directory_path_, &runtime_directory_failed_, policy_));
  const int32_t pid = process_number();
  endpoint_.pid = static_cast<uint32_t>(pid);
  endpoint_.pid_namespace = pid_namespace();
  if (const int error = process_start_time(pid, &endpoint_.start_time); error != 0)
    return failure(error, "/proc/self/stat, as IPC needs /proc");
  if (const int error = poller_.open(); error != 0) return failure(error, "epoll");
  // A second copy of the library in this process has a counter of its own, which starts at 1 too.
  for (int attempt = 0;; ++attempt) {
    endpoint_.serial = g_serial.fetch_add(1, std::memory_order_relaxed);
    const Status status = listen_under_own_name(&listener_);
    if (status.ok()) break;
    if (last_native() != EADDRINUSE || attempt == 1000) return status;
  }
  const int error = poller_.add(listener_, &listener_);
  return error == 0 ? Status() : failure(error, "epoll_ctl");
}

// Listens under the endpoint's name in the directory.
Status IpcBroker::listen_under_own_name(int *listener) {
  char name[kIpcNameSize], unready[kIpcNameSize];
  ipc_socket_name(endpoint_, name);
  ipc_unready_socket_name(endpoint_, unready);
  const int error = os::listen_at(directory_, name, unready, policy_.user_count != 0, listener, &socket_);
  if (error != 0) return failure(error, "a socket in ", directory_path_);
  has_name_ = true;
  return Status();
}

// Whether the socket's name still means this broker's socket.
bool IpcBroker::has_socket() const {
  char name[kIpcNameSize];
  ipc_socket_name(endpoint_, name);
  os::NameIdentity now;
  return os::identify_name(directory_, name, &now) == 0 && now == socket_;
}

// Makes the socket anew under the same name, and the directory if that was deleted too. Importers can connect when it
// returns; the thread takes the socket over.
Status IpcBroker::restore_socket() {
  int opened = -1, unused = 0, listener = -1;
  GMM_TRY(ipc_directory_open(directory_path_, true, &opened, &unused, policy_));
  std::swap(directory_, opened);
  remove_socket();  // the file that took the name, if any
  Status status = listen_under_own_name(&listener);
  if (status.ok()) {
    if (const int error = poller_.add(listener, &next_listener_); error != 0) {
      status = failure(error, "epoll_ctl");
      remove_socket();
      close_fd(&listener);
    }
  }
  if (!status.ok()) std::swap(directory_, opened);
  close_fd(&opened);
  // One that the thread has not taken over yet has no name any more. Its queue is lost; importers connect again.
  if (status.ok()) unused = next_listener_.exchange(listener, std::memory_order_acq_rel);
  if (status.ok() && unused >= 0) close_fd(&unused);
  return status;
}

void IpcBroker::remove_socket() {
  char name[kIpcNameSize];
  ipc_socket_name(endpoint_, name);
  os::remove_name(directory_, name);
}

void IpcBroker::close_files() {
  if (has_name_) remove_socket();
  has_name_ = false;
  // Before the descriptors are closed, so that end_importers() never writes to a closed one.
  Slot *slots;
  {
    LockGuard guard(slot_mutex_);
    slots = slots_;
    slots_ = nullptr;
  }
  allocator_.deallocate(slots, sizeof(Slot) * kSlots);
  close_fd(&listener_);
  if (int unused = next_listener_.exchange(-1, std::memory_order_acq_rel); unused >= 0) close_fd(&unused);
  poller_.close();
  close_fd(&directory_);
}

void IpcBroker::stop() {
  LockGuard guard(mutex_);
  if (!running_.load(std::memory_order_relaxed)) return;
  remove_socket();  // first: an importer that connects later sees at once that there is no exporter
  stopping_.store(true, std::memory_order_release);
  poller_.wake();
  join_thread(thread_);
  running_.store(false, std::memory_order_relaxed);
  close_files();
}

// The thread sees the end of the connections, and drops them. One whose request is being granted has no reply then.
void IpcBroker::end_importers(uint64_t export_id, bool is_revoked) {
  LockGuard guard(slot_mutex_);
  for (uint32_t i = 0; slots_ != nullptr && i < kSlots; ++i) {
    if (slots_[i].allocation != export_id) continue;
    // The only byte after a reply, so there is space for it. It stays in the importer's socket after this side is
    // closed (Peer::state()).
    if (is_revoked) os::send_bytes(slots_[i].fd, "R", 1);
    os::shut_connection(slots_[i].fd);
  }
}

// --- The thread -------------------------------------------------------------------------------------------------

void *IpcBroker::thread_main(void *self) {
  name_thread("gmm-ipc");
  static_cast<IpcBroker *>(self)->run();
  return nullptr;
}

void IpcBroker::run() {
  // start() cannot write these messages: it holds a lock, and the log's callback is the program's.
  if (runtime_directory_failed_)
    log_.write(LogLevel::kWarning, "ipc: $XDG_RUNTIME_DIR/gmm is unusable for sockets; the socket is in /tmp");
  {
    // A descriptor of its own: directory_ may change.
    int directory = -1, error = 0;
    MessageGuard message;
    if (ipc_directory_open(directory_path_, false, &directory, &error, policy_).ok()) {
      ipc_directory_remove_stale(directory, log_);
      os::close_file(directory).ignore();
    }
  }
  void *keys[os::SocketPoller::kMost];
  while (!stopping_.load(std::memory_order_acquire)) {
    const uint32_t count = poller_.wait(milliseconds_to_next_deadline(), keys);
    bool may_accept = false;
    for (uint32_t i = 0; i < count; ++i) {
      if (keys[i] == &listener_) {
        may_accept = true;
      } else if (keys[i] == &next_listener_) {
        // looked at below
      } else if (auto *slot = static_cast<Slot *>(keys[i]); slot->state != State::kFree) {
        receive(slot);
      }
    }
    close_late_pending();
    resume_listening();
    // New connections come after all events of this round, since an event names its slot, and a slot that was closed in
    // this round may be used again.
    if (may_accept) accept_connections();
    take_over_listener();
  }
  for (uint32_t i = 0; i < kSlots; ++i)
    if (slots_[i].state != State::kFree) drop(&slots_[i]);
}

// The time until a pending connection is late or accept() is tried again; -1: there is no deadline.
int64_t IpcBroker::milliseconds_to_next_deadline() {
  uint64_t until = UINT64_MAX;
  if (const Slot *oldest = oldest_pending()) until = oldest->since + kHandshakeMs;
  if (listen_again_ != 0 && listen_again_ < until) until = listen_again_;
  if (until == UINT64_MAX) return -1;
  const uint64_t now = monotonic_ms();
  return until <= now ? 0 : static_cast<int64_t>(until - now) + 1;
}

void IpcBroker::accept_connections() {
  for (int i = 0; i < kAcceptsPerRound; ++i) {
    int32_t fd = -1;
    const int error = os::accept_socket(listener_, &fd);
    if (error == 0) {
      admit(fd);
      continue;
    }
    if (error == EAGAIN) return;
    // The process is out of descriptors or memory. The connection stays in the queue and would wake the thread again
    // and again, so the thread listens no more for a while.
    complain("importers have to wait: accept: %s", ErrorText(error).text);
    if (poller_.want(listener_, &listener_, false) == 0) listen_again_ = monotonic_ms() + kListenAgainMs;
    return;
  }
}

void IpcBroker::admit(int fd) {
  // The user is checked before a byte of the connection is read.
  PeerUser peer;
  const auto turn_away = [&](gmm_result result) {
    IpcReply reply;
    reply.result = result;
    send_reply(fd, reply);
    os::close_socket(fd);
  };
  if (check_peer_user(fd, policy_, &peer) != 0 || !peer.is_allowed) {
    complain("refused process %d of user %u: only user %u may import%s", peer.process, peer.user, current_user(),
             policy_.user_count == 0 ? "" : ", and those that gmm_ipc_configure() named");
    return turn_away(GMM_ERROR_IPC_REFUSED);
  }
  if (pending_ == kMaxPending) {
    // The library's client sends its request as soon as it is connected. So the connection that has been silent for
    // longest is the least likely to come from one.
    Slot *oldest = oldest_pending();
    complain("dropped process %d: %u handshakes are under way", oldest->pid, kMaxPending);
    refuse(oldest, GMM_ERROR_BUSY);
  }
  Slot *slot = free_slot();
  if (const int error = poller_.add(fd, slot); error != 0) {
    complain("refused process %d: epoll_ctl: %s", peer.process, ErrorText(error).text);
    return turn_away(GMM_ERROR_BUSY);
  }
  ++pending_;
  slot->fd = fd;
  slot->state = State::kPending;
  slot->received = 0;
  slot->pid = peer.process;
  slot->since = monotonic_ms();
  receive(slot);
}

void IpcBroker::receive(Slot *slot) {
  if (slot->state == State::kPending) return receive_request(slot);
  const int64_t got = os::receive_bytes(slot->fd, &slot->incoming, sizeof slot->incoming);
  if (got == -EAGAIN) return;
  if (got > 0) complain("dropped process %d: it spoke again after its request", slot->pid);
  drop(slot);
}

// The request may come in parts. The system closes descriptors that a peer sends along, since receive_bytes() has no
// place for them.
void IpcBroker::receive_request(Slot *slot) {
  constexpr uint32_t kSize = sizeof(IpcRequest);
  while (slot->received <= kSize) {
    uint8_t *to = reinterpret_cast<uint8_t *>(&slot->incoming) + slot->received;
    const int64_t got = os::receive_bytes(slot->fd, to, kSize + 1 - slot->received);
    if (got == -EAGAIN) break;
    if (got <= 0) {
      // A connection without a byte comes from another broker, which looks for stale sockets. A whole request whose
      // sender does not wait for the answer needs none.
      if (slot->received != 0 && slot->received < kSize)
        complain("dropped process %d: its request ended after %u of %u bytes", slot->pid, slot->received, kSize);
      return drop(slot);
    }
    slot->received += static_cast<uint32_t>(got);
  }
  if (slot->received > kSize) {
    complain("refused process %d: its request is longer than %u bytes", slot->pid, kSize);
    return refuse(slot, GMM_ERROR_IPC_REFUSED);
  }
  if (slot->received == kSize) answer(slot);
}

bool IpcBroker::check(const IpcRequest &request, const Slot &slot) {
  if (request.magic != IpcRequest::kMagic) {
    complain("refused process %d: its bytes are not a request (magic %08x)", slot.pid, request.magic);
  } else if (request.version != kIpcProtocolVersion) {
    complain("refused process %d: it speaks version %u, this library version %u", slot.pid, request.version,
             kIpcProtocolVersion);
  } else if (request.reserved != 0 || request.want < IpcWant::kDescriptors || request.want > IpcWant::kCheck) {
    complain("refused process %d: its request has unknown fields", slot.pid);
  } else if (request.start_time != endpoint_.start_time || request.serial != endpoint_.serial) {
    complain("refused process %d: it means another exporter", slot.pid);
  } else {
    return true;
  }
  return false;
}

void IpcBroker::answer(Slot *slot) {
  const IpcRequest &request = slot->incoming.request;
  if (!check(request, *slot)) return refuse(slot, GMM_ERROR_IPC_REFUSED);
  IpcGrant granted;
  granted.wants_fds = request.want == IpcWant::kDescriptors;
  granted.counts = request.want != IpcWant::kCheck;
  gmm_result result = GMM_ERROR_BUSY;
  if (granted.counts && live_ == kMaxLive)
    complain("refused process %d: %u importers are connected, which is the most", slot->pid, kMaxLive);
  else
    result = grant(slot, request, &granted);
  IpcReply reply;
  reply.allocation_size = granted.allocation_size;
  reply.generation = granted.generation;
  reply.extents = static_cast<uint16_t>(granted.extents);
  const bool sent = result == GMM_OK && send_reply(slot->fd, reply, &granted);
  for (uint32_t i = 0; i < granted.extents; ++i) close_fd(&granted.fds[i]);
  if (result != GMM_OK) return refuse(slot, result);
  if (!sent || !granted.counts) drop(slot);
}

// The connection is live after a grant that counts.
gmm_result IpcBroker::grant(Slot *slot, const IpcRequest &request, IpcGrant *out) {
  if (out->counts) {
    // Before the resolver runs, so that a revoke() during resolve() finds the slot.
    LockGuard guard(slot_mutex_);
    slot->allocation = request.allocation;
  }
  const Status status = resolver_.resolve(resolver_.user, request.allocation, request.token, out);
  if (!status.ok()) {
    // BUSY is no refusal: the importer asks again.
    if (status.code() != GMM_ERROR_BUSY)
      complain("refused process %d the allocation %" PRIu64 ": %s", slot->pid, request.allocation, last_message());
    return status.code();
  }
  if (!out->counts) return GMM_OK;
  --pending_;
  ++live_;
  slot->state = State::kLive;
  return GMM_OK;
}

// The send neither waits nor is partial: the reply is all that the connection carries, so it fits into the buffer.
bool IpcBroker::send_reply(int fd, const IpcReply &reply, const IpcGrant *grant) {
  IpcReply sized = reply;
  if (grant != nullptr) std::copy_n(grant->sizes, reply.extents, sized.sizes);
  const uint64_t size = IpcReply::size_with(reply.extents);
  const int64_t sent = os::send_bytes(fd, &sized, size, reply.extents != 0 ? grant->fds : nullptr, reply.extents);
  if (sent == static_cast<int64_t>(size)) return true;
  if (sent < 0 && sent != -EPIPE && sent != -ECONNRESET) {
    complain("cannot send an answer to an importer: %s", ErrorText(static_cast<int>(-sent)).text);
  }
  return false;
}

void IpcBroker::refuse(Slot *slot, gmm_result result) {
  IpcReply reply;
  reply.result = result;
  send_reply(slot->fd, reply);  // the connection is closed whether or not the reply arrives
  drop(slot);
}

void IpcBroker::drop(Slot *slot) {
  const bool was_live = slot->state == State::kLive;
  --(was_live ? live_ : pending_);
  slot->state = State::kFree;
  uint64_t allocation = 0;
  {
    LockGuard guard(slot_mutex_);
    allocation = slot->allocation;
    slot->allocation = 0;  // from now on end_importers() does not use the descriptor
  }
  poller_.remove(slot->fd);
  os::end_connection(slot->fd);
  slot->fd = -1;
  if (was_live) resolver_.importer_gone(resolver_.user, allocation);
}

void IpcBroker::close_late_pending() {
  const uint64_t now = monotonic_ms();
  for (Slot *slot = oldest_pending(); slot != nullptr && now - slot->since >= kHandshakeMs; slot = oldest_pending()) {
    complain("dropped process %d: it sent %u of %u bytes of a request in %u ms", slot->pid, slot->received,
             static_cast<unsigned>(sizeof(IpcRequest)), static_cast<unsigned>(kHandshakeMs));
    drop(slot);
  }
}

void IpcBroker::resume_listening() {
  if (listen_again_ == 0) return;
  const uint64_t now = monotonic_ms();
  if (now < listen_again_) return;
  listen_again_ = poller_.want(listener_, &listener_, true) == 0 ? 0 : now + kListenAgainMs;
}

// The old socket has no name any more. Connections that are in its queue were made before, and are served.
void IpcBroker::take_over_listener() {
  const int next = next_listener_.exchange(-1, std::memory_order_acq_rel);
  if (next < 0) return;
  for (int i = 0; i < 3; ++i) accept_connections();  // more than the queue holds
  poller_.remove(listener_);
  os::close_socket(listener_);
  listener_ = next;
  listen_again_ = 0;
  poller_.want(listener_, &listener_, true);
}

// There is one: fewer than kMaxPending are pending, and at most kMaxLive are live.
IpcBroker::Slot *IpcBroker::free_slot() {
  return std::find_if(slots_, slots_ + kSlots, [](const Slot &each) { return each.state == State::kFree; });
}

IpcBroker::Slot *IpcBroker::oldest_pending() {
  Slot *oldest = nullptr;
  for (uint32_t i = 0; pending_ != 0 && i < kSlots; ++i)
    if (slots_[i].state == State::kPending && (oldest == nullptr || slots_[i].since < oldest->since))
      oldest = &slots_[i];
  return oldest;
}

void IpcBroker::complain(const char *format, ...) {
  const uint64_t now = monotonic_ms();
  if (now - complaints_since_ >= 1000) {
    if (complaints_ > kComplaintsPerSecond)
      log_.write(LogLevel::kWarning, "ipc: %u more messages were left out", complaints_ - kComplaintsPerSecond);
    complaints_since_ = now;
    complaints_ = 0;
  }
  if (++complaints_ > kComplaintsPerSecond) return;
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  log_.write(LogLevel::kWarning, "ipc: %s", text);
}

}  // namespace gmm
