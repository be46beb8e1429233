// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include "fake_cuda_test.h"

CASE(device_memory_is_counted_and_limited, "FAKE_CUDA_MEMORY=67108864") {
  start();
  size_t free, total;
  CUdeviceptr a, b;
  OK(cuMemGetInfo_v2(&free, &total));
  IS(total, 64 * kMiB);
  IS(free, total);
  IS(cuMemAlloc_v2(nullptr, 512), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemAlloc_v2(&a, 0), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemAlloc_v2(&a, 65 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  IS(cuMemAlloc_v2(&a, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
  OK(cuMemAlloc_v2(&a, 60 * kMiB));
  IS(a % kTwo, 0);
  IS(cuMemAlloc_v2(&b, 5 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  OK(cuMemAlloc_v2(&b, 1));
  IS(b % 512, 0);
  OK(cuMemGetInfo_v2(&free, &total));
  IS(free, 4 * kMiB - 512);
  IS(cuMemFree_v2(a + 512), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemFree_v2(0), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemFree_v2(a));
  IS(cuMemFree_v2(a), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemFree_v2(b));
  OK(cuMemGetInfo_v2(&free, &total));
  IS(free, total);
}

CASE(large_allocations_need_not_be_aligned, "FAKE_CUDA_UNALIGNED=1") {
  start();
  CUdeviceptr a, m;
  OK(cuMemAlloc_v2(&a, 4 * kMiB));
  CHECK(a % kTwo != 0 && a % 512 == 0);
  char last = 7, back = 0;
  OK(cuMemcpyHtoD_v2(a + 4 * kMiB - 1, &last, 1));
  OK(cuMemcpyDtoH_v2(&back, a + 4 * kMiB - 1, 1));
  IS(back, 7);
  OK(cuMemAllocManaged(&m, 4 * kMiB, CU_MEM_ATTACH_GLOBAL));
  CHECK(m % kTwo != 0);
  reinterpret_cast<char *>(m)[4 * kMiB - 1] = 1;
  OK(cuMemFree_v2(m));
  OK(cuMemFree_v2(a));
}

CASE(the_cpu_cannot_read_device_memory, "") {
  start();
  CUdeviceptr a;
  OK(cuMemAlloc_v2(&a, 4 * kMiB));
  CHECK(crashes_on_read(reinterpret_cast<void *>(a)));
}

CASE(the_cpu_can_read_device_memory_when_a_test_says_so, "FAKE_CUDA_CPU_ACCESS=1") {
  start();
  CUdeviceptr a;
  OK(cuMemAlloc_v2(&a, 4096));
  OK(cuMemsetD8_v2(a, 9, 4096));
  OK(cuCtxSynchronize());
  IS(reinterpret_cast<char *>(a)[4095], 9);
}

CASE(copies_check_their_ends, "") {
  start();
  CUdeviceptr a;
  char bytes[1024] = {};
  OK(cuMemAlloc_v2(&a, 1024));
  for (int i = 0; i < 1024; i++) bytes[i] = static_cast<char>(i);
  OK(cuMemcpyHtoD_v2(a, bytes, 1024));
  memset(bytes, 0, sizeof bytes);
  OK(cuMemcpyDtoH_v2(bytes, a + 1, 1023));
  IS(bytes[0], 1);
  IS(bytes[1022], static_cast<char>(1023));
  IS(cuMemcpyDtoH_v2(bytes, a + 1, 1024), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemcpyDtoH_v2(bytes, reinterpret_cast<CUdeviceptr>(bytes), 10), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemcpyHtoD_v2(0, bytes, 10), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemsetD8_v2(reinterpret_cast<CUdeviceptr>(bytes), 1, 10), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemsetD8_v2(a, 1, 1025), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemFree_v2(a));
  IS(cuMemcpyDtoH_v2(bytes, a, 10), CUDA_ERROR_INVALID_VALUE);
}

CASE(managed_memory_is_the_cpus_too, "") {
  start();
  CUdeviceptr m;
  IS(cuMemAllocManaged(&m, 4096, 0), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemAllocManaged(&m, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemAllocManaged(&m, 3 * kMiB, CU_MEM_ATTACH_GLOBAL));
  auto *bytes = reinterpret_cast<char *>(m);
  bytes[5] = 5;
  OK(cuMemsetD8_v2(m, 6, kMiB));
  IS(bytes[5], 6);
  CUmemLocation device{}, host{}, none{};
  device.type = CU_MEM_LOCATION_TYPE_DEVICE;
  host.type = static_cast<CUmemLocationType>(2);
  OK(cuMemAdvise_v2(m, kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
  IS(cuMemAdvise_v2(m, kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, none), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemAdvise_v2(m, kMiB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
  IS(cuMemAdvise_v2(m, 4 * kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, device), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemAdvise(m, kMiB, CU_MEM_ADVISE_SET_ACCESSED_BY, CU_DEVICE_CPU));
  IS(cuMemAdvise(m, kMiB, CU_MEM_ADVISE_SET_ACCESSED_BY, 1), CUDA_ERROR_INVALID_DEVICE);
  OK(cuMemPrefetchAsync_v2(m, kMiB, device, 0, nullptr));
  OK(cuMemPrefetchAsync(m, kMiB, CU_DEVICE_CPU, nullptr));
  IS(cuMemPrefetchAsync_v2(m, kMiB, device, 1, nullptr), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemPrefetchAsync_v2(m, 4 * kMiB, device, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  device.id = 3;
  IS(cuMemPrefetchAsync_v2(m, kMiB, device, 0, nullptr), CUDA_ERROR_INVALID_DEVICE);
  IS(live().managed_bytes, 3 * kMiB);
  OK(cuMemFree_v2(m));
  IS(cuMemAdvise(m, kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, 0), CUDA_ERROR_INVALID_VALUE);
}

CASE(host_memory_is_registered_once_and_whole, "") {
  start();
  size_t page = 4096;
  auto *memory =
      static_cast<char *>(mmap(nullptr, 8 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  OK(cuMemHostRegister_v2(memory, 4 * page, 0));
  IS(cuMemHostRegister_v2(memory, 4 * page, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  IS(cuMemHostRegister_v2(memory + 3 * page, 2 * page, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  OK(cuMemHostRegister_v2(memory + 4 * page, 100, 0));
  IS(cuMemHostRegister_v2(memory + 4 * page + 200, 100, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CUdeviceptr device;
  OK(cuMemHostGetDevicePointer_v2(&device, memory + 10, 0));
  IS(device, reinterpret_cast<CUdeviceptr>(memory + 10));
  IS(cuMemHostGetDevicePointer_v2(&device, memory + 6 * page, 0), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemHostUnregister(memory + page), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  IS(live().registrations, 2);
  OK(cuMemHostUnregister(memory));
  OK(cuMemHostUnregister(memory + 4 * page));
  IS(cuMemHostUnregister(memory), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  munmap(memory + 2 * page, page);
  IS(cuMemHostRegister_v2(memory, 4 * page, 0), CUDA_ERROR_INVALID_VALUE);  // a hole
  IS(cuMemHostRegister_v2(nullptr, page, 0), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemHostRegister_v2(memory, 0, 0), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr d;
  OK(cuMemAlloc_v2(&d, page));
  IS(cuMemHostRegister_v2(reinterpret_cast<void *>(d), page, 0), CUDA_ERROR_INVALID_VALUE);
  void *pinned;
  OK(cuMemHostAlloc(&pinned, page, CU_MEMHOSTALLOC_PORTABLE));
  IS(cuMemHostRegister_v2(pinned, page, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  IS(cuMemFree_v2(reinterpret_cast<CUdeviceptr>(pinned)), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemFreeHost(static_cast<char *>(pinned) + 1), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemFreeHost(pinned));
  IS(live().host_bytes, 0);
}

CASE(pointers_are_known, "") {
  CUcontext context = start();
  CUdeviceptr d, m;
  void *h;
  OK(cuMemAlloc_v2(&d, kTwo));
  OK(cuMemAllocManaged(&m, kTwo, CU_MEM_ATTACH_GLOBAL));
  OK(cuMemHostAlloc(&h, kTwo, 0));
  unsigned type, managed = 0;
  CUcontext owner;
  CUdeviceptr base;
  size_t size;
  OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, d + 5));
  IS(type, CU_MEMORYTYPE_DEVICE);
  OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(h)));
  IS(type, CU_MEMORYTYPE_HOST);
  OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, m));
  IS(managed & 0xff, 1);
  OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, d));
  IS(owner, context);
  OK(cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, d + 5));
  IS(base, d);
  OK(cuMemGetAddressRange_v2(&base, &size, d + 100));
  IS(base, d);
  IS(size, kTwo);
  int mine = 0;
  auto stack = reinterpret_cast<CUdeviceptr>(&mine);
  IS(cuMemGetAddressRange_v2(&base, &size, stack), CUDA_ERROR_NOT_FOUND);
  IS(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, stack), CUDA_ERROR_INVALID_VALUE);
  int ordinal = 77;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void *data[] = {&type, &ordinal};
  OK(cuPointerGetAttributes(2, attributes, data, stack));
  IS(type, 0);
  IS(ordinal, -2);
  OK(cuPointerGetAttributes(2, attributes, data, d));
  IS(type, CU_MEMORYTYPE_DEVICE);
  IS(ordinal, 0);
}
