// SPDX-License-Identifier: Apache-2.0
// A record of every alloc and free, as text: the format of tests/bench/traces.
#ifndef GMM_ENGINE_TRACE_H
#define GMM_ENGINE_TRACE_H

#include <atomic>
#include <cstdio>

#include "base/lock.h"
#include "base/vector.h"
#include "engine/core.h"

namespace gmm {

class Trace {
 public:
  explicit Trace(Core &core) : core_(core), live_(core.allocator) {}
  Status begin(const char *path);
  Status end();
  bool running() const { return running_.load(std::memory_order_relaxed); }
  // Around each call while running; a trace that cannot be written goes on and says so at its end.
  void allocated(const void *memory, uint64_t size, gmm_stream stream);
  void freeing(const void *memory, gmm_stream stream);

 private:
  struct Live {
    const void *memory;
    uint64_t id;
  };
  // Open addressing over powers of two; memory NULL is empty.
  bool insert(const void *memory, uint64_t id);
  bool remove(const void *memory, uint64_t *id);
  static uint64_t hash(const void *memory) { return (reinterpret_cast<uintptr_t>(memory) >> 8) * 0x9e3779b97f4a7c15u; }

  Core &core_;
  Mutex mutex_;
  std::atomic<bool> running_{false};
  std::FILE *file_ = nullptr;
  bool broken_ = false;
  uint64_t next_id_ = 0;
  uint64_t live_count_ = 0;
  Vector<Live> live_;
};

}  // namespace gmm
#endif
