// SPDX-License-Identifier: Apache-2.0
// The entries of the driver that the backend uses, each with the CUDA version of the signature that it calls.
//
// cuGetProcAddress() returns the newest variant that is not newer than the requested version. So a version here is the
// one that introduced the signature, not the newest one that the toolkit knows.
#ifndef GMM_BACKEND_CUDA_DRIVER_TABLE_H
#define GMM_BACKEND_CUDA_DRIVER_TABLE_H

#include <cuda.h>

#if CUDA_VERSION < 12000
#error "The CUDA backend needs the headers of CUDA 12.0 or newer."
#endif

// X(entry, version). Without one of these entries there is no backend.
#define GMM_CUDA_REQUIRED(X)          \
  X(cuInit, 2000)                     \
  X(cuDriverGetVersion, 2020)         \
  X(cuGetErrorName, 6000)             \
  X(cuGetErrorString, 6000)           \
  X(cuDeviceGetCount, 2000)           \
  X(cuDeviceGet, 2000)                \
  X(cuDeviceGetName, 2000)            \
  X(cuDeviceGetUuid, 11040)           \
  X(cuDeviceTotalMem, 3020)           \
  X(cuDeviceGetAttribute, 2000)       \
  X(cuDevicePrimaryCtxRetain, 7000)   \
  X(cuDevicePrimaryCtxRelease, 11000) \
  X(cuCtxGetCurrent, 4000)            \
  X(cuCtxPushCurrent, 4000)           \
  X(cuCtxPopCurrent, 4000)            \
  X(cuCtxGetDevice, 2000)             \
  X(cuCtxSynchronize, 2000)           \
  X(cuMemGetInfo, 3020)               \
  X(cuMemAlloc, 3020)                 \
  X(cuMemFree, 3020)                  \
  X(cuMemcpyAsync, 4000)              \
  X(cuMemsetD8Async, 3020)            \
  X(cuPointerGetAttributes, 7000)     \
  X(cuStreamCreateWithPriority, 5050) \
  X(cuStreamDestroy, 4000)            \
  X(cuStreamSynchronize, 2000)        \
  X(cuStreamGetCtx, 9020)             \
  X(cuStreamIsCapturing, 10000)       \
  X(cuStreamQuery, 2000)              \
  X(cuLaunchHostFunc, 10000)          \
  X(cuStreamWaitEvent, 3020)          \
  X(cuEventCreate, 2000)              \
  X(cuEventDestroy, 4000)             \
  X(cuEventRecord, 2000)              \
  X(cuEventSynchronize, 2000)         \
  X(cuEventQuery, 2000)

// X(entry, version). Without one of these entries the operations that need it fail with NOT_SUPPORTED.
#define GMM_CUDA_OPTIONAL(X)                       \
  X(cuDevicePrimaryCtxGetState, 7000)              \
  X(cuMemAllocManaged, 6000)                       \
  X(cuMemHostRegister, 6050)                       \
  X(cuMemHostUnregister, 4000)                     \
  X(cuMemHostGetDevicePointer, 3020)               \
  X(cuMemAddressReserve, 10020)                    \
  X(cuMemAddressFree, 10020)                       \
  X(cuMemCreate, 10020)                            \
  X(cuMemRelease, 10020)                           \
  X(cuMemMap, 10020)                               \
  X(cuMemUnmap, 10020)                             \
  X(cuMemSetAccess, 10020)                         \
  X(cuMemGetAllocationGranularity, 10020)          \
  X(cuMemGetAllocationPropertiesFromHandle, 10020) \
  X(cuMemRetainAllocationHandle, 11000)            \
  X(cuMemExportToShareableHandle, 10020)           \
  X(cuMemImportFromShareableHandle, 10020)         \
  X(cuIpcGetMemHandle, 4010)                       \
  X(cuIpcOpenMemHandle, 11000)                     \
  X(cuIpcCloseMemHandle, 4010)                     \
  X(cuIpcGetEventHandle, 4010)                     \
  X(cuIpcOpenEventHandle, 4010)                    \
  X(cuMemGetHandleForAddressRange, 11070)          \
  X(cuImportExternalMemory, 10000)                 \
  X(cuExternalMemoryGetMappedBuffer, 10000)        \
  X(cuDestroyExternalMemory, 10000)                \
  X(cuUserObjectCreate, 11030)                     \
  X(cuUserObjectRelease, 11030)                    \
  X(cuGraphRetainUserObject, 11030)                \
  X(cuThreadExchangeStreamCaptureMode, 10010)      \
  X(cuModuleLoadData, 2000)                        \
  X(cuModuleGetFunction, 2000)                     \
  X(cuModuleUnload, 2000)                          \
  X(cuLaunchKernel, 4000)

namespace gmm::cuda {

// CUDA 12.2 changed the signature of two entries, and cuda.h of CUDA 13 changed the meaning of `cuMemAdvise`. So both
// forms are written out.
using MemAdviseFn = CUresult(CUDAAPI *)(CUdeviceptr, size_t, CUmem_advise, CUmemLocation);
using MemAdviseOldFn = CUresult(CUDAAPI *)(CUdeviceptr, size_t, CUmem_advise, CUdevice);
using MemPrefetchFn = CUresult(CUDAAPI *)(CUdeviceptr, size_t, CUmemLocation, unsigned int, CUstream);
using MemPrefetchOldFn = CUresult(CUDAAPI *)(CUdeviceptr, size_t, CUdevice, CUstream);
// The form before 12.3 added edges, which gmm does not need. cuda.h names the newest form only.
using CaptureInfoFn = CUresult(CUDAAPI *)(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *,
                                          const CUgraphNode **, size_t *);
inline constexpr int kCaptureInfoVersion = 11030;
inline constexpr int kLocationVersion = 12020;
inline constexpr int kOldAdviceVersion = 8000;

// Numbers of the interface that not all headers of CUDA 12 name.
inline constexpr int kErrorNewerDriver = 36;  // 13.0: CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER
inline constexpr CUmemLocationType kLocationHost = static_cast<CUmemLocationType>(2);                      // 12.2
inline constexpr CUmemLocationType kLocationHostNuma = static_cast<CUmemLocationType>(3);                  // 12.2
inline constexpr CUdevice_attribute kAttributeHostNumaId = static_cast<CUdevice_attribute>(134);           // 12.2
inline constexpr CUdevice_attribute kAttributeDmaBuf = static_cast<CUdevice_attribute>(124);               // 11.7
inline constexpr CUexternalMemoryHandleType kExternalDmaBuf = static_cast<CUexternalMemoryHandleType>(9);  // 13.0
inline constexpr CUdevice_attribute kAttributeIpc = static_cast<CUdevice_attribute>(125);                  // 12.0

}  // namespace gmm::cuda
#endif
