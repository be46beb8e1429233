// SPDX-License-Identifier: Apache-2.0
// What base/lock.h wants of whoever links it. This library queues no messages for a log.
#include "base/lock.h"

namespace gmm {

void deliver_messages() {}

}  // namespace gmm
