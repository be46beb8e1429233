// SPDX-License-Identifier: Apache-2.0
// The functions of the runtime that tests use, as the real header declares them but for their types' names: the tests
// need no header of the runtime, and the same program links with the real one.
#ifndef FAKE_CUDART_H
#define FAKE_CUDART_H

#include <stddef.h>

typedef int cudaError_t;
typedef void *cudaStream_t;
enum {
  cudaErrorInvalidValue = 1,
  cudaErrorInitializationError = 3,
  cudaErrorInsufficientDriver = 35,
  cudaErrorInvalidDevice = 101
};
enum { cudaMemcpyDefault = 4 };

cudaError_t cudaMalloc(void **out, size_t size);
cudaError_t cudaFree(void *memory);
cudaError_t cudaMallocAsync(void **out, size_t size, cudaStream_t stream);
cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream);
cudaError_t cudaMallocAsync_ptsz(void **out, size_t size, cudaStream_t stream);
cudaError_t cudaFreeAsync_ptsz(void *memory, cudaStream_t stream);
cudaError_t cudaMallocManaged(void **out, size_t size, unsigned int flags);
cudaError_t cudaMallocHost(void **out, size_t size);
cudaError_t cudaHostAlloc(void **out, size_t size, unsigned int flags);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, int kind);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total);
cudaError_t cudaDeviceSynchronize(void);
cudaError_t cudaStreamCreate(cudaStream_t *out);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *out);
cudaError_t cudaGetLastError(void);
cudaError_t cudaPeekAtLastError(void);
cudaError_t cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags, int *status);

#endif
