// SPDX-License-Identifier: Apache-2.0
// Regions as torch_memory_saver has them: only memory that is allocated in one is gmm's, and is paused by its tag.
//
// Usage: gmm run --regions -- regions_user, or with LD_PRELOAD alone
#include "user.h"

// The calls of torch_memory_saver's Python side at the entry and at the end of a region.
typedef struct region {
  char tag[64];
  bool interesting, backup;
} region;

static region enter(const char *tag, bool backup) {
  region before = {.interesting = library.get_interesting_region(), .backup = library.get_enable_cpu_backup()};
  snprintf(before.tag, sizeof before.tag, "%s", library.get_current_tag());
  library.set_current_tag(tag);
  library.set_interesting_region(true);
  library.set_enable_cpu_backup(backup);
  return before;
}

static void leave(const region *before) {
  library.set_current_tag(before->tag);
  library.set_interesting_region(before->interesting);
  library.set_enable_cpu_backup(before->backup);
}

static void *allocate(size_t size, int seed) {
  void *memory = NULL;
  IS(cudaMalloc(&memory, size), 0);
  write_to(memory, size, seed);
  return memory;
}

// Since `before` the driver has so much more to give.
#define GONE(before, size)                                                                                         \
  do {                                                                                                             \
    const size_t check_used = used();                                                                              \
    CHECK_MESSAGE(check_used + (size) <= (before), "%zu bytes were used, now %zu: not %zu less", (size_t)(before), \
                  check_used, (size_t)(size));                                                                     \
  } while (0)

static void outside_of_regions(void) {
  void *memory = allocate(MIB, 1);
  IS(cudaFree(memory), 0);
  CHECK(!library.active());
  IS(library.pause(NULL), 0);
  IS(library.resume("weights"), 0);
  CHECK(!library.active());
  CHECK(strcmp(library.get_current_tag(), "default") == 0);
  CHECK(!library.get_interesting_region() && !library.get_enable_cpu_backup());
}

static void tags(void) {
  void *plain = allocate(8 * MIB, 1);
  region outer = enter("weights", true);
  void *weights = allocate(8 * MIB, 2), *odd = allocate(6912, 3);
  region inner = enter("kv_cache", false);
  CHECK(strcmp(library.get_current_tag(), "kv_cache") == 0);
  void *cache = allocate(8 * MIB, 4);
  leave(&inner);
  CHECK(strcmp(library.get_current_tag(), "weights") == 0 && library.get_enable_cpu_backup());
  void *more = allocate(8 * MIB, 5);
  leave(&outer);
  void *after = allocate(MIB, 6);
  CHECK(library.active());

  const size_t all = used();
  IS(library.pause("kv_cache"), 0);
  GONE(all, 8 * MIB);
  CHECK(holds(weights, 8 * MIB, 2) && holds(more, 8 * MIB, 5));
  IS(library.pause("weights"), 0);
  GONE(all, 24 * MIB);
  CHECK(holds(plain, 8 * MIB, 1) && holds(after, MIB, 6));  // of no region: never paused
  IS(library.pause(NULL), 0);
  IS(library.resume("kv_cache"), 0);
  write_to(cache, 8 * MIB, 7);
  IS(library.resume(NULL), 0);
  CHECK(holds(weights, 8 * MIB, 2) && holds(odd, 6912, 3) && holds(more, 8 * MIB, 5) && holds(cache, 8 * MIB, 7));

  // Free while paused, of memory and its neighbour.
  IS(library.pause("weights"), 0);
  IS(cudaFree(odd), 0);
  IS(cudaFree(weights), 0);
  IS(library.resume("weights"), 0);
  CHECK(holds(more, 8 * MIB, 5));
  IS(cudaFree(more), 0);
  IS(cudaFree(cache), 0);
  IS(cudaFree(after), 0);
  IS(cudaFree(plain), 0);
}

// The same name with and without backup: both pause by the name, and each comes back as its region said.
static void one_name_two_contents(void) {
  region outer = enter("model", true);
  void *kept = allocate(8 * MIB, 1);
  leave(&outer);
  outer = enter("model", false);
  void *dropped = allocate(8 * MIB, 2);
  leave(&outer);
  const size_t before = used();
  IS(library.pause("model"), 0);
  GONE(before, 16 * MIB);
  IS(library.resume("model"), 0);
  CHECK(holds(kept, 8 * MIB, 1));
  write_to(dropped, 8 * MIB, 3);
  IS(cudaFree(kept), 0);
  IS(cudaFree(dropped), 0);
}

