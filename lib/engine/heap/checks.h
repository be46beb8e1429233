// SPDX-License-Identifier: Apache-2.0
// The checks of a heap's blocks, as GMM_DEBUG asks for them, and the reports to a memory tool (base/memory_tool.h).
//
//   red zone    bytes behind each block, which its free looks at
//   poison      a free fills the block
//   quarantine  freed blocks wait here before they go back to the heap, the oldest first; writes to poison are found
//   tool        valgrind or the address sanitizer reports accesses to memory of no live block
//
// While Core::checks names any, the gate is kGateChecked: each alloc and free takes the slow path, which calls these
// functions. The memory of a graph is not checked. A tool takes the place of red zones and poison.
//
// Invariants:
//  - Work that is queued on a stream may still use memory that is free there. So the processor fills or reads memory,
//    and a tool forbids it, only while that stream is idle. Otherwise the stream itself writes a red zone, and the rest
//    of the checks is left out. Memory that the processor does not reach has no red zone, and its stream poisons it.
//  - Operations of the heap read and write whole extents. All of them are allowed until the operation ends.
//
// Lock: the heap's. The first four functions take it; its holder calls the others.
// Callers: the context and the thread caches, for blocks; Heap and Extents, for memory.
#ifndef GMM_ENGINE_HEAP_CHECKS_H
#define GMM_ENGINE_HEAP_CHECKS_H

#include <cstdint>

#include "base/vector.h"
#include "engine/heap/heap_part.h"

namespace gmm {

struct CheckedBlock {
  CacheEntry entry;
  uint64_t size;   // that the program asked for
  uint64_t bytes;  // that the block takes
  uintptr_t base() const { return reinterpret_cast<uintptr_t>(entry.block); }
};

class HeapChecks : HeapPart {
 public:
  static constexpr uint64_t kRedZone = 64;
  static constexpr uint64_t kQuarantine = uint64_t{64} << 20;
  static constexpr uint8_t kRedZoneByte = 0xfb, kPoisonByte = 0xdb;

  explicit HeapChecks(Heap &heap);

  // Bytes that a block needs beyond its size.
  uint64_t red_zone() const { return is_readable_ && is_on(kCheckRedZone) ? kRedZone : 0; }
  // The block is live, and the program does not know it yet. False: a pause took its memory in between.
  [[nodiscard]] bool allocated(const void *block, uint64_t size, gmm_stream stream);
  // Before the free of a live block. CORRUPT: the program wrote past it.
  Status check_red_zone(const CheckedBlock &block, gmm_stream stream);
  // The block is free, in no cache and no list. `is_held`: importers have its memory. True: the quarantine has it.
  bool freed(const CheckedBlock &block, gmm_stream stream, bool is_held);
  // Everything in quarantine goes back to the heap.
  void drain();

  // Memory becomes the heap's, and is free; it leaves the heap.
  void added(ByteRange range);
  void removed(ByteRange range);
  void begin_operation();
  void end_operation();
  // All live blocks become free now, and no stream has work.
  void end_blocks();

 private:
  struct Quarantined {
    CheckedBlock block;
    StreamKey key;
    bool is_poisoned;  // by the processor
  };
  bool is_on(uint32_t check) const { return (core_.checks & check) != 0; }
  bool is_idle(gmm_stream stream) const;
  bool is_paused_in(const CheckedBlock &block) const;
  bool may_wait_here(const CheckedBlock &block, gmm_stream stream) const;
  void release_oldest();
  void find_late_write(const CheckedBlock &block) const;
  void forbid_free_memory();

  Heap &heap_;
  const bool is_readable_;  // by the processor
  const bool has_tool_;
  bool is_allowed_ = false;        // all memory, by an operation
  bool has_allowed_free_ = false;  // queued work may use memory that was freed
  Vector<Quarantined> quarantine_;
  uint64_t first_ = 0, quarantined_bytes_ = 0;  // the oldest; of all
};

}  // namespace gmm
#endif
