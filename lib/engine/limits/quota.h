// SPDX-License-Identifier: Apache-2.0
// Bytes held from the driver, counted against limits: exact under concurrency, touched only when a heap grows or
// shrinks.
#ifndef GMM_ENGINE_LIMITS_QUOTA_H
#define GMM_ENGINE_LIMITS_QUOTA_H

#include <gmm/stats.h>

#include <atomic>
#include <cstdint>

namespace gmm {

class Quota {
 public:
  // False when the limit would be passed; nothing is charged then.
  [[nodiscard]] bool charge(uint64_t bytes) {
    uint64_t held = held_.load(std::memory_order_relaxed);
    do {
      const uint64_t limit = limit_.load(std::memory_order_relaxed);
      if (bytes > limit || held > limit - bytes) return false;
    } while (!held_.compare_exchange_weak(held, held + bytes, std::memory_order_relaxed));
    return true;
  }
  void refund(uint64_t bytes) { held_.fetch_sub(bytes, std::memory_order_relaxed); }
  // Once the driver has given the memory: an allocation that it refuses is no peak.
  void note_peak() {
    const uint64_t held = held_.load(std::memory_order_relaxed);
    uint64_t peak = peak_.load(std::memory_order_relaxed);
    while (peak < held && !peak_.compare_exchange_weak(peak, held, std::memory_order_relaxed)) {
    }
  }

  uint64_t held() const { return held_.load(std::memory_order_relaxed); }
  uint64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  uint64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  void set_limit(uint64_t bytes) { limit_.store(bytes, std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> held_{0};
  std::atomic<uint64_t> peak_{0};
  std::atomic<uint64_t> limit_{GMM_NO_LIMIT};
};

// The quotas that one heap counts in. All or none is charged.
struct Quotas {
  static constexpr uint32_t kCount =
      6;  // the context, its device, its tag, its tag on its device, the heap; a capture heap's parent
  static constexpr uint32_t kDevice = 1;  // all that the context holds on the heap's device
  Quota *each[kCount] = {};

  // NULL when charged, else the quota that stood in the way.
  Quota *charge(uint64_t bytes) const {
    for (uint32_t i = 0; i < kCount; ++i) {
      if (each[i] == nullptr || each[i]->charge(bytes)) continue;
      for (uint32_t j = 0; j < i; ++j)
        if (each[j] != nullptr) each[j]->refund(bytes);
      return each[i];
    }
    return nullptr;
  }
  void refund(uint64_t bytes) const {
    for (Quota *quota : each)
      if (quota != nullptr) quota->refund(bytes);
  }
  void note_peak() const {
    for (Quota *quota : each)
      if (quota != nullptr) quota->note_peak();
  }
};

}  // namespace gmm
#endif
