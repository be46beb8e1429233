// SPDX-License-Identifier: Apache-2.0
// The streams that use a block when it is freed. An event on each tells when the block is idle.
#ifndef GMM_TORCH_USES_HPP
#define GMM_TORCH_USES_HPP

#include <vector>

#include "context.hpp"

namespace gmm_torch {

class Uses {
 public:
  bool empty() const { return uses_.empty(); }

  void add(gmm_device device, gmm_stream stream) {
    for (const Use &use : uses_)
      if (use.device == device && use.stream == stream) return;
    uses_.push_back({device, stream});
  }

  // Whether every stream has finished the work that was queued at the first call. wait: waits for them.
  bool have_passed(bool wait) {
    bool all = true;
    for (Use &use : uses_) all &= has_passed(&use, wait);
    if (all) uses_.clear();
    return all;
  }

 private:
  struct Use {
    gmm_device device = 0;
    gmm_stream stream = nullptr;
    gmm_event *event = nullptr;  // NULL: it has passed, or is not recorded yet
    bool is_recorded = false;
  };

  static void end_event(Use *use) {
    if (use->event != nullptr) complain(gmm_event_destroy(use->event), "event");
    use->event = nullptr;
  }

  static gmm_result record(Use *use) {
    gmm_event_desc desc = sized<gmm_event_desc>();
    desc.device = use->device;
    const gmm_result result = use->event != nullptr ? GMM_OK : gmm_event_create(context(), &desc, &use->event);
    return result < 0 ? result : gmm_event_record(use->event, 0, use->stream);
  }

  // A stream in capture can neither record its event now nor be waited for; a later call tries again.
  static bool has_passed(Use *use, bool wait) {
    if (!use->is_recorded) {
      if (record(use) < 0) {  // of a stream of another device, say: only a wait helps
        if (gmm_stream_synchronize(context(), use->stream) < 0) return false;
        end_event(use);
      }
      use->is_recorded = true;
    }
    if (use->event == nullptr) return true;
    uint64_t passed = 0;
    gmm_result result = wait ? gmm_event_synchronize(use->event, 0, GMM_FOREVER) : GMM_OK;
    if (result >= 0) result = gmm_event_query(use->event, &passed);
    use->is_recorded = result >= 0;  // an event of a capture has no answer until it is recorded again
    if (result < 0 || passed == 0) return false;
    end_event(use);
    return true;
  }

  std::vector<Use> uses_;
};

}  // namespace gmm_torch

#endif
