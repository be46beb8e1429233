// SPDX-License-Identifier: Apache-2.0
// Helpers of the tests of graph capture.
#ifndef GMM_TESTS_CAPTURE_SUPPORT_H
#define GMM_TESTS_CAPTURE_SUPPORT_H

#include "../support/cuda_graph.h"

#define SIZE ((uint64_t)60000)

static gmm_stream a, b;
static uint64_t held_before;  // reserved bytes before the capture

static void begin(void) {
  if (backend_id() != GMM_BACKEND_CUDA) SKIP("only the CUDA backend has graphs");
  enter_device();
  MUST(gmm_stream_create(context, STREAM_ON(device), &a));
  MUST(gmm_stream_create(context, STREAM_ON(device), &b));
  held_before = stats().reserved_bytes;
}
static void end(void) {
  OK(gmm_stream_destroy(context, a));
  OK(gmm_stream_destroy(context, b));
  exit_device();
}

// The driver says that a graph is gone at some moment after it went.
static bool comes_back_to(uint64_t reserved) {
  for (double end = now_s() + SOON_S; stats().reserved_bytes > reserved; sleep_ms(1))
    if (now_s() > end) return false;
  return true;
}
#define COMES_BACK()                                                                                  \
  CHECK_MESSAGE(comes_back_to(held_before), "%llu bytes stay reserved, %llu were before the capture", \
                (unsigned long long)stats().reserved_bytes, (unsigned long long)held_before)

static bool holds(const void *memory, uint64_t size, uint8_t value, gmm_stream stream) {
  uint8_t *bytes = malloc(size);
  memset(bytes, (uint8_t)~value, size);
  OK(gmm_copy(context, bytes, memory, size, stream));
  OK(gmm_stream_synchronize(context, stream));
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < size; ++i) wrong += bytes[i] != value;
  free(bytes);
  return wrong == 0;
}

static void open_cuda(void) {
  const char *backend = getenv("GMM_BACKEND");
  if (backend == NULL || strcmp(backend, "cuda") != 0 || find_cuda()) return;
  printf("Bail out! the driver lacks an entry that the test needs\n");
  exit(99);
}

#endif
