// SPDX-License-Identifier: Apache-2.0
// Extents, regions and spans: what the address space of a heap is made of.
//
//   Region   addresses that may be coalesced: one reservation (VMM), or one driver allocation (other kinds, dedicated
//   blocks, and heaps whose blocks are exported)
//   Extent   physical memory in a region: one handle (VMM), or the whole allocation
//   Span     a run of granules; spans tile a region without gaps, each linked to its neighbours. A slab of small
//   blocks, one large block, a free run, or unbacked addresses.
//
// All of it is written under the heap's lock. Readers without the lock (query, free) find a span through the page map
// and check that it covers the address: spans are never returned to the system while the context lives, so a stale
// pointer reads a span that has another meaning now, never other memory.
#ifndef GMM_ENGINE_SPACE_SPAN_H
#define GMM_ENGINE_SPACE_SPAN_H

#include <atomic>
#include <cstdint>

#include "backend/backend.h"
#include "base/list.h"
#include "engine/space/size_class.h"

namespace gmm {

class Heap;
struct Region;

// Addresses [base, end()).
struct ByteRange {
  uintptr_t base = 0;
  uint64_t size = 0;
  uintptr_t end() const { return base + size; }
};

struct KeptContents;  // engine/backup/tiers.h
struct RegionExtents;
struct SpareExtents;
struct Span;
struct HeapRegions;
struct SpanOrder;  // free runs by size, slabs by class

// Whether blocks of a VMM extent can be used. Extents of other kinds are active for as long as they live. The pauser
// changes it with the heap's lock held, and during a resume with its ready lock held too.
//
//   kActive -- pause unmaps --> kUnmapped -- pause commits --> kPaused -- resume fills --> kRestored -- resume commits
//   --> kActive
//                                                         kRestored -- gmm_resume_wait() returns --> kPromised
//                                                         --> kActive
enum class ExtentState : uint32_t {
  kActive,
  kUnmapped,  // the pages have the contents: a pause is under way, or one that failed could not map them again
  kPaused,    // the contents are kept by the backup, or were dropped
  kRestored,  // blocks can be used; a resume that fails pauses it again
  kPromised   // the same, but a resume that fails leaves it active
};

// For decommit: since when an extent has been free, the heap's look that saw it free last, and the extent's id then.
struct IdleMark {
  uint64_t free_since = 0, look = 0, extent_id = 0;
};

// The one record of physical memory, which several modules share. heap/ writes all of it but `importers`, `own_imports`
// and `id`, which exports change too (ipc/), `state`, which the pauser changes (pause/), and what `kept` points to
// (backup/).
struct Extent : Link<RegionExtents>, Link<SpareExtents> {
  std::atomic<uintptr_t> base{0};
  std::atomic<uint64_t> size{0};
  std::atomic<Region *> region{nullptr};
  std::atomic<uint64_t> id{0};             // never reused in a context; names the extent in IPC handles
  PhysicalHandle handle;                   // VMM; 0 when paused
  std::atomic<Device> location{Device{}};  // where a VMM extent's pages are
  std::atomic<uint32_t> importers{0};      // connections and exports of this context that hold the memory
  std::atomic<uint32_t> own_imports{0};    // of `importers`: exports that this context has imported itself
  std::atomic<bool> is_out{false};         // a descriptor or fabric handle of its pages left the process
  bool mapped = true;                      // the handle is mapped at `base`
  bool is_spare = false;                   // paused, with pages that nobody wants (Extents)
  std::atomic<ExtentState> state{ExtentState::kActive};
  std::atomic<uint64_t> paused_by{0};  // Core::caller() of the last pause
  KeptContents *kept = nullptr;        // contents of paused memory, or what a read-only tag keeps for the next pause
  IdleMark idle;
  uint64_t streams = 0, stamp = 0;  // of a spare: as a free run's
};

// Blocks in it cannot be used. Threads without the heap's lock ask too.
inline bool is_paused(const Extent &extent) {
  const ExtentState state = extent.state.load(std::memory_order_acquire);
  return state == ExtentState::kPaused || state == ExtentState::kUnmapped;
}

// Importers that have the memory at other addresses. An own import keeps its address through a pause or a move.
inline uint32_t other_importers(const Extent &extent) {
  const uint32_t own = extent.own_imports.load(std::memory_order_acquire);
  const uint32_t all = extent.importers.load(std::memory_order_acquire);
  return all > own ? all - own : 0;
}

inline uintptr_t base_of(const Extent &extent) { return extent.base.load(std::memory_order_relaxed); }
inline uint64_t size_of(const Extent &extent) { return extent.size.load(std::memory_order_relaxed); }
inline uintptr_t end_of(const Extent &extent) { return base_of(extent) + size_of(extent); }

struct Region : Link<HeapRegions> {
  std::atomic<Heap *> heap{nullptr};
  std::atomic<uintptr_t> base{0};
  std::atomic<uint64_t> size{0};
  Allocation allocation;  // kinds other than VMM
  List<Extent, RegionExtents> extents;
  std::atomic<uint32_t> paused{0};
  std::atomic<uint64_t> generation{0};
  Span *first = nullptr;          // the span at its base
  bool dedicated = false;         // for one block
  bool exportable = false;        // its memory can be exported, whatever the backend
  bool whole = false;             // one driver allocation: the region ends with it
  std::atomic<bool> comm{false};  // VMM, for network libraries
  // VMM: of a block of GMM_ALLOC_PAUSED. Only what was taken of it has extents; the gaps between them are neither
  // charged nor counted.
  std::atomic<bool> elastic{false};
  std::atomic<uint64_t> active{0};  // elastic: bytes of extents that are not paused
  uint32_t peers = 0;               // VMM: devices beside the heap's that have access
  uint64_t live_spans = 0;          // slabs and large blocks
  uint64_t listed_free = 0;         // of a plain kind: bytes in listed free runs
};

inline Region *region_of(const Extent *extent) {
  return extent == nullptr ? nullptr : extent->region.load(std::memory_order_acquire);
}
// NULL when no heap owns the region any more. The heap may end before a visit of it begins.
inline Heap *heap_of(const Region *region) {
  return region == nullptr ? nullptr : region->heap.load(std::memory_order_relaxed);
}

// Pages for an extent of a VMM region.
inline Status create_pages(Backend &backend, const Region &region, Device location, uint64_t size,
                           PhysicalHandle *out) {
  return region.comm && !location.is_host() ? backend.create_comm(location, size, out)
                                            : backend.create(location, size, region.exportable, out);
}

enum class SpanState : uint32_t {
  kNone = 0,      // in the pool of unused spans
  kUnbacked = 1,  // addresses without memory
  kFree = 2,      // a free run
  kSlab = 3,      // blocks of one small class
  kLarge = 4      // one block
};

// Bit 63 of a slot: gmm_record_use() named further streams, or the block is exported or has a name. A free then takes
// the heap's lock.
inline constexpr uint64_t kUsedElsewhere = uint64_t{1} << 63;
// Bit 62: a block of GMM_ALLOC_PAUSED. It has bit 63, too.
inline constexpr uint64_t kElastic = uint64_t{1} << 62;
inline uint64_t bytes_of_slot(uint64_t slot) { return slot & ~(kUsedElsewhere | kElastic); }

// Aligned, so that a thread that uses one span does not slow another one down at the next.
struct alignas(64) Span : Link<SpanOrder> {
  std::atomic<uintptr_t> base{0};
  std::atomic<uint64_t> size{0};
  std::atomic<SpanState> state{SpanState::kNone};
  // Blocks of a slab are found by multiplication: index = units * reciprocal >> 24.
  std::atomic<uint32_t> block_size{0};  // bytes; 0 for a large block
  std::atomic<uint32_t> reciprocal{0};
  std::atomic<uint32_t> block_count{0};
  std::atomic<Heap *> heap{nullptr};
  uint32_t class_index = 0;
  std::atomic<uint8_t> slot_shift{0};  // where blocks are few, their slots lie in lines of their own
  bool listed = false;                 // in a list of the heap
  bool is_slab_object = false;         // which pool it came from
  Region *region = nullptr;
  uint64_t free_blocks = 0;  // slab: bit i = block i lies here and not in a thread cache
  uint64_t streams = 0;      // free memory: streams whose queued work may still use it (bits of StreamOrder)
  uint64_t stamp = 0;        // and when it was freed (StreamOrder::stamp())
  Span *before = nullptr;    // the spans around it in its region, NULL at the region's ends; under the heap's lock
  Span *after = nullptr;
  // Bytes asked for, 0 when the block is free. Slabs have kMaxSlabBlocks of them, other spans use the first: they end
  // the span without padding, and SlabSpan adds the rest.
  static constexpr uint32_t kOwnSlots = 2;
  std::atomic<uint64_t> slots[kOwnSlots] = {};

