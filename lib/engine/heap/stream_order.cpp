// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/stream_order.h"

#include "base/thread_record.h"

namespace gmm {

StreamKey plain(StreamKey key) {
  // The two names of the legacy default stream are one stream.
  if (key.stream == GMM_STREAM_LEGACY) key.stream = GMM_STREAM_DEFAULT;
  if (key.stream != GMM_STREAM_PER_THREAD) key.thread = 0;
  return key;
}

StreamKey key_of_caller(gmm_stream stream) {
  return plain(StreamKey{stream, stream == GMM_STREAM_PER_THREAD ? current_thread_id() : 0});
}

namespace {

// The holder's lock is an operation's for as long as this lives. NULL: there is no lock.
class WaitingOperation : NoCopy {
 public:
  explicit WaitingOperation(OperationLock *lock)
      : lock_(lock == nullptr || lock->is_operation_of_holder() ? nullptr : lock) {
    if (lock_ != nullptr) lock_->begin_operation();
  }
  ~WaitingOperation() {
    if (lock_ != nullptr) lock_->end_operation();
  }

 private:
  OperationLock *const lock_;
};

Status destroyed(gmm_stream stream) {
  return fail(GMM_ERROR_INVALID_HANDLE, "Stream %p was destroyed by gmm_stream_destroy().",
              static_cast<void *>(stream));
}

}  // namespace

uint64_t StreamOrder::find_bit(StreamKey key) {
  key = plain(key);
  for (uint64_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].lost != 0 || !(slots_[i].key == key)) continue;
    slots_[i].ended = false;  // the name is a new stream's
    slots_[i].gone = ended_.contains(key.stream);
    last_ = i;
    return bit_at(i);
  }
  for (uint64_t i = 0; i < slots_.size(); ++i) {
    Slot &slot = slots_[i];
    // Memory that still carries the bit of an ended stream may be taken for the new stream's once that work is done.
    if (!slot.ended || slot.lost != 0 || slot.dirty || slot.waiting != 0 || !is_done(slot)) continue;
    put_event(slot.noted);
    slot = Slot{key};
    slot.gone = ended_.contains(key.stream);
    last_ = i;
    return bit_at(i);
  }
  if (!slots_.push_back(Slot{key})) return 0;
  last_ = slots_.size() - 1;
  slots_[last_].gone = ended_.contains(key.stream);
  return bit_at(last_);
}

uint64_t StreamOrder::known_bit(StreamKey key) {
  key = plain(key);
  for (const Slot &slot : slots_)
    if (slot.lost == 0 && !slot.ended && slot.key == key) return bit_of(key);
  return 0;
}

template <typename Fn>
Status StreamOrder::for_each(uint64_t bits, Fn fn) {
  for (uint64_t i = 0; i < slots_.size(); ++i)
    if ((bits >> (i < kBits ? i : kBits - 1) & 1) != 0) GMM_TRY(fn(slots_[i]));
  return Status();
}

Status StreamOrder::is_capturing(gmm_stream stream, bool *capturing) {
  if (ended_.contains(stream)) return destroyed(stream);
  return backend_->stream_is_capturing(device_, stream, capturing);
}

Status StreamOrder::is_capturing(const Slot &slot, bool *capturing) {
  if (slot.gone) return destroyed(slot.key.stream);
  return is_capturing(slot.key.stream, capturing);
}

Status StreamOrder::wait_for(gmm_stream stream, bool gone) {
  const WaitingOperation operation(lock_);
  return gone || ended_.contains(stream) ? backend_->synchronize(device_)
                                         : backend_->stream_synchronize(device_, stream);
}

// Whether the noted event has passed, or there is none.
bool StreamOrder::is_done(Slot &slot) {
  if (!slot.pending) return true;
  MessageGuard message_guard;
  bool passed = false;
  if (!backend_->event_query(slot.noted, &passed).ok() || !passed) return false;
  slot.pending = false;
  slot.done_stamps = slot.noted_stamp + 1;
  return true;
}

