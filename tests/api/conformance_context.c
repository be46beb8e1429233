// SPDX-License-Identifier: Apache-2.0
// context.h, types.h and version.h: what is opened, what it tells, its callbacks, and what a fork leaves.
#include <sys/mman.h>
#include <sys/wait.h>

#include "../support/gmm_test.h"

static void version_agrees_with_the_header(void) {
  CHECK_EQUAL(gmm_version(), GMM_VERSION);
  char expected[32];
  snprintf(expected, sizeof expected, "%d.%d.%d", GMM_VERSION_MAJOR, GMM_VERSION_MINOR, GMM_VERSION_PATCH);
  CHECK(strcmp(gmm_version_string(), expected) == 0);
}

static void results_have_names_and_texts(void) {
  CHECK(strcmp(gmm_result_name(GMM_OK), "GMM_OK") == 0);
  CHECK(strcmp(gmm_result_name(GMM_UNCHANGED), "GMM_UNCHANGED") == 0);
  CHECK(strcmp(gmm_result_name(GMM_ERROR_OUT_OF_MEMORY), "GMM_ERROR_OUT_OF_MEMORY") == 0);
  CHECK(strcmp(gmm_result_name(GMM_ERROR_IPC_TIMEOUT), "GMM_ERROR_IPC_TIMEOUT") == 0);
  CHECK(strcmp(gmm_result_name(-9999), "GMM_ERROR_UNKNOWN") == 0);
  CHECK(strcmp(gmm_result_name(9999), "GMM_ERROR_UNKNOWN") == 0);
  static const gmm_result all[] = {0,   1,   -1,  -2,  -3,  -4,  -5,  -6,  -7,  -8,  -9,  -10, -11, -12, -13, -14, -15, -16, -17, -20,
                                   -21, -22, -23, -24, -25, -26, -27, -28, -30, -31, -32, -40, -41, -42, -43};
  for (unsigned i = 0; i < sizeof all / sizeof all[0]; ++i) {
    CHECK_MESSAGE(strcmp(gmm_result_name(all[i]), "GMM_ERROR_UNKNOWN") != 0, "%d has no name", all[i]);
    CHECK_MESSAGE(strlen(gmm_result_text(all[i])) > 2, "%d has no text", all[i]);
    for (unsigned j = 0; j < i; ++j) {
      CHECK_MESSAGE(strcmp(gmm_result_name(all[i]), gmm_result_name(all[j])) != 0, "%d and %d share a name", all[i], all[j]);
      CHECK_MESSAGE(strcmp(gmm_result_text(all[i]), gmm_result_text(all[j])) != 0, "%d and %d share a text", all[i], all[j]);
    }
  }
  CHECK(gmm_result_text(-9999) != NULL);
}

static void *message_of_a_new_thread(void *unused) {
  (void)unused;
  CHECK(gmm_last_error_message() != NULL && gmm_last_error_message()[0] == 0);
  CHECK_EQUAL(gmm_last_native_code(), 0);
  void *memory = NULL;
  RESULT(gmm_alloc(context, 0, NULL, &memory), GMM_ERROR_INVALID_SIZE);
  CHECK(strlen(gmm_last_error_message()) > 10);
  return NULL;
}

static void messages_belong_to_the_thread(void) {
  RESULT(gmm_context_retain(NULL), GMM_ERROR_NULL_ARGUMENT);
  char mine[512];
  snprintf(mine, sizeof mine, "%s", gmm_last_error_message());
  CHECK(strlen(mine) > 10);
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, message_of_a_new_thread, NULL) == 0);
  pthread_join(thread, NULL);
  CHECK(strcmp(mine, gmm_last_error_message()) == 0);
  OK(gmm_context_retain(context));  // a success leaves the message alone
  OK(gmm_context_release(context));
  CHECK(strcmp(mine, gmm_last_error_message()) == 0);
  CHECK_EQUAL(gmm_last_native_code(), 0);
}

