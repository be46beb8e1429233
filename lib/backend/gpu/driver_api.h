/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver API as far as gmm, its tests and its benchmarks use it: types, numbers and functions, by their names
 * in the driver API's reference. It is C and C++, and needs no header of the CUDA Toolkit. Where the build finds
 * cuda.h, it compiles this page against that (tests/support/check_driver_api.py).
 */
#ifndef GMM_BACKEND_GPU_DRIVER_API_H
#define GMM_BACKEND_GPU_DRIVER_API_H

#include <stddef.h>
#include <stdint.h>

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef uint64_t cuuint64_t;
typedef struct CUctx_st *CUcontext;
typedef struct CUevent_st *CUevent;
typedef struct CUextMemory_st *CUexternalMemory;
typedef struct CUextSemaphore_st *CUexternalSemaphore;
typedef struct CUfunc_st *CUfunction;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUmod_st *CUmodule;
typedef struct CUstream_st *CUstream;
typedef struct CUuserObject_st *CUuserObject;
typedef void (*CUhostFn)(void *user);

#define CU_STREAM_LEGACY ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

typedef enum CUresult_enum {
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
  CUDA_ERROR_UNMAP_FAILED = 206,
  CUDA_ERROR_ECC_UNCORRECTABLE = 214,
  CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
  CUDA_ERROR_INVALID_PTX = 218,
  CUDA_ERROR_OPERATING_SYSTEM = 304,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_ILLEGAL_STATE = 401,
  CUDA_ERROR_NOT_FOUND = 500,
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
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
  CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
  CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
  CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_CAPTURED_EVENT = 907,
  CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
  CUDA_ERROR_UNKNOWN = 999,
} CUresult;
typedef enum CUgraphMem_attribute_enum {
  CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT = 2,
} CUgraphMem_attribute;
typedef enum CUmemPool_attribute_enum {
  CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT = 5,
} CUmemPool_attribute;
typedef enum CUdevice_attribute_enum {
  CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID = 34,
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
} CUdevice_attribute;
typedef enum CUpointer_attribute_enum {
  CU_POINTER_ATTRIBUTE_CONTEXT = 1,
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
  CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
  CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
  CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
  CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
} CUpointer_attribute;
typedef enum CUmemorytype_enum {
  CU_MEMORYTYPE_HOST = 1,
  CU_MEMORYTYPE_DEVICE = 2,
  CU_MEMORYTYPE_UNIFIED = 4,
} CUmemorytype;
typedef enum CUmem_advise_enum {
  CU_MEM_ADVISE_SET_READ_MOSTLY = 1,
  CU_MEM_ADVISE_UNSET_READ_MOSTLY = 2,
  CU_MEM_ADVISE_SET_PREFERRED_LOCATION = 3,
  CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION = 4,
  CU_MEM_ADVISE_SET_ACCESSED_BY = 5,
  CU_MEM_ADVISE_UNSET_ACCESSED_BY = 6,
} CUmem_advise;
typedef enum CUmemLocationType_enum {
  CU_MEM_LOCATION_TYPE_DEVICE = 1,
  CU_MEM_LOCATION_TYPE_HOST = 2,
  CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
} CUmemLocationType;
typedef enum CUmemAllocationType_enum {
  CU_MEM_ALLOCATION_TYPE_PINNED = 1,
} CUmemAllocationType;
typedef enum CUmemAllocationHandleType_enum {
  CU_MEM_HANDLE_TYPE_NONE = 0,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
  CU_MEM_HANDLE_TYPE_FABRIC = 8,
} CUmemAllocationHandleType;
typedef enum CUmemAllocationGranularity_flags_enum {
  CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
} CUmemAllocationGranularity_flags;
typedef enum CUmemAccess_flags_enum {
  CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
  CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
} CUmemAccess_flags;
typedef enum CUmemRangeHandleType_enum {
  CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1,
} CUmemRangeHandleType;
typedef enum CUexternalMemoryHandleType_enum {
  CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD = 1,
  CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD = 9,
} CUexternalMemoryHandleType;
typedef enum CUexternalSemaphoreHandleType_enum {
  CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD = 1,
  CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD = 9,
} CUexternalSemaphoreHandleType;
typedef enum CUstreamCaptureStatus_enum {
  CU_STREAM_CAPTURE_STATUS_NONE = 0,
  CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
  CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
} CUstreamCaptureStatus;
typedef enum CUstreamCaptureMode_enum {
  CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
  CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
  CU_STREAM_CAPTURE_MODE_RELAXED = 2,
} CUstreamCaptureMode;
typedef enum CUdriverProcAddressQueryResult_enum {
  CU_GET_PROC_ADDRESS_SUCCESS = 0,
  CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND = 1,
  CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT = 2,
} CUdriverProcAddressQueryResult;

