// SPDX-License-Identifier: Apache-2.0
#include "roles.h"

#include <errno.h>
#include <sys/wait.h>

atomic_ullong snapshots, forks, threads_ended, heaps_ended, shared, quota_checks, faults_seen, moved_on;
block held[MOST_WORKERS][SLOTS];

struct exchange exchange = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void swap_blocks(block *b) {
  // Another thread cannot name this one's per-thread stream.
  if (b->memory != NULL) settle(b);
  pthread_mutex_lock(&exchange.lock);
  if (b->memory != NULL && exchange.count < EXCHANGE) {
    exchange.blocks[exchange.count++] = *b;
    b->memory = NULL;
    atomic_fetch_add(&moved_on, 1);
  } else if (b->memory == NULL && exchange.count > 0) {
    unsigned i = (unsigned)below(exchange.count);
    *b = exchange.blocks[i];
    exchange.blocks[i] = exchange.blocks[--exchange.count];
  }
  pthread_mutex_unlock(&exchange.lock);
}

// A heap of its own: made, used and ended by one thread, while others pause, trim and count it.
static void use_a_heap(void) {
  gmm_heap_desc desc = {.struct_size = sizeof desc};
  unsigned tag = (unsigned)below(TAGS);
  do desc.kind = GMM_KIND_DEVICE + (gmm_kind)below(4);
  while (!has_kind(desc.kind));
  desc.tag = tags[tag];
  if (one_in(4)) desc.minimum_extent = 8 * MIB;
  if (one_in(4)) desc.limit = 16 * MIB;
  gmm_heap *heap = NULL;
  if (!DO(gmm_heap_create(context, &desc, &heap))) return;
  if (desc.kind == GMM_KIND_VMM && desc.limit == 0 && one_in(2)) {  // compactions of other threads move it
    gmm_result result = gmm_heap_reserve(heap, (1 + below(6)) * 4 * MIB);
    if (result != GMM_OK && !expected(result, tag))
      check_failed(__FILE__, __LINE__, "heap reserve: %s: %s", gmm_result_name(result), gmm_last_error_message());
  }
  block blocks[12];
  unsigned count = 1 + (unsigned)below(12);
  for (unsigned i = 0; i < count; ++i) {
    block *b = &blocks[i];
    memset(b, 0, sizeof *b);
    *b = (block){.size = random_size(), .kind = desc.kind, .tag = tag, .stream = random_stream(), .own_heap = true};
    void *memory = NULL;
    remember_birth(b);
    gmm_result result = gmm_heap_alloc(heap, b->size, 0, 0, b->stream, &memory);
    note("heap alloc", result, memory, b->size, tag);
    if (result == GMM_ERROR_LIMIT_EXCEEDED && desc.limit != 0) continue;
    if (result != GMM_OK && !expected(result, tag))
      check_failed(__FILE__, __LINE__, "heap alloc: %s: %s", gmm_result_name(result), gmm_last_error_message());
    if (result != GMM_OK) continue;
    b->memory = memory;
    entered(b);
    write_block(b);
  }
  bool live = false;
  for (unsigned i = 0; i < count; ++i) live = live || blocks[i].memory != NULL;
  if (live && one_in(4)) {
    gmm_result result = gmm_heap_destroy(heap);
    if (result != GMM_ERROR_BUSY && (result == GMM_OK || !expected(result, tag)))
      check_failed(__FILE__, __LINE__, "ending a heap with live blocks gave %s", gmm_result_name(result));
  }
  for (unsigned i = 0; i < count; ++i)
    if (blocks[i].memory != NULL) give(&blocks[i]);
  note("heap end", 0, heap, desc.kind, tag);
  SURELY(gmm_heap_destroy(heap));
  atomic_fetch_add(&heaps_ended, 1);
}

