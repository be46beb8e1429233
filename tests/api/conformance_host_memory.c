// SPDX-License-Identifier: Apache-2.0
// gmm_host_allocator of context.h: all that a context keeps comes from it, with the alignment that it promises, and has
// returned when the context ends. A program that uses every family of functions says so.
#define _GNU_SOURCE  // dl_iterate_phdr()
#include <link.h>
#include <signal.h>
#include <sys/mman.h>

#include "../support/second_process.h"
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

static gmm_context *counted_context(void) {
  memset((void *)&counted, 0, sizeof counted);
  counted.fail_at = -1;
  gmm_context_desc desc = counted_desc();
  gmm_context *c = NULL;
  MUST(gmm_context_create(&desc, &c));
  return c;
}

static int32_t give_up(void *user, const gmm_oom_info *info) {
  (void)user;
  (void)info;
  return 0;
}
static int32_t go_on(void *user, uint64_t done, uint64_t total) {
  (void)user;
  (void)done;
  (void)total;
  return 0;
}
static int32_t swallow(void *user, const char *text, uint64_t size) {
  (void)user;
  (void)text;
  (void)size;
  return 0;
}
static void nothing(void *user) { (void)user; }

// The sizes of the blocks are 100 + i * i * step bytes.
enum { STEP = 5000 };
static void allocates_and_frees(gmm_context *c, gmm_stream stream, unsigned step) {
  for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_MANAGED; ++k) {
    if (!has_kind(k)) continue;
    void *blocks[BLOCKS] = {0};
    gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = k, .stream = stream};
    for (unsigned i = 0; i < BLOCKS; ++i) OK(gmm_alloc(c, 100 + i * i * step, &desc, &blocks[i]));
    for (unsigned i = 0; i < BLOCKS; i += 2) OK(gmm_free(c, blocks[i], stream));
    desc.alignment = MIB;
    desc.flags = GMM_ALLOC_ZERO;
    void *aligned = NULL;
    OK(gmm_alloc(c, 5 * MIB, &desc, &aligned));
    OK(gmm_free(c, aligned, stream));
    desc.flags = GMM_ALLOC_DEDICATED;
    desc.alignment = 0;
    OK(gmm_alloc(c, 3 * MIB, &desc, &aligned));
    OK(gmm_free(c, aligned, GMM_STREAM_DEFAULT));
    for (unsigned i = 1; i < BLOCKS; i += 2) OK(gmm_free(c, blocks[i], i % 4 == 1 ? stream : GMM_STREAM_PER_THREAD));
  }
  gmm_heap_desc desc = {.struct_size = sizeof desc, .limit = 64 * MIB};
  gmm_heap *heap = NULL;
  void *block = NULL;
  OK(gmm_heap_create(c, &desc, &heap));
  OK(gmm_heap_alloc(heap, 5000, 0, 0, stream, &block));
  CHECK(gmm_heap_alloc(heap, 128 * MIB, 0, 0, stream, &(void *){NULL}) < 0);
  OK(gmm_free(c, block, stream));
  OK(gmm_heap_destroy(heap));
}

static void uses_streams(gmm_context *c) {
  gmm_stream first = 0, second = 0;
  gmm_event *event = NULL;
  OK(gmm_stream_create(c, NULL, &first));
  OK(gmm_stream_create(c, NULL, &second));
  OK(gmm_event_create(c, NULL, &event));
  allocates_and_frees(c, first, STEP);
  void *block = NULL;
  OK(gmm_alloc(c, MIB, NULL, &block));
  OK(gmm_fill(c, block, 1, MIB, first));
  OK(gmm_copy(c, block, (char *)block + MIB / 2, MIB / 2, first));
  OK(gmm_stream_call(c, first, nothing, NULL));
  OK(gmm_event_record(event, 0, first));
  OK(gmm_stream_wait_event(c, second, event, 0));
  OK(gmm_record_use(c, block, second));
  OK(gmm_free(c, block, first));
  OK(gmm_event_synchronize(event, 0, GMM_FOREVER));
  OK(gmm_event_destroy(event));
  OK(gmm_stream_forget(c, second));
  OK(gmm_stream_destroy(c, second));
  OK(gmm_stream_destroy(c, first));
}

