// SPDX-License-Identifier: Apache-2.0
#include "engine/context/lease_server.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "base/hash_table.h"
#include "base/lock.h"
#include "base/peer.h"
#include "base/process.h"
#include "base/process_mutex.h"

namespace gmm {
namespace {

// A record lock is the process's, and ends when the process closes any descriptor of the file. So a process opens the
// lock's file only if it is not the arbiter itself.
constexpr uint32_t kMostOfProcess = 16;
constexpr uint64_t kAcceptAgainMs = 100;
constexpr uint64_t kStatusPiece = 32 << 10, kStatusAgainMs = 10;
constinit ProcessMutex g_arbiters_mutex{LockRank::kLeaseArbiters};
constinit uint64_t g_arbiters[kMostOfProcess] = {};

bool claim_name(uint64_t name) {
  if (g_arbiters_mutex.lock()) std::fill_n(g_arbiters, kMostOfProcess, 0);
  uint64_t *place = std::find(g_arbiters, g_arbiters + kMostOfProcess, name);
  const bool is_new = place == g_arbiters + kMostOfProcess;
  if (is_new) place = std::find(g_arbiters, g_arbiters + kMostOfProcess, 0);
  const bool has_place = is_new && place != g_arbiters + kMostOfProcess;
  if (has_place) *place = name;
  g_arbiters_mutex.unlock();
  return has_place;
}

void give_up_name(uint64_t name) {
  if (g_arbiters_mutex.lock()) std::fill_n(g_arbiters, kMostOfProcess, 0);
  uint64_t *place = std::find(g_arbiters, g_arbiters + kMostOfProcess, name);
  if (place != g_arbiters + kMostOfProcess) *place = 0;
  g_arbiters_mutex.unlock();
}

Status server_failure(int error, const char *what, const char *name) {
  char text[128];
  return fail_native(GMM_ERROR_SYSTEM, error, "The arbiter \"%s\" of leases: %s: %s", name, what,
                     system_error_text(error, text, sizeof text));
}

}  // namespace

LeaseNames::LeaseNames(const char *arbiter) {
  std::snprintf(socket, sizeof socket, "lease-%s.sock", arbiter);
  std::snprintf(unready, sizeof unready, "lease-%s.%d.new", arbiter, process_number());
  std::snprintf(lock, sizeof lock, "lease-%s.lock", arbiter);
}

LeaseServer::LeaseServer(const HostAllocator &allocator, const Log &log, const IpcPolicy &policy, int32_t directory,
                         const char *name)
    : allocator_(allocator), log_(log), policy_(policy), directory_(directory), names_(name) {
  std::snprintf(name_, sizeof name_, "%s", name);
}

Status LeaseServer::open() {
  os::NameIdentity folder;
  if (const int error = os::identify_name(directory_, ".", &folder); error != 0)
    return server_failure(error, "the directory of its socket", name_);
  const uint64_t claim = (hash_of_text(name_) ^ folder.device * 31 ^ folder.file) | 1;
  if (!claim_name(claim)) return fail(GMM_ERROR_BUSY, "The arbiter \"%s\" of leases runs in this process.", name_);
  claim_ = claim;
  int error = os::lock_name(directory_, names_.lock, policy_.user_count != 0, &lock_, &was_left_);
  if (error == EAGAIN)
    return fail(GMM_ERROR_BUSY, "The arbiter \"%s\" of leases runs in another process; `gmm lease --status` names it.",
                name_);
  if (error != 0) return server_failure(error, names_.lock, name_);
  const char *what = nullptr;
  if ((error = poller_.open(&what)) != 0) {
    poller_.close();
    return server_failure(error, what, name_);
  }
  has_poller_ = true;
  // Its clock starts with the machine, so a successor has a greater number.
  arbiter_ = allocator_.create<LeaseArbiter>(std::max<uint64_t>(monotonic_us(), 1), was_left_, monotonic_ms());
  if (arbiter_ == nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the arbiter \"%s\" of leases.", name_);
  return listen();
}

// Who has the lock replaces the socket of the one before.
Status LeaseServer::listen() {
  os::remove_name(directory_, names_.socket);
  os::remove_name(directory_, names_.unready);
  const char *what = nullptr;
  int32_t listener = -1;
  int error = poller_.listen(directory_, names_.socket, names_.unready, policy_.user_count != 0, &listener,
                             &socket_identity_, &what);
  if (error != 0) return server_failure(error, what == nullptr ? names_.socket : what, name_);
  if ((error = poller_.add(listener, &listener_)) != 0) {
    os::close_socket(listener);
    return server_failure(error, "epoll_ctl", name_);
  }
  if (listener_ >= 0) {
    poller_.remove(listener_);
    os::close_socket(listener_);
  }
  listener_ = listener;
  accept_again_ = 0;
  return Status();
}

void LeaseServer::close() {
  // The predecessor's members may have grants that this one never heard of: they had no time to come.
  const bool has_waited = arbiter_ != nullptr && monotonic_ms() >= arbiter_->decides_from();
  const bool leaves_members = (was_left_ && !has_waited) || (arbiter_ != nullptr && arbiter_->has_members());
  for (uint32_t slot = 0; slot < LeaseArbiter::kMembers; ++slot)
    if (connections_[slot].socket >= 0) drop(slot, monotonic_ms());
  for (Reader &reader : readers_)
    if (reader.socket >= 0) end_status(reader);
  if (listener_ >= 0) {
    os::NameIdentity now;
    if (os::identify_name(directory_, names_.socket, &now) == 0 && now == socket_identity_)
      os::remove_name(directory_, names_.socket);
    os::close_socket(listener_);
    listener_ = -1;
  }
  if (has_poller_) poller_.close();
  has_poller_ = false;
  if (lock_ >= 0) os::unlock_name(lock_, leaves_members);
  lock_ = -1;
  if (claim_ != 0) give_up_name(claim_);
  claim_ = 0;
  allocator_.destroy(arbiter_);
  arbiter_ = nullptr;
}

void LeaseServer::stop() {
  stopping_.store(true, std::memory_order_release);
  poller_.wake();
}

void LeaseServer::run(uint64_t until) {
  void *keys[os::SocketPoller::kMost];
  while (!stopping_.load(std::memory_order_acquire)) {
    uint64_t now = monotonic_ms();
    if (now >= until) return;
    uint64_t wake = std::min(arbiter_->step(now), until);
    send_orders(now);
    for (uint32_t slot = 0; slot < LeaseArbiter::kMembers; ++slot) {
      const Connection &connection = connections_[slot];
      if (connection.socket < 0 || connection.is_member) continue;
      if (now >= connection.since + kHandshakeMs)
        drop(slot, now);
      else
        wake = std::min(wake, connection.since + kHandshakeMs);
    }
    for (Reader &reader : readers_) {
      if (reader.socket >= 0) send_status(reader, now);
      if (reader.socket >= 0) wake = std::min(wake, now + kStatusAgainMs);
    }
    if (accept_again_ != 0 && now >= accept_again_)
      accept_again_ = poller_.want(listener_, &listener_, true) == 0 ? 0 : now + kAcceptAgainMs;
    if (accept_again_ != 0) wake = std::min(wake, accept_again_);
    now = monotonic_ms();
    bool name_changed = false;
    const int64_t wait = wake == UINT64_MAX ? -1 : wake > now ? static_cast<int64_t>(wake - now) : 0;
    const uint32_t count = poller_.wait(wait, keys, &name_changed);
    now = monotonic_ms();
    for (uint32_t i = 0; i < count; ++i) {
      if (keys[i] == &listener_)
        accept_all(now);
      else
        receive(static_cast<uint32_t>(static_cast<Connection *>(keys[i]) - connections_), now);
    }
    os::NameIdentity named;
    if (name_changed && (os::identify_name(directory_, names_.socket, &named) != 0 || !(named == socket_identity_))) {
      log_.write(LogLevel::kWarning, "lease: somebody deleted the socket of the arbiter \"%s\"; it is made anew",
                 name_);
      listen().ignore();  // members that are connected stay; the next deletion tries again
    }
  }
}

// --- Connections -----------------------------------------------------------------------------------------------------

// A member that is refused tries again and again.
bool LeaseServer::may_complain(uint64_t now) {
  if (now < complain_at_) return false;
  complain_at_ = now + 1000;
  return true;
}

void LeaseServer::accept_all(uint64_t now) {
  int32_t socket = -1;
  for (uint32_t i = 0; i < LeaseArbiter::kMembers; ++i) {
    if (const int error = os::accept_socket(listener_, &socket); error != 0) {
      if (error == EAGAIN) return;
      // The process is out of descriptors or memory. Who waits in the queue would wake the thread again and again.
      char text[128];
      if (may_complain(now))
        log_.write(LogLevel::kWarning, "lease: members of the arbiter \"%s\" have to wait: accept: %s", name_,
                   system_error_text(error, text, sizeof text));
      if (poller_.want(listener_, &listener_, false) == 0) accept_again_ = now + kAcceptAgainMs;
      return;
    }
    PeerUser peer;
    const int error = check_peer_user(socket, policy_, &peer);
    const uint32_t slot = error == 0 && peer.is_allowed ? arbiter_->add(peer.process, now) : LeaseArbiter::kMembers;
    if (slot == LeaseArbiter::kMembers) {
      if (may_complain(now))
        log_.write(LogLevel::kWarning, "lease: the arbiter \"%s\" refused process %d of user %u", name_, peer.process,
                   peer.user);
      os::close_socket(socket);
      continue;
    }
    Connection &connection = connections_[slot];
    connection = Connection{};
    connection.socket = socket;
    connection.pid = peer.process;
    connection.process = peer.process > 0 ? open_process(peer.process) : -1;
    connection.since = now;
    // The descriptor of the process tells its end though a forked child has the socket.
    if (poller_.add(socket, &connection) != 0 ||
        (connection.process >= 0 && poller_.add(connection.process, &connection) != 0))
      drop(slot, now);
  }
}

void LeaseServer::receive(uint32_t slot, uint64_t now) {
  Connection &connection = connections_[slot];
  for (uint32_t messages = 0; connection.socket >= 0 && messages < 16;) {
    uint8_t *bytes = reinterpret_cast<uint8_t *>(&connection.report);
    const int64_t got = os::receive_bytes(connection.socket, bytes + connection.received,
                                          sizeof connection.report - connection.received);
    if (got == -EAGAIN) {
      if (connection.process >= 0 && os::wait_until_readable(connection.process, 0) == 0) drop(slot, now);
      return;
    }
    if (got <= 0) return drop(slot, now);
    connection.received += static_cast<uint32_t>(got);
    if (connection.received < sizeof connection.report) continue;
    connection.received = 0;
    ++messages;
    if (connection.report.identity == 0) {  // it wants to know, and is no member
      return begin_status(detach(slot, now), now);
    }
    connection.is_member = true;
    if (!arbiter_->receive(slot, connection.report, now)) {
      if (may_complain(now))
        log_.write(LogLevel::kWarning,
                   "lease: the arbiter \"%s\" cut off process %d: it speaks another version, or has too many devices",
                   name_, connection.pid);
      return drop(slot, now);
    }
  }
}

void LeaseServer::drop(uint32_t slot, uint64_t now) { os::close_socket(detach(slot, now)); }

// Its place is free. The socket is the caller's.
int32_t LeaseServer::detach(uint32_t slot, uint64_t now) {
  Connection &connection = connections_[slot];
  const int32_t socket = connection.socket;
  poller_.remove(socket);
  connection.socket = -1;
  if (connection.process >= 0) {
    poller_.remove(connection.process);
    os::close_socket(connection.process);
    connection.process = -1;
  }
  arbiter_->remove(slot, now);
  return socket;
}

void LeaseServer::send_orders(uint64_t now) {
  uint32_t slot = 0;
  LeaseOrder order;
  while (arbiter_->next_order(now, &slot, &order)) {
    const int64_t sent = os::send_bytes(connections_[slot].socket, &order, sizeof order);
    // A part of a message cannot be made good. Without room the next order says the same.
    if (sent != static_cast<int64_t>(sizeof order) && sent != -EAGAIN) drop(slot, now);
  }
}

// --- Status ----------------------------------------------------------------------------------------------------------

namespace {

class StatusWriter {
 public:
  explicit StatusWriter(Vector<char> *out) : out_(*out) {}
  [[gnu::format(printf, 2, 3)]] void add(const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    const int length = std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const uint64_t size = std::min<uint64_t>(length < 0 ? 0 : static_cast<uint64_t>(length), sizeof text - 1);
    is_whole_ = is_whole_ && out_.reserve(out_.size() + size);
    for (uint64_t i = 0; is_whole_ && i < size; ++i) out_.push_back_reserved(text[i]);
  }
  bool is_whole() const { return is_whole_; }

