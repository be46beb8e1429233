// SPDX-License-Identifier: Apache-2.0
#ifndef GMM_EXAMPLES_REPLAY_HPP
#define GMM_EXAMPLES_REPLAY_HPP

#include <string>

void print_replay_header();
// Runs the trace twice in a context of its own, kind VMM, and prints its line. Throws when it cannot.
void replay(const std::string &path);

#endif
