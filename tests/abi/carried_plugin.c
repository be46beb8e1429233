// SPDX-License-Identifier: Apache-2.0
// A plug-in with gmm inside (carried.c).
#include "carried.h"

__attribute__((visibility("default"))) extern const struct carried carried_api;
const struct carried carried_api = {
#define X(name) .name = name,
    CARRIED_FUNCTIONS(X)
#undef X
};
