// SPDX-License-Identifier: Apache-2.0
// Random histories of a context. Blocks of all kinds, sizes, streams and tags are taken, written, read, shared and
// freed beside pauses, resumes, trims, compactions and limits.
//
//  stress [SEED [SECONDS [WORKERS]]]      many threads, for the thread sanitizer; defaults: from the clock, 10, 4
//  stress SEED HISTORIES 0                one thread, whose steps a seed repeats
//
// Threads: between rounds all stand still. On the fake driver, driver calls fail in every third round. Every
// fifth round frees everything, and nothing may be left.
// One thread: there are two devices, streams come and go and are captured, memory moves, and calls of the host's
// allocator fail, too. Any call may fail.
//
// At rest gmm's counters and the test's own must agree, and each block must hold its contents. Every read and write of
// a block goes through the block's stream, so memory that the library gives out too early shows as wrong contents.
#include "../api/counted_allocator.h"
#include "../api/fake_driver.h"
#include "../support/cuda_graph.h"

enum { SLOTS = 40, EXCHANGE = 128, STREAMS = 4, MOST_WORKERS = 16, ROUND = 100, EDGE = 64, STUCK_AFTER_S = 240 };
enum { STEPS = 250, MANY_STREAMS = 70 };  // of a history; more streams than a span has bits
enum { TAG_DEFAULT, TAG_HOST, TAG_FILE, TAG_DROP, TAG_LIMITED, TAGS };

typedef struct block {
  char *memory;
  uint64_t size;
  gmm_kind kind;
  unsigned tag;  // index into tags
  gmm_stream stream;
  gmm_device device;
  bool of_graph;                  // taken on a captured stream
  bool is_born_paused, is_taken;  // GMM_ALLOC_PAUSED; all of it has memory, or had it when its tag was paused
  uint32_t seed;                  // of its first and last bytes; 0: they hold anything
  unsigned drops;                 // of its tag when it was written
} block;

typedef struct actor {
  pthread_t thread;
  void (*round)(struct actor *self);
  uint64_t random;
  uint64_t allocations, frees;
  block held[SLOTS];
} actor;

static actor actors[MOST_WORKERS + 8];
static unsigned actor_count, worker_count = 4;
static _Thread_local actor *self;
static struct {
  gmm_stream stream;
  gmm_device device;
} streams[MANY_STREAMS];
static unsigned stream_count = STREAMS;
static gmm_tag tags[TAGS];
static bool alone;            // one thread: any call may fail
static bool short_of_memory;  // the device is small: OUT_OF_MEMORY may come at any time
static atomic_int faults;     // driver calls fail at random now
static atomic_uint working;   // workers that are not done with the round
static atomic_int over;
static atomic_ullong pauses, threads_ended, failed_calls;
static pthread_barrier_t round_begins, round_ends;
// A thread holds the tag's lock for reading while it touches contents, and a pause holds it for writing. A resume holds
// nothing: a thread that touches VMM memory asks gmm_resume_wait() first.
static pthread_rwlock_t touching[TAGS];
static unsigned drops[TAGS];  // how often a pause dropped contents
static struct {
  pthread_mutex_t lock;
  block blocks[EXCHANGE];
  unsigned count;
} exchange = {.lock = PTHREAD_MUTEX_INITIALIZER};
static gmm_stream captured_stream;  // NULL: none
static captured graph;              // of the capture before

// splitmix64: every seed gives a good stream.
static uint64_t next_random(void) {
  uint64_t z = self->random += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}
static uint64_t below(uint64_t bound) { return next_random() % bound; }
static bool one_in(uint64_t n) { return below(n) == 0; }
static bool round_goes_on(void) { return atomic_load(&working) != 0 && atomic_load(&check_state.failures) == 0; }