Status StreamOrder::take_event(NativeEvent *out) {
  if (!spare_.empty()) {
    *out = spare_.pop_back();
    return Status();
  }
  // With room for its return, so that an event that someone waits for is never destroyed.
  if (!spare_.reserve(events_ + 1)) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to order streams.");
  GMM_TRY(backend_->event_create(device_, out));
  ++events_;
  return Status();
}

void StreamOrder::put_event(NativeEvent event) {
  if (event != nullptr) spare_.push_back_reserved(event);
}

// A question about a captured event ends the capture, and a stream that waits for the event is drawn into the graph.
// Another thread may begin a capture between question and record, so the question comes again afterwards.
Status StreamOrder::record(NativeEvent event, Slot &slot) {
  gmm_stream stream = slot.key.stream;
  if (slot.lost != 0)
    return fail(GMM_ERROR_INVALID_HANDLE, "The memory was freed on a stream that was destroyed since.");
  const auto external = [] {
    return fail(GMM_ERROR_INVALID_HANDLE, "The memory was freed on a stream of another device or context.");
  };
  if (slot.external) return external();
  bool capturing = false;
  Status status = is_capturing(slot, &capturing);
  if (status.ok() && !capturing) {
    status = backend_->event_record(event, device_, stream);
    if (status.ok() && stream == GMM_STREAM_DEFAULT) return Status();  // cannot be captured
    // The stream answered just now, so it lives.
    slot.external =
        status.code() == GMM_ERROR_INVALID_HANDLE && stream != GMM_STREAM_DEFAULT && stream != GMM_STREAM_PER_THREAD;
    if (slot.external) return external();
    if (status.ok()) status = is_capturing(slot, &capturing);
  }
  if (status.code() == GMM_ERROR_INVALID_HANDLE) lose(slot);
  if (!status.ok() || !capturing) return status;
  return fail(GMM_ERROR_CAPTURING, "The memory was freed on a stream that is in graph capture.");
}

Status StreamOrder::put_behind(StreamKey waiter, uint64_t bits) {
  bits &= ~own_bit(waiter);
  if (bits == 0) return Status();
  bool capturing = false;
  GMM_TRY(is_capturing(waiter.stream, &capturing));
  if (capturing)
    return fail(GMM_ERROR_CAPTURING, "A stream in graph capture cannot wait for memory freed on another stream.");
  waiter = plain(waiter);
  GMM_TRY(for_each(bits, [&](Slot &slot) -> Status {
    if ((slot.key == waiter && slot.lost == 0) || is_over(slot)) return Status();
    if (slot.external && !slot.dirty && slot.waiting == 0) return Status();  // it was waited for
    if (slot.key.stream == GMM_STREAM_PER_THREAD && slot.lost == 0) {
      if (slot.dirty)
        return fail(GMM_ERROR_CAPTURING, "The memory was freed on a per-thread stream while it was in graph capture.");
      return slot.noted == nullptr ? Status() : backend_->stream_wait(device_, waiter.stream, slot.noted);
    }
    NativeEvent event = nullptr;
    GMM_TRY(take_event(&event));
    Status status = record(event, slot);
    if (status.ok()) status = backend_->stream_wait(device_, waiter.stream, event);
    put_event(event);
    return status;
  }));
  // Memory that the waiter takes is free for others behind these waits only.
  return note_frees(waiter);
}

// The stream was waited for.
void StreamOrder::all_done(Slot &slot) {
  slot.dirty = slot.pending = false;
  slot.done_stamps = ++recorded_;
}

void StreamOrder::lose(Slot &slot) {
  if (slot.lost == 0) slot.lost = ++losses_;
}

