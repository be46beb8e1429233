// SPDX-License-Identifier: Apache-2.0
#include "engine/range/pin.h"

#include <cinttypes>

#include "base/os_memory.h"

namespace gmm {
namespace {

// No process of a 64-bit system has memory above. Linux gives the upper half of the addresses to the kernel.
constexpr uint64_t kMaxAddress = uint64_t{1} << 63;

}  // namespace

// Registers the pages of a range that no segment has, and counts the pin in every segment that it touches.
Status PinTable::cover(uint64_t begin, uint64_t end, uint32_t flags, Device device) {
  uint64_t at = begin;
  uint64_t index = 0;
  Status status;
  while (at < end && status.ok()) {
    while (index < segments_.size() && segments_[index].base + segments_[index].size <= at) ++index;
    if (index < segments_.size() && segments_[index].base <= at) {
      ++segments_[index].pins;
      at = segments_[index].base + segments_[index].size;
      continue;
    }
    const uint64_t stop = index < segments_.size() && segments_[index].base < end ? segments_[index].base : end;
    void *device_pointer = nullptr;
    status = core_.backend->pin(reinterpret_cast<void *>(at), stop - at, flags, device, &device_pointer);
    if (!status.ok()) break;
    const Segment segment{at, stop - at, reinterpret_cast<uint64_t>(device_pointer) - at, 1, flags, device};
    if (!segments_.insert(index, segment)) {
      core_.backend->unpin(reinterpret_cast<void *>(at), stop - at).ignore();
      status = fail(GMM_ERROR_OUT_OF_HOST_MEMORY,
                    "gmm_pin(): the host has no memory for the bookkeeping of a pin; free memory.");
      break;
    }
    at = stop;
  }
  if (!status.ok()) {
    MessageGuard message_guard;
    if (!uncover(begin, at).ok())
      core_.log.write(LogLevel::kError, "A failed pin leaves pages registered with the driver: %s", last_message());
  }
  return status;
}

// First unregisters the pages that only this pin holds. If the driver refuses, the whole pin stays and the caller can
// retry.
Status PinTable::uncover(uint64_t begin, uint64_t end) {
  const auto touches = [&](const Segment &segment) {
    return segment.base < end && segment.base + segment.size > begin;
  };
  Status status;
  for (Segment &segment : segments_) {
    if (!touches(segment) || segment.pins != 1) continue;
    status = core_.backend->unpin(reinterpret_cast<void *>(segment.base), segment.size);
    if (!status.ok()) break;
    segment.pins = 0;
  }
  MessageGuard message_guard;
  for (uint64_t i = segments_.size(); i-- > 0;) {
    Segment &segment = segments_[i];
    if (!touches(segment)) continue;
    if (status.ok() && segment.pins != 0)
      --segment.pins;
    else if (status.ok() || (segment.pins == 0 && !cover_again(segment)))
      segments_.erase(i);
  }
  return status;
}

// Registers the pages of a segment again after a refused unpin.
bool PinTable::cover_again(Segment &segment) {
  void *device_pointer = nullptr;
  const Status status = core_.backend->pin(reinterpret_cast<void *>(segment.base), segment.size, segment.flags,
                                           segment.device, &device_pointer);
  if (!status.ok()) {
    core_.log.write(LogLevel::kError, "A refused unpin leaves pages unregistered that other pins use: %s",
                    last_message());
    return false;
  }
  segment.delta = reinterpret_cast<uint64_t>(device_pointer) - segment.base;
  segment.pins = 1;
  return true;
}

// Gives readers the outermost pins. False: there is no host memory; a caller that must not fail reserves it first.
bool PinTable::publish() {
  ranges_.clear();
  if (!ranges_.reserve(pins_.size()) || !table_.reserve(pins_.size())) return false;
  uint64_t end = 0, bytes = 0;
  for (const Pin &pin : pins_) {
    if (pin.base < end) continue;
    end = pin.base + pin.size;
    bytes += pin.size;
    uint64_t delta = 0;
    for (const Segment &segment : segments_)
      if (segment.base <= pin.base && pin.base < segment.base + segment.size) delta = segment.delta;
    ranges_.push_back_reserved(Range{pin.base, pin.size, delta});
  }
  table_.set(ranges_.data(), ranges_.size());
  bytes_.store(bytes, std::memory_order_relaxed);
  return true;
}

Status PinTable::pin(void *memory, uint64_t size, uint32_t flags, Device device, void **device_pointer) {
  const uint64_t base = reinterpret_cast<uint64_t>(memory);
  const uint64_t page = os::page_size();
  // The last pages count too: the end of the range, rounded up to a page, must not wrap to 0.
  if (size > kMaxSize || base > kMaxAddress - size)
    return fail(GMM_ERROR_SIZE_OVERFLOW,
                "gmm_pin(%p): size = %" PRIu64
                " reaches past the addresses that a process can have; pass the address and the size of the memory.",
                memory, size);
  const uint64_t begin = base & ~(page - 1);
  const uint64_t end = (base + size + page - 1) & ~(page - 1);
  for (uint64_t at = begin & ~(kExtentAlignment - 1); at < end; at += kExtentAlignment)
    if (core_.page_map.find_extent(at) != nullptr)
      return fail(GMM_ERROR_INVALID_KIND,
                  "gmm_pin(%p): gmm allocated the memory, and pins HOST memory itself; pin only memory of your own.",
                  memory);
  LockGuard guard(mutex_);
  uint64_t at = 0;
  bool inside = false;
  for (uint64_t i = 0; i < pins_.size(); ++i) {
    const Pin &known = pins_[i];
    if (known.base < base || (known.base == base && known.size >= size)) at = i + 1;
    if (base >= known.base + known.size || base + size <= known.base) continue;
    if (base < known.base || base + size > known.base + known.size)
      return fail(GMM_ERROR_OVERLAP,
                  "gmm_pin(%p, %" PRIu64 "): the range overlaps the pinned one of %" PRIu64
                  " bytes at %p without lying inside it; unpin that "
                  "first, or pin the rest.",
                  memory, size, known.size, reinterpret_cast<void *>(known.base));
    inside = true;
  }
  // The driver knows a page that one of our pins registered. It is not another owner's memory.
  for (const Segment &segment : segments_)
    inside = inside || (begin < segment.base + segment.size && segment.base < end);
  if (!inside) {
    ForeignPointer foreign;
    core_.backend->identify(memory, &foreign);
    if (foreign.known)
      return fail(GMM_ERROR_INVALID_KIND,
                  "gmm_pin(%p): the driver allocated or registered this memory; pin only memory of your own.", memory);
  }
  if (!ranges_.reserve(pins_.size() + 1) || !table_.reserve(pins_.size() + 1) || !pins_.insert(at, Pin{base, size}))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY,
                "gmm_pin(): the host has no memory for the bookkeeping of a pin; free memory.");
  const Status status = cover(begin, end, flags, device);
  if (!status.ok()) {
    pins_.erase(at);
    return status;
  }
  (void)publish();  // cannot fail: reserved above
  if (device_pointer != nullptr)
    for (const Segment &segment : segments_)
      if (segment.base <= base && base < segment.base + segment.size)
        *device_pointer = reinterpret_cast<void *>(base + segment.delta);
  return Status();
}

Status PinTable::unpin(void *memory) {
  const uint64_t base = reinterpret_cast<uint64_t>(memory);
  const uint64_t page = os::page_size();
  LockGuard guard(mutex_);
  for (uint64_t i = pins_.size(); i-- > 0;) {
    if (pins_[i].base != base) continue;
    const Pin pin = pins_[i];  // the smallest pin of this base, which is the innermost
    GMM_TRY(uncover(base & ~(page - 1), (base + pin.size + page - 1) & ~(page - 1)));
    pins_.erase(i);
    (void)publish();
    return Status();
  }
  return fail(GMM_ERROR_NOT_PINNED,
              "gmm_unpin(%p): no pin starts at this address; pass an address that gmm_pin() was given.", memory);
}

void PinTable::clear() {
  LockGuard guard(mutex_);
  pins_.clear();
  while (!segments_.empty()) {
    const Segment segment = segments_.pop_back();
    // the context ends in any case
    core_.backend->unpin(reinterpret_cast<void *>(segment.base), segment.size).ignore();
  }
  (void)publish();
}

}  // namespace gmm
