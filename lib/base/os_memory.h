// SPDX-License-Identifier: Apache-2.0
// Address ranges, memory files and page locks of the operating system. Both backends use it.
//
// Every function either succeeds or fails without effect; errno comes as the native code. Lengths are multiples of
// the page size and ranges start at one.
#ifndef GMM_BASE_OS_MEMORY_H
#define GMM_BASE_OS_MEMORY_H

#include <cstdint>

#include "base/status.h"

namespace gmm::os {

inline constexpr uint64_t kHugePage = uint64_t{2} << 20;

enum class Access { kNone, kRead, kReadWrite };

// --- Memory files (memfd) ---------------------------------------------------------------------------
// A file of `size` bytes that lives in memory only, closed on exec, and sealed against a change of size: nobody who
// gets the descriptor can shrink it and so turn an access of the others into SIGBUS. Its pages are taken when they are
// first touched. What that guarantees:
//  - with vm.overcommit_memory 0 or 1 a shortage at first touch never gives SIGBUS; as for any memory, the
//    kernel swaps, and in the end calls the OOM killer. check_available() refuses before that where it can be foreseen;
//  - with vm.overcommit_memory 2 a touch that passes the commit limit would be SIGBUS, so there the pages are
//    taken here and a shortage is an error (OUT_OF_MEMORY).
// `name` is what /proc/self/maps shows.
Status memory_file_create(const char *name, uint64_t size, int32_t *out);
// Of a descriptor from elsewhere: that it is a memory file of at least `size` bytes which cannot shrink.
Status memory_file_check(int32_t fd, uint64_t size);
Status memory_file_size(int32_t fd, uint64_t *out);
// Another descriptor of the same file, closed on exec.
Status duplicate(int32_t fd, int32_t *out);
Status close_file(int32_t fd);

// --- Address ranges -------------------------------------------------------------------------------------
// Addresses only: no access, no memory and no commit charge behind them. `alignment`: a power of two.
Status reserve(uint64_t size, uint64_t alignment, void **out);
// Puts the file's first `size` bytes, shared, in place of what is at [base, base + size): a reserved range.
Status map_file_at(void *base, uint64_t size, int32_t fd, Access access);
// Puts no-access addresses in place of what is at [base, base + size). The pages of a file go with its last
// mapping and descriptor.
Status reserve_at(void *base, uint64_t size);
// reserve() and map_file_at() in one.
Status map_file(uint64_t size, uint64_t alignment, int32_t fd, Access access, void **out);
// Zeroed private memory.
Status map_anonymous(uint64_t size, uint64_t alignment, void **out);
Status set_access(void *base, uint64_t size, Access access);
// Gives addresses and mappings back.
Status unmap(void *base, uint64_t size);

// --- Pages ------------------------------------------------------------------------------------------------
// Page-locks; the errors name RLIMIT_MEMLOCK and what to do. Locks don't nest: one unlock undoes them all.
Status lock_pages(void *base, uint64_t size);
Status unlock_pages(void *base, uint64_t size);
// madvise(2), by the MADV_* number.
Status advise_pages(void *base, uint64_t size, int32_t advice);

// --- Figures ------------------------------------------------------------------------------------------------
struct MemoryInfo {
  uint64_t total = 0;      // bytes of RAM, or the memory limit of the control group when that is less
  uint64_t available = 0;  // bytes that can be taken without swapping, as the kernel estimates
};
Status memory_info(MemoryInfo *out);
// Fails with `code` when `size` bytes are plainly not there now. An estimate: what others take later isn't seen.
Status check_available(uint64_t size, gmm_result code);
// Bytes of this process that are in RAM. memfd pages count while mapped and touched.
Status resident_size(uint64_t *out);
uint64_t page_size();

}  // namespace gmm::os
#endif
