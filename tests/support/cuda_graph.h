// SPDX-License-Identifier: Apache-2.0
// Graphs of the CUDA driver: to capture one and to run it. It serves a real driver and the fake one.
#ifndef GMM_TESTS_CUDA_GRAPH_H
#define GMM_TESTS_CUDA_GRAPH_H

#include "cuda_functions.h"
#include "gmm_test.h"

static struct cuda_driver cuda;

// False without a driver, and then there is nothing to capture.
__attribute__((unused)) static bool find_cuda(void) {
  return cuda_driver_open(&cuda) == NULL && cuda.cuGraphInstantiateWithFlags != NULL &&
         cuda.cuThreadExchangeStreamCaptureMode != NULL;
}

// Checks that a call of the driver succeeds.
#define CU(call)                                                                                        \
  do {                                                                                                  \
    int check_cu = (call);                                                                              \
    if (check_cu != 0) check_failed(__FILE__, __LINE__, "%s: the driver answered %d", #call, check_cu); \
  } while (0)

// Makes the device's primary context the thread's, where gmm allocates. It stays retained until exit_device().
__attribute__((unused)) static void enter_device(void) {
  CUcontext primary = NULL;
  CUdevice handle = 0;
  CU(cuda.cuDeviceGet(&handle, device));
  CU(cuda.cuDevicePrimaryCtxRetain(&primary, handle));
  CU(cuda.cuCtxSetCurrent(primary));
}
__attribute__((unused)) static void exit_device(void) {
  CUdevice handle = 0;
  CU(cuda.cuDeviceGet(&handle, device));
  CU(cuda.cuCtxSetCurrent(NULL));
  CU(cuda.cuDevicePrimaryCtxRelease_v2(handle));
}

// A call that allocates or frees spoils another thread's capture in global mode, unless this thread says that it knows
// (CUDA driver API, cuThreadExchangeStreamCaptureMode).
#define RELAXED(call)                                                \
  do {                                                               \
    CUstreamCaptureMode check_mode = CU_STREAM_CAPTURE_MODE_RELAXED; \
    CU(cuda.cuThreadExchangeStreamCaptureMode(&check_mode));         \
    CU(call);                                                        \
    CU(cuda.cuThreadExchangeStreamCaptureMode(&check_mode));         \
  } while (0)

typedef struct captured {
  CUgraph graph;
  CUgraphExec executable;
} captured;

__attribute__((unused)) static void begin_capture(gmm_stream stream, CUstreamCaptureMode mode) {
  CU(cuda.cuStreamBeginCapture_v2((CUstream)stream, mode));
}
__attribute__((unused)) static captured end_capture(gmm_stream stream) {
  captured made = {NULL, NULL};
  CU(cuda.cuStreamEndCapture((CUstream)stream, &made.graph));
  if (made.graph != NULL) RELAXED(cuda.cuGraphInstantiateWithFlags(&made.executable, made.graph, 0));
  return made;
}
__attribute__((unused)) static void launch(const captured *graph, gmm_stream stream) {
  if (graph->executable != NULL) CU(cuda.cuGraphLaunch(graph->executable, (CUstream)stream));
}
__attribute__((unused)) static void destroy_graph(captured *graph) {
  if (graph->executable != NULL) RELAXED(cuda.cuGraphExecDestroy(graph->executable));
  if (graph->graph != NULL) RELAXED(cuda.cuGraphDestroy(graph->graph));
  *graph = (captured){NULL, NULL};
}

#endif