// Another process gets the block's handle; here it is the same process, which must find its own address.
static void share(block *b) {
  if (b->kind == GMM_KIND_MANAGED) return;
  gmm_ipc_handle handle;
  pthread_rwlock_rdlock(&touching[b->tag]);  // not while it pauses
  uint64_t inside = below(b->size);
  gmm_result result = note("export", gmm_ipc_export(context, b->memory + inside, &handle), b->memory, b->size, 0);
  if (result == GMM_OK) {
    void *imported = NULL;
    gmm_ipc_import_desc desc = {.struct_size = sizeof desc};
    if (DO(gmm_ipc_import(context, &handle, &desc, &imported))) {
      if (imported != b->memory + inside)
        check_failed(__FILE__, __LINE__, "%p was exported, %p imported", (void *)(b->memory + inside), imported);
      SURELY(gmm_ipc_close(context, imported));
      atomic_fetch_add(&shared, 1);
    }
  } else if (result != GMM_ERROR_NOT_SUPPORTED && result != GMM_ERROR_PAUSED && !expected(result, b->tag)) {
    check_failed(__FILE__, __LINE__, "export: %s: %s", gmm_result_name(result), gmm_last_error_message());
  }
  gmm_ipc_fd_info file = {.struct_size = sizeof file};
  result = gmm_ipc_export_fd(context, b->memory, GMM_FD_DEFAULT, &file);
  note("export fd", result, b->memory, b->size, file.offset);
  if (result == GMM_ERROR_INVALID_KIND && b->kind == GMM_KIND_DEVICE) {
    // its driver has no descriptors of that memory
  } else if (result == GMM_OK) {
    if (file.offset + b->size > file.size) check_failed(__FILE__, __LINE__, "the descriptor ends before the block");
    close(file.fd);
  } else if (result != GMM_ERROR_NOT_SUPPORTED && result != GMM_ERROR_PAUSED && !expected(result, b->tag)) {
    check_failed(__FILE__, __LINE__, "export of a descriptor: %s: %s", gmm_result_name(result),
                 gmm_last_error_message());
  }
  pthread_rwlock_unlock(&touching[b->tag]);
}

// Many blocks of about one size at once: caches fill, spill and are filled again in batches.
static void use_many(void) {
  enum { MOST = 150 };
  static _Thread_local block blocks[MOST];
  unsigned count = 10 + (unsigned)below(MOST - 10), got = 0;
  uint64_t size = 1 + below(one_in(4) ? 40000 : 5000);
  gmm_stream stream = random_stream();
  unsigned tag = (unsigned)below(TAGS);
  gmm_alloc_desc desc = {.struct_size = sizeof desc, .tag = tags[tag], .stream = stream};
  do desc.kind = GMM_KIND_DEVICE + (gmm_kind)below(4);
  while (!has_kind(desc.kind));
  for (unsigned i = 0; i < count; ++i) {
    block *b = &blocks[got];
    *b = (block){.size = size + below(16), .kind = desc.kind, .tag = tag, .stream = stream};
    void *memory = NULL;
    remember_birth(b);
    gmm_result result = gmm_alloc(context, b->size, &desc, &memory);
    if (result != GMM_OK) {
      if (!expected(result, tag)) DO(result);
      ++self->refused;
      continue;
    }
    b->memory = memory;
    entered(b);
    if (i % 16 == 0) write_block(b);
    ++got;
  }
  note("many", 0, got > 0 ? blocks[0].memory : NULL, got, size);
  while (got > 0) {
    unsigned i = one_in(2) ? got - 1 : (unsigned)below(got);
    block *b = &blocks[i];
    if (b->contents != NOTHING) {
      give(b);
    } else {
      model_remove(b->memory, b->size);
      SURELY(gmm_free(context, b->memory, stream));
      ++self->frees;
    }
    *b = blocks[--got];
  }
}

void worker_round(block *blocks, unsigned operations) {
  for (unsigned i = 0; i < operations && atomic_load_explicit(&check_state.failures, memory_order_relaxed) < 5; ++i) {
    block *b = &blocks[below(SLOTS)];
    uint64_t pick = below(1000);
    if (pick < 150)
      swap_blocks(b);
    else if (pick < 154)
      use_a_heap();
    else if (pick < 160)
      use_many();
    else if (b->memory == NULL)
      take(b, random_stream());
    else if (pick < 170)
      share(b);
    else if (pick < 400)
      check_block(b);
    else if (pick < 500)
      write_block(b);
    else
      give(b);
  }
  // Whoever looks at the blocks between the rounds cannot name this thread's own stream.
  for (unsigned i = 0; i < SLOTS; ++i)
    if (blocks[i].memory != NULL) settle(&blocks[i]);
}