  uintptr_t begin() const { return base.load(std::memory_order_relaxed); }
  uint64_t bytes() const { return size.load(std::memory_order_relaxed); }
  uintptr_t end() const { return begin() + bytes(); }
  bool is(SpanState wanted) const { return state.load(std::memory_order_relaxed) == wanted; }
  bool live() const { return state.load(std::memory_order_relaxed) >= SpanState::kSlab; }
  // The block of an address inside the span; block_count for the tail of a slab.
  uint32_t index_of(uintptr_t address) const {
    const uint32_t multiplier = reciprocal.load(std::memory_order_relaxed);
    if (multiplier == 0) return 0;
    const uint32_t index = static_cast<uint32_t>(((address - begin()) / kUnit * multiplier) >> 24);
    const uint32_t count = block_count.load(std::memory_order_relaxed);
    return index < count ? index : count;
  }
  uintptr_t block(uint32_t index) const {
    return begin() + uint64_t{index} * block_size.load(std::memory_order_relaxed);
  }
  // Of a slab or a large block.
  uint32_t blocks() const {
    return block_size.load(std::memory_order_relaxed) == 0 ? 1 : block_count.load(std::memory_order_relaxed);
  }
  uint64_t block_bytes() const {
    const uint32_t small = block_size.load(std::memory_order_relaxed);
    return small != 0 ? small : bytes();
  }
  std::atomic<uint64_t> &slot(uint32_t index) {
    return (&slots[0])[(index << slot_shift.load(std::memory_order_relaxed)) % kMaxSlabBlocks];
  }
};

// Calls fn(Span &) for every span of a region in address order; fn may end the span.
template <typename Fn>
void for_each_span(Region &region, Fn fn) {
  for (Span *span = region.first, *next; span != nullptr; span = next) {
    next = span->after;
    fn(*span);
  }
}

// fn may end the extent.
template <typename Fn>
void for_each_extent(Region &region, Fn fn) {
  for (Extent *extent = region.extents.front(), *next; extent != nullptr; extent = next) {
    next = region.extents.next(extent);
    fn(*extent);
  }
}

// A free block on its way: its slot is 0, and no list of the heap knows it.
struct CacheEntry {
  void *block;
  std::atomic<uint64_t> *slot;
};

struct SlabSpan : Span {
  std::atomic<uint64_t> more_slots[kMaxSlabBlocks - kOwnSlots] = {};
};
static_assert(sizeof(Span) == 112 + Span::kOwnSlots * sizeof(uint64_t), "the slots of a slab are one array");

}  // namespace gmm
#endif
