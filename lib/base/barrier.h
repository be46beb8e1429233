// SPDX-License-Identifier: Apache-2.0
// A barrier that one thread makes every running thread of the process pass, so that the others need none of their own.
//
// It is for mutual exclusion between an owner, which comes often, and a visitor, which comes rarely. The owner stores
// that it is busy, and then reads whether a visitor waits. The visitor stores that it waits, passes the barrier, and
// then reads whether the owner is busy. One of the two sees the other, as after Dekker.
//
// Linux has such a barrier: membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED). Where the system lacks it, owners pay for a
// fence. The thread sanitizer knows neither membarrier nor fences: under it owners exchange instead of store.
#ifndef GMM_BASE_BARRIER_H
#define GMM_BASE_BARRIER_H

#if defined(__SANITIZE_THREAD__)
#define GMM_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GMM_THREAD_SANITIZER 1
#endif
#endif

#include <atomic>
#include <cstdint>

namespace gmm {

#if defined(GMM_THREAD_SANITIZER)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// Registers the process for expedited barriers. The context calls it when it is created.
void prepare_barriers();
// Whether pass_barrier() reaches the other threads. If it does not, owners need a fence.
bool expedited_barriers();
// The visitor's side: every running thread passes a full barrier before this returns.
void pass_barrier();
// The visitor's next step: returns when the owner is not `busy`. It sleeps between its looks, because the owner may be
// one that runs only while a visitor of a higher real-time priority does not.
void wait_until_left(const std::atomic<uint32_t> &busy);

}  // namespace gmm
#endif
