// SPDX-License-Identifier: Apache-2.0
// gmm as engines carry it: inside a plug-in that is unloaded, twice in a process, and opened late. This program itself
// does not link gmm.
//
// Usage: carried PLUGIN LIBGMM_SO ROOM_LIBRARY...
#include "carried.h"

#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>

#include "../support/check.h"

static const char *plugin, *library, *const *rooms;
static int room_count;
static char folder[] = "/tmp/gmm-carried-XXXXXX";
static unsigned copies;

// A library that the loader takes for another one than `from`.
static void *open_copy(const char *from) {
  char path[128], bytes[65536];
  snprintf(path, sizeof path, "%s/%u.so", folder, ++copies);
  FILE *in = fopen(from, "rb"), *out = fopen(path, "wb");
  REQUIRE(in != NULL && out != NULL);
  for (size_t got; (got = fread(bytes, 1, sizeof bytes, in)) != 0;) REQUIRE(fwrite(bytes, 1, got, out) == got);
  fclose(in);
  REQUIRE(fclose(out) == 0);
  void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  unlink(path);
  return opened;
}

static struct carried api_of(void *opened) {
  struct carried api;
#define X(name)                               \
  *(void **)&api.name = dlsym(opened, #name); \
  REQUIRE(api.name != NULL);
  CARRIED_FUNCTIONS(X)
#undef X
  return api;
}

static void use(const struct carried *gmm) {
  gmm_context_desc desc = {.struct_size = sizeof desc, .backend = GMM_BACKEND_HOST, .host_memory = 1u << 30};
  gmm_context *context = NULL;
  CHECK_MESSAGE(gmm->gmm_context_create(&desc, &context) == GMM_OK, "%s", gmm->gmm_last_error_message());
  void *blocks[20] = {0};
  for (unsigned i = 0; i < 20; ++i) CHECK_EQUAL(gmm->gmm_alloc(context, 1000 * i + 1, NULL, &blocks[i]), GMM_OK);
  for (unsigned i = 0; i < 20; ++i) CHECK_EQUAL(gmm->gmm_free(context, blocks[i], GMM_STREAM_DEFAULT), GMM_OK);
  CHECK_EQUAL(gmm->gmm_tag_push(context, GMM_TAG_DEFAULT), GMM_OK);
  CHECK_EQUAL(gmm->gmm_trace_begin(context, "/dev/null", NULL), GMM_OK);
  CHECK_EQUAL(gmm->gmm_alloc(context, 100, NULL, &blocks[0]), GMM_OK);
  CHECK_EQUAL(gmm->gmm_free(context, blocks[0], GMM_STREAM_DEFAULT), GMM_OK);
  CHECK_EQUAL(gmm->gmm_alloc(context, 0, NULL, &blocks[0]), GMM_ERROR_INVALID_SIZE);
  CHECK(strstr(gmm->gmm_last_error_message(), "size = 0") != NULL);
  CHECK_EQUAL(gmm->gmm_context_release(context), GMM_OK);
  CHECK(strstr(gmm->gmm_last_error_message(), "size = 0") != NULL);
}

// --- A thread that outlives the libraries that it used ---------------------------------------------------------------
static struct {
  sem_t asked, done;
  const struct carried *gmm;  // NULL: the thread ends
} worker;

static void *work(void *unused) {
  for (;; sem_post(&worker.done)) {
    while (sem_wait(&worker.asked) != 0) continue;
    if (worker.gmm == NULL) return unused;
    use(worker.gmm);
  }
}

static pthread_t start_worker(void) {
  pthread_t thread;
  REQUIRE(sem_init(&worker.asked, 0, 0) == 0 && sem_init(&worker.done, 0, 0) == 0);
  REQUIRE(pthread_create(&thread, NULL, work, NULL) == 0);
  return thread;
}

static void use_on_worker(const struct carried *gmm) {
  worker.gmm = gmm;
  sem_post(&worker.asked);
  while (sem_wait(&worker.done) != 0) continue;
}

static void end_worker(pthread_t thread) {
  worker.gmm = NULL;
  sem_post(&worker.asked);
  pthread_join(thread, NULL);
}

// --- What a process has ----------------------------------------------------------------------------------------------
static unsigned lines_with(const char *path, const char *word) {
  char line[4096];
  unsigned count = 0;
  FILE *file = fopen(path, "r");
  REQUIRE(file != NULL);
  while (fgets(line, sizeof line, file) != NULL) count += strstr(line, word) != NULL;
  fclose(file);
  return count;
}

static unsigned entries_of(const char *path) {
  unsigned count = 0;
  DIR *open_folder = opendir(path);
  REQUIRE(open_folder != NULL);
  while (readdir(open_folder) != NULL) ++count;
  closedir(open_folder);
  return count;
}

static unsigned free_keys(void) {
  pthread_key_t keys[1024];
  unsigned count = 0;
  while (count < 1024 && pthread_key_create(&keys[count], NULL) == 0) ++count;
  for (unsigned i = 0; i < count; ++i) pthread_key_delete(keys[i]);
  return count;
}

// --- Cases -----------------------------------------------------------------------------------------------------------
// A plug-in whose calls all fail has a thread's message and no context.
static void failures_alone_leave_nothing_behind(void) {
  pthread_t thread = start_worker();
  void *opened = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(opened != NULL);
  struct carried gmm = *(const struct carried *)dlsym(opened, "carried_api");
  const unsigned keys = free_keys();
  gmm_context *context = NULL;
  gmm_context_desc wrong = {.struct_size = sizeof wrong, .backend = 99};
  CHECK(gmm.gmm_context_create(&wrong, &context) < 0);
  CHECK(gmm.gmm_alloc(NULL, 1, NULL, NULL) < 0);
  CHECK(gmm.gmm_last_error_message()[0] != '\0');
  CHECK_EQUAL(free_keys(), keys);
  REQUIRE(dlclose(opened) == 0);
  end_worker(thread);
}

static void thousands_of_cycles_leave_nothing(void) {
  enum { WARM = 20, CYCLES = CHECK_SANITIZED ? 200 : 2000 };
  pthread_t thread = start_worker();
  unsigned keys = 0, maps = 0, threads = 0, descriptors = 0;
  size_t heap = 0;
  for (unsigned i = 0; i < WARM + CYCLES && atomic_load(&check_state.failures) == 0; ++i) {
    if (i == WARM) {
      keys = free_keys();
      maps = lines_with("/proc/self/maps", "");
      threads = entries_of("/proc/self/task");
      descriptors = entries_of("/proc/self/fd");
      heap = mallinfo2().uordblks;
    }
    void *opened = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(opened != NULL);
    const struct carried *gmm = dlsym(opened, "carried_api");
    use(gmm);
    use_on_worker(gmm);
    REQUIRE(dlclose(opened) == 0);
  }
  CHECK_EQUAL(lines_with("/proc/self/maps", "carried_plugin"), 0);
  CHECK_EQUAL(free_keys(), keys);
  CHECK_EQUAL(entries_of("/proc/self/task"), threads);
  CHECK_EQUAL(entries_of("/proc/self/fd"), descriptors);
  if (!CHECK_SANITIZED) {
    const unsigned now = lines_with("/proc/self/maps", "");
    CHECK_MESSAGE(now <= maps + 4, "%u mappings after %d cycles, %u before", now, CYCLES, maps);
    CHECK_MESSAGE(mallinfo2().uordblks <= heap + CYCLES * 8, "%zu bytes of malloc() after %d cycles, %zu before",
                  mallinfo2().uordblks, CYCLES, heap);
  }
  end_worker(thread);
}

static void copies_live_beside_each_other(void) {
  enum { COPIES = 12 };
  pthread_t thread = start_worker();
  struct carried apis[COPIES];
  for (unsigned i = 0; i < COPIES; ++i) {
    void *opened = open_copy(library);
    if (opened == NULL) check_failed(__FILE__, __LINE__, "copy %u: %s", i, dlerror());
    REQUIRE(opened != NULL);
    apis[i] = api_of(opened);
  }
  for (unsigned round = 0; round < 3; ++round)
    for (unsigned i = 0; i < COPIES; ++i) {
      use(&apis[i]);
      use_on_worker(&apis[i]);
    }
  end_worker(thread);
}

static void the_loader_has_no_room_left(void) {
  if (CHECK_SANITIZED) SKIP("a sanitizer's storage is part of every library");
  pthread_t thread = start_worker();
  unsigned opened = 0;
  for (int i = 0; i < room_count; ++i)
    while (open_copy(rooms[i]) != NULL) REQUIRE(++opened < 2000);
  CHECK(strstr(dlerror(), "static TLS") != NULL);
  void *late = open_copy(library);
  if (late == NULL) check_failed(__FILE__, __LINE__, "%s", dlerror());
  REQUIRE(late != NULL);
  struct carried gmm = api_of(late);
  for (unsigned i = 0; i < 3; ++i) {
    use(&gmm);
    use_on_worker(&gmm);
  }
  late = open_copy(plugin);
  REQUIRE(late != NULL);
  use(dlsym(late, "carried_api"));
  use_on_worker(dlsym(late, "carried_api"));
  CHECK_EQUAL(dlclose(late), 0);
  end_worker(thread);
}

int main(int argc, char **argv) {
  if (argc < 4) return 2;
  plugin = argv[1];
  library = argv[2];
  rooms = (const char *const *)argv + 3;
  room_count = argc - 3;
  if (mkdtemp(folder) == NULL) return 2;
  RUN(failures_alone_leave_nothing_behind);
  RUN(thousands_of_cycles_leave_nothing);
  RUN(copies_live_beside_each_other);
  RUN(the_loader_has_no_room_left);
  rmdir(folder);
  return check_finish();
}
