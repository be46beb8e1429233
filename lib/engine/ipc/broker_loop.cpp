// SPDX-License-Identifier: Apache-2.0
// What the broker's thread does.
#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "base/process.h"
#include "engine/ipc/broker.h"
#include "engine/ipc/directory.h"

namespace gmm {
namespace {

constexpr int kEvents = 64;
constexpr int kAcceptsAtOnce = 64;  // then the others have their turn
constexpr uint64_t kListenAgainMs = 100;
constexpr uint32_t kComplaintsASecond = 20;

void close_fd(int *fd) {
  const int old = *fd;
  *fd = -1;
  if (old >= 0) ::close(old);
}

}  // namespace

void *IpcBroker::thread_main(void *self) {
  name_thread("gmm-ipc");
  static_cast<IpcBroker *>(self)->run();
  return nullptr;
}

void IpcBroker::run() {
  // Here and not in start(), which holds a lock that the log's callback must not see.
  if (fell_through_) log_.write(LogLevel::kWarning, "ipc: $XDG_RUNTIME_DIR/gmm cannot be used for sockets; using /tmp");
  ipc_directory_reap(directory_, log_);
  epoll_event events[kEvents];
  while (!stopping_.load(std::memory_order_acquire)) {
    const int count = ::epoll_wait(epoll_, events, kEvents, wait_ms());
    bool clients = false;
    for (int i = 0; i < count; ++i) {
      void *what = events[i].data.ptr;
      if (what == &wake_) {
        uint64_t value;
        // Only empties the counter; what it stands for is looked up below.
        [[maybe_unused]] const ssize_t got = ::read(wake_, &value, sizeof value);
      } else if (what == &listener_) {
        clients = true;
      } else if (auto *slot = static_cast<Slot *>(what); slot->state != State::kFree) {
        receive(slot);
      }
    }
    drop_revoked();
    drop_late();
    // After all events of this round, so that none of them can mean a slot's new owner.
    if (clients) accept_clients();
  }
  for (uint32_t i = 0; i < kSlots; ++i)
    if (slots_[i].state != State::kFree) drop(&slots_[i]);
}

// Until the next handshake is late or listening goes on; -1: nothing to wait for.
int IpcBroker::wait_ms() {
  uint64_t until = UINT64_MAX;
  if (const Slot *oldest = oldest_pending()) until = oldest->since + handshake_ms_;
  if (listen_again_ != 0 && listen_again_ < until) until = listen_again_;
  if (until == UINT64_MAX) return -1;
  const uint64_t now = monotonic_ms();
  return until <= now ? 0 : static_cast<int>(until - now) + 1;
}

void IpcBroker::accept_clients() {
  for (int i = 0; i < kAcceptsAtOnce; ++i) {
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      admit(fd);
      continue;
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EAGAIN) return;
    // Out of descriptors or memory: the connection stays in the queue and would wake the thread again and again.
    const int error = errno;
    char text[128];
    complain("importers have to wait: accept: %s", system_error_text(error, text, sizeof text));
    epoll_event event = {};
    event.data.ptr = &listener_;
    if (::epoll_ctl(epoll_, EPOLL_CTL_MOD, listener_, &event) == 0) listen_again_ = monotonic_ms() + kListenAgainMs;
    return;
  }
}

