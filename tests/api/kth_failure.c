// SPDX-License-Identifier: Apache-2.0
// For every operation and every k, the k-th driver call of the operation fails, or the k-th call of the host allocator.
// Either the operation fails with a clear error and leaves everything as before, or it survives the failure and
// completes. In both cases nothing is leaked, and a retry works. Only the fake driver can fail on demand, so the test
// runs on nothing else.
#define _GNU_SOURCE  // memfd_create()
#include <sys/mman.h>

#include "counted_allocator.h"
#include "kth_operations.h"

static void take(void (*step)(void)) {
  if (step != NULL) step();
}
static const char *current_entry;  // NULL: any
static int current_error;          // HOST_MEMORY: the host allocator fails, and no driver call
enum { HOST_MEMORY = GMM_ERROR_OUT_OF_HOST_MEMORY };

static gmm_context_desc desc_of_pass(void) {
  gmm_context_desc desc = {.struct_size = sizeof desc};
  memset((void *)&counted, 0, sizeof counted);
  counted.fail_at = -1;
  if (current_error == HOST_MEMORY) desc.host_allocator = (gmm_host_allocator)COUNTED;
  return desc;
}
static uint64_t failures_before;
static void begin_failing(uint64_t k) {
  failures_before = fake.failures();
  if (current_error != HOST_MEMORY)
    fake.fail(current_entry, k, current_error);
  else
    counted.fail_at = counted.calls + (int64_t)k - 1;
}
// Whether a call failed.
static bool end_failing(void) {
  const bool happened =
      current_error == HOST_MEMORY ? counted.calls > counted.fail_at : fake.failures() > failures_before;
  fake.fail(NULL, 0, 0);
  counted.fail_at = -1;
  return happened;
}

// Page-locked memory for contents, or to copy through, is there for the next pause, whether this one failed or not.
static bool arena_stays(void) {
  const gmm_backup_info info = backup_info();
  return strncmp(current->name, "pause", 5) == 0 || (info.arena_bytes != 0 && info.arena_used == 0);
}

#define SAME(field, why)                                                                  \
  CHECK_MESSAGE(before.field == after.field, "%s: " #field " %llu before, %llu now", why, \
                (unsigned long long)before.field, (unsigned long long)after.field)
// The holdings that a failure may not change. Events, streams and the copy of a context that were made on the way may
// stay for later use.
static void check_same_memory(const fake_cuda_live_t before, const char *why) {
  fake_cuda_live_t after;
  fake.live(&after);
  SAME(allocations, why);
  SAME(reservations, why);
  SAME(handles, why);
  SAME(mappings, why);
  SAME(imports, why);
  SAME(device_bytes, why);
  SAME(managed_bytes, why);
}
static void check_nothing_leaked(const fake_cuda_live_t before) {
  const char *const why = "leaked";
  fake_cuda_live_t after;
  fake.live(&after);
  check_same_memory(before, why);
  SAME(registrations, why);
  if (!on_hip()) {  // as at the end of the program
    SAME(streams, why);
    SAME(events, why);
  }
  SAME(host_bytes, why);
  SAME(context_references, why);
  CHECK_EQUAL(counted.bytes, 0);
  CHECK_EQUAL(counted.blocks, 0);
  CHECK_EQUAL(counted.wrong, 0);
}
static void check_same_counters(const gmm_stats_info before) {
  const char *const why = "counted after the failure";
  const gmm_stats_info after = stats();
  SAME(live_bytes, why);
  SAME(live_blocks, why);
  SAME(reserved_bytes, why);
  SAME(paused_bytes, why);
  SAME(pinned_bytes, why);
  SAME(imported_bytes, why);
  // A resume makes one extent of paused neighbours before it asks for memory.
  if (before.paused_bytes == 0 || after.extents > before.extents) SAME(extents, why);
}

