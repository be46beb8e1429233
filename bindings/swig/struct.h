/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file struct.h
 * How the options of a language cross into C: as the bytes of a descriptor, with its text and lists behind it.
 *
 * | bytes | hold |
 * | --- | --- |
 * | 0 to struct_size | the descriptor; a pointer to data behind it is the offset of that data from the begin |
 * | 4 | how many such pointers there are |
 * | 4 for each | where that pointer stands in the descriptor |
 * | the rest | the data, each piece aligned to 8 bytes |
 */
#ifndef GMM_SWIG_STRUCT_H
#define GMM_SWIG_STRUCT_H

#include <stdint.h>

/** Turns the offsets of these bytes into pointers. The descriptor is good while the bytes stay in their place. */
static inline void *gmm_bind_struct(void *bytes) {
  char *begin = (char *)bytes;
  const uint32_t *list = (const uint32_t *)(begin + *(const uint32_t *)bytes);
  for (uint32_t i = 1; i <= list[0]; ++i) *(uint64_t *)(begin + list[i]) += (uint64_t)(uintptr_t)begin;
  return bytes;
}

#endif
