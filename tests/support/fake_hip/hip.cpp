// SPDX-License-Identifier: Apache-2.0
// HIP's names over the fake driver. A function that is CUDA's by another name is that function.
#include "../fake_cuda/state.h"
#include "backend/gpu/hip_api.h"

using namespace fake;

namespace {

CUcontext primary_of(int device) { return reinterpret_cast<CUcontext>(&state().contexts[device]); }
int device_of(CUcontext context) { return context ? reinterpret_cast<Context *>(context)->device : 0; }

}  // namespace

extern "C" {

extern const char fake_is_hip;
const char fake_is_hip = 1;

#define SAME(name, suffix, hip)                                        \
  static name##suffix##_fn *find_##hip(void) { return &name##suffix; } \
  name##suffix##_fn hip __attribute__((ifunc("find_" #hip)));
#define ADAPTED(name, hip)
GMM_HIP_ENTRIES(SAME, ADAPTED)
SAME(cuPointerGetAttributes, , hipDrvPointerGetAttributes)
SAME(cuMemGetAddressRange, _v2, hipMemGetAddressRange)
SAME(cuMemAddressReserve, , hipMemAddressReserve)
SAME(cuMemAddressFree, , hipMemAddressFree)
SAME(cuMemMap, , hipMemMap)
SAME(cuMemUnmap, , hipMemUnmap)
SAME(cuMemSetAccess, , hipMemSetAccess)
SAME(cuImportExternalMemory, , hipImportExternalMemory)
SAME(cuMemsetD8Async, , hipMemsetD8Async)
SAME(cuMemGetHandleForAddressRange, , hipMemGetHandleForAddressRange)

hipGetDevice_fn hipGetDevice;
hipSetDevice_fn hipSetDevice;
hipDeviceGetAttribute_fn hipDeviceGetAttribute;
hipStreamGetDevice_fn hipStreamGetDevice;
hipMemcpyAsync_fn hipMemcpyAsync;

CUresult hipGetDevice(int *device) {
  CUcontext context = nullptr;
  const CUresult result = cuCtxGetCurrent(&context);
  *device = device_of(context);
  return result;
}

CUresult hipSetDevice(int device) {
  if (!valid_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  start_all_devices();
  return cuCtxSetCurrent(primary_of(device));
}

CUresult hipDeviceGetAttribute(int *out, int number, int device) {
#define ATTRIBUTE(name, hip, its_number) \
  if (number == (its_number)) return cuDeviceGetAttribute(out, CU_DEVICE_ATTRIBUTE_##name, device);
  GMM_HIP_ATTRIBUTES(ATTRIBUTE)
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult hipStreamGetDevice(CUstream stream, int *device) {
  CUcontext context = nullptr;
  const CUresult result = cuStreamGetCtx(stream, &context);
  *device = device_of(context);
  return result;
}

CUresult hipMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, int, CUstream stream) {
  return cuMemcpyAsync(to, from, size, stream);
}

}  // extern "C"
