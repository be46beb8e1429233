// SPDX-License-Identifier: Apache-2.0
// What an event of the host backend shows to other processes: a page in shared memory.
#ifndef GMM_BACKEND_HOST_HOST_SHARED_EVENT_H
#define GMM_BACKEND_HOST_HOST_SHARED_EVENT_H

#include <atomic>
#include <cstdint>

#include "base/host_allocator.h"
#include "base/peer.h"
#include "base/status.h"

namespace gmm {

// Records are numbered from 1. The maker writes: `recorded`, the last one's number; and when record n has passed, n into slot n % kSlots,
// after which it wakes whoever sleeps on `progress`. Others map the page read-only.
//
// Counted references: the event holds one, and so does each piece of work that names it.
class HostSharedEvent {
 public:
  static Status create(const HostAllocator &allocator, HostSharedEvent **out);
  // Another process's. Leaves all descriptors to the caller.
  static Status open(const HostAllocator &allocator, int32_t fd, const Peer &maker, HostSharedEvent **out);
  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release();
  bool imported() const { return imported_; }

  // --- The maker's side. begin() and publish() under the event's lock.
  // The number of the next record. BUSY: it would need the slot of a record that has not passed.
  Status begin(uint64_t *number);
  void publish(uint64_t number);
  void pass(uint64_t number);
  // A descriptor of the page to give away, read-only.
  Status export_fd(int32_t *fd) const;

  // --- The importer's side.
  uint64_t recorded() const;
  bool passed(uint64_t number) const;
  // False: the maker is gone and did not get there.
  bool wait(uint64_t number) const;

  // Not for others.
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

  const HostAllocator allocator_;
  const bool imported_;
  std::atomic<uint32_t> references_{1};
  std::atomic<uint64_t> passed_[kSlots] = {};  // the maker's own copy: what is in the page is shown, never trusted
  uint64_t recorded_ = 0;                      // likewise
  Page *page_ = nullptr;
  int32_t fd_ = -1;
  Peer maker_;
};

}  // namespace gmm
#endif
