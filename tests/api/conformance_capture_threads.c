// SPDX-License-Identifier: Apache-2.0
// Several threads capture graphs side by side, and a graph runs many times beside a busy program.
#include <sched.h>

#include "capture_support.h"

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

static void several_captures_at_once(void) {
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
      CHECK(holds(workers[i].out, SIZE, (uint8_t)workers[i].number, workers[i].stream));
  }
  for (unsigned i = 0; i < THREADS; ++i) {
    destroy_graph(&workers[i].graph);
    OK(gmm_free(context, workers[i].out, workers[i].stream));
    OK(gmm_stream_destroy(context, workers[i].stream));
  }
  end();
  OK(gmm_trim(context, NULL, NULL));
  COMES_BACK();
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

// What a step of training looks like: temporaries of the graph, run many times beside a busy program.
static void a_graph_runs_many_times_beside_a_busy_program(void) {
  begin();
  const uint64_t size = 200000;
  void *in = ALLOC(size), *out = ALLOC(size);
  REQUIRE(in != NULL && out != NULL);
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  begin_capture(a, CAPTURE_GLOBAL);
  void *previous = in;
  for (int layer = 0; layer < 20; ++layer) {
    void *next = ALLOC_STREAM(size, a);
    REQUIRE(next != NULL);
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
    const bool right = holds(out, size, (uint8_t)run, a);
    CHECK_MESSAGE(right, "run %u: the graph's memory was written by others", run);
    if (!right) break;
  }
  atomic_store(&churn_on, 0);
  for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
  destroy_graph(&graph);
  OK(gmm_free(context, in, a));
  OK(gmm_free(context, out, a));
  end();
  OK(gmm_trim(context, NULL, NULL));
  COMES_BACK();
}

int main(void) {
  open_cuda();
  KINDS(several_captures_at_once, ALL_KINDS);
  KINDS(a_graph_runs_many_times_beside_a_busy_program, ALL_KINDS);
  return finish_clean();
}
