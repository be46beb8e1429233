// SPDX-License-Identifier: Apache-2.0
#include "cli/serve/server.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/peer.h"
#include "base/process.h"

namespace gmm {
namespace {

constexpr uint64_t kLookAtNameMs = 1000;  // whether somebody deleted the socket
constexpr uint32_t kMostAtOnce = 16;      // messages of one connection before those of the others
constexpr char kUnreadySocket[] = "serve.sock.new";

}  // namespace

// --- Beginning and end -----------------------------------------------------------------------------------------------

Status Server::open(int32_t listener) {
  const int locked = os::lock_folder(folder_);
  if (locked == EAGAIN) return fail(GMM_ERROR_BUSY, "Another server has this folder; `gmm serve --status` asks it.");
  if (locked != 0) return system_failure(locked, "the lock of the folder");
  std::strcpy(name_, kServeSocket);
  if (const int error = poller_.open(); error != 0) return system_failure(error, "epoll");
  // A server of systemd may have had one before, which the socket does not tell.
  bool may_have_predecessor = listener >= 0;
  listener_ = listener;
  if (listener < 0) GMM_TRY(make_socket(&may_have_predecessor));
  if (const int error = poller_.add(listener_, &listener_); error != 0) return system_failure(error, "epoll_ctl");
  // The clock starts with the machine, so a later server has a greater number.
  const uint64_t number = std::max<uint64_t>(monotonic_us(), 1);
  arbiter_ = allocator_.create<LeaseArbiter>(number, may_have_predecessor, monotonic_ms());
  keeper_ = allocator_.create<Keeper>(number, may_have_predecessor, monotonic_ms());
  if (arbiter_ == nullptr || keeper_ == nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the server.");
  idle_since_ = monotonic_ms();
  return Status();
}

// A socket that nobody listens to is a predecessor's, whose members come again.
Status Server::make_socket(bool *was_left) {
  os::NameIdentity left;
  *was_left = os::identify_name(folder_, kServeSocket, &left) == 0;
  if (*was_left && !os::nobody_listens(folder_, kServeSocket))
    return fail(GMM_ERROR_BUSY, "Somebody else listens at %s in this folder.", kServeSocket);
  remove_name();
  os::remove_name(folder_, kUnreadySocket);
  const int error = listen(&listener_);
  if (error != 0) return system_failure(error, kServeSocket);
  made_socket_ = true;
  return Status();
}

// With a new number in the poller, as connections may wait at the old one.
bool Server::remake_socket() {
  int32_t made = -1;
  if (listen(&made) != 0) return false;
  poller_.remove(listener_);
  os::replace_socket(listener_, made);
  return poller_.add(listener_, &listener_) == 0;
}

Server::~Server() {
  // Without members and clients there is nothing that a successor would have to learn: the name tells it.
  const bool leaves_members = arbiter_ != nullptr && (arbiter_->has_members() || !keeper_->empty());
  drop_all();
  if (made_socket_ && !leaves_members && !has_lost_its_name()) remove_name();
  if (listener_ >= 0) os::close_socket(listener_);
  poller_.close();
  allocator_.destroy(arbiter_);
  allocator_.destroy(keeper_);
}

void Server::run() {
  while (!is_stopping()) {
    const uint64_t now = monotonic_ms();
    uint64_t wake = std::min(arbiter_->step(now), now + kLookAtNameMs);
    send_commands(now);
    send_answers(now);
    wake = std::min(wake, keeper_->wakes_at(now));
    if (!connections_.empty() || !keeper_->empty()) {
      idle_since_ = now;
    } else if (ends_when_idle_) {
      if (now >= idle_since_ + kIdleMs) return;
      wake = std::min(wake, idle_since_ + kIdleMs);
    }
    serve_until(wake);
    if (has_lost_its_name() && (keeper_->empty() || !remake_socket()))
      return log("somebody deleted the socket; the server ends, and another one takes its place");
  }
}

// --- Connections -----------------------------------------------------------------------------------------------------

void Server::log(const char *text) { std::fprintf(stderr, "gmm serve: %s\n", text); }

// The descriptor of the process tells its end though a forked child has the socket.
PeerServer::Connection *Server::make(int32_t pid) {
  Client *client = allocator_.create<Client>();
  if (client == nullptr) return nullptr;
  client->process = pid > 0 ? open_process(pid) : -1;
  if (client->process < 0 || poller_.add(client->process, static_cast<Connection *>(client)) == 0) return client;
  ended(client);
  return nullptr;
}

void Server::ended(Connection *connection) {
  Client *client = static_cast<Client *>(connection);
  if (client->process >= 0) {
    poller_.remove(client->process);
    os::close_socket(client->process);
  }
  if (client->member != nullptr) arbiter_->remove(client->member, monotonic_ms());
  if (client->keeps != nullptr) keeper_->remove(client->keeps);
  allocator_.destroy(client);
}

void Server::receive(Connection *connection) {
  Client *client = static_cast<Client *>(connection);
  for (uint32_t messages = 0; messages < kMostAtOnce; ++messages) {
    const int64_t got = os::receive_with_descriptors(client->socket, &message_, sizeof message_, &fds_);
    if (got == -EAGAIN) {
      if (client->process >= 0 && os::wait_until_readable(client->process, 0) == 0) drop(client);
      return;
    }
    if (got <= 0) return drop(client);
    if (!(got == sizeof(LeaseReport) && message_.header.is(ServeKind::kLeaseReport)) &&
        !(got == sizeof(LeaseQuestion) && message_.header.is(ServeKind::kLeaseQuestion)) &&
        !(got == sizeof(KeepRequest) && message_.header.is(ServeKind::kKeepRequest))) {
      complain("process %d is cut off: it is of another version", client->pid);
      return drop(client);
    }
    if (!take_message(client)) return drop(client);
  }
}

// False: the connection must be cut. One that asks questions stays pending, from its last question on.
bool Server::take_message(Client *client) {
  const uint64_t now = monotonic_ms();
  if (client->keeps != nullptr && message_.header.kind != ServeKind::kKeepRequest) return false;
  if (message_.header.kind == ServeKind::kLeaseReport) {
    if (client->member == nullptr) client->member = arbiter_->add(client->pid, client);
    keep(client);
    if (client->member != nullptr && arbiter_->receive(client->member, message_.report, now)) return true;
    complain("process %d is cut off: its report makes no sense", client->pid);
    return false;
  }
  if (client->member != nullptr) return false;
  client->since = now;
  if (message_.header.kind == ServeKind::kKeepRequest) {
    const KeepVerb verb = message_.keep.verb;
    if (client->keeps == nullptr) client->keeps = keeper_->add(client->pid, client);
    if (client->keeps == nullptr || !keeper_->receive(client->keeps, message_.keep, &fds_)) {
      complain("process %d is cut off: its request makes no sense", client->pid);
      return false;
    }
    if (verb != KeepVerb::kList && verb != KeepVerb::kUnpublish) keep(client);
    return true;
  }
  LeaseEntry entry;
  arbiter_->list(message_.question.index, now, &entry.info);
  return os::send_bytes(client->socket, &entry, sizeof entry) == static_cast<int64_t>(sizeof entry);
}

void Server::send_commands(uint64_t now) {
  LeaseCommand command;
  while (LeaseArbiter::Member *member = arbiter_->next_command(now, &command)) {
    Client *client = static_cast<Client *>(member->user);
    const int64_t sent = os::send_bytes(client->socket, &command, sizeof command);
    // One that found no space is left out, as the next one says the same.
    if (sent != static_cast<int64_t>(sizeof command) && sent != -EAGAIN) drop(client);
  }
}

void Server::send_answers(uint64_t now) {
  Keeper::Message message;
  while (keeper_->next(now, &message)) {
    Client *client = static_cast<Client *>(message.to->user);
    if (message.is_revocation) {
      // The byte stays in the reader's socket.
      os::send_bytes(client->socket, &Peer::kRevocation, 1);
      drop(client);
    } else if (os::send_bytes(client->socket, &message.answer, sizeof message.answer, message.along) !=
               static_cast<int64_t>(sizeof message.answer)) {
      drop(client);
    }
  }
}

}  // namespace gmm
