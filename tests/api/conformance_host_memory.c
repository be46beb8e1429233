// SPDX-License-Identifier: Apache-2.0
// gmm_host_allocator of context.h: all that a context keeps comes from it, with the alignment that it promises, and has
// returned when the context ends. A program that uses every family of functions says so.
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

static int32_t give_up(void *user, const gmm_oom_info *info) {
  (void)user, (void)info;
  return 0;
}
static int32_t swallow(void *user, const char *text, uint64_t size) {
  (void)user, (void)text, (void)size;
  return 0;
}
static int32_t hear_nothing(void *user, const gmm_watch_info *info) {
  (void)user, (void)info;
  return 0;
}
static void nothing(void *user) { (void)user; }

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

// --- Host memory is short --------------------------------------------------------------------------------------------

// The k-th call of the host allocator fails: the block keeps the name that it had, and the call works when it is made
// again.
CASE(a_name_without_memory_is_none) {
  unsigned failures = 0;
  begin();
  for (unsigned i = 0; i < 100; ++i) {
    void *block = ALLOC(1000);
    char name[16];
    snprintf(name, sizeof name, "block %u", i);
    for (unsigned k = 0;; ++k) {
      counted.fail_at = counted.calls + k;
      const gmm_result result = gmm_name(context, block, name);
      counted.fail_at = -1;
      if (result == GMM_OK) break;
      ++failures;
      CHECK_EQUAL(result, GMM_ERROR_OUT_OF_HOST_MEMORY);
      gmm_snapshot *snapshot = NULL;
      unsigned named = 0;
      MUST(gmm_snapshot_create(context, NULL, &snapshot));
      for (unsigned j = 0; j <= i; ++j) {
        gmm_block_info info = {.struct_size = sizeof info};
        OK(gmm_snapshot_query_block(snapshot, j, &info));
        named += info.name[0] != 0;
        if (info.address == block) CHECK_EQUAL(info.name[0], 0);
      }
      CHECK_EQUAL(named, i);
      OK(gmm_snapshot_destroy(snapshot));
      REQUIRE(k < 10);
    }
  }
  CHECK(failures >= 2);
  end_counted();  // reports what is live
}

// The report of leaks does without memory, too: it has the sum.
static void hear(void *user, gmm_log_level level, const char *message) {
  if (level == GMM_LOG_WARNING) snprintf(user, 256, "%s", message);
}
CASE(a_report_without_memory_has_the_sum) {
  for (unsigned k = 0; k < 3; ++k) {
    char last[256] = "";
    begin_counted((gmm_log_callback){hear, last});
    for (unsigned i = 0; i < 5; ++i) ALLOC(1000);
    counted.fail_at = counted.calls + k;
    end_counted();
    CHECK_MESSAGE(strstr(last, "5 blocks of 5000 bytes") != NULL, "%s", last);
  }
}

// A little of everything; stops at the first failure and returns it. A call that cleans up may fail for want of memory
// too, and works when it is made again.
#define TRY(call) result = result == GMM_OK ? (call) : result
#define UNDO(object, call)                        \
  if (object) {                                   \
    gmm_result undone = (call);                   \
    if (undone == GMM_ERROR_OUT_OF_HOST_MEMORY) { \
      result = undone;                            \
      undone = (call);                            \
    }                                             \
    if (undone != GMM_OK) result = undone;        \
  }
