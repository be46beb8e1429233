// SPDX-License-Identifier: Apache-2.0
// Which free extents are idle.
#ifndef GMM_ENGINE_HEAP_IDLE_RULE_H
#define GMM_ENGINE_HEAP_IDLE_RULE_H

#include "engine/heap/heap.h"

namespace gmm {

struct Heap::IdleRule {
  uint64_t now, age;
  uint64_t at_most;  // bytes in all
  uint64_t look;
  bool allows(const Extent &extent, uint64_t released) const {
    return extent.idle.look == look && extent.idle.extent_id == extent.id && now - extent.idle.free_since >= age &&
           released + extent.size.load(std::memory_order_relaxed) <= at_most;
  }
};

}  // namespace gmm
#endif
