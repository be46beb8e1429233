// SPDX-License-Identifier: Apache-2.0
// For every operation and every k, the k-th driver call of the operation fails. Either the operation fails with a clear
// error and leaves everything as before, or it survives the failure and completes. In both cases nothing is leaked, and
// a retry works. Only the fake driver can fail on demand, so the test runs on nothing else.
#define _GNU_SOURCE  // memfd_create()
#include <dlfcn.h>
#include <sys/mman.h>

#include "../support/gmm_test.h"
#include "../support/second_process.h"
#include "kth_operations.h"

static int (*fail_call)(const char *entry, uint64_t kth, int error);
static uint64_t (*failures_so_far)(void);
static int (*get_current)(void **out);

static bool find_fake_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) return false;
  *(void **)&fail_call = dlsym(library, "fake_cuda_fail");
  *(void **)&failures_so_far = dlsym(library, "fake_cuda_failures");
  *(void **)&get_current = dlsym(library, "cuCtxGetCurrent");
  *(void **)&live_now = dlsym(library, "fake_cuda_live");
  return find_cuda() && fail_call != NULL && failures_so_far != NULL && live_now != NULL;
}

static void take(void (*step)(void)) {
  if (step != NULL) step();
}
static const char *current_entry;  // NULL: any
static int current_error;

// Page-locked memory for contents, or to copy through, is there for the next pause, whether this one failed or not.
static bool arena_stays(void) {
  gmm_backup_info info = {.struct_size = sizeof info};
  return strncmp(current->name, "pause", 5) == 0 ||
         (gmm_backup_query(context, &info) == GMM_OK && info.arena_bytes != 0 && info.arena_used == 0);
}

// The holdings that a failure may not change. Events, streams and the copy of a context that were made on the way may
// stay for later use.
static bool same_memory(const fake_cuda_live_t *a, const fake_cuda_live_t *b) {
  return a->allocations == b->allocations && a->reservations == b->reservations && a->handles == b->handles &&
         a->mappings == b->mappings && (a->registrations == b->registrations || arena_stays()) &&
         a->imports == b->imports && a->device_bytes == b->device_bytes && a->managed_bytes == b->managed_bytes;
}
static bool same_everything(const fake_cuda_live_t *a, const fake_cuda_live_t *b) {
  return same_memory(a, b) && a->streams == b->streams && a->events == b->events && a->host_bytes == b->host_bytes &&
         a->context_references == b->context_references && a->registrations == b->registrations;
}
#define LIVE_FORMAT                                                                                                    \
  "allocations %llu reservations %llu handles %llu mappings %llu registrations %llu imports %llu streams %llu events " \
  "%llu contexts %llu device %llu host %llu managed %llu"
#define LIVE(l)                                                                                                    \
  (unsigned long long)(l).allocations, (unsigned long long)(l).reservations, (unsigned long long)(l).handles,      \
      (unsigned long long)(l).mappings, (unsigned long long)(l).registrations, (unsigned long long)(l).imports,    \
      (unsigned long long)(l).streams, (unsigned long long)(l).events, (unsigned long long)(l).context_references, \
      (unsigned long long)(l).device_bytes, (unsigned long long)(l).host_bytes, (unsigned long long)(l).managed_bytes

static bool same_counters(const gmm_stats_info *a, const gmm_stats_info *b) {
  return a->live_bytes == b->live_bytes && a->live_blocks == b->live_blocks && a->reserved_bytes == b->reserved_bytes &&
         a->paused_bytes == b->paused_bytes && a->pinned_bytes == b->pinned_bytes &&
         a->imported_bytes == b->imported_bytes &&
         // A resume makes one extent of paused neighbours before it asks for memory.
         (a->extents == b->extents || (a->paused_bytes != 0 && b->extents < a->extents));
}
#define COUNTERS_FORMAT "live %llu in %llu blocks, reserved %llu, paused %llu, pinned %llu, imported %llu, extents %llu"
#define COUNTERS(s)                                                                                                \
  (unsigned long long)(s).live_bytes, (unsigned long long)(s).live_blocks, (unsigned long long)(s).reserved_bytes, \
      (unsigned long long)(s).paused_bytes, (unsigned long long)(s).pinned_bytes,                                  \
      (unsigned long long)(s).imported_bytes, (unsigned long long)(s).extents

