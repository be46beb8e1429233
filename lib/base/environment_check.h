// SPDX-License-Identifier: Apache-2.0
// The check of the environment that each context makes once, when it is created.
#ifndef GMM_BASE_ENVIRONMENT_CHECK_H
#define GMM_BASE_ENVIRONMENT_CHECK_H

#include "base/log.h"

namespace gmm {

// The longest folder of sockets, in bytes with the end.
inline constexpr uint64_t kMaxSocketFolder = 1024;

// Logs each GMM_* name that no row of the table has, and each value that its row does not allow. The preload library
// judges its own variables.
void check_environment(const Log &log);

}  // namespace gmm
#endif