// Whether the test has brought the failure about itself.
static bool expected(gmm_result result) {
  if (alone) return true;
  if (result == GMM_ERROR_OUT_OF_MEMORY && short_of_memory) return true;
  return atomic_load(&faults) && (result == GMM_ERROR_DRIVER || result == GMM_ERROR_SYSTEM ||
                                  result == GMM_ERROR_OUT_OF_MEMORY || result == GMM_ERROR_OUT_OF_HOST_MEMORY);
}
// Whether a call succeeded. It may fail only by an injected fault, or with `also`.
static bool did(int line, const char *what, gmm_result result, gmm_result also) {
  if (result == GMM_OK) return true;
  if (result != also && !expected(result))
    check_failed(__FILE__, line, "%s gave %s: %s", what, gmm_result_name(result), gmm_last_error_message());
  return false;
}
#define DO(call) did(__LINE__, #call, call, GMM_OK)
#define DO_OR(call, also) did(__LINE__, #call, call, also)
// Calls again until it succeeds: the faults pass.
#define SURELY(call)                                                                                                 \
  do {                                                                                                               \
    int tries = 0;                                                                                                   \
    while (!DO(call) && atomic_load(&faults) && ++tries < 1000) sleep_ms(0);                                         \
    if (tries >= 1000) check_failed(__FILE__, __LINE__, "%s does not succeed: %s", #call, gmm_last_error_message()); \
  } while (0)

// --- Blocks ------------------------------------------------------------------------------------------------------
static gmm_stream any_stream(void) {
  const uint64_t pick = below(stream_count + 2);
  return pick < stream_count ? streams[pick].stream : pick == stream_count ? GMM_STREAM_DEFAULT : GMM_STREAM_PER_THREAD;
}
// A default stream means that of the block's device.
static gmm_device device_of(gmm_stream stream, gmm_device otherwise) {
  for (unsigned i = 0; i < stream_count; ++i)
    if (streams[i].stream == stream) return streams[i].device;
  return otherwise;
}
static bool is_captured(gmm_stream stream) { return captured_stream != NULL && stream == captured_stream; }
static void finish(gmm_stream stream) {
  if (!is_captured(stream)) SURELY(gmm_stream_synchronize(context, stream));
}
static gmm_kind any_kind(void) {
  gmm_kind of = GMM_KIND_VMM;
  if (!one_in(3)) of = GMM_KIND_DEVICE + (gmm_kind)below(4);
  return has_kind(of) ? of : GMM_KIND_DEVICE;
}
static uint64_t any_size(void) {
  if (alone && one_in(2)) return (1 + below(one_in(4) ? 40 : 12)) * MIB;  // past the caches of threads
  static const uint64_t most[] = {256, 256, 4096, 4096, 4096, 65536, 65536, MIB, 6 * MIB};
  return 1 + below(one_in(200) ? 64 * MIB : most[below(sizeof most / sizeof *most)]);
}

// In the order of the block's stream, or not.
static gmm_result change_pages(block *b, bool pauses, uint32_t flags) {
  if (one_in(2) && !is_captured(b->stream)) flags |= GMM_PAUSE_ORDERED;
  return (pauses ? gmm_pause : gmm_resume)(context,
                                           DESC(pause_desc, .flags = flags, .ranges = &(gmm_range){b->memory, b->size},
                                                .range_count = 1, .stream = b->stream),
                                           NULL);
}

// With the tag's lock. True when the contents may be used.
static bool look_at(block *b) {
  gmm_pointer_info info = {.struct_size = sizeof info};
  if (!DO(gmm_query(context, b->memory + below(b->size), &info))) return false;
  if (b->of_graph || is_captured(b->stream)) return false;
  if (info.base != b->memory || info.size != b->size || info.kind != b->kind || info.tag != tags[b->tag])
    check_failed(__FILE__, __LINE__, "%p of %llu bytes, kind %u: query says %p, %llu, %u", (void *)b->memory,
                 (unsigned long long)b->size, b->kind, info.base, (unsigned long long)info.size, info.kind);
  if (b->kind != GMM_KIND_VMM) return true;
  if (info.state == GMM_STATE_PAUSED && one_in(3)) {
    const gmm_result ahead = one_in(4) ? change_pages(b, false, GMM_RESUME_PREPARE) : GMM_UNCHANGED;
    if (ahead != GMM_UNCHANGED) DO_OR(ahead, GMM_ERROR_LIMIT_EXCEEDED);
    const gmm_result result = change_pages(b, false, 0);
    if (result == GMM_UNCHANGED || DO_OR(result, GMM_ERROR_LIMIT_EXCEEDED)) b->is_taken = true;
  }
  const gmm_result ready = gmm_resume_wait(context, b->memory, b->size, 0);
  return ready != GMM_ERROR_NOT_READY && DO(ready);
}

static uint64_t edges(const block *b, uint64_t *last) {
  *last = b->size > EDGE ? b->size - EDGE : 0;
  return b->size < EDGE ? b->size : EDGE;
}
static void write_block(block *b) {
  uint8_t bytes[2][EDGE];
  uint64_t last = 0;
  const uint64_t length = edges(b, &last);
  pthread_rwlock_rdlock(&touching[b->tag]);
  if (look_at(b)) {
    const uint32_t seed = (uint32_t)next_random() | 1;
    for (uint64_t i = 0; i < length; ++i) {
      bytes[0][i] = pattern_at(i, seed);
      bytes[1][i] = pattern_at(last + i, seed);
    }
    const bool done = DO(gmm_copy(context, b->memory, bytes[0], length, b->stream)) &&
                      DO(gmm_copy(context, b->memory + last, bytes[1], length, b->stream));
    finish(b->stream);
    b->seed = done ? seed : 0;
    b->drops = drops[b->tag];
  }
  pthread_rwlock_unlock(&touching[b->tag]);
}
static void check_block(block *b) {
  uint8_t bytes[2][EDGE];
  uint64_t last = 0;
  const uint64_t length = edges(b, &last);
  pthread_rwlock_rdlock(&touching[b->tag]);
  const bool readable = look_at(b);
  if (b->kind == GMM_KIND_VMM && drops[b->tag] != b->drops) b->seed = 0;
  if (b->seed != 0) {
    bool done = false;
    if (readable) {
      done = DO(gmm_copy(context, bytes[0], b->memory, length, b->stream)) &&
             DO(gmm_copy(context, bytes[1], b->memory + last, length, b->stream));
      finish(b->stream);
    } else if (!b->of_graph && state_of(b->memory) == GMM_STATE_PAUSED) {
      done = gmm_backup_read(context, b->memory, length, bytes[0]) == GMM_OK &&
             gmm_backup_read(context, b->memory + last, length, bytes[1]) == GMM_OK;
    }
    for (uint64_t i = 0; i < length && done; ++i) {
      if (bytes[0][i] == pattern_at(i, b->seed) && bytes[1][i] == pattern_at(last + i, b->seed)) continue;
      check_failed(__FILE__, __LINE__, "%p of %llu bytes, %s, tag %u: byte %llu of an end is wrong", (void *)b->memory,
                   (unsigned long long)b->size, kind_name(b->kind), b->tag, (unsigned long long)i);
      break;
    }
  }
  pthread_rwlock_unlock(&touching[b->tag]);
}

// `heap`: NULL, or the heap of the block's kind and tag that it comes from.
static bool take(block *b, gmm_heap *heap) {
  if (heap == NULL) b->device = device_of(b->stream, 0);
  gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = b->kind, .device = b->device, .tag = tags[b->tag]};
  desc.stream = b->stream;
  void *memory = NULL;
  b->size = any_size();
  if (one_in(20)) desc.flags = b->size > 100000 ? GMM_ALLOC_DEDICATED : GMM_ALLOC_ZERO;
  if (alone && b->kind == GMM_KIND_VMM && one_in(8)) desc.flags = one_in(2) ? GMM_ALLOC_DEDICATED : GMM_ALLOC_COMM;
  if (heap == NULL && b->kind == GMM_KIND_VMM && !is_captured(b->stream) && one_in(8)) desc.flags = GMM_ALLOC_PAUSED;
  b->is_born_paused = desc.flags == GMM_ALLOC_PAUSED;
  b->is_taken = false;
  if (one_in(8)) desc.alignment = (uint64_t)1 << below(22);
  pthread_rwlock_rdlock(&touching[b->tag]);
  b->drops = drops[b->tag];
  pthread_rwlock_unlock(&touching[b->tag]);
  gmm_result result = GMM_ERROR_NOT_READY;
  if (one_in(6))
    result = heap != NULL ? gmm_heap_try_alloc(heap, b->size, desc.alignment, 0, b->stream, &memory)
                          : gmm_try_alloc(context, b->size, &desc, &memory);
  if (result == GMM_ERROR_NOT_READY)
    result = heap != NULL ? gmm_heap_alloc(heap, b->size, desc.alignment, 0, b->stream, &memory)
                          : gmm_alloc(context, b->size, &desc, &memory);
  if (!DO_OR(result, b->tag == TAG_LIMITED ? GMM_ERROR_LIMIT_EXCEEDED : GMM_OK)) return false;
  CHECK(desc.alignment == 0 || (uintptr_t)memory % desc.alignment == 0);
  b->memory = memory;
  b->seed = 0;
  b->of_graph = is_captured(b->stream);
  ++self->allocations;
  if (one_in(8)) DO(gmm_name(context, memory, "a block"));
  write_block(b);
  return true;
}