// One k. Returns false when the operation makes fewer than k calls.
static bool fail_at(uint64_t k) {
  fake_cuda_live_t at_start, before, now;
  live_now(&at_start);
  context = open_context(0);
  read_device(0);
  take(current->prepare);
  if (current->is_paused) pause_all();
  int known = atomic_load(&check_state.failures);
  gmm_stats_info counters = stats();
  live_now(&before);
  uint64_t failures = failures_so_far();
  void *context_before = NULL, *context_after = NULL;
  get_current(&context_before);
  fail_call(current_entry, k, current_error);
  gmm_result result = current->run();
  fail_call(NULL, 0, 0);
  get_current(&context_after);
  CHECK(context_before == context_after);
  bool happened = failures_so_far() > failures;
  char message[600];
  snprintf(message, sizeof message, "%s", gmm_last_error_message());
  int32_t native = gmm_last_native_code();
  if (!happened) CHECK_MESSAGE(result == GMM_OK, "without a failure: %s: %s", gmm_result_name(result), message);
  if (result < 0) {
    CHECK_MESSAGE(strlen(message) > 20, "the message says too little: \"%s\"", message);
    CHECK_MESSAGE(
        native == current_error || result == GMM_ERROR_OUT_OF_MEMORY || result == GMM_ERROR_OUT_OF_HOST_MEMORY,
        "the native code is %d, the driver said %d: %s: %s", native, current_error, gmm_result_name(result), message);
    CHECK_MESSAGE(result == GMM_ERROR_DRIVER || result == GMM_ERROR_OUT_OF_MEMORY ||
                      result == GMM_ERROR_OUT_OF_HOST_MEMORY || result == GMM_ERROR_NOT_SUPPORTED,
                  "not a result of a failing driver: %s: %s", gmm_result_name(result), message);
    live_now(&now);
    if (current->may_cache) {
      take(current->before);
    } else if (!current->may_have_begun) {
      CHECK_MESSAGE(same_memory(&before, &now), "held before: " LIVE_FORMAT "; after the failure: " LIVE_FORMAT,
                    LIVE(before), LIVE(now));
      gmm_stats_info after = stats();
      CHECK_MESSAGE(same_counters(&counters, &after),
                    "counted before: " COUNTERS_FORMAT "; after the failure: " COUNTERS_FORMAT, COUNTERS(counters),
                    COUNTERS(after));
      take(current->before);
    }
    gmm_result again = current->run();
    CHECK_MESSAGE(again == GMM_OK || (current->may_have_begun && again == GMM_UNCHANGED), "the retry gave %s: %s",
                  gmm_result_name(again), again < 0 ? gmm_last_error_message() : "");
    if (again == GMM_OK || again == GMM_UNCHANGED) take(current->after);
  } else {
    CHECK_MESSAGE(result == GMM_OK, "%s", gmm_result_name(result));
    take(current->after);
  }
  take(current->finish);
  CHECK_EQUAL(stats().live_blocks, 0);
  gmm_result released = gmm_context_release(context);
  CHECK_MESSAGE(released == GMM_OK, "release: %s: %s", gmm_result_name(released), gmm_last_error_message());
  context = NULL;
  live_now(&now);
  CHECK_MESSAGE(same_everything(&at_start, &now),
                "leaked: held at the start: " LIVE_FORMAT "; in the end: " LIVE_FORMAT, LIVE(at_start), LIVE(now));
  if (atomic_load(&check_state.failures) > known)
    printf("# so it went with k = %llu, error %d: %s: %s\n", (unsigned long long)k, current_error,
           gmm_result_name(result), result < 0 || happened ? message : "");
  return happened;
}

