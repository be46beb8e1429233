// SPDX-License-Identifier: Apache-2.0
#include "base/barrier.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace gmm {
namespace {

constinit std::atomic<bool> g_expedited{false};

}  // namespace

void prepare_barriers() {
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0)
    g_expedited.store(true, std::memory_order_relaxed);
}

bool expedited_barriers() { return g_expedited.load(std::memory_order_relaxed); }

void pass_barrier() {
  if (expedited_barriers())
    syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
  else if constexpr (!kThreadSanitizer)
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

}  // namespace gmm
