// SPDX-License-Identifier: Apache-2.0
// The page map: a radix tree from addresses to spans and extents, read without a lock.
//
// Three levels over 48-bit addresses: 32 GiB, 2 MiB, and, where a 2 MiB page holds several spans, 16 KiB granules.
// A page that lies in one span whole needs no third level. Writers hold the lock of the heap that owns the page; leaves and
// tables are added by compare-and-swap and stay until the map goes.
#ifndef GMM_ENGINE_PAGE_MAP_H
#define GMM_ENGINE_PAGE_MAP_H

#include <atomic>
#include <cstdint>

#include "base/host_allocator.h"
#include "engine/span.h"

namespace gmm {

class PageMap {
 public:
  explicit PageMap(const HostAllocator &allocator) : allocator_(allocator) {}
  ~PageMap();
  PageMap(const PageMap &) = delete;
  PageMap &operator=(const PageMap &) = delete;

  // False when there is no memory.
  [[nodiscard]] bool init();

  // The span that was last set for this address, or NULL. The caller checks that it covers the address and what it is.
  Span *find(const void *address) const {
    const Page *page = page_of(reinterpret_cast<uintptr_t>(address));
    if (page == nullptr) return nullptr;
    const uintptr_t entry = page->span.load(std::memory_order_acquire);
    if ((entry & 1) == 0) return reinterpret_cast<Span *>(entry);
    const Table *table = reinterpret_cast<const Table *>(entry - 1);
    return table->spans[(reinterpret_cast<uintptr_t>(address) >> kGranuleShift) % kTableSize].load(
        std::memory_order_acquire);
  }
  // The extent that holds the address, or NULL.
  Extent *find_extent(const void *address) const {
    const Page *page = page_of(reinterpret_cast<uintptr_t>(address));
    return page == nullptr ? nullptr : page->extent.load(std::memory_order_acquire);
  }

  // Makes room for all that a region's range may need, so that set() cannot fail. False when there is no memory.
  [[nodiscard]] bool prepare(uintptr_t base, uint64_t size);
  // Makes room for spans that begin or end inside 2 MiB pages of the range.
  [[nodiscard]] bool prepare_granules(uintptr_t base, uint64_t size);

  // Sets every granule of the range. Pages that are not covered whole must have been prepared.
  void set(uintptr_t base, uint64_t size, Span *span);
  // Sets the first and the last granule only: enough for coalescing, cheap for long runs.
  void set_ends(uintptr_t base, uint64_t size, Span *span);
  void set_extent(uintptr_t base, uint64_t size, Extent *extent);

 private:
  static constexpr uint32_t kPageShift = 21;
  static constexpr uint32_t kLeafBits = 14;
  static constexpr uint32_t kRootBits = 48 - kPageShift - kLeafBits;
  static constexpr uint64_t kTableSize = uint64_t{1} << (kPageShift - kGranuleShift);

  struct Table {
    std::atomic<Span *> spans[kTableSize];
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
  bool add_table(uintptr_t address);
  void set_one(uintptr_t address, Span *span);

  const HostAllocator allocator_;
  std::atomic<Leaf *> *root_ = nullptr;
};

}  // namespace gmm
#endif
