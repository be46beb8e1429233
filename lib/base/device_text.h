/* SPDX-License-Identifier: Apache-2.0 */
/* The kinds of memory and the UUIDs of devices as text. C11 and C++. */
#ifndef GMM_BASE_DEVICE_TEXT_H
#define GMM_BASE_DEVICE_TEXT_H

#include <gmm/types.h>

enum { KIND_COUNT = GMM_KIND_MANAGED + 1, UUID_TEXT_SIZE = 37 };
/* By gmm_kind, in messages and tables. */
static const char *const kind_names[KIND_COUNT] = {"unspecified", "DEVICE", "VMM", "HOST", "MANAGED"};
/* In options and JSON; none of no kind. */
static const char *const kind_words[KIND_COUNT] = {0, "device", "vmm", "host", "managed"};

/* The 16 bytes of a UUID, as NVML writes them. */
static inline void uuid_text(const uint8_t *uuid, char *out) {
  static const char digits[] = "0123456789abcdef";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) *out++ = '-';
    *out++ = digits[uuid[i] >> 4];
    *out++ = digits[uuid[i] & 15];
  }
  *out = '\0';
}

#endif
