// SPDX-License-Identifier: Apache-2.0
// What the tests of the interface share: opening the backend that GMM_BACKEND names, walking over
// its devices and kinds, and moving bytes in and out of memory that the CPU may not be able to read.
#ifndef GMM_TESTS_GMM_TEST_H
#define GMM_TESTS_GMM_TEST_H

#include <gmm/gmm.h>
#include <pthread.h>
#include <time.h>

#include "check.h"

#define KIB ((uint64_t)1024)
#define MIB ((uint64_t)1024 * 1024)

// Checks that a call came to a result. The message is shown when it did not.
#define RESULT(call, expected)                                                                         \
  do {                                                                                                 \
    gmm_result check_r = (call);                                                                       \
    if (check_r != (expected))                                                                         \
      check_failed(__FILE__, __LINE__, "%s gave %s, expected %s: %s", #call, gmm_result_name(check_r), \
                   gmm_result_name(expected), check_r < 0 ? gmm_last_error_message() : "");            \
  } while (0)
#define OK(call) RESULT(call, GMM_OK)
// The same, and the case ends when it did not.
#define MUST(call)                                                                                                   \
  do {                                                                                                               \
    gmm_result check_r = (call);                                                                                     \
    if (check_r != GMM_OK) {                                                                                         \
      check_failed(__FILE__, __LINE__, "%s gave %s: %s", #call, gmm_result_name(check_r), gmm_last_error_message()); \
      longjmp(check_state.leave, 1);                                                                                 \
    }                                                                                                                \
  } while (0)

static gmm_context *context;  // of the case that runs
static gmm_device device;     // what the case shall use
static gmm_kind kind;
static gmm_device_info device_info;

__attribute__((unused)) static const char *kind_name(gmm_kind k) {
  static const char *const names[] = {"UNSPECIFIED", "DEVICE", "VMM", "HOST", "MANAGED"};
  return k < 5 ? names[k] : "?";
}

__attribute__((unused)) static bool on_host_backend(void) {
  return (device_info.capabilities & GMM_DEVICE_IS_HOST) != 0;
}

__attribute__((unused)) static gmm_backend backend_id(void) {
  gmm_context_info info = {.struct_size = sizeof info};
  return gmm_context_get_info(context, &info) == GMM_OK ? info.backend : GMM_BACKEND_AUTO;
}

__attribute__((unused)) static gmm_context *open_context(uint32_t host_devices) {
  gmm_context_desc desc = {.struct_size = sizeof desc, .host_devices = host_devices};
  gmm_context *opened = NULL;
  gmm_result result = gmm_context_create(&desc, &opened);
  if (result != GMM_OK) {
    printf("Bail out! no context: %s: %s\n", gmm_result_name(result), gmm_last_error_message());
    exit(99);
  }
  return opened;
}

__attribute__((unused)) static void read_device(gmm_device d) {
  device = d;
  memset(&device_info, 0, sizeof device_info);
  device_info.struct_size = sizeof device_info;
  if (gmm_device_get_info(context, d, &device_info) != GMM_OK) {
    printf("Bail out! no device %d: %s\n", d, gmm_last_error_message());
    exit(99);
  }
}

__attribute__((unused)) static uint32_t device_count(void) {
  gmm_context_info info = {.struct_size = sizeof info};
  return gmm_context_get_info(context, &info) == GMM_OK ? info.device_count : 0;
}

__attribute__((unused)) static bool has_kind(gmm_kind k) { return (device_info.kinds & (1u << k)) != 0; }

// Runs a case in a fresh context on device 0.
__attribute__((unused)) static void run_plain(const char *name, void (*function)(void)) {
  context = open_context(2);
  read_device(0);
  kind = GMM_KIND_DEVICE;
  check_label("%s", "");
  check_run(name, function);
  gmm_result released = gmm_context_release(context);
  if (released != GMM_OK) printf("# release: %s\n", gmm_last_error_message());
  context = NULL;
}

// Runs a case in a fresh context for each device and each kind in `kinds` (bits). A kind that the device lacks is a skip.
// The host backend's devices differ in nothing but their number: the second one runs VMM, whose blocks name a device.
__attribute__((unused)) static void case_lacks_kind(void) { SKIP("the device has no %s memory", kind_name(kind)); }
__attribute__((unused)) static void run_kinds(const char *name, void (*function)(void), gmm_kind_mask kinds) {
  context = open_context(2);
  uint32_t devices = device_count();
  gmm_context_release(context);
  for (uint32_t d = 0; d < devices; ++d) {
    for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_MANAGED; ++k) {
      if ((kinds & (1u << k)) == 0) continue;
      context = open_context(2);
      read_device((gmm_device)d);
      kind = k;
      if (d > 0 && k != GMM_KIND_VMM && on_host_backend()) {
        gmm_context_release(context);
        context = NULL;
        continue;
      }
      check_label("(%s, device %u)", kind_name(k), d);
      check_run(name, has_kind(k) ? function : case_lacks_kind);
      if (gmm_context_release(context) != GMM_OK) printf("# release: %s\n", gmm_last_error_message());
      context = NULL;
    }
  }
  check_label("%s", "");
}
#define ALL_KINDS 0x1eu
#define PLAIN(function) run_plain(#function, function)
#define KINDS(function, kinds) run_kinds(#function, function, kinds)