Status StreamOrder::note_frees(StreamKey key) {
  if (bit_of(key) == 0) return Status();
  Slot &slot = slots_[last_];
  slot.dirty = true;
  if (slot.key.stream != GMM_STREAM_PER_THREAD) return Status();
  const Status status = bring_up_to_date(slot);
  // Then only this stream may use the memory, until a later free of the thread finds no capture.
  if (status.code() == GMM_ERROR_CAPTURING) return Status();
  if (status.ok()) return status;
  // Without an event the stream is waited for. Nobody else could do either later, but wait for the device.
  if (!wait_for(slot.key.stream, slot.gone).ok()) {
    lose(slot);
    return status;
  }
  all_done(slot);
  return Status();
}

// Records the slot's event behind the last free. A per-thread stream can do so in its own thread only, and did at the
// free.
Status StreamOrder::bring_up_to_date(Slot &slot) {
  if (!slot.dirty && (slot.noted != nullptr || slot.ended)) return Status();
  if (slot.noted == nullptr) GMM_TRY(take_event(&slot.noted));
  // Until it is recorded outside of a capture, the event says nothing and is not asked.
  slot.dirty = true;
  slot.pending = false;
  GMM_TRY(record(slot.noted, slot));
  slot.dirty = false;
  slot.pending = true;
  slot.noted_stamp = recorded_++;
  return Status();
}

void StreamOrder::ask(Slot &slot) {
  MessageGuard message_guard;
  if (slot.lost != 0 || !is_done(slot) || !slot.dirty || slot.key.stream == GMM_STREAM_PER_THREAD) return;
  // An idle stream is done with everything, and answers at once; an event takes its time even there. But a question
  // about a stream that is captured ends the capture, and one may have begun since anybody looked: then only an event
  // can be asked.
  const bool may_ask = !captures_ || slot.key.stream == GMM_STREAM_DEFAULT;
  bool capturing = true, idle = false;
  const Status status = is_capturing(slot, &capturing);
  if (status.code() == GMM_ERROR_INVALID_HANDLE) lose(slot);
  if (!status.ok() || capturing) return;
  if (may_ask && backend_->stream_query(device_, slot.key.stream, &idle).ok() && idle) {
    slot.dirty = false;
    slot.done_stamps = ++recorded_;
  } else if (bring_up_to_date(slot).ok()) {
    is_done(slot);
  }
}

uint64_t StreamOrder::record_free(StreamKey key, const Log &log) {
  const uint64_t bit = bit_of(key);
  MessageGuard message_guard;
  if (bit != 0 && note_frees(key).ok()) return bit;
  // No memory to remember the stream, or no event: wait for it once.
  if (wait_for(key.stream).ok()) return 0;
  log.write(LogLevel::kError, "Memory is free again, but the stream that freed it could not be waited for: %s",
            last_message());
  return bit;
}

void StreamOrder::ask(uint64_t bits) {
  for (uint64_t i = 0; i < slots_.size(); ++i)
    if ((bits >> (i < kBits ? i : kBits - 1) & 1) != 0) ask(slots_[i]);
}

uint64_t StreamOrder::done(uint64_t bits, uint64_t stamp) const {
  uint64_t open = 0;
  for (uint64_t i = 0; i < slots_.size() && (i < kBits || (bits & kSharedBit) != 0); ++i) {
    const uint64_t bit = uint64_t{1} << (i < kBits ? i : kBits - 1);
    const Slot &slot = slots_[i];
    if ((bits & bit) == 0) continue;
    if (stamp >= slot.done_stamps && (slot.dirty || slot.pending || slot.waiting != 0)) open |= bit;
  }
  return bits & ~open;
}

// wait() -> Status without the heap's lock, if there is one. The slots may move in that time; a slot that is waited for
// keeps its number.
template <typename Fn>
Status StreamOrder::unlocked(Fn wait) {
  if (lock_ != nullptr) lock_->unlock();
  const Status status = wait();
  if (lock_ != nullptr) lock_->lock();
  return status;
}