static void be_slow(void *user) {
  const struct timespec time = {.tv_nsec = (long)(uintptr_t)user};
  nanosleep(&time, NULL);
}
// Work that is still queued when the block is freed: the next owner of the memory must not see it.
static void leave_work(block *b, gmm_stream stream) {
  if (is_captured(stream) || device_of(stream, b->device) != b->device) return;
  pthread_rwlock_rdlock(&touching[b->tag]);
  if (look_at(b)) {
    const uint64_t nanoseconds = alone ? 2000000 : 20000 + below(400000);
    if (one_in(3)) DO(gmm_stream_call(context, stream, be_slow, (void *)(uintptr_t)nanoseconds));
    DO(gmm_fill(context, b->memory, 0xdd, b->size < MIB ? b->size : MIB, stream));
  }
  pthread_rwlock_unlock(&touching[b->tag]);
}
static void give(block *b) {
  check_block(b);
  gmm_stream stream = one_in(4) ? any_stream() : b->stream;
  if (b->of_graph || is_captured(b->stream) || is_captured(stream)) stream = b->stream;
  if (stream != b->stream) finish(b->stream);
  if (one_in(4)) {
    leave_work(b, stream);
  } else if (one_in(8)) {
    finish(b->stream);  // the order of two streams is the program's business
    const gmm_stream other = any_stream();
    if (!is_captured(other) && DO(gmm_record_use(context, b->memory, other))) leave_work(b, other);
  }
  if (!one_in(6) || gmm_try_free(context, b->memory, stream) != GMM_OK) SURELY(gmm_free(context, b->memory, stream));
  ++self->frees;
  b->memory = NULL;
}

