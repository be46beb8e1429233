// SPDX-License-Identifier: Apache-2.0
// Containers of the command, which ends where there is no memory for one.
#ifndef GMM_CLI_LIST_H
#define GMM_CLI_LIST_H

#include <cstdio>
#include <cstdlib>

#include "base/hash_table.h"

namespace gmm {

[[noreturn]] inline void end_without_memory() {
  std::fputs("gmm: there is no memory for that\n", stderr);
  std::exit(1);
}

// Adds an item to an array of C. It grows when its number of items is a power of two. Returns the item's index.
template <typename T, typename Count>
Count append(T **items, Count *count, const T &item) {
  const T copy = item;
  if ((*count & (*count - 1)) == 0) {
    void *grown = std::realloc(*items, (*count == 0 ? 1 : size_t{*count} * 2) * sizeof(T));
    if (grown == nullptr) end_without_memory();
    *items = static_cast<T *>(grown);
  }
  (*items)[*count] = copy;
  return (*count)++;
}

template <typename T>
class List : public Vector<T> {
 public:
  T &add(const T &item) {
    if (!this->push_back(item)) end_without_memory();
    return this->back();
  }
  void grow_to(uint64_t size, const T &item = T()) {
    while (this->size() < size) add(item);
  }
};

// Items, each once, in the order of their first use.
template <typename T>
class Distinct {
 public:
  static constexpr uint64_t kNone = UINT64_MAX;
  // The index of the item for which same(const T &) is true, or kNone.
  template <typename Same>
  uint64_t find(uint64_t hash, Same same) const {
    const uint64_t *at = places_.find(hash, [&](uint64_t each) { return same(items[each]); });
    return at == nullptr ? kNone : *at;
  }
  // The index of that item, or of a new one.
  template <typename Same>
  uint64_t find_or_add(uint64_t hash, const T &item, Same same) {
    if (const uint64_t at = find(hash, same); at != kNone) return at;
    if (!places_.reserve()) end_without_memory();
    places_.add(hash, items.size());
    items.add(item);
    return items.size() - 1;
  }
  List<T> items;

 private:
  HashTable<uint64_t> places_{HostAllocator()};  // indices
};

struct Numbers : Distinct<uint64_t> {
  uint64_t index_of(uint64_t number) const {
    return find(number, [number](uint64_t each) { return each == number; });
  }
  uint64_t add(uint64_t number) {
    return find_or_add(number, number, [number](uint64_t each) { return each == number; });
  }
};

}  // namespace gmm
#endif
