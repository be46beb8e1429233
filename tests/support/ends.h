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
// The open descriptors of the process. `print`: each with what it opens.
uint64_t descriptors_now(bool print);
// open_context() calls it before the program's first context.
void ends_begin(void);
// The last case, and check_finish().
int finish_clean(void);

#endif