static void pins_and_moves(gmm_context *c) {
  void *own = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(own != MAP_FAILED);
  if (gmm_pin(c, own, 65536, NULL, NULL) == GMM_OK) OK(gmm_unpin(c, own));
  munmap(own, MIB);
  if (!has_kind(GMM_KIND_MANAGED)) return;
  gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = GMM_KIND_MANAGED};
  void *block = NULL;
  OK(gmm_alloc(c, MIB, &desc, &block));
  OK(gmm_advise(c, block, 0, GMM_ADVISE_SET_READ_MOSTLY, 0));
  CHECK(gmm_prefetch(c, block, 0, GMM_DEVICE_HOST, GMM_STREAM_DEFAULT) <= 0);  // some devices cannot
  CHECK(gmm_move(c, block, GMM_DEVICE_HOST, NULL) <= 0);
  OK(gmm_free(c, block, GMM_STREAM_DEFAULT));
}

static void pauses(gmm_context *c, gmm_contents contents, uint32_t flags, const char *name) {
  gmm_tag_desc settings = {.struct_size = sizeof settings, .contents = contents, .flags = flags};
  gmm_tag tag = 0;
  OK(gmm_tag_create(c, name, &settings, &tag));
  OK(gmm_tag_push(c, tag));
  gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = GMM_KIND_VMM};
  unsigned char *block = NULL;
  OK(gmm_alloc(c, 5 * MIB + 100, &desc, (void **)(void *)&block));
  OK(gmm_tag_pop(c));
  REQUIRE(block != NULL);
  OK(gmm_fill(c, block, 7, 5 * MIB, GMM_STREAM_DEFAULT));
  gmm_pause_desc pause = {.struct_size = sizeof pause, .tags = &tag, .tag_count = 1, .progress = {go_on, NULL}};
  OK(gmm_pause(c, &pause, NULL));
  unsigned char read = 0;
  const void *view = NULL;
  OK(gmm_backup_read(c, block + MIB, 1, &read));
  OK(gmm_backup_map(c, block, 5 * MIB, &view));
  CHECK(read == 7 && view != NULL && ((const unsigned char *)view)[5 * MIB - 1] == 7);
  OK(gmm_resume_range(c, block, 1, NULL));
  CHECK(gmm_resume(c, &pause, NULL) >= 0);
  gmm_ticket *ticket = NULL;
  OK(gmm_pause_async(c, &pause, &ticket));
  OK(gmm_ticket_wait(ticket, GMM_FOREVER, NULL));
  OK(gmm_ticket_destroy(ticket));
  OK(gmm_backup_map(c, block, 5 * MIB, &view));  // stays mapped: the free ends it
  OK(gmm_free(c, block, GMM_STREAM_DEFAULT));
  CHECK(gmm_resume(c, &pause, NULL) >= 0);
}

static void pauses_in_every_way(gmm_context *c) {
  if ((device_info.capabilities & GMM_DEVICE_CAN_PAUSE) == 0) return;
  gmm_backup_desc backup = {.struct_size = sizeof backup, .threads = 2};
  OK(gmm_backup_configure(c, &backup));
  OK(gmm_backup_reserve(c, 0, MIB));
  pauses(c, GMM_CONTENTS_HOST, 0, "host");
  pauses(c, GMM_CONTENTS_HOST, GMM_TAG_READ_ONLY, "read only");
  pauses(c, GMM_CONTENTS_FILE, 0, "file");
  backup.flags = GMM_BACKUP_NO_ARENA;
  OK(gmm_backup_configure(c, &backup));
  pauses(c, GMM_CONTENTS_HOST, 0, "pageable");
}

static void counts_and_traces(gmm_context *c) {
  gmm_scope_desc scope = {.struct_size = sizeof scope, .flags = GMM_SCOPE_DEVICE};
  gmm_stats_info sums = {.struct_size = sizeof sums};
  void *block = NULL;
  OK(gmm_context_set_oom_handler(c, give_up, NULL));
  OK(gmm_limit_set(c, &scope, 64 * MIB));
  CHECK(gmm_alloc(c, 128 * MIB, NULL, &block) < 0);
  OK(gmm_limit_set(c, &scope, GMM_NO_LIMIT));
  OK(gmm_stats_query(c, &scope, &sums));
  OK(gmm_trace_begin(c, "/dev/null"));
  OK(gmm_alloc(c, MIB, NULL, &block));
  gmm_snapshot *snapshot = NULL;
  OK(gmm_snapshot_create(c, NULL, &snapshot));
  OK(gmm_snapshot_write(snapshot, swallow, NULL));
  OK(gmm_snapshot_destroy(snapshot));
  OK(gmm_free(c, block, GMM_STREAM_DEFAULT));
  OK(gmm_trace_end(c));
  OK(gmm_defer_begin(c));
  CHECK(gmm_trim(c, NULL, NULL) == GMM_UNCHANGED);
  OK(gmm_defer_end(c));
  OK(gmm_context_set_decommit(c, 1));
  OK(gmm_alloc(c, MIB, NULL, &block));
  OK(gmm_context_set_decommit(c, GMM_DECOMMIT_NEVER));
  OK(gmm_reset(c));
}

