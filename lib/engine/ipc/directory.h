// SPDX-License-Identifier: Apache-2.0
// The private directory in which brokers have their sockets.
//
// $GMM_IPC_DIR, else $XDG_RUNTIME_DIR/gmm, else /tmp/gmm-<uid>. It must belong to the user, be closed to everybody
// else, and not be a symbolic link; with a policy that names further users, nobody but its owner may write into it, or it has the sticky
// bit. Sockets are bound and reached through the open directory (/proc/self/fd/N/name),
// so that nobody can swap it between the check and the use, and a long path does not matter.
#ifndef GMM_ENGINE_IPC_DIRECTORY_H
#define GMM_ENGINE_IPC_DIRECTORY_H

#include <sys/un.h>

#include <cstdint>

#include "base/log.h"
#include "base/status.h"
#include "engine/ipc/handle.h"

namespace gmm {

inline constexpr unsigned kIpcDirectoryCandidates = 3;
inline constexpr uint64_t kIpcNameSize = 64;
inline constexpr uint64_t kIpcPathSize = 1024;

// What gmm_ipc_configure() set. All zero: the defaults.
struct IpcPolicy {
  static constexpr uint32_t kMaxUsers = 64;
  char directory[kIpcPathSize] = {};  // empty: the usual places
  uint32_t users[kMaxUsers] = {};     // beside this process's own
  uint32_t user_count = 0;

  bool allows(uint32_t user) const;
};
inline constexpr IpcPolicy kIpcDefaultPolicy;

// The n-th place to look at, without slash at the end. False when it does not apply (variable not set).
bool ipc_directory_candidate(unsigned n, char path[kIpcPathSize], const IpcPolicy &policy = kIpcDefaultPolicy);

// Opens a directory and checks it. `create`: makes it when it is missing. `*error` is the errno of what the system
// refused; 0 when the check failed.
Status ipc_directory_open(const char *path, bool create, int *fd, int *error,
                          const IpcPolicy &policy = kIpcDefaultPolicy);

// For the exporter: the first candidate; a runtime directory that cannot be used falls through to /tmp (`*fell_through`).
Status ipc_directory_open_own(int *fd, char path[kIpcPathSize], bool *fell_through,
                              const IpcPolicy &policy = kIpcDefaultPolicy);

// "<pid>-<start time>-<serial>.sock"
void ipc_socket_name(const IpcEndpoint &endpoint, char name[kIpcNameSize]);
bool ipc_socket_name_parse(const char *name, IpcEndpoint *out);
void ipc_socket_address(int directory, const char *name, sockaddr_un *out);

// Removes the sockets of processes that are gone.
void ipc_directory_reap(int directory, const Log &log);

}  // namespace gmm
#endif
