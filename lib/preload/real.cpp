// SPDX-License-Identifier: Apache-2.0
#include "preload/real.h"

#include <dlfcn.h>

#include <cstdlib>

#include "base/environment.h"
#include "base/lock.h"
#include "preload/libc.h"

namespace gmm::preload {
namespace {

constexpr const char *kDriverLibrary = "libcuda.so.1";

// Opens a library that is already loaded, by its name, or by the beginning of its file's name if it has several
// versions.
void *loaded(const char *name, const char *stem) {
  void *library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
  char path[4096];
  if (library == nullptr && find_loaded(stem, path, sizeof path)) library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  return library;
}

const char *driver_file() {
  const char *path = environment_text(Variable::kCudaDriver);
  return path != nullptr ? path : kDriverLibrary;
}

// Answers for a function that does not exist. It has fewer parameters than any of them, which the calling conventions
// allow.
CUresult not_found() { return CUDA_ERROR_NOT_FOUND; }

constinit Driver g_driver_entries = {};
constinit std::atomic<int> g_driver_state{0};  // 1: loaded, -1: missing
constinit Mutex g_driver_mutex{LockRank::kPreloadDriver};
constinit std::atomic<GetDeviceFn *> g_get_device{nullptr};

bool open_driver() {
  void *library = dlopen(driver_file(), RTLD_NOW | RTLD_LOCAL);  // it stays open, as gmm's does
  if (library == nullptr) return false;
  bool complete = true;
#define X(name, suffix, ...)                                                                                     \
  g_driver_entries.name##suffix = reinterpret_cast<name##suffix##_fn *>(system_dlsym()(library, #name #suffix)); \
  complete = complete && g_driver_entries.name##suffix != nullptr;
  GMM_PRELOAD_DRIVER_CALLS(X)
#undef X
  return complete;
}

// The program's function without this library, else that of the loaded CUDA library. NULL: there is none.
void *find_loaded_symbol(const char *symbol, bool of_runtime) {
  void *address = system_dlsym()(RTLD_NEXT, symbol);
  if (address != nullptr) return address;
  void *library = of_runtime ? loaded("libcudart.so", "libcudart.so") : loaded(driver_file(), "libcuda.so");
  return library != nullptr ? system_dlsym()(library, symbol) : nullptr;
}

}  // namespace

void *find_loaded_real(Entry entry) {
  auto &slot = g_real[static_cast<uint32_t>(entry)];
  if (void *known = slot.load(std::memory_order_acquire); known != nullptr) return known;
  void *address = find_loaded_symbol(entry_info(entry).symbol, is_runtime(entry));
  if (address != nullptr && !is_hook(address)) remember_real(entry, address);
  return slot.load(std::memory_order_acquire);
}

void remember_real(Entry entry, void *address) {
  void *none = nullptr;
  g_real[static_cast<uint32_t>(entry)].compare_exchange_strong(none, address, std::memory_order_acq_rel);
}

void *find_callable(Entry entry) {
  if (void *found = find_loaded_real(entry); found != nullptr) return found;
  void *library = is_runtime(entry) ? nullptr : dlopen(driver_file(), RTLD_NOW | RTLD_LOCAL);
  void *address = library != nullptr ? system_dlsym()(library, entry_info(entry).symbol) : nullptr;
  if (address != nullptr) remember_real(entry, address);
  void *known = g_real[static_cast<uint32_t>(entry)].load(std::memory_order_acquire);
  return known != nullptr ? known : reinterpret_cast<void *>(not_found);
}

const Driver *driver() {
  int state = g_driver_state.load(std::memory_order_acquire);
  if (__builtin_expect(state == 0, 0)) {
    LockGuard guard(g_driver_mutex);
    state = g_driver_state.load(std::memory_order_relaxed);
    if (state == 0) {
      state = open_driver() ? 1 : -1;
      g_driver_state.store(state, std::memory_order_release);
    }
  }
  return state > 0 ? &g_driver_entries : nullptr;
}

GetDeviceFn *runtime_get_device() {
  GetDeviceFn *known = g_get_device.load(std::memory_order_relaxed);
  if (known != nullptr) return known;
  known = reinterpret_cast<GetDeviceFn *>(find_loaded_symbol("cudaGetDevice", true));
  g_get_device.store(known, std::memory_order_relaxed);
  return known;
}

}  // namespace gmm::preload
