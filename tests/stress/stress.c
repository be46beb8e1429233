// SPDX-License-Identifier: Apache-2.0
// Random stress: threads take, write, read, hand over and free blocks of all kinds, sizes, streams and tags, while other threads
// pause and resume, trim and read the counters. A model checks that no two live blocks overlap and that contents stay.
//
//   stress [SEED [SECONDS [THREADS]]]      defaults: a seed from the clock, 10, 6
#include "../support/gmm_test.h"

enum { MOST_THREADS = 32, SLOTS = 48, EXCHANGE = 256, STREAMS = 4, TAGS = 3, EDGE = 64 };

typedef struct live_block {
  char *memory;
  uint64_t size;
  gmm_stream stream;
  unsigned tag;   // index into tags
  uint32_t seed;  // of its contents; 0: not written
} live_block;

static uint64_t seed_of_run;
static double seconds = 10;
static unsigned thread_count = 6;
static atomic_int stop;
static atomic_ullong operations, paused_times, moved_on;
static gmm_stream streams[STREAMS];
static gmm_tag tags[TAGS];
static gmm_heap *heap;
// While a thread touches the contents of a tag's blocks it holds the lock for reading; a pause holds it for writing.
static pthread_rwlock_t touching[TAGS];

static uint64_t next_random(uint64_t *state) {
  *state ^= *state << 13;
  *state ^= *state >> 7;
  *state ^= *state << 17;
  return *state >> 11;
}

// --- the model: which addresses are live -----------------------------------------------------------------------
static struct {
  pthread_mutex_t lock;
  uintptr_t start[MOST_THREADS * SLOTS + EXCHANGE], end[MOST_THREADS * SLOTS + EXCHANGE];
  unsigned count;
} model = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void model_add(const char *memory, uint64_t size) {
  uintptr_t start = (uintptr_t)memory, end = start + size;
  pthread_mutex_lock(&model.lock);
  for (unsigned i = 0; i < model.count; ++i)
    if (model.start[i] < end && start < model.end[i])
      check_failed(__FILE__, __LINE__, "%p of %llu bytes overlaps the live block at %p", (const void *)memory,
                   (unsigned long long)size, (void *)model.start[i]);
  model.start[model.count] = start;
  model.end[model.count++] = end;
  pthread_mutex_unlock(&model.lock);
}

static void model_remove(const char *memory) {
  pthread_mutex_lock(&model.lock);
  unsigned i = 0;
  while (i < model.count && model.start[i] != (uintptr_t)memory) ++i;
  if (i == model.count)
    check_failed(__FILE__, __LINE__, "%p is not in the model", (const void *)memory);
  else
    model.start[i] = model.start[model.count - 1], model.end[i] = model.end[model.count - 1], --model.count;
  pthread_mutex_unlock(&model.lock);
}

// --- contents: both edges and the middle -------------------------------------------------------------------------
static uint64_t place(const live_block *block, unsigned edge) {
  return edge == 0 || block->size <= 2 * EDGE ? 0 : edge == 1 ? block->size - EDGE : block->size / 2 - EDGE / 2;
}
static uint64_t length(const live_block *block) { return block->size < EDGE ? block->size : EDGE; }

static bool is_active(const live_block *block) {
  gmm_pointer_info info = query(block->memory + block->size - 1);
  if (info.base != block->memory || info.size != block->size)
    check_failed(__FILE__, __LINE__, "query of %p gives base %p, size %llu", (void *)block->memory, info.base,
                 (unsigned long long)info.size);
  return info.state == GMM_STATE_ACTIVE;
}

static void write_block(live_block *block, uint32_t seed) {
  uint8_t bytes[3][EDGE];
  pthread_rwlock_rdlock(&touching[block->tag]);
  if (is_active(block)) {
    for (unsigned edge = 0; edge < 3; ++edge) {
      for (unsigned i = 0; i < EDGE; ++i) bytes[edge][i] = pattern_at(place(block, edge) + i, seed);
      OK(gmm_copy(context, block->memory + place(block, edge), bytes[edge], length(block), block->stream));
    }
    OK(gmm_stream_synchronize(context, block->stream));
    block->seed = seed;
  }
  pthread_rwlock_unlock(&touching[block->tag]);
}

