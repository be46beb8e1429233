/* SPDX-License-Identifier: Apache-2.0 */
/* Traces of allocations: reading them, and running them. */
#ifndef GMM_CLI_TRACE_H
#define GMM_CLI_TRACE_H

#include <gmm/gmm.h>

struct operation {
  uint64_t size;   /* bytes to allocate; 0: free */
  uint32_t block;  /* from 0 */
  uint32_t stream; /* index into trace.streams */
};

struct trace {
  struct operation *operations;
  uint64_t count;
  uint32_t block_count;
  uint64_t *streams; /* the numbers in the file; the first is 0, the default stream */
  uint32_t stream_count;
  uint64_t peak_requested; /* bytes: the highest sum of live sizes */
};

/* Reads text, also through gzip, and says on stderr what is wrong with which line. 0 when it is not a trace. */
int trace_read(const char *path, struct trace *out);
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
/* Runs the first `count` operations; adds the time that allocs and frees took. */
int player_run(struct player *player, const struct trace *trace, uint64_t count, uint64_t *nanoseconds);
/* Frees what a run left behind. */
int player_clear(struct player *player, const struct trace *trace);
int player_close(struct player *player, const struct trace *trace);

#endif
