// SPDX-License-Identifier: Apache-2.0
// Plain allocations and the caller's own memory.
#if defined(GMM_WITH_CUDA)

#include <gmm/pin.h>
#include <sys/mman.h>

#include <cerrno>
#include <cinttypes>

#include "backend/cuda/cuda_backend_impl.h"
#include "base/os_memory.h"

namespace gmm::cuda {
namespace {

uint64_t misalignment(CUdeviceptr address) { return address & (kExtentAlignment - 1); }

// Takes the pages now: page-locking memory that was touched is far faster than page-locking holes. Pages of a file that are
// there already are mapped several at a time by a read, which leaves them writable in a shared mapping, and one by one by a write.
Status touch(void *base, uint64_t size, bool there) {
#if defined(MADV_POPULATE_READ) && defined(MADV_POPULATE_WRITE)
  if (Status status = os::advise_pages(base, size, there ? MADV_POPULATE_READ : MADV_POPULATE_WRITE);
      status.ok() || last_native() != EINVAL)
    return status;
#endif
  // Kernels before 5.14.
  const uint64_t page = os::page_size();
  for (uint64_t offset = 0; offset < size; offset += page) {
    volatile char *byte = static_cast<volatile char *>(base) + offset;
    *byte = *byte;
  }
  return Status();
}

}  // namespace

CUresult CudaBackend::driver_allocate(Kind kind, uint64_t size, CUdeviceptr *out) {
  count_call();
  return kind == Kind::kManaged ? driver_.cuMemAllocManaged(out, size, CU_MEM_ATTACH_GLOBAL)
                                : driver_.cuMemAlloc(out, size);
}

Status CudaBackend::allocate_device(Kind kind, Device device, uint64_t size, Allocation *out) {
  const char *entry = kind == Kind::kManaged ? "cuMemAllocManaged" : "cuMemAlloc";
  const auto refused = [&](CUresult result, const char *which) {
    return prefix(driver_.failed(result, which), "Allocating %" PRIu64 " bytes on CUDA device %d: ", size,
                  device.ordinal);
  };
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter(guard, device));
  CaptureGuard capture(driver_);
  CUdeviceptr address = 0;
  uint64_t driver_size = size;
  if (CUresult result = driver_allocate(kind, size, &address); result != CUDA_SUCCESS) return refused(result, entry);
  if (misalignment(address) != 0) {
    // Seen with no driver for sizes like ours, but only 256 bytes are promised.
    count_call();
    CUresult result = driver_.cuMemFree(address);
    if (result != CUDA_SUCCESS) {
      count_call();
      (void)driver_.cuMemFree(address);  // whatever stood in the way may be over; the first answer is the one told
      return refused(result, "cuMemFree");
    }
    driver_size = size + kExtentAlignment;
    if (result = driver_allocate(kind, driver_size, &address); result != CUDA_SUCCESS) return refused(result, entry);
  }
  *out = Allocation();
  out->base = from_driver((address + kExtentAlignment - 1) & ~(kExtentAlignment - 1));
  out->size = size;
  out->kind = kind;
  out->device = device;
  out->driver_base = from_driver(address);
  out->driver_size = driver_size;
  return Status();
}

// Maps the file, page-locks it for every device, and leaves `fd` to the caller when that fails. `there`: another process has its pages.
Status CudaBackend::register_file(int32_t fd, uint64_t size, Device device, bool there, Allocation *out) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter(guard, device));
  void *base = nullptr;
  GMM_TRY(os::map_file(size, kExtentAlignment, fd, os::Access::kReadWrite, &base));
  Status status = touch(base, size, there);
  if (status.ok()) {
    CaptureGuard capture(driver_);
    count_call();
    status =
        driver_.check(driver_.cuMemHostRegister(base, size, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
                      "cuMemHostRegister");
    if (status.code() == GMM_ERROR_OUT_OF_MEMORY) status = Status(GMM_ERROR_OUT_OF_HOST_MEMORY);
    if (!status.ok())
      prefix(status, "Page-locking %" PRIu64 " bytes of host memory: ", size).ignore();  // returned below
  }
  if (!status.ok()) {
    MessageGuard message;
    if (!os::unmap(base, size).ok())
      log_.write(LogLevel::kError, "%" PRIu64 " bytes at %p stay mapped: %s", size, base, last_message());
    return status;
  }
  *out = Allocation();
  out->base = base;
  out->size = size;
  out->kind = Kind::kHost;
  out->device = device;
  out->driver_base = base;
  out->driver_size = size;
  out->fd = fd;
  return Status();
}

Status CudaBackend::allocate_host(Device device, uint64_t size, Allocation *out) {
  GMM_TRY(os::check_available(size, GMM_ERROR_OUT_OF_HOST_MEMORY));
  int32_t fd = -1;
  GMM_TRY(os::memory_file_create("gmm-host", size, &fd));
  count_call();
  Status status = register_file(fd, size, device, false, out);
  if (!status.ok()) {
    MessageGuard message;
    os::close_file(fd).ignore();  // the failure that led here is the one to tell
  }
  return status;
}

