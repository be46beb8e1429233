/* SPDX-License-Identifier: Apache-2.0 */
/* The names of gmm_kind, by its number. */
#ifndef GMM_BASE_KIND_NAMES_H
#define GMM_BASE_KIND_NAMES_H

#include <gmm/types.h>

enum { KIND_COUNT = GMM_KIND_MANAGED + 1 };
/* In messages and tables. */
static const char *const kind_names[KIND_COUNT] = {"unspecified", "DEVICE", "VMM", "HOST", "MANAGED"};
/* In options and JSON; none of no kind. */
static const char *const kind_words[KIND_COUNT] = {0, "device", "vmm", "host", "managed"};

#endif
