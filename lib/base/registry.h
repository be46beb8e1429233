// SPDX-License-Identifier: Apache-2.0
// Objects of this process by slot, for threads that outlive them: a thread notes the slot and the serial of an object,
// and later finds the object only if it still lives. An object does not end while a thread visits it.
//
// Its lock is held for a few instructions only, never during a visit, and no other lock is taken under it. So a visit
// that waits for a lock of its object delays only the thread that ends that object.
#ifndef GMM_BASE_REGISTRY_H
#define GMM_BASE_REGISTRY_H

#include <atomic>
#include <cstdint>

#include "base/process_mutex.h"

namespace gmm {

// Serials are never used again in the process and its children; 0: not registered.
struct RegistryKey {
  uint32_t slot = 0;
  uint64_t serial = 0;
};

// Any thread. A forked child finds nothing that its parent registered.
class Registry {
 public:
  struct Place {
    void *object = nullptr;  // NULL: the slot is free, or its object ends
    uint64_t serial = 0;     // 0: the slot is free
    std::atomic<uint32_t> visitors{0};
  };

  // `places`: constant-initialised memory of `count` places, which lives as long as the registry.
  constexpr Registry(Place *places, uint32_t count) : places_(places), count_(count) {}

  // Takes the lowest free slot. False: all are taken.
  [[nodiscard]] bool add(void *object, RegistryKey *out);
  // Returns when no thread visits the object any more. It does nothing for a key of the process that forked this one.
  void remove(const RegistryKey &key);
  // The object, which does not end before leave(); NULL when it ended or ends. The caller may be the one that ends it
  // only after leave().
  void *visit(const RegistryKey &key);
  void leave(const RegistryKey &key);
  bool lives(const RegistryKey &key);

 private:
  void forget_parent();

  Place *const places_;
  const uint32_t count_;
  ProcessMutex mutex_{LockRank::kRegistry};
  uint32_t lowest_free_ = 0;
  uint32_t used_ = 0;  // slots from here on were never taken
  std::atomic<uint64_t> serials_{0};
};

}  // namespace gmm
#endif
