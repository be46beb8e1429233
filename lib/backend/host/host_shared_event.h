// SPDX-License-Identifier: Apache-2.0
// The part of a host event that other processes see: a page in shared memory.
#ifndef GMM_BACKEND_HOST_HOST_SHARED_EVENT_H
#define GMM_BACKEND_HOST_HOST_SHARED_EVENT_H

#include <atomic>
#include <cstdint>

#include "base/host_allocator.h"
#include "base/peer.h"
#include "base/status.h"

namespace gmm {

// Records are numbered from 1. The maker writes `recorded`, the number of the last record. When record n has passed, it
// writes n into slot n % kSlots and wakes all that wait on `progress`. Importers map the page read-only.
//
// Lifetime: reference counts. The event holds one reference, and so does each piece of work that names it. Threads: the
// maker calls begin() and publish() with the event's lock held; everything else may run on any thread.
class HostSharedEvent {
 public:
  static Status create(const HostAllocator &allocator, HostSharedEvent **out);
  // Opens another process's event. All descriptors stay the caller's.
  static Status open(const HostAllocator &allocator, int32_t fd, const Peer &maker, HostSharedEvent **out);
  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release();
  bool imported() const { return imported_; }

  // --- The maker's side -----------------------------------------------------------------------------------------
  // Returns the number of the next record. Fails with BUSY if the record would need the slot of one that has not
  // passed.
  Status begin(uint64_t *number);
  void publish(uint64_t number);
  void pass(uint64_t number);
  // Opens a read-only descriptor of the page for another process.
  Status export_fd(int32_t *fd) const;

  // --- The importer's side --------------------------------------------------------------------------------------
  uint64_t recorded() const;
  bool passed(uint64_t number) const;
  // Waits for a record. False: the maker has ended before the record passed.
  bool wait(uint64_t number) const;

  // Private to create() and open(); HostAllocator::create() needs it public.
  HostSharedEvent(const HostAllocator &allocator, bool imported) : allocator_(allocator), imported_(imported) {}

 private:
  friend class HostAllocator;
  static constexpr uint64_t kSlots = 256;
  static constexpr uint64_t kPageSize = 4096;
  struct Page {
    std::atomic<uint64_t> recorded;
    std::atomic<uint32_t> progress;
    uint32_t reserved;
    std::atomic<uint64_t> slots[kSlots];
  };
  static_assert(sizeof(Page) <= kPageSize);
  ~HostSharedEvent() = default;
  Status opened(Status status, void *page, HostSharedEvent **out);

  const HostAllocator allocator_;
  const bool imported_;
  std::atomic<uint32_t> references_{1};
  std::atomic<uint64_t> passed_[kSlots] = {};  // the maker's own copy, because an importer could have changed the page
  uint64_t recorded_ = 0;                      // as passed_
  Page *page_ = nullptr;
  int32_t fd_ = -1;
  Peer maker_;
};

}  // namespace gmm
#endif
