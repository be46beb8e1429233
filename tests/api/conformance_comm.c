// SPDX-License-Identifier: Apache-2.0
// GMM_ALLOC_COMM: memory that network libraries take.
//
// On a driver the test looks at what the driver made: the properties of the allocation, and who has access.
#include "../support/cuda_functions.h"
#include "../support/gmm_test.h"

static const uint64_t kSize = 5 * 1048576 + 3;

static struct cuda_driver cuda;

// Whether the fake driver of this run lacks a feature.
static bool lacks(const char *what) {
  const char *all = getenv("FAKE_CUDA_LACKS");
  return all != NULL && strstr(all, what) != NULL;
}

static int attribute(CUdevice_attribute which) {
  int value = 0;
  CHECK(cuda.cuDeviceGetAttribute(&value, which, device) == 0);
  return value;
}
static bool can(uint32_t capability) { return (device_info.capabilities & capability) != 0; }

static void check_driver(void *block) {
  if (backend_id() != GMM_BACKEND_CUDA || cuda_driver_open(&cuda) != NULL) return;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp got = {0};
  REQUIRE(cuda.cuMemRetainAllocationHandle(&handle, block) == 0);
  CHECK(cuda.cuMemGetAllocationPropertiesFromHandle(&got, handle) == 0);
  CHECK(cuda.cuMemRelease(handle) == 0);
  read_device(device);
  const bool rdma = got.allocFlags.gpuDirectRDMACapable != 0,
             has_attribute = attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) != 0;
  const bool fabric = (got.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0;
  CHECK_EQUAL(rdma, attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0);
  CHECK_EQUAL(rdma, can(GMM_DEVICE_CAN_RDMA));
  CHECK_EQUAL((got.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0,
              can(GMM_DEVICE_CAN_EXPORT_FD));
  CHECK_EQUAL(fabric, can(GMM_DEVICE_CAN_FABRIC));
  CHECK(has_attribute || !fabric);
  if (lacks("imex")) CHECK(has_attribute && !fabric);
  if (lacks("rdma")) CHECK(!rdma);
  size_t granularity = 0;
  CHECK(cuda.cuMemGetAllocationGranularity(&granularity, &got, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) == 0);
  const gmm_pointer_info info = query(block);
  CHECK_MESSAGE(info.allocation_size % granularity == 0 && (uintptr_t)block % granularity == 0,
                "%p of %llu bytes is not of whole granules of %zu", block, (unsigned long long)info.allocation_size,
                granularity);
  for (uint32_t d = 0; d < device_count(); ++d) {
    const CUmemLocation where = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)d};
    unsigned long long flags = 0;
    int can_access = (gmm_device)d == device;
    if (!can_access) CHECK(cuda.cuDeviceCanAccessPeer(&can_access, (int)d, device) == 0);
    CHECK(cuda.cuMemGetAccess(&flags, &where, (uintptr_t)block) == 0);
    CHECK_EQUAL(flags, can_access ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0);
  }
}

static void *allocate(gmm_tag tag) {
  void *block = NULL;
  MUST(gmm_alloc(context, kSize, DESC(alloc_desc, .device = device, .tag = tag, .flags = GMM_ALLOC_COMM), &block));
  return block;
}

VMM_CASE(a_block_is_one_allocation) {
  const gmm_tag tag = make_tag("network", GMM_CONTENTS_HOST);
  void *block = allocate(tag), *other = allocate(tag);
  gmm_pointer_info info = query(block);
  CHECK_EQUAL(info.kind, GMM_KIND_VMM);
  CHECK_EQUAL(info.size, kSize);
  CHECK(info.allocation_base == block && info.allocation_size >= kSize);
  CHECK((info.flags & GMM_POINTER_COMM) != 0);
  check_driver(block);
  check_driver(other);
  // The pages that a pause gives up come back in the same way.
  write_pattern(block, kSize, 1, GMM_STREAM_DEFAULT);
  OK(pause_of(tag));
  CHECK_EQUAL(query(block).flags, GMM_POINTER_COMM);
  OK(resume_of(tag));
  CHECK((query(block).flags & GMM_POINTER_COMM) != 0);
  check_driver(block);
  check_driver(other);
  CHECK_PATTERN(block, kSize, 1);
  void *plain = ALLOC(kSize);
  CHECK((query(plain).flags & GMM_POINTER_COMM) == 0);
  FREE(plain, block, other);
  // Other dedicated memory is ordinary again.
  plain = ALLOC_FLAGS(kSize, GMM_ALLOC_DEDICATED);
  CHECK((query(plain).flags & GMM_POINTER_COMM) == 0);
}

VMM_CASE(a_heap_gives_it_too) {
  gmm_heap *heap = HEAP();
  void *block = NULL, *plain = take_of(heap, kSize);
  MUST(gmm_heap_alloc(heap, kSize, 0, GMM_ALLOC_COMM | GMM_ALLOC_ZERO, GMM_STREAM_DEFAULT, &block));
  check_driver(block);
  CHECK((query(plain).flags & GMM_POINTER_COMM) == 0);
  if (can(GMM_DEVICE_CAN_EXPORT_FD)) {
    gmm_ipc_fd_info info = {.struct_size = sizeof info};
    OK(gmm_ipc_export_fd(context, block, GMM_FD_DEFAULT, &info));
    CHECK(info.offset == 0 && info.size == query(block).allocation_size);
    close(info.fd);
  }
}

CASE(a_device_without_it_says_so) {
  void *block = NULL;
  if (has_kind(GMM_KIND_VMM)) SKIP("the device has VMM memory");
  RESULT(gmm_alloc(context, kSize, DESC(alloc_desc, .flags = GMM_ALLOC_COMM), &block), GMM_ERROR_NOT_SUPPORTED);
}

int main(void) { return run_cases(); }