typedef enum CUprocessState_enum {
  CU_PROCESS_STATE_RUNNING = 0,
  CU_PROCESS_STATE_LOCKED = 1,
  CU_PROCESS_STATE_CHECKPOINTED = 2,
} CUprocessState;

/* Flags of several functions, and special devices. */
enum {
  CU_DEVICE_CPU = -1,
  CU_DEVICE_INVALID = -2,
  CU_EVENT_DISABLE_TIMING = 2,
  CU_EVENT_INTERPROCESS = 4,
  CU_EVENT_WAIT_DEFAULT = 0,
  CU_GET_PROC_ADDRESS_DEFAULT = 0,
  CU_GET_PROC_ADDRESS_LEGACY_STREAM = 1,
  CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 2,
  CU_GRAPH_USER_OBJECT_MOVE = 1,
  CU_IPC_HANDLE_SIZE = 64,
  CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1,
  CU_MEMHOSTALLOC_PORTABLE = 1,
  CU_MEMHOSTALLOC_WRITECOMBINED = 4,
  CU_MEMHOSTREGISTER_DEVICEMAP = 2,
  CU_MEMHOSTREGISTER_PORTABLE = 1,
  CU_MEMHOSTREGISTER_READ_ONLY = 8,
  CU_MEM_ATTACH_GLOBAL = 1,
  CU_MEM_ATTACH_HOST = 2,
  CU_STREAM_DEFAULT = 0,
  CU_STREAM_NON_BLOCKING = 1,
  CU_USER_OBJECT_NO_DESTRUCTOR_SYNC = 1,
};