// --- Workers -----------------------------------------------------------------------------------------------------
static void swap_blocks(block *b) {
  pthread_mutex_lock(&exchange.lock);
  if (b->memory != NULL && exchange.count < EXCHANGE) {
    // Another thread cannot name this one's stream.
    if (b->stream == GMM_STREAM_PER_THREAD) b->stream = GMM_STREAM_DEFAULT;
    exchange.blocks[exchange.count++] = *b;
    b->memory = NULL;
  } else if (b->memory == NULL && exchange.count > 0) {
    const unsigned i = (unsigned)below(exchange.count);
    *b = exchange.blocks[i];
    exchange.blocks[i] = exchange.blocks[--exchange.count];
  }
  pthread_mutex_unlock(&exchange.lock);
}

// A heap that one thread makes, uses and ends, while others pause, trim, compact and count it. One thread does that
// itself, by steps in between.
static void one_step(void);
static void capture_step(void);
static void use_a_heap(void) {
  enum { COUNT = 12 };
  block blocks[COUNT] = {{0}};
  gmm_heap *heap = NULL;
  const unsigned tag = (unsigned)below(TAGS);
  gmm_heap_desc desc = {.struct_size = sizeof desc, .kind = any_kind(), .tag = tags[tag]};
  if (alone) {
    desc.device = (gmm_device)below(2);
    desc.minimum_extent = one_in(2) ? 0 : (1 + below(40)) * MIB;
    desc.limit = one_in(3) ? (16 + below(100)) * MIB : 0;
    if (desc.kind != GMM_KIND_DEVICE && one_in(3)) desc.peer_devices = 3;
    if (desc.kind == GMM_KIND_VMM && one_in(3)) desc.flags = GMM_HEAP_EXPORTABLE;
  }
  if (!DO(gmm_heap_create(context, &desc, &heap))) return;
  if (desc.kind == GMM_KIND_VMM && one_in(2))
    DO_OR(gmm_heap_reserve(heap, (1 + below(6)) * 4 * MIB), tag == TAG_LIMITED ? GMM_ERROR_LIMIT_EXCEEDED : GMM_OK);
  for (unsigned i = 0; i < COUNT; ++i) {
    gmm_stream stream = any_stream();
    if (device_of(stream, desc.device) != desc.device) stream = GMM_STREAM_DEFAULT;
    blocks[i] = (block){.kind = desc.kind, .tag = tag, .stream = stream, .device = desc.device};
    take(&blocks[i], heap);
  }
  for (unsigned i = 0; alone && i < 10; ++i) one_step();
  for (unsigned i = 0; i < COUNT; ++i)
    if (blocks[i].memory != NULL) give(&blocks[i]);
  if (captured_stream != NULL) capture_step();  // the end of a heap waits for the device
  SURELY(gmm_heap_destroy(heap));
}

// The process itself imports, and must find its own address.
static void share(block *b) {
  gmm_ipc_handle handle;
  void *imported = NULL;
  pthread_rwlock_rdlock(&touching[b->tag]);  // not while it pauses
  const gmm_result result = gmm_ipc_export(context, b->memory, &handle);
  if (result != GMM_ERROR_INVALID_KIND && result != GMM_ERROR_NOT_SUPPORTED && DO_OR(result, GMM_ERROR_PAUSED) &&
      DO(gmm_ipc_import(context, &handle, NULL, &imported))) {
    CHECK(imported == b->memory);
    SURELY(gmm_ipc_close(context, imported));
  }
  pthread_rwlock_unlock(&touching[b->tag]);
}

// The owner of a block of GMM_ALLOC_PAUSED gives its pages back. BUSY as in judge().
static void give_pages_back(block *b) {
  const gmm_result result = change_pages(b, true, GMM_PAUSE_DROP);
  if (result != GMM_UNCHANGED && !DO_OR(result, GMM_ERROR_BUSY)) return;
  b->seed = 0;
  b->is_taken = false;
}

static void use_a_block(void) {
  block *b = &self->held[below(SLOTS)];
  const uint64_t pick = below(1000);
  if (pick < 150 && !alone) {
    swap_blocks(b);
  } else if (b->memory == NULL) {
    *b = (block){.kind = any_kind(), .tag = (unsigned)below(TAGS), .stream = any_stream()};
    take(b, NULL);
  } else if (pick < 170) {
    share(b);
  } else if (pick < 250 && b->is_born_paused) {
    give_pages_back(b);
  } else if (pick < 400) {
    check_block(b);
  } else if (pick < 500) {
    write_block(b);
  } else {
    give(b);
  }
}
static void work(actor *own) {
  const uint64_t operations = ROUND + below(ROUND);
  for (uint64_t i = 0; i < operations && atomic_load(&check_state.failures) == 0; ++i)
    one_in(250) ? use_a_heap() : use_a_block();
  // The main thread looks at the blocks between the rounds, and cannot name this thread's stream.
  for (unsigned i = 0; i < SLOTS; ++i)
    if (own->held[i].stream == GMM_STREAM_PER_THREAD) own->held[i].stream = GMM_STREAM_DEFAULT;
  atomic_fetch_sub(&working, 1);
}

