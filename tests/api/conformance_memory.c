// SPDX-License-Identifier: Apache-2.0
// memory.h: alignment, rounding, flags, free and query.
#include "../support/gmm_test.h"

static const uint64_t sizes[] = {1,       2,       16,          255,     256,      257,      511,
                                 512,     1000,    1024,        4096,    5000,     10000,    65536,
                                 70001,   131072,  200000,      524289,  1048576,  1048577,  2097152,
                                 2097153, 3000000, 5 * 1048576, 8388608, 10000001, 33554432, 40000000};
#define SIZES (sizeof sizes / sizeof sizes[0])

// At most an eighth more than was asked for, or up to the next 256 bytes.
static uint64_t check_rounding(const void *block, uint64_t size) {
  const gmm_pointer_info info = query(block);
  const uint64_t to_256 = (size + 255) / 256 * 256, most = size + size / 8 > to_256 ? size + size / 8 : to_256;
  CHECK_EQUAL((uintptr_t)block % 256, 0);
  CHECK_EQUAL(info.size, size);
  CHECK_MESSAGE(info.reserved_size >= size && info.reserved_size <= most, "%llu bytes take %llu, at most %llu",
                (unsigned long long)size, (unsigned long long)info.reserved_size, (unsigned long long)most);
  return info.reserved_size;
}

CASE_OF_KINDS(blocks_are_aligned_rounded_and_apart, ALL_KINDS) {
  void *blocks[SIZES];
  for (unsigned i = 0; i < SIZES; ++i) {
    blocks[i] = FILLED(sizes[i], i);
    const uint64_t reserved = check_rounding(blocks[i], sizes[i]);
    for (unsigned j = 0; j < i; ++j) {
      uintptr_t a = (uintptr_t)blocks[i], b = (uintptr_t)blocks[j];
      CHECK_MESSAGE(a + reserved <= b || b + sizes[j] <= a, "blocks %u and %u overlap", i, j);
    }
  }
  for (unsigned i = 0; i < SIZES; ++i) {
    CHECK_PATTERN(blocks[i], sizes[i], i);
    if ((query(blocks[i]).flags & GMM_POINTER_HOST_ACCESSIBLE) == 0) continue;
    CHECK_EQUAL(pattern_length(blocks[i], sizes[i], i), sizes[i]);
    fill_pattern(blocks[i], sizes[i], i + 50);
    CHECK_PATTERN(blocks[i], sizes[i], i + 50);
  }
  FREE_ALL(blocks, SIZES);
  for (uint64_t size = 1, count = 0; size < 20 * MIB; ++count) {
    void *block = ALLOC(size);
    check_rounding(block, size);
    FREE(block);
    size += 1 + (count % 3 == 0 ? size / 17 : count % 3 == 1 ? 255 : 1 + size / 31);
  }
  CHECK_EQUAL(stats().live_blocks, 0);
}

CASE_OF_KINDS(alignment_is_as_asked, ALL_KINDS) {
  for (uint64_t alignment = 1; alignment <= 2 * MIB; alignment *= 2) {
    for (unsigned i = 0; i < 4; ++i) {
      static const uint64_t some[] = {1, 3000, 300000, 5000000};
      void *block = NULL;
      MUST(gmm_alloc(context, some[i], HERE(.alignment = alignment), &block));
      const uint64_t expected = alignment < 256 ? 256 : alignment;
      CHECK_MESSAGE((uintptr_t)block % expected == 0, "%p is not aligned to %llu", block, (unsigned long long)expected);
      const gmm_pointer_info info = query((char *)block + some[i] - 1);
      CHECK(info.base == block && info.size == some[i]);
      if (i == 2 && alignment == 65536) write_pattern(block, some[i], 9, GMM_STREAM_DEFAULT);
      if (i == 2 && alignment == 65536) CHECK_PATTERN(block, some[i], 9);
      FREE(block);
    }
  }
  CHECK_EQUAL(stats().live_blocks, 0);
}

CASE_OF_KINDS(zero_flag_fills_with_zero, ALL_KINDS) {
  static const uint64_t some[] = {1, 100, 4096, 100000, 3 * 1048576 + 5};
  for (unsigned round = 0; round < 3; ++round) {
    for (unsigned i = 0; i < 5; ++i) {
      void *dirty = ALLOC(some[i]);
      OK(gmm_fill(context, dirty, 0xdd, some[i], GMM_STREAM_DEFAULT));
      FREE(dirty);
      void *clean = ALLOC_FLAGS(some[i], GMM_ALLOC_ZERO);
      CHECK_MESSAGE(is_filled(clean, some[i], 0, GMM_STREAM_DEFAULT), "%llu bytes are not zero",
                    (unsigned long long)some[i]);
      FREE(clean);
    }
  }
}

