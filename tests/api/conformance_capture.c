// SPDX-License-Identifier: Apache-2.0
// Programs allocate on streams that are captured into a CUDA graph. The graph's memory is its own while the graph
// lives, and comes back after it. The cases skip a backend without graphs.
#include <sched.h>

#include "../support/cuda_graph.h"

#define MANY 64
#define SIZE ((uint64_t)60000)

static gmm_stream a, b;
static uint64_t held_before;  // reserved bytes before the capture

static void begin(void) {
  if (backend_id() != GMM_BACKEND_CUDA) SKIP("only the CUDA backend has graphs");
  enter_device();
  a = open_stream();
  b = open_stream();
  held_before = stats().reserved_bytes;
}
// The driver says that a graph is gone at some moment after it went.
static bool comes_back_to(uint64_t reserved) {
  for (double end = now_s() + SOON_S; stats().reserved_bytes > reserved; sleep_ms(1))
    if (now_s() > end) return false;
  return true;
}
#define COMES_BACK()                                                                                  \
  CHECK_MESSAGE(comes_back_to(held_before), "%llu bytes stay reserved, %llu were before the capture", \
                (unsigned long long)stats().reserved_bytes, (unsigned long long)held_before)
static void end(void) {
  OK(gmm_stream_destroy(context, a));
  OK(gmm_stream_destroy(context, b));
  exit_device();
  CHECK(gmm_trim(context, NULL, NULL) >= 0);
  COMES_BACK();
}

// Allocates and fills on a stream as any program does beside a graph. No block may be the graph's.
typedef struct crowd {
  uint8_t *blocks[MANY];
  uint8_t value;
} crowd;
static void fill_crowd(crowd *all, gmm_stream stream, uint8_t value, const uint8_t *mine, uint64_t size) {
  all->value = value;
  for (unsigned i = 0; i < MANY; ++i) {
    all->blocks[i] = ALLOC_STREAM(SIZE, stream);
    REQUIRE(all->blocks[i] != NULL);
    CHECK_MESSAGE(all->blocks[i] + SIZE <= mine || all->blocks[i] >= mine + size, "block %u is memory of the graph", i);
    OK(gmm_fill(context, all->blocks[i], value, SIZE, stream));
  }
}
static void check_crowd(const crowd *all, gmm_stream stream) {
  for (unsigned i = 0; i < MANY; ++i)
    CHECK_MESSAGE(is_filled(all->blocks[i], SIZE, all->value, stream), "the graph wrote into block %u", i);
}
static void free_crowd(crowd *all, gmm_stream stream) {
  for (unsigned i = 0; i < MANY; ++i) OK(gmm_free(context, all->blocks[i], stream));
}

// A graph that fills a block of the capture, and copies it to `out`, which is none. The block is freed in the capture.
CASE_OF_KINDS(memory_of_a_graph_is_its_own, ALL_KINDS) {
  enum { PER_THREAD = 3 };
  static const int modes[] = {CAPTURE_GLOBAL, CAPTURE_THREAD_LOCAL, CAPTURE_RELAXED, CAPTURE_GLOBAL};
  for (unsigned i = 0; i < sizeof modes / sizeof *modes; ++i) {
    begin();
    const gmm_stream own = i == PER_THREAD ? GMM_STREAM_PER_THREAD : a;
    void *out = ALLOC(SIZE);
    begin_capture(own, modes[i]);
    uint8_t *temporary = ALLOC_STREAM(SIZE, own);
    if (temporary != NULL) {
      OK(gmm_fill(context, temporary, 0x11, SIZE, own));
      OK(gmm_copy(context, out, temporary, SIZE, own));
      OK(gmm_free(context, temporary, own));
    }
    captured graph = end_capture(own);
    REQUIRE(temporary != NULL && graph.executable != NULL);
    crowd on_own, on_b;
    fill_crowd(&on_own, own, 0xaa, temporary, SIZE);
    fill_crowd(&on_b, b, 0xbb, temporary, SIZE);
    for (int run = 0; run < 3; ++run) {
      OK(gmm_fill(context, out, 0, SIZE, own));
      launch(&graph, own);
      CHECK(is_filled(out, SIZE, 0x11, own));
    }
    check_crowd(&on_own, own);
    check_crowd(&on_b, b);
    free_crowd(&on_own, own);
    free_crowd(&on_b, b);
    OK(gmm_stream_synchronize(context, b));
    destroy_graph(&graph);
    OK(gmm_free(context, out, own));
    end();
  }
}

