// SPDX-License-Identifier: Apache-2.0
// Which free extents are idle.
#ifndef GMM_ENGINE_HEAP_IDLE_RULE_H
#define GMM_ENGINE_HEAP_IDLE_RULE_H

#include <cstdint>

#include "engine/space/span.h"

namespace gmm {

struct IdleRule {
  uint64_t now, age;
  uint64_t at_most;  // bytes in all
  uint64_t look;     // Reclaim's newest look
  bool allows(const Extent &extent, uint64_t released) const {
    return extent.idle.look == look && extent.idle.extent_id == extent.id && now - extent.idle.free_since >= age &&
           released + size_of(extent) <= at_most;
  }
};

}  // namespace gmm
#endif
