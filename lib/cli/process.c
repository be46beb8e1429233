/* SPDX-License-Identifier: Apache-2.0 */
/* gmm info --process: what a process uses of each device, as NVML tells, beside what its snapshot says gmm holds. */
#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
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

/* --- The snapshot ------------------------------------------------------------------------------------------------ */

/* The text before the heaps, or NULL after a message. It is lib/engine/trace/FORMAT.md's, also with blanks in it. */
static char *read_head(const char *path) {
  enum { MOST = 1 << 20 };
  FILE *file = fopen(path, "re");
  if (file == NULL) {
    fprintf(stderr, "gmm: snapshot: %s cannot be opened: %s\n", path, strerror(errno));
    return NULL;
  }
  char *text = calloc(MOST + 1, 1);
  const size_t size = text != NULL ? fread(text, 1, MOST, file) : 0;
  fclose(file);
  char *heaps = text != NULL && size != 0 ? strstr(text, "\"heaps\"") : NULL;
  if (heaps == NULL || strstr(text, "\"gmm-snapshot\"") == NULL || strstr(text, "\"devices\"") == NULL) {
    fprintf(stderr, "gmm: snapshot: %s is no snapshot of gmm_snapshot_write() of this release\n", path);
    free(text);
    return NULL;
  }
  *heaps = '\0';
  return text;
}

/* The value behind a key from `at` on, or NULL. */
static const char *value_of(const char *at, const char *key) {
  char quoted[32];
  snprintf(quoted, sizeof quoted, "\"%s\"", key);
  const char *found = strstr(at, quoted);
  if (found == NULL) return NULL;
  found += strlen(quoted);
  found += strspn(found, " \t\r\n");
  if (*found != ':') return NULL;
  return found + 1 + strspn(found + 1, " \t\r\n");
}
static int number_of(const char *at, const char *key, uint64_t *out) {
  const char *value = value_of(at, key);
  return value != NULL && sscanf(value, "%" SCNu64, out) == 1;
}

struct held {
  uint64_t own, foreign, pool, graphs; /* bytes */
};

/* What the snapshot says of the device with this UUID. 0: nothing. */
static int held_of(const char *head, const char *uuid, struct held *held) {
  const char *devices = value_of(head, "devices");
  const char *at = devices != NULL ? strstr(devices, uuid) : NULL;
  return at != NULL && number_of(at, "held_bytes", &held->own) && number_of(at, "foreign_bytes", &held->foreign) &&
         number_of(at, "pool_bytes", &held->pool) && number_of(at, "graph_bytes", &held->graphs);
}

/* --- The devices ------------------------------------------------------------------------------------------------- */

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

static int print_of_device(unsigned int index, const struct options *options, const char *head, int *found_any) {
  void *device = NULL;
  char name[128] = "", uuid[96] = "";
  nvml_memory memory = {0, 0, 0};
  int result, found = 0;
  uint64_t used = 0;
  struct held held = {0, 0, 0, 0};
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
  if (head == NULL) return 1;
  const char *plain = strncmp(uuid, "GPU-", 4) == 0 ? uuid + 4 : uuid;
  if (!held_of(head, plain, &held)) {
    printf("  gmm            has no heap there\n");
  } else {
    printf("  gmm            %.1f MiB", mib(held.own));
    if (held.foreign != 0) printf("; %.1f MiB that a pause gave up are held by others", mib(held.foreign));
    printf("\n");
  }
  if (used != NVML_NOT_AVAILABLE)
    printf("  outside gmm    %.1f MiB: the context, communicators, graphs, workspaces\n",
           mib(used > held.own ? used - held.own : 0));
  if (held.pool != 0) printf("    the pool     %.1f MiB of cudaMallocAsync()\n", mib(held.pool));
  if (held.graphs != 0) printf("    graphs       %.1f MiB for their allocations\n", mib(held.graphs));
  return 1;
}

int command_process(const struct options *options) {
  char *head = NULL;
  if (options->snapshot != NULL) {
    uint64_t of = 0;
    head = read_head(options->snapshot);
    if (head == NULL) return EXIT_FAILED;
    if (!number_of(head, "process", &of) || of != options->process) {
      fprintf(stderr, "gmm: snapshot: %s is of process %" PRIu64 ", not of %" PRIu64 "\n", options->snapshot, of,
              options->process);
      free(head);
      return EXIT_FAILED;
    }
  }
  unsigned int count = 0;
  int found = 0, good = open_nvml(), result;
  if (good && (result = nvml.device_count(&count)) != 0) good = nvml_failed("nvmlDeviceGetCount", result);
  if (good) printf("process %" PRIu64 "\n", options->process);
  for (unsigned int i = 0; good && i < count; ++i) good = print_of_device(i, options, head, &found);
  if (good && !found)
    printf(
        "NVML knows no process of this number. It counts as the host does, not as a container; a process that the "
        "driver has\ncheckpointed, or without a context, has nothing on a device.\n");
  if (good && found && head == NULL)
    printf(
        "What gmm holds of it is in a snapshot: write one in the process (gmm_snapshot_write(), in Python\n"
        "context.snapshot()), and name its file by --snapshot.\n");
  free(head);
  if (fflush(stdout) != 0) good = 0;
  return good ? EXIT_GOOD : EXIT_FAILED;
}
