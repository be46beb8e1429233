// SPDX-License-Identifier: Apache-2.0
// The hooks: functions that replace CUDA's. Each lets gmm do the work, or calls the real function with the same
// arguments.
#ifndef GMM_PRELOAD_HOOKS_H
#define GMM_PRELOAD_HOOKS_H

#include "backend/cuda/driver_api.h"
#include "preload/entries.h"

#define GMM_PRELOAD_EXPORT __attribute__((visibility("default")))

extern "C" {

#define X(symbol, type, ...) GMM_PRELOAD_EXPORT type symbol;
GMM_PRELOAD_DRIVER(X)
#undef X
// The runtime. A cudaError_t has the numbers of a CUresult.
#define GMM_PRELOAD_CODE GMM_PRELOAD_EXPORT CUresult
GMM_PRELOAD_CODE cudaMalloc(void **out, size_t size);
GMM_PRELOAD_CODE cudaFree(void *memory);
GMM_PRELOAD_CODE cudaMallocAsync(void **out, size_t size, CUstream stream);
GMM_PRELOAD_CODE cudaMallocAsync_ptsz(void **out, size_t size, CUstream stream);
GMM_PRELOAD_CODE cudaFreeAsync(void *memory, CUstream stream);
GMM_PRELOAD_CODE cudaFreeAsync_ptsz(void *memory, CUstream stream);
GMM_PRELOAD_CODE cudaMallocManaged(void **out, size_t size, unsigned int flags);
GMM_PRELOAD_CODE cudaMallocHost(void **out, size_t size);
GMM_PRELOAD_CODE cudaHostAlloc(void **out, size_t size, unsigned int flags);
GMM_PRELOAD_CODE cudaFreeHost(void *memory);
GMM_PRELOAD_CODE cudaStreamDestroy(CUstream stream);
GMM_PRELOAD_CODE cudaStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode);
GMM_PRELOAD_CODE cudaStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                               const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode);
GMM_PRELOAD_CODE cudaStreamEndCapture(CUstream stream, CUgraph *graph);
GMM_PRELOAD_CODE cudaStreamBeginCapture_ptsz(CUstream stream, CUstreamCaptureMode mode);
GMM_PRELOAD_CODE cudaStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                                    const CUgraphEdgeData *edges, size_t count,
                                                    CUstreamCaptureMode mode);
GMM_PRELOAD_CODE cudaStreamEndCapture_ptsz(CUstream stream, CUgraph *graph);
GMM_PRELOAD_CODE cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags, int *status);
GMM_PRELOAD_CODE cudaGetDriverEntryPoint_ptsz(const char *name, void **out, unsigned long long flags, int *status);
GMM_PRELOAD_CODE cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned int version,
                                                  unsigned long long flags, int *status);
GMM_PRELOAD_CODE cudaGetDriverEntryPointByVersion_ptsz(const char *name, void **out, unsigned int version,
                                                       unsigned long long flags, int *status);
#undef GMM_PRELOAD_CODE
}

#endif
