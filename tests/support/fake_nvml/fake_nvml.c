/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libnvidia-ml.so.1 for tests: it tells of the real processes that use the fake driver, by the ledger that
 * FAKE_CUDA_LEDGER names. See README.md of ../fake_cuda.
 *
 * FAKE_NVML_BLIND=1      the bytes of a process are not shown, as in some containers
 * FAKE_NVML_FAIL=NAME:N  the function with this name, without "nvml", fails with N
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../fake_cuda/ledger.h"

#define EXPORT __attribute__((visibility("default")))

enum {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_DRIVER_NOT_LOADED = 9
};

typedef struct nvml_memory {
  unsigned long long total, free, used;
} nvml_memory;
typedef struct nvml_process {
  unsigned int pid;
  unsigned long long used;
  unsigned int gpu_instance, compute_instance;
} nvml_process;

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT const char *nvmlErrorString(int result);
EXPORT int nvmlDeviceGetCount_v2(unsigned int *count);
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device);
EXPORT int nvmlDeviceGetName(void *device, char *name, unsigned int length);
EXPORT int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int length);
EXPORT int nvmlDeviceGetMemoryInfo(void *device, nvml_memory *memory);
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, nvml_process *processes);

static int initialized;

static int enter(const char *name) {
  const char *fails = getenv("FAKE_NVML_FAIL");
  const size_t length = strlen(name);
  if (fails != NULL && strncmp(fails, name, length) == 0 && fails[length] == ':') return atoi(fails + length + 1);
  return initialized || strcmp(name, "Init_v2") == 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

static unsigned int device_count(void) {
  const char *text = getenv("FAKE_CUDA_DEVICES");
  const long count = text != NULL && *text != 0 ? strtol(text, NULL, 0) : 1;
  return count > FAKE_LEDGER_DEVICES ? FAKE_LEDGER_DEVICES : (unsigned int)count;
}
static unsigned int index_of(void *device) { return (unsigned int)(uintptr_t)device - 1; }

/* Calls `look` for each live process of the ledger that has something on the device. Returns their bytes. */
static uint64_t for_each_process(unsigned int device, void (*look)(void *user, int pid, uint64_t bytes), void *user) {
  const char *path = getenv("FAKE_CUDA_LEDGER");
  const int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  const fake_ledger *ledger = fd >= 0 ? mmap(NULL, sizeof *ledger, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (fd >= 0) close(fd);
  uint64_t sum = 0;
  for (int i = 0; ledger != MAP_FAILED && i < FAKE_LEDGER_PROCESSES; ++i) {
    const fake_ledger_process *process = &ledger->processes[i];
    if (process->pid <= 0 || process->state >= CU_PROCESS_STATE_CHECKPOINTED) continue;
    if (kill(process->pid, 0) != 0 && errno == ESRCH) continue;
    const uint64_t bytes = process->used[device] + (process->contexts[device] != 0 ? FAKE_LEDGER_CONTEXT_BYTES : 0);
    if (bytes != 0 && look != NULL) look(user, process->pid, bytes);
    sum += bytes;
  }
  if (ledger != MAP_FAILED) munmap((void *)ledger, sizeof *ledger);
  return sum;
}

#define ENTER(name)              \
  const int early = enter(name); \
  if (early != NVML_SUCCESS) return early

int nvmlInit_v2(void) {
  ENTER("Init_v2");
  ++initialized;
  return NVML_SUCCESS;
}
int nvmlShutdown(void) {
  ENTER("Shutdown");
  --initialized;
  return NVML_SUCCESS;
}
const char *nvmlErrorString(int result) {
  return result == NVML_ERROR_DRIVER_NOT_LOADED ? "Driver Not Loaded"
         : result == NVML_ERROR_NOT_SUPPORTED   ? "Not Supported"
                                                : "Unknown Error";
}
int nvmlDeviceGetCount_v2(unsigned int *count) {
  ENTER("DeviceGetCount_v2");
  *count = device_count();
  return NVML_SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) {
  ENTER("DeviceGetHandleByIndex_v2");
  if (index >= device_count()) return NVML_ERROR_INVALID_ARGUMENT;
  *device = (void *)(uintptr_t)(index + 1);
  return NVML_SUCCESS;
}
int nvmlDeviceGetName(void *device, char *name, unsigned int length) {
  ENTER("DeviceGetName");
  snprintf(name, length, "Fake CUDA device %u", index_of(device));
  return NVML_SUCCESS;
}
/* As cuDeviceGetUuid() of the fake driver. */
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int length) {
  ENTER("DeviceGetUUID");
  const char *bytes = "fake CUDA devic";
  snprintf(uuid, length, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", bytes[0], bytes[1],
           bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7], bytes[8], bytes[9], bytes[10], bytes[11],
           bytes[12], bytes[13], bytes[14], index_of(device));
  return NVML_SUCCESS;
}
int nvmlDeviceGetMemoryInfo(void *device, nvml_memory *memory) {
  ENTER("DeviceGetMemoryInfo");
  const char *text = getenv("FAKE_CUDA_MEMORY");
  memory->total = text != NULL && *text != 0 ? strtoull(text, NULL, 0) : 8ull << 30;
  memory->used = for_each_process(index_of(device), NULL, NULL);
  memory->free = memory->total > memory->used ? memory->total - memory->used : 0;
  return NVML_SUCCESS;
}

struct listing {
  nvml_process *processes;
  unsigned int room, count;
};
static void add(void *user, int pid, uint64_t bytes) {
  struct listing *list = user;
  const char *blind = getenv("FAKE_NVML_BLIND");
  if (list->count < list->room)
    list->processes[list->count] =
        (nvml_process){(unsigned int)pid, blind != NULL && *blind == '1' ? ~0ull : bytes, ~0u, ~0u};
  ++list->count;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, nvml_process *processes) {
  ENTER("DeviceGetComputeRunningProcesses_v3");
  struct listing list = {processes, *count, 0};
  (void)for_each_process(index_of(device), add, &list);
  *count = list.count;
  return list.count > list.room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
