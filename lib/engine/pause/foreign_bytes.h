// SPDX-License-Identifier: Apache-2.0
// The bytes that a pause gives up without returning them to the device, since others hold the pages: an exported
// descriptor, an importer, a library that registered the memory.
//
// A backend that knows who holds a handle is asked (the host backend). Elsewhere the device's free memory is compared:
// it must grow by what the context gave up. Other threads of the context may take memory at the same time, so its whole
// usage of the device counts. Other processes may, too, which nobody can tell. So a pause believes the comparison only
// for memory that others may hold as far as gmm knows: believed().
#ifndef GMM_ENGINE_PAUSE_FOREIGN_BYTES_H
#define GMM_ENGINE_PAUSE_FOREIGN_BYTES_H

#include "engine/heap/heap.h"

namespace gmm {

// With the lock of the heap, around the release of its handles.
class ForeignBytes {
 public:
  ForeignBytes(Backend &backend, Heap &heap) : backend_(backend), heap_(heap) {}

  // Before the release of an extent's handle.
  void before(const Extent &extent) {
    if (!has_begun_) begin();
    has_begun_ = true;
    is_held_ = backend_.is_held_elsewhere(extent.handle);
    may_be_held_ = is_held_ || extent.is_out.load(std::memory_order_relaxed) || other_importers(extent) != 0 ||
                   extent.region.load(std::memory_order_relaxed)->comm;
  }
  // After it.
  void released(const Extent &extent) {
    if (is_held_) known_ += size_of(extent);
    if (may_be_held_) candidates_ += size_of(extent);
    const bool is_here = extent.location.load(std::memory_order_relaxed) == heap_.options().device;
    (is_here ? on_device_ : elsewhere_) += size_of(extent);
  }
  // The quotas are refunded.
  uint64_t end() {
    foreign_ = measure();
    return foreign_;
  }
  // Of them, those that the pause does not count as returned.
  uint64_t believed() const { return foreign_ < candidates_ ? foreign_ : candidates_; }

 private:
  uint64_t measure() {
    uint64_t now = 0;
    MessageGuard message_guard;
    if (!measures_ || !backend_.free_memory(heap_.options().device, &now).ok()) return known_;
    // Signed: other threads and processes may have taken more than went.
    const int64_t went = static_cast<int64_t>(held_ - held() - elsewhere_);
    const int64_t missing = went - static_cast<int64_t>(now - free_);
    // Extents are of whole granules. A driver keeps or gives a little of its own.
    if (missing < static_cast<int64_t>(kExtentAlignment / 2)) return 0;
    const uint64_t bytes = (static_cast<uint64_t>(missing) + kExtentAlignment / 2) & ~(kExtentAlignment - 1);
    return bytes < on_device_ ? bytes : on_device_;
  }
  uint64_t held() const {
    const Quota *device = heap_.quotas().each[Quotas::kDevice];
    return device == nullptr ? 0 : device->held();
  }
  void begin() {
    MessageGuard message_guard;
    measures_ = backend_.free_memory(heap_.options().device, &free_).ok();
    held_ = held();
  }

  Backend &backend_;
  Heap &heap_;
  bool has_begun_ = false, measures_ = false, is_held_ = false, may_be_held_ = false;
  uint64_t free_ = 0, held_ = 0;            // of the device, before
  uint64_t foreign_ = 0, candidates_ = 0;   // of what was released
  uint64_t known_ = 0;                      // the backend knows that others hold it
  uint64_t on_device_ = 0, elsewhere_ = 0;  // released; gmm_move() puts pages elsewhere
};

}  // namespace gmm
#endif
