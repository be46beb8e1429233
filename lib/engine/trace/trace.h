// SPDX-License-Identifier: Apache-2.0
// A trace: a record of every alloc, free and use of a block, and of each operation that changes many blocks at once.
// FORMAT.md in this folder describes the file.
//
// Each thread records into a buffer of its own, without a lock or an atomic read-modify-write. The buffer is a chunk of
// the file, which is mapped: whatever ends the program, the file has what was recorded. Where the file can't be mapped
// (a FIFO, a full disk), the buffer is host memory, and the thread itself writes it when it is full.
//
// Who calls: context/ and api/ report each operation after it succeeded. While a trace runs, the context's gate is
// kGateWatched, which sends every alloc and free past the fast path.
//
// Order of the records. A reader merges the threads' records by time and keeps the order within each thread. The result
// must be right for each block: its events in the order in which they happened, on whichever threads. A clock read at
// every event would suffice, but costs 20 ns inside an alloc of 12 ns. So a thread reads the clock only if the order is
// at stake. `touched_` holds, for an address, the thread of its last event.
//  - It is the same thread. Its own order tells which event came first, and the event takes the time that the thread
//    read last.
//  - It is another thread, or unknown. The thread reads the clock. The earlier record has a time that was read before
//    the block was passed on, and this time is read after the block was received. All processors have the same clock
//    (CLOCK_MONOTONIC, whose read is ordered after earlier loads), so this time is the later one.
// A thread writes `touched_` and takes the time of a free before the block becomes free, and those of an alloc after it
// has the block. So each write of `touched_` happens before the block reaches the next thread: the locks of the heap
// order them, or those by which the program passes pointers. The next thread finds this entry, a later one, or one of
// another address in the same slot. It never finds an older one. If the times of two threads are equal, the reader
// first takes the event that is possible: an alloc where no block lives, a free where one does. For events of different
// blocks the times are less exact: a thread reads the clock after each tick of the kernel (1 to 10 ms), and at least at
// every 32nd event.
//
// End of a trace. A thread marks itself busy while it records, and reads the gate after that. end() closes the gate,
// makes all threads pass a barrier and waits for the busy ones, as the thread caches do (engine/heap/thread_cache.h).
// From then on end() owns the buffers.
//
// Locks, in their order: `control_mutex_`, then `lanes_mutex_`, then the file's. No other lock is taken under them, but
// a registry's (base/registry.h) and the C library's. A free takes only the file's.
#ifndef GMM_ENGINE_TRACE_TRACE_H
#define GMM_ENGINE_TRACE_TRACE_H

#include <atomic>

#include "base/lock.h"
#include "base/slot_table.h"
#include "base/trace_file.h"
#include "engine/heap/heap.h"
#include "engine/limits/tag.h"
#include "engine/space/core.h"
#include "engine/trace/format.h"

namespace gmm {

// The buffer of one thread in one trace. It lives until the context ends. A new thread takes over the buffer of a
// thread that has ended. A thread finds its buffers by the traces' slots (base/slot_table.h).
struct TraceLane {
  std::atomic<uint32_t> busy{0};
  uint32_t number = 0;
  uint64_t tag = 0;      // the number as `touched_` holds it; 0: the number is too large for that
  uint64_t now = 0;      // the time read last
  uint64_t written = 0;  // time of the last record
  uint64_t start = 0;    // time of the chunk
  uint64_t *at = nullptr, *end = nullptr;
  uint32_t unread = 0;  // events since the clock was read
  uint32_t records = 0;
  uint32_t events = 0;
  uint32_t sequence = 0;
  uint64_t coarse = 0;  // the coarse clock then
  gmm_stream streams[trace_format::kPlaces] = {};
  uint64_t heaps[trace_format::kPlaces] = {};
  gmm_tag tags[trace_format::kPlaces] = {};  // whose names the chunk has, by number % kPlaces
  unsigned char *chunk = nullptr;
  bool is_mapped = false;  // the chunk is the file's
  uint64_t thread_id = 0;  // 0: no thread has the buffer; under lanes_mutex_
  TraceLane *next = nullptr;
};

class Trace {
 public:
  static constexpr uint32_t kMaxTraces = 4096;  // contexts of a process that ever began one

