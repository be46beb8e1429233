// SPDX-License-Identifier: Apache-2.0
// Semaphores of other APIs, as events: streams signal them and wait for them.
//
// A semaphore is the driver's own object for a descriptor, or two functions of the program that run on a stream's
// thread. Both outlive every queued use: destroy() waits for the device once a stream has used the semaphore.
#ifndef GMM_ENGINE_IPC_SEMAPHORES_H
#define GMM_ENGINE_IPC_SEMAPHORES_H

#include <gmm/ipc.h>

#include <atomic>

#include "base/status.h"
#include "engine/space/core.h"

namespace gmm {

class Semaphore {
 public:
  explicit Semaphore(Core &core) : core_(core) {}
  // The type and the device exist.
  Status import(const gmm_semaphore_desc &desc);
  bool is_imported() const { return desc_.type != 0; }
  Status destroy();
  Status signal(gmm_stream stream, uint64_t value);
  Status wait(gmm_stream stream, uint64_t value);

 private:
  Status check_value(uint64_t value, const char *function) const;
  Status call(gmm_semaphore_fn fn, gmm_stream stream, uint64_t value, const char *what);

  Core &core_;
  gmm_semaphore_desc desc_ = {};
  NativeSemaphore native_ = nullptr;  // none of CALLS
  std::atomic<bool> was_used_{false};
};

}  // namespace gmm
#endif