typedef struct CUuuid_st {
  char bytes[16];
} CUuuid;
typedef struct CUipcMemHandle_st {
  char reserved[64];
} CUipcMemHandle;
typedef CUipcMemHandle CUipcEventHandle;
typedef struct CUmemFabricHandle_st {
  unsigned char data[64];
} CUmemFabricHandle;
typedef struct CUmemLocation_st {
  CUmemLocationType type;
  int id;
} CUmemLocation;
typedef struct CUmemAccessDesc_st {
  CUmemLocation location;
  CUmemAccess_flags flags;
} CUmemAccessDesc;
typedef struct CUmemAllocationProp_st {
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
} CUmemAllocationProp;
typedef struct CUDA_EXTERNAL_MEMORY_HANDLE_DESC_st {
  CUexternalMemoryHandleType type;
  union {
    int fd;
    void *others[2];
  } handle;
  unsigned long long size;
  unsigned int flags;
  unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_HANDLE_DESC;
typedef struct CUDA_EXTERNAL_MEMORY_BUFFER_DESC_st {
  unsigned long long offset;
  unsigned long long size;
  unsigned int flags;
  unsigned int reserved[16];
} CUDA_EXTERNAL_MEMORY_BUFFER_DESC;
typedef struct CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC_st {
  CUexternalSemaphoreHandleType type;
  union {
    int fd;
    void *others[2];
  } handle;
  unsigned int flags;
  unsigned int reserved[16];
} CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC;
typedef struct CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS_st {
  struct {
    struct {
      unsigned long long value;
    } fence;
    unsigned long long others[8];
  } params;
  unsigned int flags;
  unsigned int reserved[16];
} CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS;
typedef CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS; /* of one layout */
typedef struct CUgraphEdgeData_st {
  unsigned char from_port;
  unsigned char to_port;
  unsigned char type;
  unsigned char reserved[5];
} CUgraphEdgeData;
typedef struct CUcheckpointLockArgs_st {
  unsigned int timeoutMs;
  unsigned int reserved0;
  cuuint64_t reserved1[7];
} CUcheckpointLockArgs;
typedef struct CUcheckpointCheckpointArgs_st {
  cuuint64_t reserved[8];
} CUcheckpointCheckpointArgs;
typedef struct CUcheckpointRestoreArgs_st {
  struct CUcheckpointGpuPair_st *gpuPairs;
  unsigned int gpuPairsCount;
  char reserved[44];
  cuuint64_t reserved1;
} CUcheckpointRestoreArgs;
typedef CUcheckpointCheckpointArgs CUcheckpointUnlockArgs;

/*
 * The functions: CLASS(name, suffix, version, parameters). All of them return a CUresult.
 * `name` is the function's name for cuGetProcAddress(), and with the suffix its symbol in the driver's library.
 * cuGetProcAddress() returns the newest variant that is not newer than the requested version. So `version` is the CUDA
 * version that introduced the symbol. Of one name the symbols stand from old to new.
 * REQUIRED: gmm has no CUDA backend without it. OTHER: only the preload library, Python, tests or benchmarks call it,
 * or driver.cpp chooses it. HOOKED: only the preload library knows it, and the tests' fake driver lacks it.
 */
#define GMM_CUDA_ENTRIES(REQUIRED, OTHER, HOOKED)                                                                    \
  REQUIRED(cuInit, , 2000, (unsigned int))                                                                           \
  REQUIRED(cuDriverGetVersion, , 2020, (int *))                                                                      \
  REQUIRED(cuGetErrorName, , 6000, (CUresult, const char **))                                                        \
  REQUIRED(cuGetErrorString, , 6000, (CUresult, const char **))                                                      \
  OTHER(cuGetProcAddress, , 11030, (const char *, void **, int, cuuint64_t))                                         \
  OTHER(cuGetProcAddress, _v2, 12000, (const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *))    \
  REQUIRED(cuDeviceGetCount, , 2000, (int *))                                                                        \
  REQUIRED(cuDeviceGet, , 2000, (CUdevice *, int))                                                                   \
  REQUIRED(cuDeviceGetName, , 2000, (char *, int, CUdevice))                                                         \
  REQUIRED(cuDeviceGetUuid, _v2, 11040, (CUuuid *, CUdevice))                                                        \
  REQUIRED(cuDeviceTotalMem, _v2, 3020, (size_t *, CUdevice))                                                        \
  REQUIRED(cuDeviceGetAttribute, , 2000, (int *, CUdevice_attribute, CUdevice))                                      \
  REQUIRED(cuDeviceCanAccessPeer, , 4000, (int *, CUdevice, CUdevice))                                               \
  REQUIRED(cuDevicePrimaryCtxRetain, , 7000, (CUcontext *, CUdevice))                                                \
  REQUIRED(cuDevicePrimaryCtxRelease, _v2, 11000, (CUdevice))                                                        \
  REQUIRED(cuDevicePrimaryCtxGetState, , 7000, (CUdevice, unsigned int *, int *))                                    \
  OTHER(cuDevicePrimaryCtxReset, _v2, 11000, (CUdevice))                                                             \
  OTHER(cuCtxCreate, _v2, 3020, (CUcontext *, unsigned int, CUdevice))                                               \
  OTHER(cuCtxDestroy, _v2, 4000, (CUcontext))                                                                        \
  REQUIRED(cuCtxGetCurrent, , 4000, (CUcontext *))                                                                   \
  OTHER(cuCtxSetCurrent, , 4000, (CUcontext))                                                                        \
  REQUIRED(cuCtxPushCurrent, _v2, 4000, (CUcontext))                                                                 \
  REQUIRED(cuCtxPopCurrent, _v2, 4000, (CUcontext *))                                                                \
  REQUIRED(cuCtxGetDevice, , 2000, (CUdevice *))                                                                     \
  OTHER(cuCtxGetId, , 12000, (CUcontext, unsigned long long *))                                                      \
  OTHER(cuCtxRecordEvent, , 12050, (CUcontext, CUevent))                                                             \
  REQUIRED(cuCtxSynchronize, , 2000, (void))                                                                         \
  REQUIRED(cuMemGetInfo, _v2, 3020, (size_t *, size_t *))                                                            \
  REQUIRED(cuMemAlloc, _v2, 3020, (CUdeviceptr *, size_t))                                                           \
  REQUIRED(cuMemFree, _v2, 3020, (CUdeviceptr))                                                                      \
  REQUIRED(cuMemAllocManaged, , 6000, (CUdeviceptr *, size_t, unsigned int))                                         \
  OTHER(cuMemAllocAsync, , 11020, (CUdeviceptr *, size_t, CUstream))                                                 \
  OTHER(cuMemFreeAsync, , 11020, (CUdeviceptr, CUstream))                                                            \
  OTHER(cuMemHostAlloc, , 2020, (void **, size_t, unsigned int))                                                     \
  OTHER(cuMemFreeHost, , 2000, (void *))                                                                             \
  REQUIRED(cuMemHostRegister, _v2, 6050, (void *, size_t, unsigned int))                                             \
  REQUIRED(cuMemHostUnregister, , 4000, (void *))                                                                    \
  REQUIRED(cuMemHostGetDevicePointer, _v2, 3020, (CUdeviceptr *, void *, unsigned int))                              \
  OTHER(cuMemGetAddressRange, _v2, 3020, (CUdeviceptr *, size_t *, CUdeviceptr))                                     \
  OTHER(cuPointerGetAttribute, , 4000, (void *, CUpointer_attribute, CUdeviceptr))                                   \
  REQUIRED(cuPointerGetAttributes, , 7000, (unsigned int, CUpointer_attribute *, void **, CUdeviceptr))              \
  REQUIRED(cuMemGetAllocationGranularity, , 10020,                                                                   \
           (size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags))                                \
  REQUIRED(cuMemAddressReserve, , 10020, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))           \
  REQUIRED(cuMemAddressFree, , 10020, (CUdeviceptr, size_t))                                                         \
  REQUIRED(cuMemCreate, , 10020,                                                                                     \
           (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))                \
  REQUIRED(cuMemRelease, , 10020, (CUmemGenericAllocationHandle))                                                    \
  REQUIRED(cuMemMap, , 10020, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))       \
  REQUIRED(cuMemUnmap, , 10020, (CUdeviceptr, size_t))                                                               \
  REQUIRED(cuMemSetAccess, , 10020, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                          \
  OTHER(cuMemGetAccess, , 10020, (unsigned long long *, const CUmemLocation *, CUdeviceptr))                         \
  REQUIRED(cuMemRetainAllocationHandle, , 11000, (CUmemGenericAllocationHandle *, void *))                           \
  REQUIRED(cuMemGetAllocationPropertiesFromHandle, , 10020, (CUmemAllocationProp *, CUmemGenericAllocationHandle))   \
  REQUIRED(cuMemExportToShareableHandle, , 10020,                                                                    \
           (void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType, unsigned long long))                    \
  REQUIRED(cuMemImportFromShareableHandle, , 10020,                                                                  \
           (CUmemGenericAllocationHandle *, void *, CUmemAllocationHandleType))                                      \
  REQUIRED(cuIpcGetMemHandle, , 4010, (CUipcMemHandle *, CUdeviceptr))                                               \
  REQUIRED(cuIpcOpenMemHandle, _v2, 11000, (CUdeviceptr *, CUipcMemHandle, unsigned int))                            \
  REQUIRED(cuIpcCloseMemHandle, , 4010, (CUdeviceptr))                                                               \
  REQUIRED(cuIpcGetEventHandle, , 4010, (CUipcEventHandle *, CUevent))                                               \
  REQUIRED(cuIpcOpenEventHandle, , 4010, (CUevent *, CUipcEventHandle))                                              \
  REQUIRED(cuMemGetHandleForAddressRange, , 11070,                                                                   \
           (void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long))                                  \
  REQUIRED(cuImportExternalMemory, , 10000, (CUexternalMemory *, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *))          \
  REQUIRED(cuExternalMemoryGetMappedBuffer, , 10000,                                                                 \
           (CUdeviceptr *, CUexternalMemory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *))                              \
  REQUIRED(cuDestroyExternalMemory, , 10000, (CUexternalMemory))                                                     \
  REQUIRED(cuImportExternalSemaphore, , 10000, (CUexternalSemaphore *, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *)) \
  REQUIRED(cuSignalExternalSemaphoresAsync, , 10000,                                                                 \
           (const CUexternalSemaphore *, const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *, unsigned int, CUstream))     \
  REQUIRED(cuWaitExternalSemaphoresAsync, , 10000,                                                                   \
           (const CUexternalSemaphore *, const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *, unsigned int, CUstream))       \
  REQUIRED(cuDestroyExternalSemaphore, , 10000, (CUexternalSemaphore))                                               \
  REQUIRED(cuMemAdvise, , 8000, (CUdeviceptr, size_t, CUmem_advise, CUdevice))                                       \
  REQUIRED(cuMemPrefetchAsync, , 8000, (CUdeviceptr, size_t, CUdevice, CUstream))                                    \
  OTHER(cuStreamCreate, , 2000, (CUstream *, unsigned int))                                                          \
  REQUIRED(cuStreamCreateWithPriority, , 5050, (CUstream *, unsigned int, int))                                      \
  REQUIRED(cuStreamDestroy, _v2, 4000, (CUstream))                                                                   \
  REQUIRED(cuStreamSynchronize, , 2000, (CUstream))                                                                  \
  REQUIRED(cuStreamQuery, , 2000, (CUstream))                                                                        \
  REQUIRED(cuStreamWaitEvent, , 3020, (CUstream, CUevent, unsigned int))                                             \
  REQUIRED(cuStreamGetCtx, , 9020, (CUstream, CUcontext *))                                                          \
  OTHER(cuCtxGetStreamPriorityRange, , 5050, (int *, int *))                                                         \
  REQUIRED(cuStreamIsCapturing, , 10000, (CUstream, CUstreamCaptureStatus *))                                        \
  REQUIRED(cuStreamGetCaptureInfo, _v2, 11030,                                                                       \
           (CUstream, CUstreamCaptureStatus *, cuuint64_t *, CUgraph *, const CUgraphNode **, size_t *))             \
  OTHER(cuStreamBeginCapture, _v2, 10010, (CUstream, CUstreamCaptureMode))                                           \
  OTHER(cuStreamEndCapture, , 10000, (CUstream, CUgraph *))                                                          \
  OTHER(cuGraphDestroy, , 10000, (CUgraph))                                                                          \
  OTHER(cuGraphInstantiate, WithFlags, 12000, (CUgraphExec *, CUgraph, unsigned long long))                          \
  OTHER(cuGraphExecDestroy, , 10000, (CUgraphExec))                                                                  \
  OTHER(cuGraphLaunch, , 10000, (CUgraphExec, CUstream))                                                             \
  REQUIRED(cuGraphRetainUserObject, , 11030, (CUgraph, CUuserObject, unsigned int, unsigned int))                    \
  REQUIRED(cuUserObjectCreate, , 11030, (CUuserObject *, void *, CUhostFn, unsigned int, unsigned int))              \
  REQUIRED(cuUserObjectRelease, , 11030, (CUuserObject, unsigned int))                                               \
  REQUIRED(cuThreadExchangeStreamCaptureMode, , 10010, (CUstreamCaptureMode *))                                      \
  REQUIRED(cuLaunchHostFunc, , 10000, (CUstream, CUhostFn, void *))                                                  \
  REQUIRED(cuEventCreate, , 2000, (CUevent *, unsigned int))                                                         \
  REQUIRED(cuEventDestroy, _v2, 4000, (CUevent))                                                                     \
  REQUIRED(cuEventRecord, , 2000, (CUevent, CUstream))                                                               \
  REQUIRED(cuEventQuery, , 2000, (CUevent))                                                                          \
  REQUIRED(cuEventSynchronize, , 2000, (CUevent))                                                                    \
  OTHER(cuEventElapsedTime, , 2000, (float *, CUevent, CUevent))                                                     \
  OTHER(cuEventElapsedTime, _v2, 12080, (float *, CUevent, CUevent))                                                 \
  OTHER(cuMemcpy, , 4000, (CUdeviceptr, CUdeviceptr, size_t))                                                        \
  REQUIRED(cuMemcpyAsync, , 4000, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                                      \
  OTHER(cuMemcpyHtoD, _v2, 3020, (CUdeviceptr, const void *, size_t))                                                \
  OTHER(cuMemcpyDtoH, _v2, 3020, (void *, CUdeviceptr, size_t))                                                      \
  OTHER(cuMemcpyDtoD, _v2, 3020, (CUdeviceptr, CUdeviceptr, size_t))                                                 \
  OTHER(cuMemcpyHtoDAsync, _v2, 3020, (CUdeviceptr, const void *, size_t, CUstream))                                 \
  OTHER(cuMemcpyDtoHAsync, _v2, 3020, (void *, CUdeviceptr, size_t, CUstream))                                       \
  OTHER(cuMemcpyDtoDAsync, _v2, 3020, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                                  \
  OTHER(cuMemsetD8, _v2, 3020, (CUdeviceptr, unsigned char, size_t))                                                 \
  REQUIRED(cuMemsetD8Async, , 3020, (CUdeviceptr, unsigned char, size_t, CUstream))                                  \
  REQUIRED(cuModuleLoadData, , 2000, (CUmodule *, const void *))                                                     \
  REQUIRED(cuModuleUnload, , 2000, (CUmodule))                                                                       \
  REQUIRED(cuModuleGetFunction, , 2000, (CUfunction *, CUmodule, const char *))                                      \
  REQUIRED(cuLaunchKernel, , 4000,                                                                                   \
           (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,          \
            unsigned int, CUstream, void **, void **))                                                               \
  REQUIRED(cuDeviceGetDefaultMemPool, , 11020, (CUmemoryPool *, CUdevice))                                           \
  REQUIRED(cuMemPoolGetAttribute, , 11020, (CUmemoryPool, CUmemPool_attribute, void *))                              \
  REQUIRED(cuDeviceGetGraphMemAttribute, , 11040, (CUdevice, CUgraphMem_attribute, void *))                          \
  OTHER(cuCheckpointProcessGetState, , 12080, (int, CUprocessState *))                                               \
  OTHER(cuCheckpointProcessLock, , 12080, (int, CUcheckpointLockArgs *))                                             \
  OTHER(cuCheckpointProcessCheckpoint, , 12080, (int, CUcheckpointCheckpointArgs *))                                 \
  OTHER(cuCheckpointProcessRestore, , 12080, (int, CUcheckpointRestoreArgs *))                                       \
  OTHER(cuCheckpointProcessUnlock, , 12080, (int, CUcheckpointUnlockArgs *))                                         \
  HOOKED(cuMemAllocHost, _v2, 3020, (void **, size_t))                                                               \
  HOOKED(cuStreamBeginCaptureToGraph, , 12030,                                                                       \
         (CUstream, CUgraph, const CUgraphNode *, const CUgraphEdgeData *, size_t, CUstreamCaptureMode))

/* The type of each function: cuMemAlloc_v2_fn. */
#define GMM_CUDA_TYPE(name, suffix, version, parameters) typedef CUresult name##suffix##_fn parameters;
GMM_CUDA_ENTRIES(GMM_CUDA_TYPE, GMM_CUDA_TYPE, GMM_CUDA_TYPE)
#undef GMM_CUDA_TYPE

#endif
