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
enum { NVML_ERROR_INSUFFICIENT_SIZE = 7 };

static struct {
  int (*init)(void);
  const char *(*error_string)(int result);
  int (*device_count)(unsigned int *count);
  int (*device)(unsigned int index, void **device);
  int (*name)(void *device, char *name, unsigned int length);
  int (*uuid)(void *device, char *uuid, unsigned int length);
  int (*memory)(void *device, nvml_memory *memory);
  int (*processes)(void *device, unsigned int *count, struct card_process *processes);
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

static int open_nvml(int is_needed) {
  void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL && !is_needed) return 0;
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

/* The processes of a device, which the caller frees. 0 after a message. */
static int list_processes(void *device, struct card *card) {
  unsigned int room = 64;
  for (;;) {
    card->count = room;
    card->processes = calloc(room, sizeof *card->processes);
    const int result =
        card->processes != NULL ? nvml.processes(device, &card->count, card->processes) : NVML_ERROR_INSUFFICIENT_SIZE;
    if (result == 0) return 1;
    free(card->processes);
    card->processes = NULL;
    if (result != NVML_ERROR_INSUFFICIENT_SIZE || room > 1u << 20)
      return nvml_failed("nvmlDeviceGetComputeRunningProcesses", result);
    room *= 2;
  }
}

static int look_at_card(unsigned int index, int (*fn)(void *user, const struct card *card), void *user) {
  struct card card = {.index = index};
  void *device = NULL;
  nvml_memory memory = {0, 0, 0};
  int result;
  if ((result = nvml.device(index, &device)) != 0) return nvml_failed("nvmlDeviceGetHandleByIndex", result);
  if ((result = nvml.name(device, card.name, sizeof card.name)) != 0) return nvml_failed("nvmlDeviceGetName", result);
  if ((result = nvml.uuid(device, card.uuid, sizeof card.uuid)) != 0) return nvml_failed("nvmlDeviceGetUUID", result);
  if ((result = nvml.memory(device, &memory)) != 0) return nvml_failed("nvmlDeviceGetMemoryInfo", result);
  if (!list_processes(device, &card)) return 0;
  card.total = memory.total;
  card.used = memory.used;
  const int good = fn(user, &card);
  free(card.processes);
  return good;
}

int each_card(int is_needed, int (*fn)(void *user, const struct card *card), void *user) {
  unsigned int count = 0;
  int good = open_nvml(is_needed), result;
  if (good && (result = nvml.device_count(&count)) != 0) good = nvml_failed("nvmlDeviceGetCount", result);
  for (unsigned int i = 0; good && i < count; ++i) good = look_at_card(i, fn, user);
  return good;
}

static double mib(uint64_t bytes) { return (double)bytes / 1048576; }

struct search {
  uint64_t process;
  int found;
};

static int print_of_card(void *user, const struct card *card) {
  struct search *search = user;
  const struct card_process *process = NULL;
  for (unsigned int i = 0; i < card->count; ++i)
    if (card->processes[i].pid == search->process) process = &card->processes[i];
  if (card->index == 0) printf("process %" PRIu64 "\n", search->process);
  printf("device %u: %s, %s\n  the device     %.1f MiB, %.1f MiB used by all processes\n", card->index, card->name,
         card->uuid, mib(card->total), mib(card->used));
  search->found |= process != NULL;
  if (process == NULL)
    printf("  the process    nothing\n");
  else if (process->used == UINT64_MAX)
    printf("  the process    is there; NVML does not tell its bytes here\n");
  else
    printf("  the process    %.1f MiB\n", mib(process->used));
  return 1;
}

int command_process(const struct options *options) {
  struct search search = {.process = options->process};
  int good = each_card(1, print_of_card, &search);
  if (good && !search.found)
    printf(
        "NVML knows no process of this number. It counts as the host does, not as a container; a process that the "
        "driver has\ncheckpointed, or without a context, has nothing on a device.\n");
  if (good && search.found)
    printf(
        "A snapshot that the process writes (gmm_snapshot_write(), in Python context.snapshot()) tells what of that "
        "gmm\n"
        "holds, and what is outside of gmm.\n");
  if (fflush(stdout) != 0) good = 0;
  return good ? EXIT_GOOD : EXIT_FAILED;
}
