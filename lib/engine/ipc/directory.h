// SPDX-License-Identifier: Apache-2.0
// The directory in which brokers have their sockets.
//
// The candidates are $GMM_IPC_DIR, else $XDG_RUNTIME_DIR/gmm, else /tmp/gmm-UID; a directory of the policy replaces
// all three. GMM_IPC_DIR counts only if it is an absolute path of less than kIpcPathSize bytes; a relative one would
// mean another directory in each process. Each context warns of one that does not count (base/environment_check.h).
//
// The directory must not be a symbolic link. Without further users in the policy it must belong to the user and have
// mode 0700. With further users it must belong to root or one of the users, and be writable by its owner only or have
// the sticky bit.
//
// Sockets are made and reached through the open directory (base/local_socket.h).
#ifndef GMM_ENGINE_IPC_DIRECTORY_H
#define GMM_ENGINE_IPC_DIRECTORY_H

#include <cstdint>

#include "base/log.h"
#include "base/status.h"
#include "engine/ipc/handle.h"
#include "engine/ipc/policy.h"

namespace gmm {

inline constexpr unsigned kIpcDirectoryCandidates = 3;
inline constexpr uint64_t kIpcNameSize = 64;
inline constexpr char kIpcUnready[] = ".new";  // ends the name of a socket that does not listen yet

// The n-th candidate, without a slash at its end. False when it does not apply, for example when its variable is not
// set.
bool ipc_directory_candidate(unsigned n, char path[kIpcPathSize], const IpcPolicy &policy = kIpcDefaultPolicy);

// Opens a directory and checks it. `create`: makes it when it is missing. `*error` is the number of the
// system's error; 0 when the check failed.
Status ipc_directory_open(const char *path, bool create, int *fd, int *error,
                          const IpcPolicy &policy = kIpcDefaultPolicy);

// For the exporter: opens the first candidate. When the runtime directory is unusable, /tmp is next
// (`*runtime_directory_failed`).
Status ipc_directory_open_own(int *fd, char path[kIpcPathSize], const IpcPolicy &policy = kIpcDefaultPolicy,
                              bool *runtime_directory_failed = nullptr);

// "<pid>-<start time>-<serial>.sock"
void ipc_socket_name(const IpcEndpoint &endpoint, char name[kIpcNameSize]);
// Reads such a name, also with kIpcUnready behind it.
bool ipc_socket_name_parse(const char *name, IpcEndpoint *out);

// Removes the sockets of processes that have ended.
void ipc_directory_remove_stale(int directory, const Log &log);

}  // namespace gmm
#endif
