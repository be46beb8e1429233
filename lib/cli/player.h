/* SPDX-License-Identifier: Apache-2.0 */
/* Runs traces: on one thread (player.c), or on a thread for each recorded one (player_threads.c). */
#ifndef GMM_CLI_PLAYER_H
#define GMM_CLI_PLAYER_H

#include "cli/trace.h"

/* What each alloc of a trace is given, or where the flag stands, what the trace tells. */
struct player_memory {
  gmm_kind kind;
  gmm_device device;
  int kind_of_trace, device_of_trace, tag_of_trace;
};

/* A context that runs a trace, with its streams and its blocks by number. */
struct player {
  gmm_context *context;
  gmm_stream *streams;
  void **blocks;
  gmm_alloc_desc desc;
  struct trace_place *places; /* those of the trace, with this context's tags */
  const struct trace_name *names;
};

/* 0: it failed and has printed the cause on stderr. */
int player_open(const gmm_context_desc *desc, const struct player_memory *memory, const struct trace *trace,
                struct player *out);
/* Runs the first `count` operations and adds the time that they took. */
int player_run(struct player *player, const struct trace *trace, uint64_t count, uint64_t *nanoseconds);
/* Runs all operations, those of each recorded thread on a thread of its own and in its order. A free waits until the
   block is there and other threads' uses of it are recorded. Adds the time from the first operation to the last. */
int player_run_threads(struct player *player, const struct trace *trace, uint64_t *nanoseconds);
/* Frees the blocks that a run left. */
int player_clear(struct player *player, const struct trace *trace);
int player_close(struct player *player, const struct trace *trace);

/* --- For player.c and player_threads.c ------------------------------------------------------------------------- */

/* Runs one operation with the caller's copy of player.desc. */
gmm_result player_step(struct player *player, gmm_alloc_desc *desc, const struct operation *operation);
/* Prints on stderr which operation failed. Returns 0. */
int player_report(const struct trace *trace, const struct operation *operation, gmm_result result);
/* The time in nanoseconds. */
uint64_t player_now(void);

#endif
