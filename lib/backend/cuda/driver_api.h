// SPDX-License-Identifier: Apache-2.0
// What the backend uses of the CUDA driver API: its types, numbers and signatures, by their names in the driver API's
// reference. The library needs no header of the CUDA toolkit. The test `driver api` holds this page against cuda.h.
#ifndef GMM_BACKEND_CUDA_DRIVER_API_H
#define GMM_BACKEND_CUDA_DRIVER_API_H

#include <cstddef>
#include <cstdint>

namespace gmm::cuda {

using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUmemGenericAllocationHandle = unsigned long long;
using cuuint64_t = uint64_t;
using CUcontext = struct CUctx_st *;
using CUevent = struct CUevent_st *;
using CUexternalMemory = struct CUextMemory_st *;
using CUexternalSemaphore = struct CUextSemaphore_st *;
using CUfunction = struct CUfunc_st *;
using CUgraph = struct CUgraph_st *;
using CUgraphNode = struct CUgraphNode_st *;
using CUmemoryPool = struct CUmemPoolHandle_st *;
using CUmodule = struct CUmod_st *;
using CUstream = struct CUstream_st *;
using CUuserObject = struct CUuserObject_st *;
using CUhostFn = void (*)(void *user);

enum CUresult : int {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_STUB_LIBRARY = 34,
  CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER = 36,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_ECC_UNCORRECTABLE = 214,
  CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
  CUDA_ERROR_OPERATING_SYSTEM = 304,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_ASSERT = 710,
  CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
  CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
  CUDA_ERROR_ILLEGAL_INSTRUCTION = 715,
  CUDA_ERROR_MISALIGNED_ADDRESS = 716,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_NOT_PERMITTED = 800,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
};
enum CUgraphMem_attribute : unsigned {
  CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
};
enum CUmemPool_attribute : unsigned {
  CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
};
enum CUdevice_attribute : unsigned {
  CU_DEVICE_ATTRIBUTE_INTEGRATED = 18,
  CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
  CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83,
  CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 88,
  CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS = 89,
  CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM = 91,
  CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED = 99,
  CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES = 100,
  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110,
  CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED = 113,
  CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124,
  CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED = 125,
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128,
  CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID = 134,
  CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 141,
};
enum CUpointer_attribute : unsigned {
  CU_POINTER_ATTRIBUTE_CONTEXT = 1,
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
  CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
  CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
};
enum CUmemorytype : unsigned {
  CU_MEMORYTYPE_HOST = 1,
  CU_MEMORYTYPE_DEVICE = 2,
  CU_MEMORYTYPE_UNIFIED = 4,
};
enum CUmem_advise : unsigned {
  CU_MEM_ADVISE_SET_READ_MOSTLY = 1,
  CU_MEM_ADVISE_UNSET_READ_MOSTLY = 2,
  CU_MEM_ADVISE_SET_PREFERRED_LOCATION = 3,
  CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION = 4,
  CU_MEM_ADVISE_SET_ACCESSED_BY = 5,
  CU_MEM_ADVISE_UNSET_ACCESSED_BY = 6,
};
enum CUmemLocationType : unsigned {
  CU_MEM_LOCATION_TYPE_DEVICE = 1,
  CU_MEM_LOCATION_TYPE_HOST = 2,
  CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
};
enum CUmemAllocationType : unsigned {
  CU_MEM_ALLOCATION_TYPE_PINNED = 1,
};
enum CUmemAllocationHandleType : unsigned {
  CU_MEM_HANDLE_TYPE_NONE = 0,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
  CU_MEM_HANDLE_TYPE_FABRIC = 8,
};
enum CUmemAllocationGranularity_flags : unsigned {
  CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
};
enum CUmemAccess_flags : unsigned {
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
};
enum CUmemRangeHandleType : unsigned {
  CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1,
};
enum CUexternalMemoryHandleType : unsigned {
  CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD = 1,
  CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD = 9,
};
enum CUexternalSemaphoreHandleType : unsigned {
  CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD = 1,
  CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD = 9,
};
enum CUstreamCaptureStatus : unsigned {
  CU_STREAM_CAPTURE_STATUS_NONE = 0,
  CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
};
enum CUstreamCaptureMode : unsigned {
  CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};
enum CUdriverProcAddressQueryResult : unsigned {
  CU_GET_PROC_ADDRESS_SUCCESS = 0,
  CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
};

// Flags of several functions, and CU_DEVICE_CPU.
enum : int {
  CU_DEVICE_CPU = -1,
  CU_EVENT_DISABLE_TIMING = 2,
  CU_EVENT_INTERPROCESS = 4,
  CU_EVENT_WAIT_DEFAULT = 0,
  CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,
  CU_GRAPH_USER_OBJECT_MOVE = 1,
  CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1,
  CU_MEMHOSTREGISTER_DEVICEMAP = 2,
  CU_MEMHOSTREGISTER_PORTABLE = 1,
  CU_MEMHOSTREGISTER_READ_ONLY = 8,
  CU_MEM_ATTACH_GLOBAL = 1,
  CU_STREAM_NON_BLOCKING = 1,
  CU_USER_OBJECT_NO_DESTRUCTOR_SYNC = 1,
};

struct CUuuid {
  char bytes[16];
};
struct CUipcMemHandle {
  char reserved[64];
};
struct CUipcEventHandle {
  char reserved[64];
};
struct CUmemFabricHandle {
  unsigned char data[64];
};
struct CUmemLocation {
  CUmemLocationType type;
  int id;
};
struct CUmemAccessDesc {
  CUmemLocation location;
  CUmemAccess_flags flags;
};
struct CUmemAllocationProp {
  CUmemAllocationType type;
  CUmemAllocationHandleType requestedHandleTypes;
  CUmemLocation location;
  void *win32HandleMetaData;
  struct {
    unsigned char compressionType;
    unsigned char gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
};
struct CUDA_EXTERNAL_MEMORY_HANDLE_DESC {
  CUexternalMemoryHandleType type;
  union {
    int fd;
    struct {
      void *handle;
      const void *name;
    } win32;
  } handle;
  unsigned long long size;
  unsigned int flags;
  unsigned int reserved[16];
};
struct CUDA_EXTERNAL_MEMORY_BUFFER_DESC {
  unsigned long long offset;
  unsigned long long size;
  unsigned int flags;
  unsigned int reserved[16];
};
struct CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC {
  CUexternalSemaphoreHandleType type;
  union {
    int fd;
    struct {
      void *handle;
      const void *name;
    } win32;
    const void *nvSciSyncObj;
  } handle;
  unsigned int flags;
  unsigned int reserved[16];
};
struct CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS {
  struct {
    struct {
      unsigned long long value;
    } fence;
    union {
      void *fence;
      unsigned long long reserved;
    } nvSciSync;
    struct {
      unsigned long long key;
    } keyedMutex;
    unsigned int reserved[12];
  } params;
  unsigned int flags;
  unsigned int reserved[16];
};
struct CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS {
  struct {
    struct {
      unsigned long long value;
    } fence;
    union {
      void *fence;
      unsigned long long reserved;
    } nvSciSync;
    struct {
      unsigned long long key;
      unsigned int timeoutMs;
    } keyedMutex;
    unsigned int reserved[10];
  } params;
  unsigned int flags;
  unsigned int reserved[16];
};

// The entries, each with the CUDA version of the signature that the backend calls, and its parameters. All answer a
// CUresult. cuGetProcAddress() returns the newest variant that is not newer than the requested version. So a version
// here is the one that introduced the signature.

// X(entry, version, parameters). Without one of these entries there is no backend.
#define GMM_CUDA_REQUIRED(X)                                                                   \
  X(cuInit, 2000, (unsigned int))                                                              \
  X(cuDriverGetVersion, 2020, (int *))                                                         \
  X(cuGetErrorName, 6000, (CUresult, const char **))                                           \
  X(cuGetErrorString, 6000, (CUresult, const char **))                                         \
  X(cuDeviceGetCount, 2000, (int *))                                                           \
  X(cuDeviceGet, 2000, (CUdevice *, int))                                                      \
  X(cuDeviceGetName, 2000, (char *, int, CUdevice))                                            \
  X(cuDeviceGetUuid, 11040, (CUuuid *, CUdevice))                                              \
  X(cuDeviceTotalMem, 3020, (size_t *, CUdevice))                                              \
  X(cuDeviceGetAttribute, 2000, (int *, CUdevice_attribute, CUdevice))                         \
  X(cuDevicePrimaryCtxRetain, 7000, (CUcontext *, CUdevice))                                   \
  X(cuDevicePrimaryCtxRelease, 11000, (CUdevice))                                              \
  X(cuCtxGetCurrent, 4000, (CUcontext *))                                                      \
  X(cuCtxPushCurrent, 4000, (CUcontext))                                                       \
  X(cuCtxPopCurrent, 4000, (CUcontext *))                                                      \
  X(cuCtxGetDevice, 2000, (CUdevice *))                                                        \
  X(cuCtxSynchronize, 2000, ())                                                                \
  X(cuMemGetInfo, 3020, (size_t *, size_t *))                                                  \
  X(cuMemAlloc, 3020, (CUdeviceptr *, size_t))                                                 \
  X(cuMemFree, 3020, (CUdeviceptr))                                                            \
  X(cuMemcpyAsync, 4000, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                         \
  X(cuMemsetD8Async, 3020, (CUdeviceptr, unsigned char, size_t, CUstream))                     \
  X(cuPointerGetAttributes, 7000, (unsigned int, CUpointer_attribute *, void **, CUdeviceptr)) \
  X(cuStreamCreateWithPriority, 5050, (CUstream *, unsigned int, int))                         \
  X(cuStreamDestroy, 4000, (CUstream))                                                         \
  X(cuStreamSynchronize, 2000, (CUstream))                                                     \
  X(cuStreamGetCtx, 9020, (CUstream, CUcontext *))                                             \
  X(cuStreamIsCapturing, 10000, (CUstream, CUstreamCaptureStatus *))                           \
  X(cuStreamQuery, 2000, (CUstream))                                                           \
  X(cuLaunchHostFunc, 10000, (CUstream, CUhostFn, void *))                                     \
  X(cuStreamWaitEvent, 3020, (CUstream, CUevent, unsigned int))                                \
  X(cuEventCreate, 2000, (CUevent *, unsigned int))                                            \
  X(cuEventDestroy, 4000, (CUevent))                                                           \
  X(cuEventRecord, 2000, (CUevent, CUstream))                                                  \
  X(cuEventSynchronize, 2000, (CUevent))                                                       \
  X(cuEventQuery, 2000, (CUevent))

// X(entry, version, parameters). Without one of these entries the operations that need it fail with NOT_SUPPORTED.
#define GMM_CUDA_OPTIONAL(X)                                                                                         \
  X(cuDevicePrimaryCtxGetState, 7000, (CUdevice, unsigned int *, int *))                                             \
  X(cuMemAllocManaged, 6000, (CUdeviceptr *, size_t, unsigned int))                                                  \
  X(cuMemHostRegister, 6050, (void *, size_t, unsigned int))                                                         \
  X(cuMemHostUnregister, 4000, (void *))                                                                             \
  X(cuMemHostGetDevicePointer, 3020, (CUdeviceptr *, void *, unsigned int))                                          \
  X(cuMemAddressReserve, 10020, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                    \
  X(cuMemAddressFree, 10020, (CUdeviceptr, size_t))                                                                  \
  X(cuMemCreate, 10020, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))   \
  X(cuMemRelease, 10020, (CUmemGenericAllocationHandle))                                                             \
  X(cuMemMap, 10020, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))                \
  X(cuMemUnmap, 10020, (CUdeviceptr, size_t))                                                                        \
  X(cuMemSetAccess, 10020, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                                   \
  X(cuMemGetAllocationGranularity, 10020, (size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags)) \
  X(cuMemGetAllocationPropertiesFromHandle, 10020, (CUmemAllocationProp *, CUmemGenericAllocationHandle))            \
  X(cuMemRetainAllocationHandle, 11000, (CUmemGenericAllocationHandle *, void *))                                    \
  X(cuMemExportToShareableHandle, 10020,                                                                             \
    (void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long))                           \
  X(cuMemImportFromShareableHandle, 10020, (CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType))      \
  X(cuIpcGetMemHandle, 4010, (CUipcMemHandle *, CUdeviceptr))                                                        \
  X(cuIpcOpenMemHandle, 11000, (CUdeviceptr *, CUipcMemHandle, unsigned int))                                        \
  X(cuIpcCloseMemHandle, 4010, (CUdeviceptr))                                                                        \
  X(cuIpcGetEventHandle, 4010, (CUipcEventHandle *, CUevent))                                                        \
  X(cuIpcOpenEventHandle, 4010, (CUevent *, CUipcEventHandle))                                                       \
  X(cuMemGetHandleForAddressRange, 11070, (void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long))   \
  X(cuImportExternalMemory, 10000, (CUexternalMemory *, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *))                   \
  X(cuExternalMemoryGetMappedBuffer, 10000,                                                                          \
    (CUdeviceptr *, CUexternalMemory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *))                                     \
  X(cuDestroyExternalMemory, 10000, (CUexternalMemory))                                                              \
  X(cuImportExternalSemaphore, 10000, (CUexternalSemaphore *, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *))          \
  X(cuSignalExternalSemaphoresAsync, 10000,                                                                          \
    (const CUexternalSemaphore *, const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *, unsigned int, CUstream))            \
  X(cuWaitExternalSemaphoresAsync, 10000,                                                                            \
    (const CUexternalSemaphore *, const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *, unsigned int, CUstream))              \
  X(cuDestroyExternalSemaphore, 10000, (CUexternalSemaphore))                                                        \
  X(cuDeviceCanAccessPeer, 4000, (int *, CUdevice, CUdevice))                                                        \
  X(cuDeviceGetDefaultMemPool, 11020, (CUmemoryPool *, CUdevice))                                                    \
  X(cuMemPoolGetAttribute, 11020, (CUmemoryPool, CUmemPool_attribute, void *))                                       \
  X(cuDeviceGetGraphMemAttribute, 11040, (CUdevice, CUgraphMem_attribute, void *))                                   \
  X(cuDeviceGetLuid, 10000, (char *, unsigned int *, CUdevice))                                                      \
  X(cuUserObjectCreate, 11030, (CUuserObject *, void *, CUhostFn, unsigned int, unsigned int))                       \
  X(cuUserObjectRelease, 11030, (CUuserObject, unsigned int))                                                        \
  X(cuGraphRetainUserObject, 11030, (CUgraph, CUuserObject, unsigned int, unsigned int))                             \
  X(cuThreadExchangeStreamCaptureMode, 10010, (CUstreamCaptureMode *))                                               \
  X(cuModuleLoadData, 2000, (CUmodule *, const void *))                                                              \
  X(cuModuleGetFunction, 2000, (CUfunction *, CUmodule, const char *))                                               \
  X(cuModuleUnload, 2000, (CUmodule))                                                                                \
  X(cuLaunchKernel, 4000,                                                                                            \
    (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,   \
     CUstream, void **, void **))

// CUDA 12.2 changed the signature of two entries.
using MemAdviseFn = CUresult (*)(CUdeviceptr, size_t, CUmem_advise, CUmemLocation);
using MemAdviseOldFn = CUresult (*)(CUdeviceptr, size_t, CUmem_advise, CUdevice);
using MemPrefetchFn = CUresult (*)(CUdeviceptr, size_t, CUmemLocation, unsigned int, CUstream);
using MemPrefetchOldFn = CUresult (*)(CUdeviceptr, size_t, CUdevice, CUstream);
// The form before 12.3 added edges, which gmm does not need.
using CaptureInfoFn = CUresult (*)(CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **,
                                   size_t *);
inline constexpr int kCaptureInfoVersion = 11030;
inline constexpr int kLocationVersion = 12020;
inline constexpr int kOldAdviceVersion = 8000;

}  // namespace gmm::cuda
#endif
