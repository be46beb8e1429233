// SPDX-License-Identifier: Apache-2.0
#include "base/local_socket.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/process.h"
#include "base/trusted_variable.h"

namespace gmm::os {
namespace {

void close_if_open(int fd) {
  if (fd >= 0) ::close(fd);
}

void socket_address(int32_t folder, const char *name, sockaddr_un *out) {
  std::memset(out, 0, sizeof *out);
  out->sun_family = AF_UNIX;
  std::snprintf(out->sun_path, sizeof out->sun_path, "/proc/self/fd/%d/%s", folder, name);
}

// The result of a call of the system, which a signal may interrupt; below zero an error number.
template <typename Fn>
int64_t uninterrupted(Fn call) {
  ssize_t count;
  do count = call();
  while (count < 0 && errno == EINTR);
  return count >= 0 ? count : -errno;
}

}  // namespace

// --- Folders -----------------------------------------------------------------------------------------------------

bool runtime_socket_folder(char *path, uint64_t size) {
  const char *runtime = trusted_variable("XDG_RUNTIME_DIR");
  if (runtime == nullptr || runtime[0] != '/') return false;
  // su and sudo leave the variable of another user.
  struct stat status;
  if (::stat(runtime, &status) != 0 || status.st_uid != ::geteuid()) return false;
  return std::snprintf(path, size, "%s/gmm", runtime) < static_cast<int>(size);
}

bool common_socket_folder(char *path, uint64_t size) {
  return std::snprintf(path, size, "/tmp/gmm-%u", static_cast<unsigned>(::geteuid())) < static_cast<int>(size);
}

int make_socket_folder(const char *path, bool for_others) {
  return ::mkdir(path, for_others ? 0711 : 0700) == 0 || errno == EEXIST ? 0 : errno;
}

int open_socket_folder(const char *path, bool reach_is_enough, int32_t *out, FolderFacts *facts) {
  // O_PATH is enough to reach a socket, and is permitted where only the owner may list the folder.
  int opened = ::open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (opened < 0 && errno == EACCES && reach_is_enough)
    opened = ::open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (opened < 0) return errno;
  struct stat status = {};
  ::fstat(opened, &status);  // it cannot fail for an open folder
  facts->owner = status.st_uid;
  facts->mode = static_cast<uint32_t>(status.st_mode) & 07777;
  *out = opened;
  return 0;
}

void for_each_name(int32_t folder, uint32_t most, void (*fn)(void *user, const char *name), void *user) {
  // A second descriptor, since fdopendir() owns its descriptor and moves the position.
  const int own = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *listing = own < 0 ? nullptr : ::fdopendir(own);
  if (listing == nullptr) {
    close_if_open(own);
    return;
  }
  for (uint32_t i = 0; i < most; ++i) {
    const dirent *entry = ::readdir(listing);
    if (entry == nullptr) break;
    fn(user, entry->d_name);
  }
  ::closedir(listing);
}

int remove_name(int32_t folder, const char *name) { return ::unlinkat(folder, name, 0) == 0 ? 0 : errno; }

int identify_name(int32_t folder, const char *name, NameIdentity *out) {
  struct stat file;
  if (::fstatat(folder, name, &file, AT_SYMLINK_NOFOLLOW) != 0) return errno;
  out->device = file.st_dev;
  out->file = file.st_ino;
  return 0;
}

int lock_folder(int32_t folder) {
  static_assert(EWOULDBLOCK == EAGAIN);
  return ::flock(folder, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
}

// --- Sockets -----------------------------------------------------------------------------------------------------

int make_socket(int32_t *out) {
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  *out = fd;
  return 0;
}

int connect_socket(int32_t socket, int32_t folder, const char *name) {
  sockaddr_un address;
  socket_address(folder, name, &address);
  while (::connect(socket, reinterpret_cast<const sockaddr *>(&address), sizeof address) != 0)
    if (errno != EINTR) return errno;
  return 0;
}

int listen_at(int32_t folder, const char *name, const char *unready, bool for_others, int32_t *out,
              NameIdentity *identity) {
  int fd = -1;
  if (const int error = make_socket(&fd); error != 0) return error;
  sockaddr_un address;
  socket_address(folder, unready, &address);
  int error = ::bind(fd, reinterpret_cast<sockaddr *>(&address), sizeof address) != 0 ? errno : 0;
  if (error == 0) {
    // The link fails if the name is taken.
    if (::fchmodat(folder, unready, for_others ? 0666 : 0600, 0) != 0 ||
        identify_name(folder, unready, identity) != 0 || ::listen(fd, 128) != 0 ||
        ::linkat(folder, unready, folder, name, 0) != 0)
      error = errno == EEXIST ? EADDRINUSE : errno;
    ::unlinkat(folder, unready, 0);
  }
  if (error == 0)
    *out = fd;
  else
    ::close(fd);
  return error;
}

bool nobody_listens(int32_t folder, const char *name) {
  int32_t fd = -1;
  if (make_socket(&fd) != 0) return false;
  const bool refused = connect_socket(fd, folder, name) == ECONNREFUSED;
  ::close(fd);
  return refused;
}

int take_listener(int32_t listener) {
  const int flags = ::fcntl(listener, F_GETFL);
  if (flags < 0 || ::fcntl(listener, F_SETFL, flags | O_NONBLOCK) != 0) return errno;
  if (::fcntl(listener, F_SETFD, FD_CLOEXEC) != 0) return errno;
  return ::listen(listener, 128) == 0 ? 0 : errno;
}

int accept_socket(int32_t listener, int32_t *out) {
  for (;;) {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      *out = fd;
      return 0;
    }
    if (errno != EINTR && errno != ECONNABORTED) return errno;
  }
}

int peer_of_socket(int32_t socket, int32_t *process, uint32_t *user) {
  ucred credentials = {};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return errno;
  *process = credentials.pid;
  *user = credentials.uid;
  return 0;
}

void close_socket(int32_t socket) { ::close(socket); }

void replace_socket(int32_t socket, int32_t other) {
  while (::dup3(other, socket, O_CLOEXEC) < 0 && (errno == EINTR || errno == EBUSY)) {
  }
  ::close(other);
}

void shut_connection(int32_t socket) { ::shutdown(socket, SHUT_RDWR); }
void end_connection(int32_t socket) {
  shut_connection(socket);
  ::close(socket);
}

void Descriptors::close() {
  while (count != 0) close_if_open(each[--count]);
}
void Descriptors::take(Descriptors *from) {
  close();
  count = std::exchange(from->count, 0);
  std::copy_n(from->each, count, each);
}

int64_t send_bytes(int32_t socket, const void *bytes, uint64_t size, const Descriptors *along) {
  iovec part = {const_cast<void *>(bytes), size};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int) * Descriptors::kMost)] = {};
  if (const uint64_t count = along == nullptr ? 0 : along->count; count != 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
    cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * count);
    std::memcpy(CMSG_DATA(header), along->each, sizeof(int) * count);
  }
  return uninterrupted([&] { return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT); });
}

