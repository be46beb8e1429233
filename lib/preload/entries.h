// SPDX-License-Identifier: Apache-2.0
// The table of the functions that the library interposes: its hooks. Each hook lets gmm do the work, or calls the real
// function with the same arguments.
#ifndef GMM_PRELOAD_ENTRIES_H
#define GMM_PRELOAD_ENTRIES_H

#include <cstdint>

#include "backend/gpu/driver_api.h"

// The two symbols of a function that takes a null stream for the legacy one or for the thread's.
#define GMM_PRELOAD_TWO(X, symbol, ...) X(symbol, kLegacy, __VA_ARGS__) X(symbol##_ptsz, kPerThread, __VA_ARGS__)

// X(symbol, default stream that a null stream means, the function's type, name for cuGetProcAddress, CUDA version in
// which the symbol got the meaning of the name)
#define GMM_PRELOAD_DRIVER(X)                                                                                    \
  X(cuMemAlloc_v2, kEither, cuMemAlloc_v2_fn, "cuMemAlloc", 3020)                                                \
  X(cuMemFree_v2, kEither, cuMemFree_v2_fn, "cuMemFree", 3020)                                                   \
  X(cuMemAllocManaged, kEither, cuMemAllocManaged_fn, "cuMemAllocManaged", 6000)                                 \
  GMM_PRELOAD_TWO(X, cuMemAllocAsync, cuMemAllocAsync_fn, "cuMemAllocAsync", 11020)                              \
  GMM_PRELOAD_TWO(X, cuMemFreeAsync, cuMemFreeAsync_fn, "cuMemFreeAsync", 11020)                                 \
  X(cuMemAllocHost_v2, kEither, cuMemAllocHost_v2_fn, "cuMemAllocHost", 3020)                                    \
  X(cuMemHostAlloc, kEither, cuMemHostAlloc_fn, "cuMemHostAlloc", 2020)                                          \
  X(cuMemFreeHost, kEither, cuMemFreeHost_fn, "cuMemFreeHost", 2000)                                             \
  X(cuStreamDestroy_v2, kEither, cuStreamDestroy_v2_fn, "cuStreamDestroy", 4000)                                 \
  GMM_PRELOAD_TWO(X, cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_fn, "cuStreamBeginCapture", 10010)         \
  GMM_PRELOAD_TWO(X, cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_fn, "cuStreamBeginCaptureToGraph", \
                  12030)                                                                                         \
  GMM_PRELOAD_TWO(X, cuStreamEndCapture, cuStreamEndCapture_fn, "cuStreamEndCapture", 10000)                     \
  GMM_PRELOAD_TWO(X, cuGetProcAddress, cuGetProcAddress_fn, "cuGetProcAddress", 11030)                           \
  GMM_PRELOAD_TWO(X, cuGetProcAddress_v2, cuGetProcAddress_v2_fn, "cuGetProcAddress", 12000)

// X(symbol, default stream, parameters). A cudaError_t, which each returns, has the numbers of a CUresult.
#define GMM_PRELOAD_RUNTIME(X)                                                                                       \
  X(cudaMalloc, kEither, (void **out, size_t size))                                                                  \
  X(cudaFree, kEither, (void *memory))                                                                               \
  GMM_PRELOAD_TWO(X, cudaMallocAsync, (void **out, size_t size, CUstream stream))                                    \
  GMM_PRELOAD_TWO(X, cudaFreeAsync, (void *memory, CUstream stream))                                                 \
  X(cudaMallocManaged, kEither, (void **out, size_t size, unsigned int flags))                                       \
  X(cudaMallocHost, kEither, (void **out, size_t size))                                                              \
  X(cudaHostAlloc, kEither, (void **out, size_t size, unsigned int flags))                                           \
  X(cudaFreeHost, kEither, (void *memory))                                                                           \
  X(cudaStreamDestroy, kEither, (CUstream stream))                                                                   \
  GMM_PRELOAD_TWO(X, cudaStreamBeginCapture, (CUstream stream, CUstreamCaptureMode mode))                            \
  GMM_PRELOAD_TWO(X, cudaStreamBeginCaptureToGraph,                                                                  \
                  (CUstream stream, CUgraph graph, const CUgraphNode *nodes, const CUgraphEdgeData *edges,           \
                   size_t count, CUstreamCaptureMode mode))                                                          \
  GMM_PRELOAD_TWO(X, cudaStreamEndCapture, (CUstream stream, CUgraph * graph))                                       \
  GMM_PRELOAD_TWO(X, cudaGetDriverEntryPoint, (const char *name, void **out, unsigned long long flags, int *status)) \
  GMM_PRELOAD_TWO(X, cudaGetDriverEntryPointByVersion,                                                               \
                  (const char *name, void **out, unsigned int version, unsigned long long flags, int *status))

extern "C" {
#define X(symbol, stream, type, ...) __attribute__((visibility("default"))) type symbol;
GMM_PRELOAD_DRIVER(X)
#undef X
#define X(symbol, stream, parameters) __attribute__((visibility("default"))) CUresult symbol parameters;
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