__attribute__((unused)) static gmm_alloc_desc alloc_desc(void) {
  return (gmm_alloc_desc){.struct_size = sizeof(gmm_alloc_desc), .kind = kind, .device = device};
}

// Allocates of the case's kind and device; NULL after a failure, which is noted.
#define ALLOC(size) alloc_here(__LINE__, size, GMM_TAG_CURRENT, GMM_STREAM_DEFAULT, 0)
#define ALLOC_TAG(size, tag) alloc_here(__LINE__, size, tag, GMM_STREAM_DEFAULT, 0)
#define ALLOC_STREAM(size, stream) alloc_here(__LINE__, size, GMM_TAG_CURRENT, stream, 0)
#define ALLOC_FLAGS(size, flags) alloc_here(__LINE__, size, GMM_TAG_CURRENT, GMM_STREAM_DEFAULT, flags)
__attribute__((unused)) static void *alloc_here(int line, uint64_t size, gmm_tag tag, gmm_stream stream,
                                                uint32_t flags) {
  gmm_alloc_desc desc = alloc_desc();
  desc.tag = tag;
  desc.stream = stream;
  desc.flags = flags;
  void *memory = NULL;
  gmm_result result = gmm_alloc(context, size, &desc, &memory);
  if (result != GMM_OK)
    check_failed(__FILE__, line, "alloc of %llu bytes (line %d) gave %s: %s", (unsigned long long)size, line,
                 gmm_result_name(result), gmm_last_error_message());
  return memory;
}

__attribute__((unused)) static gmm_pointer_info query(const void *address) {
  gmm_pointer_info info = {.struct_size = sizeof info};
  OK(gmm_query(context, address, &info));
  return info;
}

__attribute__((unused)) static gmm_statistics stats_of(uint32_t flags, gmm_device d, gmm_tag tag, gmm_kind k) {
  gmm_scope scope = {.struct_size = sizeof scope, .flags = flags, .device = d, .tag = tag, .kind = k};
  gmm_statistics statistics = {.struct_size = sizeof statistics};
  OK(gmm_stats(context, &scope, &statistics));
  return statistics;
}
__attribute__((unused)) static gmm_statistics stats(void) { return stats_of(0, 0, 0, 0); }

__attribute__((unused)) static gmm_tag make_tag(const char *name, gmm_contents contents) {
  gmm_tag_desc desc = {.struct_size = sizeof desc, .contents = contents};
  gmm_tag tag = 0;
  OK(gmm_tag_create(context, name, &desc, &tag));
  return tag;
}

// The pattern of a seed: different in every place and for every seed.
__attribute__((unused)) static uint8_t pattern_at(uint64_t i, uint32_t seed) {
  return (uint8_t)((i * 31 + i / 4096 + seed * 7919u + (seed >> 3)) & 255);
}

