// SPDX-License-Identifier: Apache-2.0
// The streams that are captured into graphs. While there are some, no thread may wait for a device.
#ifndef GMM_PRELOAD_CAPTURES_H
#define GMM_PRELOAD_CAPTURES_H

#include "backend/gpu/driver_api.h"

namespace gmm::preload {

bool any_capture();
void capture_begun(CUstream stream);
// The capture has ended, or its stream is destroyed.
void capture_gone(CUstream stream);

}  // namespace gmm::preload
#endif
