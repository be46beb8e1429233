/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file collect.h
 * Garbage is collected before a program hears that memory is short. Each language's trampoline of the out-of-memory
 * handler asks gmm_bind_collects() first.
 */
#ifndef GMM_SWIG_COLLECT_H
#define GMM_SWIG_COLLECT_H

#include <gmm/stats.h>
#include <string.h>

/**
 * Whether the allocation is tried again, as garbage has given memory back. `collect` gets the number of its earlier
 * calls for this allocation, and is called until it returns 0. Else *own is the information for the program's handler,
 * whose attempts count from 1.
 */
static inline int gmm_bind_collects(const gmm_oom_info *info, int (*collect)(void *user, uint32_t before), void *user,
                                    gmm_oom_info *own) {
  static _Thread_local uint32_t collected; /* attempts of the allocation that is under way */
  if (info->attempt == 1) collected = 0;
  if (info->attempt == collected + 1 && collect(user, collected)) {
    ++collected;
    return 1;
  }
  memcpy(own, info, info->struct_size < sizeof *own ? info->struct_size : sizeof *own);
  own->attempt -= collected;
  return 0;
}

#endif