// --- The other threads -------------------------------------------------------------------------------------------
static gmm_result transition(bool pausing, const gmm_pause_desc *desc, bool *may_be_cancelled) {
  *may_be_cancelled = false;
  if (one_in(2)) return pausing ? gmm_pause(context, desc, NULL) : gmm_resume(context, desc, NULL);
  gmm_ticket *ticket = NULL;
  gmm_result result = pausing ? gmm_pause_async(context, desc, &ticket) : gmm_resume_async(context, desc, &ticket);
  if (result != GMM_OK) return result;
  if (one_in(3)) {
    *may_be_cancelled = true;
    sleep_ms((long)below(3));
    DO(gmm_ticket_cancel(ticket));
  }
  result = gmm_ticket_wait(ticket, GMM_FOREVER, NULL);
  DO(gmm_ticket_destroy(ticket));
  return result;
}
// BUSY follows a failure that left memory half paused. LIMIT_EXCEEDED is of a heap that was filled during its pause.
static void judge(const char *what, gmm_result result, bool may_be_cancelled) {
  if (result == GMM_OK || result == GMM_UNCHANGED || result == GMM_ERROR_BUSY || expected(result)) return;
  if (result == GMM_ERROR_CANCELLED && may_be_cancelled) return;
  check_failed(__FILE__, __LINE__, "%s: %s: %s", what, gmm_result_name(result), gmm_last_error_message());
}
static bool is_of(const block *b, unsigned tag, unsigned count) {
  return b->kind == GMM_KIND_VMM && !b->of_graph && b->tag >= tag && b->tag < tag + count;
}
// One thread sees the outcome.
static void look_at_states(unsigned tag, unsigned count, gmm_state state) {
  for (unsigned i = 0; alone && i < SLOTS; ++i)
    if (self->held[i].memory != NULL && is_of(&self->held[i], tag, count) &&
        (self->held[i].is_taken || !self->held[i].is_born_paused))
      CHECK_EQUAL(state_of(self->held[i].memory), state);
}
// Tags without a limit, so that no resume fails; one thread takes several, and those with a limit, too.
static unsigned some_tags(unsigned *tag) {
  *tag = alone ? (unsigned)below(TAGS) : TAG_HOST + (unsigned)below(3);
  return alone ? 1 + (unsigned)below(TAGS - *tag) : 1;
}
static void pause_some(unsigned tag, unsigned count) {
  static const uint32_t ways[] = {0, 0, GMM_PAUSE_DROP, GMM_PAUSE_KEEP_HOST, GMM_PAUSE_KEEP_FILE};
  gmm_pause_desc desc = {.struct_size = sizeof desc, .flags = ways[below(5)], .tags = &tags[tag], .tag_count = count};
  bool may_be_cancelled = false;
  for (unsigned i = tag; i < tag + count; ++i) pthread_rwlock_wrlock(&touching[i]);
  const gmm_result result = transition(true, &desc, &may_be_cancelled);
  judge("pause", result, may_be_cancelled);
  if (result >= 0) look_at_states(tag, count, GMM_STATE_PAUSED);
  for (unsigned i = tag; i < tag + count; ++i) {
    const bool is_dropped = desc.flags == GMM_PAUSE_DROP || (desc.flags == 0 && (i == TAG_DROP || i == TAG_DEFAULT));
    if (result == GMM_OK && is_dropped) ++drops[i];
    if (one_in(12)) {
      const gmm_pause_desc all = {.struct_size = sizeof all, .tags = &tags[i], .tag_count = 1};
      const gmm_result discarded = gmm_backup_discard(context, &all, NULL);
      if (discarded != GMM_UNCHANGED && DO(discarded)) ++drops[i];
    }
    pthread_rwlock_unlock(&touching[i]);
  }
}
static void resume_some(unsigned tag, unsigned count) {
  gmm_pause_desc desc = {.struct_size = sizeof desc, .tags = &tags[tag], .tag_count = count};
  bool may_be_cancelled = false;
  desc.flags = one_in(3) ? GMM_RESUME_RETAIN : 0;
  const gmm_result result = transition(false, &desc, &may_be_cancelled);
  judge("resume", result, may_be_cancelled);
  if (result >= 0) look_at_states(tag, count, GMM_STATE_ACTIVE);
}
static void pause_and_resume(actor *own) {
  (void)own;
  while (round_goes_on()) {
    unsigned tag = 0;
    const unsigned count = some_tags(&tag);
    pause_some(tag, count);
    sleep_ms((long)below(10));  // others allocate, free, read and resume parts of the paused tag
    resume_some(tag, count);
    atomic_fetch_add(&pauses, 1);
  }
}