static void defaults_open_a_backend(void) {
  gmm_context *other = NULL;
  MUST(gmm_context_create(NULL, &other));
  CHECK(other != NULL && other != context);
  gmm_context_info info = {.struct_size = sizeof info};
  OK(gmm_context_get_info(other, &info));
  CHECK(info.backend == GMM_BACKEND_HOST || info.backend == GMM_BACKEND_CUDA);
  CHECK(strcmp(info.backend_name, info.backend == GMM_BACKEND_HOST ? "host" : "cuda") == 0);
  CHECK(info.device_count >= 1);
  CHECK(info.driver_version[0] != 0);
  CHECK(memchr(info.driver_version, 0, sizeof info.driver_version) != NULL);
  const char *wanted = getenv("GMM_BACKEND");
  if (wanted != NULL && wanted[0] != 0) CHECK(strcmp(info.backend_name, wanted) == 0);
  void *memory = NULL;
  OK(gmm_alloc(other, 1000, NULL, &memory));
  OK(gmm_context_release(other));  // a live block goes with it
}

static void unknown_backends_are_refused(void) {
  gmm_context_desc desc = {.struct_size = sizeof desc, .backend = GMM_BACKEND_SYCL};
  gmm_context *other = (gmm_context *)0x1;
  RESULT(gmm_context_create(&desc, &other), GMM_ERROR_NO_BACKEND);
  desc.backend = 77;
  RESULT(gmm_context_create(&desc, &other), GMM_ERROR_INVALID_VALUE);
  CHECK(strstr(gmm_last_error_message(), "77") != NULL);
  const char *was = getenv("GMM_BACKEND");
  char copy[64];
  snprintf(copy, sizeof copy, "%s", was ? was : "");
  setenv("GMM_BACKEND", "abacus", 1);
  RESULT(gmm_context_create(NULL, &other), GMM_ERROR_INVALID_VALUE);
  CHECK(strstr(gmm_last_error_message(), "abacus") != NULL);
  desc.backend = GMM_BACKEND_HOST;  // named in the descriptor: the environment is not asked
  gmm_context *named = NULL;
  OK(gmm_context_create(&desc, &named));
  OK(gmm_context_release(named));
  if (was) setenv("GMM_BACKEND", copy, 1);
  else unsetenv("GMM_BACKEND");
  CHECK(other == (gmm_context *)0x1);
}

static void references_are_counted(void) {
  gmm_context *other = open_context(1);
  OK(gmm_context_retain(other));
  OK(gmm_context_release(other));
  gmm_context_info info = {.struct_size = sizeof info};
  OK(gmm_context_get_info(other, &info));  // one reference is left
  OK(gmm_context_release(other));
  OK(gmm_context_release(NULL));
}

static void devices_are_described(void) {
  uint32_t count = device_count();
  REQUIRE(count >= 1);
  for (uint32_t d = 0; d < count; ++d) {
    gmm_device_info info = {.struct_size = sizeof info};
    OK(gmm_device_get_info(context, (gmm_device)d, &info));
    CHECK_EQUAL(info.struct_size, sizeof info);
    CHECK_EQUAL(info.device, d);
    CHECK((info.kinds & (1u << GMM_KIND_DEVICE)) != 0);
    CHECK((info.kinds & ~ALL_KINDS) == 0);
    CHECK(info.total_memory > 0 && info.free_memory > 0 && info.free_memory <= info.total_memory);
    CHECK(info.name[0] != 0 && memchr(info.name, 0, sizeof info.name) != NULL);
    if ((info.kinds & (1u << GMM_KIND_VMM)) != 0) {
      CHECK(info.granularity > 0 && (info.granularity & (info.granularity - 1)) == 0);
    }
    if ((info.capabilities & GMM_DEVICE_CAN_PAUSE) != 0) CHECK((info.kinds & (1u << GMM_KIND_VMM)) != 0);
    gmm_context_info opened = {.struct_size = sizeof opened};
    OK(gmm_context_get_info(context, &opened));
    CHECK_EQUAL((info.capabilities & GMM_DEVICE_IS_HOST) != 0, opened.backend == GMM_BACKEND_HOST);
    for (uint32_t e = 0; e < d; ++e) {
      gmm_device_info before = {.struct_size = sizeof before};
      OK(gmm_device_get_info(context, (gmm_device)e, &before));
      CHECK_MESSAGE(memcmp(before.uuid, info.uuid, 16) != 0, "devices %u and %u share a uuid", e, d);
    }
  }
  gmm_device_info info = {.struct_size = sizeof info};
  RESULT(gmm_device_get_info(context, (gmm_device)count, &info), GMM_ERROR_INVALID_DEVICE);
  RESULT(gmm_device_get_info(context, -1, &info), GMM_ERROR_INVALID_DEVICE);
}

