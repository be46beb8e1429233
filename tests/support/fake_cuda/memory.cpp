// SPDX-License-Identifier: Apache-2.0
// Plain device memory and managed memory.
#include <sys/mman.h>

#include <cstdlib>

#include "state.h"
#include "stream.h"

using namespace fake;

namespace {

uint64_t to_512(uint64_t size) { return (size + 511) / 512 * 512; }

// A new region of device memory. Large ones are aligned to 2 MiB as the driver does by habit; nothing promises it, and
// FAKE_CUDA_UNALIGNED takes the habit away. Small ones start anywhere on 512 bytes.
CUresult allocate(Context *context, Kind kind, size_t size, CUdeviceptr *out) {
  State &s = state();
  size_t offset = 0;
  if (s.configuration.unaligned)
    offset = 512 * (1 + s.next_id % 7);
  else if (size < kGranularity)
    offset = 512 * (s.next_id % 8);
  size_t whole = size + offset;
  auto backing = make_backing(whole, context->device, to_512(size), kind == Kind::device);
  if (!backing) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = add_view(backing, kind, offset, size, context);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// Locations are checked even where the advice ignores them.
CUresult check_range(CUdeviceptr address, size_t size, CUdevice location) {
  const Region *region = find_region(address);
  if (!region || region->kind != Kind::managed || !size || size > region->size - (address - region->base))
    return CUDA_ERROR_INVALID_VALUE;
  const bool is_valid = location == CU_DEVICE_CPU || (valid_device(location) && !lacks("concurrent"));
  return is_valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

}  // namespace

extern "C" {

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
  FAKE_CUDA_IN_CONTEXT(cuMemGetInfo_v2, !free || !total);
  settle_exported();
  *total = state().configuration.memory;
  *free = *total - std::min<uint64_t>(*total, used_by_all(context->device));
  return CUDA_SUCCESS;
}

// The default pool of a device is known by its context. It keeps nothing that was freed.
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
  FAKE_CUDA_OF_DEVICE(cuDeviceGetDefaultMemPool, !pool);
  *pool = reinterpret_cast<CUmemoryPool>(&state().contexts[device]);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  FAKE_CUDA_ENTER(cuMemPoolGetAttribute, !value || attribute != CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  cuuint64_t bytes = 0;
  for (auto &[base, region] : state().regions)
    if (region.kind == Kind::pool && region.context == reinterpret_cast<Context *>(pool)) bytes += region.size;
  *static_cast<cuuint64_t *>(value) = bytes;
  return CUDA_SUCCESS;
}

// Graphs come from captures, and have no allocations of their own: a test says how much they are to have.
CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value) {
  FAKE_CUDA_OF_DEVICE(cuDeviceGetGraphMemAttribute, !value || attribute != CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
  const char *text = getenv("FAKE_CUDA_GRAPH_MEMORY");
  *static_cast<cuuint64_t *>(value) = text ? strtoull(text, nullptr, 0) : 0;
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size) {
  FAKE_CUDA_UNCAPTURED(cuMemAlloc_v2, !out || !size);
  return size > state().configuration.memory ? CUDA_ERROR_OUT_OF_MEMORY : allocate(context, Kind::device, size, out);
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  FAKE_CUDA_UNCAPTURED(cuMemFree_v2);
  return free_region(address, {Kind::device, Kind::pool, Kind::managed}, lock);
}

CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned int flags) {
  FAKE_CUDA_IN_CONTEXT(cuMemAllocManaged,
                       !out || !size || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST));
  if (lacks("managed")) return CUDA_ERROR_NOT_SUPPORTED;
  if (CUresult unsafe = refuse_during_capture()) return unsafe;
  State &s = state();
  size_t offset = s.configuration.unaligned ? 512 * (1 + s.next_id % 7) : 0;
  if (size > SIZE_MAX / 2) return CUDA_ERROR_OUT_OF_MEMORY;
  size_t whole = (size + offset + kPage - 1) / kPage * kPage;
  char *view = reserve_addresses(whole, kGranularity);
  if (!view) return CUDA_ERROR_OUT_OF_MEMORY;
  if (mprotect(view, whole, PROT_READ | PROT_WRITE) != 0) {
    munmap(view, whole);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  uintptr_t start = reinterpret_cast<uintptr_t>(view);
  s.regions[start + offset] =
      Region{Kind::managed, start + offset, size, start, whole, nullptr, context, flags, s.next_id++, 0};
  *out = start + offset;
  return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream handle) {
  FAKE_CUDA_IN_CONTEXT(cuMemAllocAsync, !out || !size);
  FAKE_CUDA_STREAM(stream, handle);
  if (stream->capture) return CUDA_ERROR_NOT_SUPPORTED;  // graph memory nodes are not built here
  return size > state().configuration.memory ? CUDA_ERROR_OUT_OF_MEMORY : allocate(context, Kind::pool, size, out);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  FAKE_CUDA_ON_STREAM(cuMemFreeAsync, handle);
  auto it = state().regions.find(address);
  if (it == state().regions.end() || it->second.kind != Kind::pool || it->second.flags) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capture) return CUDA_ERROR_INVALID_VALUE;
  it->second.flags = 1;  // given back: a second free is wrong
  uint64_t id = it->second.id;
  return enqueue(stream, [address, id] {
    std::lock_guard<std::mutex> guard(state().mutex);
    auto it = state().regions.find(address);
    if (it != state().regions.end() && it->second.id == id) drop_region(it);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAdvise(CUdeviceptr address, size_t size, CUmem_advise advice, CUdevice device) {
  FAKE_CUDA_ENTER(cuMemAdvise, advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY);
  return check_range(address, size, device);
}

CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t size, CUdevice device, CUstream handle) {
  FAKE_CUDA_ON_STREAM(cuMemPrefetchAsync, handle);
  if (CUresult wrong = check_range(address, size, device)) return wrong;
  return enqueue(stream, [] { return CUDA_SUCCESS; });
}

}  // extern "C"
