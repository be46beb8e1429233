/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/player.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cli/cli.h"

enum { MOST_THREADS = 1024 };

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static int refuse(const char *what) {
  fprintf(stderr, "gmm: there is no memory for %s\n", what);
  return 0;
}

/* --- Open and close ---------------------------------------------------------------------------------------------- */

static int make_tags(struct player *player) {
  for (uint32_t i = 0; i < player->trace->tag_count; ++i) {
    player->tags[i] = GMM_TAG_DEFAULT;
    if (i == 0 || !player->memory.tag_of_trace) continue;
    const gmm_result result = gmm_tag_create(player->context, player->trace->tags[i].name, NULL, &player->tags[i]);
    if (result < 0) return report("tag", result);
  }
  return 1;
}

static gmm_device device_of(const struct player *player, const struct trace_event *event) {
  const int known = event->kind != GMM_KIND_UNSPECIFIED && player->memory.device_of_trace;
  return known ? event->device : player->memory.device;
}

/* A stream belongs to a device, which the trace does not tell: that of the first block which is allocated on it. */
static int make_streams(struct player *player) {
  const struct trace *trace = player->trace;
  gmm_device *devices = malloc(trace->stream_count * sizeof *devices);
  if (devices == NULL) return refuse("the table of streams");
  for (uint32_t i = 0; i < trace->stream_count; ++i) devices[i] = player->memory.device;
  for (uint64_t i = trace->count; i-- > 0;)
    if (trace->events[i].type == TRACE_ALLOC) devices[trace->events[i].stream] = device_of(player, &trace->events[i]);
  int good = 1;
  for (uint32_t i = 1; i < trace->stream_count && good; ++i) {
    const gmm_stream_desc stream = {.struct_size = sizeof stream, .device = devices[i]};
    const gmm_result result = gmm_stream_create(player->context, &stream, &player->streams[i]);
    if (result < 0) good = report("stream", result);
  }
  free(devices);
  return good;
}

int player_open(const gmm_context_desc *desc, const struct player_memory *memory, const struct trace *trace,
                struct player *out) {
  struct player player = {.trace = trace, .memory = *memory};
  const gmm_result result = gmm_context_create(desc, &player.context);
  if (result < 0) return report("context", result);
  player.blocks = calloc(trace->block_count + 1u, sizeof *player.blocks);
  player.streams = calloc(trace->stream_count + 1u, sizeof *player.streams);
  player.tags = calloc(trace->tag_count + 1u, sizeof *player.tags);
  int good = player.blocks != NULL && player.streams != NULL && player.tags != NULL;
  if (!good) refuse("the table of blocks");
  good = good && make_tags(&player) && make_streams(&player);
  *out = player;
  return good || (player_close(out), 0);
}

int player_clear(struct player *player) {
  for (uint32_t i = 0; i < player->trace->block_count; ++i) {
    const gmm_result result = gmm_free(player->context, player->blocks[i], GMM_STREAM_DEFAULT);
    if (result < 0) return report("free", result);
    player->blocks[i] = NULL;
  }
  return 1;
}

int player_close(struct player *player) {
  int good = 1;
  for (uint32_t i = 1; i < player->trace->stream_count && player->streams != NULL; ++i) {
    if (player->streams[i] == NULL) continue;
    const gmm_result result = gmm_stream_destroy(player->context, player->streams[i]);
    if (result < 0) good = report("stream", result);
  }
  free(player->streams);
  free(player->blocks);
  free(player->tags);
  const gmm_result result = gmm_context_release(player->context);
  return result < 0 ? report("release", result) : good;
}

/* --- Run --------------------------------------------------------------------------------------------------------- */

/* An operation on a block waits for the earlier operations on that block. Those come earlier in the trace's one
   order, so threads never wait in a circle. */
struct crew {
  struct player *player;
  uint32_t *turn;          /* by event: the number of earlier operations on its block */
  _Atomic(uint32_t) *done; /* by block: the number of operations that are done */
  uint64_t *order;         /* the numbers of the events, sorted by thread */
  _Atomic(uint32_t) ready, go, stop;
};

struct member {
  struct crew *crew;
  uint64_t begin, end;  /* in crew.order */
  uint64_t first, last; /* time of its begin and end */
  pthread_t thread;
};

static gmm_result step(struct player *player, gmm_alloc_desc *desc, const struct trace_event *event) {
  void **block = &player->blocks[event->block];
  const gmm_stream stream = player->streams[event->stream];
  if (event->type == TRACE_BLOCK_NAME) {
    const char *name = player->trace->names[event->value];
    return gmm_name(player->context, *block, name[0] == '\0' ? NULL : name);
  }
  if (event->type == TRACE_USE) return gmm_record_use(player->context, *block, stream);
  if (event->type == TRACE_FREE) {
    void *memory = *block;
    *block = NULL;
    return gmm_free(player->context, memory, stream);
  }
  const int known = event->kind != GMM_KIND_UNSPECIFIED && player->memory.kind_of_trace;
  desc->kind = known ? event->kind : player->memory.kind;
  desc->device = device_of(player, event);
  desc->tag = player->tags[event->tag];
  desc->stream = stream;
  /* The trace may have an alignment that this kind does not offer. */
  desc->alignment = event->log2_alignment <= 21 ? (uint64_t)(event->log2_alignment != 0) << event->log2_alignment : 0;
  desc->flags = event->log2_alignment == TRACE_BORN_PAUSED ? GMM_ALLOC_PAUSED : 0;
  if (desc->flags != 0) desc->kind = GMM_KIND_VMM;
  return gmm_alloc(player->context, event->size, desc, block);
}

