// SPDX-License-Identifier: Apache-2.0
// The hooks of the driver's functions. A statically linked runtime uses them too, because it looks them up in the
// driver (dlsym.cpp).
#include "preload/context.h"
#include "preload/hooks.h"
#include "preload/memory.h"
#include "preload/real.h"

using namespace gmm::preload;

namespace {

// The failure to report inside the runtime's own function: see runtime_hooks.cpp.
bool injected(Code *out) {
  *out = t_thread.inject;
  return __builtin_expect(*out != kSuccess, 0);
}

template <class Pointer>
Outcome take(Route route, Stream stream, uint64_t size, Pointer *out) {
  Label *label = wanted(route);
  if (__builtin_expect(label == nullptr, 1) || out == nullptr || size == 0) return kReal;
  int device = 0;
  const Code code = route == Route::kAsync ? stream_device(stream, &device) : current_device(&device);
  if (code != kSuccess) return kReal;  // for example, no context is current; the real function's answer is right
  if (context(false) == nullptr || !context_is_cuda()) return kReal;
  void *memory = nullptr;
  const Outcome outcome = allocate(label, route, device, size, stream, &memory);
  if (outcome.done && outcome.code == kSuccess) *out = (Pointer)memory;
  return outcome;
}

}  // namespace

Code cuMemAlloc_v2(DevicePointer *out, size_t size) {
  Code code;
  if (injected(&code)) return code;
  const Outcome outcome = take(Route::kDevice, nullptr, size, out);
  return outcome.done ? outcome.code : GMM_PRELOAD_REAL(cuMemAlloc_v2)(out, size);
}

Code cuMemFree_v2(DevicePointer memory) {
  Code code;
  if (injected(&code)) return code;
  const Outcome outcome = free_idle(reinterpret_cast<void *>(memory), Free::kDevice);
  return outcome.done ? outcome.code : GMM_PRELOAD_REAL(cuMemFree_v2)(memory);
}

Code cuMemAllocManaged(DevicePointer *out, size_t size, unsigned int flags) {
  Code code;
  if (injected(&code)) return code;
  const Outcome outcome = flags == kAttachGlobal ? take(Route::kManaged, nullptr, size, out) : kReal;
  return outcome.done ? outcome.code : GMM_PRELOAD_REAL(cuMemAllocManaged)(out, size, flags);
}

Code cuMemAllocAsync(DevicePointer *out, size_t size, Stream stream) {
  Code code;
  if (injected(&code)) return code;
  const Outcome outcome = take(Route::kAsync, stream, size, out);
  return outcome.done ? outcome.code : GMM_PRELOAD_REAL(cuMemAllocAsync)(out, size, stream);
}

Code cuMemAllocAsync_ptsz(DevicePointer *out, size_t size, Stream stream) {
  Code code;
  if (injected(&code)) return code;
  const Outcome outcome = take(Route::kAsync, of_thread(stream), size, out);
  return outcome.done ? outcome.code : GMM_PRELOAD_REAL(cuMemAllocAsync_ptsz)(out, size, stream);
}

Code cuMemFreeAsync(DevicePointer memory, Stream stream) {
  Code code;
  if (injected(&code)) return code;
  const Outcome outcome = free_ordered(reinterpret_cast<void *>(memory), stream);
  return outcome.done ? outcome.code : GMM_PRELOAD_REAL(cuMemFreeAsync)(memory, stream);
}

Code cuMemFreeAsync_ptsz(DevicePointer memory, Stream stream) {
  Code code;
  if (injected(&code)) return code;
  const Outcome outcome = free_ordered(reinterpret_cast<void *>(memory), of_thread(stream));
  return outcome.done ? outcome.code : GMM_PRELOAD_REAL(cuMemFreeAsync_ptsz)(memory, stream);
}

Code cuMemAllocHost_v2(void **out, size_t size) {
  Code code;
  if (injected(&code)) return code;
  const Outcome outcome = take(Route::kHost, nullptr, size, out);
  return outcome.done ? outcome.code : GMM_PRELOAD_REAL(cuMemAllocHost_v2)(out, size);
}