// Patterns are written and read so often that malloc() would ask the system for fresh pages each time: one buffer stays.
// A thread that finds it in use gets memory of its own.
static pthread_mutex_t pattern_lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *pattern_kept;
__attribute__((unused)) static uint8_t *pattern_buffer(uint64_t size) {
  static uint64_t capacity;
  if (pthread_mutex_trylock(&pattern_lock) != 0) return malloc(size);
  if (size > capacity) {
    free(pattern_kept);
    pattern_kept = malloc(size);
    capacity = size;
  }
  return pattern_kept;
}
__attribute__((unused)) static void pattern_done(uint8_t *bytes) {
  if (bytes == pattern_kept)
    pthread_mutex_unlock(&pattern_lock);
  else
    free(bytes);
}

__attribute__((unused)) static void write_pattern(void *memory, uint64_t size, uint32_t seed, gmm_stream stream) {
  uint8_t *bytes = pattern_buffer(size);
  for (uint64_t i = 0; i < size; ++i) bytes[i] = pattern_at(i, seed);
  OK(gmm_copy(context, memory, bytes, size, stream));
  OK(gmm_stream_synchronize(context, stream));
  pattern_done(bytes);
}

// Checks that memory holds the pattern, and shows the first byte that differs.
#define CHECK_PATTERN(memory, size, seed) check_pattern(__LINE__, memory, size, seed, GMM_STREAM_DEFAULT)
__attribute__((unused)) static bool check_pattern(int line, const void *memory, uint64_t size, uint32_t seed,
                                                  gmm_stream stream) {
  uint8_t *bytes = pattern_buffer(size);
  memset(bytes, 0xee, size);
  gmm_result result = gmm_copy(context, bytes, memory, size, stream);
  if (result == GMM_OK) result = gmm_stream_synchronize(context, stream);
  bool same = result == GMM_OK;
  if (!same)
    check_failed(__FILE__, line, "reading %p (line %d): %s: %s", memory, line, gmm_result_name(result),
                 gmm_last_error_message());
  for (uint64_t i = 0; i < size && same; ++i) {
    if (bytes[i] == pattern_at(i, seed)) continue;
    check_failed(__FILE__, line, "line %d: byte %llu of %llu is %u, expected %u", line, (unsigned long long)i,
                 (unsigned long long)size, bytes[i], pattern_at(i, seed));
    same = false;
  }
  pattern_done(bytes);
  return same;
}

__attribute__((unused)) static void sleep_ms(long ms) {
  struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
  while (nanosleep(&time, &time) != 0) {
  }
}

__attribute__((unused)) static double now_s(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

// Waits for what another thread or process brings about, and checks that it came. No figure of how fast: a busy machine
// takes its time.
enum { SOON_S = 60 };
#define SOON(condition)                                                                                    \
  do {                                                                                                     \
    bool soon_so = false;                                                                                  \
    for (double soon_end = now_s() + SOON_S; !(soon_so = (condition)) && now_s() < soon_end;) sleep_ms(1); \
    CHECK_MESSAGE(soon_so, "not even after %d s: %s", SOON_S, #condition);                                 \
  } while (0)

// Resident memory of this process, in bytes, as the system tells.
__attribute__((unused)) static uint64_t resident_bytes(void) {
  unsigned long long total = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file == NULL || fscanf(file, "%llu %llu", &total, &resident) != 2) resident = 0;
  if (file != NULL) fclose(file);
  return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

__attribute__((unused)) static uint64_t free_device_bytes(void) {
  gmm_device_info info = {.struct_size = sizeof info};
  OK(gmm_device_get_info(context, device, &info));
  return info.free_memory;
}

// Work that holds a stream until it is opened, and opens itself after a while: for a call that has to wait for it, or,
// after GATE_S, so that a mistake fails instead of hanging.
enum { GATE_S = 60 };
typedef struct gate {
  atomic_int open, entered, passed;
  double seconds;
} gate;
__attribute__((unused)) static void gate_wait(void *user) {
  gate *g = user;
  atomic_store(&g->entered, 1);
  double end = now_s() + g->seconds;
  while (atomic_load(&g->open) == 0 && now_s() < end) sleep_ms(1);
  atomic_store(&g->passed, 1);
}
__attribute__((unused)) static void gate_close(gate *g, gmm_stream stream, double seconds) {
  atomic_store(&g->open, 0);
  atomic_store(&g->entered, 0);
  atomic_store(&g->passed, 0);
  g->seconds = seconds;
  OK(gmm_stream_call(context, stream, gate_wait, g));
}

#endif