Status CudaBackend::allocate(Kind kind, Device device, uint64_t size, Allocation *out) {
  DeviceState *state = nullptr;
  GMM_TRY(state_of(device, &state));
  switch (kind) {
    case Kind::kDevice:
      return allocate_device(kind, device, size, out);
    case Kind::kManaged:
      if (!state->managed) return device_lacks(device, "managed memory", "CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY");
      return allocate_device(kind, device, size, out);
    case Kind::kHost:
      if (!state->pin)
        return device_lacks(device, "page-locked host memory", "CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED");
      if (!state->pin_same_address)
        return device_lacks(device, "page-locked host memory at one address",
                            "CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM");
      return allocate_host(device, size, out);
    default:
      return fail(GMM_ERROR_INVALID_KIND, "Kind %u is no plain allocation; use DEVICE, HOST or MANAGED.",
                  static_cast<unsigned>(kind));
  }
}

Status CudaBackend::import_host(int32_t fd, uint64_t size, Device device, bool, Allocation *out) {
  DeviceState *state = nullptr;
  GMM_TRY(state_of(device, &state));
  if (!state->pin || !state->pin_same_address)
    return device_lacks(device, "page-locked host memory at one address",
                        "CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM");
  GMM_TRY(os::memory_file_check(fd, size));
  return register_file(fd, size, device, true, out);
}

Status CudaBackend::deallocate(const Allocation &allocation) {
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter(guard, allocation.device));
  CaptureGuard capture(driver_);
  count_call();
  if (allocation.kind != Kind::kHost) {
    Status status = driver_.check(driver_.cuMemFree(to_driver(allocation.driver_base)), "cuMemFree");
    return status.ok() ? status
                       : prefix(status, "Freeing %" PRIu64 " bytes at %p: ", allocation.size, allocation.driver_base);
  }
  Status status = driver_.check(driver_.cuMemHostUnregister(allocation.base), "cuMemHostUnregister");
  if (!status.ok())
    return prefix(status, "Freeing %" PRIu64 " bytes of host memory at %p: ", allocation.size, allocation.base);
  // From here on the memory is gone for the driver. What remains cannot fail for a range and a file that are ours.
  count_call();
  status = os::unmap(allocation.base, allocation.size);
  if (allocation.fd >= 0) {
    Status closed = os::close_file(allocation.fd);
    if (status.ok()) status = closed;
  }
  return status;
}

Status CudaBackend::pin(void *base, uint64_t size, uint32_t flags, Device device, void **device_pointer) {
  DeviceState *state = nullptr;
  GMM_TRY(state_of(device, &state));
  if (!state->pin) return device_lacks(device, "pinning", "CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED");
  unsigned int driver_flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  if ((flags & GMM_PIN_READ_ONLY) != 0) {
    if (!state->pin_read_only)
      return device_lacks(device, "read-only pinning", "CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED");
    driver_flags |= CU_MEMHOSTREGISTER_READ_ONLY;
  }
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter(guard, device));
  CaptureGuard capture(driver_);
  count_call();
  const CUresult result = driver_.cuMemHostRegister(base, size, driver_flags);
  if (result != CUDA_SUCCESS) {
    Status status = driver_.failed(result, "cuMemHostRegister");
    if (result == CUDA_ERROR_OUT_OF_MEMORY) status = Status(GMM_ERROR_OUT_OF_HOST_MEMORY);
    if (result == CUDA_ERROR_INVALID_VALUE) {
      // The driver's word for pages that it could not lock; the arguments are in order.
      return prefix(Status(GMM_ERROR_SYSTEM),
                    "Pinning %" PRIu64
                    " bytes at %p: the range must be mapped as a whole, writable unless pinned read-only, and "
                    "within ulimit -l: ",
                    size, base);
    }
    return prefix(status, "Pinning %" PRIu64 " bytes at %p: ", size, base);
  }
  CUdeviceptr address = 0;
  Status status = driver_.check(driver_.cuMemHostGetDevicePointer(&address, base, 0), "cuMemHostGetDevicePointer");
  if (!status.ok()) {
    prefix(status, "Pinning %" PRIu64 " bytes at %p for device %d: ", size, base, device.ordinal)
        .ignore();  // returned below
    count_call();
    if (CUresult undone = driver_.cuMemHostUnregister(base); undone != CUDA_SUCCESS)
      log_.write(LogLevel::kError, "%p stays page-locked: cuMemHostUnregister answered %d.", base,
                 static_cast<int>(undone));
    return status;
  }
  *device_pointer = from_driver(address);
  return Status();
}

Status CudaBackend::unpin(void *base, uint64_t size) {
  if (driver_.cuMemHostUnregister == nullptr) return driver_.missing("cuMemHostUnregister");
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_any(guard));
  CaptureGuard capture(driver_);
  count_call();
  Status status = driver_.check(driver_.cuMemHostUnregister(base), "cuMemHostUnregister");
  return status.ok() ? status : prefix(status, "Unpinning %" PRIu64 " bytes at %p: ", size, base);
}

}  // namespace gmm::cuda

#endif