// --- the others --------------------------------------------------------------------------------------------------
static int32_t count_text(void *user, const char *text, uint64_t size) {
  (void)text;
  *(uint64_t *)user += size;
  return 0;
}
static void read_once(void) {
  uint64_t size = 0;
  gmm_stats_info s = {.struct_size = sizeof s};
  gmm_tag_info info = {.struct_size = sizeof info};
  gmm_backup_info backup = {.struct_size = sizeof backup};
  switch (below(10)) {
    case 0:
      DO(gmm_trim(context, NULL, &size));
      break;
    case 1:
    case 2:
      DO(write_snapshot(context, count_text, &size));
      if (size < 50) check_failed(__FILE__, __LINE__, "a snapshot of %llu bytes", (unsigned long long)size);
      atomic_fetch_add(&snapshots, 1);
      break;
    case 3:
      DO(gmm_defer_begin(context));
      sleep_ms(2);
      if (one_in(2)) {
        gmm_result result = gmm_trim(context, NULL, NULL);
        if (result != GMM_UNCHANGED) DO(result);
      }
      DO(gmm_defer_end(context));
      break;
    case 4:
      DO(gmm_tag_query(context, tags[below(TAGS)], &info));
      break;
    case 5: {
      gmm_scope_desc scope = {.struct_size = sizeof scope, .flags = GMM_SCOPE_KIND, .kind = 1 + (gmm_kind)below(4)};
      if (one_in(2)) {
        gmm_compact_desc desc = {
            .struct_size = sizeof desc, .max_bytes = below(3) * 16 * MIB, .max_us = below(2) * 500};
        gmm_compact_info done = {.struct_size = sizeof done};
        gmm_result result = gmm_compact(context, one_in(2) ? &scope : NULL, &desc, &done);
        if (result != GMM_UNCHANGED) DO(result);
        if (desc.max_bytes != 0 && done.moved_bytes + done.released_bytes > desc.max_bytes)
          check_failed(__FILE__, __LINE__, "a compaction passed its bound");
        break;
      }
      DO(gmm_trim(context, &scope, NULL));
      break;
    }
    case 6:
      DO(gmm_context_set_decommit(context, one_in(3) ? GMM_DECOMMIT_NEVER : 1 + below(30)));
      break;
    case 7:
      DO(gmm_backup_query(context, &backup));
      break;
    case 8: {
      // Little room of one kind or another: contents go to the next.
      gmm_backup_desc room = {.struct_size = sizeof room, .arena_limit = (1 + below(16)) * 8 * MIB};
      if (one_in(3)) room.flags |= GMM_BACKUP_NO_ARENA;
      if (one_in(3)) room.flags |= GMM_BACKUP_NO_PAGEABLE;
      if (one_in(3)) room.flags |= GMM_BACKUP_NAMED_FILES;
      DO(gmm_backup_configure(context, one_in(3) ? NULL : &room));
      break;
    }
    default:
      DO(gmm_stats_query(context, NULL, &s));
      if (s.live_blocks > 100000 || s.live_bytes > (uint64_t)1 << 40 || s.reserved_bytes > (uint64_t)1 << 40)
        check_failed(__FILE__, __LINE__, "%llu blocks of %llu bytes live, %llu reserved",
                     (unsigned long long)s.live_blocks, (unsigned long long)s.live_bytes,
                     (unsigned long long)s.reserved_bytes);
      break;
  }
  note("read", 0, NULL, size, 0);
}
void reader_round(void) {
  while (round_goes_on()) {
    read_once();
    sleep_ms((long)below(6));
  }
}

