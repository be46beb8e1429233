// SPDX-License-Identifier: Apache-2.0
// What the library knows of a thread.
#ifndef GMM_PRELOAD_THREAD_H
#define GMM_PRELOAD_THREAD_H

#include <gmm/types.h>

#include "preload/cuda_types.h"

namespace gmm::preload {

struct Label;

struct ThreadState {
  uint32_t depth;  // above 0: inside gmm or a real function; every hook calls the real one
  Code inject;     // what the driver's functions answer meanwhile, so that the runtime fails of its own accord
  // The region (region.h).
  bool configured;  // what follows was set once
  bool own;         // it differs from how threads start
  bool interesting;
  bool cpu_backup;
  bool disk_backup;
  bool pageable;
  const char *name;
  Label *label;
  char message[640];
};
inline constinit thread_local ThreadState t_thread = {};

// The hooks of this thread call the real functions while it lives.
class Inside {
 public:
  Inside() { ++t_thread.depth; }
  ~Inside() { --t_thread.depth; }
  Inside(const Inside &) = delete;
  Inside &operator=(const Inside &) = delete;
};

// Sets the thread's message.
[[gnu::format(printf, 1, 2)]] void say(const char *format, ...);
// The message of gmm's last failure, as this library's.
void say_gmm(gmm_result result, const char *what);

// The number that a CUDA program expects for a failure of gmm.
Code code_of(gmm_result result);

}  // namespace gmm::preload
#endif