static int32_t count_text(void *user, const char *text, uint64_t size) {
  (void)text;
  *(uint64_t *)user += size;
  return 0;
}
static void count_or_tidy(void) {
  uint64_t size = 0;
  gmm_tag_info info = {.struct_size = sizeof info};
  gmm_compact_desc compact = {.struct_size = sizeof compact, .max_bytes = below(3) * 16 * MIB};
  if (alone && one_in(2)) compact.flags = GMM_COMPACT_LIVE;
  gmm_compact_info done = {.struct_size = sizeof done};
  gmm_backup_desc backup = {.struct_size = sizeof backup, .arena_limit = (1 + below(16)) * 8 * MIB};
  gmm_scope_desc limited = scope_of(GMM_SCOPE_TAG, 0, tags[TAG_LIMITED], 0);
  switch (below(8)) {
    case 0:
      DO_OR(gmm_trim(context, NULL, NULL), GMM_UNCHANGED);
      break;
    case 1:
      DO(write_snapshot(context, count_text, &size));
      break;
    case 2:
      DO(gmm_tag_query(context, tags[below(TAGS)], &info));
      break;
    case 3:
      DO_OR(gmm_compact(context, NULL, &compact, &done), GMM_UNCHANGED);
      break;
    case 4:
      DO(gmm_context_set_decommit(context, one_in(3) ? GMM_DECOMMIT_NEVER : 1 + below(30)));
      break;
    case 5:
      if (one_in(3)) backup.flags = GMM_BACKUP_NO_ARENA;
      DO(gmm_backup_configure(context, one_in(3) ? NULL : &backup));
      break;
    case 6:
      DO(gmm_limit_set(context, &limited, (1 + below(24)) * 8 * MIB));
      break;
    default:
      DO(gmm_defer_begin(context));
      for (unsigned i = 0; alone && i < 5; ++i) one_step();
      sleep_ms(2);
      DO(gmm_defer_end(context));
  }
}
static void count_and_tidy(actor *own) {
  (void)own;
  for (; round_goes_on(); sleep_ms((long)below(6))) count_or_tidy();
}

// A thread that leaves a full cache behind, with a stream of its own or without.
static void *live_shortly(void *argument) {
  self = argument;
  gmm_stream own = GMM_STREAM_PER_THREAD;
  const bool made = one_in(2) && DO(gmm_stream_create(context, NULL, &own));
  for (unsigned i = 0; i < SLOTS; ++i) {
    block *b = &self->held[i];
    *b = (block){.kind = any_kind(), .tag = (unsigned)below(TAGS), .stream = own};
    take(b, NULL);
  }
  for (unsigned i = 0; i < SLOTS; ++i)
    if (self->held[i].memory != NULL) give(&self->held[i]);
  if (made) SURELY(gmm_stream_destroy(context, own));
  return NULL;
}
static void spawn_a_thread(void) {
  actor child = {.random = next_random()};
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, live_shortly, &child) == 0);
  pthread_join(thread, NULL);
  self->allocations += child.allocations;
  self->frees += child.frees;
  atomic_fetch_add(&threads_ended, 1);
}
static void spawn_threads(actor *own) {
  (void)own;
  while (round_goes_on()) spawn_a_thread();
}

static void let_calls_fail(actor *own) {
  (void)own;
  static const int errors[] = {2 /* OUT_OF_MEMORY */, 999 /* UNKNOWN */, 304 /* OPERATING_SYSTEM */};
  while (atomic_load(&faults) && round_goes_on()) {
    const uint64_t before = fake.failures();
    fake.fail(NULL, 1 + below(60), errors[below(3)]);
    for (unsigned i = 0; i < 10 && round_goes_on() && fake.failures() == before; ++i) sleep_ms(1);
    atomic_fetch_add(&failed_calls, fake.failures() - before);
  }
  if (fake.fail != NULL) fake.fail(NULL, 0, 0);
}

// --- Between rounds ----------------------------------------------------------------------------------------------
static void for_each_block(void (*fn)(block *)) {
  for (unsigned a = 0; a < actor_count; ++a)
    for (unsigned i = 0; i < SLOTS; ++i)
      if (actors[a].held[i].memory != NULL) fn(&actors[a].held[i]);
  for (unsigned i = 0; i < exchange.count; ++i)
    if (exchange.blocks[i].memory != NULL) fn(&exchange.blocks[i]);
}