static gmm_result little_of_everything(void) {
  void *blocks[BLOCKS] = {0}, *of_heap = NULL;
  gmm_tag tag = 0;
  gmm_stream stream = 0, other = 0;
  gmm_heap *heap = NULL;
  gmm_event *event = NULL;
  gmm_watcher *watcher = NULL;
  gmm_ticket *ticket = NULL;
  gmm_snapshot *snapshot = NULL;
  gmm_stats_info statistics = {.struct_size = sizeof statistics};
  const gmm_scope_desc scope = scope_of(GMM_SCOPE_DEVICE, 0, 0, 0);
  static uint8_t pinned[8192];
  const bool has_vmm = has_kind(GMM_KIND_VMM);
  gmm_result result = gmm_tag_create(context, "counted", NULL, &tag);
  TRY(gmm_tag_push(context, tag));
  const bool is_pushed = result == GMM_OK;
  TRY(gmm_stream_create(context, NULL, &stream));
  TRY(gmm_stream_create(context, NULL, &other));
  TRY(gmm_context_set_oom_handler(context, give_up, NULL));
  TRY(gmm_limit_set(context, &scope, 4096 * MIB));
  for (unsigned i = 0; i < BLOCKS; ++i) {
    const gmm_kind k = i % 2 == 0 ? GMM_KIND_DEVICE : has_vmm ? GMM_KIND_VMM : GMM_KIND_HOST;
    TRY(gmm_alloc(context, 300 + i * i * 5000, DESC(alloc_desc, .kind = k, .stream = stream), &blocks[i]));
  }
  for (unsigned i = 0; i < BLOCKS; i += 2)
    if (blocks[i] != NULL && gmm_free(context, blocks[i], stream) == GMM_OK) blocks[i] = NULL;
  TRY(gmm_fill(context, blocks[1], 1, 300, stream));
  TRY(gmm_copy(context, blocks[1], blocks[3], 300, stream));
  TRY(gmm_stream_call(context, stream, nothing, NULL));
  TRY(gmm_record_use(context, blocks[1], other));
  TRY(gmm_event_create(context, NULL, &event));
  TRY(gmm_event_record(event, 0, stream));
  TRY(gmm_stream_wait_event(context, other, event, 0));
  TRY(gmm_heap_create(context, NULL, &heap));
  TRY(gmm_heap_alloc(heap, 5000, 0, 0, stream, &of_heap));
  UNDO(of_heap, gmm_free(context, of_heap, stream));
  const gmm_result pin = result == GMM_OK ? gmm_pin(context, pinned, sizeof pinned, NULL, NULL) : result;
  if (pin != GMM_ERROR_SYSTEM && pin != GMM_ERROR_NOT_SUPPORTED) result = pin;
  UNDO(pin == GMM_OK, gmm_unpin(context, pinned));
  TRY(gmm_watch(context, DESC(watch_desc, .events = GMM_WATCH_LOSING, .tag = tag, .callback = {hear_nothing, NULL}),
                &watcher));
  if (has_vmm) TRY(gmm_pause_async(context, NULL, &ticket));
  if (has_vmm) TRY(gmm_ticket_wait(ticket, GMM_FOREVER, NULL));
  TRY(gmm_stats_query(context, &scope, &statistics));
  TRY(gmm_snapshot_create(context, NULL, &snapshot));
  TRY(gmm_snapshot_write(snapshot, swallow, NULL));
  if (has_vmm) TRY(gmm_resume(context, NULL, NULL));
  for (unsigned i = 0; i < BLOCKS; ++i) UNDO(blocks[i], gmm_free(context, blocks[i], stream));
  UNDO(snapshot, gmm_snapshot_destroy(snapshot));
  UNDO(ticket, gmm_ticket_destroy(ticket));
  UNDO(watcher, gmm_watcher_destroy(watcher));
  UNDO(is_pushed, gmm_tag_pop(context));
  UNDO(heap, gmm_heap_destroy(heap));
  UNDO(event, gmm_event_destroy(event));
  UNDO(other, gmm_stream_destroy(context, other));
  UNDO(stream, gmm_stream_destroy(context, stream));
  UNDO(tag, gmm_tag_destroy(context, tag));
  return result;
}

