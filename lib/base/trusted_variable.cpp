// SPDX-License-Identifier: Apache-2.0
#include "base/trusted_variable.h"

#include <cstdlib>

namespace gmm {

const char *trusted_variable(const char *name) { return secure_getenv(name); }

}  // namespace gmm
