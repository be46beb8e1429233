// SPDX-License-Identifier: Apache-2.0
// Two services of the system for locks of the whole process: they know a forked child, and sleep on a word.
#ifndef GMM_BASE_PROCESS_GENERATION_H
#define GMM_BASE_PROCESS_GENERATION_H

#include <atomic>
#include <cstdint>

namespace gmm {

// A number of this process among its ancestors, above 0: a forked child has another one, however it was forked.
uint32_t process_generation();

// Blocks while *word == value; it may return early. Any thread wakes all that wait.
void wait_while(const std::atomic<uint32_t> &word, uint32_t value);
void wake_all(const std::atomic<uint32_t> &word);

}  // namespace gmm
#endif