static void every_k(void) {
  // The first error fails each call. The second has another message, and the same code undoes it: of long operations
  // every sixth call.
#ifdef __SANITIZE_ADDRESS__
  const bool some = true;  // each context fills and looks over tens of MiB there: the whole takes a quarter of an hour
#else
  const bool some = current_error == 2;  // CUDA_ERROR_OUT_OF_MEMORY
#endif
  // A named entry changes the thread for each call behind it, so that three of its calls show all.
  const uint64_t last = current_entry == NULL ? UINT64_MAX : 3;
  uint64_t k = 1, runs = 0;
  while (k <= last && fail_at(k)) {
    REQUIRE(atomic_load(&check_state.failures) < 12);
    REQUIRE((k += some && k > 12 ? 6 : 1) < 2000);
    ++runs;
  }
  printf("# %s: %llu calls failed one by one, of %llu\n", current->name, (unsigned long long)runs,
         (unsigned long long)(k - 1));
  CHECK(k > 1 || current->may_make_no_call || current_entry != NULL);
}

// The context itself: opening fails cleanly at every k.
static void opening_fails_cleanly(void) {
  fake_cuda_live_t at_start, now;
  live_now(&at_start);
  for (uint64_t k = 1; k < 2000; ++k) {
    uint64_t failures = failures_so_far();
    fail_call(NULL, k, current_error);
    gmm_context_desc desc = {.struct_size = sizeof desc, .backend = GMM_BACKEND_CUDA};
    gmm_context *opened = NULL;
    gmm_result result = gmm_context_create(&desc, &opened);
    fail_call(NULL, 0, 0);
    bool happened = failures_so_far() > failures;
    if (result == GMM_OK)
      OK(gmm_context_release(opened));
    else
      CHECK_MESSAGE(
          (result == GMM_ERROR_DRIVER || result == GMM_ERROR_NO_BACKEND || result == GMM_ERROR_OUT_OF_MEMORY) &&
              opened == NULL,
          "k = %llu: %s: %s", (unsigned long long)k, gmm_result_name(result), gmm_last_error_message());
    live_now(&now);
    CHECK_MESSAGE(same_everything(&at_start, &now), "k = %llu leaked: " LIVE_FORMAT, (unsigned long long)k, LIVE(now));
    if (!happened) {
      CHECK_EQUAL(result, GMM_OK);
      return;
    }
  }
}

int main(int count, char **words) {
  if (count == 4 && strcmp(words[1], "--second") == 0) return export_for_others(atoi(words[2]), atoi(words[3]));
  if (!find_fake_driver()) {
    printf("1..0 # SKIP the fake CUDA driver is not here: only it can fail on demand\n");
    return 0;
  }
  setenv("GMM_BACKEND", "cuda", 1);
  // Each k opens a context, whose first pause takes the pages of a whole segment: 32 MiB without a limit. The largest
  // operation has contents of 8 MiB.
  setenv("GMM_BACKUP_ARENA_LIMIT", "8388608", 1);
  // `kth_failure WORDS`: only the operations whose names contain them.
  const char *only = count == 2 ? words[1] : NULL;
  // CUDA_ERROR_UNKNOWN and CUDA_ERROR_OUT_OF_MEMORY of any call, and the calls that no count of calls has.
  static const struct {
    const char *entry;
    int error;
  } passes[] = {{NULL, 999},
                {NULL, 2},
                {"cuCtxGetCurrent", 999},
                {"cuCtxPushCurrent", 999},
                {"cuCtxPopCurrent", 999},
                {"cuThreadExchangeStreamCaptureMode", 999}};
  for (unsigned p = 0; p < sizeof passes / sizeof *passes; ++p) {
    current_entry = passes[p].entry;
    current_error = passes[p].error;
    check_label("(%s, error %d)", current_entry == NULL ? "any call" : current_entry, current_error);
    if (only == NULL && current_entry == NULL) RUN(opening_fails_cleanly);
    for (unsigned i = 0; i < operation_count; ++i) {
      if (only != NULL && strstr(operations[i].name, only) == NULL) continue;
      current = &operations[i];
      for (kind = GMM_KIND_DEVICE; kind <= GMM_KIND_MANAGED; ++kind) {
        if ((current->kinds & 1u << kind) == 0) continue;
        char name[80];
        snprintf(name, sizeof name, "%s %s", current->name, kind_name(kind));
        check_run(name, every_k);
      }
    }
  }
  stop_exporters();
  return finish_clean();
}
