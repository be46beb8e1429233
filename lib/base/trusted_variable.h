// SPDX-License-Identifier: Apache-2.0
#ifndef GMM_BASE_TRUSTED_VARIABLE_H
#define GMM_BASE_TRUSTED_VARIABLE_H

namespace gmm {

// A variable of the environment. NULL when it is not set, and in a set-user-id program: its caller must not choose its
// libraries and folders.
const char *trusted_variable(const char *name);

}  // namespace gmm
#endif
