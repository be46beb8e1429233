// SPDX-License-Identifier: Apache-2.0
// The table of the functions that the library interposes: its hooks. Each hook lets gmm do the work, or calls the real
// function with the same arguments.
#ifndef GMM_PRELOAD_ENTRIES_H
#define GMM_PRELOAD_ENTRIES_H

#include <cstdint>

#include "backend/cuda/driver_api.h"

// X(symbol, the function's type, name for cuGetProcAddress, CUDA version in which the symbol got the meaning of the
// name, default stream that a null stream means)
#define GMM_PRELOAD_DRIVER(X)                                                                                   \
  X(cuMemAlloc_v2, cuMemAlloc_v2_fn, "cuMemAlloc", 3020, kEither)                                               \
  X(cuMemFree_v2, cuMemFree_v2_fn, "cuMemFree", 3020, kEither)                                                  \
  X(cuMemAllocManaged, cuMemAllocManaged_fn, "cuMemAllocManaged", 6000, kEither)                                \
  X(cuMemAllocAsync, cuMemAllocAsync_fn, "cuMemAllocAsync", 11020, kLegacy)                                     \
  X(cuMemAllocAsync_ptsz, cuMemAllocAsync_fn, "cuMemAllocAsync", 11020, kPerThread)                             \
  X(cuMemFreeAsync, cuMemFreeAsync_fn, "cuMemFreeAsync", 11020, kLegacy)                                        \
  X(cuMemFreeAsync_ptsz, cuMemFreeAsync_fn, "cuMemFreeAsync", 11020, kPerThread)                                \
  X(cuMemAllocHost_v2, cuMemAllocHost_v2_fn, "cuMemAllocHost", 3020, kEither)                                   \
  X(cuMemHostAlloc, cuMemHostAlloc_fn, "cuMemHostAlloc", 2020, kEither)                                         \
  X(cuMemFreeHost, cuMemFreeHost_fn, "cuMemFreeHost", 2000, kEither)                                            \
  X(cuStreamDestroy_v2, cuStreamDestroy_v2_fn, "cuStreamDestroy", 4000, kEither)                                \
  X(cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_fn, "cuStreamBeginCapture", 10010, kLegacy)                \
  X(cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture_v2_fn, "cuStreamBeginCapture", 10010, kPerThread)        \
  X(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_fn, "cuStreamBeginCaptureToGraph", 12030, kLegacy) \
  X(cuStreamBeginCaptureToGraph_ptsz, cuStreamBeginCaptureToGraph_fn, "cuStreamBeginCaptureToGraph", 12030,     \
    kPerThread)                                                                                                 \
  X(cuStreamEndCapture, cuStreamEndCapture_fn, "cuStreamEndCapture", 10000, kLegacy)                            \
  X(cuStreamEndCapture_ptsz, cuStreamEndCapture_fn, "cuStreamEndCapture", 10000, kPerThread)                    \
  X(cuGetProcAddress, cuGetProcAddress_fn, "cuGetProcAddress", 11030, kLegacy)                                  \
  X(cuGetProcAddress_v2, cuGetProcAddress_v2_fn, "cuGetProcAddress", 12000, kLegacy)                            \
  X(cuGetProcAddress_ptsz, cuGetProcAddress_fn, "cuGetProcAddress", 11030, kPerThread)                          \
  X(cuGetProcAddress_v2_ptsz, cuGetProcAddress_v2_fn, "cuGetProcAddress", 12000, kPerThread)

// X(symbol, parameters). A cudaError_t, which each returns, has the numbers of a CUresult.
#define GMM_PRELOAD_RUNTIME(X)                                                                                  \
  X(cudaMalloc, (void **out, size_t size))                                                                      \
  X(cudaFree, (void *memory))                                                                                   \
  X(cudaMallocAsync, (void **out, size_t size, CUstream stream))                                                \
  X(cudaMallocAsync_ptsz, (void **out, size_t size, CUstream stream))                                           \
  X(cudaFreeAsync, (void *memory, CUstream stream))                                                             \
  X(cudaFreeAsync_ptsz, (void *memory, CUstream stream))                                                        \
  X(cudaMallocManaged, (void **out, size_t size, unsigned int flags))                                           \
  X(cudaMallocHost, (void **out, size_t size))                                                                  \
  X(cudaHostAlloc, (void **out, size_t size, unsigned int flags))                                               \
  X(cudaFreeHost, (void *memory))                                                                               \
  X(cudaStreamDestroy, (CUstream stream))                                                                       \
  X(cudaStreamBeginCapture, (CUstream stream, CUstreamCaptureMode mode))                                        \
  X(cudaStreamBeginCapture_ptsz, (CUstream stream, CUstreamCaptureMode mode))                                   \
  X(cudaStreamBeginCaptureToGraph, (CUstream stream, CUgraph graph, const CUgraphNode *nodes,                   \
                                    const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode))      \
  X(cudaStreamBeginCaptureToGraph_ptsz, (CUstream stream, CUgraph graph, const CUgraphNode *nodes,              \
                                         const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode)) \
  X(cudaStreamEndCapture, (CUstream stream, CUgraph * graph))                                                   \
  X(cudaStreamEndCapture_ptsz, (CUstream stream, CUgraph * graph))                                              \
  X(cudaGetDriverEntryPoint, (const char *name, void **out, unsigned long long flags, int *status))             \
  X(cudaGetDriverEntryPoint_ptsz, (const char *name, void **out, unsigned long long flags, int *status))        \
  X(cudaGetDriverEntryPointByVersion,                                                                           \
    (const char *name, void **out, unsigned int version, unsigned long long flags, int *status))                \
  X(cudaGetDriverEntryPointByVersion_ptsz,                                                                      \
    (const char *name, void **out, unsigned int version, unsigned long long flags, int *status))

extern "C" {
#define X(symbol, type, ...) __attribute__((visibility("default"))) type symbol;
GMM_PRELOAD_DRIVER(X)
#undef X
#define X(symbol, parameters) __attribute__((visibility("default"))) CUresult symbol parameters;
GMM_PRELOAD_RUNTIME(X)
#undef X
}

namespace gmm::preload {

enum class Entry : uint32_t {
#define X(symbol, ...) k_##symbol,
  GMM_PRELOAD_DRIVER(X) GMM_PRELOAD_RUNTIME(X)
#undef X
      kCount
};
inline constexpr uint32_t kEntryCount = static_cast<uint32_t>(Entry::kCount);

enum class NullStream : uint8_t { kEither, kLegacy, kPerThread };

struct EntryInfo {
  const char *symbol;
  const char *name;  // for cuGetProcAddress; NULL: a function of the runtime
  int version;
  NullStream null_stream;
  void *hook;
};
const EntryInfo &entry_info(Entry entry);
inline bool is_runtime(Entry entry) { return entry >= Entry::k_cudaMalloc; }

// Entry::kCount: there is none.
Entry find_symbol(const char *symbol);
Entry find_name(const char *name, int version, bool per_thread);
bool is_hook(const void *address);

}  // namespace gmm::preload
#endif
