// SPDX-License-Identifier: Apache-2.0
// The real functions behind the hooks, and what the library itself asks of the driver.
#ifndef GMM_PRELOAD_REAL_H
#define GMM_PRELOAD_REAL_H

#include <atomic>

#include "preload/cuda_types.h"
#include "preload/entries.h"

namespace gmm::preload {

inline constinit std::atomic<void *> g_real[kEntryCount] = {};

// Looks the function up behind this library, then in the CUDA library that is loaded; the driver's also in libcuda.so.1. NULL when
// there is none.
void *find_real(Entry entry);
// The same among what is loaded already.
void *find_loaded_real(Entry entry);
// The one that the program was given: the first that is known stays.
void remember_real(Entry entry, void *address);

// For a call: a function that answers kNotFound when there is none.
void *find_callable(Entry entry);

template <class Function>
Function *real(Entry entry) {
  void *known = g_real[static_cast<uint32_t>(entry)].load(std::memory_order_acquire);
  if (__builtin_expect(known == nullptr, 0)) known = find_callable(entry);
  return reinterpret_cast<Function *>(known);
}
// The real function of the same name and type as the hook.
#define GMM_PRELOAD_REAL(symbol) (::gmm::preload::real<decltype(::symbol)>(::gmm::preload::Entry::k_##symbol))

struct Context;  // CUctx_st
struct Driver {
  Code (*cuCtxGetCurrent)(Context **);
  Code (*cuCtxPushCurrent)(Context *);
  Code (*cuCtxPopCurrent)(Context **);
  Code (*cuCtxGetDevice)(int *);
  Code (*cuCtxSynchronize)();
  Code (*cuDeviceGet)(int *, int);
  Code (*cuDeviceCanAccessPeer)(int *, int, int);
  Code (*cuDevicePrimaryCtxRetain)(Context **, int);
  Code (*cuDevicePrimaryCtxRelease)(int);
  Code (*cuMemGetInfo)(size_t *, size_t *);
  Code (*cuStreamGetCtx)(Stream, Context **);
  Code (*cuStreamSynchronize)(Stream);
  Code (*cuThreadExchangeStreamCaptureMode)(int *);
};
// NULL when there is no driver, or one that lacks something of it.
const Driver *driver();

// The runtime's question for the current device; NULL without a shared runtime.
using GetDeviceFn = Code(int *);
GetDeviceFn *runtime_get_device();

}  // namespace gmm::preload
#endif
