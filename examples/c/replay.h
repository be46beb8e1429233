// SPDX-License-Identifier: Apache-2.0
#ifndef GMM_EXAMPLES_REPLAY_H
#define GMM_EXAMPLES_REPLAY_H

#include <stdbool.h>
#include <stddef.h>

// Runs the trace twice in a context of its own, kind VMM, and prints its line. On false `message` says why.
bool replay_trace(const char *path, char *message, size_t room_for_message);

#endif
