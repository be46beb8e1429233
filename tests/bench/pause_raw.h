// SPDX-License-Identifier: Apache-2.0
// The calls that `gmm-bench pause` holds gmm against, straight to the CUDA driver, or to the system where the host
// backend runs.
#ifndef GMM_BENCH_PAUSE_RAW_H
#define GMM_BENCH_PAUSE_RAW_H

#include <cstdint>
#include <string>

namespace gmm_bench {

// Functions that return bool: false leaves why in error(). On one thread.
class Raw {
 public:
  virtual ~Raw() = default;

  // Physical memory by handles, and addresses that it is mapped at.
  virtual bool reserve(uint64_t size, char **out) = 0;
  virtual bool unreserve(char *base, uint64_t size) = 0;
  virtual bool create(uint64_t size, uint64_t *handle) = 0;
  virtual bool map(char *base, uint64_t size, uint64_t handle) = 0;
  virtual bool set_access(char *base, uint64_t size) = 0;
  virtual bool unmap(char *base, uint64_t size) = 0;
  virtual bool release(uint64_t handle) = 0;

  // Page-locked host memory, as a program gets it: cuMemHostAlloc().
  virtual bool host_alloc(uint64_t size, char **out) = 0;
  virtual bool host_free(char *base, uint64_t size) = 0;
  // The same for memory that is there already.
  virtual bool lock(char *base, uint64_t size) = 0;
  virtual bool unlock(char *base, uint64_t size) = 0;

  // Queued until wait().
  virtual bool copy_out(char *host, const char *device, uint64_t size) = 0;
  virtual bool copy_in(char *device, const char *host, uint64_t size) = 0;
  virtual bool wait() = 0;

  uint64_t calls() const { return calls_; }  // of those that get, map, unmap and give back memory
  const std::string &error() const { return error_; }

 protected:
  bool fail(std::string text) {
    error_ = std::move(text);
    return false;
  }
  uint64_t calls_ = 0;

 private:
  std::string error_;
};

// Of the process; on CUDA makes the device's primary context current on this thread. NULL with a reason.
Raw *open_raw(bool cuda, int32_t device, std::string *error);

// Each in a file of its own.
Raw *host_raw();
Raw *cuda_raw(int32_t device, std::string *error);

// Host memory of whole pages, touched by several threads, huge where the system gives huge pages. NULL when there is
// none.
char *touched_memory(uint64_t size);
void free_touched(char *base, uint64_t size);

}  // namespace gmm_bench
#endif
