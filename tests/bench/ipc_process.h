// SPDX-License-Identifier: Apache-2.0
// The second processes of `gmm-bench ipc`: the program started again.
#ifndef GMM_BENCH_IPC_PROCESS_H
#define GMM_BENCH_IPC_PROCESS_H

#include <gmm/gmm.h>
#include <sys/types.h>

#include <cstdint>
#include <string>

#include "ipc_raw.h"

namespace gmm_bench {

inline constexpr uint32_t kMark = 0x5a;  // what shared memory is filled with

// Talks over a Unix socket.
struct IpcProcess {
  pid_t pid = -1;
  int fd = -1;
};

// `role`: "serve" (exports what it is asked to), or "import" (imports one handle, looks at it, closes it).
bool start_process(const char *role, gmm_backend backend, gmm_device device, uint32_t kind, IpcProcess *out);
// The exit code; 1000 and the signal; -1.
int end_process(IpcProcess *process);

bool send_all(int fd, const void *bytes, size_t size);
bool receive_all(int fd, void *bytes, size_t size);
bool send_raw(int fd, const IpcRawMessage &message);
bool receive_raw(int fd, IpcRawMessage *message);

// What a server is asked: 'e' with a size (a dedicated block's handle), 'p' (a pooled block's), 'f' (frees what it
// made), 'm' with a size (the raw memory; answers a byte), 'r' (the raw message).
struct IpcAsk {
  char what = 0;
  uint64_t size = 0;
};

// In the second process.
int run_second_process(int argc, char **argv);

bool open_context(gmm_backend backend, uint64_t host_memory, gmm_context **out, std::string *error);
gmm_alloc_desc block_of(uint32_t kind, gmm_device device, uint32_t flags);

}  // namespace gmm_bench
#endif
