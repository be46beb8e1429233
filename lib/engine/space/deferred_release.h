// SPDX-License-Identifier: Apache-2.0
// Things that the driver refused to take back. They are kept, and offered again at every trim and at the end of the
// context, so that a refusal loses nothing.
//
// A mapping that the driver refused to end still has its addresses: they are neither given back nor mapped anew before
// it is gone. Else a later offer would end what lies there then. The host's system allows both, CUDA neither.
#ifndef GMM_ENGINE_SPACE_DEFERRED_RELEASE_H
#define GMM_ENGINE_SPACE_DEFERRED_RELEASE_H

#include <atomic>

#include "backend/backend.h"
#include "base/lock.h"
#include "base/vector.h"

namespace gmm {

class DeferredRelease {
 public:
  DeferredRelease(const HostAllocator &allocator, const Log &log) : log_(log), entries_(allocator) {}

  // Each gives back, or keeps the refused thing and writes to the log. The thread's message stays as it was.
  void unmap(Backend &backend, void *base, uint64_t size) { try_once(backend, of_range(What::kMapping, base, size)); }
  void release(Backend &backend, PhysicalHandle handle) { try_once(backend, Entry{What::kHandle, handle, {}}); }
  void unreserve(Backend &backend, void *base, uint64_t size);
  void deallocate(Backend &backend, const Allocation &allocation) {
    try_once(backend, Entry{What::kAllocation, {}, allocation});
  }
  // Pages of the system that were pinned: they are unmapped once the driver let them go.
  void unpin_pages(Backend &backend, void *base, uint64_t size) {
    try_once(backend, of_range(What::kPinnedPages, base, size));
  }

  // Before anything is mapped there: fails while an earlier mapping stands in these addresses.
  Status end_mappings(Backend &backend, const void *base, uint64_t size) {
    return mappings_.load(std::memory_order_relaxed) == 0 ? Status() : end_mappings_there(backend, base, size);
  }

  // Offers everything again.
  void retry(Backend &backend);

 private:
  // In the order in which things are given back: addresses are free once nothing is mapped there.
  enum class What : uint32_t { kMapping, kHandle, kAddresses, kAllocation, kPinnedPages };
  struct Entry {
    What what = What::kMapping;
    PhysicalHandle handle;
    Allocation allocation;  // of a mapping or of addresses, base and size
  };
  static Entry of_range(What what, void *base, uint64_t size) {
    Entry entry;
    entry.what = what;
    entry.allocation.base = base;
    entry.allocation.size = size;
    return entry;
  }
  static Status give_back(Backend &backend, const Entry &entry);
  void try_once(Backend &backend, const Entry &entry);
  void keep(const Entry &entry);
  Status end_mappings_there(Backend &backend, const void *base, uint64_t size);
  // With the lock. NULL: nothing is mapped in these addresses any more.
  Entry *mapping_in(const void *base, uint64_t size);
  void remove(Entry *entry);

  const Log log_;
  Mutex mutex_{LockRank::kDeferredRelease};
  Vector<Entry> entries_;
  std::atomic<uint64_t> mappings_{0};  // of the entries
};

}  // namespace gmm
#endif