void limiter_round(void) {
  gmm_scope_desc scope = {.struct_size = sizeof scope, .flags = GMM_SCOPE_TAG, .tag = tags[TAG_LIMITED]};
  static uint64_t before = GMM_NO_LIMIT;
  while (round_goes_on()) {
    uint64_t limit = (1 + below(24)) * 8 * MIB;
    DO(gmm_limit_set(context, &scope, limit));
    sleep_ms(2);
    uint64_t most = stats_of(GMM_SCOPE_TAG, 0, tags[TAG_LIMITED], 0).reserved_bytes;
    if (most < limit) most = limit;
    bool late = false;
    for (unsigned i = 0; i < 10 && round_goes_on(); ++i) {
      uint64_t now = stats_of(GMM_SCOPE_TAG, 0, tags[TAG_LIMITED], 0).reserved_bytes;
      if (now > most && now <= before && !late) {
        // One charge that had read the limit before it was set may come this late, if its thread had to wait for a
        // processor.
        late = true;
        most = now;
      } else if (now > most)
        check_failed(__FILE__, __LINE__, "%llu bytes held, limit %llu, most %llu", (unsigned long long)now,
                     (unsigned long long)limit, (unsigned long long)most);
      sleep_ms((long)below(5));
      atomic_fetch_add(&quota_checks, 1);
    }
    before = limit;
    note("limit", 0, NULL, limit, most);
  }
}

void asker_round(void) {
  while (round_goes_on()) {
    for (unsigned i = 0; i < 50; ++i) {
      uintptr_t address = atomic_load_explicit(&seen[below(SEEN)], memory_order_relaxed);
      gmm_pointer_info info = {.struct_size = sizeof info};
      DO(gmm_query(context, (void *)address, &info));
      if (info.state == GMM_STATE_ACTIVE && (info.size == 0 || info.base == NULL))
        check_failed(__FILE__, __LINE__, "an active block of %llu bytes at %p", (unsigned long long)info.size,
                     info.base);
    }
    sleep_ms((long)below(3));
  }
}

// Threads that come and go and leave full caches behind; some with a stream of their own.
static void *short_lived(void *argument) {
  self = argument;
  block blocks[24];
  gmm_stream own = NULL;
  bool made = one_in(3) && DO(gmm_stream_create(context, NULL, &own));
  unsigned count = 1 + (unsigned)below(24);
  for (unsigned i = 0; i < count; ++i)
    if (!take(&blocks[i], made ? own : random_stream())) blocks[i].memory = NULL;
  for (unsigned i = 0; i < count; ++i) {
    if (blocks[i].memory == NULL) continue;
    if (!made && one_in(8)) swap_blocks(&blocks[i]);
    if (blocks[i].memory != NULL) give(&blocks[i]);
  }
  if (made) SURELY(gmm_stream_destroy(context, own));
  return NULL;
}
static void end_a_thread(void) {
  actor *mine = self;
  actor child = *mine;
  child.random = next_random();
  child.allocations = child.frees = child.refused = 0;
  pthread_t thread;
  if (pthread_create(&thread, NULL, short_lived, &child) != 0) return;
  pthread_join(thread, NULL);
  mine->allocations += child.allocations;
  mine->frees += child.frees;
  mine->refused += child.refused;
  mine->operations = child.operations;
  memcpy(mine->last, child.last, sizeof mine->last);
  atomic_fetch_add(&threads_ended, 1);
}
void spawner_round(void) {
  while (round_goes_on()) end_a_thread();
}

