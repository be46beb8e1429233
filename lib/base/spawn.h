// SPDX-License-Identifier: Apache-2.0
// Starts the command `gmm`, which goes on by itself beside the program of this process.
#ifndef GMM_BASE_SPAWN_H
#define GMM_BASE_SPAWN_H

#include <cstdint>

namespace gmm::os {

// `words` ends with NULL. The command is the one beside the library, as in a build tree, a wheel or where it was
// installed, else the one on PATH. It gets nothing of this process but its environment without LD_PRELOAD: no terminal,
// signal mask, or open standard stream. 0 or an error number; ENOENT: there is no such command.
int start_command(const char *const *words, int32_t *process);

// Does not wait. Whether a process that start_command() gave has ended; then the system forgets it.
bool has_program_ended(int32_t process);

}  // namespace gmm::os
#endif
