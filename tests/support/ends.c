// SPDX-License-Identifier: Apache-2.0
#include "ends.h"

#include <dirent.h>
#include <dlfcn.h>

#include "fake_cuda/fake_cuda.h"
#include "gmm_test.h"

typedef struct holdings {
  uint64_t descriptors, threads, file_mappings, reserved_bytes;
  fake_cuda_live_t live;
} holdings;

static holdings at_start;
static bool begun, countable;

uint64_t each_descriptor(void (*fn)(const char *path, const char *target, void *user), void *user) {
  uint64_t count = 0;
  DIR *directory = opendir("/proc/self/fd");
  if (directory == NULL) return 0;
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    if (entry->d_name[0] == '.' || atoi(entry->d_name) == dirfd(directory)) continue;
    ++count;
    char path[320], target[256] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
    if (fn != NULL && readlink(path, target, sizeof target - 1) > 0) fn(path, target, user);
  }
  closedir(directory);
  return count;
}

static void print_descriptor(const char *path, const char *target, void *user) {
  (void)user;
  printf("# %s %s\n", path, target);
}

// Without those of the fake driver, which stay as a driver's do.
static uint64_t threads_now(void) {
  uint64_t count = 0;
  DIR *directory = opendir("/proc/self/task");
  if (directory == NULL) return 0;
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    if (entry->d_name[0] == '.') continue;
    char path[300], name[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
    FILE *file = fopen(path, "r");
    if (file == NULL) continue;  // it has ended
    const bool read = fgets(name, sizeof name, file) != NULL;
    fclose(file);
    if (read && strcmp(name, "fake driver\n") != 0) ++count;
  }
  closedir(directory);
  return count;
}

static holdings held(void) {
  holdings now;
  memset(&now, 0, sizeof now);
  now.descriptors = each_descriptor(NULL, NULL);
  now.threads = threads_now();
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[1024];
  unsigned long long reached = 0;
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
    unsigned long long begin = 0, end = 0;
    char access[8] = "";
    if (sscanf(line, "%llx-%llx %7s", &begin, &end, access) != 3) continue;
    // A mapping that joins its neighbour while the file is read stands there twice.
    if (begin < reached) begin = reached;
    if (end <= begin) continue;
    reached = end;
    if (strstr(line, "memfd:gmm") != NULL) ++now.file_mappings;
#ifndef __SANITIZE_THREAD__  // its shadow grows
    // Smaller ones are the C library's: its arenas, and the guards of stacks.
    if (strncmp(access, "---", 3) == 0 && end - begin >= 256 * MIB && strstr(line, ".so") == NULL)
      now.reserved_bytes += end - begin;
#endif
  }
  if (maps != NULL) fclose(maps);
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void (*live)(fake_cuda_live_t *) = NULL;
  if (library != NULL) {
    *(void **)&live = dlsym(library, "fake_cuda_live");
    if (live != NULL) live(&now.live);
    dlclose(library);
  }
  return now;
}

bool on_hip(void) {
  const char *backend = getenv("GMM_BACKEND");
  return backend != NULL && strcmp(backend, "hip") == 0;
}

bool on_host_or_fake_driver(void) {
  const char *backend = getenv("GMM_BACKEND");
  if (backend != NULL && strcmp(backend, "host") == 0) return true;
  if (!on_hip() && (backend == NULL || strcmp(backend, "cuda") != 0)) return false;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == NULL) return false;
  const bool fake = dlsym(library, "fake_cuda_live") != NULL;
  dlclose(library);
  return fake;
}

// A real driver makes a device's context for its first user and ends it with the last one, which takes longer than most
// cases. So the process is a user itself.
static void use_devices(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);  // stays open
  int (*count_devices)(int *) = NULL, (*retain)(void **, int) = NULL;
  if (library == NULL) return;
  *(void **)&count_devices = dlsym(library, "cuDeviceGetCount");
  *(void **)&retain = dlsym(library, "cuDevicePrimaryCtxRetain");
  int devices = 0;
  void *used = NULL;
  if (count_devices == NULL || retain == NULL || count_devices(&devices) != 0) return;
  while (devices > 0 && retain(&used, devices - 1) == 0) --devices;
}

void ends_begin(void) {
  if (begun) return;
  begun = true;
  // The first context brings things that stay for the process and are no loss.
  gmm_context *first = NULL;
  if (gmm_context_create(NULL, &first) != GMM_OK) return;
  // libunwind opens a pipe for the process.
  const gmm_trace_desc stacks = {.struct_size = sizeof stacks, .stack_bytes = 1};
  void *block = NULL;
  if (gmm_trace_begin(first, "/dev/null", &stacks) == GMM_OK && gmm_alloc(first, 1, NULL, &block) == GMM_OK)
    gmm_free(first, block, GMM_STREAM_DEFAULT);
  gmm_trace_end(first);
  if (gmm_context_release(first) != GMM_OK) return;
  countable = on_host_or_fake_driver();
  if (countable)
    at_start = held();
  else
    use_devices();
}

// A thread that is ending is there for a moment more.
static bool same_threads(void) { return threads_now() <= at_start.threads; }

static void nothing_is_held_at_the_end(void) {
  if (!countable) SKIP("a real driver keeps memory of its own");
  SOON(same_threads());
  const holdings now = held();
#define SAME(what)                                                                                \
  CHECK_MESSAGE(now.what <= at_start.what, #what ": %llu before the first case, %llu at the end", \
                (unsigned long long)at_start.what, (unsigned long long)now.what)
  SAME(descriptors);
  if (now.descriptors > at_start.descriptors) each_descriptor(print_descriptor, NULL);
  SAME(file_mappings);
  SAME(reserved_bytes);
  SAME(live.allocations);
  SAME(live.reservations);
  SAME(live.handles);
  SAME(live.mappings);
  SAME(live.registrations);
  SAME(live.imports);
  if (!on_hip()) {  // there a context ends with those that the driver did not destroy
    SAME(live.streams);
    SAME(live.events);
  }
  SAME(live.graphs);
  SAME(live.user_objects);
  SAME(live.context_references);
  SAME(live.device_bytes);
  SAME(live.host_bytes);
  SAME(live.managed_bytes);
#undef SAME
}

int finish_clean(void) {
  if (begun) RUN(nothing_is_held_at_the_end);
  return check_finish();
}