static void host_backend_shows_the_devices_asked_for(void) {
  gmm_context_desc desc = {.struct_size = sizeof desc, .backend = GMM_BACKEND_HOST, .host_devices = 5, .host_memory = 64 * MIB};
  gmm_context *other = NULL;
  MUST(gmm_context_create(&desc, &other));
  gmm_context_info info = {.struct_size = sizeof info};
  OK(gmm_context_get_info(other, &info));
  CHECK_EQUAL(info.device_count, 5);
  gmm_device_info described = {.struct_size = sizeof described};
  OK(gmm_device_get_info(other, 4, &described));
  CHECK_EQUAL(described.total_memory, 64 * MIB);
  CHECK(described.free_memory <= 64 * MIB);
  gmm_alloc_desc alloc = {.struct_size = sizeof alloc, .device = 4};
  void *memory = NULL;
  RESULT(gmm_alloc(other, 65 * MIB, &alloc, &memory), GMM_ERROR_OUT_OF_MEMORY);
  CHECK(memory == NULL);
  OK(gmm_alloc(other, 40 * MIB, &alloc, &memory));
  OK(gmm_device_get_info(other, 4, &described));
  CHECK(described.free_memory <= 24 * MIB);
  OK(gmm_context_release(other));
  desc.host_devices = 17;
  RESULT(gmm_context_create(&desc, &other), GMM_ERROR_INVALID_VALUE);
  CHECK(strstr(gmm_last_error_message(), "17") != NULL);
}

static void older_and_newer_structs_are_accepted(void) {
  struct {
    gmm_context_desc desc;
    uint8_t tail[24];
  } newer;
  memset(&newer, 0, sizeof newer);
  newer.desc.struct_size = sizeof newer;
  gmm_context *other = NULL;
  MUST(gmm_context_create(&newer.desc, &other));
  OK(gmm_context_release(other));
  newer.tail[20] = 1;
  RESULT(gmm_context_create(&newer.desc, &other), GMM_ERROR_INVALID_DESCRIPTOR);
  gmm_context_desc older = {.struct_size = offsetof(gmm_context_desc, log), .host_devices = 99999};
  MUST(gmm_context_create(&older, &other));  // what lies behind struct_size is not looked at
  OK(gmm_context_release(other));

  gmm_context_info info;
  memset(&info, 0x5a, sizeof info);
  info.struct_size = offsetof(gmm_context_info, backend_name);
  OK(gmm_context_get_info(context, &info));
  CHECK(info.device_count >= 1 && info.device_count < 1000);
  for (size_t i = 0; i < sizeof info.backend_name; ++i) CHECK(info.backend_name[i] == 0x5a);
}

