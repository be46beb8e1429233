// SPDX-License-Identifier: Apache-2.0
// What an address is.
#ifndef GMM_ENGINE_CONTEXT_QUERY_H
#define GMM_ENGINE_CONTEXT_QUERY_H

#include <gmm/memory.h>

#include "engine/context/context.h"

namespace gmm {

// Fills everything but struct_size.
void query(Context &context, const void *address, gmm_pointer_info *out);

}  // namespace gmm
#endif
