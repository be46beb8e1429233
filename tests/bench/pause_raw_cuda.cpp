// SPDX-License-Identifier: Apache-2.0
// Raw on CUDA: libcuda alone, opened here, so that nothing of gmm and of the CUDA runtime takes part.
#include "../support/cuda_functions.h"
#include "pause_raw.h"

namespace gmm_bench {
namespace {

CUdeviceptr pointer(const char *base) { return reinterpret_cast<CUdeviceptr>(base); }

class CudaRaw : public Raw {
 public:
  bool open(int32_t device) {
    if (stream_ != nullptr) return device == device_ || fail("one device a process");
    if (const char *missing = cuda_driver_open(&driver_); missing != nullptr) return fail(missing);
    CUcontext context = nullptr;
    device_ = device;
    // Both stay until the process ends.
    return good(driver_.cuInit(0), "cuInit") && good(driver_.cuDeviceGet(&ordinal_, device), "cuDeviceGet") &&
           good(driver_.cuDevicePrimaryCtxRetain(&context, ordinal_), "cuDevicePrimaryCtxRetain") &&
           good(driver_.cuCtxSetCurrent(context), "cuCtxSetCurrent") &&
           good(driver_.cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }

  bool reserve(uint64_t size, char **out) override {
    ++calls_;
    CUdeviceptr base = 0;
    if (!good(driver_.cuMemAddressReserve(&base, size, 0, 0, 0), "cuMemAddressReserve")) return false;
    *out = reinterpret_cast<char *>(base);
    return true;
  }
  bool unreserve(char *base, uint64_t size) override {
    ++calls_;
    return good(driver_.cuMemAddressFree(pointer(base), size), "cuMemAddressFree");
  }
  bool create(uint64_t size, uint64_t *handle) override {
    ++calls_;
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location();
    CUmemGenericAllocationHandle made = 0;
    if (!good(driver_.cuMemCreate(&made, size, &properties, 0), "cuMemCreate")) return false;
    *handle = made;
    return true;
  }
  bool map(char *base, uint64_t size, uint64_t handle) override {
    ++calls_;
    return good(driver_.cuMemMap(pointer(base), size, 0, handle, 0), "cuMemMap");
  }
  bool set_access(char *base, uint64_t size) override {
    ++calls_;
    CUmemAccessDesc access = {};
    access.location = location();
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return good(driver_.cuMemSetAccess(pointer(base), size, &access, 1), "cuMemSetAccess");
  }
  bool unmap(char *base, uint64_t size) override {
    ++calls_;
    return good(driver_.cuMemUnmap(pointer(base), size), "cuMemUnmap");
  }
  bool release(uint64_t handle) override {
    ++calls_;
    return good(driver_.cuMemRelease(handle), "cuMemRelease");
  }

  bool host_alloc(uint64_t size, char **out) override {
    ++calls_;
    void *base = nullptr;
    if (!good(driver_.cuMemHostAlloc(&base, size, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc")) return false;
    *out = static_cast<char *>(base);
    return true;
  }
  bool host_free(char *base, uint64_t) override {
    ++calls_;
    return good(driver_.cuMemFreeHost(base), "cuMemFreeHost");
  }
  bool lock(char *base, uint64_t size) override {
    return good(driver_.cuMemHostRegister_v2(base, size, CU_MEMHOSTREGISTER_PORTABLE), "cuMemHostRegister");
  }
  bool unlock(char *base, uint64_t) override { return good(driver_.cuMemHostUnregister(base), "cuMemHostUnregister"); }

  bool copy_out(char *host, const char *device, uint64_t size) override {
    return good(driver_.cuMemcpyDtoHAsync_v2(host, pointer(device), size, stream_), "cuMemcpyDtoHAsync");
  }
  bool copy_in(char *device, const char *host, uint64_t size) override {
    return good(driver_.cuMemcpyHtoDAsync_v2(pointer(device), host, size, stream_), "cuMemcpyHtoDAsync");
  }
  bool wait() override { return good(driver_.cuStreamSynchronize(stream_), "cuStreamSynchronize"); }

 private:
  CUmemLocation location() const {
    CUmemLocation out = {};
    out.type = CU_MEM_LOCATION_TYPE_DEVICE;
    out.id = ordinal_;
    return out;
  }
  bool good(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS) return true;
    const char *name = nullptr;
    (void)driver_.cuGetErrorName(result, &name);
    return fail(std::string(what) + ": " + (name != nullptr ? name : std::to_string(result)));
  }

  cuda_driver driver_ = {};
  CUdevice ordinal_ = 0;
  int32_t device_ = 0;
  CUstream stream_ = nullptr;
};

}  // namespace

Raw *cuda_raw(int32_t device, std::string *error) {
  static CudaRaw raw;
  if (raw.open(device)) return &raw;
  *error = raw.error();
  return nullptr;
}

}  // namespace gmm_bench
