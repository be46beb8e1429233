// SPDX-License-Identifier: Apache-2.0
// Questions about an address.
#include <algorithm>
#include <cstring>

#include "state.h"

using namespace fake;

namespace {

// Memory that the driver does not know, or that lacks the attribute, is an error, or has a default.
CUresult answer(void *data, int attribute, CUdeviceptr address, const Context &context, bool with_defaults) {
  uintptr_t base = address, mapping_base = 0;
  size_t size = 0;
  const Region *region = find_region(address);
  const bool is_reserved = !region && find_reservation(address, &base, &size);
  const Mapping *mapping = is_reserved ? find_mapping(address, &mapping_base) : nullptr;
  if (region) base = region->base, size = region->size;
  const bool is_memory = region || mapping, is_known = region || is_reserved;
  const auto is_of = [&](Kind kind) { return region && region->kind == kind; };
  const int device = region ? region->context->device : mapping ? mapping->physical->backing->device : kHost;
  const bool is_host = region ? is_of(Kind::host) || is_of(Kind::registered) : mapping && device == kHost;
  const uint64_t id = region ? region->id : mapping ? mapping->physical->id : 0;
  const struct {
    int attribute;
    size_t size;  // of the value
    bool is_known;
    uint64_t value;
  } answers[] = {
      // VMM and pool memory belong to no context.
      {CU_POINTER_ATTRIBUTE_CONTEXT, 8, is_memory,
       region && !is_of(Kind::pool) ? reinterpret_cast<uint64_t>(region->context) : 0},
      {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 4, is_memory, is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE},
      {CU_POINTER_ATTRIBUTE_DEVICE_POINTER, 8, is_memory, address},
      {CU_POINTER_ATTRIBUTE_HOST_POINTER, 8, is_host || is_of(Kind::managed), address},
      {CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 1, is_memory, 0},
      {CU_POINTER_ATTRIBUTE_BUFFER_ID, 8, is_memory, id},
      {CU_POINTER_ATTRIBUTE_IS_MANAGED, 1, is_memory, is_of(Kind::managed)},
      {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 4, is_memory, static_cast<uint64_t>(std::max(device, 0))},
      {CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, 1, is_memory, is_of(Kind::device)},
      {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 8, is_known, base},
      {CU_POINTER_ATTRIBUTE_RANGE_SIZE, 8, is_known, size},
      {CU_POINTER_ATTRIBUTE_MAPPED, 1, is_known, is_memory},
      {CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, 8, is_memory,
       mapping ? static_cast<uint64_t>(mapping->physical->properties.requestedHandleTypes) : 0},
      {CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, 1, is_memory, is_of(Kind::device)},
      {CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, 4, is_memory,
       mapping ? mapping->access[context.device] : unsigned{CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE}},
      {CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, 8, is_memory, 0},
      {CU_POINTER_ATTRIBUTE_MAPPING_SIZE, 8, is_memory, mapping ? mapping->size : size},
      {CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, 8, is_memory, mapping ? mapping_base : base},
      {CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, 8, is_memory, id},
  };
  for (const auto &each : answers) {
    if (each.attribute != attribute || !(each.is_known || with_defaults)) continue;
    const auto none = static_cast<uint64_t>(attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? CU_DEVICE_INVALID : 0);
    memcpy(data, each.is_known ? &each.value : &none, each.size);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

extern "C" {

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address) {
  FAKE_CUDA_IN_CONTEXT(cuPointerGetAttribute, !data);
  return answer(data, attribute, address, *context, false);
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr address) {
  FAKE_CUDA_IN_CONTEXT(cuPointerGetAttributes, !count || !attributes || !data);
  for (unsigned i = 0; i < count; i++)
    if (!data[i] || answer(data[i], attributes[i], address, *context, true)) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
  FAKE_CUDA_IN_CONTEXT(cuMemGetAddressRange_v2);
  uintptr_t start = 0;
  if (Region *region = find_region(address)) {
    if (base) *base = region->base;
    if (size) *size = region->size;
  } else if (Mapping *mapping = find_mapping(address, &start)) {
    if (base) *base = start;
    if (size) *size = mapping->size;
  } else {
    return CUDA_ERROR_NOT_FOUND;
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