 private:
  Vector<char> &out_;
  bool is_whole_ = true;
};

}  // namespace

// The socket is the reader's from now on. Without a place or host memory for it, it gets nothing.
void LeaseServer::begin_status(int32_t socket, uint64_t now) {
  Reader *reader = std::find_if(readers_, readers_ + kReaders, [](const Reader &one) { return one.socket < 0; });
  if (reader == readers_ + kReaders) return os::close_socket(socket);
  reader->socket = socket;
  reader->sent = 0;
  reader->since = now;
  reader->text = Vector<char>(allocator_);
  if (write_status(&reader->text, now))
    send_status(*reader, now);
  else
    end_status(*reader);
}

void LeaseServer::send_status(Reader &reader, uint64_t now) {
  while (reader.sent < reader.text.size()) {
    const int64_t sent = os::send_bytes(reader.socket, reader.text.data() + reader.sent,
                                        std::min(reader.text.size() - reader.sent, kStatusPiece));
    if (sent == -EAGAIN && now < reader.since + kStatusMs) return;
    if (sent <= 0) break;
    reader.sent += static_cast<uint64_t>(sent);
  }
  end_status(reader);
}

void LeaseServer::end_status(Reader &reader) {
  os::close_socket(reader.socket);
  reader.socket = -1;
  Vector<char> none(allocator_);
  reader.text.swap(none);
}

// False: there is no host memory.
bool LeaseServer::write_status(Vector<char> *text, uint64_t now) {
  static constexpr const char *kStates[] = {"idle", "waiting", "taking", "in use"};
  StatusWriter out(text);
  out.add("{\"format\": \"gmm-lease\", \"version\": 1, \"arbiter\": \"%s\", \"incarnation\": %" PRIu64
          ", \"process\": %d, \"members\": [",
          name_, arbiter_->incarnation(), process_number());
  bool is_first = true;
  for (uint32_t slot = 0; slot < LeaseArbiter::kMembers; ++slot) {
    const LeaseArbiter::Member &member = arbiter_->member(slot);
    if (!member.is_there || !member.is_registered) continue;
    const LeaseReport &report = member.report;
    out.add("%s{\"name\": \"%s\", \"process\": %" PRId32 ", \"priority\": %" PRId32
            ", \"state\": \"%s\", \"since_ms\": %" PRIu64 ", \"devices\": [",
            is_first ? "" : ", ", report.name, member.process, report.priority,
            kStates[static_cast<uint32_t>(report.state)], now - std::min(now, member.state_since));
    is_first = false;
    for (uint32_t i = 0; i < report.devices; ++i) {
      char uuid[40] = {};
      uint64_t used = 0;
      for (uint32_t k = 0; k < 16; ++k)
        used += static_cast<uint64_t>(std::snprintf(uuid + used, sizeof uuid - used, "%s%02x",
                                                    k == 4 || k == 6 || k == 8 || k == 10 ? "-" : "",
                                                    report.rows[i].device.bytes[k]));
      const LeaseReport::Row &row = report.rows[i];
      out.add("%s{\"uuid\": \"%s\", \"free\": %" PRIu64 ", \"held\": %" PRIu64 ", \"floor\": %" PRIu64
              ", \"offered\": %" PRIu64 ", \"wanted\": %" PRIu64 ", \"granted\": %" PRIu64 "}",
              i == 0 ? "" : ", ", uuid, row.free, row.held, row.floor, row.offered, row.wanted, row.granted);
    }
    out.add("]}");
  }
  out.add("]}\n");
  return out.is_whole();
}

}  // namespace gmm
