// SPDX-License-Identifier: Apache-2.0
// The page map: a radix tree from addresses to spans and extents, read without a lock.
//
// Three levels over 48-bit addresses: 32 GiB, 2 MiB, and, where a 2 MiB page holds several spans, 16 KiB granules. A
// page that lies in one span whole needs no third level. In a table one bit a granule says where a span starts, and a
// granule without one belongs to the start before it: so a large block costs one entry a page, not one a granule. Only
// live spans are entered: free and unbacked spans are found by their neighbours, and a free changes nothing here. Slabs
// mark every granule, as their blocks are looked up most. Writers hold the lock of the heap that owns the page; leaves
// and tables are added by compare-and-swap and stay until the map goes. A map of free runs that marks two entries
// halved the price; live spans only, with linked neighbours, was cheaper still.
//
// A sparse span is a block of GMM_ALLOC_PAUSED, of which a TiB would have 524,288 pages. Its first page and those with
// an extent are entered, and find_sparse() serves the others.
//
// A lookup of a live block is stable while its neighbours change: they touch entries and bits of their own granules
// only.
#ifndef GMM_ENGINE_SPACE_PAGE_MAP_H
#define GMM_ENGINE_SPACE_PAGE_MAP_H

#include <atomic>
#include <bit>
#include <cstdint>

#include "base/host_allocator.h"
#include "engine/space/span.h"

namespace gmm {

class PageMap : NoCopy {
 public:
  explicit PageMap(const HostAllocator &allocator) : allocator_(allocator) {}
  ~PageMap();

  // False when there is no memory.
  [[nodiscard]] bool init();

  // The live span that covers this address; where none does, any other or NULL. The caller checks that it covers the
  // address and is live.
  Span *find(const void *address) const {
    const Page *page = page_of(reinterpret_cast<uintptr_t>(address));
    if (page == nullptr) return nullptr;
    const uintptr_t entry = page->span.load(std::memory_order_acquire);
    if ((entry & 1) == 0) return reinterpret_cast<Span *>(entry);
    return reinterpret_cast<const Table *>(entry - 1)->find(granule_of(reinterpret_cast<uintptr_t>(address)));
  }
  // The extent that holds the address, or NULL.
  Extent *find_extent(uintptr_t address) const {
    const Page *page = page_of(address);
    return page == nullptr ? nullptr : page->extent.load(std::memory_order_acquire);
  }
  Extent *find_extent(const void *address) const { return find_extent(reinterpret_cast<uintptr_t>(address)); }
  // The same with its range at one moment, or with that of the page that has none. An extent of a live elastic block
  // may end, and its object be another's, while the caller has no lock of the heap.
  struct Place {
    Extent *extent;
    ByteRange range;
  };
  Place find_place(uintptr_t at) const {
    if (Extent *extent = find_extent(at); extent != nullptr) {
      const ByteRange range{base_of(*extent), size_of(*extent)};
      std::atomic_thread_fence(std::memory_order_acquire);
      if (at - range.base < range.size && find_extent(at) == extent) return Place{extent, range};
    }
    return Place{nullptr, ByteRange{at & ~(kPage - 1), kPage}};
  }
  // Calls fn(Extent &) -> bool for the extents of a range, in order, until one returns false. False: one did, or an
  // address has no extent.
  template <typename Fn>
  bool for_each_extent(uintptr_t at, uintptr_t end, Fn fn) const {
    while (at < end) {
      const Place place = find_place(at);
      if (place.extent == nullptr) return false;
      at = place.range.end();
      if (!fn(*place.extent)) return false;
    }
    return true;
  }

  // Finds a sparse span at any of its addresses, in time that grows with their number.
  Span *find_sparse(uintptr_t address) const {
    for (const Sparse *each = sparse_.load(std::memory_order_acquire); each != nullptr; each = each->next) {
      Span *span = each->span.load(std::memory_order_acquire);
      if (span != nullptr && address - span->begin() < span->bytes()) return span;
    }
    return nullptr;
  }
  // False when there is no memory.
  [[nodiscard]] bool add_sparse(Span *span);
  void remove_sparse(const Span *span);

