// SPDX-License-Identifier: Apache-2.0
// A record of every alloc, free and use, and of what changes much at once. The file: engine/trace/format.h.
//
// A thread writes into a buffer of its own: no lock, no atomic read-modify-write. A full buffer is written to the file by the
// thread itself.
//
// Order. The reader merges the threads' records by time and keeps the order within a thread. What has to come out right: for each
// block, the events on it, whoever made them. Reading a clock at each event would do it, and costs more than all the rest (20 ns in
// the middle of an alloc of 12). So a thread reads the clock only when order is at stake: `touched_` holds, for an address, the thread
// whose event there was the last.
//  - It is the same thread: its own order says which came first; the event takes the time that the thread read last.
//  - It is another one, or unknown: the thread reads the clock. The record before it carries a time read before it was written
//    down, hence before the block was passed on; this one is read after the block was received. The clock is the same for all
//    processors (CLOCK_MONOTONIC, whose read is ordered after earlier loads), so this time is the later one.
// A free is written into `touched_` and timed before the block becomes free, an alloc after it was obtained. So each write of
// `touched_` happens before the block reaches the next thread, by the locks of the heap or by those with which the program passes
// pointers on: that thread finds this entry, a later one, or that of another address in the same place, never an older one.
// Where the times of two threads are equal, the reader takes first what is possible: an alloc where nothing lives, a free where
// something does.
// Events of different blocks are in order as far as the times tell: a thread reads the clock anew when a tick of the kernel
// (1 to 10 ms) has passed, and at least at each 32nd event.
//
// Ending. A thread marks itself busy while it records, and looks at the gate after that. end() closes the gate, makes all threads pass a
// barrier and waits for the busy ones, as the thread caches do (engine/heap/thread_cache.h); then the buffers are its own.
#ifndef GMM_ENGINE_TRACE_TRACE_H
#define GMM_ENGINE_TRACE_TRACE_H

#include <atomic>
#include <ctime>

#include "base/list.h"
#include "base/lock.h"
#include "engine/heap/heap.h"
#include "engine/space/core.h"
#include "engine/trace/file.h"
#include "engine/trace/format.h"

namespace gmm {

struct ThreadState;
struct TraceList;

// What a thread records into: of one trace, kept until the context ends. A new thread takes over that of an ended one.
struct TraceLane {
  std::atomic<uint32_t> busy{0};
  uint32_t number = 0;
  uint64_t tag = 0;      // the number as `touched_` holds it; 0: does not fit
  uint64_t now = 0;      // the time read last
  uint64_t written = 0;  // that of the last record
  uint64_t start = 0;    // that of the chunk
  uint64_t *at = nullptr, *end = nullptr;
  uint32_t unread = 0;  // events since the clock was read
  uint32_t records = 0;
  uint32_t events = 0;
  uint32_t sequence = 0;
  timespec coarse = {};
  gmm_stream streams[trace_format::kPlaces] = {};
  uint64_t heaps[trace_format::kPlaces] = {};
  unsigned char *chunk = nullptr;
  uint64_t thread_id = 0;  // 0: nobody's
  TraceLane *next = nullptr;
};

class Trace : public Link<TraceList> {
 public:
  explicit Trace(Core &core);
  ~Trace();
  Status begin(const char *path);
  // What all threads hold is in the file. IO when events are missing, and how many.
  Status end();
  bool running() const { return core_.gate->word.load(std::memory_order_relaxed) == kGateWatched; }

  // --- Events, while running() ---------------------------------------------------------------------------------------
  void allocated(const Heap &heap, const void *memory, uint64_t size, uint64_t alignment, uint32_t flags,
                 gmm_stream stream);
  // cached_free(), recorded when it succeeds.
  Status freed(Core &core, void *memory, gmm_stream stream);
  void used(const void *memory, gmm_stream stream);
  void paused(const gmm_tag *tags, uint32_t count, uint64_t bytes) {
    tags_changed(trace_format::kPause, tags, count, bytes);
  }
  void resumed(const gmm_tag *tags, uint32_t count, uint64_t bytes) {
    tags_changed(trace_format::kResume, tags, count, bytes);
  }
  void trimmed(uint64_t bytes) { note(trace_format::kTrim, bytes, 0); }
  void was_reset();
  void heap_created(const Heap &heap);
  void heap_destroyed(uint64_t number) { note(trace_format::kHeapDestroyed, number, 0); }

  // The thread ends: what it holds goes to the file. By thread_state.cpp, through ThreadState.
  static void end_thread(uint64_t thread_id);

 private:
  static constexpr uint64_t kChunk = uint64_t{64} << 10;
  static constexpr uint32_t kTouched = 1u << 16;
  static constexpr uint32_t kTagBits = 15;

  TraceLane *enter();
  static void leave(TraceLane &lane);
  TraceLane *join();
  TraceLane *find_lane(uint64_t thread_id);
  void lose(uint64_t events) { lost_.fetch_add(events, std::memory_order_relaxed); }
  // Gives the lane's next record a time that is right for an event at the address.
  void stamp(TraceLane &lane, const void *memory);
  static void read_clock(TraceLane &lane);
  // Room for a record of up to three words and what must stand before it: a stream, a heap, a time.
  bool room(TraceLane &lane) { return __builtin_expect(lane.end - lane.at >= 9, 1) || next_chunk(lane); }
  bool next_chunk(TraceLane &lane);
  void write_chunk(TraceLane &lane);
  static void put_time(TraceLane &lane);
  static uint32_t stream_place(TraceLane &lane, gmm_stream stream);
  static uint32_t heap_place(TraceLane &lane, const Heap &heap);
  void put_address(TraceLane &lane, uint8_t type, const void *memory, gmm_stream stream);
  void note(uint8_t type, uint64_t first, uint64_t second);
  void put_note(TraceLane &lane, uint8_t type, uint64_t first, uint64_t second);
  void tags_changed(uint8_t type, const gmm_tag *tags, uint32_t count, uint64_t bytes);
  void end_lane(uint64_t thread_id);

  Core &core_;
  const uint64_t serial_;
  std::atomic<uint64_t> *touched_ = nullptr;
  bool fence_ = false;
  std::atomic<uint64_t> lost_{0};
  Mutex control_mutex_;  // begin and end
  bool begun_ = false;
  Mutex lanes_mutex_;  // before the file's
  TraceLane *lanes_ = nullptr;
  uint32_t lane_count_ = 0;
  TraceFile file_;
};

}  // namespace gmm
#endif
