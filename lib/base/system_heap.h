// SPDX-License-Identifier: Apache-2.0
// The heap of the process, for bookkeeping without a host allocator of the program (base/host_allocator.h).
#ifndef GMM_BASE_SYSTEM_HEAP_H
#define GMM_BASE_SYSTEM_HEAP_H

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace gmm {

// NULL: there is no memory. `alignment` is a power of two.
inline void *system_allocate(uint64_t size, uint64_t alignment) {
  if (alignment <= alignof(std::max_align_t)) return std::malloc(size);
  return std::aligned_alloc(alignment, (size + alignment - 1) & ~(alignment - 1));
}
inline void system_free(void *memory) { std::free(memory); }

}  // namespace gmm
#endif
