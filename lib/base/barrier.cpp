// SPDX-License-Identifier: Apache-2.0
#include "base/barrier.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "base/thread.h"

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

void wait_until_left(const std::atomic<uint32_t> &busy) {
  // An owner that runs leaves within this many looks, unless it waits for a lock itself.
  constexpr uint32_t kLooks = 200;
  constexpr uint64_t kFirstSleep = 20, kLongestSleep = 1000;  // microseconds
  for (uint32_t look = 0; look < kLooks; ++look)
    if (busy.load(std::memory_order_seq_cst) == 0) return;
  for (uint64_t sleep = kFirstSleep; busy.load(std::memory_order_seq_cst) != 0; sleep_us(sleep))
    if (sleep < kLongestSleep) sleep *= 2;
}

}  // namespace gmm
