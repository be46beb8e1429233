// SPDX-License-Identifier: Apache-2.0
// The entries of the CUDA driver that a test needs to capture a graph and run it, without CUDA's headers. They serve a
// real driver and the fake one.
#ifndef GMM_TESTS_CUDA_GRAPH_H
#define GMM_TESTS_CUDA_GRAPH_H

#include <dlfcn.h>

#include "gmm_test.h"

enum { CAPTURE_GLOBAL = 0, CAPTURE_THREAD_LOCAL = 1, CAPTURE_RELAXED = 2, EVENT_WITHOUT_TIMING = 2 };

static struct {
  int (*cuDeviceGet)(int *out, int ordinal);
  int (*cuDevicePrimaryCtxRetain)(void **out, int device);
  int (*cuDevicePrimaryCtxRelease_v2)(int device);
  int (*cuCtxSetCurrent)(void *context);
  int (*cuMemAlloc_v2)(uint64_t *out, size_t size);
  int (*cuMemFree_v2)(uint64_t address);
  int (*cuStreamBeginCapture_v2)(gmm_stream stream, int mode);
  int (*cuStreamEndCapture)(gmm_stream stream, void **graph);
  int (*cuStreamIsCapturing)(gmm_stream stream, int *status);
  int (*cuGraphInstantiateWithFlags)(void **out, void *graph, unsigned long long flags);
  int (*cuGraphLaunch)(void *executable, gmm_stream stream);
  int (*cuGraphDestroy)(void *graph);
  int (*cuGraphExecDestroy)(void *executable);
  int (*cuEventCreate)(void **out, unsigned flags);
  int (*cuEventDestroy_v2)(void *event);
  int (*cuEventRecord)(void *event, gmm_stream stream);
  int (*cuStreamWaitEvent)(gmm_stream stream, void *event, unsigned flags);
  int (*cuThreadExchangeStreamCaptureMode)(int *mode);
} cuda;

// False without a driver, and then there is nothing to capture.
__attribute__((unused)) static bool find_cuda(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) return false;
#define FIND(entry)                                       \
  *(void **)(void *)&cuda.entry = dlsym(library, #entry); \
  if (cuda.entry == NULL) return false
  FIND(cuDeviceGet);
  FIND(cuDevicePrimaryCtxRetain);
  FIND(cuDevicePrimaryCtxRelease_v2);
  FIND(cuCtxSetCurrent);
  FIND(cuMemAlloc_v2);
  FIND(cuMemFree_v2);
  FIND(cuStreamBeginCapture_v2);
  FIND(cuStreamEndCapture);
  FIND(cuStreamIsCapturing);
  FIND(cuGraphInstantiateWithFlags);
  FIND(cuGraphLaunch);
  FIND(cuGraphDestroy);
  FIND(cuGraphExecDestroy);
  FIND(cuEventCreate);
  FIND(cuEventDestroy_v2);
  FIND(cuEventRecord);
  FIND(cuStreamWaitEvent);
  FIND(cuThreadExchangeStreamCaptureMode);
#undef FIND
  return true;
}

// Checks that a call of the driver succeeds.
#define CU(call)                                                                                        \
  do {                                                                                                  \
    int check_cu = (call);                                                                              \
    if (check_cu != 0) check_failed(__FILE__, __LINE__, "%s: the driver answered %d", #call, check_cu); \
  } while (0)

// Makes the device's primary context the thread's, where gmm allocates. It stays retained until exit_device().
__attribute__((unused)) static void enter_device(void) {
  void *primary = NULL;
  int handle = 0;
  CU(cuda.cuDeviceGet(&handle, device));
  CU(cuda.cuDevicePrimaryCtxRetain(&primary, handle));
  CU(cuda.cuCtxSetCurrent(primary));
}
__attribute__((unused)) static void exit_device(void) {
  int handle = 0;
  CU(cuda.cuDeviceGet(&handle, device));
  CU(cuda.cuCtxSetCurrent(NULL));
  CU(cuda.cuDevicePrimaryCtxRelease_v2(handle));
}

// A call that allocates or frees spoils another thread's capture in global mode, unless this thread says that it knows
// (CUDA driver API, cuThreadExchangeStreamCaptureMode).
#define RELAXED(call)                                        \
  do {                                                       \
    int check_mode = CAPTURE_RELAXED;                        \
    CU(cuda.cuThreadExchangeStreamCaptureMode(&check_mode)); \
    CU(call);                                                \
    CU(cuda.cuThreadExchangeStreamCaptureMode(&check_mode)); \
  } while (0)

typedef struct captured {
  void *graph, *executable;
} captured;

__attribute__((unused)) static void begin_capture(gmm_stream stream, int mode) {
  CU(cuda.cuStreamBeginCapture_v2(stream, mode));
}
__attribute__((unused)) static captured end_capture(gmm_stream stream) {
  captured made = {NULL, NULL};
  CU(cuda.cuStreamEndCapture(stream, &made.graph));
  if (made.graph != NULL) RELAXED(cuda.cuGraphInstantiateWithFlags(&made.executable, made.graph, 0));
  return made;
}
__attribute__((unused)) static void launch(const captured *graph, gmm_stream stream) {
  if (graph->executable != NULL) CU(cuda.cuGraphLaunch(graph->executable, stream));
}
__attribute__((unused)) static void destroy_graph(captured *graph) {
  if (graph->executable != NULL) RELAXED(cuda.cuGraphExecDestroy(graph->executable));
  if (graph->graph != NULL) RELAXED(cuda.cuGraphDestroy(graph->graph));
  graph->executable = graph->graph = NULL;
}

#endif
