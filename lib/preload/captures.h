// SPDX-License-Identifier: Apache-2.0
// Which streams are being captured into graphs: meanwhile no thread may wait for a device.
#ifndef GMM_PRELOAD_CAPTURES_H
#define GMM_PRELOAD_CAPTURES_H

#include "preload/cuda_types.h"

namespace gmm::preload {

bool any_capture();
void capture_begun(Stream stream);
// It ended, or the stream is destroyed, and its capture with it.
void capture_gone(Stream stream);

}  // namespace gmm::preload
#endif