int64_t receive_bytes(int32_t socket, void *to, uint64_t size) {
  return uninterrupted([&] { return ::recv(socket, to, size, MSG_DONTWAIT); });
}

int64_t receive_with_descriptors(int32_t socket, void *to, uint64_t size, Descriptors *out) {
  iovec part = {to, size};
  alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int) * Descriptors::kMost)];
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  out->close();
  const int64_t got = uninterrupted([&] { return ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT); });
  if (got < 0) return got;
  for (cmsghdr *header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const uint64_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (uint64_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      if (out->count < Descriptors::kMost)
        out->each[out->count++] = fd;
      else
        ::close(fd);
    }
  }
  // The kernel also sets the flag when this process may open no further descriptor.
  out->any_lost = (message.msg_flags & MSG_CTRUNC) != 0;
  return got;
}

int wait_until_readable(int32_t socket, uint64_t milliseconds) {
  pollfd wait = {socket, POLLIN, 0};
  const int ready = ::poll(&wait, 1, milliseconds > INT32_MAX ? INT32_MAX : static_cast<int>(milliseconds));
  if (ready > 0) return 0;
  return ready == 0 || errno == EINTR ? EAGAIN : errno;
}

// --- Poller ------------------------------------------------------------------------------------------------------

int SocketPoller::open() {
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_ = wake_ < 0 ? -1 : ::epoll_create1(EPOLL_CLOEXEC);
  return epoll_ < 0 ? errno : add(wake_, &wake_);
}

void SocketPoller::close() {
  close_if_open(std::exchange(epoll_, -1));
  close_if_open(std::exchange(wake_, -1));
}

int SocketPoller::add(int32_t socket, void *key) {
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLRDHUP;
  event.data.ptr = key;
  return ::epoll_ctl(epoll_, EPOLL_CTL_ADD, socket, &event) == 0 ? 0 : errno;
}

int SocketPoller::want(int32_t socket, void *key, bool wanted) {
  epoll_event event = {};
  event.events = wanted ? EPOLLIN | EPOLLRDHUP : 0;
  event.data.ptr = key;
  return ::epoll_ctl(epoll_, EPOLL_CTL_MOD, socket, &event) == 0 ? 0 : errno;
}

// close() removes a descriptor from the epoll set only when no other descriptor refers to the connection. A child after
// fork() may have one.
void SocketPoller::remove(int32_t socket) { ::epoll_ctl(epoll_, EPOLL_CTL_DEL, socket, nullptr); }

void SocketPoller::wake() {
  const uint64_t one = 1;
  // The write fails only when the counter is full, and then the thread wakes in any case.
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
}

uint32_t SocketPoller::wait_until(uint64_t until, void *keys[kMost]) {
  epoll_event events[kMost];
  const int timeout =
      until == UINT64_MAX ? -1 : static_cast<int>(std::min<uint64_t>(milliseconds_until(until), INT32_MAX));
  const int count = ::epoll_wait(epoll_, events, kMost, timeout);
  uint32_t ready = 0;
  for (int i = 0; i < count; ++i) {
    if (events[i].data.ptr != &wake_) {
      keys[ready++] = events[i].data.ptr;
      continue;
    }
    uint64_t value;
    // This only empties the counter.
    [[maybe_unused]] const ssize_t got = ::read(wake_, &value, sizeof value);
  }
  return ready;
}

}  // namespace gmm::os
