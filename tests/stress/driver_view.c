// SPDX-License-Identifier: Apache-2.0
#include "driver_view.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sys/stat.h>

struct fake_driver fake;

bool find_fake_driver(void) {
  const char *name = getenv("GMM_BACKEND");
  void *library = name != NULL && strcmp(name, "cuda") == 0 ? dlopen("libcuda.so.1", RTLD_NOW) : NULL;
  if (library == NULL) return false;
  *(void **)&fake.live = dlsym(library, "fake_cuda_live");
  *(void **)&fake.fail = dlsym(library, "fake_cuda_fail");
  *(void **)&fake.failures = dlsym(library, "fake_cuda_failures");
  return fake.live != NULL && fake.fail != NULL && fake.failures != NULL;
}

static unsigned entries_of(const char *folder) {
  unsigned count = 0;
  DIR *open = opendir(folder);
  for (struct dirent *entry; open != NULL && (entry = readdir(open)) != NULL;) count += entry->d_name[0] != '.';
  if (open != NULL) closedir(open);
  return count;
}

// The system may show a thread for a moment that has been joined: it carries the flag of one that is on its way out
// (PF_EXITING).
static unsigned running_threads(void) {
  unsigned count = 0;
  DIR *open = opendir("/proc/self/task");
  for (struct dirent *entry; open != NULL && (entry = readdir(open)) != NULL;) {
    char path[300], line[512];
    snprintf(path, sizeof path, "/proc/self/task/%s/stat", entry->d_name);
    FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
    if (file == NULL) continue;
    const char *name_end = fgets(line, sizeof line, file) != NULL ? strrchr(line, ')') : NULL;
    unsigned flags = 0;
    if (name_end != NULL && sscanf(name_end + 1, " %*c %*d %*d %*d %*d %*d %u", &flags) == 1) count += (flags & 4) == 0;
    fclose(file);
  }
  if (open != NULL) closedir(open);
  return count;
}

static void count_memory_files(driver_view *view) {
  DIR *open = opendir("/proc/self/fd");
  for (struct dirent *entry; open != NULL && (entry = readdir(open)) != NULL;) {
    char path[300], target[64];
    snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
    ssize_t length = readlink(path, target, sizeof target - 1);
    struct stat state;
    if (length <= 0 || strncmp(target, "/memfd:gmm-", 11) != 0 || fstat(atoi(entry->d_name), &state) != 0) continue;
    target[length] = 0;
    uint64_t size = (uint64_t)state.st_size;
    if (strncmp(target + 11, "device", 6) == 0) view->device += size;
    if (strncmp(target + 11, "vmm", 3) == 0) view->vmm += size;
    if (strncmp(target + 11, "host", 4) == 0) view->host += size;
  }
  if (open != NULL) closedir(open);
  view->of_device = view->device + view->vmm;
}

driver_view look_at_driver(void) {
  driver_view view;
  memset(&view, 0, sizeof view);
  count_memory_files(&view);
  view.tells_kinds = true;
  view.tells_host = true;
  if (fake.live != NULL) {
    fake_cuda_live_t live;
    fake.live(&live);
    view.tells_kinds = false;
    view.tells_managed = true;
    view.of_device = live.device_bytes;
    view.managed = live.managed_bytes;
  }
  view.descriptors = entries_of("/proc/self/fd");
  view.threads = running_threads();
  unsigned long long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file == NULL || fscanf(file, "%llu", &pages) != 1) pages = 0;
  if (file != NULL) fclose(file);
  view.virtual_bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
  return view;
}
