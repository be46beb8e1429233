// SPDX-License-Identifier: Apache-2.0
#include "cli/serve/server.h"

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "base/peer.h"
#include "base/process.h"

namespace gmm {
namespace {

constexpr uint64_t kAcceptAgainMs = 100;
constexpr uint64_t kLookAtNameMs = 1000;  // whether somebody deleted the socket
constexpr uint32_t kMostAtOnce = 16;      // messages of one connection before those of the others
constexpr char kUnreadySocket[] = "serve.sock.new";

Status system_failure(int error, const char *what) {
  return fail_native(GMM_ERROR_SYSTEM, error, "%s: %s", what, ErrorText(error).text);
}

// 0: no client sends such a message.
uint64_t size_of(const ServeHeader &header) {
  if (header.is(ServeKind::kLeaseReport)) return sizeof(LeaseReport);
  if (header.is(ServeKind::kLeaseQuestion)) return sizeof(LeaseQuestion);
  return 0;
}

}  // namespace

// --- Beginning and end -----------------------------------------------------------------------------------------------

Status Server::open(int32_t listener) {
  const int locked = os::lock_folder(folder_);
  if (locked == EAGAIN) return fail(GMM_ERROR_BUSY, "Another server has this folder; `gmm serve --status` asks it.");
  if (locked != 0) return system_failure(locked, "the lock of the folder");
  if (const int error = poller_.open(); error != 0) return system_failure(error, "epoll");
  // A server of systemd may have had one before, which the socket does not tell.
  bool may_have_predecessor = listener >= 0;
  listener_ = listener;
  if (listener < 0) GMM_TRY(make_socket(&may_have_predecessor));
  if (const int error = poller_.add(listener_, &listener_); error != 0) return system_failure(error, "epoll_ctl");
  // The clock starts with the machine, so a later server has a greater number.
  const uint64_t number = std::max<uint64_t>(monotonic_us(), 1);
  arbiter_ = allocator_.create<LeaseArbiter>(number, may_have_predecessor, monotonic_ms());
  if (arbiter_ == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the server.");
  idle_since_ = monotonic_ms();
  return Status();
}

// A socket that nobody listens to is a predecessor's, whose members come again.
Status Server::make_socket(bool *was_left) {
  os::NameIdentity left;
  *was_left = os::identify_name(folder_, kServeSocket, &left) == 0;
  if (*was_left && !os::nobody_listens(folder_, kServeSocket))
    return fail(GMM_ERROR_BUSY, "Somebody else listens at %s in this folder.", kServeSocket);
  os::remove_name(folder_, kServeSocket);
  os::remove_name(folder_, kUnreadySocket);
  const int error =
      os::listen_at(folder_, kServeSocket, kUnreadySocket, policy_.user_count != 0, &listener_, &socket_identity_);
  if (error != 0) return system_failure(error, kServeSocket);
  made_socket_ = true;
  return Status();
}

Server::~Server() {
  const uint64_t now = monotonic_ms();
  // Without members there is nothing that a successor would have to learn: the name tells it.
  const bool leaves_members = arbiter_ != nullptr && arbiter_->has_members();
  while (!connections_.empty()) drop(connections_.back(), now);
  if (made_socket_ && !leaves_members && !has_lost_its_name()) os::remove_name(folder_, kServeSocket);
  if (listener_ >= 0) os::close_socket(listener_);
  poller_.close();
  allocator_.destroy(arbiter_);
}

bool Server::has_lost_its_name() const {
  os::NameIdentity named;
  return made_socket_ && (os::identify_name(folder_, kServeSocket, &named) != 0 || !(named == socket_identity_));
}

void Server::stop() {
  stopping_.store(true, std::memory_order_release);
  poller_.wake();
}

void Server::run() {
  while (!stopping_.load(std::memory_order_acquire)) {
    uint64_t now = monotonic_ms();
    uint64_t wake = arbiter_->step(now);
    send_commands(now);
    wake = std::min(wake, end_slow_handshakes(now));
    if (!connections_.empty()) {
      idle_since_ = now;
    } else if (ends_when_idle_) {
      if (now >= idle_since_ + kIdleMs) return;
      wake = std::min(wake, idle_since_ + kIdleMs);
    }
    if (accept_again_ != 0 && now >= accept_again_)
      accept_again_ = poller_.want(listener_, &listener_, true) == 0 ? 0 : now + kAcceptAgainMs;
    if (accept_again_ != 0) wake = std::min(wake, accept_again_);
    now = monotonic_ms();
    wake = std::min(wake, now + kLookAtNameMs);
    const int64_t wait = wake > now ? static_cast<int64_t>(wake - now) : 0;
    void *keys[os::SocketPoller::kMost];
    const uint32_t count = poller_.wait(wait, keys);
    now = monotonic_ms();
    for (uint32_t i = 0; i < count; ++i) {
      Connection *const *live = std::find(connections_.begin(), connections_.end(), keys[i]);
      if (keys[i] == &listener_)
        accept_all(now);
      else if (live != connections_.end())  // an earlier event may have ended it
        receive(*live, now);
    }
    if (has_lost_its_name()) {
      complain(now, "somebody deleted the socket; the server ends, and another one takes its place");
      return;
    }
  }
}

// --- Connections -----------------------------------------------------------------------------------------------------

// Once a second: a client that is refused tries again and again.
void Server::complain(uint64_t now, const char *format, ...) {
  if (now < complain_at_) return;
  complain_at_ = now + 1000;
  va_list arguments;
  va_start(arguments, format);
  std::fputs("gmm serve: ", stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
}

void Server::accept_all(uint64_t now) {
  for (uint32_t i = 0; i < kMostAtOnce; ++i) {
    int32_t socket = -1;
    if (const int error = os::accept_socket(listener_, &socket); error != 0) {
      if (error == EAGAIN) return;
      // The process is out of descriptors or memory. The queue would wake it again and again.
      complain(now, "clients have to wait: accept: %s", ErrorText(error).text);
      if (poller_.want(listener_, &listener_, false) == 0) accept_again_ = now + kAcceptAgainMs;
      return;
    }
    PeerUser peer;
    const int error = check_peer_user(socket, policy_, &peer);
    Connection *connection = nullptr;
    if (error == 0 && peer.is_allowed && connections_.reserve(connections_.size() + 1))
      connection = allocator_.create<Connection>();
    if (connection == nullptr) {
      complain(now, "process %d of user %u is refused", peer.process, peer.user);
      os::close_socket(socket);
      continue;
    }
    connections_.push_back_reserved(connection);
    connection->socket = socket;
    connection->pid = peer.process;
    connection->process = peer.process > 0 ? open_process(peer.process) : -1;
    connection->since = now;
    // The descriptor of the process tells its end though a forked child has the socket.
    if (poller_.add(socket, connection) != 0 ||
        (connection->process >= 0 && poller_.add(connection->process, connection) != 0))
      drop(connection, now);
  }
}

void Server::receive(Connection *connection, uint64_t now) {
  for (uint32_t messages = 0; messages < kMostAtOnce;) {
    const bool has_header = connection->received >= sizeof(ServeHeader);
    const uint64_t size = has_header ? size_of(connection->message.header) : sizeof(ServeHeader);
    if (size == 0) {
      complain(now, "process %d is cut off: it is of another version", connection->pid);
      return drop(connection, now);
    }
    const int64_t got =
        os::receive_bytes(connection->socket, reinterpret_cast<uint8_t *>(&connection->message) + connection->received,
                          size - connection->received);
    if (got == -EAGAIN) {
      if (connection->process >= 0 && os::wait_until_readable(connection->process, 0) == 0) drop(connection, now);
      return;
    }
    if (got <= 0) return drop(connection, now);
    connection->received += static_cast<uint32_t>(got);
    if (!has_header || connection->received < size) continue;
    connection->received = 0;
    ++messages;
    if (!take_message(connection, now)) return drop(connection, now);
  }
}

// False: the connection must be cut.
bool Server::take_message(Connection *connection, uint64_t now) {
  if (connection->message.header.kind == ServeKind::kLeaseReport) return take_report(connection, now);
  return connection->member == nullptr && answer_question(connection, now);
}

bool Server::take_report(Connection *connection, uint64_t now) {
  if (connection->member == nullptr) connection->member = arbiter_->add(connection->pid, connection);
  if (connection->member != nullptr && arbiter_->receive(connection->member, connection->message.report, now))
    return true;
  complain(now, "process %d is cut off: its report makes no sense", connection->pid);
  return false;
}

bool Server::answer_question(Connection *connection, uint64_t now) {
  connection->since = now;
  LeaseEntry entry;
  arbiter_->list(connection->message.question.index, now, &entry);
  return os::send_bytes(connection->socket, &entry, sizeof entry) == static_cast<int64_t>(sizeof entry);
}

void Server::drop(Connection *connection, uint64_t now) {
  poller_.remove(connection->socket);
  os::close_socket(connection->socket);
  if (connection->process >= 0) {
    poller_.remove(connection->process);
    os::close_socket(connection->process);
  }
  if (connection->member != nullptr) arbiter_->remove(connection->member, now);
  connections_.erase_unordered(
      static_cast<uint64_t>(std::find(connections_.begin(), connections_.end(), connection) - connections_.begin()));
  allocator_.destroy(connection);
}

// Returns when the next one is due.
uint64_t Server::end_slow_handshakes(uint64_t now) {
  uint64_t wake = UINT64_MAX;
  for (uint64_t i = connections_.size(); i-- != 0;) {
    Connection *connection = connections_[i];
    if (connection->member != nullptr) continue;
    if (now >= connection->since + kHandshakeMs)
      drop(connection, now);
    else
      wake = std::min(wake, connection->since + kHandshakeMs);
  }
  return wake;
}

void Server::send_commands(uint64_t now) {
  LeaseCommand command;
  while (LeaseArbiter::Member *member = arbiter_->next_command(now, &command)) {
    Connection *connection = static_cast<Connection *>(member->user);
    const int64_t sent = os::send_bytes(connection->socket, &command, sizeof command);
    // A part of a message cannot be made good. One that found no space is left out, as the next one says the same.
    if (sent != static_cast<int64_t>(sizeof command) && sent != -EAGAIN) drop(connection, now);
  }
}

}  // namespace gmm
