// SPDX-License-Identifier: Apache-2.0
// A trace: a record of every alloc, free and use of a block, and of each operation that changes many blocks at once.
// format.h describes the file.
//
// Each thread records into a block of the file of its own, without a lock or an atomic read-modify-write.
//
// Callers: context/ and api/ report each operation after it succeeded, and the context those that change
// or want memory after they failed. While a trace runs, the context's gate is kGateWatched, which sends every alloc and
// free past the fast path.
//
// Order of the records. Each has its time, by a counter that all processors share. A thread reads it for a free before
// the block becomes free, and for an alloc after it has the block. A block reaches the next thread through the heap's
// locks or through those of the program, so the events on one address have ascending times, on whichever threads. A
// processor may read the counter before an earlier load is done, which would cost as much again to prevent. So the next
// thread's time may be too early by that load, and a reader allows for it (format.h).
//
// End of a trace. A thread marks itself busy while it records, and reads the gate after that. end() closes the gate,
// makes all threads pass a barrier and waits for the busy ones, as the thread caches do (engine/heap/thread_cache.h).
// From then on end() owns the buffers.
//
// Stacks. A sampled alloc looks at its stack while its thread is not busy, because the interpreter's function may wait
// (gmm_trace_set_frames()), and notes it with the block. A stack, frame or file of Core::stacks is written once, by the
// thread that finds that `written_` lacks its number. Blocks of at least `2 * stack_bytes - 1` are all sampled. Of
// smaller ones, those are at which the sum of a thread's bytes passes a point. The distances of points are random, up
// to that limit and `stack_bytes` in the mean, so each point stands for `stack_bytes`.
//
// Locks, in their order: `control_mutex_`, then `buffers_mutex_`, then `written_mutex_`, then the file's. No other lock
// is taken under them, but a registry's (base/registry.h), the loader's and the C library's. A free takes only the
// file's.
#ifndef GMM_ENGINE_TRACE_TRACE_H
#define GMM_ENGINE_TRACE_TRACE_H

#include <gmm/stats.h>

#include <atomic>
#include <initializer_list>

#include "base/clock.h"
#include "base/hash_table.h"
#include "base/lock.h"
#include "base/slot_table.h"
#include "base/trace_file.h"
#include "engine/heap/heap.h"
#include "engine/limits/tag.h"
#include "engine/space/core.h"
#include "engine/trace/format.h"

namespace gmm {

// The buffer of one thread in one trace. It lives until the context ends. A new thread takes over the buffer of a
// thread that has ended, with its block. A thread finds its buffers by the traces' slots (base/slot_table.h).
struct TraceBuffer {
  std::atomic<uint32_t> busy{0};
  uint32_t thread = 0;  // the system's number; 0: no thread has the buffer; under buffers_mutex_
  uint64_t *block = nullptr, *at = nullptr, *end = nullptr;
  uint64_t events = 0;      // in the block
  int64_t until_stack = 0;  // bytes of allocations
  uint64_t random = 0;
  // The state of the block that a reader has behind the last record.
  uint64_t time = 0;
  uint64_t streams[TRACE_STREAM_SLOTS] = {};
  uint64_t heaps[TRACE_HEAP_SLOTS] = {};  // numbers; 0: none
  uint64_t held[TRACE_HEAP_SLOTS] = {};   // bytes of these, as last said
  uint64_t paused[TRACE_HEAP_SLOTS] = {};
  TraceBuffer *next = nullptr;
};

class Snapshot;

class Trace {
 public:
  static constexpr uint32_t kMaxTraces = 4096;  // contexts of a process that ever began one

  Trace(Core &core, const TagTable &tags) : core_(core), tags_(tags), written_(core.allocator) {}
  ~Trace();
  Status begin(const char *path, const gmm_trace_desc &desc = {});
  // After begin(), and after the fast paths of the heap have ended: the blocks of a heap in the copy, as live since the
  // beginning. A thread that looked at the gate before looks again behind its alloc or free. So the copy has what the
  // thread did, or the thread records it.
  void lived(Heap &heap, const Snapshot &copy);
  // Writes what all threads have recorded to the file. Fails with IO if the file lacks events; the message says how
  // many.
  Status end();
  bool running() const { return core_.gate->word.load(std::memory_order_relaxed) == kGateWatched; }

  // --- Events, while running() ---------------------------------------------------------------------------------------
  void allocated(Heap &heap, const void *memory, uint64_t size, uint64_t alignment, uint32_t flags, gmm_stream stream);
  // Calls cached_free() and records the event if it succeeded.
  Status freed(Core &core, void *memory, gmm_stream stream);
  // The thread began before the trace. No other thread has had the block since, or its event is later.
  void freed_at_begin(const void *memory, gmm_stream stream);
  void used(const void *memory, gmm_stream stream);
  // `memory` is the start of the block; "": it has no name any more.
  void named(const void *memory, const char *name);
  // The time by the clock of the trace, for `began` of an operation; 0 while no trace runs.
  uint64_t time() const { return running() ? now() : 0; }
  // TRACE_PAUSE or TRACE_RESUME of tags; 0: of all.
  void tags_changed(trace_type type, const gmm_tag *tags, uint32_t count, uint64_t bytes, uint64_t began);
  void trimmed(uint64_t bytes, uint64_t began) { note(TRACE_TRIM, {0, bytes, began}); }
  void compacted(uint64_t moved, uint64_t released, uint64_t began) { note(TRACE_COMPACT, {moved, released, began}); }
  void moved(const void *memory, uint64_t bytes, Device location, uint64_t began);
  // After an operation that may have changed it: what the heap holds.
  void held(Heap &heap);
  // A failure with the thread's last message. `bytes`: asked for, or 0. `heap`: null where the call names none.
  void failed(Status status, uint64_t bytes, const Heap *heap);
  void was_reset() { note(TRACE_RESET, {}); }
  void heap_created(const Heap &heap);
  void heap_destroyed(uint64_t number) { note(TRACE_HEAP_DESTROYED, {number}); }