// The k-th call of the host allocator fails: the block keeps the name that it had, and the call works when it is made
// again.
CASE(a_name_without_memory_is_none) {
  gmm_context *c = counted_context();
  unsigned failures = 0;
  for (unsigned i = 0; i < 100; ++i) {
    void *block = NULL;
    char name[16];
    MUST(gmm_alloc(c, 1000, NULL, &block));
    snprintf(name, sizeof name, "block %u", i);
    for (unsigned k = 0;; ++k) {
      counted.fail_at = counted.calls + k;
      const gmm_result result = gmm_name(c, block, name);
      counted.fail_at = -1;
      if (result == GMM_OK) break;
      ++failures;
      CHECK_EQUAL(result, GMM_ERROR_OUT_OF_HOST_MEMORY);
      gmm_snapshot *snapshot = NULL;
      unsigned named = 0;
      MUST(gmm_snapshot_create(c, NULL, &snapshot));
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
  OK(gmm_context_release(c));  // reports what is live
  CHECK_EQUAL(counted.bytes, 0);
  CHECK_EQUAL(counted.wrong, 0);
}

// The report of leaks does without memory, too: it has the sum.
static void hear(void *user, gmm_log_level level, const char *message) {
  if (level == GMM_LOG_WARNING) snprintf(user, 256, "%s", message);
}
CASE(a_report_without_memory_has_the_sum) {
  memset((void *)&counted, 0, sizeof counted);
  counted.fail_at = -1;
  char last[256] = "";
  gmm_context_desc desc = counted_desc();
  desc.log = (gmm_log_callback){hear, last};
  for (unsigned k = 0; k < 3; ++k) {
    gmm_context *c = NULL;
    MUST(gmm_context_create(&desc, &c));
    for (unsigned i = 0; i < 5; ++i) MUST(gmm_alloc(c, 1000, NULL, &(void *){NULL}));
    counted.fail_at = counted.calls + k;
    OK(gmm_context_release(c));
    counted.fail_at = -1;
    CHECK_MESSAGE(strstr(last, "5 blocks of 5000 bytes") != NULL, "%s", last);
    CHECK_EQUAL(counted.bytes, 0);
  }
  CHECK_EQUAL(counted.wrong, 0);
}

// --- Another process, and another thread --------------------------------------------------------------------------

// Exports a block and an event, and ends once the other side is done with them.
static void exports(void) {
  gmm_context *c = counted_context();
  gmm_alloc_desc alloc = {.struct_size = sizeof alloc, .kind = kind};
  void *block = NULL;
  gmm_event *event = NULL;
  gmm_ipc_handle handles[2];
  char done = 0;
  MUST(gmm_alloc(c, MIB, &alloc, &block));
  MUST(
      gmm_event_create(c, &(gmm_event_desc){.struct_size = sizeof(gmm_event_desc), .flags = GMM_EVENT_SHARED}, &event));
  MUST(gmm_ipc_export(c, block, &handles[0]));
  MUST(gmm_event_export(event, &handles[1]));
  REQUIRE(send_bytes(3, handles, sizeof handles) && receive_bytes(0, &done, 1));
  OK(gmm_event_destroy(event));
  OK(gmm_free(c, block, GMM_STREAM_DEFAULT));
  OK(gmm_context_release(c));
  CHECK_EQUAL(counted.bytes, 0);
  CHECK_EQUAL(counted.wrong, 0);
}

static void imports(gmm_context *c) {
  second_process other;
  const char *words[] = {has_kind(GMM_KIND_VMM) ? "2" : "3"};
  gmm_ipc_handle handles[2];
  REQUIRE(second_start(&other, words, 1));
  if (receive_bytes(other.from, handles, sizeof handles)) {
    void *block = NULL;
    gmm_event *event = NULL;
    OK(gmm_ipc_import(c, &handles[0], NULL, &block));
    OK(gmm_event_import(c, &handles[1], NULL, &event));
    OK(gmm_event_destroy(event));
    OK(gmm_ipc_close(c, block));
    send_bytes(other.to, "d", 1);
  } else {
    CHECK_MESSAGE(false, "the second process sent nothing");
  }
  CHECK_EQUAL(second_wait(&other), 0);
}

typedef struct elsewhere {
  gmm_context *c;
  pthread_barrier_t used, ended;
} elsewhere;

// Uses the context, and outlives it.
static void *uses_and_stays(void *argument) {
  elsewhere *e = argument;
  allocates_and_frees(e->c, GMM_STREAM_DEFAULT, STEP);
  gmm_tag tag = 0;
  OK(gmm_tag_create(e->c, "elsewhere", NULL, &tag));
  OK(gmm_tag_push(e->c, tag));
  pthread_barrier_wait(&e->used);
  pthread_barrier_wait(&e->ended);
  return NULL;
}
static void *uses_and_ends(void *argument) {
  allocates_and_frees(((elsewhere *)argument)->c, GMM_STREAM_DEFAULT, STEP);
  return NULL;
}

CASE(every_byte_is_counted) {
  memset((void *)&counted, 0, sizeof counted);
  counted.fail_at = -1;
#if SEES_MALLOC
  dl_iterate_phdr(find_library, NULL);
  REQUIRE(library_end > library_begin);
  const uint64_t before = library_bytes;
#endif
  gmm_context_desc desc = counted_desc();
  elsewhere e = {0};
  pthread_t staying, ending;
  MUST(gmm_context_create(&desc, &e.c));
  CHECK(counted.bytes > 0);
  uses_streams(e.c);
  pins_and_moves(e.c);
  pauses_in_every_way(e.c);
  if (backend_id() != GMM_BACKEND_SYCL) imports(e.c);
  counts_and_traces(e.c);
  pthread_barrier_init(&e.used, NULL, 2);
  pthread_barrier_init(&e.ended, NULL, 2);
  REQUIRE(pthread_create(&staying, NULL, uses_and_stays, &e) == 0);
  pthread_barrier_wait(&e.used);
  REQUIRE(pthread_create(&ending, NULL, uses_and_ends, &e) == 0);
  pthread_join(ending, NULL);
  void *kept = NULL;
  OK(gmm_alloc(e.c, MIB, NULL, &kept));  // goes with the context
  OK(gmm_context_release(e.c));
  // Now, although a thread lives that used the context.
  CHECK_EQUAL(counted.bytes, 0);
  CHECK_EQUAL(counted.blocks, 0);
  pthread_barrier_wait(&e.ended);
  pthread_join(staying, NULL);
  CHECK_EQUAL(counted.bytes, 0);
  CHECK_EQUAL(counted.blocks, 0);
  CHECK_EQUAL(counted.wrong, 0);
#if SEES_MALLOC
  // Of this thread and the two others, for all contexts.
  const uint64_t taken = library_bytes - before;
  CHECK_MESSAGE(taken <= 3 * 8192, "the library took %llu bytes by malloc", (unsigned long long)taken);
#endif
  pthread_barrier_destroy(&e.used);
  pthread_barrier_destroy(&e.ended);
}

// A thread that used many contexts keeps nothing of those that ended.
CASE(contexts_leave_nothing_to_the_thread) {
#if SEES_MALLOC
  memset((void *)&counted, 0, sizeof counted);
  counted.fail_at = -1;
  gmm_context_desc desc = counted_desc();
  uint64_t before = 0;
  for (unsigned round = 0; round < 20; ++round) {
    gmm_context *c = NULL;
    gmm_tag tag = 0;
    MUST(gmm_context_create(&desc, &c));
    // Little memory, since the system locks the pages of one kind, and large blocks come after the others all the same.
    allocates_and_frees(c, GMM_STREAM_DEFAULT, STEP / 10);
    OK(gmm_tag_create(c, "round", NULL, &tag));
    OK(gmm_tag_push(c, tag));
    OK(gmm_tag_pop(c));
    OK(gmm_context_release(c));
    if (round == 0) before = library_bytes;
  }
  CHECK_EQUAL(library_bytes - before, 0);
  CHECK_EQUAL(counted.bytes, 0);
  CHECK_EQUAL(counted.wrong, 0);
#else
  SKIP("a sanitizer has its own malloc");
#endif
}

// Calls of the backend that the free of a block makes which a further stream used so often.
static uint64_t calls_of_a_free(gmm_context *c, gmm_stream stream, uint32_t uses) {
  void *block = NULL;
  OK(gmm_alloc(c, 1000, NULL, &block));
  for (uint32_t i = 0; i < uses; ++i) OK(gmm_record_use(c, (char *)block + i % 1000, stream));
  gmm_stats_info info = {.struct_size = sizeof info};
  OK(gmm_stats_query(c, NULL, &info));
  const uint64_t before = info.backend_calls;
  OK(gmm_free(c, block, GMM_STREAM_DEFAULT));
  OK(gmm_stats_query(c, NULL, &info));
  return info.backend_calls - before;
}

CASE(a_use_takes_memory_once) {
  enum { TIMES = 20000 };
  gmm_context *c = counted_context();
  gmm_stream stream = NULL;
  void *block = NULL;
  MUST(gmm_stream_create(c, STREAM_ON(0), &stream));
  MUST(gmm_alloc(c, 1000, NULL, &block));
  OK(gmm_record_use(c, block, stream));
  OK(gmm_record_use(c, block, GMM_STREAM_PER_THREAD));
  const uint64_t once = calls_of_a_free(c, stream, 1);
  const int64_t bytes = counted.bytes, calls = counted.calls;
  for (unsigned i = 0; i < TIMES; ++i) {
    OK(gmm_record_use(c, block, stream));
    OK(gmm_record_use(c, block, GMM_STREAM_PER_THREAD));
  }
  CHECK_EQUAL(counted.bytes - bytes, 0);
  CHECK_EQUAL(counted.calls - calls, 0);
  CHECK_EQUAL(calls_of_a_free(c, stream, TIMES), once);
  OK(gmm_free(c, block, GMM_STREAM_DEFAULT));
  OK(gmm_stream_destroy(c, stream));
  OK(gmm_context_release(c));
  CHECK_EQUAL(counted.bytes, 0);
}

// One cycle of a program that makes streams as it needs them. Every second one frees once more when the stream is gone,
// as a garbage collector does.
static void uses_a_stream(gmm_context *c, void *shared, bool late) {
  gmm_stream stream = NULL;
  MUST(gmm_stream_create(c, STREAM_ON(0), &stream));
  for (uint64_t size = 1000; size <= 2 * MIB; size *= 4) {
    const gmm_alloc_desc desc = {.struct_size = sizeof desc, .stream = stream};
    void *block = NULL;
    OK(gmm_alloc(c, size, &desc, &block));
    OK(gmm_free(c, block, stream));
  }
  OK(gmm_record_use(c, shared, stream));
  void *block = NULL;
  OK(gmm_alloc(c, 1000, NULL, &block));
  OK(gmm_stream_destroy(c, stream));
  OK(gmm_free(c, block, late ? stream : GMM_STREAM_DEFAULT));
}

CASE(destroyed_streams_leave_no_memory) {
  gmm_context *c = counted_context();
  void *shared = NULL;
  MUST(gmm_alloc(c, 1000, NULL, &shared));
  for (unsigned late = 0; late < 2; ++late) {
    int64_t bytes = 0, blocks = 0;
    for (unsigned i = 0; i < 300; ++i) {
      uses_a_stream(c, shared, late);
      if (late && i % 20 == 19) OK(gmm_trim(c, NULL, NULL));
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
  OK(gmm_free(c, shared, GMM_STREAM_DEFAULT));
  OK(gmm_context_release(c));
  CHECK_EQUAL(counted.bytes, 0);
  CHECK_EQUAL(counted.wrong, 0);
}

int main(int count, char **words) {
  if (count == 3 && strcmp(words[1], "--second") == 0) {
    // The other side reads stdout; what the checks say goes to stderr.
    kind = (gmm_kind)atoi(words[2]);
    dup2(1, 3);
    dup2(2, 1);
    RUN(exports);
    return finish_clean();
  }
  signal(SIGPIPE, SIG_IGN);
  return run_cases();
}
