// SPDX-License-Identifier: Apache-2.0
#include "preload/memory.h"

#include <sys/mman.h>

#include <cstdlib>

#include "preload/captures.h"
#include "preload/context.h"
#include "preload/real.h"

namespace gmm::preload {
namespace {

// --- How a block was allocated -----------------------------------------------------------------------------------
// A byte for each 2 MiB of addresses, which always belong to one heap: whether that heap is ordered by streams. The
// table takes 64 MiB of addresses, and memory only for pages that were touched.
constexpr uint32_t kPageShift = 21;
constexpr uint32_t kAddressBits = 47;
constinit std::atomic<std::atomic<uint8_t> *> g_pages{nullptr};
constinit std::atomic<bool> g_ordered_used{false};

std::atomic<uint8_t> *pages() {
  std::atomic<uint8_t> *known = g_pages.load(std::memory_order_acquire);
  if (known != nullptr) return known;
  constexpr uint64_t kSize = uint64_t{1} << (kAddressBits - kPageShift);
  void *memory = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  auto *made = static_cast<std::atomic<uint8_t> *>(memory);
  if (g_pages.compare_exchange_strong(known, made, std::memory_order_acq_rel)) return made;
  munmap(memory, kSize);  // another thread was first
  return known;
}

void mark(const void *memory, bool ordered) {
  const uintptr_t page = reinterpret_cast<uintptr_t>(memory) >> kPageShift;
  if (page >> (kAddressBits - kPageShift) != 0) return;
  std::atomic<uint8_t> *table = ordered || g_ordered_used.load(std::memory_order_relaxed) ? pages() : nullptr;
  if (table == nullptr) return;
  if (table[page].load(std::memory_order_relaxed) != ordered) table[page].store(ordered, std::memory_order_relaxed);
}

// Unknown memory counts as not ordered, so its free waits.
bool is_ordered(const void *memory) {
  const uintptr_t page = reinterpret_cast<uintptr_t>(memory) >> kPageShift;
  std::atomic<uint8_t> *table = g_pages.load(std::memory_order_acquire);
  return table != nullptr && page >> (kAddressBits - kPageShift) == 0 &&
         table[page].load(std::memory_order_relaxed) != 0;
}

// --- Waiting for a device --------------------------------------------------------------------------------------
// While a stream is captured, other threads may free, and a thread in the relaxed mode too. A wait for the device would
// spoil the capture. Such memory is freed when a wait is allowed again.
struct Postponed {
  void *memory;
  Postponed *next;
};
constinit std::atomic<Postponed *> g_postponed{nullptr};

void postpone(Postponed *last, Postponed *first) {
  last->next = g_postponed.load(std::memory_order_relaxed);
  while (!g_postponed.compare_exchange_weak(last->next, first, std::memory_order_acq_rel)) {
  }
}

bool may_wait(const Driver &entries) {
  if (any_capture()) return false;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (entries.cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS) return true;
  if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  entries.cuThreadExchangeStreamCaptureMode(&mode);
  return true;
}

CUresult wait_for(const Driver &entries, int device) {
  CUcontext now = nullptr;
  int current = -1, handle = 0;
  if (CUresult code = entries.cuDeviceGet(&handle, device); code != CUDA_SUCCESS) return code;
  if (CUresult code = entries.cuCtxGetCurrent(&now); code != CUDA_SUCCESS) return code;
  if (now != nullptr && entries.cuCtxGetDevice(&current) == CUDA_SUCCESS && current == handle)
    return entries.cuCtxSynchronize();
  CUcontext primary = nullptr;
  if (CUresult code = entries.cuDevicePrimaryCtxRetain(&primary, handle); code != CUDA_SUCCESS) return code;
  CUresult code = entries.cuCtxPushCurrent_v2(primary);
  if (code == CUDA_SUCCESS) {
    code = entries.cuCtxSynchronize();
    CUcontext popped = nullptr;
    const CUresult back = entries.cuCtxPopCurrent_v2(&popped);
    if (code == CUDA_SUCCESS) code = back;
  }
  entries.cuDevicePrimaryCtxRelease_v2(handle);
  return code;
}

CUresult free_now(gmm_context *owner, void *memory, CUstream stream) {
  const gmm_result result = gmm_free(owner, memory, reinterpret_cast<gmm_stream>(stream));
  if (result >= 0) return CUDA_SUCCESS;
  say_gmm(result, "free");
  return code_of(result);
}

gmm_pointer_info ask(gmm_context *owner, const void *memory) {
  gmm_pointer_info info = {};
  info.struct_size = sizeof info;
  if (gmm_query(owner, memory, &info) < 0)
    info.state = GMM_STATE_UNKNOWN;  // in a child after fork() the real function reports it
  return info;
}

void free_postponed(gmm_context *owner, const Driver &entries) {
  if (g_postponed.load(std::memory_order_relaxed) == nullptr || !may_wait(entries)) return;
  Postponed *list = g_postponed.exchange(nullptr, std::memory_order_acq_rel);
  while (list != nullptr) {
    Postponed *next = list->next;
    const gmm_pointer_info info = ask(owner, list->memory);
    const CUresult waited = wait_for(entries, info.device);
    const CUresult freed = waited == CUDA_SUCCESS ? free_now(owner, list->memory, nullptr) : waited;
    if (freed == CUDA_SUCCESS ||
        freed == CUDA_ERROR_INVALID_VALUE) {  // freed twice by the program: the first free counts
      std::free(list);
    } else {
      postpone(list, list);
    }
    list = next;
  }
}

// Calls fn(context, driver or NULL, device) for memory of gmm. The address must be its start, and its kind one that the
// function frees.
template <class Fn>
Outcome free_checked(const void *memory, Free kind, Fn fn) {
  gmm_context *owner = g_context.load(std::memory_order_acquire);
  if (owner == nullptr || memory == nullptr || t_thread.depth != 0) return kReal;
  Inside inside;
  const gmm_pointer_info info = ask(owner, memory);
  if (info.state != GMM_STATE_ACTIVE && info.state != GMM_STATE_PAUSED && info.state != GMM_STATE_PARTLY_PAUSED &&
      info.state != GMM_STATE_FREE)
    return kReal;
  const bool host = info.kind == GMM_KIND_HOST;
  if (info.state != GMM_STATE_FREE && info.base == memory && host == (kind == Free::kHost))
    return {true, fn(owner, context_is_cuda() ? driver() : nullptr, info.device)};
  say("%p cannot be freed by this function: %s.", memory,
      info.state == GMM_STATE_FREE ? "its block was freed"
      : info.base != memory        ? "the address lies inside a block"
                                   : "it is memory of another kind");
  return {true, CUDA_ERROR_INVALID_VALUE};
}

Outcome fail(gmm_result result, const char *what) {
  // A child after fork() can use neither gmm nor CUDA, and CUDA reports that itself.
  if (result == GMM_ERROR_FORKED) return kReal;
  say_gmm(result, what);
  return {true, code_of(result)};
}

bool has_margin(uint64_t size) {
  const uint64_t margin = g_margin.load(std::memory_order_relaxed);
  const Driver *entries = margin != 0 ? driver() : nullptr;
  size_t left = 0, total = 0;
  if (entries == nullptr || entries->cuMemGetInfo_v2(&left, &total) != CUDA_SUCCESS) return true;
  if (left >= size && left - size >= margin) return true;
  say("%llu bytes would leave less than the margin of %llu bytes on the device, which has %llu free.",
      static_cast<unsigned long long>(size), static_cast<unsigned long long>(margin),
      static_cast<unsigned long long>(left));
  return false;
}

// The label of an allocation through these calls. NULL: the real function does it. Every hook asks this first.
Label *wanted(Route route) {
  const Config &asked = config();
  const bool regions = asked.region.interesting || g_regions.load(std::memory_order_relaxed);
  if (__builtin_expect(asked.routes == 0 && !regions, 1)) return nullptr;
  if (t_thread.depth != 0) return nullptr;
  const bool in_program = (asked.routes & static_cast<uint32_t>(route)) != 0;
  if (regions && (in_program || route == Route::kDevice || route == Route::kAsync))
    if (Label *label = current_region(); label != nullptr) return label;
  return in_program ? label_of(asked.tag, asked.contents) : nullptr;
}

}  // namespace

Outcome take(Route route, CUstream stream, uint64_t size, void **out, CUresult (*device_of)(int *)) {
  Label *label = wanted(route);
  if (__builtin_expect(label == nullptr, 1) || out == nullptr || size == 0) return kReal;
  // For example, no context is current. The real function fails again, with the answer that is right.
  int device = 0;
  if (device_of(&device) != CUDA_SUCCESS) return kReal;
  if (route == Route::kAsync && stream_device(stream, &device) != CUDA_SUCCESS) return kReal;
  if (context(false) == nullptr || !context_is_cuda()) return kReal;
  return allocate(label, route, device, size, stream, out);
}

Outcome allocate(Label *label, Route route, int device, uint64_t size, CUstream stream, void **out) {
  gmm_context *owner = context(false);
  if (owner == nullptr) return kReal;
  Inside inside;
  if (const Driver *entries = driver(); entries != nullptr && context_is_cuda()) free_postponed(owner, *entries);
  const bool on_device = route == Route::kDevice || route == Route::kAsync;
  gmm_kind kind = GMM_KIND_VMM;
  if (route == Route::kHost) kind = GMM_KIND_HOST;
  if (route == Route::kManaged) kind = GMM_KIND_MANAGED;
  const bool ordered = route == Route::kAsync;
  if (ordered) g_ordered_used.store(true, std::memory_order_relaxed);
  if (on_device && !has_margin(size)) return {true, CUDA_ERROR_OUT_OF_MEMORY};
  gmm_heap *heap = nullptr;
  if (gmm_result result = heap_of(label, device, kind, ordered, &heap); result < 0) return fail(result, "allocation");
  void *memory = nullptr;
  if (gmm_result result =
          gmm_heap_alloc(heap, size, 0, 0, reinterpret_cast<gmm_stream>(ordered ? stream : nullptr), &memory);
      result < 0)
    return fail(result, "allocation");
  mark(memory, ordered);
  *out = memory;
  return {true, CUDA_SUCCESS};
}

Outcome free_idle(void *memory, Free kind) {
  return free_checked(memory, kind, [&](gmm_context *owner, const Driver *entries, int device) {
    if (entries == nullptr || is_ordered(memory)) return free_now(owner, memory, nullptr);
    if (!may_wait(*entries)) {
      auto *entry = static_cast<Postponed *>(std::malloc(sizeof(Postponed)));
      if (entry == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
      entry->memory = memory;
      postpone(entry, entry);
      return CUDA_SUCCESS;
    }
    if (CUresult code = wait_for(*entries, device); code != CUDA_SUCCESS) {
      say("The free of %p could not wait for the device: the driver answered %d.", memory, code);
      return code;
    }
    free_postponed(owner, *entries);
    return free_now(owner, memory, nullptr);
  });
}

Outcome free_ordered(void *memory, CUstream stream) {
  return free_checked(memory, Free::kDevice, [&](gmm_context *owner, const Driver *entries, int) {
    if (is_ordered(memory)) return free_now(owner, memory, stream);
    // Only memory that no stream uses may return to its heap.
    const CUresult waited = entries != nullptr ? entries->cuStreamSynchronize(stream) : CUDA_SUCCESS;
    return waited == CUDA_SUCCESS ? free_now(owner, memory, nullptr) : waited;
  });
}

void forget_stream(CUstream stream) {
  capture_gone(stream);
  if (!g_ordered_used.load(std::memory_order_relaxed) || t_thread.depth != 0) return;
  Inside inside;
  // A wait for a lost or captured stream is impossible. The real function reports it.
  const gmm_result result =
      gmm_stream_forget(g_context.load(std::memory_order_acquire), reinterpret_cast<gmm_stream>(stream));
  if (result < 0) say_gmm(result, "stream");
}

CUresult current_device(int *out) {
  const Driver *entries = driver();
  return entries != nullptr ? entries->cuCtxGetDevice(out) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult stream_device(CUstream stream, int *out) {
  const Driver *entries = driver();
  if (entries == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  CUcontext own = nullptr, now = nullptr;
  if (reinterpret_cast<uintptr_t>(stream) <= 2) return entries->cuCtxGetDevice(out);
  if (CUresult code = entries->cuStreamGetCtx(stream, &own); code != CUDA_SUCCESS) return code;
  if (CUresult code = entries->cuCtxGetCurrent(&now); code != CUDA_SUCCESS) return code;
  if (own == now) return entries->cuCtxGetDevice(out);
  if (CUresult code = entries->cuCtxPushCurrent_v2(own); code != CUDA_SUCCESS) return code;
  const CUresult code = entries->cuCtxGetDevice(out);
  entries->cuCtxPopCurrent_v2(&now);
  return code;
}

}  // namespace gmm::preload
