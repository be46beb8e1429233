// SPDX-License-Identifier: Apache-2.0
#include "workers.h"

#include <sched.h>
#include <time.h>

#include <algorithm>

namespace gmm_bench {
namespace {

uint64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000000 + static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace

Workers::Workers(uint32_t count) : times_(count) {
  for (uint32_t i = 0; i < count; ++i) threads_.emplace_back([this, i] { loop(i); });
}

Workers::~Workers() {
  {
    std::lock_guard guard(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  for (std::thread &thread : threads_) thread.join();
}

void Workers::loop(uint32_t index) {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return ending_ || round_ != seen; });
    if (ending_) return;
    seen = round_;
    if (index >= active_) continue;
    const uint32_t active = active_;
    const auto &job = *job_;
    lock.unlock();

    arrived_.fetch_add(1);
    for (uint32_t spins = 0; arrived_.load() < active; ++spins)
      if (spins > 1000) sched_yield();
    times_[index].begin = now();
    times_[index].good = job(index);
    times_[index].end = now();

    lock.lock();
    if (--left_ == 0) done_.notify_one();
  }
}

uint64_t Workers::run(uint32_t count, const std::function<bool(uint32_t)> &job, bool *good) {
  std::unique_lock lock(mutex_);
  job_ = &job;
  active_ = left_ = count;
  arrived_.store(0);
  ++round_;
  wake_.notify_all();
  done_.wait(lock, [&] { return left_ == 0; });
  uint64_t begin = UINT64_MAX, end = 0;
  for (uint32_t i = 0; i < count; ++i) {
    begin = std::min(begin, times_[i].begin);
    end = std::max(end, times_[i].end);
    *good = times_[i].good && *good;
  }
  return end - begin;
}

}  // namespace gmm_bench
