// SPDX-License-Identifier: Apache-2.0
// Page-locked ranges of the caller's own memory.
//
// The driver registers whole pages and refuses pages that are already registered. So the table keeps segments of pages,
// each with a count of the pins that touch it. Two pins may share a page but no byte: both work, and the page stays
// registered until both are gone.
//
// Locks: `mutex_` guards pins and segments, and is held during the driver's calls. find() takes no lock. Called by:
// api/pin.cpp, context/query.cpp.
#ifndef GMM_ENGINE_RANGE_PIN_H
#define GMM_ENGINE_RANGE_PIN_H

#include <gmm/pin.h>

#include "base/lock.h"
#include "base/range_table.h"
#include "base/vector.h"
#include "engine/space/core.h"

namespace gmm {

class PinTable {
 public:
  explicit PinTable(Core &core)
      : core_(core),
        pins_(core.allocator),
        segments_(core.allocator),
        table_(core.allocator),
        ranges_(core.allocator) {}

  Status pin(void *memory, uint64_t size, uint32_t flags, Device device, void **device_pointer);
  Status unpin(void *memory);
  // Finds the outermost pin around an address, without a lock. `value` is the device address minus the host address.
  bool find(const void *address, Range *out) const { return table_.find(reinterpret_cast<uint64_t>(address), out); }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  // Unregisters everything when the context ends.
  void clear();

 private:
  struct Pin {
    uint64_t base, size;
  };
  struct Segment {
    uint64_t base, size;  // whole pages
    uint64_t delta;       // device address minus host address
    uint64_t pins;
    uint32_t flags;
    Device device;
  };
  Status cover(uint64_t begin, uint64_t end, uint32_t flags, Device device);
  Status uncover(uint64_t begin, uint64_t end);
  bool cover_again(Segment &segment);
  bool publish();

  Core &core_;
  Mutex mutex_{LockRank::kPinTable};
  Vector<Pin> pins_;          // sorted by base; of equal bases the larger size first
  Vector<Segment> segments_;  // sorted by base, disjoint
  RangeTable table_;
  Vector<Range> ranges_;
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace gmm
#endif