static void long_and_empty_names(void) {
  char name[300];
  memset(name, 'n', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  region outer = enter(name, true);
  CHECK(strcmp(library.get_current_tag(), name) == 0);
  void *memory = allocate(8 * MIB, 1);
  library.set_current_tag("");
  CHECK(strstr(library.last_error(), "is empty") != NULL);
  leave(&outer);
  const size_t before = used();
  IS(library.pause(name), 0);
  GONE(before, 8 * MIB);
  name[100] = 'm';  // another one
  IS(library.resume(name), 0);
  GONE(before, 8 * MIB);
  name[100] = 'n';
  IS(library.resume(name), 0);
  CHECK(holds(memory, 8 * MIB, 1));
  IS(cudaFree(memory), 0);
}

static void *helper(void *user) {
  void **out = user;
  CHECK(!library.get_interesting_region());
  *out = allocate(8 * MIB, 8);
  return NULL;
}

static void *with_own_region(void *user) {
  void **out = user;
  region before = enter("other", true);
  *out = allocate(8 * MIB, 9);
  leave(&before);
  return NULL;
}

// A thread that is started inside of a region is in none, until it enters one of its own.
static void threads(void) {
  void *helpers = NULL, *own = NULL, *late = NULL;
  pthread_t thread;
  region outer = enter("train", true);
  pthread_create(&thread, NULL, helper, &helpers);
  pthread_join(thread, NULL);
  pthread_create(&thread, NULL, with_own_region, &own);
  pthread_join(thread, NULL);
  leave(&outer);
  pthread_create(&thread, NULL, helper, &late);
  pthread_join(thread, NULL);
  const size_t before = used();
  IS(library.pause("train"), 0);
  const size_t paused = used();
  CHECK(paused + 8 * MIB > before);  // the helper is in no region
  CHECK(holds(own, 8 * MIB, 9) && holds(late, 8 * MIB, 8));
  IS(library.pause("other"), 0);
  GONE(paused, 8 * MIB);
  IS(library.resume(NULL), 0);
  CHECK(holds(helpers, 8 * MIB, 8) && holds(own, 8 * MIB, 9));
  IS(cudaFree(helpers), 0);
  IS(cudaFree(own), 0);
  IS(cudaFree(late), 0);
}

// disable() of torch_memory_saver.
static void leave_for_a_while(void) {
  region outer = enter("weights", false);
  library.set_interesting_region(false);
  void *plain = allocate(8 * MIB, 1);
  library.set_interesting_region(true);
  void *inside = allocate(8 * MIB, 2);
  leave(&outer);
  const size_t before = used();
  IS(library.pause(NULL), 0);
  GONE(before, 8 * MIB);
  CHECK(holds(plain, 8 * MIB, 1));
  IS(library.resume(NULL), 0);
  IS(cudaFree(plain), 0);
  IS(cudaFree(inside), 0);
}

// The kept contents of paused memory can be read.
static void kept_contents(void) {
  uint8_t *(*kept)(const uint8_t *, uint64_t) = NULL;
  *(void **)&kept = dlsym(RTLD_DEFAULT, "tms_get_cpu_backup_pointer");
  region outer = enter("weights", true);
  uint8_t *memory = allocate(30 * MIB, 4), *small = allocate(6912, 5);
  leave(&outer);
  outer = enter("weights", false);
  uint8_t *dropped = allocate(3 * MIB, 6);
  leave(&outer);
  CHECK(kept(memory, 30 * MIB) == NULL);  // active
  IS(library.pause("weights"), 0);
  const uint8_t *bytes = kept(memory, 30 * MIB);
  CHECK(bytes != NULL && holds(bytes, 30 * MIB, 4));
  bytes = kept(memory + 4096 * 256, 4096);
  CHECK(bytes != NULL && bytes[5] == (uint8_t)(5 * 31 + 256 + 28));
  bytes = kept(small, 6912);
  CHECK(bytes != NULL && holds(bytes, 6912, 5));
  CHECK(kept(dropped, 3 * MIB) == NULL && strlen(library.last_error()) > 20);
  CHECK(kept((const uint8_t *)&bytes, 8) == NULL && kept(memory, (uint64_t)1 << 50) == NULL);
  IS(library.resume("weights"), 0);
  CHECK(kept(memory, 30 * MIB) == NULL);
  CHECK(holds(memory, 30 * MIB, 4) && holds(small, 6912, 5));
  IS(cudaFree(memory), 0);
  IS(cudaFree(small), 0);
  IS(cudaFree(dropped), 0);
}

static void contents_in_files(void) {
  void (*set_disk)(bool) = NULL, (*set_directory)(const char *) = NULL;
  *(void **)&set_disk = dlsym(RTLD_DEFAULT, "tms_set_enable_disk_backup");
  *(void **)&set_directory = dlsym(RTLD_DEFAULT, "tms_set_disk_backup_dir");
  char folder[] = "/tmp/gmm-preload-XXXXXX";
  REQUIRE(mkdtemp(folder) != NULL);
  set_directory("");
  CHECK(strstr(library.last_error(), "is empty") != NULL);
  set_directory("/no/such/folder");
  CHECK(strstr(library.last_error(), "/no/such/folder") != NULL);
  set_directory(folder);
  region outer = enter("disk", false);
  set_disk(true);
  void *memory = allocate(30 * MIB, 4);
  set_disk(false);
  leave(&outer);
  const size_t before = used();
  IS(library.pause("disk"), 0);
  GONE(before, 30 * MIB);
  IS(library.resume("disk"), 0);
  CHECK(holds(memory, 30 * MIB, 4));
  CHECK(rmdir(folder) != 0);  // a file in a directory that was asked for has a name, and waits for the next pause
  IS(cudaFree(memory), 0);
  void *(*context)(void) = NULL;
  int (*trim)(void *, const void *, uint64_t *) = NULL;
  *(void **)&context = dlsym(RTLD_DEFAULT, "gmm_preload_context");
  *(void **)&trim = dlsym(RTLD_DEFAULT, "gmm_trim");
  REQUIRE(context != NULL && trim != NULL);
  CHECK(trim(context(), NULL, NULL) >= 0);
  CHECK(rmdir(folder) == 0);
  set_directory("/tmp");
}

static void no_space_at_resume(void) {
  region outer = enter("weights", true);
  void *memory = allocate(128 * MIB, 3);
  leave(&outer);
  size_t left = 0, total = 0;
  IS(library.pause("weights"), 0);
  IS(cudaMemGetInfo(&left, &total), 0);
  void *others[1024];
  size_t count = 0;
  // Other memory takes the space.
  while (count < 1024 && left > 100 * MIB) {
    if (cudaMalloc(&others[count], left > 256 * MIB ? left - 175 * MIB : 64 * MIB) != 0) break;
    ++count;
    IS(cudaMemGetInfo(&left, &total), 0);
  }
  CHECK(library.resume("weights") < 0);
  CHECK(strlen(library.last_error()) > 20);
  CHECK(library.resume(NULL) < 0);
  while (count > 0) IS(cudaFree(others[--count]), 0);
  IS(library.resume("weights"), 0);
  CHECK(holds(memory, 128 * MIB, 3));
  IS(cudaFree(memory), 0);
}

static void torch_allocator(void) {
  void *(*torch_malloc)(ssize_t, int, void *) = NULL, *(*own_malloc)(ssize_t, int, void *) = NULL;
  void (*torch_free)(void *, ssize_t, int, void *) = NULL, (*own_free)(void *, ssize_t, int, void *) = NULL;
  *(void **)&torch_malloc = dlsym(RTLD_DEFAULT, "tms_torch_malloc");
  *(void **)&torch_free = dlsym(RTLD_DEFAULT, "tms_torch_free");
  *(void **)&own_malloc = dlsym(RTLD_DEFAULT, "gmm_torch_malloc");
  *(void **)&own_free = dlsym(RTLD_DEFAULT, "gmm_torch_free");
  cudaStream_t stream = NULL;
  IS(cudaStreamCreate(&stream), 0);
  region outer = enter("torch", true);
  void *first = torch_malloc(30 * MIB, 0, stream), *second = own_malloc(30 * MIB, 0, stream);
  CHECK(torch_malloc((ssize_t)1 << 50, 0, stream) == NULL && strlen(library.last_error()) > 20);
  CHECK(torch_malloc(-1, 0, stream) == NULL && torch_malloc(4096, 99, stream) == NULL);
  leave(&outer);
  REQUIRE(first != NULL && second != NULL);
  IS(cudaStreamSynchronize(stream), 0);
  write_to(first, 30 * MIB, 1);
  write_to(second, 30 * MIB, 2);
  // Once before it is measured: the copies of a pause have a stream of their own, here for the first time beside one of
  // the program's, and the driver may take memory of the device for a stream.
  IS(library.pause("torch"), 0);
  IS(library.resume("torch"), 0);
  const size_t before = used();
  IS(library.pause("torch"), 0);
  GONE(before, 60 * MIB);
  IS(library.resume("torch"), 0);
  CHECK(holds(first, 30 * MIB, 1) && holds(second, 30 * MIB, 2));
  torch_free(first, 30 * MIB, 0, stream);
  own_free(second, 30 * MIB, 0, stream);
  own_free(&stream, 8, 0, stream);
  CHECK(strstr(library.last_error(), "was not allocated by this library") != NULL);
  IS(cudaStreamDestroy(stream), 0);
}

static void margin(void) {
  void (*set)(uint64_t) = NULL;
  *(void **)&set = dlsym(RTLD_DEFAULT, "set_memory_margin_bytes");
  size_t left = 0, total = 0;
  IS(cudaMemGetInfo(&left, &total), 0);
  region outer = enter("weights", false);
  void *memory = NULL;
  set(left - 64 * MIB);
  IS(cudaMalloc(&memory, 128 * MIB), cudaErrorMemoryAllocation);
  IS(cudaGetLastError(), cudaErrorMemoryAllocation);
  set(0);
  IS(cudaMalloc(&memory, 128 * MIB), 0);
  leave(&outer);
  IS(cudaFree(memory), 0);
}

int main(void) {
  if (!find_library()) {
    printf("Bail out! the preload library is not there\n");
    return 99;
  }
  RUN(outside_of_regions);
  RUN(tags);
  RUN(one_name_two_contents);
  RUN(long_and_empty_names);
  RUN(threads);
  RUN(leave_for_a_while);
  RUN(kept_contents);
  RUN(contents_in_files);
  RUN(no_space_at_resume);
  RUN(torch_allocator);
  RUN(margin);
  return check_finish();
}