// One k. Returns false when the operation makes fewer than k calls.
static bool fail_at(uint64_t k) {
  fake_cuda_live_t at_start, before, now;
  fake.live(&at_start);
  const gmm_context_desc desc = desc_of_pass();
  context = open_of(&desc);
  read_device(0);
  begin_operation();
  take(current->prepare);
  if (current->is_paused) pause_all();
  if (current->is_watched) begin_watch();
  const int known = atomic_load(&check_state.failures);
  const gmm_stats_info counters = stats();
  fake.live(&before);
  CUcontext context_before = NULL, context_after = NULL;
  cuda.cuCtxGetCurrent(&context_before);
  begin_failing(k);
  gmm_result result = current->run();
  const bool happened = end_failing();
  cuda.cuCtxGetCurrent(&context_after);
  CHECK(context_before == context_after);
  char message[600];
  snprintf(message, sizeof message, "%s", gmm_last_error_message());
  const int32_t native = gmm_last_native_code();
  if (!happened) CHECK_MESSAGE(result == GMM_OK, "without a failure: %s: %s", gmm_result_name(result), message);
  bool done = true;
  if (result < 0) {
    const bool is_memory = result == GMM_ERROR_OUT_OF_MEMORY || result == GMM_ERROR_OUT_OF_HOST_MEMORY;
    CHECK_MESSAGE(strlen(message) > 20, "the message says too little: \"%s\"", message);
    if (current_error == HOST_MEMORY) {  // an arena without memory for its lists is at its limit
      CHECK_MESSAGE(is_memory || result == GMM_ERROR_LIMIT_EXCEEDED, "%s: %s", gmm_result_name(result), message);
    } else {
      CHECK_MESSAGE(native == current_error || is_memory, "the native code is %d, the driver said %d: %s: %s", native,
                    current_error, gmm_result_name(result), message);
      CHECK_MESSAGE(result == GMM_ERROR_DRIVER || is_memory || result == GMM_ERROR_NOT_SUPPORTED,
                    "not a result of a failing driver: %s: %s", gmm_result_name(result), message);
    }
    if (!current->may_have_begun) {
      if (!current->may_cache) {
        fake.live(&now);
        check_same_memory(before, "held after the failure");
        if (!arena_stays()) CHECK_EQUAL(now.registrations, before.registrations);
        check_same_counters(counters);
      }
      take(current->before);
      if (current->is_watched) watcher_knows(false);
    }
    const gmm_result again = current->run();
    CHECK_MESSAGE(again == GMM_OK || (current->may_have_begun && again == GMM_UNCHANGED), "the retry gave %s: %s",
                  gmm_result_name(again), again < 0 ? gmm_last_error_message() : "");
    done = again >= 0;
  } else {
    CHECK_MESSAGE(result == GMM_OK, "%s", gmm_result_name(result));
  }
  if (done && current->is_watched) watcher_knows(true);
  if (done) take(current->after);
  end_operation();
  CHECK_EQUAL(stats().live_blocks, 0);
  const gmm_result released = gmm_context_release(context);
  CHECK_MESSAGE(released == GMM_OK, "release: %s: %s", gmm_result_name(released), gmm_last_error_message());
  context = NULL;
  check_nothing_leaked(at_start);
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
  CHECK(k > 1 || current->may_make_no_call || current_entry != NULL || current_error == HOST_MEMORY);
}

// The context itself: opening fails cleanly at every k.
static void opening_fails_cleanly(void) {
  fake_cuda_live_t at_start;
  fake.live(&at_start);
  for (uint64_t k = 1; k < 2000; ++k) {
    const gmm_context_desc desc = desc_of_pass();
    gmm_context *opened = NULL;
    begin_failing(k);
    const gmm_result result = gmm_context_create(&desc, &opened);
    const bool happened = end_failing();
    if (result == GMM_OK)
      OK(gmm_context_release(opened));
    else
      CHECK_MESSAGE((result == GMM_ERROR_DRIVER || result == GMM_ERROR_NO_BACKEND ||
                     result == GMM_ERROR_OUT_OF_MEMORY || result == GMM_ERROR_OUT_OF_HOST_MEMORY) &&
                        opened == NULL,
                    "k = %llu: %s: %s", (unsigned long long)k, gmm_result_name(result), gmm_last_error_message());
    check_nothing_leaked(at_start);
    if (!happened) {
      CHECK_EQUAL(result, GMM_OK);
      return;
    }
  }
}

int main(int count, char **words) {
  if (count > 2) return run_cases_or(export_for_others, count, words);
  if (!find_cuda() || !find_fake_driver()) {
    printf("1..0 # SKIP the fake CUDA driver is not here: only it can fail on demand\n");
    return 0;
  }
  if (getenv("GMM_BACKEND") == NULL) setenv("GMM_BACKEND", "cuda", 1);
  ends_begin();
  // Each k opens a context, whose first pause takes the pages of a whole segment: 32 MiB without a limit. The largest
  // operation has contents of 8 MiB.
  setenv("GMM_BACKUP_ARENA_LIMIT", "8388608", 1);
  // `kth_failure WORDS`: only the operations whose names contain them.
  const char *only = count == 2 ? words[1] : NULL;
  // CUDA_ERROR_UNKNOWN and CUDA_ERROR_OUT_OF_MEMORY of any call, the calls that no count of calls has, and host memory.
  static const struct {
    const char *entry;
    int error;
  } passes[] = {{NULL, 999},
                {NULL, 2},
                {"cuCtxGetCurrent", 999},
                {"cuCtxPushCurrent", 999},
                {"cuCtxPopCurrent", 999},
                {"cuThreadExchangeStreamCaptureMode", 999},
                {NULL, HOST_MEMORY}};
  for (unsigned p = 0; p < sizeof passes / sizeof *passes; ++p) {
    current_entry = passes[p].entry;
    current_error = passes[p].error;
    check_label("(%s, error %d)",
                current_error == HOST_MEMORY ? "host memory"
                : current_entry == NULL      ? "any call"
                                             : current_entry,
                current_error);
    if (only == NULL && current_entry == NULL) RUN(opening_fails_cleanly);
    for (unsigned i = 0; i < operation_count; ++i) {
      if (only != NULL && strstr(operations[i].name, only) == NULL) continue;
      current = &operations[i];
      // HIP has no fabric handles and takes no dma-buf.
      if (on_hip() && (current->imported_as == GMM_FD_DMA_BUF || strcmp(current->name, "export COMM") == 0)) continue;
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
