// SPDX-License-Identifier: Apache-2.0
// A small libcudart.so.13 for tests: the runtime's memory functions over the driver, which it finds as the real one
// does: dlopen of libcuda.so.1, dlsym of cuGetProcAddress_v2, and that for everything else. It notes each failure for
// cudaGetLastError. The real runtime does not start on the fake driver of the tests. For tests only.
#include "fake_cudart.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#include "../cuda_functions.h"

enum { NEWEST_VERSION = 13000 };

#define FUNCTIONS(X)                                          \
  X(cuInit, cuInit, 2000)                                     \
  X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000) \
  X(cuCtxSetCurrent, cuCtxSetCurrent, 4000)                   \
  X(cuCtxGetCurrent, cuCtxGetCurrent, 4000)                   \
  X(cuMemAlloc, cuMemAlloc_v2, 3020)                          \
  X(cuMemFree, cuMemFree_v2, 3020)                            \
  X(cuMemAllocAsync, cuMemAllocAsync, 11020)                  \
  X(cuMemFreeAsync, cuMemFreeAsync, 11020)                    \
  X(cuMemAllocManaged, cuMemAllocManaged, 6000)               \
  X(cuMemHostAlloc, cuMemHostAlloc, 2020)                     \
  X(cuMemFreeHost, cuMemFreeHost, 2000)                       \
  X(cuMemcpyAsync, cuMemcpyAsync, 4000)                       \
  X(cuStreamCreate, cuStreamCreate, 2000)                     \
  X(cuStreamDestroy, cuStreamDestroy_v2, 4000)                \
  X(cuStreamSynchronize, cuStreamSynchronize, 2000)           \
  X(cuCtxSynchronize, cuCtxSynchronize, 2000)                 \
  X(cuMemGetInfo, cuMemGetInfo_v2, 3020)

static struct {
#define X(name, symbol, version) symbol##_fn *p_##name;
  FUNCTIONS(X)
#undef X
  cuGetProcAddress_v2_fn *look_up;
} driver;
static CUcontext primary[16];
static int start_error = cudaErrorInitializationError;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static __thread int last_error;
static __thread int current;

static void start(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) {
    start_error = cudaErrorInsufficientDriver;
    return;
  }
  driver.look_up = (cuGetProcAddress_v2_fn *)dlsym(library, "cuGetProcAddress_v2");
  if (driver.look_up == NULL) return;
  CUdriverProcAddressQueryResult status;
#define X(name, symbol, version) \
  if (driver.look_up(#name, (void **)&driver.p_##name, version, 0, &status) != CUDA_SUCCESS) return;
  FUNCTIONS(X)
#undef X
  start_error = (int)driver.p_cuInit(0);
}

static cudaError_t note(int code) {
  if (code != 0) last_error = code;
  return code;
}

// Makes the device's primary context current, as every function of the runtime does.
static int begin(void) {
  pthread_once(&once, start);
  if (start_error != 0) return start_error;
  pthread_mutex_lock(&mutex);
  int code = primary[current] == NULL ? (int)driver.p_cuDevicePrimaryCtxRetain(&primary[current], current) : 0;
  pthread_mutex_unlock(&mutex);
  return code != 0 ? code : (int)driver.p_cuCtxSetCurrent(primary[current]);
}

#define BEGIN()              \
  const int ready = begin(); \
  if (ready != 0) return note(ready)

cudaError_t cudaMalloc(void **out, size_t size) {
  BEGIN();
  if (out == NULL) return note(cudaErrorInvalidValue);
  *out = NULL;
  return size == 0 ? 0 : note((int)driver.p_cuMemAlloc((CUdeviceptr *)out, size));
}
cudaError_t cudaFree(void *memory) {
  BEGIN();
  return memory == NULL ? 0 : note((int)driver.p_cuMemFree((CUdeviceptr)memory));
}
cudaError_t cudaMallocAsync(void **out, size_t size, cudaStream_t stream) {
  BEGIN();
  return note((int)driver.p_cuMemAllocAsync((CUdeviceptr *)out, size, (CUstream)stream));
}
cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream) {
  BEGIN();
  return note((int)driver.p_cuMemFreeAsync((CUdeviceptr)memory, (CUstream)stream));
}
// The fake driver has no entries of its own for the per-thread default stream: its value is named.
cudaError_t cudaMallocAsync_ptsz(void **out, size_t size, cudaStream_t stream) {
  return cudaMallocAsync(out, size, stream != NULL ? stream : (cudaStream_t)CU_STREAM_PER_THREAD);
}
cudaError_t cudaFreeAsync_ptsz(void *memory, cudaStream_t stream) {
  return cudaFreeAsync(memory, stream != NULL ? stream : (cudaStream_t)CU_STREAM_PER_THREAD);
}
cudaError_t cudaMallocManaged(void **out, size_t size, unsigned int flags) {
  BEGIN();
  return note((int)driver.p_cuMemAllocManaged((CUdeviceptr *)out, size, flags));
}
cudaError_t cudaMallocHost(void **out, size_t size) {
  BEGIN();
  return note((int)driver.p_cuMemHostAlloc(out, size, 0));
}
cudaError_t cudaHostAlloc(void **out, size_t size, unsigned int flags) {
  BEGIN();
  return note((int)driver.p_cuMemHostAlloc(out, size, flags));
}
cudaError_t cudaFreeHost(void *memory) {
  BEGIN();
  return memory == NULL ? 0 : note((int)driver.p_cuMemFreeHost(memory));
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, int kind) {
  (void)kind;
  BEGIN();
  int code = (int)driver.p_cuMemcpyAsync((CUdeviceptr)to, (CUdeviceptr)from, size, NULL);
  return note(code != 0 ? code : (int)driver.p_cuStreamSynchronize(NULL));
}
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  BEGIN();
  return note((int)driver.p_cuMemGetInfo(free_bytes, total));
}
cudaError_t cudaDeviceSynchronize(void) {
  BEGIN();
  return note((int)driver.p_cuCtxSynchronize());
}
cudaError_t cudaStreamCreate(cudaStream_t *out) {
  BEGIN();
  return note((int)driver.p_cuStreamCreate((CUstream *)out, 0));
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  BEGIN();
  return note((int)driver.p_cuStreamSynchronize((CUstream)stream));
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  BEGIN();
  return note((int)driver.p_cuStreamDestroy((CUstream)stream));
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= 16) return note(cudaErrorInvalidDevice);
  current = device;
  BEGIN();
  return 0;
}
cudaError_t cudaGetDevice(int *out) {
  *out = current;
  return 0;
}
cudaError_t cudaGetLastError(void) {
  const int code = last_error;
  last_error = 0;
  return code;
}
cudaError_t cudaPeekAtLastError(void) { return last_error; }
cudaError_t cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags, int *status) {
  BEGIN();
  CUdriverProcAddressQueryResult found;
  const int code = (int)driver.look_up(name, out, NEWEST_VERSION, flags, &found);
  if (status != NULL) *status = (int)found;
  return note(code);
}
