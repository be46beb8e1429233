/* SPDX-License-Identifier: Apache-2.0 */
/* The binary format: merges the threads' events by time into one order. lib/engine/trace/trace.h says why that order
   is right. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/trace_builder.h"
#include "cli/trace_chunks.h"
#include "cli/trace_live.h"

struct merger {
  struct trace_builder *builder;
  struct chunks chunks;
  struct cursor *cursors; /* one for each thread */
  uint32_t *heap;         /* the threads that have an event, the earliest first */
  uint32_t *tied;
  uint32_t thread_count, heap_count;
  struct live_table live;
  uint64_t before;   /* frees and uses of blocks from before the trace */
  uint64_t presumed; /* frees that must be missing */
};

int trace_is_binary(const unsigned char *bytes, size_t size) { return size >= 8 && memcmp(bytes, "gmmtrace", 8) == 0; }

/* --- The threads by time --------------------------------------------------------------------------------------- */

static int earlier(const struct merger *merger, uint32_t a, uint32_t b) {
  const uint64_t left = merger->cursors[a].time, right = merger->cursors[b].time;
  return left != right ? left < right : a < b;
}

static void push(struct merger *merger, uint32_t thread) {
  uint32_t at = merger->heap_count++;
  for (; at > 0 && earlier(merger, thread, merger->heap[(at - 1) / 2]); at = (at - 1) / 2)
    merger->heap[at] = merger->heap[(at - 1) / 2];
  merger->heap[at] = thread;
}

static uint32_t pop(struct merger *merger) {
  const uint32_t top = merger->heap[0], last = merger->heap[--merger->heap_count];
  uint32_t at = 0;
  for (uint32_t child = 1; child < merger->heap_count; child = 2 * at + 1) {
    if (child + 1 < merger->heap_count && earlier(merger, merger->heap[child + 1], merger->heap[child])) ++child;
    if (!earlier(merger, merger->heap[child], last)) break;
    merger->heap[at] = merger->heap[child];
    at = child;
  }
  merger->heap[at] = last;
  return top;
}

static int possible(struct merger *merger, const struct cursor *cursor) {
  if (cursor->what == EVENT_RESET || cursor->what == EVENT_TAG) return 1;
  return (live_find(&merger->live, cursor->address) != NULL) == (cursor->what != EVENT_ALLOC);
}

/* Returns the thread of the earliest event. Of several at one time it takes the first event that is possible. */
static uint32_t next_thread(struct merger *merger) {
  const uint32_t first = pop(merger);
  if (possible(merger, &merger->cursors[first])) return first;
  uint32_t count = 0, found = first;
  while (found == first && merger->heap_count != 0 &&
         merger->cursors[merger->heap[0]].time == merger->cursors[first].time) {
    const uint32_t other = pop(merger);
    if (possible(merger, &merger->cursors[other]))
      found = other;
    else
      merger->tied[count++] = other;
  }
  while (count != 0) push(merger, merger->tied[--count]);
  if (found != first) push(merger, first);
  return found;
}

/* --- Events ---------------------------------------------------------------------------------------------------- */

static const char *add_free(struct merger *merger, struct live_block *live, uint32_t thread, uint32_t stream) {
  const struct operation operation = {.block = live->block, .stream = stream, .thread = thread, .what = OPERATION_FREE};
  const char *wrong = trace_add(merger->builder, &operation, live->size);
  live_remove(&merger->live, live);
  return wrong;
}

static const char *free_all(struct merger *merger, uint32_t thread) {
  for (uint64_t i = 0; i < merger->live.capacity;) {
    if (merger->live.items[i].address == 0) {
      ++i;
      continue;
    }
    const char *wrong = add_free(merger, &merger->live.items[i], thread, 0);
    if (wrong != NULL) return wrong;
  }
  return NULL;
}

