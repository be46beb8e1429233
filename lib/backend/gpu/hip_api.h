// SPDX-License-Identifier: Apache-2.0
// HIP's interface (libamdhip64.so of ROCm 6.3 or newer) as far as it stands in for the functions of driver_api.h. Most
// of HIP's functions are CUDA's under other names: their parameters are passed alike, and their numbers, flags and
// structs are the same. Where the build finds HIP's headers, it compiles this page against them
// (tests/support/check_hip_api.py).
#ifndef GMM_BACKEND_GPU_HIP_API_H
#define GMM_BACKEND_GPU_HIP_API_H

#include "backend/gpu/driver_api.h"

// SAME(CUDA's name, its suffix, HIP's name): HIP's function takes its place as it is.
// ADAPTED(CUDA's name, HIP's name in messages): hip.cpp has a function for it.
#define GMM_HIP_ENTRIES(SAME, ADAPTED)                                                    \
  SAME(cuInit, , hipInit)                                                                 \
  SAME(cuDriverGetVersion, , hipDriverGetVersion)                                         \
  SAME(cuGetErrorName, , hipDrvGetErrorName)                                              \
  SAME(cuGetErrorString, , hipDrvGetErrorString)                                          \
  SAME(cuDeviceGetCount, , hipGetDeviceCount)                                             \
  SAME(cuDeviceGet, , hipDeviceGet)                                                       \
  SAME(cuDeviceGetName, , hipDeviceGetName)                                               \
  SAME(cuDeviceGetUuid, _v2, hipDeviceGetUuid)                                            \
  SAME(cuDeviceTotalMem, _v2, hipDeviceTotalMem)                                          \
  ADAPTED(cuDeviceGetAttribute, hipDeviceGetAttribute)                                    \
  SAME(cuDeviceCanAccessPeer, , hipDeviceCanAccessPeer)                                   \
  ADAPTED(cuDevicePrimaryCtxRetain, hipSetDevice)                                         \
  ADAPTED(cuDevicePrimaryCtxRelease, hipSetDevice)                                        \
  ADAPTED(cuDevicePrimaryCtxGetState, hipGetDevice)                                       \
  ADAPTED(cuCtxGetCurrent, hipGetDevice)                                                  \
  ADAPTED(cuCtxPushCurrent, hipSetDevice)                                                 \
  ADAPTED(cuCtxPopCurrent, hipSetDevice)                                                  \
  ADAPTED(cuCtxGetDevice, hipGetDevice)                                                   \
  SAME(cuCtxSynchronize, , hipDeviceSynchronize)                                          \
  SAME(cuMemGetInfo, _v2, hipMemGetInfo)                                                  \
  SAME(cuMemAlloc, _v2, hipMalloc)                                                        \
  SAME(cuMemFree, _v2, hipFree)                                                           \
  SAME(cuMemAllocManaged, , hipMallocManaged)                                             \
  SAME(cuMemHostRegister, _v2, hipHostRegister)                                           \
  SAME(cuMemHostUnregister, , hipHostUnregister)                                          \
  SAME(cuMemHostGetDevicePointer, _v2, hipHostGetDevicePointer)                           \
  ADAPTED(cuPointerGetAttributes, hipDrvPointerGetAttributes)                             \
  SAME(cuMemGetAllocationGranularity, , hipMemGetAllocationGranularity)                   \
  ADAPTED(cuMemAddressReserve, hipMemAddressReserve)                                      \
  ADAPTED(cuMemAddressFree, hipMemAddressFree)                                            \
  SAME(cuMemCreate, , hipMemCreate)                                                       \
  SAME(cuMemRelease, , hipMemRelease)                                                     \
  ADAPTED(cuMemMap, hipMemMap)                                                            \
  ADAPTED(cuMemUnmap, hipMemUnmap)                                                        \
  ADAPTED(cuMemSetAccess, hipMemSetAccess)                                                \
  SAME(cuMemRetainAllocationHandle, , hipMemRetainAllocationHandle)                       \
  SAME(cuMemGetAllocationPropertiesFromHandle, , hipMemGetAllocationPropertiesFromHandle) \
  SAME(cuMemExportToShareableHandle, , hipMemExportToShareableHandle)                     \
  SAME(cuMemImportFromShareableHandle, , hipMemImportFromShareableHandle)                 \
  SAME(cuIpcGetMemHandle, , hipIpcGetMemHandle)                                           \
  SAME(cuIpcOpenMemHandle, _v2, hipIpcOpenMemHandle)                                      \
  SAME(cuIpcCloseMemHandle, , hipIpcCloseMemHandle)                                       \
  SAME(cuIpcGetEventHandle, , hipIpcGetEventHandle)                                       \
  SAME(cuIpcOpenEventHandle, , hipIpcOpenEventHandle)                                     \
  ADAPTED(cuMemGetHandleForAddressRange, hipMemGetHandleForAddressRange)                  \
  ADAPTED(cuImportExternalMemory, hipImportExternalMemory)                                \
  SAME(cuExternalMemoryGetMappedBuffer, , hipExternalMemoryGetMappedBuffer)               \
  SAME(cuDestroyExternalMemory, , hipDestroyExternalMemory)                               \
  SAME(cuImportExternalSemaphore, , hipImportExternalSemaphore)                           \
  SAME(cuSignalExternalSemaphoresAsync, , hipSignalExternalSemaphoresAsync)               \
  SAME(cuWaitExternalSemaphoresAsync, , hipWaitExternalSemaphoresAsync)                   \
  SAME(cuDestroyExternalSemaphore, , hipDestroyExternalSemaphore)                         \
  SAME(cuMemAdvise, , hipMemAdvise)                                                       \
  SAME(cuMemPrefetchAsync, , hipMemPrefetchAsync)                                         \
  SAME(cuStreamCreateWithPriority, , hipStreamCreateWithPriority)                         \
  SAME(cuStreamDestroy, _v2, hipStreamDestroy)                                            \
  SAME(cuStreamSynchronize, , hipStreamSynchronize)                                       \
  SAME(cuStreamQuery, , hipStreamQuery)                                                   \
  SAME(cuStreamWaitEvent, , hipStreamWaitEvent)                                           \
  ADAPTED(cuStreamGetCtx, hipStreamGetDevice)                                             \
  SAME(cuStreamIsCapturing, , hipStreamIsCapturing)                                       \
  SAME(cuStreamGetCaptureInfo, _v2, hipStreamGetCaptureInfo_v2)                           \
  SAME(cuGraphRetainUserObject, , hipGraphRetainUserObject)                               \
  SAME(cuUserObjectCreate, , hipUserObjectCreate)                                         \
  SAME(cuUserObjectRelease, , hipUserObjectRelease)                                       \
  SAME(cuThreadExchangeStreamCaptureMode, , hipThreadExchangeStreamCaptureMode)           \
  SAME(cuLaunchHostFunc, , hipLaunchHostFunc)                                             \
  SAME(cuEventCreate, , hipEventCreateWithFlags)                                          \
  SAME(cuEventDestroy, _v2, hipEventDestroy)                                              \
  SAME(cuEventRecord, , hipEventRecord)                                                   \
  SAME(cuEventQuery, , hipEventQuery)                                                     \
  SAME(cuEventSynchronize, , hipEventSynchronize)                                         \
  ADAPTED(cuMemcpyAsync, hipMemcpyAsync)                                                  \
  ADAPTED(cuMemsetD8Async, hipMemsetD8Async)                                              \
  SAME(cuDeviceGetDefaultMemPool, , hipDeviceGetDefaultMemPool)                           \
  SAME(cuMemPoolGetAttribute, , hipMemPoolGetAttribute)                                   \
  SAME(cuDeviceGetGraphMemAttribute, , hipDeviceGetGraphMemAttribute)

