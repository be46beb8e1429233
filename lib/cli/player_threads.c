/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the operations of each recorded thread on a thread of its own. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/player.h"

enum { MOST_THREADS = 1024 };

/* An operation on a block waits for the earlier operations on that block. Those come earlier in the trace's one
   order, so threads never wait in a circle. */
struct crew {
  struct player *player;
  const struct trace *trace;
  uint32_t *turn;          /* by operation: the number of earlier operations on its block */
  _Atomic(uint32_t) *done; /* by block: the number of operations that are done */
  uint64_t *order;         /* the numbers of the operations, sorted by thread */
  _Atomic(uint32_t) ready, go, stop;
};

struct member {
  struct crew *crew;
  uint64_t begin, end;  /* in crew.order */
  uint64_t first, last; /* time of its begin and end */
  pthread_t thread;
};

static int wait_for_turn(struct crew *crew, const struct operation *operation, uint32_t turn) {
  for (uint32_t spins = 0; atomic_load_explicit(&crew->done[operation->block], memory_order_acquire) != turn; ++spins) {
    if (atomic_load_explicit(&crew->stop, memory_order_relaxed) != 0) return 0;
    if (spins % 64 == 63) sched_yield();
  }
  return 1;
}

static void *work(void *argument) {
  struct member *member = argument;
  struct crew *crew = member->crew;
  gmm_alloc_desc desc = crew->player->desc;
  atomic_fetch_add(&crew->ready, 1);
  while (atomic_load_explicit(&crew->go, memory_order_acquire) == 0) sched_yield();
  member->first = player_now();
  for (uint64_t i = member->begin; i < member->end && atomic_load_explicit(&crew->stop, memory_order_relaxed) == 0;
       ++i) {
    const uint64_t number = crew->order[i];
    const struct operation *operation = &crew->trace->operations[number];
    if (!wait_for_turn(crew, operation, crew->turn[number])) break;
    const gmm_result result = player_step(crew->player, &desc, operation);
    if (result < 0) {
      if (atomic_exchange(&crew->stop, 1) == 0) player_report(crew->trace, operation, result);
      break;
    }
    atomic_store_explicit(&crew->done[operation->block], crew->turn[number] + 1, memory_order_release);
  }
  member->last = player_now();
  return NULL;
}

static int plan(struct crew *crew, struct member *members) {
  const struct trace *trace = crew->trace;
  uint32_t *counts = calloc(trace->block_count, sizeof *counts);
  uint64_t *at = calloc(trace->thread_count + 1u, sizeof *at);
  const int good = counts != NULL && at != NULL;
  for (uint64_t i = 0; i < trace->count && good; ++i) {
    crew->turn[i] = counts[trace->operations[i].block]++;
    ++at[trace->operations[i].thread + 1];
  }
  for (uint32_t i = 0; i < trace->thread_count && good; ++i) {
    at[i + 1] += at[i];
    members[i].crew = crew;
    members[i].begin = at[i];
    members[i].end = at[i + 1];
  }
  for (uint64_t i = 0; i < trace->count && good; ++i) crew->order[at[trace->operations[i].thread]++] = i;
  free(counts);
  free(at);
  return good;
}

int player_run_threads(struct player *player, const struct trace *trace, uint64_t *nanoseconds) {
  if (trace->thread_count > MOST_THREADS) {
    fprintf(stderr, "gmm: the trace has %u threads, and --threads runs at most %d; replay it without --threads\n",
            trace->thread_count, MOST_THREADS);
    return 0;
  }
  struct crew crew = {.player = player, .trace = trace};
  crew.turn = calloc(trace->count, sizeof *crew.turn);
  crew.done = calloc(trace->block_count, sizeof *crew.done);
  crew.order = calloc(trace->count, sizeof *crew.order);
  struct member *members = calloc(trace->thread_count, sizeof *members);
  int good = crew.turn != NULL && crew.done != NULL && crew.order != NULL && members != NULL && plan(&crew, members);
  if (!good) fprintf(stderr, "gmm: there is no memory for the threads of the trace\n");
  uint32_t started = 0;
  while (good && started < trace->thread_count) {
    good = pthread_create(&members[started].thread, NULL, work, &members[started]) == 0;
    if (good)
      ++started;
    else
      fprintf(stderr, "gmm: the system refused to start thread %u of %u; raise the limit of threads (ulimit -u)\n",
              started + 1, trace->thread_count);
  }
  if (!good) atomic_store(&crew.stop, 1);
  while (atomic_load(&crew.ready) != started) sched_yield();
  atomic_store_explicit(&crew.go, 1, memory_order_release);
  uint64_t first = UINT64_MAX, last = 0;
  for (uint32_t i = 0; i < started; ++i) {
    pthread_join(members[i].thread, NULL);
    if (members[i].first < first) first = members[i].first;
    if (members[i].last > last) last = members[i].last;
  }
  good = good && atomic_load(&crew.stop) == 0;
  if (good) *nanoseconds += last - first;
  free(crew.turn);
  free(crew.done);
  free(crew.order);
  free(members);
  return good;
}
