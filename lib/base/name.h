// SPDX-License-Identifier: Apache-2.0
// The check of a name that the program gives.
#ifndef GMM_BASE_NAME_H
#define GMM_BASE_NAME_H

#include <cstdint>

#include "base/status.h"

namespace gmm {

// INVALID_VALUE unless the name has 1 to size - 1 bytes and is UTF-8: snapshots, traces and messages show it as text.
// `whose` begins the message, for example "A tag's name".
Status check_name(const char *whose, const char *name, uint64_t size);

}  // namespace gmm
#endif
