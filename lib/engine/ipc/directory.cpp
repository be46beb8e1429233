// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/environment.h"
#include "base/environment_check.h"
#include "base/process.h"

namespace gmm {
namespace {

// A directory that somebody filled must not delay the first export.
constexpr int kMaxEntriesRead = 4096;

constexpr const char *kUnready = ".new";

static_assert(kMaxSocketFolder == kIpcPathSize);

bool print_path(char path[kIpcPathSize], const char *format, const char *a, unsigned b = 0) {
  const int length = std::snprintf(path, kIpcPathSize, format, a, b);
  if (length <= 0 || static_cast<uint64_t>(length) >= kIpcPathSize) return false;
  // With a slash at the end of the path, open() follows a link in spite of O_NOFOLLOW.
  for (char *last = path + length - 1; last > path && *last == '/'; --last) *last = '\0';
  return true;
}

const char *reason_to_ignore(const char *own) {
  if (own[0] != '/') return "is not an absolute path";
  return strnlen(own, kIpcPathSize) == kIpcPathSize ? "is too long" : nullptr;
}

bool nobody_listens(int directory, const char *name) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  sockaddr_un address;
  ipc_socket_address(directory, name, &address);
  const bool refused =
      ::connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof address) != 0 && errno == ECONNREFUSED;
  ::close(fd);
  return refused;
}

}  // namespace

const char *ipc_directory_ignored_because(const IpcPolicy &policy) {
  const char *own = policy.directory[0] == '\0' ? environment_text(Variable::kIpcDir) : nullptr;
  return own == nullptr ? nullptr : reason_to_ignore(own);
}

bool ipc_directory_candidate(unsigned n, char path[kIpcPathSize], const IpcPolicy &policy) {
  if (policy.directory[0] != '\0') return n == 0 && print_path(path, "%s", policy.directory);
  if (n == 0) {
    const char *own = environment_text(Variable::kIpcDir);
    return own != nullptr && reason_to_ignore(own) == nullptr && print_path(path, "%s", own);
  }
  if (n == 1) {
    // secure_getenv(): the caller of a set-user-id program must not choose where its sockets are.
    const char *runtime = secure_getenv("XDG_RUNTIME_DIR");
    if (runtime == nullptr || runtime[0] != '/') return false;
    // su and sudo leave the variable of another user.
    struct stat status;
    if (::stat(runtime, &status) != 0 || status.st_uid != ::geteuid()) return false;
    return print_path(path, "%s/gmm", runtime);
  }
  return n == 2 && print_path(path, "%s/gmm-%u", "/tmp", static_cast<unsigned>(::geteuid()));
}

Status ipc_directory_open(const char *path, bool create, int *fd, int *error, const IpcPolicy &policy) {
  char text[128];
  *error = 0;
  // Further users need to reach the socket by its name. They cannot list the directory.
  if (create && ::mkdir(path, policy.user_count == 0 ? 0700 : 0711) != 0 && errno != EEXIST) {
    *error = errno;
    return fail_native(GMM_ERROR_SYSTEM, *error,
                       "directory %s of the IPC sockets: cannot make it: %s; set GMM_IPC_DIR to a private directory",
                       path, system_error_text(*error, text, sizeof text));
  }
  // O_PATH is enough to reach a socket, and is permitted where only the owner may list the directory.
  int opened = ::open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (opened < 0 && errno == EACCES && policy.user_count != 0)
    opened = ::open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (opened < 0) {
    *error = errno;
    return fail_native(GMM_ERROR_SYSTEM, *error,
                       "directory %s of the IPC sockets: %s; it must be a directory, not a link", path,
                       system_error_text(*error, text, sizeof text));
  }
  struct stat status;
  if (::fstat(opened, &status) != 0) {
    *error = errno;
    ::close(opened);
    return fail_native(GMM_ERROR_SYSTEM, *error, "directory %s of the IPC sockets: %s", path,
                       system_error_text(*error, text, sizeof text));
  }
  const unsigned mode = static_cast<unsigned>(status.st_mode) & 07777;
  if (policy.user_count != 0) {
    if ((status.st_uid == 0 || policy.allows(status.st_uid)) && ((mode & 022) == 0 || (mode & 01000) != 0)) {
      *fd = opened;
      return Status();
    }
    ::close(opened);
    return fail(
        GMM_ERROR_SYSTEM,
        "directory %s of the IPC sockets: it belongs to user %u with mode %04o; it must belong to root or one of "
        "the users that share, and be writable by its owner only or have the sticky bit",
        path, static_cast<unsigned>(status.st_uid), mode);
  }
  if (status.st_uid != ::geteuid() || (mode & 077) != 0) {
    ::close(opened);
    return fail(GMM_ERROR_SYSTEM,
                "directory %s of the IPC sockets: it belongs to user %u with mode %04o; it must belong to user %u with "
                "mode 0700",
                path, static_cast<unsigned>(status.st_uid), mode, static_cast<unsigned>(::geteuid()));
  }
  *fd = opened;
  return Status();
}

