// SPDX-License-Identifier: Apache-2.0
// The CUDA driver's own calls, with which gmm is compared: libcuda alone, without gmm and the CUDA runtime.
#ifndef GMM_BENCH_RAW_CUDA_H
#define GMM_BENCH_RAW_CUDA_H

#include <cstdint>
#include <string>

#include "../support/cuda_functions.h"

namespace gmm_bench {

// Functions that return bool: false leaves the reason in error. On one thread.
struct RawCuda {
  cuda_driver driver = {};
  CUdevice device = 0;
  CUstream stream = nullptr;
  uint64_t calls = 0;  // those that get, map, unmap and give back memory
  std::string error;

  // The device's primary context is current on this thread until the process ends.
  bool open(int32_t ordinal) {
    if (stream != nullptr) return true;
    if (const char *missing = cuda_driver_open(&driver); missing != nullptr) return error = missing, false;
    CUcontext context = nullptr;
    return good(driver.cuInit(0), "cuInit") && good(driver.cuDeviceGet(&device, ordinal), "cuDeviceGet") &&
           good(driver.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain") &&
           good(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent") &&
           good(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  bool good(CUresult result, const char *what) {
    if (result == CUDA_SUCCESS) return true;
    const char *name = nullptr;
    (void)driver.cuGetErrorName(result, &name);
    return error = std::string(what) + ": " + (name != nullptr ? name : std::to_string(result)), false;
  }
  bool counted(CUresult result, const char *what) { return ++calls, good(result, what); }

  bool create(uint64_t size, CUmemAllocationHandleType shared_by, CUmemGenericAllocationHandle *out) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = shared_by;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    return counted(driver.cuMemCreate(out, size, &properties, 0), "cuMemCreate");
  }
  bool reserve(uint64_t size, CUdeviceptr *out) {
    return counted(driver.cuMemAddressReserve(out, size, uint64_t{2} << 20, 0, 0), "cuMemAddressReserve");
  }
  bool unreserve(CUdeviceptr base, uint64_t size) {
    return counted(driver.cuMemAddressFree(base, size), "cuMemAddressFree");
  }
  bool map(CUdeviceptr base, uint64_t size, CUmemGenericAllocationHandle handle) {
    return counted(driver.cuMemMap(base, size, 0, handle, 0), "cuMemMap");
  }
  bool set_access(CUdeviceptr base, uint64_t size) {
    CUmemAccessDesc access = {};
    access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return counted(driver.cuMemSetAccess(base, size, &access, 1), "cuMemSetAccess");
  }
  bool unmap(CUdeviceptr base, uint64_t size) { return counted(driver.cuMemUnmap(base, size), "cuMemUnmap"); }
  bool release(CUmemGenericAllocationHandle handle) { return counted(driver.cuMemRelease(handle), "cuMemRelease"); }

  // Copies are queued until wait().
  bool copy_out(void *host, CUdeviceptr from, uint64_t size) {
    return good(driver.cuMemcpyDtoHAsync_v2(host, from, size, stream), "cuMemcpyDtoHAsync");
  }
  bool copy_in(CUdeviceptr to, const void *host, uint64_t size) {
    return good(driver.cuMemcpyHtoDAsync_v2(to, host, size, stream), "cuMemcpyHtoDAsync");
  }
  bool wait() { return good(driver.cuStreamSynchronize(stream), "cuStreamSynchronize"); }
};

// The one of the process.
inline RawCuda &raw_cuda() {
  static RawCuda raw;
  return raw;
}

}  // namespace gmm_bench
#endif
