// SPDX-License-Identifier: Apache-2.0
#include "engine/space/page_map.h"

#include <cstring>

#include "base/os_memory.h"

namespace gmm {
namespace {

__extension__ typedef unsigned __int128 Bits;  // one a granule of a page

// The arrays are large and sparse. The system gives zero pages that cost nothing until touched. A program that counts
// every byte gets them counted: its allocator gives them, and all of their pages are touched. NULL: there is no memory.
void *take_zeroed(const HostAllocator &allocator, uint64_t size) {
  if (allocator.has_callbacks()) {
    void *memory = allocator.allocate(size, HostAllocator::kMaxAlignment);
    return memory == nullptr ? nullptr : std::memset(memory, 0, size);
  }
  return os::map_sparse(size);
}
void give_back(const HostAllocator &allocator, void *memory, uint64_t size) {
  if (allocator.has_callbacks())
    allocator.deallocate(memory, size);
  else
    os::discard(memory, size);
}

}  // namespace

bool PageMap::init() {
  root_ = static_cast<std::atomic<Leaf *> *>(take_zeroed(allocator_, kRootSize));
  return root_ != nullptr;
}

PageMap::~PageMap() {
  for (Sparse *each = sparse_.load(std::memory_order_relaxed), *next; each != nullptr; each = next) {
    next = each->next;
    allocator_.deallocate(each, sizeof(Sparse));
  }
  if (root_ == nullptr) return;
  for (uint64_t i = 0; i < uint64_t{1} << kRootBits; ++i) {
    Leaf *leaf = root_[i].load(std::memory_order_relaxed);
    if (leaf == nullptr) continue;
    for (Page &page : leaf->pages) {
      const uintptr_t entry = page.span.load(std::memory_order_relaxed);
      if ((entry & 1) != 0) allocator_.deallocate(reinterpret_cast<void *>(entry - 1), sizeof(Table));
    }
    give_back(allocator_, leaf, sizeof(Leaf));
  }
  give_back(allocator_, root_, kRootSize);
}

bool PageMap::add_sparse(Span *span) {
  for (Sparse *each = sparse_.load(std::memory_order_acquire); each != nullptr; each = each->next) {
    Span *none = nullptr;
    if (each->span.compare_exchange_strong(none, span, std::memory_order_acq_rel)) return true;
  }
  void *memory = allocator_.allocate(sizeof(Sparse), alignof(Sparse));
  if (memory == nullptr) return false;
  Sparse *made = ::new (memory) Sparse{span, sparse_.load(std::memory_order_relaxed)};
  while (!sparse_.compare_exchange_weak(made->next, made, std::memory_order_acq_rel)) {
  }
  return true;
}

void PageMap::remove_sparse(const Span *span) {
  for (Sparse *each = sparse_.load(std::memory_order_acquire); each != nullptr; each = each->next)
    if (each->span.load(std::memory_order_relaxed) == span) each->span.store(nullptr, std::memory_order_release);
}

bool PageMap::prepare(uintptr_t base, uint64_t size) {
  const uint32_t shift = kPageShift + kLeafBits;
  if ((base + size - 1) >> 48 != 0) return false;
  for (uintptr_t index = base >> shift; index <= (base + size - 1) >> shift; ++index) {
    if (root_[index].load(std::memory_order_acquire) != nullptr) continue;
    Leaf *leaf = static_cast<Leaf *>(take_zeroed(allocator_, sizeof(Leaf)));
    if (leaf == nullptr) return false;
    Leaf *expected = nullptr;
    if (!root_[index].compare_exchange_strong(expected, leaf, std::memory_order_acq_rel))
      give_back(allocator_, leaf, sizeof(Leaf));
  }
  return true;
}

bool PageMap::add_table(uintptr_t address) {
  Page *page = writable_page(address);
  uintptr_t entry = page->span.load(std::memory_order_acquire);
  if ((entry & 1) != 0) return true;
  Table *table = static_cast<Table *>(allocator_.allocate(sizeof(Table), 64));
  if (table == nullptr) return false;
  ::new (table) Table{};
  table->first.store(reinterpret_cast<Span *>(entry), std::memory_order_relaxed);
  page->span.store(reinterpret_cast<uintptr_t>(table) + 1, std::memory_order_release);
  return true;
}

// The granules from `first` to before `past` of one page. starts: the range begins at `first`, and not in a page
// before.
inline void PageMap::set_in_table(Table *table, uint32_t first, uint32_t past, Span *span, bool starts, bool each) {
  static_assert(kTableSize == 128);
  // Below 128 each, as a shift by the width of the type is undefined.
  const Bits from = ~Bits{0} << first, to = ~Bits{0} >> (kTableSize - past), mask = from & to;
  Bits bits = each ? mask : Bits{starts} << first;
  if (each)
    for (uint32_t i = first; i < past; ++i) table->spans[i].store(span, std::memory_order_release);
  else if (starts)
    table->spans[first].store(span, std::memory_order_release);
  if (!starts) table->first.store(span, std::memory_order_release);
  for (uint32_t word = 0; word < kTableSize / 64; ++word) {
    const uint64_t kept =
        table->starts[word].load(std::memory_order_relaxed) & ~static_cast<uint64_t>(mask >> word * 64);
    table->starts[word].store(kept | static_cast<uint64_t>(bits >> word * 64), std::memory_order_release);
  }
}

inline void PageMap::set_pages(uintptr_t base, uint64_t size, Span *span, bool each) {
  const uintptr_t end = base + size;
  uint32_t first = granule_of(base);
  bool starts = true;
  for (uintptr_t at = base & ~(kPage - 1); at < end; at += kPage, first = 0, starts = false) {
    Page *page = writable_page(at);
    const uintptr_t entry = page->span.load(std::memory_order_relaxed);
    if ((entry & 1) == 0) {
      page->span.store(reinterpret_cast<uintptr_t>(span), std::memory_order_release);
      continue;
    }
    const uintptr_t left = (end - at) >> kGranuleShift;
    set_in_table(reinterpret_cast<Table *>(entry - 1), first,
                 left < kTableSize ? static_cast<uint32_t>(left) : kTableSize, span, starts, each);
  }
}

void PageMap::set(uintptr_t base, uint64_t size, Span *span) { set_pages(base, size, span, false); }
void PageMap::set_each(uintptr_t base, uint64_t size, Span *span) { set_pages(base, size, span, true); }

void PageMap::set_extent(uintptr_t base, uint64_t size, Extent *extent) {
  for (uintptr_t address = base; address < base + size; address += kPage)
    writable_page(address)->extent.store(extent, std::memory_order_release);
}

}  // namespace gmm