Status ipc_directory_open_own(int *fd, char path[kIpcPathSize], bool *runtime_directory_failed,
                              const IpcPolicy &policy) {
  *runtime_directory_failed = false;
  for (unsigned n = 0; n < kIpcDirectoryCandidates; ++n) {
    if (!ipc_directory_candidate(n, path, policy)) continue;
    int error;
    const Status status = ipc_directory_open(path, true, fd, &error, policy);
    // A directory that the user named is used or refused. The runtime directory and /tmp are both defaults, so the
    // second may replace the first.
    if (status.ok() || n != 1) return status;
    *runtime_directory_failed = true;
  }
  return fail(GMM_ERROR_SYSTEM, "directory of the IPC sockets: no usable path; set GMM_IPC_DIR to a private directory");
}

void ipc_socket_name(const IpcEndpoint &endpoint, char name[kIpcNameSize]) {
  std::snprintf(name, kIpcNameSize, "%" PRIu32 "-%" PRIu64 "-%" PRIu32 ".sock", endpoint.pid, endpoint.start_time,
                endpoint.serial);
}

void ipc_unready_socket_name(const IpcEndpoint &endpoint, char name[kIpcNameSize]) {
  ipc_socket_name(endpoint, name);
  std::strcat(name, kUnready);
}

bool ipc_socket_name_parse(const char *name, IpcEndpoint *out) {
  IpcEndpoint endpoint;
  if (std::sscanf(name, "%" SCNu32 "-%" SCNu64 "-%" SCNu32, &endpoint.pid, &endpoint.start_time, &endpoint.serial) != 3)
    return false;
  char again[kIpcNameSize];
  ipc_socket_name(endpoint, again);
  const size_t length = std::strlen(again);
  if (std::strncmp(name, again, length) != 0 || (name[length] != '\0' && std::strcmp(name + length, kUnready) != 0))
    return false;
  *out = endpoint;
  return true;
}

void ipc_socket_address(int directory, const char *name, sockaddr_un *out) {
  std::memset(out, 0, sizeof *out);
  out->sun_family = AF_UNIX;
  std::snprintf(out->sun_path, sizeof out->sun_path, "/proc/self/fd/%d/%s", directory, name);
}

void ipc_directory_remove_stale(int directory, const Log &log) {
  // A second descriptor, since fdopendir() owns its descriptor and moves the position.
  const int own = ::openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (own < 0) return;
  DIR *listing = ::fdopendir(own);
  if (listing == nullptr) {
    ::close(own);
    return;
  }
  for (int i = 0; i < kMaxEntriesRead; ++i) {
    const dirent *entry = ::readdir(listing);
    if (entry == nullptr) break;
    IpcEndpoint endpoint;
    if (!ipc_socket_name_parse(entry->d_name, &endpoint) || endpoint.pid > INT32_MAX) continue;
    uint64_t start_time = 0;
    const int error = process_start_time(static_cast<int32_t>(endpoint.pid), &start_time);
    if (error == 0 ? start_time == endpoint.start_time : error != ESRCH) continue;
    // A process of another pid namespace is invisible here but may live. Then its socket accepts connections.
    if (!nobody_listens(directory, entry->d_name)) continue;
    if (::unlinkat(directory, entry->d_name, 0) == 0)
      log.write(LogLevel::kInfo, "ipc: removed the socket %s of a process that has ended", entry->d_name);
  }
  ::closedir(listing);
}

}  // namespace gmm
