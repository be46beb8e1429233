// SPDX-License-Identifier: Apache-2.0
// memory.h: alignment, rounding, flags, free and query.
#include "../support/gmm_test.h"

static const uint64_t sizes[] = {1,       2,       16,          255,     256,      257,      511,
                                 512,     1000,    1024,        4096,    5000,     10000,    65536,
                                 70001,   131072,  200000,      524289,  1048576,  1048577,  2097152,
                                 2097153, 3000000, 5 * 1048576, 8388608, 10000001, 33554432, 40000000};
#define SIZES (sizeof sizes / sizeof sizes[0])

static void blocks_are_aligned_and_rounded_within_bounds(void) {
  void *blocks[SIZES];
  for (unsigned i = 0; i < SIZES; ++i) {
    blocks[i] = ALLOC(sizes[i]);
    REQUIRE(blocks[i] != NULL);
    CHECK_EQUAL((uintptr_t)blocks[i] % 256, 0);
    gmm_pointer_info info = query(blocks[i]);
    CHECK_EQUAL(info.size, sizes[i]);
    uint64_t to_256 = (sizes[i] + 255) / 256 * 256;
    uint64_t most = sizes[i] + sizes[i] / 8 > to_256 ? sizes[i] + sizes[i] / 8 : to_256;
    CHECK_MESSAGE(info.reserved_size >= sizes[i] && info.reserved_size <= most,
                  "%llu bytes take %llu, at most %llu are allowed", (unsigned long long)sizes[i],
                  (unsigned long long)info.reserved_size, (unsigned long long)most);
    for (unsigned j = 0; j < i; ++j) {
      uintptr_t a = (uintptr_t)blocks[i], b = (uintptr_t)blocks[j];
      CHECK_MESSAGE(a + info.reserved_size <= b || b + sizes[j] <= a, "blocks %u and %u overlap", i, j);
    }
  }
  for (unsigned i = 0; i < SIZES; ++i) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  CHECK_EQUAL(stats().live_blocks, 0);
}

static void rounding_holds_for_every_size(void) {
  uint64_t size = 1;
  unsigned count = 0;
  while (size < 20 * MIB) {
    void *block = ALLOC(size);
    REQUIRE(block != NULL);
    uint64_t reserved = query(block).reserved_size, to_256 = (size + 255) / 256 * 256;
    uint64_t most = size + size / 8 > to_256 ? size + size / 8 : to_256;
    CHECK_MESSAGE(reserved >= size && reserved <= most, "%llu bytes take %llu", (unsigned long long)size,
                  (unsigned long long)reserved);
    OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
    size += 1 + (count % 3 == 0 ? size / 17 : count % 3 == 1 ? 255 : 1 + size / 31);
    ++count;
  }
  CHECK(count > 100);
}

static void the_whole_block_is_usable(void) {
  for (unsigned i = 0; i < SIZES; ++i) {
    if (sizes[i] > 11 * MIB) continue;
    void *block = ALLOC(sizes[i]), *next = ALLOC(sizes[i]);
    REQUIRE(block != NULL && next != NULL);
    write_pattern(block, sizes[i], i, GMM_STREAM_DEFAULT);
    write_pattern(next, sizes[i], i + 100, GMM_STREAM_DEFAULT);
    CHECK_PATTERN(block, sizes[i], i);
    CHECK_PATTERN(next, sizes[i], i + 100);
    OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
    CHECK_PATTERN(next, sizes[i], i + 100);
    OK(gmm_free(context, next, GMM_STREAM_DEFAULT));
  }
}

