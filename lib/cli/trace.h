/* SPDX-License-Identifier: Apache-2.0 */
/* Traces of allocations: reading them, and running them. */
#ifndef GMM_CLI_TRACE_H
#define GMM_CLI_TRACE_H

#include <gmm/gmm.h>
#include <stddef.h>

enum { OPERATION_ALLOC, OPERATION_FREE, OPERATION_USE };

struct operation {
  uint64_t size;          /* bytes to allocate; 0: no alloc */
  uint32_t block;         /* from 0; of an alloc a number that no block lives under */
  uint32_t stream;        /* index into trace.streams */
  uint32_t thread;        /* from 0 */
  uint8_t what;           /* OPERATION_* */
  uint8_t log2_alignment; /* of an alloc; 0: the library's own */
  uint16_t unused;
};

struct trace {
  struct operation *operations; /* in order, over all threads */
  uint64_t count;
  uint32_t block_count;
  uint32_t thread_count;
  uint64_t *streams; /* the numbers in the file; the first is 0, the default stream */
  uint32_t stream_count;
  uint32_t cut;            /* 1: the end of the file is missing, or events in it are; said on stderr */
  uint64_t peak_requested; /* bytes: the highest sum of live sizes */
};

/* Reads a trace, text or binary, also through gzip, and says on stderr what is wrong and where. 0 when it is not a trace. */
int trace_read(const char *path, struct trace *out);
/* The same from memory. `name` is for messages. */
int trace_parse(const char *name, const unsigned char *bytes, size_t size, struct trace *out);
void trace_free(struct trace *trace);

/* A context that runs a trace: streams made, blocks by number. */
struct player {
  gmm_context *context;
  gmm_stream *streams;
  void **blocks;
  gmm_alloc_desc desc;
};

/* 0 after saying on stderr what failed. */
int player_open(const gmm_context_desc *desc, gmm_device device, gmm_kind kind, const struct trace *trace,
                struct player *out);
/* Runs the first `count` operations; adds the time that they took. */
int player_run(struct player *player, const struct trace *trace, uint64_t count, uint64_t *nanoseconds);
/* Runs all operations, those of each recorded thread on a thread of its own and in its order: a free waits until the block is
   there and other threads' uses of it are recorded. Adds the time from the first operation to the last. */
int player_run_threads(struct player *player, const struct trace *trace, uint64_t *nanoseconds);
/* Frees what a run left behind. */
int player_clear(struct player *player, const struct trace *trace);
int player_close(struct player *player, const struct trace *trace);

#endif
