// SPDX-License-Identifier: Apache-2.0
// The library's state of a thread.
#ifndef GMM_PRELOAD_THREAD_H
#define GMM_PRELOAD_THREAD_H

#include <gmm/types.h>

#include "backend/gpu/driver_api.h"
#include "base/lock.h"
#include "preload/config.h"

namespace gmm::preload {

struct Label;

struct ThreadState {
  uint32_t depth;   // above 0: the thread is inside gmm or a real function, so every hook calls the real one
  CUresult inject;  // the answer of the driver's hooks while it is not 0, so that the runtime itself fails
  RegionSettings region;
  Label *label;     // of the region; NULL: the thread is in none
  bool configured;  // region and label are set (region.h)
  char message[640];
};
inline constinit thread_local ThreadState t_thread = {};

// While it lives, the hooks of this thread call the real functions.
class Inside : NoCopy {
 public:
  Inside() { ++t_thread.depth; }
  ~Inside() { --t_thread.depth; }
};

// Sets the thread's message.
[[gnu::format(printf, 1, 2)]] void say(const char *format, ...);
// Makes the message of gmm's last failure this library's.
void say_gmm(gmm_result result, const char *what);

// The stream that a function of the kind _ptsz works on.
inline CUstream of_thread(CUstream stream) { return stream == nullptr ? CU_STREAM_PER_THREAD : stream; }

// The number that a CUDA program expects for a failure of gmm.
CUresult code_of(gmm_result result);

}  // namespace gmm::preload
#endif