static void alignment_is_as_asked(void) {
  for (uint64_t alignment = 1; alignment <= 2 * MIB; alignment *= 2) {
    for (unsigned i = 0; i < 4; ++i) {
      static const uint64_t some[] = {1, 3000, 300000, 5000000};
      gmm_alloc_desc desc = alloc_desc();
      desc.alignment = alignment;
      void *block = NULL;
      OK(gmm_alloc(context, some[i], &desc, &block));
      REQUIRE(block != NULL);
      uint64_t expected = alignment < 256 ? 256 : alignment;
      CHECK_MESSAGE((uintptr_t)block % expected == 0, "%p is not aligned to %llu", block, (unsigned long long)expected);
      gmm_pointer_info info = query((char *)block + some[i] - 1);
      CHECK(info.base == block);
      CHECK_EQUAL(info.size, some[i]);
      if (i == 2 && alignment == 65536) write_pattern(block, some[i], 9, GMM_STREAM_DEFAULT);
      if (i == 2 && alignment == 65536) CHECK_PATTERN(block, some[i], 9);
      OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
    }
  }
  gmm_alloc_desc desc = alloc_desc();
  void *block = (void *)0x1;
  static const uint64_t bad[] = {3, 257, 6000, 4 * 1048576, UINT64_MAX, (uint64_t)1 << 63};
  for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; ++i) {
    desc.alignment = bad[i];
    RESULT(gmm_alloc(context, 100, &desc, &block), GMM_ERROR_INVALID_ALIGNMENT);
  }
  CHECK(block == NULL);
  CHECK_EQUAL(stats().live_blocks, 0);
}

static bool is_zero(const void *memory, uint64_t size) {
  uint8_t *bytes = malloc(size);
  memset(bytes, 0xff, size);
  OK(gmm_copy(context, bytes, memory, size, GMM_STREAM_DEFAULT));
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  bool zero = true;
  for (uint64_t i = 0; i < size && zero; ++i) zero = bytes[i] == 0;
  free(bytes);
  return zero;
}

static void zero_flag_fills_with_zero(void) {
  static const uint64_t some[] = {1, 100, 4096, 100000, 3 * 1048576 + 5};
  for (unsigned round = 0; round < 3; ++round) {
    for (unsigned i = 0; i < 5; ++i) {
      void *dirty = ALLOC(some[i]);
      REQUIRE(dirty != NULL);
      OK(gmm_fill(context, dirty, 0xdd, some[i], GMM_STREAM_DEFAULT));
      OK(gmm_free(context, dirty, GMM_STREAM_DEFAULT));
      void *clean = ALLOC_FLAGS(some[i], GMM_ALLOC_ZERO);
      REQUIRE(clean != NULL);
      CHECK_MESSAGE(is_zero(clean, some[i]), "%llu bytes are not zero", (unsigned long long)some[i]);
      OK(gmm_free(context, clean, GMM_STREAM_DEFAULT));
    }
  }
}

static void zero_fill_is_in_stream_order(void) {
  gmm_stream stream = 0;
  MUST(gmm_stream_create(context, STREAM_ON(device), &stream));
  void *block = ALLOC_STREAM(100000, stream);
  REQUIRE(block != NULL);
  gate hold;
  gate_close(&hold, stream, 1.0);
  OK(gmm_fill(context, block, 0xdd, 100000, stream));
  OK(gmm_free(context, block, stream));
  gmm_alloc_desc desc = alloc_desc();
  desc.stream = stream;
  desc.flags = GMM_ALLOC_ZERO;
  void *clean = NULL;
  OK(gmm_alloc(context, 100000, &desc, &clean));
  atomic_store(&hold.open, 1);
  OK(gmm_stream_synchronize(context, stream));
  CHECK(is_zero(clean, 100000));
  OK(gmm_free(context, clean, stream));
  OK(gmm_stream_destroy(context, stream));
}

