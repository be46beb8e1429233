// SPDX-License-Identifier: Apache-2.0
// gmm_host_allocator of context.h: all that a context keeps comes from it, with the alignment that it promises, and has
// returned when the context ends. kth_failure.c makes its calls fail.
#define _GNU_SOURCE  // dl_iterate_phdr()
#include <link.h>

#include "counted_allocator.h"

// --- Memory that the library takes by malloc all the same -----------------------------------------------------------
// The program's own malloc looks who calls. A sanitizer brings another one.

#if defined(__GLIBC__) && !CHECK_SANITIZED
#define SEES_MALLOC 1
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static uintptr_t library_begin, library_end;
static _Atomic uint64_t library_bytes;

static void note(const void *caller, size_t size) {
  if ((uintptr_t)caller >= library_begin && (uintptr_t)caller < library_end) atomic_fetch_add(&library_bytes, size);
}
void *malloc(size_t size) {
  note(__builtin_return_address(0), size);
  return __libc_malloc(size);
}
void *calloc(size_t count, size_t size) {
  note(__builtin_return_address(0), count * size);
  return __libc_calloc(count, size);
}
void *realloc(void *memory, size_t size) {
  note(__builtin_return_address(0), size);
  return __libc_realloc(memory, size);
}
void *aligned_alloc(size_t alignment, size_t size) {
  note(__builtin_return_address(0), size);
  return __libc_memalign(alignment, size);
}

static int find_library(struct dl_phdr_info *info, size_t size, void *unused) {
  (void)size;
  (void)unused;
  if (strstr(info->dlpi_name, "/libgmm.so") == NULL) return 0;
  library_begin = info->dlpi_addr;
  for (unsigned i = 0; i < info->dlpi_phnum; ++i) {
    const uintptr_t end = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
    if (info->dlpi_phdr[i].p_type == PT_LOAD && end > library_end) library_end = end;
  }
  return 1;
}
#else
#define SEES_MALLOC 0
#endif

// --- A program that uses every family -----------------------------------------------------------------------------

enum { BLOCKS = 40 };

static void begin(void) { begin_counted((gmm_log_callback){NULL, NULL}); }

// The sizes of the blocks are 100 + i * i * step bytes.
enum { STEP = 5000 };
static void allocates_and_frees(unsigned step) {
  const gmm_kind of_case = kind;
  for (kind = GMM_KIND_DEVICE; kind <= GMM_KIND_MANAGED; ++kind) {
    if (!has_kind(kind)) continue;
    void *blocks[BLOCKS] = {0}, *aligned = NULL;
    for (unsigned i = 0; i < BLOCKS; ++i) blocks[i] = ALLOC(100 + i * i * step);
    for (unsigned i = 0; i < BLOCKS; i += 2) FREE(blocks[i]);
    OK(gmm_alloc(context, 5 * MIB, HERE(.alignment = MIB, .flags = GMM_ALLOC_ZERO), &aligned));
    FREE(aligned, ALLOC_FLAGS(3 * MIB, GMM_ALLOC_DEDICATED));
    for (unsigned i = 1; i < BLOCKS; i += 2)
      FREE_ON(i % 4 == 1 ? GMM_STREAM_DEFAULT : GMM_STREAM_PER_THREAD, blocks[i]);
  }
  kind = of_case;
  gmm_heap *heap = HEAP(.limit = 64 * MIB);
  FREE(take_of(heap, 5000));
  CHECK(gmm_heap_alloc(heap, 128 * MIB, 0, 0, GMM_STREAM_DEFAULT, &(void *){NULL}) < 0);
  OK(gmm_heap_destroy(heap));
}

