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
#include "base/peer.h"
#include "base/process.h"

namespace gmm {
namespace {

// The brokers of one process, one for each context, have different serials.
std::atomic<uint32_t> g_serial{1};

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
  const bool is_running = running_.load(std::memory_order_relaxed);
  const Status status = prefix(!is_running  ? start_thread()
                               : has_name() ? Status()
                                            : restore_socket(),
                               "start of the thread that answers importers: ");
  *out = endpoint_;
  if (status.ok() || is_running) return status;
  MessageGuard message_guard;
  close_files();
  return status;
}

Status IpcBroker::start_thread() {
  GMM_TRY(open_socket());
  accept_again_ = 0;
  stopping_.store(false, std::memory_order_relaxed);
  const int error = gmm::start_thread(&thread_, ThreadSignals::kNone, thread_entry<IpcBroker, &IpcBroker::run>, this);
  running_.store(error == 0, std::memory_order_release);
  return error == 0 ? Status() : system_failure(error, "pthread_create");
}

Status IpcBroker::open_socket() {
  GMM_TRY(ipc_directory_open_own(&folder_, directory_path_, policy_, &runtime_directory_failed_));
  const int32_t pid = process_number();
  endpoint_.pid = static_cast<uint32_t>(pid);
  endpoint_.pid_namespace = pid_namespace();
  if (const int error = process_start_time(pid, &endpoint_.start_time); error != 0)
    return system_failure(error, "/proc/self/stat, as IPC needs /proc");
  if (const int error = poller_.open(); error != 0) return system_failure(error, "epoll");
  // A second copy of the library in this process has a counter of its own, which starts at 1 too.
  int error = EADDRINUSE;
  for (int attempts = 0; error == EADDRINUSE && attempts <= 1000; ++attempts) {
    endpoint_.serial = g_serial.fetch_add(1, std::memory_order_relaxed);
    ipc_socket_name(endpoint_, name_);
    error = listen(&listener_);
  }
  if (error != 0) return system_failure(error, directory_path_);
  is_named_ = true;
  error = poller_.add(listener_, &listener_);
  return error == 0 ? Status() : system_failure(error, "epoll_ctl");
}

// Makes the socket anew under the same name, and the directory if that was deleted too. The queue of the old one is
// lost; importers connect again.
Status IpcBroker::restore_socket() {
  int opened = -1, unused = 0, listener = -1;
  GMM_TRY(ipc_directory_open(directory_path_, true, &opened, &unused, policy_));
  close_fd(&folder_);
  folder_ = opened;
  remove_name();  // the file that took the name, if any
  int error = listen(&listener);
  if (error != 0) return system_failure(error, directory_path_);
  poller_.remove(listener_);
  os::replace_socket(listener_, listener);
  error = poller_.add(listener_, &listener_);
  if (error == 0) return Status();
  remove_name();  // the next export tries again
  return system_failure(error, "epoll_ctl");
}

void IpcBroker::close_files() {
  if (is_named_) remove_name();
  is_named_ = false;
  close_fd(&listener_);
  poller_.close();
  close_fd(&folder_);
}

void IpcBroker::stop() {
  LockGuard guard(mutex_);
  if (!running_.load(std::memory_order_relaxed)) return;
  remove_name();  // first: an importer that connects later sees at once that there is no exporter
  request_stop();
  join_thread(thread_);
  running_.store(false, std::memory_order_relaxed);
  close_files();
}

// The thread sees the end of the connections, and drops them. One whose request is being granted has no reply then.
void IpcBroker::end_importers(uint64_t export_id, bool is_revoked) {
  LockGuard guard(connections_mutex_);
  for (Connection *connection : connections_) {
    if (static_cast<Importer *>(connection)->allocation != export_id) continue;
    // The only byte after a reply, so there is space for it. It stays in the importer's socket after this side is
    // closed (Peer::state()).
    if (is_revoked) os::send_bytes(connection->socket, &Peer::kRevocation, 1);
    os::shut_connection(connection->socket);
  }
}

// --- The thread -------------------------------------------------------------------------------------------------

void IpcBroker::run() {
  name_thread("gmm-ipc");
  // start() cannot write these messages: it holds a lock, and the log's callback is the program's.
  if (runtime_directory_failed_)
    log_.write(LogLevel::kWarning, "ipc: $XDG_RUNTIME_DIR/gmm is unusable for sockets; the socket is in /tmp");
  {
    // A descriptor of its own: folder_ may change.
    int directory = -1, error = 0;
    MessageGuard message;
    if (ipc_directory_open(directory_path_, false, &directory, &error, policy_).ok()) {
      ipc_directory_remove_stale(directory, log_);
      os::close_file(directory).ignore();
    }
  }
  while (!is_stopping()) serve_until(UINT64_MAX);
  drop_all();
}

PeerServer::Connection *IpcBroker::make(int32_t) { return allocator_.create<Importer>(); }

void IpcBroker::ended(Connection *connection) {
  Importer *importer = static_cast<Importer *>(connection);
  if (!importer->is_pending) resolver_.importer_gone(resolver_.user, importer->allocation);
  allocator_.destroy(importer);
}

void IpcBroker::turn_away(int32_t socket, gmm_result reason) {
  IpcAnswer answer;
  answer.reply.result = reason;
  send(socket, answer);  // the connection is closed whether or not the reply arrives
}

void IpcBroker::refuse(Importer *importer, gmm_result result) {
  turn_away(importer->socket, result);
  drop(importer);
}

// --- A connection ---------------------------------------------------------------------------------------------------

// The system closes descriptors that a peer sends along, since receive_bytes() has no place for them.
void IpcBroker::receive(Connection *connection) {
  Importer *importer = static_cast<Importer *>(connection);
  struct {
    ControlRequest request;
    uint8_t next;  // shows a request that is too long
  } incoming;
  const int64_t got = os::receive_bytes(importer->socket, &incoming, sizeof incoming);
  if (got == -EAGAIN) return;
  // A connection without a byte comes from another broker, which looks for stale sockets.
  if (got <= 0) return drop(importer);
  if (!importer->is_pending) {
    complain("dropped process %d: it spoke again after its request", importer->pid);
    return drop(importer);
  }
  if (got == sizeof(IpcRequest)) return answer(importer, incoming.request.head);
  if (got == sizeof(ControlRequest)) return pass_on(importer, &incoming.request);
  complain("refused process %d: its request is %s than %zu bytes", importer->pid,
           got < static_cast<int64_t>(sizeof(IpcRequest)) ? "shorter" : "longer", sizeof(IpcRequest));
  refuse(importer, GMM_ERROR_IPC_REFUSED);
}

bool IpcBroker::check(const IpcRequest &request, const Importer &importer, bool is_control) {
  if (request.magic != IpcRequest::kMagic) {
    complain("refused process %d: its bytes are not a request (magic %08x)", importer.pid, request.magic);
  } else if (request.version != kIpcProtocolVersion) {
    complain("refused process %d: it speaks version %u, this library version %u", importer.pid, request.version,
             kIpcProtocolVersion);
  } else if (request.reserved != 0 || request.want < IpcWant::kDescriptors || request.want > IpcWant::kControl ||
             (request.want == IpcWant::kControl) != is_control) {
    complain("refused process %d: its request has unknown fields", importer.pid);
  } else if (request.start_time != endpoint_.start_time || request.serial != endpoint_.serial) {
    complain("refused process %d: it means another exporter", importer.pid);
  } else {
    return true;
  }
  return false;
}

void IpcBroker::answer(Importer *importer, const IpcRequest &request) {
  if (!check(request, *importer, false)) return refuse(importer, GMM_ERROR_IPC_REFUSED);
  IpcGrant granted;
  granted.wants_fds = request.want == IpcWant::kDescriptors;
  granted.counts = request.want != IpcWant::kCheck;
  gmm_result result = GMM_ERROR_BUSY;
  if (granted.counts && connections_.size() - pending_ >= kMaxLive)
    complain("refused process %d: %u importers are connected, which is the most", importer->pid, kMaxLive);
  else
    result = grant(importer, request, &granted);
  if (result != GMM_OK) return refuse(importer, result);
  if (!send(importer->socket, granted) || !granted.counts) drop(importer);
}

// Users that the policy names may share memory, and no more.
void IpcBroker::pass_on(Importer *importer, ControlRequest *request) {
  int32_t process = 0;
  uint32_t user = 0;
  if (!check(request->head, *importer, true)) return refuse(importer, GMM_ERROR_IPC_REFUSED);
  if (os::peer_of_socket(importer->socket, &process, &user) != 0 || user != current_user()) {
    complain("refused process %d of user %u: only this user may ask for control", importer->pid, user);
    return refuse(importer, GMM_ERROR_IPC_REFUSED);
  }
  request->tag[sizeof request->tag - 1] = '\0';
  const int32_t pid = importer->pid, socket = release(importer);
  const Status status = resolver_.control.take(resolver_.control.user, socket, *request);
  if (status.ok()) return;
  if (status.code() != GMM_ERROR_BUSY) complain("refused process %d: %s", pid, last_message());
  turn_away(socket, status.code());
  os::end_connection(socket);
}

// The connection is live after a grant that counts.
gmm_result IpcBroker::grant(Importer *importer, const IpcRequest &request, IpcGrant *out) {
  if (out->counts) {
    // Before the resolver runs, so that a revoke() during resolve() finds the importer.
    LockGuard guard(connections_mutex_);
    importer->allocation = request.allocation;
  }
  const Status status = resolver_.resolve(resolver_.user, request.allocation, request.token, out);
  if (!status.ok()) {
    // BUSY is no refusal: the importer asks again.
    if (status.code() != GMM_ERROR_BUSY)
      complain("refused process %d the allocation %" PRIu64 ": %s", importer->pid, request.allocation, last_message());
    return status.code();
  }
  if (out->counts) keep(importer);
  return GMM_OK;
}

// The send neither waits nor is partial: the reply is all that the connection carries, so it fits into the buffer.
bool IpcBroker::send(int32_t socket, const IpcAnswer &answer) {
  const uint64_t size = IpcReply::size_with(answer.reply.extents);
  const int64_t sent = os::send_bytes(socket, &answer.reply, size, &answer.fds);
  if (sent < 0 && sent != -EPIPE && sent != -ECONNRESET)
    complain("cannot send an answer to an importer: %s", ErrorText(static_cast<int>(-sent)).text);
  return sent == static_cast<int64_t>(size);
}

}  // namespace gmm
