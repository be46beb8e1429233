// SPDX-License-Identifier: Apache-2.0
// Connections between processes of one machine: sockets with names in folders, over which descriptors travel, and the
// poller of a thread that serves many of them.
//
// On Linux they are Unix sockets (SOCK_SEQPACKET), bound and reached through the open folder (/proc/self/fd/N/name). So
// nobody can replace the folder between the check and the use, and its path may be longer than the address of a Unix
// socket.
//
// A function that returns int returns 0 or an error number of <cerrno>. Nothing here waits but
// SocketPoller::wait_until() and wait_until_readable().
#ifndef GMM_BASE_LOCAL_SOCKET_H
#define GMM_BASE_LOCAL_SOCKET_H

#include <cstdint>

#include "base/no_copy.h"

namespace gmm::os {

// --- Folders -----------------------------------------------------------------------------------------------------

// The folders of this user's sockets where the program names none: the user's runtime folder, and one that every user
// has. False: the user has none, or its path has `size` bytes or more.
bool runtime_socket_folder(char *path, uint64_t size);
bool common_socket_folder(char *path, uint64_t size);

// Makes a folder, unless it is there. `for_others`: other users may reach a name in it, but not list it.
int make_socket_folder(const char *path, bool for_others);

struct FolderFacts {
  uint32_t owner = 0;
  uint32_t mode = 0;  // the permissions, as chmod(2) takes them
  bool others_may_write() const { return (mode & 022) != 0; }
  bool others_may_look() const { return (mode & 077) != 0; }
  bool keeps_names_of_others() const { return (mode & 01000) != 0; }  // the sticky bit
};
// Opens a folder that is no link. `reach_is_enough`: names may be reached where the folder may not be listed.
int open_socket_folder(const char *path, bool reach_is_enough, int32_t *out, FolderFacts *facts);
// Calls fn() for at most `most` names.
void for_each_name(int32_t folder, uint32_t most, void (*fn)(void *user, const char *name), void *user);
int remove_name(int32_t folder, const char *name);

// The file behind a name.
struct NameIdentity {
  uint64_t device = 0, file = 0;
  bool operator==(const NameIdentity &other) const { return device == other.device && file == other.file; }
};
int identify_name(int32_t folder, const char *name, NameIdentity *out);

// The lock of a folder that was opened to be listed. It ends with the descriptor, so that no file tells of it that
// somebody could delete. EAGAIN: another process has it.
int lock_folder(int32_t folder);

// --- Sockets -----------------------------------------------------------------------------------------------------

int make_socket(int32_t *out);
// EAGAIN: the listener's queue is full.
int connect_socket(int32_t socket, int32_t folder, const char *name);
// Makes a socket that listens, and then gives it its name, so that a process that finds the name is never refused. It
// has the name `unready` for a moment. EADDRINUSE: the name is taken.
int listen_at(int32_t folder, const char *name, const char *unready, bool for_others, int32_t *out,
              NameIdentity *identity);
// Whether a connection is refused because the process that listened has ended.
bool nobody_listens(int32_t folder, const char *name);
// A socket that another process bound and listens to becomes this one's, so that peers learn this process's number.
int take_listener(int32_t listener);
// EAGAIN: nobody waits to be accepted.
int accept_socket(int32_t listener, int32_t *out);
// The process and user at the other end, as the system recorded them at connect() or listen(). The process is 0 where
// its number means nothing here.
int peer_of_socket(int32_t socket, int32_t *process, uint32_t *user);
void close_socket(int32_t socket);
// `socket` becomes the other one, under its old number. The other number is closed.
void replace_socket(int32_t socket, int32_t other);
// Ends a connection for both sides, also where a forked child holds it too. The second function closes it, too.
void shut_connection(int32_t socket);
void end_connection(int32_t socket);

// Descriptors that travel with bytes, and are closed at the end.
struct Descriptors : NoCopy {
  static constexpr uint32_t kMost = 192;
  int32_t each[kMost];  // -1: somebody took it
  uint32_t count = 0;
  bool any_lost = false;  // on the way: too many were sent, or this process may open no more
  Descriptors() = default;
  ~Descriptors() { close(); }
  void close();
  void take(Descriptors *from);  // in place of its own
};

// A message is one packet, which goes and comes as a whole. Each function returns its bytes, or an error number below
// zero. -EAGAIN: nothing came, or the queue is full. A receiver gets 0 at the end of the connection, and no more bytes
// of a message than it has place for.
int64_t send_bytes(int32_t socket, const void *bytes, uint64_t size, const Descriptors *along = nullptr);
int64_t receive_bytes(int32_t socket, void *to, uint64_t size);
int64_t receive_with_descriptors(int32_t socket, void *to, uint64_t size, Descriptors *out);
// EAGAIN: the time passed.
int wait_until_readable(int32_t socket, uint64_t milliseconds);

// --- Poller ------------------------------------------------------------------------------------------------------

// One thread waits; any thread wakes it, and adds sockets.
class SocketPoller : NoCopy {
 public:
  // No destructor: in a forked child the numbers of the descriptors may mean other files.
  SocketPoller() = default;

  int open();
  void close();
  // `key` is what wait_until() gives when the socket has bytes, a connection, or its end.
  int add(int32_t socket, void *key);
  // While it is not wanted, the socket is not looked at.
  int want(int32_t socket, void *key, bool wanted);
  // Before its descriptor is closed.
  void remove(int32_t socket);
  void wake();
  // Returns at that monotonic_ms(), after a wake(), or with up to kMost keys. UINT64_MAX: without an end.
  static constexpr uint32_t kMost = 64;
  uint32_t wait_until(uint64_t until, void *keys[kMost]);

 private:
  int epoll_ = -1;
  int wake_ = -1;
};

}  // namespace gmm::os
#endif