static void contexts_do_not_know_each_other(void) {
  gmm_context *other = open_context(1);
  void *mine = NULL, *theirs = NULL;
  MUST(gmm_alloc(context, 4096, NULL, &mine));
  MUST(gmm_alloc(other, 4096, NULL, &theirs));
  CHECK(mine != theirs);
  RESULT(gmm_free(context, theirs, GMM_STREAM_DEFAULT), GMM_ERROR_UNKNOWN_POINTER);
  RESULT(gmm_free(other, mine, GMM_STREAM_DEFAULT), GMM_ERROR_UNKNOWN_POINTER);
  gmm_tag tag = 0, found = 0;
  OK(gmm_tag_create(other, "only here", NULL, &tag));
  RESULT(gmm_tag_find(context, "only here", &found), GMM_ERROR_INVALID_TAG);
  gmm_statistics before = stats();
  OK(gmm_free(other, theirs, GMM_STREAM_DEFAULT));
  OK(gmm_context_release(other));
  gmm_statistics after = stats();
  CHECK(memcmp(&before, &after, sizeof before) == 0);
  write_pattern(mine, 4096, 1, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(mine, 4096, 1);
}

// --- callbacks ---------------------------------------------------------------------------------------------
static struct {
  _Atomic int64_t bytes, blocks, calls;
  _Atomic int64_t fail_at;  // this call fails; -1: none
  atomic_int wrong;
} counted;

static void *counted_allocate(void *user, uint64_t size, uint64_t alignment) {
  if (user != &counted || alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > 64 || size == 0) atomic_fetch_add(&counted.wrong, 1);
  int64_t call = atomic_fetch_add(&counted.calls, 1);
  if (call == atomic_load(&counted.fail_at)) return NULL;
  uint8_t *memory = aligned_alloc(64, (size + 64 + 63) / 64 * 64);
  if (memory == NULL) return NULL;
  memcpy(memory, &size, sizeof size);
  memset(memory + 64, 0xa5, size);
  atomic_fetch_add(&counted.bytes, (int64_t)size);
  atomic_fetch_add(&counted.blocks, 1);
  return memory + 64;
}

static void counted_deallocate(void *user, void *memory, uint64_t size) {
  uint64_t asked = 0;
  memcpy(&asked, (uint8_t *)memory - 64, sizeof asked);
  if (user != &counted || asked != size) atomic_fetch_add(&counted.wrong, 1);
  atomic_fetch_sub(&counted.bytes, (int64_t)asked);
  atomic_fetch_sub(&counted.blocks, 1);
  free((uint8_t *)memory - 64);
}

static gmm_context_desc counted_desc(void) {
  return (gmm_context_desc){.struct_size = sizeof(gmm_context_desc), .host_allocator = {counted_allocate, counted_deallocate, &counted}};
}

// A little of everything; stops at the first failure and returns it.
static gmm_result little_of_everything(gmm_context *c) {
  void *blocks[40] = {0};
  gmm_tag tag = 0;
  gmm_stream stream = 0;
  gmm_heap *heap = NULL;
  gmm_event *event = NULL;
  static uint8_t pinned[8192];
  bool is_pinned = false;
  gmm_result result = gmm_tag_create(c, "counted", NULL, &tag);
  if (result == GMM_OK) result = gmm_tag_push(c, tag);
  bool pushed = result == GMM_OK;
  if (result == GMM_OK) result = gmm_stream_create(c, 0, &stream);
  for (unsigned i = 0; i < 40 && result == GMM_OK; ++i) {
    gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = i % 2 ? GMM_KIND_VMM : GMM_KIND_DEVICE, .stream = stream};
    result = gmm_alloc(c, 300 + i * i * 5000, &desc, &blocks[i]);
  }
  for (unsigned i = 0; i < 40; i += 2)
    if (blocks[i] != NULL && gmm_free(c, blocks[i], stream) == GMM_OK) blocks[i] = NULL;
  if (result == GMM_OK) result = gmm_event_create(c, 0, &event);
  if (result == GMM_OK) result = gmm_event_record(c, event, stream);
  if (result == GMM_OK) {
    gmm_heap_desc desc = {.struct_size = sizeof desc};
    result = gmm_heap_create(c, &desc, &heap);
  }
  void *from_heap = NULL;
  if (result == GMM_OK) result = gmm_heap_alloc(heap, 5000, stream, &from_heap);
  if (from_heap != NULL && gmm_free(c, from_heap, stream) != GMM_OK) result = GMM_ERROR_DRIVER;
  if (result == GMM_OK) {
    result = gmm_pin(c, pinned, sizeof pinned, NULL, NULL);
    is_pinned = result == GMM_OK;
    if (result == GMM_ERROR_SYSTEM || result == GMM_ERROR_NOT_SUPPORTED) result = GMM_OK;
  }
  if (is_pinned && gmm_unpin(c, pinned) != GMM_OK) result = GMM_ERROR_DRIVER;
  if (result == GMM_OK) result = gmm_pause(c, NULL, NULL);
  if (result == GMM_OK) result = gmm_resume(c, NULL, NULL);
  for (unsigned i = 0; i < 40; ++i)
    if (blocks[i] != NULL && gmm_free(c, blocks[i], stream) != GMM_OK) result = GMM_ERROR_DRIVER;
  if (pushed && gmm_tag_pop(c) != GMM_OK) result = GMM_ERROR_UNBALANCED;
  if (heap != NULL && gmm_heap_destroy(heap) != GMM_OK) result = GMM_ERROR_BUSY;
  if (event != NULL && gmm_event_destroy(c, event) != GMM_OK) result = GMM_ERROR_DRIVER;
  if (stream != 0 && gmm_stream_destroy(c, stream) != GMM_OK) result = GMM_ERROR_DRIVER;
  return result;
}