CASE_OF_KINDS(a_capture_uses_its_own_memory_again, ALL_KINDS) {
  begin();
  begin_capture(a, CAPTURE_GLOBAL);
  for (int i = 0; i < 200; ++i) {
    void *block = ALLOC_STREAM(MIB, a), *large = ALLOC_STREAM(5 * MIB, a);
    OK(gmm_fill(context, block, 1, MIB, a));
    FREE_ON(a, block, large);
  }
  uint64_t reserved = stats().reserved_bytes - held_before;
  CHECK_MESSAGE(reserved <= 16 * MIB, "%llu bytes for 6 MiB at a time", (unsigned long long)reserved);
  captured graph = end_capture(a);
  launch(&graph, a);
  OK(gmm_stream_synchronize(context, a));
  destroy_graph(&graph);
  COMES_BACK();
  end();
}

CASE_OF_KINDS(blocks_freed_after_the_capture_stay_the_graphs, ALL_KINDS) {
  begin();
  begin_capture(a, CAPTURE_GLOBAL);
  uint8_t *block = ALLOC_STREAM(SIZE, a);
  OK(gmm_fill(context, block, 0x22, SIZE, a));
  captured graph = end_capture(a);
  launch(&graph, a);
  CHECK(is_filled(block, SIZE, 0x22, a));
  OK(gmm_free(context, block, a));
  crowd all;
  fill_crowd(&all, a, 0xcc, block, SIZE);
  launch(&graph, a);
  check_crowd(&all, a);
  // The executable graph keeps the memory by itself.
  CU(cuda.cuGraphDestroy(graph.graph));
  graph.graph = NULL;
  sleep_ms(50);
  OK(gmm_trim(context, NULL, NULL));
  launch(&graph, a);
  OK(gmm_stream_synchronize(context, a));
  check_crowd(&all, a);
  free_crowd(&all, a);
  destroy_graph(&graph);
  end();
}

CASE_OF_KINDS(memory_comes_back_when_the_graph_goes, ALL_KINDS) {
  begin();
  begin_capture(a, CAPTURE_GLOBAL);
  void *small = ALLOC_STREAM(1000, a), *large = ALLOC_STREAM(20 * MIB, a);
  FREE_ON(a, small, large);
  captured graph = end_capture(a);
  CHECK(stats().reserved_bytes >= held_before + 20 * MIB);
  gmm_result trimmed = gmm_trim(context, NULL, NULL);
  CHECK(trimmed >= 0);
  CHECK_MESSAGE(stats().reserved_bytes >= held_before + 20 * MIB, "trim took memory of a graph");
  destroy_graph(&graph);
  COMES_BACK();
  end();
}

CASE_OF_KINDS(blocks_outlive_their_graph, ALL_KINDS) {
  begin();
  begin_capture(a, CAPTURE_THREAD_LOCAL);
  void *kept = ALLOC_STREAM(3 * MIB, a), *freed = ALLOC_STREAM(9 * MIB, a);
  OK(gmm_free(context, freed, a));
  captured graph = end_capture(a);
  write_pattern(kept, 3 * MIB, 5, a);
  destroy_graph(&graph);
  CHECK_MESSAGE(comes_back_to(held_before + 8 * MIB), "what no block is in did not come back");
  CHECK_PATTERN(kept, 3 * MIB, 5);
  CHECK_EQUAL(query(kept).state, GMM_STATE_ACTIVE);
  OK(gmm_free(context, kept, a));
  COMES_BACK();
  RESULT(gmm_free(context, kept, a), GMM_ERROR_UNKNOWN_POINTER);
  end();
}

