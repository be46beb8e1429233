// SPDX-License-Identifier: Apache-2.0
#ifndef GMM_BASE_PREFETCH_H
#define GMM_BASE_PREFETCH_H

namespace gmm {

// A line that another processor wrote and that is written here soon. Any address is allowed.
inline void prefetch_to_write(const void *address) {
#if defined(__x86_64__)
  // What __builtin_prefetch() gives without -mprfchw is a read, after which the write asks the other processor again. Processors
  // without the instruction take it for a NOP.
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char *>(address)));
#else
  __builtin_prefetch(address, 1);
#endif
}

}  // namespace gmm
#endif
