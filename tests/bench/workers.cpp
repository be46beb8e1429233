// SPDX-License-Identifier: Apache-2.0
#include "workers.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

namespace gmm_bench {
namespace {

// A processor for each of `count` threads, or nothing where there are fewer.
std::vector<int> processors(uint32_t count) {
  cpu_set_t allowed;
  std::vector<int> found;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return found;
  for (int processor = 0; processor < CPU_SETSIZE && found.size() < count; ++processor)
    if (CPU_ISSET(processor, &allowed)) found.push_back(processor);
  if (found.size() < count) found.clear();
  return found;
}

void stay_on(std::thread &thread, int processor) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  // Without it the thread runs where the system puts it, as it does with more threads than processors.
  (void)pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);
}

}  // namespace

Workers::Workers(uint32_t count) : times_(count), meeting_(count + 1) {
  const std::vector<int> places = processors(count);
  for (uint32_t i = 0; i < count; ++i) {
    threads_.emplace_back([this, i] { loop(i); });
    if (count > 1 && !places.empty()) stay_on(threads_.back(), places[i]);
  }
}

Workers::~Workers() {
  job_ = nullptr;
  meeting_.arrive_and_wait();
  for (std::thread &thread : threads_) thread.join();
}

void Workers::loop(uint32_t index) {
  for (;; meeting_.arrive_and_wait()) {
    meeting_.arrive_and_wait();
    if (job_ == nullptr) return;
    if (index >= active_) continue;
    // All are awake before one begins.
    arrived_.fetch_add(1);
    for (uint32_t spins = 0; arrived_.load() < active_; ++spins)
      if (spins > 1000) sched_yield();
    times_[index].begin = now();
    times_[index].good = (*job_)(index);
    times_[index].end = now();
  }
}

uint64_t Workers::run(uint32_t count, const std::function<bool(uint32_t)> &job, bool *good) {
  job_ = &job;
  active_ = count;
  arrived_.store(0);
  meeting_.arrive_and_wait();  // the round begins
  meeting_.arrive_and_wait();  // it has ended
  uint64_t begin = UINT64_MAX, end = 0;
  for (uint32_t i = 0; i < count; ++i) {
    begin = std::min(begin, times_[i].begin);
    end = std::max(end, times_[i].end);
    *good = times_[i].good && *good;
  }
  return end - begin;
}

}  // namespace gmm_bench
