// SPDX-License-Identifier: Apache-2.0
#include "ipc_raw.h"

#include <fcntl.h>
#include <gmm/gmm.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "../support/cuda_functions.h"

namespace gmm_bench {
namespace {

// A memory file, as the host backend and CUDA's page-locked memory have it.
class FileRaw : public IpcRaw {
 public:
  explicit FileRaw(bool locked) : locked_(locked) {}
  bool make(uint64_t size) override {
    fd_ = memfd_create("gmm-bench", MFD_CLOEXEC);
    if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(size)) != 0) return failed("memfd_create");
    size_ = size;
    void *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (memory == MAP_FAILED) return failed("mmap");
    std::memset(memory, 1, size);
    return true;
  }
  bool give(IpcRawMessage *out) override {
    std::memcpy(out->bytes, &size_, sizeof size_);
    out->fd = fcntl(fd_, F_DUPFD_CLOEXEC, 3);
    return out->fd >= 0 || failed("fcntl");
  }
  bool take(const IpcRawMessage &in) override {
    std::memcpy(&size_, in.bytes, sizeof size_);
    memory_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, in.fd, 0);
    if (memory_ == MAP_FAILED) return failed("mmap");
    return !locked_ || lock();
  }
  bool drop() override {
    if (locked_ && !unlock()) return false;
    return munmap(memory_, size_) == 0 || failed("munmap");
  }

 protected:
  virtual bool lock() {
    if (mlock(memory_, size_) == 0) return true;
    locked_ = false;  // not allowed here, as for gmm
    return true;
  }
  virtual bool unlock() { return true; }
  bool failed(const char *what) {
    error = std::string(what) + ": " + std::strerror(errno);
    return false;
  }
  bool locked_;
  int fd_ = -1;
  uint64_t size_ = 0;
  void *memory_ = nullptr;
};

}  // namespace

std::unique_ptr<IpcRaw> host_ipc_raw(uint32_t kind) { return std::make_unique<FileRaw>(kind == GMM_KIND_HOST); }

namespace {

// The device's primary context stays current on this thread.
bool open_driver(int32_t device, cuda_driver *out, CUdevice *ordinal, std::string *error) {
  if (const char *missing = cuda_driver_open(out); missing != nullptr) return *error = missing, false;
  CUcontext context = nullptr;
  if (out->cuInit(0) == CUDA_SUCCESS && out->cuDeviceGet(ordinal, device) == CUDA_SUCCESS &&
      out->cuDevicePrimaryCtxRetain(&context, *ordinal) == CUDA_SUCCESS &&
      out->cuCtxSetCurrent(context) == CUDA_SUCCESS)
    return true;
  *error = "the device's context cannot be opened";
  return false;
}

class CudaIpcRaw : public IpcRaw {
 public:
  CudaIpcRaw(const cuda_driver &driver, CUdevice device) : driver_(driver), device_(device) {}

 protected:
  bool good(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS) return true;
    error = std::string(what) + ": CUresult " + std::to_string(result);
    return false;
  }
  const cuda_driver driver_;
  const CUdevice device_;
  uint64_t size_ = 0;
  CUdeviceptr address_ = 0;
};

class LegacyRaw : public CudaIpcRaw {
 public:
  using CudaIpcRaw::CudaIpcRaw;
  bool make(uint64_t size) override { return good(driver_.cuMemAlloc_v2(&address_, size), "cuMemAlloc"); }
  bool give(IpcRawMessage *out) override {
    CUipcMemHandle handle;
    if (!good(driver_.cuIpcGetMemHandle(&handle, address_), "cuIpcGetMemHandle")) return false;
    std::memcpy(out->bytes, handle.reserved, sizeof out->bytes);
    return true;
  }
  bool take(const IpcRawMessage &in) override {
    CUipcMemHandle handle;
    std::memcpy(handle.reserved, in.bytes, sizeof in.bytes);
    return good(driver_.cuIpcOpenMemHandle_v2(&address_, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                "cuIpcOpenMemHandle");
  }
  bool drop() override { return good(driver_.cuIpcCloseMemHandle(address_), "cuIpcCloseMemHandle"); }
};

class VmmRaw : public CudaIpcRaw {
 public:
  using CudaIpcRaw::CudaIpcRaw;
  bool make(uint64_t size) override {
    size_ = size;
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
    return good(driver_.cuMemCreate(&handle_, size, &properties, 0), "cuMemCreate");
  }
  bool give(IpcRawMessage *out) override {
    std::memcpy(out->bytes, &size_, sizeof size_);
    return good(driver_.cuMemExportToShareableHandle(&out->fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                "cuMemExportToShareableHandle");
  }
  bool take(const IpcRawMessage &in) override {
    std::memcpy(&size_, in.bytes, sizeof size_);
    CUmemAccessDesc access = {};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    void *fd = reinterpret_cast<void *>(static_cast<intptr_t>(in.fd));
    return good(driver_.cuMemImportFromShareableHandle(&handle_, fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                "cuMemImportFromShareableHandle") &&
           good(driver_.cuMemAddressReserve(&address_, size_, uint64_t{2} << 20, 0, 0), "cuMemAddressReserve") &&
           good(driver_.cuMemMap(address_, size_, 0, handle_, 0), "cuMemMap") &&
           good(driver_.cuMemSetAccess(address_, size_, &access, 1), "cuMemSetAccess");
  }
  bool drop() override {
    return good(driver_.cuMemUnmap(address_, size_), "cuMemUnmap") &&
           good(driver_.cuMemRelease(handle_), "cuMemRelease") &&
           good(driver_.cuMemAddressFree(address_, size_), "cuMemAddressFree");
  }

 private:
  CUmemGenericAllocationHandle handle_ = 0;
};

class PageLockedRaw : public FileRaw {
 public:
  explicit PageLockedRaw(const cuda_driver &driver) : FileRaw(true), driver_(driver) {}

 private:
  bool lock() override {
    return driver_.cuMemHostRegister_v2(memory_, size_, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP) ==
               CUDA_SUCCESS ||
           failed("cuMemHostRegister");
  }
  bool unlock() override {
    return driver_.cuMemHostUnregister(memory_) == CUDA_SUCCESS || failed("cuMemHostUnregister");
  }
  const cuda_driver driver_;
};

}  // namespace

std::unique_ptr<IpcRaw> cuda_ipc_raw(uint32_t kind, int32_t device, std::string *error) {
  cuda_driver driver = {};
  CUdevice ordinal = 0;
  if (!open_driver(device, &driver, &ordinal, error)) return nullptr;
  if (kind == GMM_KIND_DEVICE) return std::make_unique<LegacyRaw>(driver, ordinal);
  if (kind == GMM_KIND_VMM) return std::make_unique<VmmRaw>(driver, ordinal);
  return std::make_unique<PageLockedRaw>(driver);
}

}  // namespace gmm_bench