static void uses_every_family(void) {
  const gmm_tag tag = make_tag("counted", GMM_CONTENTS_FILE);
  const gmm_stream stream = open_stream(), other = open_stream();
  const gmm_kind of_case = kind;
  static uint8_t pinned[8192];
  gmm_event *event = NULL;
  gmm_watcher *watcher = NULL;
  gmm_ticket *ticket = NULL;
  gmm_ipc_handle handle;
  void *imported = NULL;
  const void *view = NULL;
  kind = has_kind(GMM_KIND_VMM) ? GMM_KIND_VMM : GMM_KIND_HOST;
  allocates_and_frees(STEP);
  OK(gmm_trace_begin(context, "/dev/null", NULL));
  OK(gmm_context_set_decommit(context, 1));
  OK(gmm_context_set_oom_handler(context, ignore_oom, NULL));
  set_limit(GMM_SCOPE_DEVICE, 0, 4096 * MIB);
  void *block = alloc_here(__LINE__, 3 * MIB, tag, stream, GMM_ALLOC_DEDICATED);
  OK(gmm_name(context, block, "a block"));
  OK(gmm_fill(context, block, 1, MIB, stream));
  OK(gmm_stream_call(context, stream, ignore_call, NULL));
  OK(gmm_event_create(context, EVENT_ON(0), &event));
  OK(gmm_event_record(event, 0, stream));
  OK(gmm_stream_wait_event(context, other, event, 0));
  OK(gmm_record_use(context, block, other));
  OK(gmm_watch(context, DESC(watch_desc, .events = GMM_WATCH_LOSING, .tag = tag, .callback = {ignore_watch, NULL}),
               &watcher));
  if (gmm_pin(context, pinned, sizeof pinned, NULL, NULL) == GMM_OK) OK(gmm_unpin(context, pinned));
  if (kind == GMM_KIND_VMM) {
    MUST(gmm_pause_async(context, NULL, &ticket));
    ENDS_WITH(ticket, GMM_OK);
    OK(gmm_backup_map(context, block, 3 * MIB, &view));
    OK(gmm_resume(context, NULL, NULL));
  }
  if (backend_id() != GMM_BACKEND_SYCL) {
    gmm_context *const peer = OPEN(.host_allocator = COUNTED);
    OK(gmm_ipc_export(context, block, &handle));
    MUST(gmm_ipc_import(peer, &handle, NULL, &imported));
    OK(gmm_ipc_close(peer, imported));
    MUST(gmm_alloc(peer, 5000, DESC(alloc_desc, .kind = kind), &imported));
    OK(gmm_ipc_export(peer, imported, &handle));
    MUST(gmm_ipc_import(context, &handle, NULL, &imported));
    OK(gmm_ipc_close(context, imported));
    OK(gmm_context_release(peer));
  }
  OK(write_snapshot(context, ignore_text, NULL));
  FREE_ON(stream, block);
  OK(gmm_watcher_destroy(watcher));
  OK(gmm_event_destroy(event));
  OK(gmm_context_set_decommit(context, GMM_DECOMMIT_NEVER));
  OK(gmm_trace_end(context));
  kind = of_case;
}

// --- Host memory is short --------------------------------------------------------------------------------------------

// A report of leaks for which there is no memory says that it is not whole.
static void hear(void *user, gmm_log_level level, const char *message) {
  if (level == GMM_LOG_WARNING) snprintf(user, 256, "%s", message);
}
CASE(a_report_without_memory_says_so) {
  bool is_said = false;
  for (unsigned k = 0; k < 4; ++k) {  // the call that fails may be another one of the context's end
    char last[256] = "";
    begin_counted((gmm_log_callback){hear, last});
    for (unsigned i = 0; i < 5; ++i) ALLOC(1000);
    counted.fail_at = counted.calls + k;
    end_counted();
    const bool is_whole = strstr(last, "5 blocks of 5000 bytes in all are live") != NULL;
    const bool is_part = strstr(last, "Not all blocks that are live are reported") != NULL;
    CHECK_MESSAGE(is_whole || is_part, "%s", last);
    is_said |= is_part;
  }
  CHECK(is_said);
}

// Each allocation of its making fails once, and the opening of its backend.
CASE(a_context_that_cannot_be_made_leaves_nothing) {
  gmm_result result = GMM_ERROR_OUT_OF_HOST_MEMORY;
  for (int64_t k = 0; result != GMM_OK && k < 1000; ++k) {
    memset((void *)&counted, 0, sizeof counted);
    counted.fail_at = k;
    gmm_context *made = NULL;
    result = gmm_context_create(DESC(context_desc, .host_allocator = COUNTED), &made);
    CHECK_MESSAGE(result == GMM_OK || result == GMM_ERROR_OUT_OF_HOST_MEMORY, "call %lld: %s", (long long)k,
                  gmm_last_error_message());
    if (made != NULL) OK(gmm_context_release(made));
    CHECK_EQUAL(counted.blocks, 0);
    CHECK_EQUAL(counted.wrong, 0);
  }
  CHECK_EQUAL(result, GMM_OK);
  setenv("GMM_CUDA_DRIVER", "/nonexistent/libcuda.so.1", 1);
  gmm_context *made = NULL;
  counted.fail_at = -1;
  RESULT(gmm_context_create(DESC(context_desc, .backend = GMM_BACKEND_CUDA, .host_allocator = COUNTED), &made),
         GMM_ERROR_NO_BACKEND);
  unsetenv("GMM_CUDA_DRIVER");
  CHECK_EQUAL(counted.blocks, 0);
}

// --- Another thread --------------------------------------------------------------------------------------------------

static pthread_barrier_t used, ended;
// Uses the context, and outlives it.
static void *uses_and_stays(void *unused) {
  (void)unused;
  allocates_and_frees(STEP);
  OK(gmm_tag_push(context, make_tag("elsewhere", GMM_CONTENTS_DROP)));
  pthread_barrier_wait(&used);
  pthread_barrier_wait(&ended);
  return NULL;
}
static void *uses_and_ends(void *unused) {
  (void)unused;
  allocates_and_frees(STEP);
  return NULL;
}