static int wait_for_turn(struct crew *crew, uint32_t block, uint32_t turn) {
  for (uint32_t spins = 0; atomic_load_explicit(&crew->done[block], memory_order_acquire) != turn; ++spins) {
    if (atomic_load_explicit(&crew->stop, memory_order_relaxed) != 0) return 0;
    if (spins % 64 == 63) sched_yield();
  }
  return 1;
}

static void *work(void *argument) {
  struct member *member = argument;
  struct crew *crew = member->crew;
  gmm_alloc_desc desc = {.struct_size = sizeof desc};
  atomic_fetch_add(&crew->ready, 1);
  while (atomic_load_explicit(&crew->go, memory_order_acquire) == 0) sched_yield();
  member->first = now();
  for (uint64_t i = member->begin; i < member->end; ++i) {
    const uint64_t number = crew->order[i];
    const struct trace_event *event = &crew->player->trace->events[number];
    if (!wait_for_turn(crew, event->block, crew->turn[number])) break;
    const gmm_result result = step(crew->player, &desc, event);
    if (result < 0) {
      static const char *const names[] = {
          [TRACE_ALLOC] = "alloc", [TRACE_FREE] = "free", [TRACE_USE] = "use", [TRACE_BLOCK_NAME] = "name"};
      if (atomic_exchange(&crew->stop, 1) != 0) break;
      fprintf(stderr, "gmm: operation %llu of the trace:\n", (unsigned long long)number + 1);
      report(names[event->type], result);
      break;
    }
    atomic_store_explicit(&crew->done[event->block], crew->turn[number] + 1, memory_order_release);
  }
  member->last = now();
  return NULL;
}

/* Gives each member its operations; the first one has all of them without `threads`. */
static int plan(struct crew *crew, struct member *members, uint64_t count, uint32_t threads) {
  const struct trace *trace = crew->player->trace;
  uint32_t *counts = calloc(trace->block_count + 1u, sizeof *counts);
  uint64_t *at = calloc(threads + 1u, sizeof *at);
  const int good = counts != NULL && at != NULL;
  uint64_t last = 0;
  for (uint64_t done = 0; good && last < trace->count && done < count; ++last) {
    const struct trace_event *event = &trace->events[last];
    if (event->block == TRACE_NO_BLOCK) continue;
    crew->turn[last] = counts[event->block]++;
    ++at[threads > 1 ? event->thread + 1 : 1];
    ++done;
  }
  for (uint32_t i = 0; i < threads && good; ++i) {
    at[i + 1] += at[i];
    members[i] = (struct member){.crew = crew, .begin = at[i], .end = at[i + 1]};
  }
  for (uint64_t i = 0; i < last && good; ++i)
    if (trace->events[i].block != TRACE_NO_BLOCK) crew->order[at[threads > 1 ? trace->events[i].thread : 0]++] = i;
  free(counts);
  free(at);
  return good;
}

static int run_members(struct crew *crew, struct member *members, uint32_t count) {
  uint32_t started = 0;
  if (count == 1) { /* on the caller's thread */
    atomic_store(&crew->go, 1);
    work(&members[0]);
    return atomic_load(&crew->stop) == 0;
  }
  while (started < count && pthread_create(&members[started].thread, NULL, work, &members[started]) == 0) ++started;
  if (started < count) {
    atomic_store(&crew->stop, 1);
    fprintf(stderr, "gmm: the system refused to start thread %u of %u; raise the limit of threads (ulimit -u)\n",
            started + 1, count);
  }
  while (atomic_load(&crew->ready) != started) sched_yield();
  atomic_store_explicit(&crew->go, 1, memory_order_release);
  for (uint32_t i = 0; i < started; ++i) pthread_join(members[i].thread, NULL);
  return atomic_load(&crew->stop) == 0;
}

int player_run(struct player *player, uint64_t count, int threads, uint64_t *nanoseconds) {
  const struct trace *trace = player->trace;
  const uint32_t member_count = threads && trace->thread_count > 1 ? trace->thread_count : 1;
  if (member_count > MOST_THREADS) {
    fprintf(stderr, "gmm: the trace has %u threads, and --threads runs at most %d; replay it without --threads\n",
            member_count, MOST_THREADS);
    return 0;
  }
  struct crew crew = {.player = player};
  crew.turn = calloc(trace->count + 1, sizeof *crew.turn);
  crew.done = calloc(trace->block_count + 1u, sizeof *crew.done);
  crew.order = calloc(trace->count + 1, sizeof *crew.order);
  struct member *members = calloc(member_count, sizeof *members);
  int good = crew.turn != NULL && crew.done != NULL && crew.order != NULL && members != NULL &&
             plan(&crew, members, count, member_count);
  if (!good) refuse("the threads of the trace");
  good = good && run_members(&crew, members, member_count);
  uint64_t first = UINT64_MAX, last = 0;
  for (uint32_t i = 0; i < member_count && good; ++i) {
    if (members[i].first < first) first = members[i].first;
    if (members[i].last > last) last = members[i].last;
  }
  if (good) *nanoseconds += last - first;
  free(crew.turn);
  free(crew.done);
  free(crew.order);
  free(members);
  return good;
}
