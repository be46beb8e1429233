// SPDX-License-Identifier: Apache-2.0
#include "ipc_raw.h"

#include <fcntl.h>
#include <gmm/gmm.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "raw_cuda.h"

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

class CudaIpcRaw : public IpcRaw {
 protected:
  bool good(bool done) { return done || (error = cuda_.error, false); }
  bool good(CUresult result, const char *what) { return good(cuda_.good(result, what)); }
  RawCuda &cuda_ = raw_cuda();
  CUdeviceptr address_ = 0;
};

class LegacyRaw : public CudaIpcRaw {
 public:
  bool make(uint64_t size) override { return good(cuda_.driver.cuMemAlloc_v2(&address_, size), "cuMemAlloc"); }
  bool give(IpcRawMessage *out) override {
    CUipcMemHandle handle;
    if (!good(cuda_.driver.cuIpcGetMemHandle(&handle, address_), "cuIpcGetMemHandle")) return false;
    std::memcpy(out->bytes, handle.reserved, sizeof out->bytes);
    return true;
  }
  bool take(const IpcRawMessage &in) override {
    CUipcMemHandle handle;
    std::memcpy(handle.reserved, in.bytes, sizeof in.bytes);
    return good(cuda_.driver.cuIpcOpenMemHandle_v2(&address_, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                "cuIpcOpenMemHandle");
  }
  bool drop() override { return good(cuda_.driver.cuIpcCloseMemHandle(address_), "cuIpcCloseMemHandle"); }
};

class VmmRaw : public CudaIpcRaw {
 public:
  bool make(uint64_t size) override {
    size_ = size;
    return good(cuda_.create(size, kDescriptor, &handle_));
  }
  bool give(IpcRawMessage *out) override {
    std::memcpy(out->bytes, &size_, sizeof size_);
    return good(cuda_.driver.cuMemExportToShareableHandle(&out->fd, handle_, kDescriptor, 0),
                "cuMemExportToShareableHandle");
  }
  bool take(const IpcRawMessage &in) override {
    std::memcpy(&size_, in.bytes, sizeof size_);
    void *fd = reinterpret_cast<void *>(static_cast<intptr_t>(in.fd));
    return good(cuda_.driver.cuMemImportFromShareableHandle(&handle_, fd, kDescriptor),
                "cuMemImportFromShareableHandle") &&
           good(cuda_.reserve(size_, &address_) && cuda_.map(address_, size_, handle_) &&
                cuda_.set_access(address_, size_));
  }
  bool drop() override {
    return good(cuda_.unmap(address_, size_) && cuda_.release(handle_) && cuda_.unreserve(address_, size_));
  }

 private:
  static constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  uint64_t size_ = 0;
  CUmemGenericAllocationHandle handle_ = 0;
};

class PageLockedRaw : public FileRaw {
 public:
  PageLockedRaw() : FileRaw(true) {}

 private:
  bool good(CUresult result, const char *what) {
    return raw_cuda().good(result, what) || (error = raw_cuda().error, false);
  }
  bool lock() override {
    constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    return good(raw_cuda().driver.cuMemHostRegister_v2(memory_, size_, kFlags), "cuMemHostRegister");
  }
  bool unlock() override { return good(raw_cuda().driver.cuMemHostUnregister(memory_), "cuMemHostUnregister"); }
};

}  // namespace

std::unique_ptr<IpcRaw> ipc_raw(bool cuda, uint32_t kind, int32_t device, std::string *error) {
  if (!cuda) return std::make_unique<FileRaw>(kind == GMM_KIND_HOST);
  if (!raw_cuda().open(device)) return *error = raw_cuda().error, nullptr;
  if (kind == GMM_KIND_DEVICE) return std::make_unique<LegacyRaw>();
  if (kind == GMM_KIND_VMM) return std::make_unique<VmmRaw>();
  return std::make_unique<PageLockedRaw>();
}

}  // namespace gmm_bench