CASE(every_byte_is_counted) {
#if SEES_MALLOC
  dl_iterate_phdr(find_library, NULL);
  REQUIRE(library_end > library_begin);
  const uint64_t before = library_bytes;
#endif
  pthread_t staying;
  begin();
  CHECK(counted.bytes > 0);
  uses_every_family();
  pthread_barrier_init(&used, NULL, 2);
  pthread_barrier_init(&ended, NULL, 2);
  REQUIRE(pthread_create(&staying, NULL, uses_and_stays, NULL) == 0);
  pthread_barrier_wait(&used);
  run_thread(uses_and_ends, NULL);
  ALLOC(MIB);     // goes with the context
  end_counted();  // now, although a thread lives that used the context
  pthread_barrier_wait(&ended);
  pthread_join(staying, NULL);
  CHECK_EQUAL(counted.bytes, 0);
  CHECK_EQUAL(counted.blocks, 0);
  CHECK_EQUAL(counted.wrong, 0);
#if SEES_MALLOC
  // Of this thread and the two others, for all contexts.
  const uint64_t taken = library_bytes - before;
  CHECK_MESSAGE(taken <= 3 * 8192, "the library took %llu bytes by malloc", (unsigned long long)taken);
#endif
  pthread_barrier_destroy(&used);
  pthread_barrier_destroy(&ended);
}

// A thread that used many contexts keeps nothing of those that ended.
CASE(contexts_leave_nothing_to_the_thread) {
#if SEES_MALLOC
  uint64_t before = 0;
  for (unsigned round = 0; round < 20; ++round) {
    begin();
    // Little memory, since the system locks the pages of one kind, and large blocks come after the others all the same.
    allocates_and_frees(STEP / 10);
    OK(gmm_tag_push(context, make_tag("round", GMM_CONTENTS_DROP)));
    OK(gmm_tag_pop(context));
    end_counted();
    if (round == 0) before = library_bytes;
  }
  CHECK_EQUAL(library_bytes - before, 0);
#else
  SKIP("a sanitizer has its own malloc");
#endif
}

// Calls of the backend that the free of a block makes which a further stream used so often.
static uint64_t calls_of_a_free(gmm_stream stream, uint32_t uses) {
  char *block = ALLOC(1000);
  for (uint32_t i = 0; i < uses; ++i) OK(gmm_record_use(context, block + i % 1000, stream));
  const uint64_t before = stats().backend_calls;
  FREE(block);
  return stats().backend_calls - before;
}

CASE(a_use_takes_memory_once) {
  enum { TIMES = 20000 };
  begin();
  const gmm_stream stream = open_stream();
  void *block = ALLOC(1000);
  OK(gmm_record_use(context, block, stream));
  OK(gmm_record_use(context, block, GMM_STREAM_PER_THREAD));
  const uint64_t once = calls_of_a_free(stream, 1);
  const int64_t bytes = counted.bytes, calls = counted.calls;
  for (unsigned i = 0; i < TIMES; ++i) {
    OK(gmm_record_use(context, block, stream));
    OK(gmm_record_use(context, block, GMM_STREAM_PER_THREAD));
  }
  CHECK_EQUAL(counted.bytes - bytes, 0);
  CHECK_EQUAL(counted.calls - calls, 0);
  CHECK_EQUAL(calls_of_a_free(stream, TIMES), once);
  FREE(block);
  end_counted();
}

// One cycle of a program that makes streams as it needs them. Every second one frees once more when the stream is gone,
// as a garbage collector does.
static void uses_a_stream(void *shared, bool late) {
  gmm_stream stream = NULL;
  MUST(gmm_stream_create(context, STREAM_ON(0), &stream));
  for (uint64_t size = 1000; size <= 2 * MIB; size *= 4) FREE_ON(stream, ALLOC_STREAM(size, stream));
  OK(gmm_record_use(context, shared, stream));
  void *block = ALLOC(1000);
  OK(gmm_stream_destroy(context, stream));
  FREE_ON(late ? stream : GMM_STREAM_DEFAULT, block);
}

CASE(destroyed_streams_leave_no_memory) {
  begin();
  void *shared = ALLOC(1000);
  for (unsigned late = 0; late < 2; ++late) {
    int64_t bytes = 0, blocks = 0;
    for (unsigned i = 0; i < 300; ++i) {
      uses_a_stream(shared, late);
      if (late && i % 20 == 19) OK(gmm_trim(context, NULL, NULL));
      if (i == 99) {
        bytes = counted.bytes;
        blocks = counted.blocks;
      }
    }
    // A list may have grown, or the work of the last streams still runs. Something of each would be more.
    CHECK_MESSAGE(counted.bytes < bytes + 4096 && counted.blocks <= blocks + 16,
                  "200 streams left %lld bytes in %lld blocks", (long long)(counted.bytes - bytes),
                  (long long)(counted.blocks - blocks));
  }
  FREE(shared);
  end_counted();
}

int main(void) { return run_cases(); }