static uint64_t live_bytes[TAGS], live_blocks[TAGS];
static void add_up(block *b) {
  const uint64_t taken = b->is_taken ? (b->size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB) : 0;
  live_bytes[b->tag] += b->is_born_paused ? taken : b->size;
  ++live_blocks[b->tag];
}
static void compare_counters(void) {
  memset(live_bytes, 0, sizeof live_bytes);
  memset(live_blocks, 0, sizeof live_blocks);
  for_each_block(add_up);
  uint64_t allocations = 0, frees = 0, all = 0;
  for (unsigned t = 0; t < TAGS; ++t) {
    const gmm_stats_info s = stats_of(GMM_SCOPE_TAG, 0, tags[t], 0);
    CHECK_EQUAL(s.live_bytes, live_bytes[t]);
    CHECK_EQUAL(s.live_blocks, live_blocks[t]);
    all += live_blocks[t];
  }
  for (unsigned a = 0; a < actor_count; ++a) {
    allocations += actors[a].allocations;
    frees += actors[a].frees;
  }
  CHECK_EQUAL(allocations - frees, all);
  CHECK_EQUAL(stats().live_blocks, all);
}
static bool holds_nothing(void) {
  DO(gmm_trim(context, NULL, NULL));
  const gmm_stats_info s = stats();
  return s.live_blocks + s.reserved_bytes + s.paused_bytes + s.cached_bytes + s.extents == 0;
}
static void nothing_is_left(void) {
  for_each_block(give);
  exchange.count = 0;
  const gmm_result resumed = gmm_resume(context, NULL, NULL);
  CHECK_MESSAGE(resumed == GMM_OK || resumed == GMM_UNCHANGED, "resume: %s", gmm_last_error_message());
  for (unsigned i = 0; i < stream_count; ++i) DO(gmm_stream_synchronize(context, streams[i].stream));
  DO(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  SOON(holds_nothing());  // the driver says that a graph is gone at some moment after it went
}

// --- One thread --------------------------------------------------------------------------------------------------
static void nothing_fails(void) {
  if (fake.fail != NULL) fake.fail(NULL, 0, 0);
  atomic_store(&counted.fail_at, -1);
}
static void a_call_fails(void) {
  nothing_fails();
  if (fake.fail != NULL && one_in(2))
    fake.fail(NULL, 1 + below(20), one_in(2) ? 2 : 999);
  else
    atomic_store(&counted.fail_at, atomic_load(&counted.calls) + (int64_t)below(12));
}
static void pause_step(void) {
  unsigned tag = 0;
  const unsigned count = some_tags(&tag);
  pause_some(tag, count);
}
static void resume_step(void) {
  unsigned tag = 0;
  const unsigned count = some_tags(&tag);
  resume_some(tag, count);
}
static void move_a_block(void) {
  const block *b = &self->held[below(SLOTS)];
  gmm_move_desc desc = {.struct_size = sizeof desc, .stream = b->stream};
  if (b->memory != NULL) DO(gmm_move(context, b->memory, one_in(2) ? b->device : GMM_DEVICE_HOST, &desc));
}
static unsigned depth;  // of steps inside of steps, whose blocks are in no actor's hands
static void open_stream_at(unsigned i) {
  streams[i].stream = GMM_STREAM_DEFAULT;
  streams[i].device = (gmm_device)(i % (alone ? 2 : 1));
  if (!DO(gmm_stream_create(context, STREAM_ON(streams[i].device), &streams[i].stream))) streams[i].device = 0;
}
static void renew_a_stream(void) {
  const unsigned i = (unsigned)below(stream_count);
  const gmm_stream old = streams[i].stream;
  if (depth > 1 || is_captured(old)) return;
  if (old != GMM_STREAM_DEFAULT) {
    finish(old);
    if (!DO(gmm_stream_destroy(context, old))) return;
  }
  for (unsigned b = 0; b < SLOTS; ++b)
    if (self->held[b].stream == old) self->held[b].stream = GMM_STREAM_DEFAULT;
  open_stream_at(i);
}
// A capture begins or ends; then the graph before goes.
static void capture_step(void) {
  const gmm_stream stream = captured_stream != NULL ? captured_stream : streams[below(stream_count)].stream;
  if (fake.fail == NULL || stream == GMM_STREAM_DEFAULT) return;
  nothing_fails();
  device = device_of(stream, 0);
  enter_device();
  if (captured_stream == NULL) {
    begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    captured_stream = stream;
  } else {
    destroy_graph(&graph);
    cuda.cuStreamEndCapture((CUstream)stream, &graph.graph);
    captured_stream = NULL;
  }
  exit_device();
  device = 0;
}

// In 32nds; the rest use a block.
static void one_step(void) {
  static const struct {
    unsigned weight;
    void (*step)(void);
  } steps[] = {{3, pause_step}, {4, resume_step},  {5, count_or_tidy}, {1, move_a_block},   {1, renew_a_stream},
               {1, use_a_heap}, {1, a_call_fails}, {1, nothing_fails}, {1, spawn_a_thread}, {1, capture_step}};
  uint64_t drawn = below(32);
  void (*step)(void) = use_a_block;
  for (unsigned i = 0; i < sizeof steps / sizeof *steps; drawn -= steps[i++].weight)
    if (drawn < steps[i].weight) {
      step = steps[i].step;
      break;
    }
  ++depth;
  step();
  --depth;
}

static void *run(void *argument) {
  self = argument;
  for (;;) {
    pthread_barrier_wait(&round_begins);
    if (atomic_load(&over)) return NULL;
    self->round(self);
    pthread_barrier_wait(&round_ends);
  }
}

static uint64_t seed_of_run;
static double seconds = 10;
static void add_actor(void (*round)(actor *)) {
  actor *a = &actors[actor_count];
  *a = (actor){.round = round, .random = (seed_of_run + actor_count++) * 0xd1342543de82ef95u};
}

static void set_up(void) {
  for (unsigned i = 0; i < stream_count; ++i) open_stream_at(i);
  tags[TAG_DEFAULT] = GMM_TAG_DEFAULT;
  tags[TAG_HOST] = make_tag("host", GMM_CONTENTS_HOST);
  tags[TAG_FILE] = make_tag("file", GMM_CONTENTS_FILE);
  tags[TAG_DROP] = make_tag("drop", GMM_CONTENTS_DROP);
  tags[TAG_LIMITED] = make_tag("limited", GMM_CONTENTS_HOST);
  for (unsigned i = 0; i < TAGS; ++i) pthread_rwlock_init(&touching[i], NULL);
  find_fake_driver();
  add_actor(NULL);  // this thread
  self = &actors[0];
}
static void tear_down(void) {
  for (unsigned i = 0; i < stream_count; ++i)
    if (streams[i].stream != GMM_STREAM_DEFAULT) OK(gmm_stream_destroy(context, streams[i].stream));
}

static void history(void) {
  begin_counted((gmm_log_callback){0});
  atomic_store(&faults, 1);
  actor_count = 0;
  set_up();
  if (fake.fail != NULL) REQUIRE(find_cuda());
  stream_count = one_in(5) ? MANY_STREAMS : STREAMS;
  for (unsigned i = STREAMS; i < stream_count; ++i) {
    open_stream_at(i);
    block b = {.kind = GMM_KIND_VMM, .stream = streams[i].stream};
    if (take(&b, NULL)) give(&b);
  }
  for (unsigned step = 0; step < STEPS && atomic_load(&check_state.failures) == 0; ++step) {
    alarm(STUCK_AFTER_S);
    one_step();
    compare_counters();
    if (one_in(10)) for_each_block(check_block);
  }
  nothing_fails();
  if (captured_stream != NULL) capture_step();
  destroy_graph(&graph);
  DO(gmm_context_set_decommit(context, GMM_DECOMMIT_NEVER));
  gmm_scope_desc limited = scope_of(GMM_SCOPE_TAG, 0, tags[TAG_LIMITED], 0);
  OK(gmm_limit_set(context, &limited, GMM_NO_LIMIT));
  if (check_state.failures == 0) nothing_is_left();
  tear_down();
  stream_count = STREAMS;
  end_counted();
  ++seed_of_run;
}

static void stress(void) {
  set_up();
  for (unsigned i = 0; i < worker_count; ++i) add_actor(work);
  if (has_kind(GMM_KIND_VMM)) add_actor(pause_and_resume);
  add_actor(count_and_tidy);
  add_actor(spawn_threads);
  if (fake.fail != NULL) add_actor(let_calls_fail);
  pthread_barrier_init(&round_begins, NULL, actor_count);
  pthread_barrier_init(&round_ends, NULL, actor_count);
  for (unsigned i = 1; i < actor_count; ++i) REQUIRE(pthread_create(&actors[i].thread, NULL, run, &actors[i]) == 0);
  unsigned rounds = 0;
  for (const double end = now_s() + seconds; now_s() < end && atomic_load(&check_state.failures) == 0; ++rounds) {
    alarm(STUCK_AFTER_S);  // a round that does not end is a deadlock
    atomic_store(&faults, fake.fail != NULL && rounds % 3 == 2);
    atomic_store(&working, worker_count);
    pthread_barrier_wait(&round_begins);
    pthread_barrier_wait(&round_ends);
    atomic_store(&faults, 0);
    DO(gmm_context_set_decommit(context, GMM_DECOMMIT_NEVER));
    compare_counters();
    for_each_block(check_block);
    if (rounds % 5 == 4) nothing_is_left();
  }
  atomic_store(&over, 1);
  pthread_barrier_wait(&round_begins);
  for (unsigned i = 1; i < actor_count; ++i) pthread_join(actors[i].thread, NULL);
  if (check_state.failures == 0) nothing_is_left();
  printf("# %u rounds, %llu allocations by the first worker, %llu pauses, %llu threads ended, %llu calls failed\n",
         rounds, (unsigned long long)actors[1].allocations, (unsigned long long)atomic_load(&pauses),
         (unsigned long long)atomic_load(&threads_ended), (unsigned long long)atomic_load(&failed_calls));
  CHECK(rounds > 0 && actors[1].allocations > 10);
  tear_down();
}

static void *do_nothing(void *unused) { return unused; }

int main(int count, char **words) {
  seed_of_run = count > 1 ? strtoull(words[1], NULL, 10) : 0;
  if (seed_of_run == 0) seed_of_run = (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
  if (count > 2) seconds = strtod(words[2], NULL);
  if (count > 3) worker_count = (unsigned)atoi(words[3]);
  if (worker_count > MOST_WORKERS || seconds <= 0) {
    fprintf(stderr,
            "use: stress [SEED [SECONDS [WORKERS]]], 1 to %d workers; stress SEED HISTORIES 0; seed 0: from the "
            "clock\n",
            MOST_WORKERS);
    return 2;
  }
  alone = worker_count == 0;
  printf("# seed %llu\n", (unsigned long long)seed_of_run);
  fflush(stdout);
  short_of_memory = seed_of_run % 3 == 0;  // one run in three has a small device
  setenv("FAKE_CUDA_MEMORY", short_of_memory ? "402653184" : "8589934592", 1);
  pthread_t first;  // a sanitizer starts a thread of its own with it
  if (pthread_create(&first, NULL, do_nothing, NULL) == 0) pthread_join(first, NULL);
  for (unsigned i = 0; alone && i < (unsigned)seconds; ++i) PLAIN(history);
  if (!alone) PLAIN(stress);
  return finish_clean();
}
