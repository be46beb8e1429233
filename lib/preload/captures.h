// SPDX-License-Identifier: Apache-2.0
// The streams that are captured into graphs. While there are some, no thread may wait for a device.
#ifndef GMM_PRELOAD_CAPTURES_H
#define GMM_PRELOAD_CAPTURES_H

#include "preload/cuda_types.h"

namespace gmm::preload {

bool any_capture();
void capture_begun(Stream stream);
// The capture has ended, or its stream is destroyed.
void capture_gone(Stream stream);

}  // namespace gmm::preload
#endif
