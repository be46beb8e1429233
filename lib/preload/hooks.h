// SPDX-License-Identifier: Apache-2.0
// The hooks: functions that replace CUDA's. Each lets gmm do the work, or calls the real function with the same
// arguments.
#ifndef GMM_PRELOAD_HOOKS_H
#define GMM_PRELOAD_HOOKS_H

#include "preload/cuda_types.h"

#define GMM_PRELOAD_EXPORT __attribute__((visibility("default")))

extern "C" {

#define GMM_PRELOAD_CODE GMM_PRELOAD_EXPORT gmm::preload::Code
// The driver.
GMM_PRELOAD_CODE cuMemAlloc_v2(gmm::preload::DevicePointer *out, size_t size);
GMM_PRELOAD_CODE cuMemFree_v2(gmm::preload::DevicePointer memory);
GMM_PRELOAD_CODE cuMemAllocManaged(gmm::preload::DevicePointer *out, size_t size, unsigned int flags);
GMM_PRELOAD_CODE cuMemAllocAsync(gmm::preload::DevicePointer *out, size_t size, gmm::preload::Stream stream);
GMM_PRELOAD_CODE cuMemAllocAsync_ptsz(gmm::preload::DevicePointer *out, size_t size, gmm::preload::Stream stream);
GMM_PRELOAD_CODE cuMemFreeAsync(gmm::preload::DevicePointer memory, gmm::preload::Stream stream);
GMM_PRELOAD_CODE cuMemFreeAsync_ptsz(gmm::preload::DevicePointer memory, gmm::preload::Stream stream);
GMM_PRELOAD_CODE cuMemAllocHost_v2(void **out, size_t size);
GMM_PRELOAD_CODE cuMemHostAlloc(void **out, size_t size, unsigned int flags);
GMM_PRELOAD_CODE cuMemFreeHost(void *memory);
GMM_PRELOAD_CODE cuStreamDestroy_v2(gmm::preload::Stream stream);
GMM_PRELOAD_CODE cuStreamBeginCapture_v2(gmm::preload::Stream stream, int mode);
GMM_PRELOAD_CODE cuStreamBeginCaptureToGraph(gmm::preload::Stream stream, void *graph, const void *nodes,
                                             const void *edges, size_t count, int mode);
GMM_PRELOAD_CODE cuStreamEndCapture(gmm::preload::Stream stream, void **graph);
GMM_PRELOAD_CODE cuStreamBeginCapture_v2_ptsz(gmm::preload::Stream stream, int mode);
GMM_PRELOAD_CODE cuStreamBeginCaptureToGraph_ptsz(gmm::preload::Stream stream, void *graph, const void *nodes,
                                                  const void *edges, size_t count, int mode);
GMM_PRELOAD_CODE cuStreamEndCapture_ptsz(gmm::preload::Stream stream, void **graph);
GMM_PRELOAD_CODE cuGetProcAddress(const char *name, void **out, int version, uint64_t flags);
GMM_PRELOAD_CODE cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status);
GMM_PRELOAD_CODE cuGetProcAddress_ptsz(const char *name, void **out, int version, uint64_t flags);
GMM_PRELOAD_CODE cuGetProcAddress_v2_ptsz(const char *name, void **out, int version, uint64_t flags, int *status);
// The runtime.
GMM_PRELOAD_CODE cudaMalloc(void **out, size_t size);
GMM_PRELOAD_CODE cudaFree(void *memory);
GMM_PRELOAD_CODE cudaMallocAsync(void **out, size_t size, gmm::preload::Stream stream);
GMM_PRELOAD_CODE cudaMallocAsync_ptsz(void **out, size_t size, gmm::preload::Stream stream);
GMM_PRELOAD_CODE cudaFreeAsync(void *memory, gmm::preload::Stream stream);
GMM_PRELOAD_CODE cudaFreeAsync_ptsz(void *memory, gmm::preload::Stream stream);
GMM_PRELOAD_CODE cudaMallocManaged(void **out, size_t size, unsigned int flags);
GMM_PRELOAD_CODE cudaMallocHost(void **out, size_t size);
GMM_PRELOAD_CODE cudaHostAlloc(void **out, size_t size, unsigned int flags);
GMM_PRELOAD_CODE cudaFreeHost(void *memory);
GMM_PRELOAD_CODE cudaStreamDestroy(gmm::preload::Stream stream);
GMM_PRELOAD_CODE cudaStreamBeginCapture(gmm::preload::Stream stream, int mode);
GMM_PRELOAD_CODE cudaStreamBeginCaptureToGraph(gmm::preload::Stream stream, void *graph, const void *nodes,
                                               const void *edges, size_t count, int mode);
GMM_PRELOAD_CODE cudaStreamEndCapture(gmm::preload::Stream stream, void **graph);
GMM_PRELOAD_CODE cudaStreamBeginCapture_ptsz(gmm::preload::Stream stream, int mode);
GMM_PRELOAD_CODE cudaStreamBeginCaptureToGraph_ptsz(gmm::preload::Stream stream, void *graph, const void *nodes,
                                                    const void *edges, size_t count, int mode);
GMM_PRELOAD_CODE cudaStreamEndCapture_ptsz(gmm::preload::Stream stream, void **graph);
GMM_PRELOAD_CODE cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags, int *status);
GMM_PRELOAD_CODE cudaGetDriverEntryPoint_ptsz(const char *name, void **out, unsigned long long flags, int *status);
GMM_PRELOAD_CODE cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned int version,
                                                  unsigned long long flags, int *status);
GMM_PRELOAD_CODE cudaGetDriverEntryPointByVersion_ptsz(const char *name, void **out, unsigned int version,
                                                       unsigned long long flags, int *status);
#undef GMM_PRELOAD_CODE
}

#endif