 private:
  // Of a long record without its values. Then of an alloc, and of what may come before it: its heap, with what that
  // holds, its stream and its time. The name of a block needs less.
  static constexpr uint32_t kLongWords = 2;
  static constexpr uint32_t kMostWords =
      2 + (kLongWords + 3 + TRACE_NAME_BYTES / 8) + (kLongWords + 3) + (kLongWords + 2) + kLongWords + (kLongWords + 2);

  // In units of 5 to 10 ns, so that a short record can tell the time of most events.
  uint64_t now() const { return (has_counter_ ? read_counter() : monotonic_ns()) >> clock_shift_; }
  TraceBuffer *enter();
  static void leave(TraceBuffer &buffer);
  TraceBuffer *join();
  void lose(uint64_t events) { lost_.fetch_add(events, std::memory_order_relaxed); }
  // Makes place for the records of an event. False: the event is counted as lost.
  bool has_place(TraceBuffer &buffer, uint32_t words = kMostWords);
  template <typename Fn>
  void record(Fn fn, uint32_t words = kMostWords);
  bool next_block(TraceBuffer &buffer);
  void end_block(TraceBuffer &buffer);
  // A long record. Its text, if it has one, follows the values, in so many words.
  static void put(TraceBuffer &buffer, trace_type type, uint64_t time, std::initializer_list<uint64_t> values,
                  const char *text = nullptr, uint32_t text_words = TRACE_NAME_BYTES / 8);
  static void end_long(TraceBuffer &buffer, trace_type type, uint64_t time, uint64_t *end);
  void put_thread(TraceBuffer &buffer) { put(buffer, TRACE_THREAD, now(), {buffer.thread}); }
  void put_heap(TraceBuffer &buffer, uint64_t time, const Heap &heap);
  static void put_held(TraceBuffer &buffer, uint64_t time, Heap &heap);
  // Facts of the heap that a reader must know before an alloc of it.
  void put_changes(TraceBuffer &buffer, uint64_t time, Heap &heap);
  static void put_alloc(TraceBuffer &buffer, uint64_t time, const Heap &heap, const void *memory, uint64_t size,
                        uint64_t alignment, uint32_t flags, gmm_stream stream);
  static uint64_t short_record(TraceBuffer &buffer, trace_type type, uint64_t time, const void *memory,
                               gmm_stream stream);
  static void put_short(TraceBuffer &buffer, trace_type type, uint64_t time, const void *memory, gmm_stream stream);
  void note(trace_type type, std::initializer_list<uint64_t> values);
  Status begin_file(const char *path, uint64_t stack_bytes);
  // Calls a function of the listener for the live block that starts there. The thread is busy, so that end() waits.
  // False: there is no such block or no function.
  using Listen = decltype(gmm_block_listener::allocated);
  bool tell(Listen fn, const void *memory, gmm_stream stream);
  int64_t next_distance(TraceBuffer &buffer) const;
  // Bytes that the stack of the allocation stands for; 0: it needs none.
  uint64_t sample(TraceBuffer &buffer, uint64_t size);
  uint64_t choose_sample(TraceBuffer &buffer, uint64_t size);
  // Writes a stack, with its frames and the files of code, that the file lacks. The thread is not busy. Returns its
  // number; 0: it could not be written.
  uint32_t write_stack(uint32_t stack);
  bool is_written(uint32_t number) const;
  bool write_once(TraceBuffer &buffer, trace_type type, uint32_t number);
  // The end of a thread's part: gives the buffers of the thread back.
  static void end_buffers(void *table);
  void end_buffer(TraceBuffer &buffer);

  Core &core_;
  const TagTable &tags_;
  RegistryKey key_;  // since the first begin()
  bool fence_ = false;
  bool has_counter_ = false;
  uint32_t clock_shift_ = 0;
  std::atomic<uint64_t> lost_{0};
  Mutex control_mutex_{LockRank::kTraceControl};  // serialises begin() and end()
  bool begun_ = false;
  bool has_file_ = false;  // false: stacks are noted and the listener hears, and nothing is recorded
  gmm_block_listener listener_ = {};
  Mutex buffers_mutex_{LockRank::kTraceBuffers};  // taken before the file's
  TraceBuffer *buffers_ = nullptr;
  std::atomic<uint64_t> stack_bytes_{0};
  uint64_t begin_time_ = 0;
  Mutex written_mutex_{LockRank::kTraceWritten};
  HashTable<uint32_t> written_;  // numbers
  uint64_t modules_ = 0;         // the first ones of Core::stacks are written
  TraceFile file_;
};

}  // namespace gmm
#endif