static void check_block(live_block *block) {
  uint8_t bytes[3][EDGE];
  if (block->seed == 0) return;
  pthread_rwlock_rdlock(&touching[block->tag]);
  if (is_active(block)) {
    for (unsigned edge = 0; edge < 3; ++edge)
      OK(gmm_copy(context, bytes[edge], block->memory + place(block, edge), length(block), block->stream));
    OK(gmm_stream_synchronize(context, block->stream));
    for (unsigned edge = 0; edge < 3; ++edge)
      for (unsigned i = 0; i < length(block); ++i)
        if (bytes[edge][i] != pattern_at(place(block, edge) + i, block->seed)) {
          check_failed(__FILE__, __LINE__, "block %p of %llu bytes, tag %u: byte %llu is %u, expected %u",
                       (void *)block->memory, (unsigned long long)block->size, block->tag,
                       (unsigned long long)(place(block, edge) + i), bytes[edge][i],
                       pattern_at(place(block, edge) + i, block->seed));
          edge = 3;
          break;
        }
  }
  pthread_rwlock_unlock(&touching[block->tag]);
}

// --- taking and freeing ---------------------------------------------------------------------------------------------
static bool take(live_block *block, uint64_t *state) {
  static const uint64_t most[] = {256, 4096, 65536, 1048576, 6 * 1048576};
  uint64_t pick = next_random(state) % 100;
  block->size = 1 + next_random(state) % most[pick < 40 ? 0 : pick < 75 ? 1 : pick < 93 ? 2 : pick < 99 ? 3 : 4];
  block->stream = pick % 3 == 0 ? GMM_STREAM_DEFAULT : streams[next_random(state) % STREAMS];
  block->tag = (unsigned)(next_random(state) % TAGS);
  block->seed = 0;
  void *memory = NULL;
  gmm_result result;
  uint64_t way = next_random(state) % 20;
  if (way == 0) {
    block->tag = 0;  // the heap's
    result = gmm_heap_alloc(heap, block->size, block->stream, &memory);
  } else {
    gmm_alloc_desc desc = {.struct_size = sizeof desc, .tag = tags[block->tag], .stream = block->stream};
    do desc.kind = GMM_KIND_DEVICE + (gmm_kind)(next_random(state) % 4);
    while (!has_kind(desc.kind));
    if (next_random(state) % 3 == 0 && has_kind(GMM_KIND_VMM)) desc.kind = GMM_KIND_VMM;
    if (way == 1) desc.flags = GMM_ALLOC_ZERO;
    if (way == 2 && block->size > 100000) desc.flags = GMM_ALLOC_DEDICATED;
    if (way == 3) desc.alignment = (uint64_t)256 << (next_random(state) % 9);
    result = gmm_alloc(context, block->size, &desc, &memory);
    if (result == GMM_OK && desc.alignment > 256 && (uintptr_t)memory % desc.alignment != 0)
      check_failed(__FILE__, __LINE__, "%p is not aligned to %llu", memory, (unsigned long long)desc.alignment);
  }
  if (result != GMM_OK) {
    check_failed(__FILE__, __LINE__, "alloc of %llu bytes: %s: %s", (unsigned long long)block->size,
                 gmm_result_name(result), gmm_last_error_message());
    return false;
  }
  block->memory = memory;
  model_add(block->memory, block->size);
  write_block(block, (uint32_t)next_random(state) | 1);
  return true;
}

static void give(live_block *block, uint64_t *state) {
  check_block(block);
  gmm_stream stream = block->stream;
  if (next_random(state) % 4 == 0) stream = streams[next_random(state) % STREAMS];
  if (next_random(state) % 4 == 0) {
    // Work that is still queued when the block is freed: whoever gets the block next must not see it.
    pthread_rwlock_rdlock(&touching[block->tag]);
    if (is_active(block)) OK(gmm_fill(context, block->memory, 0xdd, block->size, stream));
    pthread_rwlock_unlock(&touching[block->tag]);
  } else if (next_random(state) % 8 == 0) {
    gmm_stream other = streams[next_random(state) % STREAMS];
    pthread_rwlock_rdlock(&touching[block->tag]);
    OK(gmm_record_use(context, block->memory, other));
    if (is_active(block)) OK(gmm_fill(context, block->memory, 0xcc, block->size, other));
    pthread_rwlock_unlock(&touching[block->tag]);
  }
  model_remove(block->memory);
  OK(gmm_free(context, block->memory, stream));
  block->memory = NULL;
}

