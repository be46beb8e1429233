// SPDX-License-Identifier: Apache-2.0
// GMM_ALLOC_COMM: memory that network libraries take.
//
// On a driver the test looks at what the driver made: the properties of the allocation, and who has access.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pause_support.h"

enum {
  TYPE_FD = 1,
  TYPE_FABRIC = 8,
  ATTRIBUTE_RDMA = 110,
  ATTRIBUTE_FABRIC = 128,
  RECOMMENDED = 1,
  ON_DEVICE = 1,
  READ_WRITE = 3
};
static const uint64_t kSize = 5 * 1048576 + 3;

typedef struct location {
  int type, id;
} location;
typedef struct properties {
  int type, handle_types;
  location where;
  void *windows;
  uint8_t compression, rdma;
  uint16_t usage;
  uint8_t reserved[4];
} properties;
static struct {
  int (*cuDeviceGetAttribute)(int *out, int attribute, int device);
  int (*cuDeviceCanAccessPeer)(int *can, int device, int peer);
  int (*cuMemRetainAllocationHandle)(uint64_t *out, void *address);
  int (*cuMemGetAllocationPropertiesFromHandle)(properties *out, uint64_t handle);
  int (*cuMemGetAllocationGranularity)(size_t *out, const properties *of, int option);
  int (*cuMemGetAccess)(unsigned long long *flags, const location *where, uint64_t address);
  int (*cuMemRelease)(uint64_t handle);
} cuda;

static bool has_driver(void) {
  void *library = backend_id() == GMM_BACKEND_CUDA ? dlopen("libcuda.so.1", RTLD_NOW) : NULL;
  if (library == NULL) return false;
#define FIND(entry)                                       \
  *(void **)(void *)&cuda.entry = dlsym(library, #entry); \
  REQUIRE(cuda.entry != NULL)
  FIND(cuDeviceGetAttribute);
  FIND(cuDeviceCanAccessPeer);
  FIND(cuMemRetainAllocationHandle);
  FIND(cuMemGetAllocationPropertiesFromHandle);
  FIND(cuMemGetAllocationGranularity);
  FIND(cuMemGetAccess);
  FIND(cuMemRelease);
#undef FIND
  return true;
}

// Whether the fake driver of this run lacks a feature.
static bool lacks(const char *what) {
  const char *all = getenv("FAKE_CUDA_LACKS");
  return all != NULL && strstr(all, what) != NULL;
}

static int attribute(int which) {
  int value = 0;
  CHECK(cuda.cuDeviceGetAttribute(&value, which, device) == 0);
  return value;
}

static void check_driver(void *block) {
  if (!has_driver()) return;
  uint64_t handle = 0;
  properties got = {0};
  REQUIRE(cuda.cuMemRetainAllocationHandle(&handle, block) == 0);
  CHECK(cuda.cuMemGetAllocationPropertiesFromHandle(&got, handle) == 0);
  CHECK(cuda.cuMemRelease(handle) == 0);
  read_device(device);
  CHECK_EQUAL(got.rdma, attribute(ATTRIBUTE_RDMA));
  CHECK_EQUAL(got.rdma, (device_info.capabilities & GMM_DEVICE_CAN_RDMA) != 0);
  CHECK_EQUAL((got.handle_types & TYPE_FD) != 0, (device_info.capabilities & GMM_DEVICE_CAN_EXPORT_FD) != 0);
  CHECK_EQUAL((got.handle_types & TYPE_FABRIC) != 0, (device_info.capabilities & GMM_DEVICE_CAN_FABRIC) != 0);
  if (attribute(ATTRIBUTE_FABRIC) == 0) CHECK((got.handle_types & TYPE_FABRIC) == 0);
  if (lacks("imex")) CHECK(attribute(ATTRIBUTE_FABRIC) != 0 && (got.handle_types & TYPE_FABRIC) == 0);
  if (lacks("rdma")) CHECK(got.rdma == 0);
  size_t granularity = 0;
  CHECK(cuda.cuMemGetAllocationGranularity(&granularity, &got, RECOMMENDED) == 0);
  const gmm_pointer_info info = query(block);
  CHECK_MESSAGE(info.allocation_size % granularity == 0 && (uintptr_t)block % granularity == 0,
                "%p of %llu bytes is not of whole granules of %zu", block, (unsigned long long)info.allocation_size,
                granularity);
  for (uint32_t d = 0; d < device_count(); ++d) {
    const location where = {.type = ON_DEVICE, .id = (int)d};
    unsigned long long flags = 0;
    int can = (gmm_device)d == device;
    if (!can) CHECK(cuda.cuDeviceCanAccessPeer(&can, (int)d, device) == 0);
    CHECK(cuda.cuMemGetAccess(&flags, &where, (uintptr_t)block) == 0);
    CHECK_EQUAL(flags, can ? READ_WRITE : 0);
  }
}

static void *allocate(gmm_tag tag) {
  const gmm_alloc_desc desc = {.struct_size = sizeof desc, .device = device, .tag = tag, .flags = GMM_ALLOC_COMM};
  void *block = NULL;
  MUST(gmm_alloc(context, kSize, &desc, &block));
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
  if (device_info.capabilities & GMM_DEVICE_CAN_EXPORT_FD) {
    gmm_ipc_fd_info info = {.struct_size = sizeof info};
    OK(gmm_ipc_export_fd(context, block, GMM_FD_DEFAULT, &info));
    CHECK(info.offset == 0 && info.size == query(block).allocation_size);
    close(info.fd);
  }
}

CASE(other_kinds_are_refused) {
  const gmm_kind kinds[] = {GMM_KIND_DEVICE, GMM_KIND_HOST, GMM_KIND_MANAGED};
  for (unsigned i = 0; i < 3; ++i) {
    if (!has_kind(kinds[i])) continue;
    const gmm_alloc_desc desc = {
        .struct_size = sizeof desc, .kind = kinds[i], .device = device, .flags = GMM_ALLOC_COMM};
    void *block = &block;
    RESULT(gmm_alloc(context, kSize, &desc, &block), GMM_ERROR_INVALID_KIND);
    CHECK(block == NULL && message_has("GMM_ALLOC_COMM"));
  }
  gmm_heap *heap = HEAP();
  void *block = NULL;
  RESULT(gmm_heap_alloc(heap, kSize, 0, GMM_ALLOC_COMM, GMM_STREAM_DEFAULT, &block), GMM_ERROR_INVALID_KIND);
  OK(gmm_heap_destroy(heap));
  if (has_kind(GMM_KIND_VMM)) return;
  const gmm_alloc_desc desc = {.struct_size = sizeof desc, .device = device, .flags = GMM_ALLOC_COMM};
  RESULT(gmm_alloc(context, kSize, &desc, &block), GMM_ERROR_NOT_SUPPORTED);
}

int main(void) { return run_cases(); }
