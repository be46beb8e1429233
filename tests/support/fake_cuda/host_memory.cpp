// SPDX-License-Identifier: Apache-2.0
// Page-locked host memory: the driver's own, and the caller's when registered.
#include <sys/mman.h>

#include <cstdio>

#include "state.h"
#include "stream.h"

using namespace fake;

namespace {

// Every page of [begin, end) is the process's, readable, and writable too when asked.
bool is_mapped(uintptr_t begin, uintptr_t end, bool writable) {
  FILE *maps = fopen("/proc/self/maps", "re");
  if (!maps) return false;
  char line[512];
  uintptr_t reached = begin;
  while (reached < end && fgets(line, sizeof line, maps)) {
    unsigned long from, to;
    char rights[5];
    if (sscanf(line, "%lx-%lx %4s", &from, &to, rights) != 3 || to <= reached) continue;
    if (from > reached || rights[0] != 'r' || (writable && rights[1] != 'w')) break;
    reached = to;
  }
  fclose(maps);
  return reached >= end;
}

}  // namespace

extern "C" {

CUresult cuMemHostAlloc(void **out, size_t size, unsigned int flags) {
  FAKE_CUDA_UNCAPTURED(cuMemHostAlloc, !out || !size || flags > 7);
  if (size > SIZE_MAX / 2) return CUDA_ERROR_OUT_OF_MEMORY;
  State &s = state();
  size_t whole = (size + kPage - 1) / kPage * kPage;
  void *view = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (view == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  auto start = reinterpret_cast<uintptr_t>(view);
  s.regions[start] = Region{Kind::host, start, size, start, whole, nullptr, context, flags, s.next_id++, 0};
  s.host_bytes += size;
  *out = view;
  return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *address) {
  FAKE_CUDA_UNCAPTURED(cuMemFreeHost);
  return free_region(reinterpret_cast<uintptr_t>(address), {Kind::host}, lock);
}

CUresult cuMemHostRegister_v2(void *address, size_t size, unsigned int flags) {
  FAKE_CUDA_ENTER(cuMemHostRegister_v2);
  auto start = reinterpret_cast<uintptr_t>(address);
  constexpr unsigned kReadOnly = 8, kIoMemory = 4;
  if (!address || !size || flags > 15 || start + size < start) return CUDA_ERROR_INVALID_VALUE;
  FAKE_CUDA_CONTEXT(context);
  State &s = state();
  if (lacks("register") || (flags & kIoMemory)) return CUDA_ERROR_NOT_SUPPORTED;
  if ((flags & kReadOnly) && lacks("readonly_register")) return CUDA_ERROR_NOT_SUPPORTED;
  if (CUresult unsafe = refuse_during_capture()) return unsafe;
  // Pages are locked, so two registrations that share one overlap.
  uintptr_t first = start / kPage * kPage, last = (start + size + kPage - 1) / kPage * kPage;
  for (auto &[base, region] : s.regions) {
    if (base >= last || base + region.size <= first) continue;
    uintptr_t its_first = base / kPage * kPage, its_last = (base + region.size + kPage - 1) / kPage * kPage;
    if (its_first >= last || its_last <= first) continue;
    bool host = region.kind == Kind::host || region.kind == Kind::registered;
    return host ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_ERROR_INVALID_VALUE;
  }
  for (auto &[base, reserved] : s.reservations)
    if (base < last && base + reserved > first) return CUDA_ERROR_INVALID_VALUE;
  if (!is_mapped(first, last, !(flags & kReadOnly))) return CUDA_ERROR_INVALID_VALUE;
  s.regions[start] =
      Region{Kind::registered, start, size, first, last - first, nullptr, context, flags, s.next_id++, 0};
  s.host_bytes += size;
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *address) {
  FAKE_CUDA_UNCAPTURED(cuMemHostUnregister);
  if (!address) return CUDA_ERROR_INVALID_VALUE;
  auto it = state().regions.find(reinterpret_cast<uintptr_t>(address));
  if (it == state().regions.end() || it->second.kind != Kind::registered) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  drop_region(it);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *address, unsigned int flags) {
  FAKE_CUDA_IN_CONTEXT(cuMemHostGetDevicePointer_v2, !out || flags);
  Region *region = find_region(reinterpret_cast<uintptr_t>(address));
  if (!region || (region->kind != Kind::host && region->kind != Kind::registered)) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUdeviceptr>(address);
  return CUDA_SUCCESS;
}

}  // extern "C"