static const char *add_event(struct merger *merger, uint32_t thread) {
  const struct cursor *cursor = &merger->cursors[thread];
  struct trace *trace = &merger->builder->trace;
  struct operation operation = {.thread = thread};
  if (cursor->what == EVENT_RESET) return free_all(merger, thread);
  if (cursor->what == EVENT_TAG) return trace_add_tag(trace, cursor->tag, cursor->name);
  /* gmm_stream 1 is a default stream too. */
  const char *wrong = trace_stream_index(trace, cursor->stream == 1 ? 0 : cursor->stream, &operation.stream);
  if (wrong != NULL) return wrong;
  struct live_block *live = live_find(&merger->live, cursor->address);
  if (cursor->what == EVENT_ALLOC) {
    if (live != NULL) {
      if (!trace->cut) return "the allocation is at the address of a live block";
      ++merger->presumed;
      wrong = add_free(merger, live, thread, operation.stream);
      if (wrong != NULL) return wrong;
    }
    if (trace->block_count == UINT32_MAX) return "the trace has more blocks than this program can count";
    operation.size = cursor->size;
    operation.block = trace->block_count;
    operation.log2_alignment = cursor->log2_alignment;
    const struct trace_place place = {.kind = cursor->heap_word & 0xffff,
                                      .device = (gmm_device)(cursor->heap_word >> 16 & 0xffff),
                                      .tag = (gmm_tag)(cursor->heap_word >> 32)};
    wrong = trace_place_index(trace, place, &operation.place);
    if (wrong != NULL) return wrong;
    const struct live_block block = {cursor->address, cursor->size, operation.block};
    if (!live_add(&merger->live, block)) return "no memory for the trace";
    return trace_add(merger->builder, &operation, 0);
  }
  if (live == NULL) {
    ++merger->before;
    return NULL;
  }
  if (cursor->what == EVENT_FREE) return add_free(merger, live, thread, operation.stream);
  operation.block = live->block;
  operation.what = OPERATION_USE;
  if (cursor->what == EVENT_NAME) {
    operation.what = OPERATION_NAME;
    operation.stream = trace->name_count;
    wrong = trace_add_name(&trace->names, &trace->name_count, 0, cursor->name);
    if (wrong != NULL) return wrong;
  }
  return trace_add(merger->builder, &operation, 0);
}

/* --- The whole --------------------------------------------------------------------------------------------------- */

static int open_threads(struct merger *merger) {
  const struct chunks *chunks = &merger->chunks;
  for (uint64_t i = 0; i < chunks->count; ++i)
    merger->thread_count += i == 0 || chunks->items[i].thread != chunks->items[i - 1].thread;
  merger->cursors = calloc(merger->thread_count + 1u, sizeof *merger->cursors);
  merger->heap = calloc(merger->thread_count + 1u, sizeof *merger->heap);
  merger->tied = calloc(merger->thread_count + 1u, sizeof *merger->tied);
  if (merger->cursors == NULL || merger->heap == NULL || merger->tied == NULL)
    return chunks_bad(chunks, 0, "no memory for the trace");
  uint32_t thread = 0;
  for (uint64_t i = 0; i < chunks->count; ++thread) {
    struct cursor *cursor = &merger->cursors[thread];
    cursor->chunk = &chunks->items[i];
    while (i < chunks->count && chunks->items[i].thread == cursor->chunk->thread) ++i;
    cursor->last = &chunks->items[i];
    if (!cursor_next(chunks, cursor)) return 0;
    if (cursor->what != EVENT_NONE) push(merger, thread);
  }
  return 1;
}

static int merge(struct merger *merger) {
  if (!open_threads(merger)) return 0;
  while (merger->heap_count != 0) {
    const uint32_t thread = next_thread(merger);
    struct cursor *cursor = &merger->cursors[thread];
    const char *wrong = add_event(merger, thread);
    if (wrong != NULL) return chunks_bad(&merger->chunks, cursor->offset, wrong);
    if (!cursor_next(&merger->chunks, cursor)) return 0;
    if (cursor->what != EVENT_NONE) push(merger, thread);
  }
  return 1;
}

static void tell_cut(const struct merger *merger) {
  const struct chunks *chunks = &merger->chunks;
  fprintf(stderr, "gmm: %s: the trace is incomplete: ", chunks->name);
  if (chunks->ended)
    fprintf(stderr, "its end says that %llu events are missing", (unsigned long long)chunks->lost);
  else
    fprintf(stderr, "its end is missing, as after a kill of the program; gmm ignores %llu bytes of a cut chunk",
            (unsigned long long)chunks->useless);
  fprintf(stderr, "; gmm presumes %llu frees\n", (unsigned long long)merger->presumed);
}

int trace_parse_binary(struct trace_builder *builder, const unsigned char *bytes, size_t size) {
  struct merger merger = {.builder = builder};
  int good = chunks_read(builder->name, bytes, size, &merger.chunks);
  builder->trace.cut = !merger.chunks.ended || merger.chunks.lost != 0 || merger.chunks.gaps;
  good = good && merge(&merger);
  if (good && builder->trace.cut) tell_cut(&merger);
  free(merger.chunks.items);
  free(merger.cursors);
  free(merger.heap);
  free(merger.tied);
  free(merger.live.items);
  return good;
}
