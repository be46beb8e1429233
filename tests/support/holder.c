/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that holds memory, for tests that look at it: 64 MiB of gmm's on device 0, and of the driver's own
 * 32 MiB and 16 MiB in its pool.
 *
 * Usage: holder SNAPSHOT      It writes its snapshot there and a line. At each line of stdin it pauses or resumes all,
 * and does so again. It ends with stdin.
 */
#include <gmm/gmm.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda_functions.h"

#define MUST(call)                                                                     \
  do {                                                                                 \
    const gmm_result result_ = (call);                                                 \
    if (result_ < 0) {                                                                 \
      fprintf(stderr, "%s: %s\n", gmm_result_name(result_), gmm_last_error_message()); \
      return EXIT_FAILURE;                                                             \
    }                                                                                  \
  } while (0)

static int32_t write_to(void *user, const char *text, uint64_t size) { return fwrite(text, 1, size, user) != size; }

static int write_snapshot(gmm_context *context, const char *path) {
  gmm_snapshot *snapshot = NULL;
  FILE *file = fopen(path, "w");
  if (file == NULL) return EXIT_FAILURE;
  MUST(gmm_snapshot_create(context, NULL, &snapshot));
  MUST(gmm_snapshot_write(snapshot, write_to, file));
  MUST(gmm_snapshot_destroy(snapshot));
  return fclose(file);
}

int main(int argc, char **argv) {
  const gmm_context_desc desc = {.struct_size = sizeof desc, .backend = GMM_BACKEND_CUDA};
  const gmm_alloc_desc of = {.struct_size = sizeof of, .kind = GMM_KIND_VMM};
  gmm_context *context = NULL;
  void *block = NULL;
  struct cuda_driver driver;
  CUcontext primary = NULL;
  CUdeviceptr raw = 0;
  char line[16];
  if (argc != 2 || cuda_driver_open(&driver) != NULL) return EXIT_FAILURE;
  MUST(gmm_context_create(&desc, &context));
  MUST(gmm_alloc(context, UINT64_C(64) << 20, &of, &block));
  gmm_device_info second = {.struct_size = sizeof second};
  MUST(gmm_device_query(context, 1, &second)); /* starts the device */
  if (driver.cuDevicePrimaryCtxRetain(&primary, 0) != CUDA_SUCCESS || driver.cuCtxSetCurrent(primary) != CUDA_SUCCESS ||
      driver.cuMemAlloc_v2(&raw, (size_t)32 << 20) != CUDA_SUCCESS ||
      driver.cuMemAllocAsync(&raw, (size_t)16 << 20, NULL) != CUDA_SUCCESS)
    return EXIT_FAILURE;
  for (int paused = 0;; paused = !paused) {
    if (write_snapshot(context, argv[1]) != 0) return EXIT_FAILURE;
    printf("%s\n", paused ? "paused" : "active");
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL) break;
    MUST(paused ? gmm_resume(context, NULL, NULL) : gmm_pause(context, NULL, NULL));
  }
  MUST(gmm_free(context, block, GMM_STREAM_DEFAULT));
  MUST(gmm_context_release(context));
  return EXIT_SUCCESS;
}