CASE_OF_KINDS(two_streams_of_one_capture, ALL_KINDS) {
  begin();
  void *fork_event = NULL, *join_event = NULL;
  CU(cuda.cuEventCreate(&fork_event, EVENT_WITHOUT_TIMING));
  CU(cuda.cuEventCreate(&join_event, EVENT_WITHOUT_TIMING));
  void *out_a = ALLOC(SIZE), *out_b = ALLOC(SIZE);
  begin_capture(a, CAPTURE_GLOBAL);
  CU(cuda.cuEventRecord(fork_event, a));
  CU(cuda.cuStreamWaitEvent(b, fork_event, 0));
  // Freed on one stream, wanted on the other: they run side by side, so it must be other memory.
  for (int i = 0; i < 8; ++i) {
    void *on_a = ALLOC_STREAM(SIZE + (uint64_t)i * 300000, a), *on_b = ALLOC_STREAM(SIZE + (uint64_t)i * 500000, b);
    OK(gmm_fill(context, on_a, 0x31, SIZE, a));
    OK(gmm_fill(context, on_b, 0x32, SIZE, b));
    OK(gmm_copy(context, out_a, on_a, SIZE, a));
    OK(gmm_copy(context, out_b, on_b, SIZE, b));
    OK(gmm_free(context, on_b, b));
    void *again = ALLOC_STREAM(SIZE + (uint64_t)i * 500000, a);
    CHECK_MESSAGE(again != on_b, "memory freed on one stream of a capture came back on another");
    FREE_ON(a, again, on_a);
  }
  // Used on both: kept apart until the graph goes.
  void *shared = ALLOC_STREAM(SIZE, a);
  OK(gmm_record_use(context, shared, b));
  OK(gmm_free(context, shared, a));
  CU(cuda.cuEventRecord(join_event, b));
  CU(cuda.cuStreamWaitEvent(a, join_event, 0));
  captured graph = end_capture(a);
  REQUIRE(graph.executable != NULL);
  launch(&graph, a);
  CHECK(is_filled(out_a, SIZE, 0x31, a));
  CHECK(is_filled(out_b, SIZE, 0x32, a));
  destroy_graph(&graph);
  FREE_ON(a, out_a, out_b);
  CU(cuda.cuEventDestroy_v2(fork_event));
  CU(cuda.cuEventDestroy_v2(join_event));
  end();
}

CASE_OF_KINDS(a_failed_capture_gives_its_memory_back, ALL_KINDS) {
  begin();
  begin_capture(a, CAPTURE_GLOBAL);
  void *block = ALLOC_STREAM(SIZE, a);
  uint64_t address = 0;
  CHECK_MESSAGE(cuda.cuMemAlloc_v2(&address, 4096) != 0, "the driver allows what gmm must avoid: this shows nothing");
  void *refused = NULL;
  gmm_alloc_desc desc = alloc_desc();
  desc.stream = a;
  RESULT(gmm_alloc(context, SIZE, &desc, &refused), GMM_ERROR_CAPTURING);
  OK(gmm_free(context, block, a));
  void *graph = NULL;
  CHECK(cuda.cuStreamEndCapture(a, &graph) != 0);
  CHECK(graph == NULL);
  COMES_BACK();
  block = ALLOC_STREAM(SIZE, a);
  OK(gmm_fill(context, block, 1, SIZE, a));
  CHECK(is_filled(block, SIZE, 1, a));
  OK(gmm_free(context, block, a));
  end();
}

VMM_CASE(a_paused_graph_keeps_its_addresses) {
  begin();
  gmm_tag tag = make_tag("graph", GMM_CONTENTS_HOST);
  gmm_pause_desc desc = {.struct_size = sizeof desc, .tags = &tag, .tag_count = 1};
  void *out = ALLOC(SIZE);
  OK(gmm_tag_push(context, tag));
  begin_capture(a, CAPTURE_GLOBAL);
  uint8_t *kept = ALLOC_STREAM(SIZE, a), *large = ALLOC_STREAM(7 * MIB, a);
  OK(gmm_fill(context, large, 0x41, 7 * MIB, a));
  OK(gmm_copy(context, out, large + 6 * MIB, SIZE, a));
  OK(gmm_free(context, large, a));
  RESULT(gmm_pause(context, &desc, NULL), GMM_ERROR_CAPTURING);
  captured graph = end_capture(a);
  OK(gmm_tag_pop(context));
  REQUIRE(graph.executable != NULL);
  write_pattern(kept, SIZE, 9, a);
  uint64_t bytes = 0;
  OK(gmm_pause(context, &desc, &bytes));
  CHECK(bytes >= 8 * MIB);
  CHECK_EQUAL(query(kept).state, GMM_STATE_PAUSED);
  OK(gmm_resume(context, &desc, NULL));
  CHECK_PATTERN(kept, SIZE, 9);
  launch(&graph, a);
  CHECK_MESSAGE(is_filled(out, SIZE, 0x41, a), "the graph's own block did not come back with the resume");
  OK(gmm_free(context, kept, a));
  // A graph that goes while its memory is paused.
  OK(gmm_pause(context, &desc, &bytes));
  destroy_graph(&graph);
  sleep_ms(50);
  CHECK(gmm_resume(context, &desc, NULL) >= 0);
  OK(gmm_free(context, out, a));
  end();
  CHECK_EQUAL(stats().paused_bytes, 0);
}

