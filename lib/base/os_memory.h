// SPDX-License-Identifier: Apache-2.0
// Address ranges, memory files and page locks of the operating system. The host and the CUDA backend use it.
//
// Every function either succeeds or fails without effect; the native code of a failure is errno. Lengths are multiples
// of the page size, and ranges start at a page.
#ifndef GMM_BASE_OS_MEMORY_H
#define GMM_BASE_OS_MEMORY_H

#include <cstdint>

#include "base/status.h"

namespace gmm::os {

inline constexpr uint64_t kHugePage = uint64_t{2} << 20;

enum class Access { kNone, kRead, kReadWrite };

// --- Memory files (memfd) ---------------------------------------------------------------------------
// Creates a file of `size` bytes that lives in memory only and is closed on exec. It is sealed against a change of
// size: no holder of the descriptor can shrink it and so cause SIGBUS in other processes. The system takes a page
// when it is first touched. If memory is short then:
//  - With vm.overcommit_memory 0 or 1 the touch never raises SIGBUS. The kernel swaps and in the end calls the OOM
//    killer, as for any memory. check_available() refuses before that where it can foresee it.
//  - With vm.overcommit_memory 2 a touch past the commit limit would raise SIGBUS. So the function takes all pages at
//    once there, and fails with OUT_OF_MEMORY if they are short.
// `name` appears in /proc/self/maps.
Status memory_file_create(const char *name, uint64_t size, int32_t *out);
// A file without pages, however large. Only memory_file_commit() accounts for them.
Status memory_file_sparse(const char *name, uint64_t size, int32_t *out);
// Takes the pages of a range where memory_file_create() would.
Status memory_file_commit(int32_t fd, uint64_t offset, uint64_t size);
// Returns the pages of a range to the system. They read as zero afterwards.
Status memory_file_drop(int32_t fd, uint64_t offset, uint64_t size);
// Checks a descriptor from another process: it is a memory file of at least `size` bytes that cannot shrink.
Status memory_file_check(int32_t fd, uint64_t size);
// Returns another descriptor of the same file, closed on exec.
Status duplicate(int32_t fd, int32_t *out);
// duplicate() of a memory file that goes to others: is_shared() is true of the file while the descriptor, a duplicate
// of it or a mapping lives, in any process.
Status share(int32_t fd, int32_t *out);
bool is_shared(int32_t fd);
Status close_file(int32_t fd);
// The kind and the size of an open file. Returns 0 or an error number.
struct FileFacts {
  bool is_file = false;
  uint64_t size = 0;  // of a file
};
int file_facts(int32_t fd, FileFacts *out);
// No process can shorten the file after this. Returns 0 or an error number: it is no memory file, or is sealed already.
int seal_against_shrinking(int32_t fd);

// --- Address ranges -------------------------------------------------------------------------------------
// Reserves addresses only, without access, memory or commit charge. `alignment` is a power of two.
Status reserve(uint64_t size, uint64_t alignment, void **out);
// reserve() of these addresses. OVERLAP: some of them are taken.
Status reserve_free(void *base, uint64_t size);
// Maps `size` bytes of the file from the offset on, shared, over the reserved range [base, base + size).
Status map_file_at(void *base, uint64_t size, int32_t fd, uint64_t offset, Access access);
// Replaces [base, base + size) by reserved addresses. A file's pages end with its last mapping and descriptor.
Status reserve_at(void *base, uint64_t size);
// Does the work of reserve() and map_file_at().
Status map_file(uint64_t size, uint64_t alignment, int32_t fd, uint64_t offset, Access access, void **out);
// Maps private memory that reads as zero.
Status map_anonymous(uint64_t size, uint64_t alignment, void **out);
Status set_access(void *base, uint64_t size, Access access);
// Returns addresses and mappings to the system.
Status unmap(void *base, uint64_t size);
// unmap() where nobody can handle a failure.
void discard(void *base, uint64_t size);
// Memory that reads as zero and takes a page at the first touch, without a charge before. NULL: no addresses.
void *map_sparse(uint64_t size);
// One page that reads as zero, and does so again in a forked child. NULL: the system has no such page.
void *map_page_of_process();

// --- Pages ------------------------------------------------------------------------------------------------
// Page-locks a range. The errors name RLIMIT_MEMLOCK and what to do. Locks do not nest: one unlock undoes them all.
Status lock_pages(void *base, uint64_t size);
Status unlock_pages(void *base, uint64_t size);

// Hints. Without them the memory works as well.
void prefer_huge_pages(void *base, uint64_t size);
void keep_from_children(void *base, uint64_t size);         // a forked child has no such pages
void prefer_node(void *base, uint64_t size, int32_t node);  // `node`: below zero, or of the system's nodes
// Gives the pages of private memory back; it reads as zero afterwards. On a failure the pages stay.
void drop_pages(void *base, uint64_t size);

// Takes the pages of mapped memory now, as a write to each would, and changes no byte. Returns 0 or an error number,
// without a message.
int touch_pages(void *base, uint64_t size);
Status populate_pages(void *base, uint64_t size);  // the same with a message; OUT_OF_MEMORY

// --- Figures ------------------------------------------------------------------------------------------------
struct MemoryInfo {
  uint64_t total = 0;      // bytes of RAM, or the limit of the process's control groups if that is less
  uint64_t available = 0;  // bytes that can be used without swapping, and before a control group's limit
};
// `root`: a folder in front of /proc and /sys, for tests.
Status memory_info(MemoryInfo *out, const char *root = "");
// Fails with `code` if fewer than `size` bytes are available now. The result is an estimate: other processes may take
// memory later.
Status check_available(uint64_t size, gmm_result code);
uint64_t page_size();

}  // namespace gmm::os
#endif
