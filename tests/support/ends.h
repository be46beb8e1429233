// SPDX-License-Identifier: Apache-2.0
// The holdings of a test program at the system and the fake driver. A program of the interface's tests ends by
// finish_clean(), whose case fails when more is held than before the program's first case.
//
// Counted: open descriptors, threads, mappings of gmm's memory files, reserved addresses, and the objects that the fake
// driver counts. A real driver and SYCL's runtime keep memory of their own, so there the case is skipped.
#ifndef GMM_TESTS_ENDS_H
#define GMM_TESTS_ENDS_H

#include <stdbool.h>
#include <stdint.h>

// Whether the backend is the host, or CUDA on the fake driver of the tests, which was opened before.
bool on_host_or_fake_driver(void);
// GMM_BACKEND is hip.
bool on_hip(void);
// Calls fn, which may be NULL, for each open descriptor of the process. Their number.
uint64_t each_descriptor(void (*fn)(const char *path, const char *target, void *user), void *user);
// open_context() calls it before the program's first context.
void ends_begin(void);
// The last case, and check_finish().
int finish_clean(void);

#endif
