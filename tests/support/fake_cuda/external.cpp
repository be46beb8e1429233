// SPDX-License-Identifier: Apache-2.0
// Descriptors for and of other libraries: dma-buf, and external memory. Both carry the memory's own file here.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "state.h"

using namespace fake;

namespace {

struct External {
  std::shared_ptr<Backing> backing;
  size_t size;
  unsigned mapped = 0;
};
std::map<CUexternalMemory, std::shared_ptr<External>> &externals() {
  return forever<std::map<CUexternalMemory, std::shared_ptr<External>>>();
}

}  // namespace

namespace fake {
uint64_t live_externals() { return externals().size(); }
}  // namespace fake

extern "C" {

CUresult cuMemGetHandleForAddressRange(void *out, CUdeviceptr address, size_t size, CUmemRangeHandleType type,
                                       unsigned long long flags) {
  FAKE_CUDA_IN_CONTEXT(cuMemGetHandleForAddressRange, !out || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags ||
                                                          !size || address % kPage || size % kPage);
  Region *region = find_region(address);
  uintptr_t base = 0;
  Mapping *mapping = region ? nullptr : find_mapping(address, &base);
  std::shared_ptr<Backing> backing;
  if (region && region->kind == Kind::device && address - region->base + size <= region->size)
    backing = region->backing;
  if (mapping && address - base + size <= mapping->size) backing = mapping->physical->backing;
  if (!backing) return CUDA_ERROR_INVALID_VALUE;
  int fd = fcntl(backing->fd, F_DUPFD_CLOEXEC, 3);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int *>(out) = fd;
  return CUDA_SUCCESS;
}

CUresult cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc) {
  FAKE_CUDA_ENTER(cuImportExternalMemory);
  constexpr int kDmaBuf = 9;  // CUDA 13.0
  if (!out || !desc || desc->flags || (desc->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD && desc->type != kDmaBuf))
    return CUDA_ERROR_INVALID_VALUE;
  FAKE_CUDA_CONTEXT(context);
  int fd = fcntl(desc->handle.fd, F_DUPFD_CLOEXEC, 3);  // the caller's is taken over on success only
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  auto backing = adopt_backing(fd, 0);
  if (!backing || desc->size > backing->size) return CUDA_ERROR_INVALID_VALUE;
  close(desc->handle.fd);
  auto external = std::make_shared<External>(External{backing, desc->size});
  *out = reinterpret_cast<CUexternalMemory>(external.get());
  externals()[*out] = external;
  return CUDA_SUCCESS;
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *out, CUexternalMemory handle,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc) {
  FAKE_CUDA_IN_CONTEXT(cuExternalMemoryGetMappedBuffer);
  auto it = externals().find(handle);
  if (!out || !desc || desc->flags || it == externals().end()) return CUDA_ERROR_INVALID_VALUE;
  External &external = *it->second;
  if (desc->offset != 0 || desc->size == 0 || desc->size > external.size) return CUDA_ERROR_INVALID_VALUE;
  *out = add_view(external.backing, Kind::device, 0, desc->size, context);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuDestroyExternalMemory(CUexternalMemory handle) {
  FAKE_CUDA_IN_CONTEXT(cuDestroyExternalMemory);
  auto it = externals().find(handle);
  if (it == externals().end()) return CUDA_ERROR_INVALID_HANDLE;
  // The mapping must be freed before: then only the handle holds the bytes.
  if (it->second->backing.use_count() > 1) return CUDA_ERROR_INVALID_VALUE;
  externals().erase(it);
  return CUDA_SUCCESS;
}

}  // extern "C"
