// SPDX-License-Identifier: Apache-2.0
// For the build of tests/portability alone: base/system_heap.h without a system. There is no memory.
#ifndef GMM_BASE_SYSTEM_HEAP_H
#define GMM_BASE_SYSTEM_HEAP_H

#include <cstdint>

namespace gmm {

inline void *system_allocate(uint64_t, uint64_t) { return nullptr; }
inline void system_free(void *) {}

}  // namespace gmm
#endif