void IpcBroker::admit(int fd) {
  ucred peer = {};
  socklen_t size = sizeof peer;
  IpcReply reply;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || !policy_.allows(peer.uid)) {
    complain("refused process %d of user %u: only user %u may import%s", static_cast<int>(peer.pid), peer.uid,
             ::geteuid(), policy_.user_count == 0 ? "" : ", and those that gmm_ipc_configure() named");
    reply.result = GMM_ERROR_IPC_REFUSED;
    send_reply(fd, reply, -1);
    ::close(fd);
    return;
  }
  if (pending_ == kMaxPending) {
    // A client of ours speaks at once, so the oldest one that has not is the least likely to be one.
    Slot *oldest = oldest_pending();
    complain("dropped process %d: %u handshakes are under way", oldest->pid, kMaxPending);
    refuse(oldest, GMM_ERROR_BUSY);
  }
  // There is one: the pending are fewer than they may be, the live never more.
  Slot *slot = free_[free_count_ - 1];
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.ptr = slot;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    const int error = errno;
    char text[128];
    complain("refused process %d: epoll_ctl: %s", static_cast<int>(peer.pid),
             system_error_text(error, text, sizeof text));
    reply.result = GMM_ERROR_BUSY;
    send_reply(fd, reply, -1);
    ::close(fd);
    return;
  }
  --free_count_;
  slot->fd = fd;
  slot->state = State::kPending;
  slot->granted = false;
  slot->received = 0;
  slot->pid = peer.pid;
  slot->since = monotonic_ms();
  pending_list_[pending_++] = slot;
  receive(slot);
}

// Takes what has come. Descriptors that a peer sends along are closed by the kernel, as recv() has no place for them.
void IpcBroker::receive(Slot *slot) {
  if (slot->state != State::kPending) return receive_more(slot);
  while (slot->received < sizeof slot->request) {
    const ssize_t got =
        ::recv(slot->fd, slot->request + slot->received, sizeof slot->request - slot->received, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) break;
    if (got <= 0) {
      // A connection without a word is another broker's look whether we live; a whole request whose sender
      // does not wait for the answer needs none.
      if (slot->received != 0 && slot->received < kIpcRequestSize)
        complain("dropped process %d: its request ended after %u of %u bytes", slot->pid, slot->received,
                 static_cast<unsigned>(kIpcRequestSize));
      return drop(slot);
    }
    slot->received += static_cast<uint32_t>(got);
  }
  if (slot->received > kIpcRequestSize) {
    complain("refused process %d: its request is longer than %u bytes", slot->pid,
             static_cast<unsigned>(kIpcRequestSize));
    return refuse(slot, GMM_ERROR_IPC_REFUSED);
  }
  if (slot->received == kIpcRequestSize) answer(slot);
}