static struct {
  pthread_mutex_t lock;
  live_block blocks[EXCHANGE];
  unsigned count;
} exchange = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void swap_blocks(live_block *block, uint64_t *state) {
  pthread_mutex_lock(&exchange.lock);
  if (block->memory != NULL && exchange.count < EXCHANGE) {
    exchange.blocks[exchange.count++] = *block;
    block->memory = NULL;
    atomic_fetch_add(&moved_on, 1);
  } else if (block->memory == NULL && exchange.count > 0) {
    unsigned i = (unsigned)(next_random(state) % exchange.count);
    *block = exchange.blocks[i];
    exchange.blocks[i] = exchange.blocks[--exchange.count];
  }
  pthread_mutex_unlock(&exchange.lock);
}

// --- the threads ------------------------------------------------------------------------------------------------------
static void *worker(void *argument) {
  uint64_t state = (seed_of_run + 1) * 0x9e3779b97f4a7c15u + (uintptr_t)argument * 0xbf58476d1ce4e5b9u + 1;
  live_block blocks[SLOTS];
  memset(blocks, 0, sizeof blocks);
  for (unsigned rounds = 0; !atomic_load(&stop) && atomic_load(&check_state.failures) < 20; ++rounds) {
    live_block *block = &blocks[next_random(&state) % SLOTS];
    uint64_t pick = next_random(&state) % 100;
    if (pick < 15)
      swap_blocks(block, &state);
    else if (pick < 40 && block->memory != NULL)
      check_block(block);
    else if (pick < 50 && block->memory != NULL)
      write_block(block, (uint32_t)next_random(&state) | 1);
    else if (block->memory == NULL)
      take(block, &state);
    else
      give(block, &state);
    atomic_fetch_add_explicit(&operations, 1, memory_order_relaxed);
  }
  for (unsigned i = 0; i < SLOTS; ++i)
    if (blocks[i].memory != NULL) give(&blocks[i], &state);
  return NULL;
}

// Threads that come and go leave their caches behind.
static void *short_lived(void *argument) {
  uint64_t state = (uintptr_t)argument * 0x94d049bb133111ebu + seed_of_run + 7;
  live_block blocks[20];
  for (unsigned i = 0; i < 20; ++i)
    if (!take(&blocks[i], &state)) blocks[i].memory = NULL;
  for (unsigned i = 0; i < 20; ++i)
    if (blocks[i].memory != NULL) give(&blocks[i], &state);
  return NULL;
}
static void *spawner(void *unused) {
  (void)unused;
  for (uintptr_t i = 1; !atomic_load(&stop); ++i) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, short_lived, (void *)i) != 0) break;
    pthread_join(thread, NULL);
  }
  return NULL;
}

static void *pauser(void *unused) {
  (void)unused;
  uint64_t state = seed_of_run * 31 + 5;
  while (!atomic_load(&stop)) {
    unsigned t = 1 + (unsigned)(next_random(&state) % (TAGS - 1));
    gmm_pause_desc desc = {.struct_size = sizeof desc, .tags = &tags[t], .tag_count = 1};
    uint64_t went = 0, came = 0;
    pthread_rwlock_wrlock(&touching[t]);
    gmm_result result = gmm_pause(context, &desc, &went);
    pthread_rwlock_unlock(&touching[t]);
    CHECK_MESSAGE(result == GMM_OK || result == GMM_UNCHANGED, "pause: %s: %s", gmm_result_name(result),
                  gmm_last_error_message());
    sleep_ms((long)(next_random(&state) % 10));  // others allocate and free under the paused tag
    pthread_rwlock_wrlock(&touching[t]);
    result = gmm_resume(context, &desc, &came);
    pthread_rwlock_unlock(&touching[t]);
    CHECK_MESSAGE(result == GMM_OK || result == GMM_UNCHANGED, "resume: %s: %s", gmm_result_name(result),
                  gmm_last_error_message());
    CHECK_MESSAGE(came <= went, "%llu bytes went, %llu came back", (unsigned long long)went, (unsigned long long)came);
    atomic_fetch_add(&paused_times, 1);
    sleep_ms((long)(next_random(&state) % 20));
  }
  return NULL;
}