CASE_OF_KINDS(trim_spoils_no_capture, ALL_KINDS) {
  begin();
  void *elsewhere = ALLOC_STREAM(30 * MIB, b), *mine = ALLOC_STREAM(5 * MIB, a);
  OK(gmm_fill(context, elsewhere, 1, MIB, b));
  OK(gmm_free(context, elsewhere, b));
  OK(gmm_free(context, mine, a));  // on a stream that is captured from here on: it cannot be waited for
  begin_capture(a, CAPTURE_GLOBAL);
  void *block = ALLOC_STREAM(SIZE, a);
  CHECK(gmm_trim(context, NULL, NULL) >= 0);
  CHECK_MESSAGE(stats().reserved_bytes < held_before + 30 * MIB, "trim left memory of a stream that is not captured");
  OK(gmm_free(context, block, a));
  captured graph = end_capture(a);
  CHECK(graph.graph != NULL);
  destroy_graph(&graph);
  end();
}

CASE_OF_KINDS(a_zeroed_block_is_zero_in_every_run, ALL_KINDS) {
  begin();
  void *out = ALLOC(SIZE);
  begin_capture(a, CAPTURE_GLOBAL);
  gmm_alloc_desc desc = alloc_desc();
  desc.stream = a;
  desc.flags = GMM_ALLOC_ZERO;
  void *block = NULL;
  OK(gmm_alloc(context, SIZE, &desc, &block));
  REQUIRE(block != NULL && out != NULL);
  OK(gmm_copy(context, out, block, SIZE, a));
  OK(gmm_fill(context, block, 0x51, SIZE, a));
  captured graph = end_capture(a);
  for (int i = 0; i < 3; ++i) {
    OK(gmm_fill(context, out, 0xff, SIZE, a));
    launch(&graph, a);
    CHECK(is_filled(out, SIZE, 0, a));
    CHECK(is_filled(block, SIZE, 0x51, a));
  }
  destroy_graph(&graph);
  FREE_ON(a, block, out);
  end();
}

CASE_OF_KINDS(a_heap_of_its_own, ALL_KINDS) {
  begin();
  gmm_heap *heap = HEAP(.limit = 8 * MIB);
  void *outside = NULL, *inside = NULL, *refused = NULL;
  OK(gmm_heap_alloc(heap, SIZE, 0, 0, a, &outside));
  OK(gmm_free(context, outside, a));
  begin_capture(a, CAPTURE_GLOBAL);
  OK(gmm_heap_alloc(heap, SIZE, 0, 0, a, &inside));
  CHECK_MESSAGE(inside != outside, "a capture was given memory from outside");
  RESULT(gmm_heap_alloc(heap, 7 * MIB, 0, 0, a, &refused), GMM_ERROR_LIMIT_EXCEEDED);
  captured graph = end_capture(a);
  RESULT(gmm_heap_destroy(heap), GMM_ERROR_BUSY);
  OK(gmm_free(context, inside, a));
  OK(gmm_heap_destroy(heap));  // the graph keeps its memory
  CHECK(stats().reserved_bytes > held_before);
  launch(&graph, a);
  OK(gmm_stream_synchronize(context, a));
  destroy_graph(&graph);
  COMES_BACK();
  end();
}

CASE_OF_KINDS(statistics_and_snapshot_know_it, ALL_KINDS) {
  begin();
  gmm_tag tag = make_tag("captured", GMM_CONTENTS_DROP);
  begin_capture(a, CAPTURE_GLOBAL);
  gmm_alloc_desc desc = alloc_desc();
  desc.stream = a;
  desc.tag = tag;
  void *block = NULL;
  OK(gmm_alloc(context, 3 * MIB, &desc, &block));
  REQUIRE(block != NULL);
  CHECK_EQUAL(query(block).tag, tag);
  CHECK_EQUAL(query(block).kind, kind);
  CHECK_EQUAL(stats_of(GMM_SCOPE_TAG, 0, tag, 0).live_bytes, 3 * MIB);
  CHECK(stats_of(GMM_SCOPE_TAG | GMM_SCOPE_KIND | GMM_SCOPE_DEVICE, device, tag, kind).reserved_bytes >= 3 * MIB);
  char *text = snapshot_text();
  const char *heading = "\"tag\":\"captured\",\"capture\":";
  bool shown = false;
  for (const char *at = text; !shown && (at = strstr(at, heading)) != NULL;)
    shown = strtoull(at += strlen(heading), NULL, 10) != 0;
  CHECK_MESSAGE(shown, "no heap of the snapshot names a capture");
  free(text);
  captured graph = end_capture(a);
  OK(gmm_free(context, block, a));
  uint64_t allocations = stats_of(GMM_SCOPE_TAG, 0, tag, 0).allocations;
  destroy_graph(&graph);
  COMES_BACK();
  CHECK_EQUAL(stats_of(GMM_SCOPE_TAG, 0, tag, 0).allocations, allocations);
  end();
}

