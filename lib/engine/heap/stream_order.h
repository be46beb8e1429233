// SPDX-License-Identifier: Apache-2.0
// Which streams' queued work may still use free memory, as bits, and how one stream is put behind others.
//
// A free costs no event. Only when memory freed on stream A is wanted on stream B, an event is recorded on A then (it
// covers every free on A so far) and B waits for it on the device: the host never waits. An event can be used again at
// once, as a wait refers to the record before it (CUDA driver API, cuStreamWaitEvent).
//
// Whether A is done with memory can be asked too, without waiting. A busy stream never is with what was freed last, so
// free memory carries a stamp, the count of events recorded before it was freed, and a stream knows up to which stamp
// it is done: one event is behind the frees so far, and another is recorded only once it has passed.
//
// The per-thread default stream can be named by its own thread only; its frees record an event when they leave that
// thread's cache, one for a batch.
//
// A stream is lost when it is named after its end, or gmm did not learn of its end: the driver does not know it any
// more, or gmm ended it itself (engine/space/ended_streams.h). No event can be recorded behind its work. Garbage
// collectors free memory on such streams. Only the whole device can be waited for then, which a trim does. Until then
// nothing takes that memory. A stream that ended is done with all of its memory, and its place serves the next stream.
//
// A stream is external when it belongs to another device or to a context of the program's. The driver records no event
// of this device there. Others take its memory after a trim, a pause or the end of the heap has waited for the stream.
#ifndef GMM_ENGINE_HEAP_STREAM_ORDER_H
#define GMM_ENGINE_HEAP_STREAM_ORDER_H

#include <cstdint>

#include "backend/backend.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/vector.h"
#include "engine/space/ended_streams.h"
#include "engine/space/span.h"

namespace gmm {

// A stream as one thread means it.
struct StreamKey {
  gmm_stream stream = nullptr;
  uint64_t thread = 0;  // for GMM_STREAM_PER_THREAD: which thread's
  bool operator==(const StreamKey &) const = default;
};

// The one key of a stream that has two names, and without the thread where it does not matter.
StreamKey plain(StreamKey key);
// That key of a stream as the calling thread means it.
StreamKey key_of_caller(gmm_stream stream);

// Not thread-safe: under the heap's lock.
class StreamOrder {
 public:
  StreamOrder(Backend *const &backend, const EndedStreams &ended, Device device, const HostAllocator &allocator)
      : backend_(backend), ended_(ended), device_(device), slots_(allocator), spare_(allocator) {}
  // The lock of the heap, under which everything here runs. Where the host must wait for a stream after all, it turns
  // the lock into an operation's for that time.
  void wait_with(OperationLock &lock) { lock_ = &lock; }

  // The bit that memory freed on a stream carries; the last bit stands for all streams beyond the 63rd. 0 when there is
  // no memory to remember it.
  uint64_t bit_of(StreamKey key) {
    // Keys in slots have one name each, so one that is equal needs no other.
    if (last_ < slots_.size() && slots_[last_].key == key && slots_[last_].lost == 0) return bit_at(last_);
    return find_bit(key);
  }
  // bit_of() of a stream that is known; 0 for any other. It takes no memory and asks nobody.
  uint64_t known_bit(StreamKey key);
  // The bits that memory may carry to be given to a stream as it is: its own, and none when it shares the last one.
  uint64_t own_bit(StreamKey key) { return own_of(bit_of(key)); }
  static uint64_t own_of(uint64_t bit) { return bit & ~kSharedBit; }
  // Memory was freed on the stream that bit_of() was just asked for, not a per-thread one: nothing is recorded yet.
  void note_free_on_last() { slots_[last_].dirty = true; }
  // Makes `waiter` wait for what is queued on the streams of `bits` so far. CAPTURING: one of them is in a graph
  // capture. INVALID_HANDLE: one of them is lost.
  Status put_behind(StreamKey waiter, uint64_t bits);
  // Notes that memory was freed on the stream. A per-thread stream, the calling thread's own, records its event here;
  // others when asked for.
  Status note_frees(StreamKey key);
  // Notes a free on the stream and returns the bit for that memory: 0 when nothing that is queued may use it any more.
  // A per-thread stream of another thread: the caller has waited for the device. Failures go to the log.
  uint64_t bit_of_free(StreamKey key, uint64_t calling_thread, const Log &log) {
    if (key.stream != GMM_STREAM_PER_THREAD) {
      if (const uint64_t bit = bit_of(key); bit != 0) {
        note_free_on_last();
        return bit;
      }
    } else if (key.thread != calling_thread) {
      return 0;
    }
    return record_free(key, log);
  }
  // The stamp of memory that is freed now.
  uint64_t stamp() const { return recorded_; }
  // Free memory may be used once the streams of the bits got to where they are now.
  void order(Span *span, uint64_t bits) const {
    span->streams = bits;
    span->stamp = recorded_;
  }
  // Whether nothing that is queued may use the free memory, a Span or an Extent, any more, as far as the streams were
  // asked.
  template <typename Memory>
  bool is_done(const Memory *memory) const {
    return memory->streams == 0 || done(memory->streams, memory->stamp) == memory->streams;
  }
  // A graph that lives may use free memory too, so none of it may go or be moved, until end_of_graph().
  void hold_for_graph() { held_for_graph_ = true; }
  void end_of_graph() { held_for_graph_ = false; }
  bool held_for_graph() const { return held_for_graph_; }
  // Another thread may begin to capture a stream at any moment.
  void expect_captures() { captures_ = true; }
  // Asks the streams how far they are. Never waits: a question may record an event, which a later one finds passed.
  void ask(uint64_t bits);
  // Those of the bits whose streams were done with memory of this stamp when they were last asked.
  uint64_t done(uint64_t bits, uint64_t stamp) const;
  // Waits for the work behind the last frees on these streams, on external streams, and, if streams are lost, on the
  // device. Takes the heap's lock off while the host waits, as a callback in a stream may free memory. A stream in a
  // graph capture keeps the memory that it freed. The first failure comes after the wait for the others.
  Status wait_for_frees(uint64_t bits);
  // Waits for external streams on which memory was freed, in the same way. The device's own wait leaves them out.
  Status wait_for_external();
  // Whether one of the streams is being captured into a graph.
  bool any_capturing();
  // The stream is about to go, and its work is done.
  void forget(gmm_stream stream);
  // A thread ended, and all that its per-thread stream freed is noted.
  void end_thread(uint64_t thread);
  uint64_t known_streams() const { return slots_.size(); }
  // Gives the events back.
  void clear();