static int32_t count_text(void *user, const char *text, uint64_t size) {
  (void)text;
  *(uint64_t *)user += size;
  return 0;
}
static void *reader(void *unused) {
  (void)unused;
  uint64_t state = seed_of_run * 77 + 3;
  while (!atomic_load(&stop)) {
    uint64_t size = 0;
    gmm_statistics s = stats();
    CHECK(s.live_blocks < 100000);
    switch (next_random(&state) % 6) {
      case 0:
        OK(gmm_trim(context, NULL, NULL));
        break;
      case 1:
        OK(gmm_snapshot(context, count_text, &size));
        break;
      case 2:
        OK(gmm_defer_begin(context));
        sleep_ms(2);
        OK(gmm_defer_end(context));
        break;
      default:
        break;
    }
    sleep_ms((long)(next_random(&state) % 15));
  }
  return NULL;
}

static void stress(void) {
  pthread_t threads[MOST_THREADS + 3];
  unsigned started = 0;
  for (; started < thread_count; ++started)
    REQUIRE(pthread_create(&threads[started], NULL, worker, (void *)(uintptr_t)started) == 0);
  void *(*const others[])(void *) = {pauser, reader, spawner};
  for (unsigned i = has_kind(GMM_KIND_VMM) ? 0 : 1; i < 3; ++i)
    REQUIRE(pthread_create(&threads[started++], NULL, others[i], NULL) == 0);
  double end = now_s() + seconds;
  while (now_s() < end && atomic_load(&check_state.failures) == 0) sleep_ms(20);
  atomic_store(&stop, 1);
  for (unsigned i = 0; i < started; ++i) pthread_join(threads[i], NULL);
  uint64_t state = 1;
  for (unsigned i = 0; i < exchange.count; ++i) give(&exchange.blocks[i], &state);
  CHECK_EQUAL(model.count, 0);
  for (unsigned i = 0; i < STREAMS; ++i) OK(gmm_stream_synchronize(context, streams[i]));
  gmm_statistics s = stats();
  printf("# %llu operations, %llu pauses, %llu blocks changed threads, %llu allocations, %llu MiB reserved at most\n",
         (unsigned long long)operations, (unsigned long long)paused_times, (unsigned long long)moved_on,
         (unsigned long long)s.allocations, (unsigned long long)(s.peak_reserved_bytes / MIB));
  CHECK_EQUAL(s.live_blocks, 0);
  CHECK_EQUAL(s.live_bytes, 0);
  CHECK_EQUAL(s.paused_bytes, 0);
  CHECK_EQUAL(s.allocations, s.frees);
  CHECK_EQUAL(s.cached_bytes, s.reserved_bytes);
  CHECK(operations > 100);
  OK(gmm_heap_destroy(heap));
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(stats().reserved_bytes, 0);
  CHECK_EQUAL(stats().extents, 0);
}

int main(int count, char **words) {
  seed_of_run = count > 1 ? strtoull(words[1], NULL, 10) : (uint64_t)time(NULL);
  if (count > 2) seconds = strtod(words[2], NULL);
  if (count > 3) thread_count = (unsigned)atoi(words[3]);
  if (thread_count < 1 || thread_count > MOST_THREADS || seconds <= 0) {
    fprintf(stderr, "use: stress [SEED [SECONDS [THREADS]]], 1 to %d threads\n", MOST_THREADS);
    return 2;
  }
  printf("# seed %llu\n", (unsigned long long)seed_of_run);
  context = open_context(1);
  read_device(0);
  for (unsigned i = 0; i < STREAMS; ++i)
    if (gmm_stream_create(context, 0, &streams[i]) != GMM_OK) return 1;
  tags[0] = GMM_TAG_DEFAULT;
  tags[1] = make_tag("host", GMM_CONTENTS_HOST);
  tags[2] = make_tag("file", GMM_CONTENTS_FILE);
  for (unsigned i = 0; i < TAGS; ++i) pthread_rwlock_init(&touching[i], NULL);
  gmm_heap_desc desc = {.struct_size = sizeof desc, .kind = GMM_KIND_HOST};
  if (gmm_heap_create(context, &desc, &heap) != GMM_OK) return 1;
  RUN(stress);
  for (unsigned i = 0; i < STREAMS; ++i)
    if (gmm_stream_destroy(context, streams[i]) != GMM_OK) return 1;
  if (gmm_context_release(context) != GMM_OK) return 1;
  return check_finish();
}