CASE_OF_KINDS(a_graph_outlives_its_context, ALL_KINDS) {
  begin();
  gmm_context *mine = context, *other = open_context(2);
  context = other;
  gmm_stream stream = open_stream();
  begin_capture(stream, CAPTURE_GLOBAL);
  void *block = ALLOC_STREAM(SIZE, stream), *freed = ALLOC_STREAM(2 * SIZE, stream);
  CHECK(block != NULL);
  OK(gmm_free(context, freed, stream));
  captured graph = end_capture(stream);
  OK(gmm_stream_destroy(context, stream));
  OK(gmm_context_release(other));
  context = mine;
  destroy_graph(&graph);
  sleep_ms(50);
  block = ALLOC_STREAM(SIZE, a);
  OK(gmm_free(context, block, a));
  end();
}

// The flag promises the program no question at an allocation, and promises gmm no capture: there is no heap for the
// capture.
CASE(a_program_without_captures_is_not_asked) {
  begin();
  uint64_t (*count)(const char *) = NULL;
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  *(void **)(void *)&count = library == NULL ? NULL : dlsym(library, "fake_cuda_count");
  gmm_context_desc desc = {.struct_size = sizeof desc, .flags = GMM_CONTEXT_NO_CAPTURE};
  gmm_context *asking = context, *plain = NULL;
  MUST(gmm_context_create(&desc, &plain));
  for (int asks = 0; asks < 2; ++asks) {
    context = asks ? asking : plain;
    void *block = ALLOC_STREAM(SIZE, a);
    OK(gmm_free(context, block, a));
    uint64_t before = count != NULL ? count("cuStreamIsCapturing") : 0;
    block = ALLOC_STREAM(SIZE, a);
    OK(gmm_free(context, block, a));
    if (count != NULL) CHECK_EQUAL(count("cuStreamIsCapturing") - before, (uint64_t)asks);
    block = ALLOC(SIZE);
    FREE(block);
    block = ALLOC(SIZE);
    uint64_t warm = count != NULL ? count(NULL) : 0;
    FREE(block);
    block = ALLOC(SIZE);
    if (count != NULL) CHECK_EQUAL(count(NULL), warm);
    FREE(block);
  }
  context = asking;
  OK(gmm_context_release(plain));
  end();
}

// --- Threads ---------------------------------------------------------------------------------------------------------

typedef struct worker {
  unsigned number;
  atomic_int *start;
  uint8_t *block;
  void *out;
  captured graph;
  gmm_stream stream;
} worker;

static void *capture_in_thread(void *argument) {
  worker *self = argument;
  enter_device();
  OK(gmm_stream_create(context, STREAM_ON(device), &self->stream));
  atomic_fetch_sub(self->start, 1);
  while (atomic_load(self->start) > 0) sched_yield();
  for (int round = 0; round < 10; ++round) {
    destroy_graph(&self->graph);
    begin_capture(self->stream, self->number % 2 ? CAPTURE_GLOBAL : CAPTURE_THREAD_LOCAL);
    self->block = ALLOC_STREAM(SIZE, self->stream);
    uint8_t *large = ALLOC_STREAM(3 * MIB, self->stream);
    if (self->block != NULL && large != NULL) {
      OK(gmm_fill(context, large, self->number, SIZE, self->stream));
      OK(gmm_copy(context, self->block, large, SIZE, self->stream));
      OK(gmm_copy(context, self->out, self->block, SIZE, self->stream));
      OK(gmm_free(context, large, self->stream));
      OK(gmm_free(context, self->block, self->stream));
    }
    self->graph = end_capture(self->stream);
  }
  exit_device();
  return NULL;
}