// Shares memory and events, compacts a heap, keeps contents in files, traces, and gives idle memory back.
static gmm_result little_of_the_rest(void) {
  const gmm_kind k = has_kind(GMM_KIND_VMM) ? GMM_KIND_VMM : GMM_KIND_HOST;
  gmm_event *event = NULL, *same = NULL;
  gmm_ipc_handle handle;
  gmm_ipc_fd_info file = {.struct_size = sizeof file};
  gmm_heap *heap = NULL;
  gmm_tag tag = 0;
  void *block = NULL, *imports[2] = {NULL, NULL}, *parts[4] = {NULL};
  const void *view = NULL;
  gmm_result result = gmm_trace_begin(context, "/dev/null");
  const bool is_traced = result == GMM_OK;
  TRY(gmm_context_set_decommit(context, 1));
  TRY(gmm_event_create(context, SHARED_EVENT_ON(0), &event));
  TRY(gmm_event_export(event, &handle));
  TRY(gmm_event_import(context, &handle, NULL, &same));
  TRY(gmm_alloc(context, 3 * MIB, DESC(alloc_desc, .kind = k, .flags = GMM_ALLOC_DEDICATED), &block));
  TRY(gmm_ipc_export(context, block, &handle));
  TRY(gmm_ipc_import(context, &handle, NULL, &imports[0]));
  TRY(gmm_ipc_export_fd(context, block, GMM_FD_DEFAULT, &file));
  const bool has_file = result == GMM_OK;
  TRY(gmm_ipc_import_fd(context, file.fd, DESC(ipc_fd_desc, .type = file.type, .size = file.size), &imports[1]));
  if (has_file) close(file.fd);
  TRY(gmm_context_set_decommit(context, GMM_DECOMMIT_NEVER));
  TRY(gmm_heap_create(context, DESC(heap_desc, .kind = k, .minimum_extent = 16 * MIB), &heap));
  TRY(gmm_heap_reserve(heap, 16 * MIB));
  for (unsigned i = 0; i < 4; ++i) TRY(gmm_heap_alloc(heap, 4 * MIB, 0, 0, GMM_STREAM_DEFAULT, &parts[i]));
  for (unsigned i = 0; i < 4; i += 2) TRY(gmm_free(context, parts[i], GMM_STREAM_DEFAULT));
  TRY(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  TRY(gmm_heap_reserve(heap, 0));
  if (result == GMM_OK && k == GMM_KIND_VMM) {
    result = gmm_compact(context, NULL, DESC(compact_desc, .flags = GMM_COMPACT_LIVE), DESC(compact_info));
    if (result == GMM_UNCHANGED) result = GMM_OK;
  }
  TRY(gmm_tag_create(context, "filed", DESC(tag_desc, .contents = GMM_CONTENTS_FILE), &tag));
  TRY(gmm_alloc(context, 3 * MIB, DESC(alloc_desc, .kind = k, .tag = tag), &parts[0]));
  if (k == GMM_KIND_VMM) {
    TRY(gmm_pause(context, DESC(pause_desc, .tags = &tag, .tag_count = 1), NULL));
    TRY(gmm_backup_map(context, parts[0], 3 * MIB, &view));
    TRY(gmm_resume(context, DESC(pause_desc, .tags = &tag, .tag_count = 1), NULL));
  }
  for (unsigned i = 0; i < 2; ++i) UNDO(imports[i], gmm_ipc_close(context, imports[i]));
  UNDO(same, gmm_event_destroy(same));
  UNDO(event, gmm_event_destroy(event));
  UNDO(true, gmm_reset(context));
  UNDO(heap, gmm_heap_destroy(heap));
  UNDO(tag, gmm_tag_destroy(context, tag));
  if (is_traced) {
    const gmm_result traced = gmm_trace_end(context);  // says so when an event found no memory
    if (traced != GMM_OK) result = message_has("no host memory") ? GMM_ERROR_OUT_OF_HOST_MEMORY : traced;
  }
  return result;
}

// The allocations are of the caller's thread and of the lease's, which tries again.
static gmm_result little_of_a_lease(void) {
  gmm_lease *lease = NULL;
  gmm_ticket *ticket = NULL;
  gmm_tag tag = 0;
  void *block = NULL;
  gmm_lease_info info = {.struct_size = sizeof info};
  gmm_result result = gmm_tag_create(context, "leased", DESC(tag_desc, .contents = GMM_CONTENTS_HOST), &tag);
  TRY(gmm_alloc(context, 4 * MIB, DESC(alloc_desc, .kind = GMM_KIND_VMM, .tag = tag), &block));
  TRY(gmm_pause(context, NULL, NULL));
  TRY(gmm_lease_create(context, DESC(lease_desc, .name = "poor"), &lease));
  TRY(gmm_lease_offer(lease, tag, 1));
  TRY(gmm_lease_request(lease, NULL, &ticket));
  TRY(gmm_ticket_wait(ticket, GMM_FOREVER, NULL));
  if (lease != NULL) OK(gmm_lease_query(lease, &info));
  CHECK((info.state == GMM_LEASE_IN_USE) == (result == GMM_OK));
  if (result == GMM_OK) CHECK_EQUAL(state_of(block), GMM_STATE_ACTIVE);
  UNDO(ticket, gmm_ticket_destroy(ticket));
  UNDO(info.state == GMM_LEASE_IN_USE, gmm_lease_return(lease));
  UNDO(lease, gmm_lease_destroy(lease));
  UNDO(block, gmm_free(context, block, GMM_STREAM_DEFAULT));
  UNDO(tag, gmm_tag_destroy(context, tag));
  return result;
}

static void fail_each_allocation(gmm_result (*program)(void)) {
  begin();
  OK(program());
  const int64_t calls = counted.calls;
  end_counted();
  int failed = 0;
  gmm_context *const first = context;
  for (int64_t k = 0; k < calls + 2 && check_state.failures <= 10; ++k) {
    counted.calls = 0;
    counted.fail_at = k;
    gmm_result result = gmm_context_create(DESC(context_desc, .host_allocator = COUNTED), &context);
    if (result == GMM_OK) {
      result = program();
      counted.fail_at = -1;
      if (result != GMM_OK) OK(program());
      OK(gmm_context_release(context));
    }
    context = first;
    failed += result != GMM_OK;
    CHECK_MESSAGE(result == GMM_OK || result == GMM_ERROR_OUT_OF_HOST_MEMORY,
                  "host allocation %lld failed and gave %s: %s", (long long)k, gmm_result_name(result),
                  gmm_last_error_message());
    CHECK_MESSAGE(counted.bytes == 0 && counted.blocks == 0,
                  "host allocation %lld failed and %lld bytes in %lld blocks leaked", (long long)k,
                  (long long)counted.bytes, (long long)counted.blocks);
  }
  CHECK(failed > 0);
  CHECK_EQUAL(counted.wrong, 0);
}
CASE(every_host_allocation_may_fail) {
  fail_each_allocation(little_of_everything);
  if (backend_id() == GMM_BACKEND_SYCL) return;
  fail_each_allocation(little_of_the_rest);
  fail_each_allocation(little_of_a_lease);
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
  OK(little_of_everything());
  if (backend_id() != GMM_BACKEND_SYCL) OK(little_of_the_rest());
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

int main(void) {
  start_own_server();
  return run_cases();
}
