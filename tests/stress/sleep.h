// SPDX-License-Identifier: Apache-2.0
// The threads of the stress test that pause and resume, directly and by tickets. They also drop, keep and discard
// contents, and change tags.
#ifndef GMM_TESTS_STRESS_SLEEP_H
#define GMM_TESTS_STRESS_SLEEP_H

#include "block.h"

extern atomic_uint working;  // workers that are not done with the round
extern atomic_ullong pauses, cancels, discards, updates;

bool round_goes_on(void);
void pauser_round(void);

#endif