CASE_OF_KINDS(zero_fill_is_in_stream_order, ALL_KINDS) {
  gmm_stream stream = open_stream();
  void *block = ALLOC_STREAM(100000, stream);
  static gate hold;
  gate_close(&hold, stream, 1.0);
  OK(gmm_fill(context, block, 0xdd, 100000, stream));
  FREE_ON(stream, block);
  void *clean = alloc_here(__LINE__, 100000, GMM_TAG_CURRENT, stream, GMM_ALLOC_ZERO);
  atomic_store(&hold.open, 1);
  OK(gmm_stream_synchronize(context, stream));
  CHECK(is_filled(clean, 100000, 0, GMM_STREAM_DEFAULT));
}

CASE_OF_KINDS(dedicated_blocks_start_their_allocation, ALL_KINDS) {
  void *shared = ALLOC(1000);
  void *first = ALLOC_FLAGS(1000, GMM_ALLOC_DEDICATED),
       *second = ALLOC_FLAGS(5 * MIB, GMM_ALLOC_DEDICATED | GMM_ALLOC_ZERO);
  gmm_pointer_info a = query(first), b = query(second), c = query(shared);
  CHECK(a.allocation_base == first);
  CHECK(b.allocation_base == second);
  CHECK(a.allocation_size >= 1000 && b.allocation_size >= 5 * MIB);
  CHECK(c.allocation_base != first && c.allocation_base != second);
  CHECK_EQUAL(a.size, 1000);
  CHECK(is_filled(second, 5 * MIB, 0, GMM_STREAM_DEFAULT));
  uint64_t extents = stats().extents;
  FREE(first, second, shared);
  NOTHING_STAYS();
  CHECK(stats().extents < extents);
}

CASE_OF_KINDS(query_knows_every_address_of_a_block, ALL_KINDS) {
  const uint64_t size = 300000;
  gmm_tag tag = make_tag("asked", GMM_CONTENTS_DROP);
  char *block = ALLOC_TAG(size, tag);
  const uint64_t offsets[] = {0, 1, 255, 256, 4096, 150000, 299999};
  for (unsigned i = 0; i < 7; ++i) {
    gmm_pointer_info info = query(block + offsets[i]);
    CHECK_EQUAL(info.struct_size, sizeof info);
    CHECK(info.kind == kind && info.device == device && info.tag == tag && info.state == GMM_STATE_ACTIVE);
    CHECK(info.base == block && info.size == size);
    static const gmm_usm usm[] = {0, GMM_USM_DEVICE, GMM_USM_DEVICE, GMM_USM_HOST, GMM_USM_SHARED};
    CHECK_EQUAL(info.usm, usm[kind]);
    CHECK((info.flags & GMM_POINTER_DEVICE_ACCESSIBLE) != 0);
    if (kind == GMM_KIND_HOST || kind == GMM_KIND_MANAGED) CHECK((info.flags & GMM_POINTER_HOST_ACCESSIBLE) != 0);
    // A strict host backend has a view of its own for functions of a stream.
    if (getenv("GMM_STRICT_HOST") == NULL) CHECK(info.device_pointer == block + offsets[i]);
    CHECK((char *)info.allocation_base <= block &&
          (char *)info.allocation_base + info.allocation_size >= block + info.reserved_size);
    if (kind == GMM_KIND_MANAGED) CHECK_EQUAL(info.ipc_routes, 0);
  }
  gmm_pointer_info before = query(block - 1), after = query(block + query(block).reserved_size);
  CHECK(before.base != block && after.base != block);
}

CASE_OF_KINDS(query_of_freed_memory, ALL_KINDS) {
  char *block = ALLOC(100000);
  FREE(block);
  gmm_pointer_info info = query(block);
  CHECK(info.state == GMM_STATE_FREE || info.state == GMM_STATE_UNKNOWN);
  info = query(block + 500);
  CHECK(info.state == GMM_STATE_FREE || info.state == GMM_STATE_UNKNOWN);
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(query(block).state, GMM_STATE_UNKNOWN);
}

