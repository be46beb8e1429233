// SPDX-License-Identifier: Apache-2.0
#include "base/process_mutex.h"

namespace gmm {
namespace {

constexpr uint32_t kLocked = 1, kWaiters = 2, kBits = 3;

}  // namespace

bool ProcessMutex::lock() {
  check_lock_order(this, rank(), false);
  const bool is_first = lock_word();
  note_locked(this, rank(), false);
  enter_lock();
  return is_first;
}

bool ProcessMutex::lock_word() {
  const uint32_t mine = process_generation() * (kBits + 1);
  for (;;) {
    uint32_t seen = word_.load(std::memory_order_relaxed);
    if ((seen & ~kBits) != mine) {
      if (word_.compare_exchange_weak(seen, mine | kLocked, std::memory_order_acquire)) return seen != 0;
      continue;
    }
    if ((seen & kLocked) == 0) {
      if (word_.compare_exchange_weak(seen, seen | kLocked, std::memory_order_acquire)) return false;
      continue;
    }
    if ((seen & kWaiters) == 0 && !word_.compare_exchange_weak(seen, seen | kWaiters, std::memory_order_relaxed))
      continue;
    wait_while(word_, seen | kWaiters);
  }
}

void ProcessMutex::unlock() {
  note_unlocked(this);
  const uint32_t seen = word_.exchange(process_generation() * (kBits + 1), std::memory_order_release);
  if ((seen & kWaiters) != 0) wake_all(word_);
  leave_lock();
}

}  // namespace gmm
