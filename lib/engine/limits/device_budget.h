// SPDX-License-Identifier: Apache-2.0
// The memory of a device that a context may use.
#ifndef GMM_ENGINE_LIMITS_DEVICE_BUDGET_H
#define GMM_ENGINE_LIMITS_DEVICE_BUDGET_H

#include <gmm/context.h>

#include "backend/backend.h"
#include "engine/limits/quota.h"

namespace gmm {

// Fills the driver's facts about a device, the bytes that the context holds of it, and its budget. `held`: the context's usage on
// all devices, `held_on`: on this one.
Status describe_device(Backend &backend, const Quota &held, const Quota &held_on, Device device, gmm_device_info *out);

}  // namespace gmm
#endif
