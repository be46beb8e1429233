// SPDX-License-Identifier: Apache-2.0
// Questions about an address.
#include <algorithm>
#include <cstring>

#include "state.h"

using namespace fake;

namespace {

template <class T>
CUresult give(void *data, T value) {
  memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

// The value of an attribute for memory that CUDA does not know, as cuPointerGetAttributes gives it. Others are 0.
void give_default(void *data, int attribute) {
  constexpr int kBooleans[] = {CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                               CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, CU_POINTER_ATTRIBUTE_MAPPED,
                               CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE};
  if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
    give(data, static_cast<int>(CU_DEVICE_INVALID));
  else if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE || attribute == CU_POINTER_ATTRIBUTE_ACCESS_FLAGS)
    give(data, 0u);
  else if (std::ranges::find(kBooleans, attribute) != std::end(kBooleans))
    give(data, false);
  else
    give(data, uint64_t{0});
}

// `context` may be null: only the access flags depend on it.
CUresult one(void *data, int attribute, CUdeviceptr address, Context *context) {
  uintptr_t base = address, mapping_base = 0;
  size_t size = 0;
  Region *region = find_region(address);
  bool reserved = !region && find_reservation(address, &base, &size);
  Mapping *mapping = reserved ? find_mapping(address, &mapping_base) : nullptr;
  if (!region && !reserved) return CUDA_ERROR_INVALID_VALUE;
  if (region) base = region->base, size = region->size;
  bool unmapped = reserved && !mapping;
  int device = region ? region->context->device : mapping ? mapping->physical->backing->device : kHost;
  bool host = region ? region->kind == Kind::host || region->kind == Kind::registered : mapping && device == kHost;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return give(data, base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return give(data, size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return give(data, !unmapped);
    default:
      break;
  }
  if (unmapped) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:  // VMM and pool memory belong to no context
      if (!region || region->kind == Kind::pool) return give(data, nullptr);
      return give(data, region->context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return give(data, static_cast<unsigned>(host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return give(data, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!host && !(region && region->kind == Kind::managed)) return CUDA_ERROR_INVALID_VALUE;
      return give(data, address);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return give(data, false);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return give(data, region ? region->id : mapping->physical->id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return give(data, region && region->kind == Kind::managed);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return give(data, region || device != kHost ? device : 0);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return give(data, region && region->kind == Kind::device);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return give(data, mapping ? static_cast<uint64_t>(mapping->physical->properties.requestedHandleTypes) : 0);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return give(data, region && region->kind == Kind::device);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: {
      if (!context) return CUDA_ERROR_INVALID_CONTEXT;
      return give(data,
                  mapping ? mapping->access[context->device] : unsigned{CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE});
    }
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return give(data, nullptr);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return give(data, mapping ? mapping->size : size);
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return give(data, mapping ? mapping_base : base);
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return give(data, region ? region->id : mapping->physical->id);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

extern "C" {

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address) {
  FAKE_CUDA_IN_CONTEXT(cuPointerGetAttribute, !data);
  return one(data, attribute, address, context);
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr address) {
  FAKE_CUDA_IN_CONTEXT(cuPointerGetAttributes, !count || !attributes || !data);
  for (unsigned i = 0; i < count; i++) {
    int attribute = attributes[i];
    if (!data[i] || attribute < CU_POINTER_ATTRIBUTE_CONTEXT || attribute > 20 ||
        attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
      return CUDA_ERROR_INVALID_VALUE;
  }
  for (unsigned i = 0; i < count; i++)
    if (one(data[i], attributes[i], address, context)) give_default(data[i], attributes[i]);
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
