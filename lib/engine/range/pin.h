// SPDX-License-Identifier: Apache-2.0
// Page-locked ranges of the caller's own memory.
//
// The driver registers whole pages, and refuses pages that are registered already. So pins keep segments of pages with a count of the pins that
// touch them: two pins that share a page but no byte both work, and the page stays until both are gone.
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
  // The outermost pin around an address; value is the device address minus the host address. No lock.
  bool find(const void *address, Range *out) const { return table_.find(reinterpret_cast<uint64_t>(address), out); }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  // Unregisters everything, at the context's end.
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
  Mutex mutex_;
  Vector<Pin> pins_;          // sorted by base, then by size, larger first
  Vector<Segment> segments_;  // sorted by base, disjoint
  RangeTable table_;
  Vector<Range> ranges_;
  std::atomic<uint64_t> bytes_{0};
};

}  // namespace gmm
#endif
