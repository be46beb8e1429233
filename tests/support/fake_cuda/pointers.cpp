// SPDX-License-Identifier: Apache-2.0
// Questions about an address.
#include <algorithm>
#include <cstring>

#include "state.h"

using namespace fake;

namespace {

// Memory that the driver does not know, or that lacks the attribute, is an error, or has a default.
CUresult answer(void *data, int attribute, CUdeviceptr address, bool with_defaults) {
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
      {CU_POINTER_ATTRIBUTE_IS_MANAGED, 1, is_memory, is_of(Kind::managed)},
      {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 4, is_memory, static_cast<uint64_t>(std::max(device, 0))},
      {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 8, is_known, base},
      {CU_POINTER_ATTRIBUTE_RANGE_SIZE, 8, is_known, size},
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
  return answer(data, attribute, address, false);
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr address) {
  FAKE_CUDA_IN_CONTEXT(cuPointerGetAttributes, !count || !attributes || !data);
  for (unsigned i = 0; i < count; i++)
    if (!data[i] || answer(data[i], attributes[i], address, true)) return CUDA_ERROR_INVALID_VALUE;
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
