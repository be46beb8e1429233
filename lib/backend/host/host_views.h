// SPDX-License-Identifier: Apache-2.0
// The two views of device memory of a strict host backend.
//
// The program's view is at the addresses that the engine knows, and the CPU faults there as it would on a GPU's memory.
// gmm's own view lies behind it and is as large. Copies, fills and searches of the backend go through it.
// Owns: the table of the program's views. Each has a distance to gmm's. A copy may be between two contexts of the
// process, so a search goes on in the tables of the others.
// Locks: `mutex_`, for changes of the table with the system calls that belong to it; that of the list of all tables. A
// search takes none as long as one context has views.
// Callers: HostBackend.
#ifndef GMM_BACKEND_HOST_HOST_VIEWS_H
#define GMM_BACKEND_HOST_HOST_VIEWS_H

#include <atomic>

#include "base/lock.h"
#include "base/os_memory.h"
#include "base/range_table.h"
#include "base/vector.h"

namespace gmm {

class HostViews {
 public:
  explicit HostViews(const HostAllocator &allocator) : ranges_(allocator), table_(allocator) {}
  ~HostViews();

  // Reserves addresses for both views, and returns where the program's begins. OUT_OF_HOST_MEMORY, and errors of
  // os::reserve().
  Status reserve(uint64_t size, uint64_t alignment, void **out);
  // Returns both views of a reservation to the system.
  Status unreserve(void *base, uint64_t size);
  // Maps a range of a file into both views of reserved addresses. The program's has no access.
  Status map(void *base, uint64_t size, int32_t fd, uint64_t offset);
  // Both views are addresses only.
  Status unmap(void *base, uint64_t size);

  bool has(const void *address) const {
    void *ignored = nullptr;
    return find(address, &ignored);
  }
  // Where gmm itself finds the byte, of any context's memory: `address` for memory without views.
  void *own(const void *address) const;

 private:
  void insert(uintptr_t base, uint64_t size);
  bool find(const void *address, void **out) const;

  HostViews *next_ = nullptr;  // of the list of all tables
  std::atomic<bool> is_listed_{false};
  Vector<Range> ranges_;  // by address; value: the distance to gmm's view
  RangeTable table_;
  Mutex mutex_{LockRank::kHostViews};
};

}  // namespace gmm
#endif
