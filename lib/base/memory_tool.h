// SPDX-License-Identifier: Apache-2.0
// The tool that the program brings along and that watches its memory: valgrind's memcheck, or the address sanitizer.
// An ordinary library tells it of blocks. The functions do nothing where there is none.
#ifndef GMM_BASE_MEMORY_TOOL_H
#define GMM_BASE_MEMORY_TOOL_H

#include <cstdint>

#ifdef GMM_WITH_VALGRIND
#include <valgrind/memcheck.h>
#else
#define VALGRIND_MAKE_MEM_NOACCESS(base, size) 0
#define VALGRIND_MAKE_MEM_DEFINED(base, size) ((void)(base), 0)
#define VALGRIND_MALLOCLIKE_BLOCK(base, size, red_zone, is_zeroed) ((void)0)
#define VALGRIND_FREELIKE_BLOCK(base, red_zone) ((void)0)
#endif

// In a program with the address sanitizer, whatever its libraries were built with.
extern "C" {
__attribute__((weak)) void __asan_poison_memory_region(const volatile void *base, decltype(sizeof(0)) size);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void *base, decltype(sizeof(0)) size);
}

namespace gmm::memory_tool {

// valgrind's other tools answer 0.
inline bool is_attached() {
  char probe = 0;
  return __asan_poison_memory_region != nullptr || VALGRIND_MAKE_MEM_DEFINED(&probe, sizeof probe) != 0;
}

// The tool reports accesses to the range from now on.
inline void forbid(uintptr_t base, uint64_t size) {
  (void)VALGRIND_MAKE_MEM_NOACCESS(base, size);
  if (__asan_poison_memory_region != nullptr) __asan_poison_memory_region(reinterpret_cast<void *>(base), size);
}

// It reports none. The contents count as written, as others may write them by a mapping that the tool does not see.
inline void allow(uintptr_t base, uint64_t size) {
  (void)VALGRIND_MAKE_MEM_DEFINED(base, size);
  if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(reinterpret_cast<void *>(base), size);
}

// Allows a block, and ends it, forbidden or allowed. valgrind notes both stacks.
inline void begin_block(uintptr_t block, uint64_t size) {
  VALGRIND_MALLOCLIKE_BLOCK(block, size, 0, 1);
  allow(block, size);
}
inline void end_block(uintptr_t block, uint64_t size, bool forbids) {
  VALGRIND_FREELIKE_BLOCK(block, 0);
  (forbids ? forbid : allow)(block, size);
}

}  // namespace gmm::memory_tool
#endif