// Many threads in turn, each leaving a full cache: what is held must not follow their number.
static void *fill_a_cache(void *argument) {
  self = argument;
  void *blocks[16];
  gmm_stream stream = random_stream();
  gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = GMM_KIND_DEVICE, .stream = stream};
  for (unsigned i = 0; i < 16; ++i) {
    blocks[i] = NULL;
    gmm_result result = gmm_alloc(context, 1 + below(i < 14 ? 4096 : 300000), &desc, &blocks[i]);
    if (result != GMM_OK && !expected(result, TAG_DEFAULT)) DO(result);
    self->allocations += result == GMM_OK;
  }
  for (unsigned i = 0; i < 16; ++i) {
    if (blocks[i] == NULL) continue;
    DO(gmm_free(context, blocks[i], stream));
    ++self->frees;
  }
  return NULL;
}
void thread_storm(unsigned threads) {
  uint64_t reserved = 0;
  actor *mine = self;
  for (unsigned i = 0; i < threads && atomic_load(&check_state.failures) == 0; ++i) {
    pthread_t thread;
    actor child = *mine;
    child.random = next_random();
    if (pthread_create(&thread, NULL, fill_a_cache, &child) != 0) {
      check_failed(__FILE__, __LINE__, "thread %u could not be started", i);
      break;
    }
    pthread_join(thread, NULL);
    mine->allocations = child.allocations;
    mine->frees = child.frees;
    atomic_fetch_add(&threads_ended, 1);
    if (i == threads / 10) reserved = stats().reserved_bytes;
  }
  CHECK_MESSAGE(stats().reserved_bytes <= reserved + 16 * MIB, "%llu bytes held after %u threads, %llu after %u",
                (unsigned long long)reserved, threads / 10, (unsigned long long)stats().reserved_bytes, threads);
}

#define FORKED(call) \
  if ((call) != GMM_ERROR_FORKED) _exit(__LINE__ & 255 ? __LINE__ & 255 : 1)
static void fork_once(void) {
  fflush(stdout);
  // The thread's message gets its memory here: in the child a sanitizer's allocator may be locked for ever.
  void *none = NULL;
  CHECK(gmm_alloc(NULL, 1, NULL, &none) == GMM_ERROR_NULL_ARGUMENT);
  pid_t child = fork();
  if (child < 0) return;
  if (child == 0) {
    void *memory = NULL;
    gmm_pointer_info info = {.struct_size = sizeof info};
    gmm_stats_info s = {.struct_size = sizeof s};
    uint64_t bytes = 0;
    FORKED(gmm_alloc(context, 100, NULL, &memory));
    FORKED(gmm_free(context, (void *)atomic_load(&seen[0]), GMM_STREAM_DEFAULT));
    FORKED(gmm_query(context, (void *)atomic_load(&seen[1]), &info));
    FORKED(gmm_stats_query(context, NULL, &s));
    FORKED(gmm_trim(context, NULL, NULL));
    FORKED(gmm_pause(context, NULL, &bytes));
    FORKED(write_snapshot(context, count_text, &bytes));
    FORKED(gmm_stream_synchronize(context, streams[0]));
    FORKED(gmm_context_release(context));
    _exit(0);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  note("fork", status, NULL, 0, 0);
  if (status != 0)
    check_failed(__FILE__, __LINE__, "the child of a fork ended with signal %d, code (line) %d", WTERMSIG(status),
                 WEXITSTATUS(status));
  atomic_fetch_add(&forks, 1);
}
void forker_round(void) {
  while (round_goes_on()) {
    fork_once();
    for (unsigned i = 0; i < 200 && round_goes_on(); ++i) sleep_ms(5);
  }
}

void faulter_round(void) {
  static const int errors[] = {2 /* OUT_OF_MEMORY */, 999 /* UNKNOWN */, 304 /* OPERATING_SYSTEM */};
  static const char *const entries[] = {"cuMemCreate",      "cuMemMap",      "cuMemSetAccess",    "cuMemUnmap",
                                        "cuMemRelease",     "cuMemAlloc",    "cuMemFree",         "cuMemAddressReserve",
                                        "cuMemAddressFree", "cuEventRecord", "cuStreamWaitEvent", "cuEventCreate",
                                        "cuMemAllocManaged"};
  while (round_goes_on()) {
    const char *entry = one_in(2) ? entries[below(sizeof entries / sizeof entries[0])] : NULL;
    uint64_t before = fake.failures(), kth = 1 + below(entry != NULL ? 6 : 60);
    int error = errors[below(3)];
    fake.fail(entry, kth, error);
    for (unsigned i = 0; i < 10 && round_goes_on() && fake.failures() == before; ++i) sleep_ms(1);
    note("fault", error, entry, kth, fake.failures() - before);
    atomic_fetch_add(&faults_seen, fake.failures() - before);
  }
  fake.fail(NULL, 0, 0);
}
