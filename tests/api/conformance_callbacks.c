// SPDX-License-Identifier: Apache-2.0
// The library calls the host allocator and the log of context.h as the header promises, also when the allocator fails.
#include "counted_allocator.h"
#include "fault_support.h"

static int32_t hear_nothing(void *user, const gmm_watch_info *info) {
  (void)user, (void)info;
  return 0;
}

// A call that cleans up. It may fail for want of memory too, and works when it is tried again.
#define UNDO(call)                                \
  do {                                            \
    gmm_result undone = (call);                   \
    if (undone == GMM_ERROR_OUT_OF_HOST_MEMORY) { \
      result = undone;                            \
      undone = (call);                            \
    }                                             \
    if (undone != GMM_OK) result = undone;        \
  } while (0)

// A little of everything; stops at the first failure and returns it.
static gmm_result little_of_everything(gmm_context *c) {
  void *blocks[40] = {0};
  gmm_tag tag = 0;
  gmm_stream stream = 0;
  gmm_heap *heap = NULL;
  gmm_event *event = NULL;
  gmm_watcher *watcher = NULL;
  gmm_ticket *ticket = NULL;
  gmm_snapshot *snapshot = NULL;
  static uint8_t pinned[8192];
  bool is_pinned = false;
  const gmm_kind second = has_kind(GMM_KIND_VMM) ? GMM_KIND_VMM : GMM_KIND_HOST;
  gmm_result result = gmm_tag_create(c, "counted", NULL, &tag);
  if (result == GMM_OK) result = gmm_tag_push(c, tag);
  bool pushed = result == GMM_OK;
  if (result == GMM_OK) result = gmm_stream_create(c, NULL, &stream);
  for (unsigned i = 0; i < 40 && result == GMM_OK; ++i) {
    gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = i % 2 ? second : GMM_KIND_DEVICE, .stream = stream};
    result = gmm_alloc(c, 300 + i * i * 5000, &desc, &blocks[i]);
  }
  for (unsigned i = 0; i < 40; i += 2)
    if (blocks[i] != NULL && gmm_free(c, blocks[i], stream) == GMM_OK) blocks[i] = NULL;
  if (result == GMM_OK) result = gmm_event_create(c, NULL, &event);
  if (result == GMM_OK) result = gmm_event_record(event, 0, stream);
  if (result == GMM_OK) {
    gmm_heap_desc desc = {.struct_size = sizeof desc};
    result = gmm_heap_create(c, &desc, &heap);
  }
  void *from_heap = NULL;
  if (result == GMM_OK) result = gmm_heap_alloc(heap, 5000, 0, 0, stream, &from_heap);
  if (from_heap != NULL) UNDO(gmm_free(c, from_heap, stream));
  if (result == GMM_OK) {
    result = gmm_pin(c, pinned, sizeof pinned, NULL, NULL);
    is_pinned = result == GMM_OK;
    if (result == GMM_ERROR_SYSTEM || result == GMM_ERROR_NOT_SUPPORTED) result = GMM_OK;
  }
  if (is_pinned) UNDO(gmm_unpin(c, pinned));
  if (result == GMM_OK) {
    gmm_watch_desc desc = {.struct_size = sizeof desc, .events = GMM_WATCH_LOSING, .tag = tag};
    desc.callback.fn = hear_nothing;
    result = gmm_watch(c, &desc, &watcher);
  }
  if (result == GMM_OK && second == GMM_KIND_VMM) result = gmm_pause_async(c, NULL, &ticket);
  if (result == GMM_OK && ticket != NULL) result = gmm_ticket_wait(ticket, GMM_FOREVER, NULL);
  if (result == GMM_OK) result = gmm_snapshot_create(c, NULL, &snapshot);
  if (result == GMM_OK && second == GMM_KIND_VMM) result = gmm_resume(c, NULL, NULL);
  for (unsigned i = 0; i < 40; ++i)
    if (blocks[i] != NULL) UNDO(gmm_free(c, blocks[i], stream));
  if (snapshot != NULL) UNDO(gmm_snapshot_destroy(snapshot));
  if (ticket != NULL) UNDO(gmm_ticket_destroy(ticket));
  if (watcher != NULL) UNDO(gmm_watcher_destroy(watcher));
  if (pushed) UNDO(gmm_tag_pop(c));
  if (heap != NULL) UNDO(gmm_heap_destroy(heap));
  if (event != NULL) UNDO(gmm_event_destroy(event));
  if (stream != 0) UNDO(gmm_stream_destroy(c, stream));
  if (tag != 0) UNDO(gmm_tag_destroy(c, tag));
  return result;
}

