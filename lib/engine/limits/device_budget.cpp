// SPDX-License-Identifier: Apache-2.0
#include "engine/limits/device_budget.h"

#include <algorithm>

namespace gmm {

Status describe_device(Backend &backend, const Quota &held, const Quota &held_on, Device device, gmm_device_info *out) {
  GMM_TRY(backend.device_info(device, out));
  out->device = device.ordinal;
  out->numa_node = backend.host_numa_node(device);
  out->held_bytes = held_on.held();
  out->budget_bytes = std::min({held.limit(), held_on.limit(), out->held_bytes + out->free_memory});
  return Status();
}

}  // namespace gmm