Status StreamOrder::wait_for_frees(uint64_t bits) {
  Status first;
  const auto note = [&](Slot &slot) -> Status {
    if (slot.key.stream == GMM_STREAM_PER_THREAD || slot.lost != 0) return Status();
    const Status status = bring_up_to_date(slot);
    return status.code() == GMM_ERROR_CAPTURING || slot.external || slot.lost != 0 ? Status() : status;
  };
  for_each(bits, [&](Slot &slot) -> Status {
    keep_first(&first, [&] { return note(slot); });
    return Status();
  }).ignore();
  // To wait for a device would end a capture: what lost streams freed stays then.
  uint64_t losses = 0;
  for (const Slot &slot : slots_)
    if (slot.lost != 0) losses = losses_;
  if (losses != 0 && any_capturing()) losses = 0;
  for (uint64_t i = 0; i < slots_.size(); ++i) {
    if ((bits & bit_at(i)) == 0 || slots_[i].lost != 0 || !slots_[i].pending) continue;
    NativeEvent event = slots_[i].noted;
    keep_first(&first, [&] { return unlocked([&] { return backend_->event_synchronize(event); }); });
  }
  keep_first(&first, [&] { return wait_for_external(); });
  if (losses == 0) return first;
  keep_first(&first, [&]() -> Status {
    GMM_TRY(unlocked([&] { return backend_->synchronize(device_); }));
    end_lost(losses);
    return Status();
  });
  return first;
}

Status StreamOrder::wait_for_external() {
  Status first;
  for (uint64_t i = 0; i < slots_.size(); ++i) {
    Slot &slot = slots_[i];
    gmm_stream stream = slot.key.stream;
    if (slot.lost != 0 || slot.ended || stream == GMM_STREAM_PER_THREAD) continue;
    {
      MessageGuard message_guard;
      if (slot.dirty && !slot.external) bring_up_to_date(slot).ignore();  // which tells whether it is
    }
    if (!slot.external || (!slot.dirty && slot.waiting == 0)) continue;
    slot.dirty = false;
    ++slot.waiting;
    const uint64_t stamp = recorded_++;
    const Status status = unlocked([&] { return backend_->stream_synchronize(device_, stream); });
    Slot &waited = slots_[i];
    --waited.waiting;
    if (!status.ok())
      waited.dirty = true;
    else if (waited.done_stamps <= stamp)
      waited.done_stamps = stamp + 1;
    // In a capture, what it freed stays.
    if (status.code() != GMM_ERROR_CAPTURING) keep_first(&first, [&] { return status; });
  }
  return first;
}

// The device was waited for since there were so many losses: those streams are done with their memory.
void StreamOrder::end_lost(uint64_t losses) {
  for (Slot &slot : slots_) {
    if (slot.lost == 0 || slot.lost > losses) continue;
    all_done(slot);
    slot.lost = 0;
    slot.ended = true;
  }
  last_ = kNone;
}

bool StreamOrder::any_capturing() {
  MessageGuard message_guard;
  for (const Slot &slot : slots_) {
    bool capturing = false;
    if (slot.lost != 0 || is_over(slot)) continue;
    // A per-thread stream is the calling thread's here: nobody can ask about another's. A driver that refuses the
    // question says so again, and louder, at the synchronisation that follows.
    if (is_capturing(slot, &capturing).ok() && capturing) return true;
  }
  return false;
}

void StreamOrder::forget(gmm_stream stream) {
  stream = plain(StreamKey{stream}).stream;
  if (stream == GMM_STREAM_PER_THREAD) return;  // other threads have one, too
  for (Slot &slot : slots_) {
    if (slot.lost != 0 || slot.key.stream != stream) continue;
    all_done(slot);
    slot.ended = true;
  }
  last_ = kNone;
}

void StreamOrder::end_thread(uint64_t thread) {
  for (Slot &slot : slots_)
    if (slot.key == StreamKey{GMM_STREAM_PER_THREAD, thread}) slot.ended = true;
}

void StreamOrder::clear() {
  MessageGuard message_guard;
  for (Slot &slot : slots_) put_event(slot.noted);
  for (NativeEvent event : spare_) backend_->event_destroy(event).ignore();
  slots_.clear();
  spare_.clear();
  events_ = 0;
}

}  // namespace gmm
