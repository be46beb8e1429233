/* SPDX-License-Identifier: Apache-2.0 */
/* Runs traces: on one thread, or on a thread for each recorded one. */
#ifndef GMM_CLI_PLAYER_H
#define GMM_CLI_PLAYER_H

#include "cli/trace.h"

/* The memory of each alloc, or where the flag stands, that of the trace. A text has no kinds, devices and tags. */
struct player_memory {
  gmm_kind kind;
  gmm_device device;
  int kind_of_trace, device_of_trace, tag_of_trace;
};

/* A context that runs a trace, with its streams and tags and with its blocks by number. */
struct player {
  const struct trace *trace;
  struct player_memory memory;
  gmm_context *context;
  gmm_stream *streams;
  gmm_tag *tags;
  void **blocks;
};

/* 0: it failed and has printed the cause on stderr. */
int player_open(const gmm_context_desc *desc, const struct player_memory *memory, const struct trace *trace,
                struct player *out);
/* Runs the first `count` operations on blocks, and adds the time from the first to the last. With `threads` each
   recorded thread's run on a thread of its own and in its order; each waits for the earlier ones on its block. */
int player_run(struct player *player, uint64_t count, int threads, uint64_t *nanoseconds);
/* Frees the blocks that a run left. */
int player_clear(struct player *player);
int player_close(struct player *player);

#endif
