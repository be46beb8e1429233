// SPDX-License-Identifier: Apache-2.0
#include "base/registry.h"

namespace gmm {

void Registry::forget_parent() {
  // One more: the fork may have come within add().
  for (uint32_t slot = 0; slot <= used_ && slot < count_; ++slot) {
    places_[slot].object = nullptr;
    places_[slot].serial = 0;
    places_[slot].visitors.store(0, std::memory_order_relaxed);
  }
  lowest_free_ = used_ = 0;
}

bool Registry::add(void *object, RegistryKey *out) {
  const ProcessGuard guard(mutex_, [this] { forget_parent(); });
  for (uint32_t slot = lowest_free_; slot < count_; ++slot) {
    Place &place = places_[slot];
    if (place.serial != 0) continue;
    lowest_free_ = slot + 1;
    if (used_ <= slot) used_ = slot + 1;
    place.object = object;
    // The serials go on in a forked child, whose threads still know those of the parent.
    place.serial = serials_.fetch_add(1, std::memory_order_relaxed) + 1;
    *out = RegistryKey{slot, place.serial};
    return true;
  }
  return false;
}

void Registry::remove(const RegistryKey &key) {
  Place &place = places_[key.slot];
  for (;;) {
    uint32_t visitors = 0;
    {
      const ProcessGuard guard(mutex_, [this] { forget_parent(); });
      if (key.serial == 0 || place.serial != key.serial) return;
      place.object = nullptr;
      visitors = place.visitors.load(std::memory_order_relaxed);
      if (visitors == 0) {
        place.serial = 0;
        if (key.slot < lowest_free_) lowest_free_ = key.slot;
        return;
      }
    }
    wait_while(place.visitors, visitors);
  }
}

void *Registry::visit(const RegistryKey &key) {
  if (key.serial == 0) return nullptr;
  const ProcessGuard guard(mutex_, [this] { forget_parent(); });
  Place &place = places_[key.slot];
  if (place.serial != key.serial || place.object == nullptr) return nullptr;
  place.visitors.fetch_add(1, std::memory_order_relaxed);
  return place.object;
}

void Registry::leave(const RegistryKey &key) {
  const ProcessGuard guard(mutex_, [this] { forget_parent(); });
  Place &place = places_[key.slot];
  // Not so in a child that was forked during the visit.
  if (place.serial != key.serial) return;
  if (place.visitors.fetch_sub(1, std::memory_order_relaxed) == 1 && place.object == nullptr) wake_all(place.visitors);
}

bool Registry::lives(const RegistryKey &key) {
  if (key.serial == 0) return false;
  const ProcessGuard guard(mutex_, [this] { forget_parent(); });
  return places_[key.slot].serial == key.serial && places_[key.slot].object != nullptr;
}

}  // namespace gmm