// REQUIRED(HIP's name, parameters): the functions behind those of hip.cpp, each with a result as CUDA's are.
// OPTIONAL: ROCm 6.3 lacks it.
#define GMM_HIP_FUNCTIONS(REQUIRED, OPTIONAL)                                                          \
  REQUIRED(hipDriverGetVersion, (int *))                                                               \
  REQUIRED(hipGetDevice, (int *))                                                                      \
  REQUIRED(hipSetDevice, (int))                                                                        \
  REQUIRED(hipDeviceGetAttribute, (int *, int, int))                                                   \
  REQUIRED(hipDrvPointerGetAttributes, (unsigned, CUpointer_attribute *, void **, CUdeviceptr))        \
  REQUIRED(hipMemGetAddressRange, (CUdeviceptr *, size_t *, CUdeviceptr))                              \
  REQUIRED(hipMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))     \
  REQUIRED(hipMemAddressFree, (CUdeviceptr, size_t))                                                   \
  REQUIRED(hipMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long)) \
  REQUIRED(hipMemUnmap, (CUdeviceptr, size_t))                                                         \
  REQUIRED(hipMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                    \
  REQUIRED(hipImportExternalMemory, (CUexternalMemory *, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *))    \
  REQUIRED(hipStreamGetDevice, (CUstream, int *))                                                      \
  REQUIRED(hipMemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, int, CUstream))                          \
  REQUIRED(hipMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                           \
  OPTIONAL(hipMemGetHandleForAddressRange, (void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long))

#define GMM_HIP_TYPE(name, parameters) typedef CUresult name##_fn parameters;
GMM_HIP_FUNCTIONS(GMM_HIP_TYPE, GMM_HIP_TYPE)
#undef GMM_HIP_TYPE

// ATTRIBUTE(CUDA's, HIP's, its number): the attributes of a device that HIP has; hip.cpp answers the others.
#define GMM_HIP_ATTRIBUTES(ATTRIBUTE)                                                                               \
  ATTRIBUTE(MANAGED_MEMORY, hipDeviceAttributeManagedMemory, 24)                                                    \
  ATTRIBUTE(PAGEABLE_MEMORY_ACCESS, hipDeviceAttributePageableMemoryAccess, 65)                                     \
  ATTRIBUTE(CONCURRENT_MANAGED_ACCESS, hipDeviceAttributeConcurrentManagedAccess, 9)                                \
  ATTRIBUTE(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, hipDeviceAttributeCanUseHostPointerForRegisteredMem, 4)        \
  ATTRIBUTE(HOST_REGISTER_SUPPORTED, hipDeviceAttributeHostRegisterSupported, 90)                                   \
  ATTRIBUTE(PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES, hipDeviceAttributePageableMemoryAccessUsesHostPageTables, \
            66)                                                                                                     \
  ATTRIBUTE(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, hipDeviceAttributeVirtualMemoryManagementSupported, 89)            \
  ATTRIBUTE(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, hipDeviceAttributeVirtualMemoryManagementSupported, 89)

// NUMBER(CUDA's, HIP's): the numbers that both have alike. HIP lacks the others.
#define GMM_HIP_NUMBERS(NUMBER)                                                                                      \
  NUMBER(CUDA_SUCCESS, hipSuccess)                                                                                   \
  NUMBER(CUDA_ERROR_INVALID_VALUE, hipErrorInvalidValue)                                                             \
  NUMBER(CUDA_ERROR_OUT_OF_MEMORY, hipErrorOutOfMemory)                                                              \
  NUMBER(CUDA_ERROR_NOT_INITIALIZED, hipErrorNotInitialized)                                                         \
  NUMBER(CUDA_ERROR_DEINITIALIZED, hipErrorDeinitialized)                                                            \
  NUMBER(CUDA_ERROR_NO_DEVICE, hipErrorNoDevice)                                                                     \
  NUMBER(CUDA_ERROR_INVALID_DEVICE, hipErrorInvalidDevice)                                                           \
  NUMBER(CUDA_ERROR_INVALID_CONTEXT, hipErrorInvalidContext)                                                         \
  NUMBER(CUDA_ERROR_ECC_UNCORRECTABLE, hipErrorECCNotCorrectable)                                                    \
  NUMBER(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, hipErrorPeerAccessUnsupported)                                          \
  NUMBER(CUDA_ERROR_OPERATING_SYSTEM, hipErrorOperatingSystem)                                                       \
  NUMBER(CUDA_ERROR_INVALID_HANDLE, hipErrorInvalidHandle)                                                           \
  NUMBER(CUDA_ERROR_ILLEGAL_STATE, hipErrorIllegalState)                                                             \
  NUMBER(CUDA_ERROR_NOT_READY, hipErrorNotReady)                                                                     \
  NUMBER(CUDA_ERROR_ILLEGAL_ADDRESS, hipErrorIllegalAddress)                                                         \
  NUMBER(CUDA_ERROR_LAUNCH_TIMEOUT, hipErrorLaunchTimeOut)                                                           \
  NUMBER(CUDA_ERROR_CONTEXT_IS_DESTROYED, hipErrorContextIsDestroyed)                                                \
  NUMBER(CUDA_ERROR_ASSERT, hipErrorAssert)                                                                          \
  NUMBER(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, hipErrorHostMemoryAlreadyRegistered)                             \
  NUMBER(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, hipErrorHostMemoryNotRegistered)                                     \
  NUMBER(CUDA_ERROR_LAUNCH_FAILED, hipErrorLaunchFailure)                                                            \
  NUMBER(CUDA_ERROR_NOT_SUPPORTED, hipErrorNotSupported)                                                             \
  NUMBER(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, hipErrorStreamCaptureUnsupported)                                    \
  NUMBER(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, hipErrorStreamCaptureImplicit)                                          \
  NUMBER(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, hipErrorStreamCaptureWrongThread)                                   \
  NUMBER(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, hipGraphMemAttrReservedMemCurrent)                                  \
  NUMBER(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, hipMemPoolAttrReservedMemCurrent)                                     \
  NUMBER(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, HIP_POINTER_ATTRIBUTE_MEMORY_TYPE)                                        \
  NUMBER(CU_POINTER_ATTRIBUTE_IS_MANAGED, HIP_POINTER_ATTRIBUTE_IS_MANAGED)                                          \
  NUMBER(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL)                                  \
  NUMBER(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR)                              \
  NUMBER(CU_POINTER_ATTRIBUTE_RANGE_SIZE, HIP_POINTER_ATTRIBUTE_RANGE_SIZE)                                          \
  NUMBER(CU_MEMORYTYPE_HOST, hipMemoryTypeHost)                                                                      \
  NUMBER(CU_MEMORYTYPE_DEVICE, hipMemoryTypeDevice)                                                                  \
  NUMBER(CU_MEM_ADVISE_SET_READ_MOSTLY, hipMemAdviseSetReadMostly)                                                   \
  NUMBER(CU_MEM_ADVISE_UNSET_READ_MOSTLY, hipMemAdviseUnsetReadMostly)                                               \
  NUMBER(CU_MEM_ADVISE_SET_PREFERRED_LOCATION, hipMemAdviseSetPreferredLocation)                                     \
  NUMBER(CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, hipMemAdviseUnsetPreferredLocation)                                 \
  NUMBER(CU_MEM_ADVISE_SET_ACCESSED_BY, hipMemAdviseSetAccessedBy)                                                   \
  NUMBER(CU_MEM_ADVISE_UNSET_ACCESSED_BY, hipMemAdviseUnsetAccessedBy)                                               \
  NUMBER(CU_MEM_LOCATION_TYPE_DEVICE, hipMemLocationTypeDevice)                                                      \
  NUMBER(CU_MEM_LOCATION_TYPE_HOST, hipMemLocationTypeHost)                                                          \
  NUMBER(CU_MEM_LOCATION_TYPE_HOST_NUMA, hipMemLocationTypeHostNuma)                                                 \
  NUMBER(CU_MEM_ALLOCATION_TYPE_PINNED, hipMemAllocationTypePinned)                                                  \
  NUMBER(CU_MEM_HANDLE_TYPE_NONE, hipMemHandleTypeNone)                                                              \
  NUMBER(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, hipMemHandleTypePosixFileDescriptor)                              \
  NUMBER(CU_MEM_ALLOC_GRANULARITY_MINIMUM, hipMemAllocationGranularityMinimum)                                       \
  NUMBER(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED, hipMemAllocationGranularityRecommended)                               \
  NUMBER(CU_MEM_ACCESS_FLAGS_PROT_READ, hipMemAccessFlagsProtRead)                                                   \
  NUMBER(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, hipMemAccessFlagsProtReadWrite)                                         \
  NUMBER(CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, hipMemRangeHandleTypeDmaBufFd)                                         \
  NUMBER(CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, hipExternalMemoryHandleTypeOpaqueFd)                              \
  NUMBER(CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD, hipExternalSemaphoreHandleTypeOpaqueFd)                        \
  NUMBER(CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD, hipExternalSemaphoreHandleTypeTimelineSemaphoreFd) \
  NUMBER(CU_STREAM_CAPTURE_STATUS_NONE, hipStreamCaptureStatusNone)                                                  \
  NUMBER(CU_STREAM_CAPTURE_STATUS_ACTIVE, hipStreamCaptureStatusActive)                                              \
  NUMBER(CU_STREAM_CAPTURE_MODE_RELAXED, hipStreamCaptureModeRelaxed)                                                \
  NUMBER(CU_DEVICE_CPU, hipCpuDeviceId)                                                                              \
  NUMBER(CU_EVENT_DISABLE_TIMING, hipEventDisableTiming)                                                             \
  NUMBER(CU_EVENT_INTERPROCESS, hipEventInterprocess)                                                                \
  NUMBER(CU_GRAPH_USER_OBJECT_MOVE, hipGraphUserObjectMove)                                                          \
  NUMBER(CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, hipUserObjectNoDestructorSync)                                           \
  NUMBER(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, hipIpcMemLazyEnablePeerAccess)                                          \
  NUMBER(CU_MEMHOSTREGISTER_PORTABLE, hipHostRegisterPortable)                                                       \
  NUMBER(CU_MEMHOSTREGISTER_DEVICEMAP, hipHostRegisterMapped)                                                        \
  NUMBER(CU_MEM_ATTACH_GLOBAL, hipMemAttachGlobal)                                                                   \
  NUMBER(CU_STREAM_NON_BLOCKING, hipStreamNonBlocking)

#endif
