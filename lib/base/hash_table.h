// SPDX-License-Identifier: Apache-2.0
// A hash table of values whose keys lie elsewhere: open addressing with linear probing, at most half full.
#ifndef GMM_BASE_HASH_TABLE_H
#define GMM_BASE_HASH_TABLE_H

#include <cstdint>

#include "base/vector.h"

namespace gmm {

// FNV-1a, from its offset basis on or from another number.
inline constexpr uint64_t kHashStart = 0xcbf29ce484222325;
inline uint64_t hash_of_text(const char *text, uint64_t hash = kHashStart) {
  for (; *text != '\0'; ++text) hash = (hash ^ static_cast<unsigned char>(*text)) * 0x100000001b3;
  return hash;
}

// The table has the hash of each value, and the caller says by `same(value)` which of those with one hash is meant.
// Several values may have one hash: find() asks about each of them until `same` is true.
// It is not thread-safe.
template <typename T>
class HashTable {
 public:
  explicit HashTable(const HostAllocator &allocator) : allocator_(allocator), places_(allocator) {}

  // The value, until the next add() or remove(); NULL: there is none.
  template <typename Same>
  T *find(uint64_t hash, Same same) {
    if (count_ == 0) return nullptr;
    const uint64_t at = place_of(mark(hash), same);
    return places_[at].mark == kEmpty ? nullptr : &places_[at].value;
  }
  template <typename Same>
  const T *find(uint64_t hash, Same same) const {
    return const_cast<HashTable *>(this)->find(hash, same);
  }
  // Makes room for one more. False: there is no host memory, and nothing changed.
  [[nodiscard]] bool reserve() {
    if ((count_ + 1) * 2 <= places_.size()) return true;
    const uint64_t size = places_.empty() ? 16 : places_.size() * 2;
    Vector<Place> grown(allocator_);
    if (!grown.reserve(size)) return false;
    for (uint64_t i = 0; i < size; ++i) grown.push_back_reserved(Place{});
    grown.swap(places_);
    for (const Place &place : grown)
      if (place.mark != kEmpty) put(place);
    return true;
  }
  // After reserve(), for a value that is not there.
  void add(uint64_t hash, const T &value) {
    put(Place{mark(hash), value});
    ++count_;
  }
  // For a value that is there.
  template <typename Same>
  void remove(uint64_t hash, Same same) {
    close(place_of(mark(hash), same));
  }
  // Removes the values for which fn(const T &) is true, which may be asked twice.
  template <typename Fn>
  void remove_if(Fn fn) {
    for (uint64_t at = 0; at < places_.size(); ++at)
      while (places_[at].mark != kEmpty && fn(places_[at].value)) close(at);
  }
  template <typename Fn>
  void for_each(Fn fn) const {
    for (const Place &place : places_)
      if (place.mark != kEmpty) fn(place.value);
  }
  // Keeps the memory.
  void clear() {
    for (Place &place : places_) place = Place{};
    count_ = 0;
  }
  uint64_t count() const { return count_; }

 private:
  static constexpr uint64_t kEmpty = 0;
  struct Place {
    uint64_t mark;  // the mixed hash
    T value;
  };
  // Hashes of addresses and of short texts differ in few bits. Its top bit is 1, so a mark is never kEmpty.
  static uint64_t mark(uint64_t hash) { return hash * 0x9e3779b97f4a7c15 | uint64_t{1} << 63; }
  uint64_t home_of(uint64_t mark) const { return (mark >> 32) & (places_.size() - 1); }
  // The place of a value, or the empty one where it belongs. There is a table.
  template <typename Same>
  uint64_t place_of(uint64_t mark, Same same) const {
    uint64_t at = home_of(mark);
    while (places_[at].mark != kEmpty && !(places_[at].mark == mark && same(places_[at].value)))
      at = (at + 1) & (places_.size() - 1);
    return at;
  }
  // Ends the value of a place. The values behind the gap move up where a search would stop at it otherwise.
  void close(uint64_t gap) {
    const uint64_t mask = places_.size() - 1;
    for (uint64_t i = (gap + 1) & mask; places_[i].mark != kEmpty; i = (i + 1) & mask) {
      if (((i - home_of(places_[i].mark)) & mask) < ((i - gap) & mask)) continue;
      places_[gap] = places_[i];
      gap = i;
    }
    places_[gap] = Place{};
    --count_;
  }
  void put(const Place &place) {
    places_[place_of(place.mark, [](const T &) { return false; })] = place;
  }

  const HostAllocator allocator_;
  Vector<Place> places_;  // a power of two
  uint64_t count_ = 0;
};

}  // namespace gmm
#endif