  Trace(Core &core, const TagTable &tags) : core_(core), tags_(tags) {}
  ~Trace();
  Status begin(const char *path);
  // Writes what all threads have recorded to the file. Fails with IO if the file lacks events; the message says how
  // many.
  Status end();
  bool running() const { return core_.gate->word.load(std::memory_order_relaxed) == kGateWatched; }

  // --- Events, while running() ---------------------------------------------------------------------------------------
  void allocated(const Heap &heap, const void *memory, uint64_t size, uint64_t alignment, uint32_t flags,
                 gmm_stream stream);
  // Calls cached_free() and records the event if it succeeded.
  Status freed(Core &core, void *memory, gmm_stream stream);
  void used(const void *memory, gmm_stream stream);
  // `memory` is the start of the block; "": it has no name any more.
  void named(const void *memory, const char *name);
  void paused(const gmm_tag *tags, uint32_t count, uint64_t bytes) {
    tags_changed(trace_format::kPause, tags, count, bytes);
  }
  void resumed(const gmm_tag *tags, uint32_t count, uint64_t bytes) {
    tags_changed(trace_format::kResume, tags, count, bytes);
  }
  void trimmed(uint64_t bytes) { note(trace_format::kTrim, bytes, 0); }
  void compacted(uint64_t moved, uint64_t released) { note(trace_format::kCompact, moved, released); }
  void was_reset();
  void heap_created(const Heap &heap);
  void heap_destroyed(uint64_t number) { note(trace_format::kHeapDestroyed, number, 0); }

 private:
  static constexpr uint64_t kChunk = uint64_t{64} << 10;
  static constexpr uint32_t kTouched = 1u << 16;
  static constexpr uint32_t kTagBits = 15;

  TraceLane *enter();
  static void leave(TraceLane &lane);
  TraceLane *join();
  void lose(uint64_t events) { lost_.fetch_add(events, std::memory_order_relaxed); }
  // Gives the lane's next record a time that keeps the order of the events at the address.
  void stamp(TraceLane &lane, const void *memory);
  static void read_clock(TraceLane &lane);
  // Makes room for a record of up to three words, or a block's name, and those that may precede it: a stream, a heap, a
  // tag's name and a time.
  static constexpr uint32_t kRoom = 9 + trace_format::kNameWords;
  bool room(TraceLane &lane) { return __builtin_expect(lane.end - lane.at >= kRoom, 1) || next_chunk(lane); }
  bool next_chunk(TraceLane &lane);
  bool make_chunk(TraceLane &lane);
  // What the lane recorded is in the file; a mapped chunk is no longer the lane's.
  void finish_chunk(TraceLane &lane);
  // The same, and the lane has no chunk.
  void end_chunk(TraceLane &lane);
  static void put(TraceLane &lane, uint64_t first, const uint64_t *rest, uint32_t count);
  static void put_time(TraceLane &lane);
  static uint32_t stream_place(TraceLane &lane, gmm_stream stream);
  uint32_t heap_place(TraceLane &lane, const Heap &heap);
  void put_tag(TraceLane &lane, gmm_tag tag);
  static void put_name(TraceLane &lane, uint8_t type, uint64_t value, const char *name);
  void put_address(TraceLane &lane, uint8_t type, const void *memory, gmm_stream stream);
  void note(uint8_t type, uint64_t first, uint64_t second);
  void put_note(TraceLane &lane, uint8_t type, uint64_t first, uint64_t second);
  void tags_changed(uint8_t type, const gmm_tag *tags, uint32_t count, uint64_t bytes);
  // The end of a thread's part: gives the buffers of the thread back.
  static void end_lanes(void *table);
  void end_lane(TraceLane &lane);

  Core &core_;
  const TagTable &tags_;
  RegistryKey key_;  // since the first begin()
  std::atomic<uint64_t> *touched_ = nullptr;
  bool fence_ = false;
  std::atomic<uint64_t> lost_{0};
  Mutex control_mutex_{LockRank::kTraceControl};  // serialises begin() and end()
  bool begun_ = false;
  Mutex lanes_mutex_{LockRank::kTraceLanes};  // taken before the file's
  TraceLane *lanes_ = nullptr;
  uint32_t lane_count_ = 0;
  TraceFile file_;
};

}  // namespace gmm
#endif
