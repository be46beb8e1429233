/* SPDX-License-Identifier: Apache-2.0 */
/** @file oom.h  A language collects its garbage once before the program hears that memory is short. */
#ifndef GMM_SWIG_OOM_H
#define GMM_SWIG_OOM_H

#include <gmm/gmm.h>

/**
 * Answers an out-of-memory handler. ask(user, NULL) collects garbage and returns whether to try again. ask(user, info)
 * calls the program's handler, which does not see the collector's attempt.
 */
static inline int32_t gmm_oom_answer(void *user, const gmm_oom_info *info,
                                     int32_t (*ask)(void *user, const gmm_oom_info *info)) {
  static _Thread_local uint32_t own; /* attempts of this thread's allocation that were the collector's */
  if (info->attempt == 1) {
    const int32_t again = ask(user, NULL); /* finalizers may come here, for other contexts */
    own = again != 0;
    if (again) return 1;
  }
  const uint32_t hidden = own;
  gmm_oom_info shown = *info;
  shown.struct_size = sizeof shown;
  shown.attempt -= hidden;
  const int32_t answer = ask(user, &shown);
  own = hidden; /* the handler may have allocated from another context */
  return answer;
}

#endif