CASE_OF_KINDS(several_captures_at_once, ALL_KINDS) {
  begin();
  enum { THREADS = 4 };
  worker workers[THREADS];
  pthread_t threads[THREADS];
  atomic_int start = THREADS;
  for (unsigned i = 0; i < THREADS; ++i) {
    workers[i] = (worker){.number = i + 1, .start = &start, .out = ALLOC(SIZE)};
    REQUIRE(workers[i].out != NULL);
  }
  for (unsigned i = 0; i < THREADS; ++i) pthread_create(&threads[i], NULL, capture_in_thread, &workers[i]);
  for (unsigned i = 0; i < THREADS; ++i) pthread_join(threads[i], NULL);
  for (unsigned i = 0; i < THREADS; ++i)
    for (unsigned j = 0; j < i; ++j) CHECK_MESSAGE(workers[i].block != workers[j].block, "two graphs share a block");
  for (int run = 0; run < 3; ++run) {
    for (unsigned i = 0; i < THREADS; ++i) launch(&workers[i].graph, workers[i].stream);
    for (unsigned i = 0; i < THREADS; ++i)
      CHECK(is_filled(workers[i].out, SIZE, (uint8_t)workers[i].number, workers[i].stream));
  }
  for (unsigned i = 0; i < THREADS; ++i) {
    destroy_graph(&workers[i].graph);
    OK(gmm_free(context, workers[i].out, workers[i].stream));
    OK(gmm_stream_destroy(context, workers[i].stream));
  }
  end();
}

static atomic_int churn_on;
static void *churn(void *argument) {
  gmm_stream stream = argument;
  enter_device();
  void *blocks[32] = {NULL};
  unsigned seed = (unsigned)(uintptr_t)stream | 1;
  while (atomic_load(&churn_on) != 0) {
    seed = seed * 1103515245 + 12345;
    const unsigned i = seed >> 16 & 31;
    if (blocks[i] != NULL) OK(gmm_free(context, blocks[i], stream));
    const uint64_t size = 4096 + (seed >> 8 & 0xffff) * 4;
    blocks[i] = ALLOC_STREAM(size, stream);
    if (blocks[i] == NULL) break;
    OK(gmm_fill(context, blocks[i], 0xee, size, stream));
    if ((seed >> 24 & 31) == 0) CHECK(gmm_trim(context, NULL, NULL) >= 0);
  }
  OK(gmm_stream_synchronize(context, stream));
  for (unsigned i = 0; i < 32; ++i)
    if (blocks[i] != NULL) OK(gmm_free(context, blocks[i], stream));
  exit_device();
  return NULL;
}

// A step of training: temporaries of the graph, run many times beside a busy program.
CASE_OF_KINDS(a_graph_runs_many_times_beside_a_busy_program, ALL_KINDS) {
  begin();
  const uint64_t size = 200000;
  void *in = ALLOC(size), *out = ALLOC(size);
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  begin_capture(a, CAPTURE_GLOBAL);
  void *previous = in;
  for (int layer = 0; layer < 20; ++layer) {
    void *next = ALLOC_STREAM(size, a);
    OK(gmm_copy(context, next, previous, size, a));
    if (previous != in) OK(gmm_free(context, previous, a));
    previous = next;
  }
  OK(gmm_copy(context, out, previous, size, a));
  OK(gmm_free(context, previous, a));
  captured graph = end_capture(a);
  REQUIRE(graph.executable != NULL);
  pthread_t threads[2];
  atomic_store(&churn_on, 1);
  pthread_create(&threads[0], NULL, churn, a);
  pthread_create(&threads[1], NULL, churn, b);
  for (uint32_t run = 0; run < 100; ++run) {
    OK(gmm_fill(context, in, run & 0xff, size, a));
    launch(&graph, a);
    const bool right = is_filled(out, size, (uint8_t)run, a);
    CHECK_MESSAGE(right, "run %u: the graph's memory was written by others", run);
    if (!right) break;
  }
  atomic_store(&churn_on, 0);
  for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
  destroy_graph(&graph);
  FREE_ON(a, in, out);
  end();
}

static void open_cuda(void) {
  const char *backend = getenv("GMM_BACKEND");
  if (backend == NULL || strcmp(backend, "cuda") != 0 || find_cuda()) return;
  printf("Bail out! the driver lacks an entry that the test needs\n");
  exit(99);
}

int main(void) {
  open_cuda();
  return run_cases();
}
