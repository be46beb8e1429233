// SPDX-License-Identifier: Apache-2.0
#include "engine/stream_order.h"

namespace gmm {

uint64_t StreamOrder::bit_of(StreamKey key) {
  // The two names of the legacy default stream are one stream.
  if (key.stream == GMM_STREAM_LEGACY) key.stream = GMM_STREAM_DEFAULT;
  if (key.stream != GMM_STREAM_PER_THREAD) key.thread = 0;
  for (uint64_t i = 0; i < slots_.size(); ++i)
    if (!slots_[i].retired && slots_[i].key == key) return uint64_t{1} << (i < kBits ? i : kBits - 1);
  for (uint64_t i = 0; i < slots_.size(); ++i)
    if (slots_[i].retired) {
      slots_[i] = Slot{key, nullptr, false};
      return uint64_t{1} << (i < kBits ? i : kBits - 1);
    }
  if (!slots_.push_back(Slot{key, nullptr, false})) return 0;
  return uint64_t{1} << (slots_.size() <= kBits ? slots_.size() - 1 : kBits - 1);
}

template <typename Fn>
Status StreamOrder::for_each(uint64_t bits, Fn fn) {
  for (uint64_t i = 0; i < slots_.size(); ++i)
    if ((bits >> (i < kBits ? i : kBits - 1) & 1) != 0 && !slots_[i].retired) GMM_TRY(fn(slots_[i]));
  return Status();
}

Status StreamOrder::take_event(NativeEvent *out) {
  if (!spare_.empty()) {
    *out = spare_.pop_back();
    return Status();
  }
  return backend_->event_create(device_, out);
}

void StreamOrder::put_event(NativeEvent event) {
  if (event == nullptr || spare_.push_back(event)) return;
  backend_->event_destroy(event).ignore();  // nobody refers to it; the driver's refusal loses an event at most
}

Status StreamOrder::put_behind(StreamKey waiter, uint64_t bits) {
  bits &= ~bit_of(waiter);
  if (bits == 0) return Status();
  bool capturing = false;
  GMM_TRY(backend_->stream_is_capturing(device_, waiter.stream, &capturing));
  if (capturing)
    return fail(GMM_ERROR_CAPTURING, "A stream in graph capture cannot wait for memory freed on another stream.");
  return for_each(bits, [&](Slot &slot) -> Status {
    if (slot.key.stream == GMM_STREAM_PER_THREAD)
      return slot.noted == nullptr ? Status() : backend_->stream_wait(device_, waiter.stream, slot.noted);
    GMM_TRY(backend_->stream_is_capturing(device_, slot.key.stream, &capturing));
    if (capturing) return fail(GMM_ERROR_CAPTURING, "The memory was freed on a stream that is in graph capture.");
    NativeEvent event = nullptr;
    GMM_TRY(take_event(&event));
    Status status = backend_->event_record(event, device_, slot.key.stream);
    if (status.ok()) status = backend_->stream_wait(device_, waiter.stream, event);
    put_event(event);
    return status;
  });
}

Status StreamOrder::note_frees(StreamKey key) {
  if (key.stream != GMM_STREAM_PER_THREAD || bit_of(key) == 0) return Status();
  for (Slot &slot : slots_) {
    if (slot.retired || !(slot.key == key)) continue;
    if (slot.noted == nullptr) GMM_TRY(take_event(&slot.noted));
    return backend_->event_record(slot.noted, device_, key.stream);
  }
  return Status();
}

bool StreamOrder::passed(uint64_t bits) {
  bool all = true;
  MessageGuard keep;
  const Status status = for_each(bits, [&](Slot &slot) -> Status {
    bool passed = false;
    if (slot.key.stream == GMM_STREAM_PER_THREAD) {
      if (slot.noted == nullptr) return Status();
      GMM_TRY(backend_->event_query(slot.noted, &passed));
    } else {
      bool capturing = false;
      GMM_TRY(backend_->stream_is_capturing(device_, slot.key.stream, &capturing));
      if (capturing) {
        all = false;
        return Status();
      }
      NativeEvent event = nullptr;
      GMM_TRY(take_event(&event));
      Status status = backend_->event_record(event, device_, slot.key.stream);
      if (status.ok()) status = backend_->event_query(event, &passed);
      put_event(event);
      GMM_TRY(status);
    }
    all = all && passed;
    return Status();
  });
  return status.ok() && all;
}

Status StreamOrder::wait(uint64_t bits) {
  return for_each(bits, [&](Slot &slot) -> Status {
    if (slot.key.stream == GMM_STREAM_PER_THREAD)
      return slot.noted == nullptr ? Status() : backend_->event_synchronize(slot.noted);
    return backend_->stream_synchronize(device_, slot.key.stream);
  });
}

bool StreamOrder::any_capturing() {
  MessageGuard keep;
  for (const Slot &slot : slots_) {
    bool capturing = false;
    if (slot.retired || slot.key.stream == GMM_STREAM_PER_THREAD) continue;
    // A driver that refuses the question says so again, and louder, at the synchronisation that follows.
    if (backend_->stream_is_capturing(device_, slot.key.stream, &capturing).ok() && capturing) return true;
  }
  return false;
}

uint64_t StreamOrder::forget(gmm_stream stream) {
  for (uint64_t i = 0; i < slots_.size(); ++i) {
    Slot &slot = slots_[i];
    if (slot.retired || slot.key.stream != stream || stream == GMM_STREAM_PER_THREAD) continue;
    slot.retired = true;
    // The shared last bit must stay set for the other streams behind it.
    return i < kBits - 1 ? uint64_t{1} << i : 0;
  }
  return 0;
}

void StreamOrder::clear() {
  MessageGuard keep;
  for (Slot &slot : slots_) put_event(slot.noted);
  for (NativeEvent event : spare_) backend_->event_destroy(event).ignore();
  slots_.clear();
  spare_.clear();
}

}  // namespace gmm
