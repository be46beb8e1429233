// SPDX-License-Identifier: Apache-2.0
// The functions of one copy of gmm, wherever it came from.
#ifndef GMM_TESTS_CARRIED_H
#define GMM_TESTS_CARRIED_H

#include <gmm/gmm.h>

#define CARRIED_FUNCTIONS(X) \
  X(gmm_context_create)      \
  X(gmm_context_release)     \
  X(gmm_alloc)               \
  X(gmm_free)                \
  X(gmm_tag_push)            \
  X(gmm_trace_begin)         \
  X(gmm_last_error_message)

struct carried {
#define X(name) __typeof__(name) *name;
  CARRIED_FUNCTIONS(X)
#undef X
};

#endif
