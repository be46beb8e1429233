/* SPDX-License-Identifier: Apache-2.0 */
/* gmm info --process: the memory of each device that a process uses, by NVML. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

/* NVML as its manual has it. The library is opened when it is needed, so the command starts without a driver. */
typedef struct nvml_memory {
  unsigned long long total, free, used;
} nvml_memory;
typedef struct nvml_process {
  unsigned int pid;
  unsigned long long used;
  unsigned int gpu_instance, compute_instance;
} nvml_process;
enum { NVML_ERROR_INSUFFICIENT_SIZE = 7 };
#define NVML_NOT_AVAILABLE (~0ull)

static struct {
  int (*init)(void);
  const char *(*error_string)(int result);
  int (*device_count)(unsigned int *count);
  int (*device)(unsigned int index, void **device);
  int (*name)(void *device, char *name, unsigned int length);
  int (*uuid)(void *device, char *uuid, unsigned int length);
  int (*memory)(void *device, nvml_memory *memory);
  int (*processes)(void *device, unsigned int *count, nvml_process *processes);
} nvml;

static int nvml_failed(const char *function, int result) {
  fprintf(stderr, "gmm: process: %s: NVML answered %d: %s\n", function, result,
          nvml.error_string != NULL ? nvml.error_string(result) : "no text");
  return 0;
}

/* dlsym() gives an object pointer, which C does not turn into one to a function. */
static int find(void *library, const char *name, void *function) {
  void *const found = dlsym(library, name);
  memcpy(function, &found, sizeof found);
  if (found == NULL) fprintf(stderr, "gmm: process: this NVML has no %s(); it needs a newer driver\n", name);
  return found != NULL;
}

static int open_nvml(void) {
  void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "gmm: process: NVML cannot be opened: %s; it comes with NVIDIA's driver\n", dlerror());
    return 0;
  }
  if (!find(library, "nvmlInit_v2", &nvml.init) || !find(library, "nvmlErrorString", &nvml.error_string) ||
      !find(library, "nvmlDeviceGetCount_v2", &nvml.device_count) ||
      !find(library, "nvmlDeviceGetHandleByIndex_v2", &nvml.device) ||
      !find(library, "nvmlDeviceGetName", &nvml.name) || !find(library, "nvmlDeviceGetUUID", &nvml.uuid) ||
      !find(library, "nvmlDeviceGetMemoryInfo", &nvml.memory) ||
      !find(library, "nvmlDeviceGetComputeRunningProcesses_v3", &nvml.processes))
    return 0;
  const int result = nvml.init();
  return result == 0 || nvml_failed("nvmlInit_v2", result);
}

static double mib(uint64_t bytes) { return (double)bytes / 1048576; }

/* The bytes of a process on a device. *found: it is there. 0 after a message. */
static int process_bytes(void *device, unsigned int pid, int *found, uint64_t *bytes) {
  unsigned int room = 64;
  for (;;) {
    nvml_process *list = calloc(room, sizeof *list);
    unsigned int count = room;
    const int result = list != NULL ? nvml.processes(device, &count, list) : NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; result == 0 && i < count; ++i) {
      if (list[i].pid != pid) continue;
      *found = 1;
      *bytes = list[i].used;
    }
    free(list);
    if (result == 0) return 1;
    if (result != NVML_ERROR_INSUFFICIENT_SIZE || room > 1u << 20)
      return nvml_failed("nvmlDeviceGetComputeRunningProcesses", result);
    room *= 2;
  }
}

static int print_of_device(unsigned int index, const struct options *options, int *found_any) {
  void *device = NULL;
  char name[128] = "", uuid[96] = "";
  nvml_memory memory = {0, 0, 0};
  int result, found = 0;
  uint64_t used = 0;
  if ((result = nvml.device(index, &device)) != 0) return nvml_failed("nvmlDeviceGetHandleByIndex", result);
  if ((result = nvml.name(device, name, sizeof name)) != 0) return nvml_failed("nvmlDeviceGetName", result);
  if ((result = nvml.uuid(device, uuid, sizeof uuid)) != 0) return nvml_failed("nvmlDeviceGetUUID", result);
  if ((result = nvml.memory(device, &memory)) != 0) return nvml_failed("nvmlDeviceGetMemoryInfo", result);
  if (!process_bytes(device, (unsigned int)options->process, &found, &used)) return 0;
  printf("device %u: %s, %s\n  the device     %.1f MiB, %.1f MiB used by all processes\n", index, name, uuid,
         mib(memory.total), mib(memory.used));
  *found_any |= found;
  if (!found) {
    printf("  the process    nothing\n");
    return 1;
  }
  if (used == NVML_NOT_AVAILABLE)
    printf("  the process    is there; NVML does not tell its bytes here\n");
  else
    printf("  the process    %.1f MiB\n", mib(used));
  return 1;
}

int command_process(const struct options *options) {
  unsigned int count = 0;
  int found = 0, good = open_nvml(), result;
  if (good && (result = nvml.device_count(&count)) != 0) good = nvml_failed("nvmlDeviceGetCount", result);
  if (good) printf("process %" PRIu64 "\n", options->process);
  for (unsigned int i = 0; good && i < count; ++i) good = print_of_device(i, options, &found);
  if (good && !found)
    printf(
        "NVML knows no process of this number. It counts as the host does, not as a container; a process that the "
        "driver has\ncheckpointed, or without a context, has nothing on a device.\n");
  if (good && found)
    printf(
        "A snapshot that the process writes (gmm_snapshot_write(), in Python context.snapshot()) tells what of that "
        "gmm\n"
        "holds, and what is outside of gmm.\n");
  if (fflush(stdout) != 0) good = 0;
  return good ? EXIT_GOOD : EXIT_FAILED;
}
