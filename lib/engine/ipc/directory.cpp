// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/directory.h"

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "base/environment.h"
#include "base/environment_check.h"
#include "base/local_socket.h"
#include "base/os_memory.h"
#include "base/process.h"

namespace gmm {
namespace {

// A directory that somebody filled must not delay the first export.
constexpr uint32_t kMaxEntriesRead = 4096;

static_assert(kMaxSocketFolder == kIpcPathSize);

// With a slash at the end of the path, the system follows a link there.
void cut_slashes(char *path) {
  for (char *last = path + std::strlen(path) - 1; last > path && *last == '/'; --last) *last = '\0';
}

bool copy_path(char path[kIpcPathSize], const char *from) {
  const int length = std::snprintf(path, kIpcPathSize, "%s", from);
  if (length <= 0 || static_cast<uint64_t>(length) >= kIpcPathSize) return false;
  cut_slashes(path);
  return true;
}

}  // namespace

bool ipc_directory_candidate(unsigned n, char path[kIpcPathSize], const IpcPolicy &policy) {
  if (policy.directory[0] != '\0') return n == 0 && copy_path(path, policy.directory);
  if (n == 0) {
    const char *own = environment_text(Variable::kIpcDir);
    return own != nullptr && own[0] == '/' && copy_path(path, own);
  }
  if (n > 2 || !(n == 1 ? os::runtime_socket_folder(path, kIpcPathSize) : os::common_socket_folder(path, kIpcPathSize)))
    return false;
  cut_slashes(path);
  return true;
}

Status ipc_directory_open(const char *path, bool create, int *fd, int *error, const IpcPolicy &policy) {
  const bool is_shared = policy.user_count != 0;
  *error = 0;
  // Further users need to reach the socket by its name. They cannot list the directory.
  if (create) *error = os::make_socket_folder(path, is_shared);
  if (*error != 0)
    return fail_native(GMM_ERROR_SYSTEM, *error,
                       "directory %s of the IPC sockets: cannot make it: %s; set GMM_IPC_DIR to a private directory",
                       path, ErrorText(*error).text);
  int32_t opened = -1;
  os::FolderFacts facts;
  *error = os::open_socket_folder(path, is_shared, &opened, &facts);
  if (*error != 0)
    return fail_native(GMM_ERROR_SYSTEM, *error,
                       "directory %s of the IPC sockets: %s; it must be a directory, not a link", path,
                       ErrorText(*error).text);
  const bool is_good = is_shared ? (facts.owner == 0 || policy.allows(facts.owner)) &&
                                       (!facts.others_may_write() || facts.keeps_names_of_others())
                                 : facts.owner == current_user() && !facts.others_may_look();
  if (is_good) {
    *fd = opened;
    return Status();
  }
  os::close_file(opened).ignore();
  return fail(
      GMM_ERROR_SYSTEM, "directory %s of the IPC sockets: it belongs to user %u with mode %04o; it must belong to %s",
      path, facts.owner, facts.mode,
      is_shared ? "root or one of the users that share, and be writable by its owner only or have the sticky bit"
                : "this user and have mode 0700");
}

Status ipc_directory_open_own(int *fd, char path[kIpcPathSize], const IpcPolicy &policy,
                              bool *runtime_directory_failed) {
  bool has_failed = false;
  for (unsigned n = 0; n < kIpcDirectoryCandidates; ++n) {
    if (!ipc_directory_candidate(n, path, policy)) continue;
    int error;
    const Status status = ipc_directory_open(path, true, fd, &error, policy);
    // A directory that the user named is used or refused. The runtime directory and /tmp are both defaults, so the
    // second may replace the first.
    if (runtime_directory_failed != nullptr) *runtime_directory_failed = has_failed;
    if (status.ok() || n != 1) return status;
    has_failed = true;
  }
  return fail(GMM_ERROR_SYSTEM, "directory of the IPC sockets: no usable path; set GMM_IPC_DIR to a private directory");
}

void ipc_socket_name(const IpcEndpoint &endpoint, char name[kIpcNameSize]) {
  std::snprintf(name, kIpcNameSize, "%" PRIu32 "-%" PRIu64 "-%" PRIu32 ".sock", endpoint.pid, endpoint.start_time,
                endpoint.serial);
}

bool ipc_socket_name_parse(const char *name, IpcEndpoint *out) {
  IpcEndpoint endpoint;
  if (std::sscanf(name, "%" SCNu32 "-%" SCNu64 "-%" SCNu32, &endpoint.pid, &endpoint.start_time, &endpoint.serial) != 3)
    return false;
  char again[kIpcNameSize];
  ipc_socket_name(endpoint, again);
  const size_t length = std::strlen(again);
  if (std::strncmp(name, again, length) != 0 || (name[length] != '\0' && std::strcmp(name + length, kIpcUnready) != 0))
    return false;
  *out = endpoint;
  return true;
}

void ipc_directory_remove_stale(int directory, const Log &log) {
  struct Search {
    const int directory;
    const Log &log;
    static void look(void *self, const char *name) {
      const Search &search = *static_cast<Search *>(self);
      IpcEndpoint endpoint;
      if (!ipc_socket_name_parse(name, &endpoint) || endpoint.pid > INT32_MAX) return;
      uint64_t start_time = 0;
      const int error = process_start_time(static_cast<int32_t>(endpoint.pid), &start_time);
      if (error == 0 ? start_time == endpoint.start_time : error != ESRCH) return;
      // A process of another pid namespace is invisible here but may live. Then its socket accepts connections.
      if (!os::nobody_listens(search.directory, name)) return;
      if (os::remove_name(search.directory, name) == 0)
        search.log.write(LogLevel::kInfo, "ipc: removed the socket %s of a process that has ended", name);
    }
  } search{directory, log};
  os::for_each_name(directory, kMaxEntriesRead, Search::look, &search);
}

}  // namespace gmm
