// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/peer_server.h"

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include "base/process.h"

namespace gmm {
namespace {

constexpr int kAcceptsPerRound = 64;  // then the connections that exist are served
constexpr uint64_t kAcceptAgainMs = 100;
constexpr uint32_t kComplaintsPerSecond = 20;

}  // namespace

int PeerServer::listen(int32_t *listener) {
  char unready[kIpcNameSize + sizeof kIpcUnready];
  std::snprintf(unready, sizeof unready, "%s%s", name_, kIpcUnready);
  return os::listen_at(folder_, name_, unready, policy_.user_count != 0, listener, &identity_);
}

bool PeerServer::has_name() const {
  os::NameIdentity now;
  return os::identify_name(folder_, name_, &now) == 0 && now == identity_;
}

// --- The loop -------------------------------------------------------------------------------------------------------

void PeerServer::request_stop() {
  stopping_.store(true, std::memory_order_release);
  poller_.wake();
}

void PeerServer::serve_until(uint64_t until) {
  void *keys[os::SocketPoller::kMost];
  if (const Connection *oldest = oldest_pending()) until = std::min(until, oldest->since + kHandshakeMs);
  if (accept_again_ != 0) until = std::min(until, accept_again_);
  const uint32_t count = poller_.wait_until(until, keys);
  bool may_accept = false;
  for (uint32_t i = 0; i < count; ++i) {
    may_accept = may_accept || keys[i] == &listener_;
    Connection *const *live = std::find(connections_.begin(), connections_.end(), keys[i]);
    if (live != connections_.end()) receive(*live);  // an earlier event may have ended it
  }
  const uint64_t now = monotonic_ms();
  for (Connection *late; (late = oldest_pending()) != nullptr && now - late->since >= kHandshakeMs; drop(late))
    complain("dropped process %d: it sent nothing in %u ms", late->pid, static_cast<unsigned>(kHandshakeMs));
  if (accept_again_ != 0 && now >= accept_again_)
    accept_again_ = poller_.want(listener_, &listener_, true) == 0 ? 0 : now + kAcceptAgainMs;
  // After all events of this round: a new connection may lie where one lay that ended in it.
  if (may_accept) accept_all();
}

PeerServer::Connection *PeerServer::oldest_pending() const {
  Connection *oldest = nullptr;
  for (uint64_t i = 0; pending_ != 0 && i < connections_.size(); ++i)
    if (connections_[i]->is_pending && (oldest == nullptr || connections_[i]->since < oldest->since))
      oldest = connections_[i];
  return oldest;
}

// --- A connection ---------------------------------------------------------------------------------------------------

void PeerServer::accept_all() {
  for (int i = 0; i < kAcceptsPerRound; ++i) {
    int32_t socket = -1;
    const int error = os::accept_socket(listener_, &socket);
    if (error == EAGAIN) return;
    if (error == 0) {
      admit(socket);
      continue;
    }
    // The process is out of descriptors or memory. The connection stays in the queue and would wake the thread again
    // and again, so the thread listens no more for a while.
    complain("processes have to wait: accept: %s", ErrorText(error).text);
    if (poller_.want(listener_, &listener_, false) == 0) accept_again_ = monotonic_ms() + kAcceptAgainMs;
    return;
  }
}

void PeerServer::admit(int32_t socket) {
  const auto refuse = [&](gmm_result reason) {
    turn_away(socket, reason);
    os::close_socket(socket);
  };
  PeerUser peer;
  if (check_peer_user(socket, policy_, &peer) != 0) {
    complain("refused process %d of user %u: only user %u is served%s", peer.process, peer.user, current_user(),
             policy_.user_count == 0 ? "" : ", and those that were named");
    return refuse(GMM_ERROR_IPC_REFUSED);
  }
  if (pending_ == kMaxPending) {
    // The library's clients send their request as soon as they are connected. So the connection that has been silent
    // for longest is the least likely to come from one.
    Connection *oldest = oldest_pending();
    complain("dropped process %d: %u handshakes are under way", oldest->pid, kMaxPending);
    turn_away(oldest->socket, GMM_ERROR_BUSY);
    drop(oldest);
  }
  Connection *connection = make(peer.process);
  bool is_added = connection != nullptr && poller_.add(socket, connection) == 0;
  if (is_added) {
    connection->socket = socket;
    connection->pid = peer.process;
    connection->since = monotonic_ms();
    LockGuard guard(connections_mutex_);
    is_added = connections_.push_back(connection);
  }
  if (!is_added) {
    complain("refused process %d: no memory or descriptors", peer.process);
    poller_.remove(socket);
    if (connection != nullptr) ended(connection);
    return refuse(GMM_ERROR_BUSY);
  }
  ++pending_;
  receive(connection);
}

void PeerServer::keep(Connection *connection) {
  pending_ -= connection->is_pending ? 1 : 0;
  connection->is_pending = false;
}

void PeerServer::drop(Connection *connection) {
  remove(connection);
  os::end_connection(connection->socket);
  ended(connection);
}

int32_t PeerServer::release(Connection *connection) {
  const int32_t socket = connection->socket;
  remove(connection);
  ended(connection);
  return socket;
}

void PeerServer::remove(Connection *connection) {
  {
    LockGuard guard(connections_mutex_);  // then no other thread uses its socket
    connections_.erase_unordered(
        static_cast<uint64_t>(std::find(connections_.begin(), connections_.end(), connection) - connections_.begin()));
  }
  pending_ -= connection->is_pending ? 1 : 0;
  poller_.remove(connection->socket);
}

void PeerServer::drop_all() {
  while (!connections_.empty()) drop(connections_.back());
}

void PeerServer::complain(const char *format, ...) {
  char text[512];
  const uint64_t now = monotonic_ms();
  if (now - complaints_since_ >= 1000) {
    if (complaints_ > kComplaintsPerSecond) {
      std::snprintf(text, sizeof text, "%u more messages were left out", complaints_ - kComplaintsPerSecond);
      log(text);
    }
    complaints_since_ = now;
    complaints_ = 0;
  }
  if (++complaints_ > kComplaintsPerSecond) return;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  log(text);
}

}  // namespace gmm