static void dedicated_blocks_start_their_allocation(void) {
  void *shared = ALLOC(1000);
  void *first = ALLOC_FLAGS(1000, GMM_ALLOC_DEDICATED),
       *second = ALLOC_FLAGS(5 * MIB, GMM_ALLOC_DEDICATED | GMM_ALLOC_ZERO);
  REQUIRE(shared != NULL && first != NULL && second != NULL);
  gmm_pointer_info a = query(first), b = query(second), c = query(shared);
  CHECK(a.allocation_base == first);
  CHECK(b.allocation_base == second);
  CHECK(a.allocation_size >= 1000 && b.allocation_size >= 5 * MIB);
  CHECK(c.allocation_base != first && c.allocation_base != second);
  CHECK_EQUAL(a.size, 1000);
  CHECK(is_zero(second, 5 * MIB));
  uint64_t extents = stats().extents;
  OK(gmm_free(context, first, GMM_STREAM_DEFAULT));
  OK(gmm_free(context, second, GMM_STREAM_DEFAULT));
  OK(gmm_free(context, shared, GMM_STREAM_DEFAULT));
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  OK(gmm_trim(context, NULL, NULL));
  CHECK(stats().extents < extents);
  CHECK_EQUAL(stats().reserved_bytes, 0);
}

static void query_knows_every_address_of_a_block(void) {
  const uint64_t size = 300000;
  gmm_tag tag = make_tag("asked", GMM_CONTENTS_DROP);
  char *block = ALLOC_TAG(size, tag);
  REQUIRE(block != NULL);
  const uint64_t offsets[] = {0, 1, 255, 256, 4096, 150000, 299999};
  for (unsigned i = 0; i < 7; ++i) {
    gmm_pointer_info info = query(block + offsets[i]);
    CHECK_EQUAL(info.struct_size, sizeof info);
    CHECK_EQUAL(info.kind, kind);
    CHECK(info.base == block);
    CHECK_EQUAL(info.size, size);
    CHECK_EQUAL(info.device, device);
    CHECK_EQUAL(info.tag, tag);
    CHECK_EQUAL(info.state, GMM_STATE_ACTIVE);
    static const gmm_usm usm[] = {0, GMM_USM_DEVICE, GMM_USM_DEVICE, GMM_USM_HOST, GMM_USM_SHARED};
    CHECK_EQUAL(info.usm, usm[kind]);
    CHECK((info.flags & GMM_POINTER_DEVICE_ACCESSIBLE) != 0);
    if (kind == GMM_KIND_HOST || kind == GMM_KIND_MANAGED) CHECK((info.flags & GMM_POINTER_HOST_ACCESSIBLE) != 0);
    // A strict host backend has a view of its own for functions of a stream.
    if (getenv("GMM_STRICT_HOST") == NULL) CHECK(info.device_pointer == block + offsets[i]);
    CHECK((char *)info.allocation_base <= block &&
          (char *)info.allocation_base + info.allocation_size >= block + info.reserved_size);
    uint32_t may = kind == GMM_KIND_DEVICE    ? GMM_IPC_ROUTE_LEGACY | GMM_IPC_ROUTE_FD
                   : kind == GMM_KIND_MANAGED ? 0
                                              : GMM_IPC_ROUTE_FD;
    const bool dma_buf =
        (kind == GMM_KIND_DEVICE || kind == GMM_KIND_VMM) && (device_info.capabilities & GMM_DEVICE_CAN_DMA_BUF) != 0;
    if (dma_buf) may |= GMM_IPC_ROUTE_DMA_BUF;
    CHECK((info.ipc_routes & ~may) == 0);
    if ((kind == GMM_KIND_VMM || kind == GMM_KIND_HOST) && (device_info.capabilities & GMM_DEVICE_CAN_EXPORT_FD) != 0)
      CHECK((info.ipc_routes & GMM_IPC_ROUTE_FD) != 0);
    if (kind == GMM_KIND_DEVICE && (device_info.capabilities & GMM_DEVICE_CAN_LEGACY_IPC) != 0)
      CHECK((info.ipc_routes & GMM_IPC_ROUTE_LEGACY) != 0);
    if (dma_buf) CHECK((info.ipc_routes & GMM_IPC_ROUTE_DMA_BUF) != 0);
  }
  gmm_pointer_info before = query(block - 1), after = query(block + query(block).reserved_size);
  CHECK(before.base != block && after.base != block);
  if (kind == GMM_KIND_VMM || kind == GMM_KIND_DEVICE) {
    uint32_t accessible = query(block).flags & GMM_POINTER_HOST_ACCESSIBLE;
    if (accessible) {
      block[size - 1] = 77;  // the flag is true
      CHECK(block[size - 1] == 77);
    }
  }
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void host_accessible_memory_is_the_same_memory(void) {
  const uint64_t size = 100000;
  uint8_t *block = ALLOC(size);
  REQUIRE(block != NULL);
  if ((query(block).flags & GMM_POINTER_HOST_ACCESSIBLE) == 0) {
    OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
    SKIP("the CPU cannot read %s memory here", kind_name(kind));
  }
  fill_pattern(block, size, 3);
  CHECK_PATTERN(block, size, 3);
  write_pattern(block, size, 4, GMM_STREAM_DEFAULT);
  CHECK_MESSAGE(pattern_length(block, size, 4) == size, "what a copy wrote is not seen through the address");
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void query_of_freed_memory(void) {
  char *block = ALLOC(100000);
  REQUIRE(block != NULL);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  gmm_pointer_info info = query(block);
  CHECK(info.state == GMM_STATE_FREE || info.state == GMM_STATE_UNKNOWN);
  info = query(block + 500);
  CHECK(info.state == GMM_STATE_FREE || info.state == GMM_STATE_UNKNOWN);
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(query(block).state, GMM_STATE_UNKNOWN);
}

static void query_of_foreign_addresses(void) {
  int on_stack = 0;
  void *heap_memory = malloc(1000);
  const void *addresses[] = {NULL,
                             &on_stack,
                             heap_memory,
                             (const void *)(uintptr_t)query_of_foreign_addresses,
                             (const void *)1,
                             (const void *)UINTPTR_MAX,
                             (const void *)(UINTPTR_MAX / 2),
                             (const void *)((uintptr_t)1 << 47),
                             "text",
                             (const void *)((uintptr_t)1 << 57)};
  for (unsigned i = 0; i < sizeof addresses / sizeof addresses[0]; ++i) {
    gmm_pointer_info info = query(addresses[i]);
    CHECK_MESSAGE(info.state == GMM_STATE_UNKNOWN, "address %u (%p) has state %u", i, addresses[i], info.state);
    CHECK_EQUAL(info.kind, GMM_KIND_UNSPECIFIED);
    CHECK_EQUAL(info.tag, 0);
    CHECK_EQUAL(info.device, GMM_DEVICE_HOST);
    CHECK_EQUAL(info.ipc_routes, 0);
  }
  free(heap_memory);
}

static void query_fills_no_more_than_asked(void) {
  void *block = ALLOC(5000);
  gmm_pointer_info info;
  memset(&info, 0x5a, sizeof info);
  info.struct_size = offsetof(gmm_pointer_info, device);  // no release had one so small
  RESULT(gmm_query(context, block, &info), GMM_ERROR_INVALID_DESCRIPTOR);
  for (const uint8_t *b = (const uint8_t *)&info.kind; b < (const uint8_t *)(&info + 1); ++b) CHECK(*b == 0x5a);
  struct {
    gmm_pointer_info info;
    uint8_t tail[16];
  } newer;
  memset(&newer, 0, sizeof newer);
  newer.info.struct_size = sizeof newer;
  OK(gmm_query(context, block, &newer.info));
  CHECK_EQUAL(newer.info.size, 5000);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void free_tells_its_mistakes_apart(void) {
  for (unsigned i = 0; i < 4; ++i) {
    static const uint64_t some[] = {100, 5000, 300000, 6000000};
    char *block = ALLOC(some[i]);
    REQUIRE(block != NULL);
    gmm_stats_info before = stats();
    RESULT(gmm_free(context, block + 1, GMM_STREAM_DEFAULT), GMM_ERROR_INTERIOR_POINTER);
    RESULT(gmm_free(context, block + some[i] - 1, GMM_STREAM_DEFAULT), GMM_ERROR_INTERIOR_POINTER);
    RESULT(gmm_free(context, &before, GMM_STREAM_DEFAULT), GMM_ERROR_UNKNOWN_POINTER);
    RESULT(gmm_free(context, (void *)16, GMM_STREAM_DEFAULT), GMM_ERROR_UNKNOWN_POINTER);
    RESULT(gmm_free(context, (void *)UINTPTR_MAX, GMM_STREAM_DEFAULT), GMM_ERROR_UNKNOWN_POINTER);
    gmm_stats_info after = stats();
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    CHECK_EQUAL(query(block).state, GMM_STATE_ACTIVE);
    OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
    before = stats();
    RESULT(gmm_free(context, block, GMM_STREAM_DEFAULT), GMM_ERROR_ALREADY_FREED);
    RESULT(gmm_free(context, block, GMM_STREAM_DEFAULT), GMM_ERROR_ALREADY_FREED);
    after = stats();
    CHECK(memcmp(&before, &after, sizeof before) == 0);
  }
  OK(gmm_free(context, NULL, GMM_STREAM_DEFAULT));
}

// A double free must be seen wherever the block is by then: in the thread's cache, in the shared lists or back in its
// span.
static void double_free_is_seen_after_much_traffic(void) {
  enum { COUNT = 300 };
  void *blocks[COUNT];
  for (unsigned i = 0; i < COUNT; ++i) REQUIRE((blocks[i] = ALLOC(1000)) != NULL);
  for (unsigned i = 0; i < COUNT; ++i) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  for (unsigned i = 0; i < COUNT; ++i) {
    gmm_result result = gmm_free(context, blocks[i], GMM_STREAM_DEFAULT);
    CHECK_MESSAGE(result == GMM_ERROR_ALREADY_FREED || result == GMM_ERROR_UNKNOWN_POINTER, "block %u: %s", i,
                  gmm_result_name(result));
  }
  CHECK_EQUAL(stats().live_blocks, 0);
  CHECK_EQUAL(stats().frees, COUNT);
}

static void a_freed_block_comes_back_on_its_stream(void) {
  void *first = ALLOC(5000);
  OK(gmm_free(context, first, GMM_STREAM_DEFAULT));
  bool seen = false;
  void *blocks[64];
  for (unsigned i = 0; i < 64; ++i) {
    blocks[i] = ALLOC(5000);
    if (blocks[i] == first) seen = true;
  }
  CHECK(seen);
  for (unsigned i = 0; i < 64; ++i) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
}

static void memory_is_reused_not_hoarded(void) {
  for (unsigned i = 0; i < 2000; ++i) {
    void *block = ALLOC(100000 + i % 7 * 1000);
    REQUIRE(block != NULL);
    OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  }
  CHECK(stats().peak_reserved_bytes <= 64 * MIB);
  CHECK_EQUAL(stats().live_blocks, 0);
}

static void null_descriptor_means_device_memory_on_device_0(void) {
  void *block = NULL;
  MUST(gmm_alloc(context, 100, NULL, &block));
  gmm_pointer_info info = query(block);
  CHECK_EQUAL(info.kind, GMM_KIND_DEVICE);
  CHECK_EQUAL(info.device, 0);
  CHECK_EQUAL(info.tag, GMM_TAG_DEFAULT);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  gmm_alloc_desc desc = {.struct_size = sizeof desc};
  OK(gmm_alloc(context, 100, &desc, &block));
  CHECK_EQUAL(query(block).kind, GMM_KIND_DEVICE);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void sizes_beyond_all_memory_fail_cleanly(void) {
  void *block = (void *)0x1;
  gmm_alloc_desc desc = alloc_desc();
  gmm_stats_info before = stats();
  if (!on_host_backend() && (kind == GMM_KIND_HOST || kind == GMM_KIND_MANAGED)) {
    SKIP("a machine must not be brought to its knees: %s memory comes from the host too", kind_name(kind));
  }
  gmm_result result = gmm_alloc(context, device_info.total_memory * 4, &desc, &block);
  CHECK(result == GMM_ERROR_OUT_OF_MEMORY || result == GMM_ERROR_OUT_OF_HOST_MEMORY);
  RESULT(gmm_alloc(context, UINT64_MAX, &desc, &block), GMM_ERROR_SIZE_OVERFLOW);
  RESULT(gmm_alloc(context, UINT64_MAX - 4096, &desc, &block), GMM_ERROR_SIZE_OVERFLOW);
  RESULT(gmm_alloc(context, 0, &desc, &block), GMM_ERROR_INVALID_SIZE);
  CHECK(block == NULL);
  gmm_stats_info after = stats();
  CHECK_EQUAL(after.reserved_bytes, before.reserved_bytes);
  CHECK_EQUAL(after.failures, before.failures + 1);
  block = ALLOC(1000);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

// A device that is full: other blocks stay, freeing makes room.
static void a_full_device_recovers(void) {
  OK(gmm_context_release(context));
  gmm_context_desc desc = {.struct_size = sizeof desc, .host_memory = 64 * MIB, .host_devices = 2};
  context = NULL;
  MUST(gmm_context_create(&desc, &context));
  read_device(device);
  if (!on_host_backend()) SKIP("a real device is not filled here");
  void *blocks[64];
  unsigned count = 0;
  gmm_alloc_desc alloc = alloc_desc();
  gmm_result result = GMM_OK;
  while (count < 64 && (result = gmm_alloc(context, 3 * MIB, &alloc, &blocks[count])) == GMM_OK) ++count;
  CHECK(result == GMM_ERROR_OUT_OF_MEMORY);
  CHECK(strlen(gmm_last_error_message()) > 20);
  CHECK_MESSAGE(count >= 16 && count <= 21, "%u blocks of 3 MiB fit into 64 MiB", count);
  write_pattern(blocks[0], 3 * MIB, 1, GMM_STREAM_DEFAULT);
  for (unsigned i = 1; i < count; ++i) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  void *large = NULL;  // needs what is cached to go back first
  OK(gmm_alloc(context, 40 * MIB, &alloc, &large));
  CHECK_PATTERN(blocks[0], 3 * MIB, 1);
  OK(gmm_free(context, large, GMM_STREAM_DEFAULT));
  OK(gmm_free(context, blocks[0], GMM_STREAM_DEFAULT));
}

int main(void) {
  KINDS(blocks_are_aligned_and_rounded_within_bounds, ALL_KINDS);
  KINDS(rounding_holds_for_every_size, ALL_KINDS);
  KINDS(the_whole_block_is_usable, ALL_KINDS);
  KINDS(alignment_is_as_asked, ALL_KINDS);
  KINDS(zero_flag_fills_with_zero, ALL_KINDS);
  KINDS(zero_fill_is_in_stream_order, ALL_KINDS);
  KINDS(dedicated_blocks_start_their_allocation, ALL_KINDS);
  KINDS(query_knows_every_address_of_a_block, ALL_KINDS);
  KINDS(host_accessible_memory_is_the_same_memory, ALL_KINDS);
  KINDS(query_of_freed_memory, ALL_KINDS);
  PLAIN(query_of_foreign_addresses);
  KINDS(query_fills_no_more_than_asked, ALL_KINDS);
  KINDS(free_tells_its_mistakes_apart, ALL_KINDS);
  KINDS(double_free_is_seen_after_much_traffic, ALL_KINDS);
  KINDS(a_freed_block_comes_back_on_its_stream, ALL_KINDS);
  KINDS(memory_is_reused_not_hoarded, ALL_KINDS);
  PLAIN(null_descriptor_means_device_memory_on_device_0);
  KINDS(sizes_beyond_all_memory_fail_cleanly, ALL_KINDS);
  KINDS(a_full_device_recovers, (1u << GMM_KIND_DEVICE) | (1u << GMM_KIND_VMM));
  return finish_clean();
}