// After the first request: each message comes whole, since a Unix socket does not divide what was sent at once.
void IpcBroker::receive_more(Slot *slot) {
  const ssize_t got = ::recv(slot->fd, slot->request, kIpcRequestSize, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return drop(slot);
  if (got == static_cast<ssize_t>(kIpcRequestSize)) {
    if (slot->state == State::kIdle) return answer(slot);
    IpcRequest request;
    request.decode(slot->request);
    if (is_release(request, *slot)) return release(slot);
  }
  complain("dropped process %d: it spoke again after its request", slot->pid);
  drop(slot);
}

bool IpcBroker::is_release(const IpcRequest &request, const Slot &slot) const {
  // The thread itself wrote the slot's allocation, so reading it needs no lock.
  return request.magic == kIpcRequestMagic && request.version == kIpcProtocolVersion &&
         request.want == static_cast<uint16_t>(IpcWant::kRelease) && request.reserved == 0 &&
         request.start_time == endpoint_.start_time && request.serial == endpoint_.serial &&
         request.allocation == slot.allocation;
}

void IpcBroker::release(Slot *slot) {
  uint64_t allocation;
  {
    LockGuard guard(slot_mutex_);
    allocation = slot->allocation;
    slot->allocation = 0;
    slot->has_allocation = slot->revoked = false;
  }
  slot->state = State::kIdle;
  slot->granted = false;
  slot->since = monotonic_ms();
  ++idle_;
  live_.fetch_sub(1, std::memory_order_relaxed);
  resolver_.importer_gone(resolver_.user, allocation);
}

bool IpcBroker::check(const IpcRequest &request, const Slot &slot) {
  if (request.magic != kIpcRequestMagic) {
    complain("refused process %d: what it sent is not a request (magic %08x)", slot.pid, request.magic);
  } else if (request.version != kIpcProtocolVersion) {
    complain("refused process %d: it speaks version %u, this library version %u", slot.pid, request.version,
             kIpcProtocolVersion);
  } else if (request.reserved != 0 || (request.want != static_cast<uint16_t>(IpcWant::kDescriptor) &&
                                       request.want != static_cast<uint16_t>(IpcWant::kCount))) {
    complain("refused process %d: its request has unknown fields", slot.pid);
  } else if (request.start_time != endpoint_.start_time || request.serial != endpoint_.serial) {
    complain("refused process %d: it means another exporter", slot.pid);
  } else {
    return true;
  }
  return false;
}

void IpcBroker::answer(Slot *slot) {
  IpcRequest request;
  request.decode(slot->request);
  if (!check(request, *slot)) return refuse(slot, GMM_ERROR_IPC_REFUSED);
  const uint32_t live = live_.load(std::memory_order_relaxed);
  if (slot->state == State::kPending && live != kMaxLive && live + idle_ == kMaxLive) drop_oldest_idle();
  if (live == kMaxLive) {
    complain("refused process %d: %u importers are connected, which is the most", slot->pid, kMaxLive);
    return refuse(slot, GMM_ERROR_BUSY);
  }
  {
    // Before the resolver is asked, so that a revoke() in between finds the slot.
    LockGuard guard(slot_mutex_);
    slot->allocation = request.allocation;
    slot->has_allocation = true;
    slot->revoked = false;
  }
  if (!grant(slot, request)) drop(slot);
}

// False: drop the connection.
bool IpcBroker::grant(Slot *slot, const IpcRequest &request) {
  IpcGrant grant;
  grant.wants_fd = request.want == static_cast<uint16_t>(IpcWant::kDescriptor);
  const Status status = resolver_.resolve(resolver_.user, request.allocation, request.token, &grant);
  IpcReply reply;
  if (!status.ok()) {
    complain("refused process %d the allocation %" PRIu64 ": %s", slot->pid, request.allocation, last_message());
    close_fd(&grant.fd);
    reply.result = status.code();
    send_reply(slot->fd, reply, -1);
    return false;
  }
  if (slot->state == State::kPending) forget_pending(slot);
  if (slot->state == State::kIdle) --idle_;
  slot->granted = true;
  slot->state = State::kLive;
  live_.fetch_add(1, std::memory_order_relaxed);
  if (grant.wants_fd && grant.fd < 0) {
    complain("refused process %d the allocation %" PRIu64 ": it has no file descriptor", slot->pid, request.allocation);
    reply.result = GMM_ERROR_NOT_SUPPORTED;
    send_reply(slot->fd, reply, -1);
    return false;
  }
  reply.allocation_size = grant.allocation_size;
  reply.generation = grant.generation;
  reply.descriptors = grant.wants_fd ? 1 : 0;
  const bool sent = send_reply(slot->fd, reply, grant.wants_fd ? grant.fd : -1);
  close_fd(&grant.fd);
  return sent;
}

// A reply fits into the buffer of a connection whose peer has taken the reply before: no waiting, no rest.
bool IpcBroker::send_reply(int fd, const IpcReply &reply, int descriptor) {
  uint8_t bytes[kIpcReplySize];
  reply.encode(bytes);
  iovec part = {bytes, sizeof bytes};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  ssize_t sent;
  do {
    sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(sizeof bytes)) return true;
  if (sent < 0 && errno != EPIPE && errno != ECONNRESET) {
    const int error = errno;
    char text[128];
    complain("an answer to an importer could not be sent: %s", system_error_text(error, text, sizeof text));
  }
  return false;
}

void IpcBroker::refuse(Slot *slot, gmm_result result) {
  IpcReply reply;
  reply.result = result;
  // Whether it arrives is the peer's affair: the connection ends either way.
  send_reply(slot->fd, reply, -1);
  drop(slot);
}

void IpcBroker::drop(Slot *slot) {
  // Closing also takes it out of the epoll set, as no other descriptor of ours refers to the connection; a child after
  // fork() may hold one, so it is taken out by name.
  ::epoll_ctl(epoll_, EPOLL_CTL_DEL, slot->fd, nullptr);
  close_fd(&slot->fd);
  uint64_t allocation;
  {
    LockGuard guard(slot_mutex_);
    allocation = slot->allocation;
    slot->allocation = 0;
    slot->has_allocation = slot->revoked = false;
  }
  if (slot->state == State::kPending) forget_pending(slot);
  if (slot->state == State::kIdle) --idle_;
  if (slot->state == State::kLive) live_.fetch_sub(1, std::memory_order_relaxed);
  slot->state = State::kFree;
  free_[free_count_++] = slot;
  if (!slot->granted) return;
  slot->granted = false;
  resolver_.importer_gone(resolver_.user, allocation);
}

void IpcBroker::drop_late() {
  const uint64_t now = monotonic_ms();
  for (Slot *slot = oldest_pending(); slot != nullptr && now - slot->since >= handshake_ms_; slot = oldest_pending()) {
    complain("dropped process %d: it sent %u of %u bytes of a request in %u ms", slot->pid, slot->received,
             static_cast<unsigned>(kIpcRequestSize), static_cast<unsigned>(handshake_ms_));
    drop(slot);
  }
  if (listen_again_ == 0 || now < listen_again_) return;
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.ptr = &listener_;
  listen_again_ = ::epoll_ctl(epoll_, EPOLL_CTL_MOD, listener_, &event) == 0 ? 0 : now + kListenAgainMs;
}

void IpcBroker::drop_revoked() {
  if (!any_revoked_.exchange(false, std::memory_order_acquire)) return;
  for (uint32_t i = 0; i < kSlots; ++i) {
    bool revoked, tell;
    {
      LockGuard guard(slot_mutex_);
      revoked = slots_[i].revoked;
      tell = slots_[i].tell;
    }
    if (!revoked) continue;
    // The only byte after a reply. It stays in the importer's socket when the connection is closed behind it.
    if (tell && slots_[i].state == State::kLive && ::send(slots_[i].fd, "R", 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1)
      complain("process %d could not be told that its memory was revoked", slots_[i].pid);
    drop(&slots_[i]);
  }
}

// Makes way for an importer: whose idle connection ends, connects again. Searched for only when all places are taken.
void IpcBroker::drop_oldest_idle() {
  Slot *oldest = nullptr;
  for (uint32_t i = 0; i < kSlots; ++i)
    if (slots_[i].state == State::kIdle && (oldest == nullptr || slots_[i].since < oldest->since)) oldest = &slots_[i];
  if (oldest != nullptr) drop(oldest);
}

IpcBroker::Slot *IpcBroker::oldest_pending() { return pending_ == 0 ? nullptr : pending_list_[0]; }

void IpcBroker::forget_pending(const Slot *slot) {
  for (uint32_t i = 0; i < pending_; ++i) {
    if (pending_list_[i] != slot) continue;
    --pending_;
    std::memmove(pending_list_ + i, pending_list_ + i + 1, (pending_ - i) * sizeof *pending_list_);
    return;
  }
}

// A peer must not be able to fill the log.
void IpcBroker::complain(const char *format, ...) {
  const uint64_t now = monotonic_ms();
  if (now - complaints_since_ >= 1000) {
    if (complaints_ > kComplaintsASecond)
      log_.write(LogLevel::kWarning, "ipc: %u further messages not shown", complaints_ - kComplaintsASecond);
    complaints_since_ = now;
    complaints_ = 0;
  }
  if (++complaints_ > kComplaintsASecond) return;
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  log_.write(LogLevel::kWarning, "ipc: %s", text);
}

}  // namespace gmm