CASE(host_allocator_is_balanced) {
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

CASE(every_host_allocation_may_fail) {
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
        CHECK_MESSAGE(again == GMM_OK, "after the failure of host allocation %lld a retry gave %s: %s", (long long)k,
                      gmm_result_name(again), gmm_last_error_message());
      }
      OK(gmm_context_release(other));
    }
    if (result != GMM_OK) ++failed;
    CHECK_MESSAGE(result == GMM_OK || result == GMM_ERROR_OUT_OF_HOST_MEMORY,
                  "host allocation %lld failed and gave %s: %s", (long long)k, gmm_result_name(result),
                  gmm_last_error_message());
    CHECK_MESSAGE(counted.bytes == 0 && counted.blocks == 0,
                  "host allocation %lld failed and %lld bytes in %lld blocks leaked", (long long)k,
                  (long long)counted.bytes, (long long)counted.blocks);
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
  if (user != &logged || level < GMM_LOG_ERROR || level > GMM_LOG_DEBUG || message == NULL || message[0] == 0)
    atomic_fetch_add(&logged.bad, 1);
  atomic_fetch_add(&logged.calls, 1);
  if (context != NULL) {  // no lock is held: the library may be called
    gmm_stats_info statistics = {.struct_size = sizeof statistics};
    if (gmm_stats_query(context, NULL, &statistics) != GMM_OK) atomic_fetch_add(&logged.bad, 1);
  }
}

CASE(log_callback_hears_which_backend) {
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

// --- The library may be called from the log --------------------------------------------------------------------------

static struct {
  gmm_context *context;
  atomic_int calls, inside, wrong, ended;
} from_log;

// Acts as a garbage collection inside the callback does, and more.
static void call_the_library(void *user, gmm_log_level level, const char *message) {
  (void)user, (void)level, (void)message;
  if (from_log.context == NULL || atomic_exchange(&from_log.inside, 1) != 0) return;
  for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_VMM; ++k) {
    gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = k};
    void *block = NULL;
    if (gmm_alloc(from_log.context, 3 * MIB, &desc, &block) != GMM_OK ||
        gmm_free(from_log.context, block, GMM_STREAM_DEFAULT) != GMM_OK)
      atomic_fetch_add(&from_log.wrong, 1);
  }
  gmm_stats_info statistics = {.struct_size = sizeof statistics};
  gmm_tag_info info = {.struct_size = sizeof info};
  if (gmm_stats_query(from_log.context, NULL, &statistics) != GMM_OK) atomic_fetch_add(&from_log.wrong, 1);
  if (gmm_tag_query(from_log.context, GMM_TAG_DEFAULT, &info) != GMM_OK) atomic_fetch_add(&from_log.wrong, 1);
  if (gmm_free(from_log.context, &info, GMM_STREAM_DEFAULT) == GMM_OK) atomic_fetch_add(&from_log.wrong, 1);
  atomic_fetch_add(&from_log.calls, 1);
  atomic_store(&from_log.inside, 0);
}

// Each of these refusals is logged while the heap works.
static void *let_the_driver_refuse(void *unused) {
  static const char *const entries[] = {"cuMemAddressFree", "cuMemUnmap", "cuMemRelease", "cuMemFree_v2"};
  (void)unused;
  for (unsigned i = 0; i < sizeof entries / sizeof *entries; ++i) {
    for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_VMM; ++k) {
      gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = k};
      void *block = NULL;
      OK(gmm_alloc(from_log.context, 80 * MIB, &desc, &block));
      OK(gmm_free(from_log.context, block, GMM_STREAM_DEFAULT));
      fake.fail(entries[i], 1, 999);
      gmm_result refused = gmm_trim(from_log.context, NULL, NULL);
      fake.fail(NULL, 0, 0);
      // The callback's calls leave the message of this call as it is.
      if (refused < 0) CHECK(strstr(gmm_last_error_message(), "gmm_free") == NULL);
      OK(gmm_trim(from_log.context, NULL, NULL));
    }
  }
  atomic_store(&from_log.ended, 1);
  return NULL;
}

CASE(the_log_may_call_the_library) {
  if (!find_fake_driver()) SKIP("only the fake driver refuses on demand");
  memset(&from_log, 0, sizeof from_log);
  gmm_context_desc desc = {.struct_size = sizeof desc, .log = {call_the_library, NULL}};
  MUST(gmm_context_create(&desc, &from_log.context));
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, let_the_driver_refuse, NULL) == 0);
  SOON(atomic_load(&from_log.ended) != 0);
  if (atomic_load(&from_log.ended) == 0) {
    printf("Bail out! The thread waits for a lock that it holds.\n");
    exit(1);
  }
  pthread_join(thread, NULL);
  CHECK(atomic_load(&from_log.calls) > 0);
  CHECK_EQUAL(atomic_load(&from_log.wrong), 0);
  OK(gmm_context_release(from_log.context));
}

int main(void) { return run_cases(); }
