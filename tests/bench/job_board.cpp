// SPDX-License-Identifier: Apache-2.0
#include "job_board.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>

#include "clock.h"

namespace gmm_bench {
namespace {

// std::atomic's wait is for threads of one process. Returns at `deadline` too, and sometimes early.
void sleep_while(std::atomic<uint32_t> *word, uint32_t value, uint64_t deadline) {
  const uint64_t left = deadline - std::min(deadline, now());
  timespec time = {};
  time.tv_sec = static_cast<time_t>(left / 1000000000);
  time.tv_nsec = static_cast<long>(left % 1000000000);
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(word), FUTEX_WAIT, value, &time, nullptr, 0);
}

void wake_sleepers(std::atomic<uint32_t> *word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t *>(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

uint64_t after_ms(uint64_t milliseconds) { return now() + milliseconds * 1000000; }

// Held for a search of the table. A rank that ends while it holds it ends the whole command.
class TableLock {
 public:
  TableLock(JobBoard *board, uint64_t timeout_ms) : board_(board) {
    timespec until = {};
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += static_cast<time_t>(timeout_ms / 1000 + 1);
    is_held = pthread_mutex_timedlock(&board->mutex, &until) == 0;
  }
  ~TableLock() {
    if (is_held) pthread_mutex_unlock(&board_->mutex);
  }
  TableLock(const TableLock &) = delete;
  TableLock &operator=(const TableLock &) = delete;
  bool is_held = false;

 private:
  JobBoard *const board_;
};

// `makes`: where there is none. NULL: there is none, or no room.
JobRegister *find_register(JobBoard *board, const char *key, bool makes) {
  JobRegister *room = nullptr;
  for (JobRegister &each : board->registers) {
    if (std::strcmp(each.key, key) == 0) return &each;
    if (each.key[0] != 0) continue;
    if (room == nullptr) room = &each;
  }
  if (!makes || room == nullptr || std::strlen(key) >= sizeof room->key) return nullptr;
  std::strcpy(room->key, key);
  room->is_set.store(0, std::memory_order_relaxed);
  return room;
}

gmm_result set_register(void *user, const char *key, const char *value, char *out, uint64_t timeout_ms) {
  auto *self = static_cast<JobExchange *>(user);
  ++self->board->rank[self->rank].messages.sets;
  JobRegister *found = nullptr;
  {
    const TableLock lock(self->board, timeout_ms);
    if (!lock.is_held) return GMM_ERROR_NOT_READY;
    found = find_register(self->board, key, true);
    if (found == nullptr) return GMM_ERROR_IO;
    if (found->is_set.load(std::memory_order_relaxed) == 0) {
      std::strncpy(found->value, value, sizeof found->value - 1);
      found->is_set.store(1, std::memory_order_release);
    }
    std::memcpy(out, found->value, sizeof found->value);
  }
  wake_sleepers(&found->is_set);
  return GMM_OK;
}

gmm_result get_register(void *user, const char *key, char *out, uint64_t timeout_ms) {
  auto *self = static_cast<JobExchange *>(user);
  ++self->board->rank[self->rank].messages.gets;
  const uint64_t deadline = after_ms(timeout_ms);
  JobRegister *found = nullptr;
  {
    const TableLock lock(self->board, timeout_ms);
    if (!lock.is_held) return GMM_ERROR_NOT_READY;
    found = find_register(self->board, key, timeout_ms != 0);  // a mere look leaves nothing
    if (found == nullptr) return timeout_ms == 0 ? GMM_ERROR_NOT_READY : GMM_ERROR_IO;
  }
  bool has_slept = false;
  while (found->is_set.load(std::memory_order_acquire) == 0) {
    if (now() >= deadline) return GMM_ERROR_NOT_READY;
    if (!has_slept) ++self->board->rank[self->rank].messages.sleeps;
    has_slept = true;
    sleep_while(&found->is_set, 0, deadline);
  }
  std::memcpy(out, found->value, sizeof found->value);
  return GMM_OK;
}

void erase_register(void *user, const char *key) {
  auto *self = static_cast<JobExchange *>(user);
  ++self->board->rank[self->rank].messages.erases;
  const TableLock lock(self->board, self->board->timeout_ms);
  JobRegister *found = lock.is_held ? find_register(self->board, key, false) : nullptr;
  if (found == nullptr) return;
  found->key[0] = 0;
}

}  // namespace

bool start_board(JobBoard *board) {
  pthread_mutexattr_t attributes;
  if (pthread_mutexattr_init(&attributes) != 0) return false;
  const bool good = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0 &&
                    pthread_mutex_init(&board->mutex, &attributes) == 0;
  pthread_mutexattr_destroy(&attributes);
  return good;
}

bool reach_barrier(JobBoard *board, uint32_t rank, uint64_t *released, uint32_t *missing) {
  const uint64_t deadline = after_ms(board->timeout_ms);
  const uint32_t opened = board->opened.load(std::memory_order_acquire);
  const uint32_t steps = board->rank[rank].steps.fetch_add(1, std::memory_order_relaxed) + 1;
  if (board->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == board->ranks) {
    board->arrived.store(0, std::memory_order_relaxed);
    board->released.store(now(), std::memory_order_relaxed);
    board->opened.store(opened + 1, std::memory_order_release);
    wake_sleepers(&board->opened);
  }
  while (board->opened.load(std::memory_order_acquire) == opened) {
    if (now() < deadline) {
      sleep_while(&board->opened, opened, deadline);
      continue;
    }
    *missing = 0;
    while (*missing + 1 < board->ranks && board->rank[*missing].steps.load(std::memory_order_relaxed) >= steps)
      ++*missing;
    return false;
  }
  *released = board->released.load(std::memory_order_relaxed);
  return true;
}

gmm_exchange JobExchange::functions() { return {set_register, get_register, erase_register, this}; }

}  // namespace gmm_bench
