// SPDX-License-Identifier: Apache-2.0
#include "engine/space/size_class.h"

#include <gtest/gtest.h>

#include "engine/space/span.h"

namespace gmm {
namespace {

TEST(SizeClass, EverySmallSizeFitsItsClassAndWastesLittle) {
  for (uint64_t size = 1; size <= kMaxSmall; ++size) {
    const uint32_t index = small_class(size);
    ASSERT_LT(index, kSmallClasses) << size;
    const uint64_t bytes = small_class_size(index);
    ASSERT_GE(bytes, size);
    const uint64_t wasted = bytes - size;
    ASSERT_TRUE(wasted < kUnit || wasted * 8 <= bytes) << size << " in " << bytes;
    if (index != 0) {
      ASSERT_LT(small_class_size(index - 1), size);
    }
  }
}

TEST(SizeClass, CountsAndClassesAgreeUpToTheLargest) {
  for (uint32_t index = 0; index < class_of_count(kMaxSize / kGranule); ++index) {
    ASSERT_EQ(class_of_count(count_of_class(index)), index);
    ASSERT_EQ(class_of_count(count_of_class(index) + 1), index + 1);
  }
}

TEST(SizeClass, SlabsHoldTheirBlocksAndWasteAtMostASixteenth) {
  for (uint32_t index = 0; index < kSmallClasses; ++index) {
    const uint64_t bytes = slab_granules(index) * kGranule;
    const uint64_t used = slab_blocks(index) * small_class_size(index);
    ASSERT_LE(slab_blocks(index), kMaxSlabBlocks);
    ASSERT_GE(slab_blocks(index), 2u);
    ASSERT_LE(used, bytes);
    ASSERT_LE((bytes - used) * 16, bytes) << index;
  }
}

// A multiple of the alignment that is small is a class of its own or rounds to an aligned one.
TEST(SizeClass, AlignedSizesHaveAlignedClasses) {
  for (uint64_t alignment = kUnit; alignment <= kGranule; alignment *= 2)
    for (uint64_t size = alignment; size <= kMaxSmall; size += alignment)
      ASSERT_EQ(small_class_size(small_class(size)) % alignment, 0u) << size << " at " << alignment;
}

TEST(SizeClass, SlotsOfFewBlocksLieApartAndAllHaveRoom) {
  for (uint32_t index = 0; index < kSmallClasses; ++index) {
    const uint32_t blocks = slab_blocks(index), shift = slab_slot_shift(index);
    ASSERT_LE(((blocks - 1) << shift) + 1, kMaxSlabBlocks) << index;
    if (blocks <= 8) {
      ASSERT_EQ(shift, 3u) << "eight slots make a line";
    }
  }
}

TEST(SizeClass, TheReciprocalFindsTheBlockOfEveryOffset) {
  for (uint32_t index = 0; index < kSmallClasses; ++index) {
    const uint64_t size = small_class_size(index);
    static SlabSpan slab;  // gcc 12 misaligns a local of 64 bytes' alignment under the address sanitizer
    slab.base = uintptr_t{1} << 40;
    slab.size = slab_granules(index) * kGranule;
    slab.block_size = static_cast<uint32_t>(size);
    slab.reciprocal = slab_reciprocal(index);
    slab.block_count = slab_blocks(index);
    for (uint64_t offset = 0; offset < slab.size; offset += offset % kUnit == 0 ? kUnit - 1 : 1) {
      const uint64_t expected = offset / size;
      ASSERT_EQ(slab.index_of(slab.base + offset), expected < slab.block_count ? expected : slab.block_count.load())
          << offset << " of class " << index;
    }
  }
}

}  // namespace
}  // namespace gmm
