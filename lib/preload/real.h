// SPDX-License-Identifier: Apache-2.0
// The real functions behind the hooks, and the driver functions that the library itself uses.
#ifndef GMM_PRELOAD_REAL_H
#define GMM_PRELOAD_REAL_H

#include <atomic>

#include "backend/gpu/driver_api.h"
#include "preload/entries.h"

namespace gmm::preload {

inline constinit std::atomic<void *> g_real[kEntryCount] = {};

// Finds the function behind this library, then in the loaded CUDA library. NULL: there is none.
void *find_loaded_real(Entry entry);
// Records the function that the program was given. The first one stays.
void remember_real(Entry entry, void *address);

// For a call: also opens the driver's library, and returns a function that answers NOT_FOUND if there is none.
void *find_callable(Entry entry);

template <class Function>
Function *real(Entry entry) {
  void *known = g_real[static_cast<uint32_t>(entry)].load(std::memory_order_acquire);
  if (__builtin_expect(known == nullptr, 0)) known = find_callable(entry);
  return reinterpret_cast<Function *>(known);
}
// The real function with the name and type of the hook.
#define GMM_PRELOAD_REAL(symbol) (::gmm::preload::real<decltype(::symbol)>(::gmm::preload::Entry::k_##symbol))

// The functions of the driver without which gmm has no CUDA backend, by their symbols.
#define GMM_PRELOAD_NONE(name, suffix, ...)
#define GMM_PRELOAD_DRIVER_CALLS(X) GMM_CUDA_ENTRIES(X, GMM_PRELOAD_NONE, GMM_PRELOAD_NONE)
struct Driver {
#define X(name, suffix, ...) name##suffix##_fn *name##suffix;
  GMM_PRELOAD_DRIVER_CALLS(X)
#undef X
};
// NULL: there is no driver, or it lacks one of these functions.
const Driver *driver();

// The runtime's function for the current device. NULL: there is no shared runtime.
using GetDeviceFn = CUresult(int *);
GetDeviceFn *runtime_get_device();

}  // namespace gmm::preload
#endif
