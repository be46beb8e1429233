// SPDX-License-Identifier: Apache-2.0
// Descriptors that other libraries make or take: Vulkan's, and dma-buf.
#if defined(GMM_WITH_CUDA)

#include <cinttypes>

#include "backend/cuda/cuda_backend_impl.h"
#include "base/os_memory.h"

namespace gmm::cuda {

Status CudaBackend::export_dma_buf(const void *base, uint64_t size, int32_t *fd) {
  if (driver_.cuMemGetHandleForAddressRange == nullptr) return driver_.missing("cuMemGetHandleForAddressRange");
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_owner(guard, base));
  CaptureGuard capture(driver_);
  int exported = -1;
  count_call();
  Status status = driver_.check(
      driver_.cuMemGetHandleForAddressRange(&exported, to_driver(base), size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
      "cuMemGetHandleForAddressRange");
  if (!status.ok()) return prefix(status, "Exporting %" PRIu64 " bytes at %p as a dma-buf: ", size, base);
  *fd = exported;
  return Status();
}

Status CudaBackend::external_import(int32_t fd, gmm_fd_type type, uint64_t size, Device device, Allocation *out) {
  if (driver_.cuImportExternalMemory == nullptr || driver_.cuExternalMemoryGetMappedBuffer == nullptr ||
      driver_.cuDestroyExternalMemory == nullptr)
    return driver_.missing("cuImportExternalMemory");
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter(guard, device));
  CaptureGuard capture(driver_);
  int32_t own = -1;
  GMM_TRY(os::duplicate(fd, &own));
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC handle = {};
  handle.type = type == GMM_FD_DMA_BUF ? kExternalDmaBuf : CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  handle.handle.fd = own;
  handle.size = size;
  CUexternalMemory memory = nullptr;
  count_call();
  Status status = driver_.check(driver_.cuImportExternalMemory(&memory, &handle), "cuImportExternalMemory");
  if (!status.ok()) {
    // The descriptor is the driver's on success only.
    MessageGuard message;
    os::close_file(own).ignore();
  } else {
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer = {};
    buffer.size = size;
    CUdeviceptr address = 0;
    count_call();
    status = driver_.check(driver_.cuExternalMemoryGetMappedBuffer(&address, memory, &buffer),
                           "cuExternalMemoryGetMappedBuffer");
    if (status.ok()) {
      *out = Allocation();
      out->base = from_driver(address);
      out->size = out->driver_size = size;
      out->kind = Kind::kDevice;
      out->device = device;
      out->driver_base = memory;
      return Status();
    }
    MessageGuard message;
    count_call();
    if (const CUresult undone = driver_.cuDestroyExternalMemory(memory); undone != CUDA_SUCCESS)
      log_.write(LogLevel::kError, "An import from a descriptor stays: cuDestroyExternalMemory answered %d.",
                 static_cast<int>(undone));
  }
  return prefix(status, "Importing %" PRIu64 " bytes from file descriptor %d: ", size, fd);
}

Status CudaBackend::external_close(const Allocation &allocation) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter(guard, allocation.device));
  CaptureGuard capture(driver_);
  // The mapping goes before what is mapped. A second try after a failure in between finds it gone.
  count_call();
  const CUresult freed = driver_.cuMemFree(to_driver(allocation.base));
  if (freed != CUDA_ERROR_INVALID_VALUE) {
    Status status = driver_.check(freed, "cuMemFree");
    if (!status.ok())
      return prefix(status, "Closing %" PRIu64 " imported bytes at %p: ", allocation.size, allocation.base);
  }
  count_call();
  Status status = driver_.check(driver_.cuDestroyExternalMemory(static_cast<CUexternalMemory>(allocation.driver_base)),
                                "cuDestroyExternalMemory");
  return status.ok() ? status
                     : prefix(status, "Closing %" PRIu64 " imported bytes at %p: ", allocation.size, allocation.base);
}

}  // namespace gmm::cuda

#endif
