// SPDX-License-Identifier: Apache-2.0
#include "engine/page_map.h"

#include <sys/mman.h>

namespace gmm {
namespace {

// Large sparse arrays come from the system as zero pages that cost nothing until touched; the program's allocator is for objects.
void *map_zeroed(uint64_t size) {
  void *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

bool PageMap::init() {
  root_ = static_cast<std::atomic<Leaf *> *>(map_zeroed(sizeof(std::atomic<Leaf *>) << kRootBits));
  return root_ != nullptr;
}

PageMap::~PageMap() {
  if (root_ == nullptr) return;
  for (uint64_t i = 0; i < uint64_t{1} << kRootBits; ++i) {
    Leaf *leaf = root_[i].load(std::memory_order_relaxed);
    if (leaf == nullptr) continue;
    for (Page &page : leaf->pages) {
      const uintptr_t entry = page.span.load(std::memory_order_relaxed);
      if ((entry & 1) != 0) allocator_.deallocate(reinterpret_cast<void *>(entry - 1), sizeof(Table));
    }
    munmap(leaf, sizeof(Leaf));
  }
  munmap(root_, sizeof(std::atomic<Leaf *>) << kRootBits);
}

bool PageMap::prepare(uintptr_t base, uint64_t size) {
  const uint32_t shift = kPageShift + kLeafBits;
  if ((base + size - 1) >> 48 != 0) return false;
  for (uintptr_t index = base >> shift; index <= (base + size - 1) >> shift; ++index) {
    if (root_[index].load(std::memory_order_acquire) != nullptr) continue;
    Leaf *leaf = static_cast<Leaf *>(map_zeroed(sizeof(Leaf)));
    if (leaf == nullptr) return false;
    Leaf *expected = nullptr;
    if (!root_[index].compare_exchange_strong(expected, leaf, std::memory_order_acq_rel)) munmap(leaf, sizeof(Leaf));
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

bool PageMap::prepare_granules(uintptr_t base, uint64_t size) {
  constexpr uintptr_t kPage = uintptr_t{1} << kPageShift;
  const uintptr_t end = base + size;
  if (base % kPage != 0 && !add_table(base)) return false;
  if (end % kPage != 0 && !add_table(end - 1)) return false;
  return true;
}

void PageMap::set_in_page(uintptr_t base, uintptr_t begin, uintptr_t end, Span *span, bool each) {
  Page *page = writable_page(begin);
  const uintptr_t entry = page->span.load(std::memory_order_relaxed);
  if ((entry & 1) == 0) {
    page->span.store(reinterpret_cast<uintptr_t>(span), std::memory_order_release);
    return;
  }
  Table *table = reinterpret_cast<Table *>(entry - 1);
  const uint32_t first = granule_of(begin), past = granule_of(end - 1) + 1;
  if (!each && begin != base && past == kTableSize) {
    // A page in the midst of a large block.
    table->first.store(span, std::memory_order_release);
    for (auto &word : table->starts) word.store(0, std::memory_order_release);
    return;
  }
  const bool starts_here = begin == base;
  if (each)
    for (uint32_t i = first; i < past; ++i) table->spans[i].store(span, std::memory_order_release);
  else if (starts_here)
    table->spans[first].store(span, std::memory_order_release);
  if (!starts_here) table->first.store(span, std::memory_order_release);
  for (uint32_t word = first / 64; word <= (past - 1) / 64; ++word) {
    const uint32_t low = word * 64 < first ? first % 64 : 0;
    const uint32_t high = word * 64 + 64 > past ? past % 64 : 64;
    const uint64_t mask = (high == 64 ? ~uint64_t{0} : (uint64_t{1} << high) - 1) & ~uint64_t{0} << low;
    uint64_t bits = table->starts[word].load(std::memory_order_relaxed) & ~mask;
    if (each)
      bits |= mask;
    else if (starts_here && word == first / 64)
      bits |= uint64_t{1} << first % 64;
    table->starts[word].store(bits, std::memory_order_release);
  }
}

void PageMap::set_pages(uintptr_t base, uintptr_t begin, uintptr_t end, Span *span, bool each) {
  constexpr uintptr_t kPage = uintptr_t{1} << kPageShift;
  while (begin < end) {
    const uintptr_t next_page = (begin | (kPage - 1)) + 1;
    set_in_page(base, begin, next_page < end ? next_page : end, span, each);
    begin = next_page;
  }
}

void PageMap::set(uintptr_t base, uint64_t size, Span *span) { set_pages(base, base, base + size, span, false); }
void PageMap::set_each(uintptr_t base, uint64_t size, Span *span) { set_pages(base, base, base + size, span, true); }

void PageMap::set_extent(uintptr_t base, uint64_t size, Extent *extent) {
  for (uintptr_t address = base; address < base + size; address += uintptr_t{1} << kPageShift)
    writable_page(address)->extent.store(extent, std::memory_order_release);
}

}  // namespace gmm
