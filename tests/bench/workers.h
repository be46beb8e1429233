// SPDX-License-Identifier: Apache-2.0
// Threads that stay for the whole run, so that the allocators' thread caches stay warm between samples. Several stay on
// a processor each where there are enough: a sample is over in milliseconds, sooner than the system moves threads apart
// that it woke on one processor, and then they show the price of sharing it.
#ifndef GMM_BENCH_WORKERS_H
#define GMM_BENCH_WORKERS_H

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace gmm_bench {

// Nanoseconds of a clock that never goes back.
inline uint64_t now() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

inline constexpr uint32_t kMaxThreads = 256;

class Workers {
 public:
  explicit Workers(uint32_t count);
  ~Workers();
  Workers(const Workers &) = delete;
  Workers &operator=(const Workers &) = delete;

  uint32_t count() const { return static_cast<uint32_t>(threads_.size()); }

  // Runs job(0) to job(count - 1), each on its own thread, all starting together. Nanoseconds from the first
  // start to the last end; false in *good when a job returned false.
  uint64_t run(uint32_t count, const std::function<bool(uint32_t)> &job, bool *good);

 private:
  void loop(uint32_t index);

  struct Times {
    uint64_t begin, end;
    bool good;
  };
  std::vector<std::thread> threads_;
  std::vector<Times> times_;
  std::barrier<> meeting_;                              // of the caller and all threads, twice a round
  const std::function<bool(uint32_t)> *job_ = nullptr;  // NULL: the threads end
  uint32_t active_ = 0;
  std::atomic<uint32_t> arrived_{0};
};

}  // namespace gmm_bench
#endif
