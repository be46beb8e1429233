// SPDX-License-Identifier: Apache-2.0
#ifndef GMM_BASE_PREFETCH_H
#define GMM_BASE_PREFETCH_H

namespace gmm {

// Requests a cache line for a write that follows soon, if another processor wrote the line last. Any address is
// allowed.
inline void prefetch_to_write(const void *address) {
#if defined(__x86_64__)
  // Without -mprfchw, __builtin_prefetch() emits a read prefetch, after which the write asks the other processor again.
  // Processors without this instruction execute it as a NOP.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char *>(address)));
#else
  __builtin_prefetch(address, 1);
#endif
}

}  // namespace gmm
#endif
