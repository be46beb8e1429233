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

static struct cuda_driver driver;
static cuGetProcAddress_v2_fn *look_up;
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
  look_up = (cuGetProcAddress_v2_fn *)dlsym(library, "cuGetProcAddress_v2");
  if (look_up == NULL) return;
  CUdriverProcAddressQueryResult status;
#define IGNORED(name, suffix, version, parameters)
#define FIND(name, suffix, version, parameters) look_up(#name, (void **)&driver.name##suffix, version, 0, &status);
  GMM_CUDA_ENTRIES(FIND, FIND, IGNORED)
  start_error = (int)driver.cuInit(0);
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
  int code = primary[current] == NULL ? (int)driver.cuDevicePrimaryCtxRetain(&primary[current], current) : 0;
  pthread_mutex_unlock(&mutex);
  return code != 0 ? code : (int)driver.cuCtxSetCurrent(primary[current]);
}

#define BEGIN()              \
  const int ready = begin(); \
  if (ready != 0) return note(ready)

// Calls one function of the driver.
#define FORWARD(name, parameters, call) \
  cudaError_t name parameters {         \
    BEGIN();                            \
    return note((int)driver.call);      \
  }

cudaError_t cudaMalloc(void **out, size_t size) {
  BEGIN();
  if (out == NULL) return note(cudaErrorInvalidValue);
  *out = NULL;
  return size == 0 ? 0 : note((int)driver.cuMemAlloc_v2((CUdeviceptr *)out, size));
}
cudaError_t cudaFree(void *memory) {
  BEGIN();
  return memory == NULL ? 0 : note((int)driver.cuMemFree_v2((CUdeviceptr)memory));
}
FORWARD(cudaMallocAsync, (void **out, size_t size, cudaStream_t stream),
        cuMemAllocAsync((CUdeviceptr *)out, size, (CUstream)stream))
FORWARD(cudaFreeAsync, (void *memory, cudaStream_t stream), cuMemFreeAsync((CUdeviceptr)memory, (CUstream)stream))
// The fake driver has no entries of its own for the per-thread default stream: its value is named.
cudaError_t cudaMallocAsync_ptsz(void **out, size_t size, cudaStream_t stream) {
  return cudaMallocAsync(out, size, stream != NULL ? stream : (cudaStream_t)CU_STREAM_PER_THREAD);
}
cudaError_t cudaFreeAsync_ptsz(void *memory, cudaStream_t stream) {
  return cudaFreeAsync(memory, stream != NULL ? stream : (cudaStream_t)CU_STREAM_PER_THREAD);
}
FORWARD(cudaMallocManaged, (void **out, size_t size, unsigned int flags),
        cuMemAllocManaged((CUdeviceptr *)out, size, flags))
FORWARD(cudaMallocHost, (void **out, size_t size), cuMemHostAlloc(out, size, 0))
FORWARD(cudaHostAlloc, (void **out, size_t size, unsigned int flags), cuMemHostAlloc(out, size, flags))
cudaError_t cudaFreeHost(void *memory) {
  BEGIN();
  return memory == NULL ? 0 : note((int)driver.cuMemFreeHost(memory));
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t size, int kind) {
  (void)kind;
  BEGIN();
  int code = (int)driver.cuMemcpyAsync((CUdeviceptr)to, (CUdeviceptr)from, size, NULL);
  return note(code != 0 ? code : (int)driver.cuStreamSynchronize(NULL));
}
FORWARD(cudaMemGetInfo, (size_t * free_bytes, size_t *total), cuMemGetInfo_v2(free_bytes, total))
FORWARD(cudaDeviceSynchronize, (void), cuCtxSynchronize())
FORWARD(cudaStreamCreate, (cudaStream_t * out), cuStreamCreate((CUstream *)out, 0))
FORWARD(cudaStreamSynchronize, (cudaStream_t stream), cuStreamSynchronize((CUstream)stream))
FORWARD(cudaStreamDestroy, (cudaStream_t stream), cuStreamDestroy_v2((CUstream)stream))
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
  const int code = (int)look_up(name, out, NEWEST_VERSION, flags, &found);
  if (status != NULL) *status = (int)found;
  return note(code);
}