CASE(query_of_foreign_addresses) {
  int on_stack = 0;
  void *of_malloc = malloc(1000);
  const uintptr_t addresses[] = {(uintptr_t)&on_stack,
                                 (uintptr_t)of_malloc,
                                 (uintptr_t)query_of_foreign_addresses,
                                 0,
                                 1,
                                 UINTPTR_MAX,
                                 UINTPTR_MAX / 2,
                                 (uintptr_t)1 << 47,
                                 (uintptr_t)1 << 57};
  for (unsigned i = 0; i < sizeof addresses / sizeof addresses[0]; ++i) {
    const gmm_pointer_info info = query((const void *)addresses[i]);
    CHECK_MESSAGE(info.state == GMM_STATE_UNKNOWN, "address %u has state %u", i, info.state);
    CHECK(info.kind == GMM_KIND_UNSPECIFIED && info.tag == 0 && info.device == GMM_DEVICE_HOST && info.ipc_routes == 0);
  }
  free(of_malloc);
}

// The counters stay as they were, and so does the block.
CASE_OF_KINDS(a_free_that_is_refused_changes_nothing, ALL_KINDS) {
  for (unsigned i = 0; i < 4; ++i) {
    static const uint64_t some[] = {100, 5000, 300000, 6000000};
    char *block = ALLOC(some[i]);
    for (int freed = 0; freed < 2; ++freed) {
      const gmm_stats_info before = stats();
      for (unsigned k = 0; k < 2; ++k)
        RESULT(gmm_free(context, freed ? block : block + (k ? some[i] - 1 : 1), GMM_STREAM_DEFAULT),
               freed ? GMM_ERROR_ALREADY_FREED : GMM_ERROR_INTERIOR_POINTER);
      const gmm_stats_info after = stats();
      CHECK(memcmp(&before, &after, sizeof before) == 0);
      if (!freed) FREE(block);
    }
  }
}

// A double free must be seen wherever the block is by then: in the thread's cache, in the shared lists or back in its
// span.
CASE_OF_KINDS(double_free_is_seen_after_much_traffic, ALL_KINDS) {
  enum { COUNT = 300 };
  void *blocks[COUNT];
  for (unsigned i = 0; i < COUNT; ++i) blocks[i] = ALLOC(1000);
  FREE_ALL(blocks, COUNT);
  for (unsigned i = 0; i < COUNT; ++i) {
    gmm_result result = gmm_free(context, blocks[i], GMM_STREAM_DEFAULT);
    CHECK_MESSAGE(result == GMM_ERROR_ALREADY_FREED || result == GMM_ERROR_UNKNOWN_POINTER, "block %u: %s", i,
                  gmm_result_name(result));
  }
  CHECK_EQUAL(stats().live_blocks, 0);
  CHECK_EQUAL(stats().frees, COUNT);
}

CASE_OF_KINDS(memory_is_reused_not_hoarded, ALL_KINDS) {
  for (unsigned i = 0; i < 2000; ++i) FREE(ALLOC(100000 + i % 7 * 1000));
  CHECK(stats().peak_reserved_bytes <= 64 * MIB);
  CHECK_EQUAL(stats().live_blocks, 0);
}

CASE(null_descriptor_means_device_memory_on_device_0) {
  for (unsigned i = 0; i < 2; ++i) {
    void *block = NULL;
    MUST(gmm_alloc(context, 100, i == 0 ? NULL : DESC(alloc_desc), &block));
    const gmm_pointer_info info = query(block);
    CHECK(info.kind == GMM_KIND_DEVICE && info.device == 0 && info.tag == GMM_TAG_DEFAULT);
  }
}

// A device that is full: other blocks stay, freeing makes room.
CASE_OF_KINDS(a_full_device_recovers, (1u << GMM_KIND_DEVICE) | (1u << GMM_KIND_VMM)) {
  if (!on_host_backend()) SKIP("a real device is not filled here");
  reopen_with(64 * MIB);
  void *blocks[64];
  unsigned count = 0;
  gmm_result result = GMM_OK;
  while (count < 64 && (result = try_alloc(3 * MIB, GMM_TAG_CURRENT, &blocks[count])) == GMM_OK) ++count;
  CHECK(result == GMM_ERROR_OUT_OF_MEMORY);
  CHECK(strlen(gmm_last_error_message()) > 20);
  CHECK_MESSAGE(count >= 16 && count <= 21, "%u blocks of 3 MiB fit into 64 MiB", count);
  void *none = NULL;
  RESULT(try_alloc(60 * MIB, GMM_TAG_CURRENT, &none), GMM_ERROR_OUT_OF_MEMORY);
  CHECK(stats().peak_reserved_bytes <= 64 * MIB);  // a request that was refused is no peak
  write_pattern(blocks[0], 3 * MIB, 1, GMM_STREAM_DEFAULT);
  FREE_ALL(blocks + 1, count - 1);
  ALLOC(40 * MIB);  // needs what is cached to go back first
  CHECK_PATTERN(blocks[0], 3 * MIB, 1);
}

int main(void) { return run_cases(); }