Code cuMemHostAlloc(void **out, size_t size, unsigned int flags) {
  Code code;
  if (injected(&code)) return code;
  const Outcome outcome = (flags & kHostWriteCombined) == 0 ? take(Route::kHost, nullptr, size, out) : kReal;
  return outcome.done ? outcome.code : GMM_PRELOAD_REAL(cuMemHostAlloc)(out, size, flags);
}

Code cuMemFreeHost(void *memory) {
  Code code;
  if (injected(&code)) return code;
  const Outcome outcome = free_idle(memory, Free::kHost);
  return outcome.done ? outcome.code : GMM_PRELOAD_REAL(cuMemFreeHost)(memory);
}

Code cuStreamDestroy_v2(Stream stream) {
  forget_stream(stream);
  return GMM_PRELOAD_REAL(cuStreamDestroy_v2)(stream);
}

// --- The look-up of functions -------------------------------------------------------------------------------------

namespace {

void replace(const char *name, int version, bool per_thread, void **out) {
  if (!config().hooks || out == nullptr || *out == nullptr || is_hook(*out)) return;
  const Entry entry = find_name(name, version, per_thread);
  if (entry == Entry::kCount) return;
  remember_real(entry, *out);
  *out = entry_info(entry).hook;
}

// These functions return the plain answer, so remember_real() gets the real function of each entry.
bool per_thread_of(uint64_t flags, bool otherwise) {
  if ((flags & kPerThreadStreams) != 0) return true;
  return (flags & kLegacyStreams) == 0 && otherwise;
}

constexpr int kNewest = 1 << 30;

}  // namespace

Code cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) {
  const Code code = GMM_PRELOAD_REAL(cuGetProcAddress)(name, out, version, flags);
  if (code == kSuccess) replace(name, version, per_thread_of(flags, false), out);
  return code;
}

Code cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) {
  const Code code = GMM_PRELOAD_REAL(cuGetProcAddress_v2)(name, out, version, flags, status);
  if (code == kSuccess) replace(name, version, per_thread_of(flags, false), out);
  return code;
}

Code cuGetProcAddress_ptsz(const char *name, void **out, int version, uint64_t flags) {
  const Code code = GMM_PRELOAD_REAL(cuGetProcAddress_ptsz)(name, out, version, flags);
  if (code == kSuccess) replace(name, version, per_thread_of(flags, true), out);
  return code;
}

Code cuGetProcAddress_v2_ptsz(const char *name, void **out, int version, uint64_t flags, int *status) {
  const Code code = GMM_PRELOAD_REAL(cuGetProcAddress_v2_ptsz)(name, out, version, flags, status);
  if (code == kSuccess) replace(name, version, per_thread_of(flags, true), out);
  return code;
}

// The form with three parameters, before CUDA 12, gets an argument too many, which the calling conventions allow.
Code cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags, int *status) {
  const Code code = GMM_PRELOAD_REAL(cudaGetDriverEntryPoint)(name, out, flags, status);
  if (code == kSuccess) replace(name, kNewest, per_thread_of(flags, false), out);
  return code;
}

Code cudaGetDriverEntryPoint_ptsz(const char *name, void **out, unsigned long long flags, int *status) {
  const Code code = GMM_PRELOAD_REAL(cudaGetDriverEntryPoint_ptsz)(name, out, flags, status);
  if (code == kSuccess) replace(name, kNewest, per_thread_of(flags, true), out);
  return code;
}

Code cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned int version, unsigned long long flags,
                                      int *status) {
  const Code code = GMM_PRELOAD_REAL(cudaGetDriverEntryPointByVersion)(name, out, version, flags, status);
  if (code == kSuccess) replace(name, static_cast<int>(version), per_thread_of(flags, false), out);
  return code;
}

Code cudaGetDriverEntryPointByVersion_ptsz(const char *name, void **out, unsigned int version, unsigned long long flags,
                                           int *status) {
  const Code code = GMM_PRELOAD_REAL(cudaGetDriverEntryPointByVersion_ptsz)(name, out, version, flags, status);
  if (code == kSuccess) replace(name, static_cast<int>(version), per_thread_of(flags, true), out);
  return code;
}
