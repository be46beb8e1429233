// SPDX-License-Identifier: Apache-2.0
// What a device has for a context.
#ifndef GMM_ENGINE_LIMITS_DEVICE_BUDGET_H
#define GMM_ENGINE_LIMITS_DEVICE_BUDGET_H

#include <gmm/context.h>

#include "backend/backend.h"
#include "engine/limits/quota.h"

namespace gmm {

// Fills what the driver tells of a device, what the context holds of it, and its budget. `held`: the context's usage on
// all devices, `held_on`: on this one.
Status describe_device(Backend &backend, const Quota &held, const Quota &held_on, Device device, gmm_device_info *out);

}  // namespace gmm
#endif
