// SPDX-License-Identifier: Apache-2.0
// Which free extents may go back to the driver.
#ifndef GMM_ENGINE_HEAP_RELEASE_RULE_H
#define GMM_ENGINE_HEAP_RELEASE_RULE_H

#include <cstdint>

#include "engine/space/span.h"

namespace gmm {

struct ReleaseRule {
  uint64_t at_most = UINT64_MAX;  // bytes in all, never more
  // Only what is idle: Reclaim's newest look, the time and the age. 0: all that is free.
  uint64_t look = 0, now = 0, age = 0;
  bool bounds_dedicated = false;  // dedicated blocks count, too; else they go in any case
  bool allows(const Extent &extent, uint64_t released) const {
    if (size_of(extent) > at_most || released > at_most - size_of(extent)) return false;
    return look == 0 ||
           (extent.idle.look == look && extent.idle.extent_id == extent.id && now - extent.idle.free_since >= age);
  }
};

}  // namespace gmm
#endif