  // Makes room for all that a region's range may need, so that set() cannot fail. False when there is no memory.
  [[nodiscard]] bool prepare(uintptr_t base, uint64_t size);
  // Makes room for a span of this range, which may begin or end inside a 2 MiB page. False: it takes memory that there
  // is not, or that must not be taken.
  [[nodiscard]] bool prepare_granules(uintptr_t base, uint64_t size, bool may_take = true) {
    const auto has_room = [&](uintptr_t at) { return has_table(at) || (may_take && add_table(at)); };
    const uintptr_t end = base + size;
    return (base % kPage == 0 || has_room(base)) && (end % kPage == 0 || has_room(end - 1));
  }
  // Makes room for spans anywhere in the range, which is whole pages.
  [[nodiscard]] bool prepare_all_granules(uintptr_t base, uint64_t size) {
    for (uintptr_t at = base; at < base + size; at += kPage)
      if (!has_table(at) && !add_table(at)) return false;
    return true;
  }

  // Every address of the range belongs to the span from now on. Pages that are not covered whole must have been
  // prepared. An earlier span that overlaps the range is lost, also outside of it.
  void set(uintptr_t base, uint64_t size, Span *span);
  // As set(), with an entry a granule, for a range in which lookups come often.
  void set_each(uintptr_t base, uint64_t size, Span *span);
  void set_extent(uintptr_t base, uint64_t size, Extent *extent);

 private:
  static constexpr uint32_t kPageShift = 21;
  static constexpr uintptr_t kPage = uintptr_t{1} << kPageShift;
  static constexpr uint32_t kLeafBits = 14;
  static constexpr uint32_t kRootBits = 48 - kPageShift - kLeafBits;
  static constexpr uint64_t kTableSize = uint64_t{1} << (kPageShift - kGranuleShift);

  struct Table {
    std::atomic<uint64_t> starts[kTableSize / 64];
    std::atomic<Span *> first;  // the span that reaches in from the page before
    std::atomic<Span *> spans[kTableSize];

    Span *find(uint32_t granule) const {
      uint32_t word = granule / 64;
      uint64_t bits = starts[word].load(std::memory_order_acquire) << (63 - granule % 64);
      if (__builtin_expect(static_cast<int64_t>(bits) < 0, 1)) return spans[granule].load(std::memory_order_acquire);
      uint32_t last = granule;  // the granule of the highest bit
      for (; bits == 0; last = word * 64 + 63) {
        if (word == 0) return first.load(std::memory_order_acquire);
        bits = starts[--word].load(std::memory_order_acquire);
      }
      return spans[(last - static_cast<uint32_t>(std::countl_zero(bits))) % kTableSize].load(std::memory_order_acquire);
    }
  };
  struct Page {
    std::atomic<uintptr_t> span;  // a Span, or a Table plus 1
    std::atomic<Extent *> extent;
  };
  struct Leaf {
    Page pages[uint64_t{1} << kLeafBits];
  };

  const Page *page_of(uintptr_t address) const {
    const uintptr_t index = address >> (kPageShift + kLeafBits);
    if (index >> kRootBits != 0) return nullptr;
    const Leaf *leaf = root_[index].load(std::memory_order_acquire);
    return leaf == nullptr ? nullptr : &leaf->pages[(address >> kPageShift) % (uint64_t{1} << kLeafBits)];
  }
  Page *writable_page(uintptr_t address) { return const_cast<Page *>(page_of(address)); }
  static uint32_t granule_of(uintptr_t address) {
    return static_cast<uint32_t>((address >> kGranuleShift) % kTableSize);
  }
  bool has_table(uintptr_t address) { return (writable_page(address)->span.load(std::memory_order_relaxed) & 1) != 0; }
  bool add_table(uintptr_t address);
  static void set_in_table(Table *table, uint32_t first, uint32_t past, Span *span, bool starts, bool each);
  void set_pages(uintptr_t base, uint64_t size, Span *span, bool each);

  // They stay until the map goes, and those without a span are used again.
  struct Sparse {
    std::atomic<Span *> span;
    Sparse *next;
  };

  static constexpr uint64_t kRootSize = sizeof(std::atomic<Leaf *>) << kRootBits;

  const HostAllocator allocator_;
  std::atomic<Leaf *> *root_ = nullptr;
  std::atomic<Sparse *> sparse_{nullptr};
};

}  // namespace gmm
#endif
