/* SPDX-License-Identifier: Apache-2.0 */
/* What running a trace by one thread and by several have in common. */
#ifndef GMM_CLI_PLAYER_H
#define GMM_CLI_PLAYER_H

#include "cli/trace.h"

/* Runs one operation with the caller's copy of player.desc. */
gmm_result player_step(struct player *player, gmm_alloc_desc *desc, const struct operation *operation);
/* Says on stderr which operation failed. Returns 0. */
int player_report(const struct trace *trace, const struct operation *operation, gmm_result result);
/* Nanoseconds. */
uint64_t player_now(void);

#endif