static void host_allocator_is_balanced(void) {
  memset(&counted, 0, sizeof counted);
  counted.fail_at = -1;
  gmm_context_desc desc = counted_desc();
  gmm_context *other = NULL;
  MUST(gmm_context_create(&desc, &other));
  CHECK(counted.calls > 0);
  OK(little_of_everything(other));
  OK(gmm_context_release(other));
  CHECK_EQUAL(counted.bytes, 0);
  CHECK_EQUAL(counted.blocks, 0);
  CHECK_EQUAL(counted.wrong, 0);
}

static void every_host_allocation_may_fail(void) {
  memset(&counted, 0, sizeof counted);
  counted.fail_at = -1;
  gmm_context_desc desc = counted_desc();
  gmm_context *other = NULL;
  MUST(gmm_context_create(&desc, &other));
  OK(little_of_everything(other));
  OK(gmm_context_release(other));
  int64_t calls = counted.calls;
  int failed = 0;
  for (int64_t k = 0; k < calls + 2; ++k) {
    counted.calls = 0;
    counted.fail_at = k;
    gmm_result result = gmm_context_create(&desc, &other);
    if (result == GMM_OK) {
      result = little_of_everything(other);
      if (result != GMM_OK) {
        counted.fail_at = -1;
        gmm_result again = little_of_everything(other);
        CHECK_MESSAGE(again == GMM_OK, "after the failure of host allocation %lld a retry gave %s: %s", (long long)k, gmm_result_name(again), gmm_last_error_message());
      }
      OK(gmm_context_release(other));
    }
    if (result != GMM_OK) ++failed;
    CHECK_MESSAGE(result == GMM_OK || result == GMM_ERROR_OUT_OF_HOST_MEMORY, "host allocation %lld failed and gave %s: %s", (long long)k, gmm_result_name(result), gmm_last_error_message());
    CHECK_MESSAGE(counted.bytes == 0 && counted.blocks == 0, "host allocation %lld failed and %lld bytes in %lld blocks leaked", (long long)k, (long long)counted.bytes, (long long)counted.blocks);
    if (check_state.failures > 10) break;
  }
  CHECK(failed > 0);
  CHECK_EQUAL(counted.wrong, 0);
}

static struct {
  atomic_int calls, bad;
  char last[256];
} logged;
static void log_here(void *user, gmm_log_level level, const char *message) {
  if (user != &logged || level < GMM_LOG_ERROR || level > GMM_LOG_DEBUG || message == NULL || message[0] == 0) atomic_fetch_add(&logged.bad, 1);
  atomic_fetch_add(&logged.calls, 1);
  if (context != NULL) {  // no lock is held: the library may be called
    gmm_statistics statistics = {.struct_size = sizeof statistics};
    if (gmm_stats(context, NULL, &statistics) != GMM_OK) atomic_fetch_add(&logged.bad, 1);
  }
}

static void log_callback_hears_which_backend(void) {
  memset(&logged, 0, sizeof logged);
  gmm_context_desc desc = {.struct_size = sizeof desc, .log = {log_here, &logged}};
  gmm_context *other = NULL;
  MUST(gmm_context_create(&desc, &other));
  CHECK(logged.calls >= 1);
  CHECK_EQUAL(logged.bad, 0);
  OK(gmm_context_release(other));
  int heard = logged.calls;
  gmm_context *another = NULL;
  desc.log.fn = NULL;
  MUST(gmm_context_create(&desc, &another));
  OK(gmm_context_release(another));
  CHECK_EQUAL(logged.calls, heard);
}

