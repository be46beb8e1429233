// SPDX-License-Identifier: Apache-2.0
// The hooks: functions that replace CUDA's. Each lets gmm do the work, or calls the real function with the same
// arguments.
#ifndef GMM_PRELOAD_HOOKS_H
#define GMM_PRELOAD_HOOKS_H

#include "backend/cuda/driver_api.h"
#include "preload/entries.h"

#define GMM_PRELOAD_EXPORT __attribute__((visibility("default")))

extern "C" {

#define X(symbol, type, ...) GMM_PRELOAD_EXPORT type symbol;
GMM_PRELOAD_DRIVER(X)
#undef X
#define X(symbol, parameters) GMM_PRELOAD_EXPORT CUresult symbol parameters;
GMM_PRELOAD_RUNTIME(X)
#undef X
}

#endif
