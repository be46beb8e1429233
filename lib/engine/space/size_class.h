// SPDX-License-Identifier: Apache-2.0
// Size classes: eight to a doubling, so that rounding wastes at most 12.5% (or less than 256 bytes).
//
// Small sizes (up to 128 KiB) are counted in units of 256 bytes and come from slabs. Large sizes are counted in
// granules of 16 KiB and are not rounded further; their classes only sort the free runs.
#ifndef GMM_ENGINE_SPACE_SIZE_CLASS_H
#define GMM_ENGINE_SPACE_SIZE_CLASS_H

#include <bit>
#include <cstdint>

namespace gmm {

inline constexpr uint64_t kUnit = 256;
inline constexpr uint32_t kGranuleShift = 14;
inline constexpr uint64_t kGranule = uint64_t{1} << kGranuleShift;
// Slabs up to 256 KiB gained 8% in the mixed benchmark, but held 1.31 of the requested bytes (kind DEVICE).
inline constexpr uint64_t kMaxSmall = uint64_t{128} << 10;
inline constexpr uint64_t kMaxCached = uint64_t{64} << 20;
// Beyond what any address space in use could hold.
inline constexpr uint64_t kMaxSize = uint64_t{1} << 46;

// 1..8 are classes 0..7; above, each doubling (8, 16], (16, 32], ... has eight.
constexpr uint32_t class_of_count(uint64_t count) {
  const uint32_t shift = static_cast<uint32_t>(std::bit_width((count - 1) | 8)) - 4;
  return 8 * shift + static_cast<uint32_t>((count - 1) >> shift);
}
// The largest count of a class.
constexpr uint64_t count_of_class(uint32_t index) {
  if (index < 8) return index + 1;
  const uint32_t shift = index / 8 - 1;
  return (uint64_t{index % 8 + 8} + 1) << shift;
}

inline constexpr uint32_t kSmallClasses = class_of_count(kMaxSmall / kUnit) + 1;

namespace internal {
// The class of each count of units.
struct SmallClassTable {
  uint8_t classes[kMaxSmall / kUnit + 1] = {};
  constexpr SmallClassTable() {
    for (uint64_t units = 1; units <= kMaxSmall / kUnit; ++units)
      classes[units] = static_cast<uint8_t>(class_of_count(units));
  }
};
inline constexpr SmallClassTable kSmallClassTable;
}  // namespace internal

constexpr uint32_t small_class(uint64_t size) { return internal::kSmallClassTable.classes[(size + kUnit - 1) / kUnit]; }
constexpr uint64_t small_class_size(uint32_t index) { return count_of_class(index) * kUnit; }
constexpr uint64_t granules(uint64_t size) { return (size + kGranule - 1) >> kGranuleShift; }

// A slab has at most 64 blocks, so that one word holds what is free.
inline constexpr uint32_t kMaxSlabBlocks = 64;

// Granules of a slab: small enough that a class used once costs little, large enough that its tail wastes at most 1/16.
// Four blocks beyond 64 KiB instead of two made the mixed benchmark hold 3% more.
constexpr uint64_t slab_granules(uint32_t index) {
  const uint64_t size = small_class_size(index);
  const uint64_t wanted = size <= 16384 ? 8 : size <= 65536 ? 4 : 2;
  uint64_t count = granules(size * wanted);
  while (count * kGranule % size > count * kGranule / 16) ++count;
  return count;
}
constexpr uint32_t slab_blocks(uint32_t index) {
  const uint64_t blocks = slab_granules(index) * kGranule / small_class_size(index);
  return static_cast<uint32_t>(blocks < kMaxSlabBlocks ? blocks : kMaxSlabBlocks);
}
// Where to put the slots of a slab: one line of the processor's cache each, or as near to that as there is room.
constexpr uint8_t slab_slot_shift(uint32_t index) {
  uint8_t shift = 0;
  while (shift < 3 && slab_blocks(index) << (shift + 1) <= kMaxSlabBlocks) ++shift;
  return shift;
}
// Blocks of a slab are found by multiplication: index = units * reciprocal >> 24.
constexpr uint32_t slab_reciprocal(uint32_t index) {
  const uint64_t units = count_of_class(index);
  return static_cast<uint32_t>(((uint64_t{1} << 24) + units - 1) / units);
}

static_assert(class_of_count(8) == 7 && class_of_count(9) == 8 && class_of_count(16) == 15 &&
              class_of_count(17) == 16 && class_of_count(18) == 16 && class_of_count(19) == 17);
static_assert(count_of_class(8) == 9 && count_of_class(16) == 18 && count_of_class(15) == 16);
static_assert(kSmallClasses == 56);

}  // namespace gmm
#endif