// --- fork ----------------------------------------------------------------------------------------------------
#define FORKED(call)                                                                                                      \
  do {                                                                                                                    \
    gmm_result r = (call);                                                                                                \
    if (r != GMM_ERROR_FORKED) {                                                                                          \
      printf("# in the child %s gave %s\n", #call, gmm_result_name(r));                                                   \
      ++wrong;                                                                                                            \
    }                                                                                                                     \
  } while (0)

static void never_called(void *user) { (void)user; }
static int32_t write_nothing(void *user, const char *text, uint64_t size) {
  (void)user, (void)text, (void)size;
  return 0;
}

static void every_call_in_a_child_says_forked(void) {
  void *memory = NULL;
  MUST(gmm_alloc(context, 100000, NULL, &memory));
  gmm_stream stream = 0;
  MUST(gmm_stream_create(context, 0, &stream));
  gmm_event *event = NULL;
  MUST(gmm_event_create(context, 0, &event));
  gmm_heap *heap = NULL;
  gmm_heap_desc heap_desc = {.struct_size = sizeof heap_desc};
  MUST(gmm_heap_create(context, &heap_desc, &heap));
  gmm_tag tag = 0;
  MUST(gmm_tag_create(context, "parent", NULL, &tag));
  gmm_ipc_handle handle;
  memset(&handle, 0, sizeof handle);
  gmm_result exported = gmm_ipc_export(context, memory, &handle);
  CHECK(exported == GMM_OK || exported == GMM_ERROR_NOT_SUPPORTED);
  write_pattern(memory, 4096, 5, stream);
  fflush(stdout);
  pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    int wrong = 0;
    void *out = NULL;
    uint8_t bytes[64] = {0};
    uint32_t word = 0;
    uint64_t number = 0;
    int32_t fd = -1;
    gmm_context_info info = {.struct_size = sizeof info};
    gmm_device_info dev = {.struct_size = sizeof dev};
    gmm_pointer_info pointer = {.struct_size = sizeof pointer};
    gmm_pause_info paused = {.struct_size = sizeof paused};
    gmm_statistics statistics = {.struct_size = sizeof statistics};
    gmm_scope scope = {.struct_size = sizeof scope, .flags = GMM_SCOPE_DEVICE};
    gmm_heap *made = NULL;
    gmm_event *event_made = NULL;
    gmm_stream stream_made = 0;
    gmm_tag tag_made = 0;
    FORKED(gmm_context_retain(context));
    FORKED(gmm_context_get_info(context, &info));
    FORKED(gmm_device_get_info(context, 0, &dev));
    FORKED(gmm_alloc(context, 100, NULL, &out));
    FORKED(gmm_free(context, memory, GMM_STREAM_DEFAULT));
    FORKED(gmm_query(context, memory, &pointer));
    FORKED(gmm_heap_create(context, &heap_desc, &made));
    FORKED(gmm_heap_alloc(heap, 100, GMM_STREAM_DEFAULT, &out));
    FORKED(gmm_heap_destroy(heap));
    FORKED(gmm_stream_create(context, 0, &stream_made));
    FORKED(gmm_stream_synchronize(context, stream));
    FORKED(gmm_stream_call(context, stream, never_called, NULL));
    FORKED(gmm_copy(context, memory, bytes, 64, stream));
    FORKED(gmm_fill(context, memory, 1, 64, stream));
    FORKED(gmm_record_use(context, memory, stream));
    FORKED(gmm_event_create(context, 0, &event_made));
    FORKED(gmm_event_record(context, event, stream));
    FORKED(gmm_stream_wait_event(context, stream, event));
    FORKED(gmm_event_synchronize(context, event));
    FORKED(gmm_event_query(context, event, &word));
    FORKED(gmm_event_destroy(context, event));
    FORKED(gmm_stream_forget(context, stream));
    FORKED(gmm_stream_destroy(context, stream));
    FORKED(gmm_pin(context, bytes, 64, NULL, NULL));
    FORKED(gmm_unpin(context, bytes));
    FORKED(gmm_advise(context, memory, 0, GMM_ADVISE_SET_READ_MOSTLY, 0));
    FORKED(gmm_prefetch(context, memory, 0, 0, stream));
    FORKED(gmm_move(context, memory, 0, NULL));
    FORKED(gmm_tag_create(context, "child", NULL, &tag_made));
    FORKED(gmm_tag_find(context, "parent", &tag_made));
    FORKED(gmm_tag_push(context, tag));
    FORKED(gmm_tag_pop(context));
    FORKED(gmm_tag_set_process_default(context, tag));
    FORKED(gmm_pause(context, NULL, &number));
    FORKED(gmm_resume(context, NULL, &number));
    FORKED(gmm_pause_query(context, tag, &paused));
    FORKED(gmm_ipc_export(context, memory, &handle));
    FORKED(gmm_ipc_import(context, &handle, NULL, &out));
    FORKED(gmm_ipc_close(context, memory));
    FORKED(gmm_ipc_export_fd(context, memory, &fd, NULL, NULL));
    FORKED(gmm_set_limit(context, &scope, GMM_NO_LIMIT));
    FORKED(gmm_set_oom_handler(context, NULL, NULL));
    FORKED(gmm_stats(context, NULL, &statistics));
    FORKED(gmm_snapshot(context, write_nothing, NULL));
    FORKED(gmm_trace_begin(context, "/dev/null"));
    FORKED(gmm_trace_end(context));
    FORKED(gmm_trim(context, NULL, NULL));
    FORKED(gmm_reset(context));
    FORKED(gmm_defer_begin(context));
    FORKED(gmm_defer_end(context));
    FORKED(gmm_context_release(context));
    if (strstr(gmm_last_error_message(), "fork") == NULL) {
      printf("# the message does not speak of fork: %s\n", gmm_last_error_message());
      ++wrong;
    }
    fflush(stdout);
    exit(wrong > 0 ? 3 : 0);  // exit(), not _exit(): no handler of the library may hang or crash
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK_MESSAGE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with status 0x%x", status);
  CHECK_PATTERN(memory, 4096, 5);
  OK(gmm_free(context, memory, stream));
  OK(gmm_heap_destroy(heap));
  OK(gmm_event_destroy(context, event));
  OK(gmm_stream_destroy(context, stream));
}

static void a_child_may_open_its_own(void) {
  gmm_context_info info = {.struct_size = sizeof info};
  OK(gmm_context_get_info(context, &info));
  if (info.backend != GMM_BACKEND_HOST) SKIP("a CUDA driver that was started does not work in a forked child");
  void *memory = NULL;
  MUST(gmm_alloc(context, 100, NULL, &memory));
  fflush(stdout);
  pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    gmm_context *own = NULL;
    void *mine = NULL;
    if (gmm_context_create(NULL, &own) != GMM_OK) _exit(2);
    if (gmm_alloc(own, 1000, NULL, &mine) != GMM_OK) _exit(3);
    if (gmm_fill(own, mine, 1, 1000, GMM_STREAM_DEFAULT) != GMM_OK || gmm_stream_synchronize(own, GMM_STREAM_DEFAULT) != GMM_OK) _exit(4);
    if (gmm_free(own, mine, GMM_STREAM_DEFAULT) != GMM_OK) _exit(5);
    if (gmm_context_release(own) != GMM_OK) _exit(6);
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK_EQUAL(status, 0);
}

static void contexts_come_and_go(void) {
  for (int i = 0; i < 20; ++i) {
    gmm_context *other = open_context(2);
    void *memory = NULL;
    OK(gmm_alloc(other, 3 * MIB, NULL, &memory));
    OK(gmm_fill(other, memory, 7, 3 * MIB, GMM_STREAM_PER_THREAD));
    OK(gmm_context_release(other));
  }
}

int main(void) {
  PLAIN(version_agrees_with_the_header);
  PLAIN(results_have_names_and_texts);
  PLAIN(messages_belong_to_the_thread);
  PLAIN(defaults_open_a_backend);
  PLAIN(unknown_backends_are_refused);
  PLAIN(references_are_counted);
  PLAIN(devices_are_described);
  PLAIN(host_backend_shows_the_devices_asked_for);
  PLAIN(older_and_newer_structs_are_accepted);
  PLAIN(contexts_do_not_know_each_other);
  PLAIN(host_allocator_is_balanced);
  PLAIN(every_host_allocation_may_fail);
  PLAIN(log_callback_hears_which_backend);
  PLAIN(every_call_in_a_child_says_forked);
  PLAIN(a_child_may_open_its_own);
  PLAIN(contexts_come_and_go);
  return check_finish();
}