 private:
  static constexpr uint32_t kBits = 64;
  static constexpr uint64_t kSharedBit = uint64_t{1} << (kBits - 1);
  static constexpr uint64_t kNone = UINT64_MAX;
  struct Slot {
    StreamKey key;
    NativeEvent noted = nullptr;  // behind the frees so far, unless `dirty`
    uint64_t noted_stamp = 0;     // the newest stamp that it is behind
    uint64_t done_stamps = 0;     // memory of lower stamps is done with
    bool dirty = false;     // memory was freed since `noted` was recorded, or it is captured: not to be asked then
    bool pending = false;   // `noted` was not seen to have passed
    bool ended = false;     // the stream is gone, or the thread of a per-thread one
    bool gone = false;      // gmm had ended the stream when the program named it; `ended_` may forget that
    bool external = false;  // of another device or context, as the driver said when it was to record an event
    uint32_t waiting = 0;   // callers that wait for such a stream
    uint64_t lost = 0;  // which loss this stream was; 0: it is not lost. A lost one has no key: its name may be anew
  };
  // The stream ended and is done with everything. Nobody may name it to the driver.
  static bool is_over(const Slot &slot) { return slot.ended && !slot.dirty && !slot.pending; }
  // The driver is asked about a stream by this function first. INVALID_HANDLE: gmm ended it.
  Status is_capturing(gmm_stream stream, bool *capturing);
  Status is_capturing(const Slot &slot, bool *capturing);
  // `gone`: as a slot says.
  Status wait_for(gmm_stream stream, bool gone = false);
  bool is_done(Slot &slot);
  void ask(Slot &slot);
  void all_done(Slot &slot);
  void lose(Slot &slot);
  Status bring_up_to_date(Slot &slot);
  Status record(NativeEvent event, Slot &slot);
  uint64_t record_free(StreamKey key, const Log &log);
  Status take_event(NativeEvent *out);
  void put_event(NativeEvent event);
  static uint64_t bit_at(uint64_t slot) { return uint64_t{1} << (slot < kBits ? slot : kBits - 1); }
  uint64_t find_bit(StreamKey key);
  template <typename Fn>
  Status for_each(uint64_t bits, Fn fn);
  template <typename Fn>
  Status unlocked(Fn wait);
  void end_lost(uint64_t losses);

  OperationLock *lock_ = nullptr;
  Backend *const &backend_;
  const EndedStreams &ended_;
  const Device device_;
  Vector<Slot> slots_;
  Vector<NativeEvent> spare_;  // has room for every event that was made
  uint64_t events_ = 0;
  uint64_t recorded_ = 0;
  uint64_t losses_ = 0;    // how many streams were ever lost
  uint64_t last_ = kNone;  // the slot that bit_of() found last
  bool captures_ = false;
  bool held_for_graph_ = false;
};

}  // namespace gmm
#endif
