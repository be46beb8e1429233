// SPDX-License-Identifier: Apache-2.0
// The checks of a heap's blocks, as GMM_DEBUG asks for them, and the reports to a memory tool (base/memory_tool.h).
//
//   red zone    bytes behind each block, which are looked at when it is freed
//   poison      a free fills the block
//   guard       a VMM block has a mapping of its own, and unmapped addresses behind that
//   stacks      reports name the calls that allocated and freed the block; Context notes them (block_notes.h)
//   quarantine  freed blocks wait here before they go back to the heap, the oldest first; writes to poison are found
//   tool        valgrind or the address sanitizer reports accesses to memory of no live block; compute-sanitizer does
//               so for DEVICE memory of a GPU (base/nvtx.h)
//
// While Core::checks names any, the gate is kGateChecked: each alloc and free takes the slow path, which calls these
// functions. The memory of a graph is not checked, nor that of GMM_ALLOC_PAUSED. A tool takes the place of red zones
// and poison.
//
// Invariants:
//  - Work that is queued on a stream may still use memory that is free there. So the processor fills or reads memory,
//    and a tool forbids it, only while that stream is idle. Otherwise the stream itself writes a red zone, and the rest
//    of the checks is left out.
//  - `red_zones_` has the blocks whose red zone is written or queued. A free on another stream waits, on the device,
//    for the stream that writes it.
//  - Memory that the processor does not reach is written by the stream of the call. As a block leaves the quarantine,
//    or at its free if it does not enter that, the stream copies the end of the block to page-locked memory: a look.
//    The processor reads many looks at a time, once their streams have passed. Only drain() waits for looks. A stream
//    in a graph capture writes and copies nothing.
//  - Operations of the heap read and write whole extents. All of them are allowed until the operation ends.
//
// Lock: the heap's. The functions for blocks and drain() take it; its holder calls the others.
// Callers: the context and the thread caches, for blocks; Heap and Extents, for memory.
#ifndef GMM_ENGINE_HEAP_CHECKS_H
#define GMM_ENGINE_HEAP_CHECKS_H

#include <cstdint>

#include "base/hash_table.h"
#include "base/vector.h"
#include "engine/backup/staging.h"
#include "engine/heap/heap_part.h"

namespace gmm {

struct CheckedBlock {
  CacheEntry entry;
  uint64_t size;      // that the program asked for
  uint64_t bytes;     // that the block takes
  bool has_red_zone;  // which nobody has looked at
  BlockNotes::Note note;
  uintptr_t base() const { return reinterpret_cast<uintptr_t>(entry.block); }
};

class HeapChecks : HeapPart {
 public:
  static constexpr uint64_t kRedZone = 64;
  static constexpr uint64_t kQuarantine = uint64_t{64} << 20;
  static constexpr uint8_t kRedZoneByte = 0xfb, kPoisonByte = 0xdb;

  explicit HeapChecks(Heap &heap);
  ~HeapChecks();

  // Bytes that a block needs beyond its size.
  uint64_t red_zone() const { return options_.capture == 0 && is_on(kCheckRedZone) ? kRedZone : 0; }
  // Bytes of addresses behind a reservation. Not 0: each block has one.
  uint64_t guard() const {
    return options_.kind == Kind::kVmm && options_.capture == 0 && is_on(kCheckGuard) ? kExtentAlignment : 0;
  }
  // The block is live, and the program does not know it yet. False: a pause took its memory in between.
  [[nodiscard]] bool allocated(const void *block, uint64_t size, gmm_stream stream);
  // Before the free of a live block, of which it fills in the rest. CORRUPT: the program wrote past it.
  Status begin_free(CheckedBlock *block, gmm_stream stream);
  // The block is free, in no cache and no list. `is_held`: importers have its memory. True: the quarantine has it.
  bool freed(const CheckedBlock &block, gmm_stream stream, bool is_held);
  // Everything in quarantine goes back to the heap. Waits for all looks, or for those of a stream that is about to go.
  void drain(const gmm_stream *stream = nullptr);
  // Reads the looks that are done, in their order.
  void end_looks();

  // Memory becomes the heap's, and is free; it leaves the heap.
  void added(ByteRange range);
  void removed(ByteRange range);
  // New pages came without the contents of live blocks: no red zone is known any more.
  void dropped() {
    if (red_zones_.count() != 0) red_zones_.clear();
  }
  void begin_operation();
  void end_operation();
  // All live blocks become free now, and no stream has work.
  void end_blocks();

 private:
  struct Quarantined {
    CheckedBlock block;
    StreamKey key;
    bool is_poisoned;
  };
  // Of a live block. The stream that writes it; 0: it is written.
  struct RedZone {
    uintptr_t block;
    uint64_t streams;
  };
  // The end of a block, as a stream copies it: a slot has the last bytes of the poison and then the red zone.
  struct Look {
    CheckedBlock block;
    uint64_t poison, red_zone;  // bytes
    uint64_t streams, stamp;    // as of memory that was freed behind the copy
  };
  struct ToldAllocation {
    uintptr_t base;
    void *handle;
  };
  static constexpr uint64_t kLooks = 2048, kSlot = 2048, kLooksAtOnce = 64;
  bool is_on(uint32_t check) const { return (core_.checks & check) != 0; }
  bool is_idle(gmm_stream stream) const;
  bool may_queue_on(gmm_stream stream) const;
  bool is_paused_in(const CheckedBlock &block) const;
  bool may_wait_here(const CheckedBlock &block, gmm_stream stream) const;
  void release_oldest();
  // Logs that `byte` is the first wrong one, and returns CORRUPT.
  Status report(const CheckedBlock &block, const char *where, uint64_t byte, const char *call = "") const;
  // Reports the first wrong byte of each, which lie behind each other.
  void find_wrong(const CheckedBlock &block, uintptr_t at, uint64_t poison, uint64_t red_zone) const;
  void begin_look(const Quarantined &freed);
  void forbid_free_memory();
  void tell_free(const CheckedBlock &block, gmm_stream stream);
  void *allocation_of(uintptr_t block) const;

  Heap &heap_;
  const bool is_readable_;  // by the processor
  const bool has_tool_;
  const bool has_gpu_tool_;
  bool is_allowed_ = false;        // all memory, by an operation
  bool has_allowed_free_ = false;  // queued work may use memory that was freed
  Vector<Quarantined> quarantine_;
  uint64_t first_ = 0, quarantined_bytes_ = 0;  // the oldest; of all
  HashTable<RedZone> red_zones_;
  StagingBuffer slots_;
  Vector<Look> looks_;           // a ring of kLooks, as the slots are
  Vector<ToldAllocation> told_;  // to the GPU's tool
  uint64_t looks_begun_ = 0, looks_ended_ = 0;
};

}  // namespace gmm
#endif
