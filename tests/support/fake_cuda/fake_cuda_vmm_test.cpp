// SPDX-License-Identifier: Apache-2.0
#include "fake_cuda_test.h"

static CUmemGenericAllocationHandle create(size_t size, bool fd = false) {
  CUmemGenericAllocationHandle handle;
  auto properties = device_memory(0, fd);
  OK(cuMemCreate(&handle, size, &properties, 0));
  return handle;
}
static CUdeviceptr reserve(size_t size) {
  CUdeviceptr address;
  OK(cuMemAddressReserve(&address, size, 0, 0, 0));
  IS(address % kTwo, 0);
  return address;
}

CASE(reservations_are_freed_exactly, "") {
  start();
  CUdeviceptr a;
  IS(cuMemAddressReserve(&a, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemAddressReserve(&a, 4097, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemAddressReserve(&a, kTwo, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemAddressReserve(&a, kTwo, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemAddressReserve(&a, size_t{1} << 60, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  a = reserve(3 * kTwo);
  CHECK(crashes_on_read(reinterpret_cast<void *>(a)));
  IS(cuMemAddressFree(a, kTwo), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemAddressFree(a + kTwo, 2 * kTwo), CUDA_ERROR_INVALID_VALUE);
  auto handle = create(kTwo);
  OK(cuMemMap(a + kTwo, kTwo, 0, handle, 0));
  IS(cuMemAddressFree(a, 3 * kTwo), CUDA_ERROR_INVALID_VALUE);  // still mapped
  OK(cuMemUnmap(a + kTwo, kTwo));
  OK(cuMemAddressFree(a, 3 * kTwo));
  IS(cuMemAddressFree(a, 3 * kTwo), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemRelease(handle));
}

CASE(handles_are_checked_and_limited, "FAKE_CUDA_MEMORY=16777216") {
  start();
  CUmemGenericAllocationHandle handle;
  auto good = device_memory(), bad = good;
  IS(cuMemCreate(&handle, kMiB, &good, 0), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemCreate(&handle, 0, &good, 0), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemCreate(&handle, kTwo, &good, 1), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemCreate(&handle, kTwo, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  bad.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  IS(cuMemCreate(&handle, kTwo, &bad, 0), CUDA_ERROR_INVALID_VALUE);
  bad = device_memory(1);
  IS(cuMemCreate(&handle, kTwo, &bad, 0), CUDA_ERROR_INVALID_DEVICE);
  IS(cuMemCreate(&handle, 18 * kMiB, &good, 0), CUDA_ERROR_OUT_OF_MEMORY);
  OK(cuMemCreate(&handle, 16 * kMiB, &good, 0));
  CUmemGenericAllocationHandle more;
  IS(cuMemCreate(&more, kTwo, &good, 0), CUDA_ERROR_OUT_OF_MEMORY);
  size_t free, total, granularity;
  OK(cuMemGetInfo_v2(&free, &total));
  IS(free, 0);
  OK(cuMemRelease(handle));
  OK(cuMemGetInfo_v2(&free, &total));
  IS(free, total);
  IS(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemGetAllocationGranularity(&granularity, &good, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  IS(granularity, kTwo);
}

CASE(mapping_takes_whole_handles_in_one_reservation, "") {
  start();
  CUdeviceptr a = reserve(4 * kTwo);
  auto two = create(2 * kTwo), one = create(kTwo);
  IS(cuMemMap(a, kTwo, 0, two, 0), CUDA_ERROR_INVALID_VALUE);             // a part
  IS(cuMemMap(a, 2 * kTwo, kTwo, two, 0), CUDA_ERROR_INVALID_VALUE);      // an offset
  IS(cuMemMap(a + 4096, 2 * kTwo, 0, two, 0), CUDA_ERROR_INVALID_VALUE);  // unaligned
  IS(cuMemMap(a + 3 * kTwo, 2 * kTwo, 0, two, 0), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemMap(a + 64 * kTwo, kTwo, 0, one, 0), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemMap(a, kTwo, 0, 12345, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemMap(a + kTwo, 2 * kTwo, 0, two, 0));
  IS(cuMemMap(a + 2 * kTwo, kTwo, 0, one, 0), CUDA_ERROR_INVALID_VALUE);  // taken
  IS(cuMemMap(a, 2 * kTwo, 0, two, 0), CUDA_ERROR_INVALID_VALUE);         // overlaps
  OK(cuMemMap(a, kTwo, 0, one, 0));
  IS(cuMemUnmap(a, 2 * kTwo), CUDA_ERROR_INVALID_VALUE);  // half of the second mapping
  IS(cuMemUnmap(a, 4 * kTwo), CUDA_ERROR_INVALID_VALUE);  // a hole at the end
  IS(cuMemUnmap(a + kTwo, kTwo), CUDA_ERROR_INVALID_VALUE);
  IS(live().mappings, 2);
  OK(cuMemUnmap(a, 3 * kTwo));
  IS(cuMemUnmap(a, 3 * kTwo), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemRelease(one));
  OK(cuMemRelease(two));
  OK(cuMemAddressFree(a, 4 * kTwo));
  auto now = live();
  IS(now.mappings + now.handles + now.reservations + now.device_bytes, 0);
}

CASE(access_belongs_to_a_mapping, "") {
  start();
  CUdeviceptr a = reserve(2 * kTwo);
  auto first = create(kTwo), second = create(kTwo);
  OK(cuMemMap(a, kTwo, 0, first, 0));
  char byte = 1;
  IS(cuMemcpyHtoD_v2(a, &byte, 1), CUDA_ERROR_INVALID_VALUE);  // no access yet
  auto both = access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE), read = access(CU_MEM_ACCESS_FLAGS_PROT_READ);
  IS(cuMemSetAccess(a, 2 * kTwo, &both, 1), CUDA_ERROR_INVALID_VALUE);  // a hole
  IS(cuMemSetAccess(a, kMiB, &both, 1), CUDA_ERROR_INVALID_VALUE);
  auto other = access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_LOCATION_TYPE_DEVICE, 5);
  IS(cuMemSetAccess(a, kTwo, &other, 1), CUDA_ERROR_INVALID_DEVICE);
  auto cpu = access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3);
  IS(cuMemSetAccess(a, kTwo, &cpu, 1), CUDA_ERROR_INVALID_VALUE);  // pages of a device
  OK(cuMemMap(a + kTwo, kTwo, 0, second, 0));
  OK(cuMemSetAccess(a, 2 * kTwo, &both, 1));
  OK(cuMemsetD8_v2(a + kTwo - 1, 3, 2));  // across two mappings
  OK(cuMemcpyDtoH_v2(&byte, a + kTwo, 1));
  IS(byte, 3);
  CHECK(crashes_on_read(reinterpret_cast<void *>(a)));
  OK(cuMemSetAccess(a, kTwo, &read, 1));
  IS(cuMemcpyHtoD_v2(a, &byte, 1), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemcpyDtoH_v2(&byte, a + kTwo - 1, 1));
  unsigned long long flags;
  OK(cuMemGetAccess(&flags, &read.location, a));
  IS(flags, CU_MEM_ACCESS_FLAGS_PROT_READ);
  OK(cuMemUnmap(a, kTwo));
  OK(cuMemMap(a, kTwo, 0, first, 0));
  OK(cuMemGetAccess(&flags, &read.location, a));
  IS(flags, 0);  // gone with the mapping
}

CASE(released_memory_lives_while_it_is_mapped, "") {
  start();
  CUdeviceptr a = reserve(kTwo);
  auto handle = create(kTwo);
  auto both = access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  OK(cuMemMap(a, kTwo, 0, handle, 0));
  OK(cuMemSetAccess(a, kTwo, &both, 1));
  OK(cuMemRelease(handle));
  IS(live().handles, 0);
  IS(live().device_bytes, kTwo);
  char byte = 4;
  OK(cuMemcpyHtoD_v2(a, &byte, 1));
  CUmemGenericAllocationHandle again;
  OK(cuMemRetainAllocationHandle(&again, reinterpret_cast<void *>(a + 100)));
  IS(again, handle);
  OK(cuMemUnmap(a, kTwo));
  IS(live().device_bytes, kTwo);
  OK(cuMemMap(a, kTwo, 0, again, 0));
  OK(cuMemSetAccess(a, kTwo, &both, 1));
  byte = 0;
  OK(cuMemcpyDtoH_v2(&byte, a, 1));
  IS(byte, 4);  // the same pages
  OK(cuMemRelease(again));
  OK(cuMemUnmap(a, kTwo));
  IS(live().device_bytes, 0);
  IS(cuMemRetainAllocationHandle(&again, reinterpret_cast<void *>(a)), CUDA_ERROR_INVALID_VALUE);
}

CASE(host_pages_can_be_the_cpus, "") {
  start();
  CUmemAllocationProp properties = device_memory();
  properties.location.type = static_cast<CUmemLocationType>(3);
  CUmemGenericAllocationHandle handle;
  OK(cuMemCreate(&handle, kTwo, &properties, 0));
  CUdeviceptr a = reserve(kTwo);
  OK(cuMemMap(a, kTwo, 0, handle, 0));
  CUmemAccessDesc both[] = {access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE), access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3)};
  OK(cuMemSetAccess(a, kTwo, both, 1));
  CHECK(crashes_on_read(reinterpret_cast<void *>(a)));
  OK(cuMemSetAccess(a, kTwo, both, 2));
  OK(cuMemsetD8_v2(a, 8, kTwo));
  OK(cuCtxSynchronize());
  IS(reinterpret_cast<char *>(a)[kTwo - 1], 8);
  IS(live().device_bytes, 0);
  IS(live().host_bytes, kTwo);
  properties.location.type = static_cast<CUmemLocationType>(4);
  IS(cuMemCreate(&handle, kTwo, &properties, 0), CUDA_ERROR_INVALID_VALUE);  // "current" is no place
  properties.location.type = static_cast<CUmemLocationType>(2);
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  IS(cuMemCreate(&handle, kTwo, &properties, 0), CUDA_ERROR_INVALID_VALUE);  // not for other processes
}
