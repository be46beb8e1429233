// SPDX-License-Identifier: Apache-2.0
// Every entry of the fake driver: X(name, symbol, first CUDA version that gives this symbol for the name, in_any).
// `in_any`: fake_cuda_fail(NULL, ...) counts it. Versions are those of cudaTypedefs.h.
#ifndef FAKE_CUDA_ENTRIES_H
#define FAKE_CUDA_ENTRIES_H

#define FAKE_CUDA_ENTRIES(X)                                                                  \
  X(cuInit, cuInit, 2000, 1)                                                                  \
  X(cuDriverGetVersion, cuDriverGetVersion, 2020, 1)                                          \
  X(cuGetErrorName, cuGetErrorName, 6000, 0)                                                  \
  X(cuGetErrorString, cuGetErrorString, 6000, 0)                                              \
  X(cuGetProcAddress, cuGetProcAddress_v2, 12000, 0)                                          \
  X(cuDeviceGetCount, cuDeviceGetCount, 2000, 1)                                              \
  X(cuDeviceGet, cuDeviceGet, 2000, 1)                                                        \
  X(cuDeviceGetName, cuDeviceGetName, 2000, 1)                                                \
  X(cuDeviceGetUuid, cuDeviceGetUuid, 9020, 1)                                                \
  X(cuDeviceGetUuid, cuDeviceGetUuid_v2, 11040, 1)                                            \
  X(cuDeviceGetLuid, cuDeviceGetLuid, 10000, 0)                                               \
  X(cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020, 1)                                           \
  X(cuDeviceGetAttribute, cuDeviceGetAttribute, 2000, 1)                                      \
  X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000, 1)                                    \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, 1)                              \
  X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000, 1)                        \
  X(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000, 1)                          \
  X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, 11000, 1)                            \
  X(cuCtxCreate, cuCtxCreate_v2, 3020, 0)                                                     \
  X(cuCtxDestroy, cuCtxDestroy_v2, 4000, 0)                                                   \
  X(cuCtxGetCurrent, cuCtxGetCurrent, 4000, 0)                                                \
  X(cuCtxSetCurrent, cuCtxSetCurrent, 4000, 0)                                                \
  X(cuCtxPushCurrent, cuCtxPushCurrent_v2, 4000, 0)                                           \
  X(cuCtxPopCurrent, cuCtxPopCurrent_v2, 4000, 0)                                             \
  X(cuCtxGetDevice, cuCtxGetDevice, 2000, 0)                                                  \
  X(cuCtxGetDevice, cuCtxGetDevice_v2, 13000, 0)                                              \
  X(cuCtxGetId, cuCtxGetId, 12000, 0)                                                         \
  X(cuCtxRecordEvent, cuCtxRecordEvent, 12050, 1)                                             \
  X(cuCtxSynchronize, cuCtxSynchronize, 2000, 1)                                              \
  X(cuCtxSynchronize, cuCtxSynchronize_v2, 13000, 1)                                          \
  X(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000, 1)                                    \
  X(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess, 4000, 1)                                  \
  X(cuMemGetInfo, cuMemGetInfo_v2, 3020, 1)                                                   \
  X(cuMemAlloc, cuMemAlloc_v2, 3020, 1)                                                       \
  X(cuMemFree, cuMemFree_v2, 3020, 1)                                                         \
  X(cuMemAllocManaged, cuMemAllocManaged, 6000, 1)                                            \
  X(cuMemAllocAsync, cuMemAllocAsync, 11020, 1)                                               \
  X(cuMemFreeAsync, cuMemFreeAsync, 11020, 1)                                                 \
  X(cuMemHostAlloc, cuMemHostAlloc, 2020, 1)                                                  \
  X(cuMemFreeHost, cuMemFreeHost, 2000, 1)                                                    \
  X(cuMemHostRegister, cuMemHostRegister_v2, 6050, 1)                                         \
  X(cuMemHostUnregister, cuMemHostUnregister, 4000, 1)                                        \
  X(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2, 3020, 1)                         \
  X(cuMemHostGetFlags, cuMemHostGetFlags, 2030, 1)                                            \
  X(cuMemGetAddressRange, cuMemGetAddressRange_v2, 3020, 1)                                   \
  X(cuPointerGetAttribute, cuPointerGetAttribute, 4000, 1)                                    \
  X(cuPointerGetAttributes, cuPointerGetAttributes, 7000, 1)                                  \
  X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020, 1)                   \
  X(cuMemAddressReserve, cuMemAddressReserve, 10020, 1)                                       \
  X(cuMemAddressFree, cuMemAddressFree, 10020, 1)                                             \
  X(cuMemCreate, cuMemCreate, 10020, 1)                                                       \
  X(cuMemRelease, cuMemRelease, 10020, 1)                                                     \
  X(cuMemMap, cuMemMap, 10020, 1)                                                             \
  X(cuMemUnmap, cuMemUnmap, 10020, 1)                                                         \
  X(cuMemSetAccess, cuMemSetAccess, 10020, 1)                                                 \
  X(cuMemGetAccess, cuMemGetAccess, 10020, 1)                                                 \
  X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, 1)                       \
  X(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, 10020, 1) \
  X(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020, 1)                     \
  X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020, 1)                 \
  X(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, 1)                                            \
  X(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, 11000, 1)                                      \
  X(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 4010, 1)                                        \
  X(cuIpcGetEventHandle, cuIpcGetEventHandle, 4010, 1)                                        \
  X(cuIpcOpenEventHandle, cuIpcOpenEventHandle, 4010, 1)                                      \
  X(cuMemGetHandleForAddressRange, cuMemGetHandleForAddressRange, 11070, 1)                   \
  X(cuImportExternalMemory, cuImportExternalMemory, 10000, 1)                                 \
  X(cuExternalMemoryGetMappedBuffer, cuExternalMemoryGetMappedBuffer, 10000, 1)               \
  X(cuDestroyExternalMemory, cuDestroyExternalMemory, 10000, 1)                               \
  X(cuImportExternalSemaphore, cuImportExternalSemaphore, 10000, 1)                           \
  X(cuSignalExternalSemaphoresAsync, cuSignalExternalSemaphoresAsync, 10000, 1)               \
  X(cuWaitExternalSemaphoresAsync, cuWaitExternalSemaphoresAsync, 10000, 1)                   \
  X(cuDestroyExternalSemaphore, cuDestroyExternalSemaphore, 10000, 1)                         \
  X(cuMemAdvise, cuMemAdvise, 8000, 1)                                                        \
  X(cuMemAdvise, cuMemAdvise_v2, 12020, 1)                                                    \
  X(cuMemPrefetchAsync, cuMemPrefetchAsync, 8000, 1)                                          \
  X(cuMemPrefetchAsync, cuMemPrefetchAsync_v2, 12020, 1)                                      \
  X(cuStreamCreate, cuStreamCreate, 2000, 1)                                                  \
  X(cuStreamCreateWithPriority, cuStreamCreateWithPriority, 5050, 1)                          \
  X(cuStreamDestroy, cuStreamDestroy_v2, 4000, 1)                                             \
  X(cuStreamSynchronize, cuStreamSynchronize, 2000, 1)                                        \
  X(cuStreamQuery, cuStreamQuery, 2000, 1)                                                    \
  X(cuStreamWaitEvent, cuStreamWaitEvent, 3020, 1)                                            \
  X(cuStreamGetCtx, cuStreamGetCtx, 9020, 1)                                                  \
  X(cuStreamGetPriority, cuStreamGetPriority, 5050, 1)                                        \
  X(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange, 5050, 1)                        \
  X(cuStreamIsCapturing, cuStreamIsCapturing, 10000, 1)                                       \
  X(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo, 10010, 1)                                 \
  X(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v2, 11030, 1)                              \
  X(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v3, 12030, 1)                              \
  X(cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010, 1)                                  \
  X(cuStreamEndCapture, cuStreamEndCapture, 10000, 1)                                         \
  X(cuGraphDestroy, cuGraphDestroy, 10000, 1)                                                 \
  X(cuGraphInstantiate, cuGraphInstantiateWithFlags, 12000, 1)                                \
  X(cuGraphExecDestroy, cuGraphExecDestroy, 10000, 1)                                         \
  X(cuGraphLaunch, cuGraphLaunch, 10000, 1)                                                   \
  X(cuGraphRetainUserObject, cuGraphRetainUserObject, 11030, 1)                               \
  X(cuGraphReleaseUserObject, cuGraphReleaseUserObject, 11030, 1)                             \
  X(cuUserObjectCreate, cuUserObjectCreate, 11030, 1)                                         \
  X(cuUserObjectRetain, cuUserObjectRetain, 11030, 1)                                         \
  X(cuUserObjectRelease, cuUserObjectRelease, 11030, 1)                                       \
  X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010, 1)           \
  X(cuLaunchHostFunc, cuLaunchHostFunc, 10000, 1)                                             \
  X(cuEventCreate, cuEventCreate, 2000, 1)                                                    \
  X(cuEventDestroy, cuEventDestroy_v2, 4000, 1)                                               \
  X(cuEventRecord, cuEventRecord, 2000, 1)                                                    \
  X(cuEventQuery, cuEventQuery, 2000, 1)                                                      \
  X(cuEventSynchronize, cuEventSynchronize, 2000, 1)                                          \
  X(cuEventElapsedTime, cuEventElapsedTime, 2000, 1)                                          \
  X(cuEventElapsedTime, cuEventElapsedTime_v2, 12080, 1)                                      \
  X(cuMemcpy, cuMemcpy, 4000, 1)                                                              \
  X(cuMemcpyAsync, cuMemcpyAsync, 4000, 1)                                                    \
  X(cuMemcpyHtoD, cuMemcpyHtoD_v2, 3020, 1)                                                   \
  X(cuMemcpyDtoH, cuMemcpyDtoH_v2, 3020, 1)                                                   \
  X(cuMemcpyDtoD, cuMemcpyDtoD_v2, 3020, 1)                                                   \
  X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, 3020, 1)                                         \
  X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, 3020, 1)                                         \
  X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, 3020, 1)                                         \
  X(cuMemsetD8, cuMemsetD8_v2, 3020, 1)                                                       \
  X(cuMemsetD8Async, cuMemsetD8Async, 3020, 1)                                                \
  X(cuModuleLoadData, cuModuleLoadData, 2000, 1)                                              \
  X(cuModuleUnload, cuModuleUnload, 2000, 1)                                                  \
  X(cuModuleGetFunction, cuModuleGetFunction, 2000, 1)                                        \
  X(cuLaunchKernel, cuLaunchKernel, 4000, 1)                                                  \
  X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020, 1)                           \
  X(cuMemPoolGetAttribute, cuMemPoolGetAttribute, 11020, 1)                                   \
  X(cuDeviceGetGraphMemAttribute, cuDeviceGetGraphMemAttribute, 11040, 1)                     \
  X(cuCheckpointProcessGetState, cuCheckpointProcessGetState, 12080, 1)                       \
  X(cuCheckpointProcessLock, cuCheckpointProcessLock, 12080, 1)                               \
  X(cuCheckpointProcessCheckpoint, cuCheckpointProcessCheckpoint, 12080, 1)                   \
  X(cuCheckpointProcessRestore, cuCheckpointProcessRestore, 12080, 1)                         \
  X(cuCheckpointProcessUnlock, cuCheckpointProcessUnlock, 12080, 1)

namespace fake {

// One number for each symbol; counts of one name are summed over its symbols.
enum class Entry {
#define X(name, symbol, version, in_any) symbol,
  FAKE_CUDA_ENTRIES(X)
#undef X
      count
};

}  // namespace fake
#endif
