// SPDX-License-Identifier: Apache-2.0
#ifndef GMM_ENGINE_HEAP_CACHE_ENTRY_H
#define GMM_ENGINE_HEAP_CACHE_ENTRY_H

#include <atomic>
#include <cstdint>

namespace gmm {

// A free block on its way: its slot is 0, and no list of the heap knows it.
struct CacheEntry {
  void *block;
  std::atomic<uint64_t> *slot;
};

}  // namespace gmm
#endif
