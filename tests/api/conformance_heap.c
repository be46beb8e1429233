// SPDX-License-Identifier: Apache-2.0
// Heaps of memory.h: creation, blocks, destruction.
#include "../support/gmm_test.h"

static gmm_heap *make_heap(uint64_t minimum, uint64_t limit, gmm_tag tag) {
  gmm_heap_desc desc = {.struct_size = sizeof desc,
                        .kind = kind,
                        .device = device,
                        .tag = tag,
                        .minimum_extent = minimum,
                        .limit = limit};
  gmm_heap *heap = NULL;
  MUST(gmm_heap_create(context, &desc, &heap));
  return heap;
}

static void heaps_share_no_extent(void) {
  gmm_heap *one = make_heap(0, 0, 0), *two = make_heap(0, 0, 0);
  CHECK(one != two);
  void *a[20], *b[20], *plain[20];
  for (unsigned i = 0; i < 20; ++i) {
    OK(gmm_heap_alloc(one, 1000 + i * 5000, 0, 0, GMM_STREAM_DEFAULT, &a[i]));
    OK(gmm_heap_alloc(two, 1000 + i * 5000, 0, 0, GMM_STREAM_DEFAULT, &b[i]));
    plain[i] = ALLOC(1000 + i * 5000);
    CHECK_EQUAL((uintptr_t)a[i] % 256, 0);
    gmm_pointer_info info = query((char *)a[i] + 900);
    CHECK_EQUAL(info.kind, kind);
    CHECK_EQUAL(info.device, device);
    CHECK_EQUAL(info.size, 1000 + i * 5000);
    CHECK_EQUAL(info.tag, GMM_TAG_DEFAULT);
    write_pattern(a[i], 1000, i, GMM_STREAM_DEFAULT);
    write_pattern(b[i], 1000, i + 50, GMM_STREAM_DEFAULT);
  }
  for (unsigned i = 0; i < 20; ++i)
    for (unsigned j = 0; j < 20; ++j) {
      CHECK(query(a[i]).allocation_base != query(b[j]).allocation_base);
      CHECK(query(a[i]).allocation_base != query(plain[j]).allocation_base);
    }
  for (unsigned i = 0; i < 20; ++i) {
    CHECK_PATTERN(a[i], 1000, i);
    CHECK_PATTERN(b[i], 1000, i + 50);
    OK(gmm_free(context, a[i], GMM_STREAM_DEFAULT));
    OK(gmm_free(context, b[i], GMM_STREAM_DEFAULT));
    OK(gmm_free(context, plain[i], GMM_STREAM_DEFAULT));
  }
  OK(gmm_heap_destroy(one));
  OK(gmm_heap_destroy(two));
  OK(gmm_heap_destroy(NULL));
}

static void a_heap_with_live_blocks_is_not_destroyed(void) {
  gmm_heap *heap = make_heap(0, 0, 0);
  void *block = NULL;
  OK(gmm_heap_alloc(heap, 5000, 0, 0, GMM_STREAM_DEFAULT, &block));
  write_pattern(block, 5000, 1, GMM_STREAM_DEFAULT);
  RESULT(gmm_heap_destroy(heap), GMM_ERROR_BUSY);
  CHECK_PATTERN(block, 5000, 1);
  void *more = NULL;
  OK(gmm_heap_alloc(heap, 5000, 0, 0, GMM_STREAM_DEFAULT, &more));
  OK(gmm_free(context, more, GMM_STREAM_DEFAULT));
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_heap_destroy(heap));
  CHECK_EQUAL(stats().reserved_bytes, 0);  // its memory went back
  CHECK_EQUAL(query(block).state, GMM_STATE_UNKNOWN);
}

static void destroying_waits_for_the_work(void) {
  gmm_heap *heap = make_heap(0, 0, 0);
  gmm_stream stream = 0;
  MUST(gmm_stream_create(context, STREAM_ON(device), &stream));
  void *block = NULL;
  OK(gmm_heap_alloc(heap, MIB, 0, 0, stream, &block));
  gate hold;
  gate_close(&hold, stream, 0.05);
  OK(gmm_fill(context, block, 1, MIB, stream));
  OK(gmm_free(context, block, stream));
  OK(gmm_heap_destroy(heap));
  CHECK_EQUAL(atomic_load(&hold.passed), 1);
  OK(gmm_stream_destroy(context, stream));
}

static void wishes_are_arguments(void) {
  gmm_heap *heap = make_heap(0, 0, 0);
  for (uint64_t alignment = 512; alignment <= 2 * MIB; alignment *= 8) {
    void *block = NULL;
    OK(gmm_heap_alloc(heap, 5000, alignment, 0, GMM_STREAM_DEFAULT, &block));
    CHECK_EQUAL((uintptr_t)block % alignment, 0);
    write_pattern(block, 5000, 7, GMM_STREAM_DEFAULT);
    OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  }
  char *clean = NULL, *alone = NULL;
  static const char zero[5000];
  char bytes[5000];
  OK(gmm_heap_alloc(heap, 5000, 0, GMM_ALLOC_ZERO, GMM_STREAM_DEFAULT, (void **)&clean));
  OK(gmm_copy(context, bytes, clean, 5000, GMM_STREAM_DEFAULT));
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  CHECK(memcmp(bytes, zero, 5000) == 0);
  OK(gmm_heap_alloc(heap, 5000, 0, GMM_ALLOC_DEDICATED, GMM_STREAM_DEFAULT, (void **)&alone));
  CHECK(query(alone).allocation_base == alone);
  OK(gmm_free(context, clean, GMM_STREAM_DEFAULT));
  OK(gmm_free(context, alone, GMM_STREAM_DEFAULT));
  OK(gmm_heap_destroy(heap));
}

static void heap_limits_hold(void) {
  gmm_heap *heap = make_heap(0, 8 * MIB, 0);
  void *blocks[40];
  unsigned count = 0;
  gmm_result result = GMM_OK;
  while (count < 40 && (result = gmm_heap_alloc(heap, 900000, 0, 0, GMM_STREAM_DEFAULT, &blocks[count])) == GMM_OK)
    ++count;
  CHECK_EQUAL(result, GMM_ERROR_LIMIT_EXCEEDED);
  CHECK_MESSAGE(count >= 4 && count <= 9, "%u blocks of 900,000 bytes fit into 8 MiB", count);
  CHECK(stats().reserved_bytes <= 8 * MIB);
  void *plain = ALLOC(20 * MIB);  // not of the heap
  OK(gmm_free(context, plain, GMM_STREAM_DEFAULT));
  for (unsigned i = 0; i < count; ++i) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  OK(gmm_heap_alloc(heap, 6 * MIB, 0, 0, GMM_STREAM_DEFAULT, &blocks[0]));  // what was cut up fits together again
  OK(gmm_free(context, blocks[0], GMM_STREAM_DEFAULT));
  OK(gmm_heap_destroy(heap));
}

static void the_minimum_extent_is_asked_for_at_once(void) {
  gmm_heap *heap = make_heap(32 * MIB, 0, 0);
  void *block = NULL;
  OK(gmm_heap_alloc(heap, 1000, 0, 0, GMM_STREAM_DEFAULT, &block));
  CHECK(query(block).allocation_size >= 32 * MIB || stats().reserved_bytes >= 32 * MIB);
  uint64_t calls = stats().backend_calls;
  void *more[20];
  for (unsigned i = 0; i < 20; ++i) OK(gmm_heap_alloc(heap, MIB, 0, 0, GMM_STREAM_DEFAULT, &more[i]));
  CHECK_EQUAL(stats().backend_calls, calls);
  for (unsigned i = 0; i < 20; ++i) OK(gmm_free(context, more[i], GMM_STREAM_DEFAULT));
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_heap_destroy(heap));
}

static void a_heap_keeps_its_tag(void) {
  gmm_tag tag = make_tag("heap's", GMM_CONTENTS_HOST), other = make_tag("other", GMM_CONTENTS_DROP);
  OK(gmm_tag_push(context, tag));
  gmm_heap *heap = make_heap(0, 0, GMM_TAG_CURRENT);
  OK(gmm_tag_pop(context));
  OK(gmm_tag_push(context, other));
  void *block = NULL;
  OK(gmm_heap_alloc(heap, 100000, 0, 0, GMM_STREAM_DEFAULT, &block));
  OK(gmm_tag_pop(context));
  CHECK_EQUAL(query(block).tag, tag);
  if (kind == GMM_KIND_VMM) {
    write_pattern(block, 100000, 3, GMM_STREAM_DEFAULT);
    gmm_pause_desc desc = {.struct_size = sizeof desc, .tags = &tag, .tag_count = 1};
    OK(gmm_pause(context, &desc, NULL));
    CHECK_EQUAL(query(block).state, GMM_STATE_PAUSED);
    RESULT(gmm_heap_destroy(heap), GMM_ERROR_BUSY);
    void *fresh = NULL;
    OK(gmm_heap_alloc(heap, 100000, 0, 0, GMM_STREAM_DEFAULT, &fresh));
    CHECK_EQUAL(query(fresh).state, GMM_STATE_ACTIVE);
    OK(gmm_free(context, fresh, GMM_STREAM_DEFAULT));
    OK(gmm_resume(context, &desc, NULL));
    CHECK_PATTERN(block, 100000, 3);
    OK(gmm_pause(context, &desc, NULL));
    OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
    OK(gmm_heap_destroy(heap));  // with paused memory that nobody owns
    CHECK_EQUAL(stats().paused_bytes, 0);
  } else {
    OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
    OK(gmm_heap_destroy(heap));
  }
  CHECK_EQUAL(stats().reserved_bytes, 0);
}

static void peers_may_be_asked_for(void) {
  uint32_t devices = device_count();
  if (devices < 2) SKIP("one device only");
  gmm_heap_desc desc = {.struct_size = sizeof desc, .kind = kind, .device = device, .peer_devices = 3};
  gmm_heap *heap = NULL;
  gmm_result result = gmm_heap_create(context, &desc, &heap);
  if (kind == GMM_KIND_DEVICE) {
    CHECK_EQUAL(result, GMM_ERROR_NOT_SUPPORTED);
    CHECK(heap == NULL);
    return;
  }
  if (result == GMM_ERROR_NOT_SUPPORTED) SKIP("%s", gmm_last_error_message());
  MUST(result);
  void *block = NULL;
  OK(gmm_heap_alloc(heap, 100000, 0, 0, GMM_STREAM_DEFAULT, &block));
  write_pattern(block, 100000, 2, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(block, 100000, 2);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_heap_destroy(heap));
}

static void bad_heaps_are_refused(void) {
  gmm_heap *heap = (gmm_heap *)0x1;
  gmm_heap_desc desc = {.struct_size = sizeof desc, .kind = 9, .device = device};
  RESULT(gmm_heap_create(context, &desc, &heap), GMM_ERROR_INVALID_KIND);
  desc.kind = kind;
  desc.device = 99;
  RESULT(gmm_heap_create(context, &desc, &heap), GMM_ERROR_INVALID_DEVICE);
  desc.device = device;
  desc.tag = 3994;
  RESULT(gmm_heap_create(context, &desc, &heap), GMM_ERROR_INVALID_TAG);
  desc.tag = 0;
  desc.flags = 1;
  RESULT(gmm_heap_create(context, &desc, &heap), GMM_ERROR_INVALID_FLAGS);
  desc.flags = 0;
  desc.peer_devices = 1u << 30;
  RESULT(gmm_heap_create(context, &desc, &heap), GMM_ERROR_INVALID_DEVICE);
  desc.peer_devices = 0;
  desc.minimum_extent = UINT64_MAX - 10;
  gmm_result result = gmm_heap_create(context, &desc, &heap);
  CHECK_MESSAGE(result == GMM_ERROR_SIZE_OVERFLOW || result == GMM_ERROR_INVALID_VALUE, "%s", gmm_result_name(result));
  desc.minimum_extent = 0;
  desc.struct_size = 3;
  RESULT(gmm_heap_create(context, &desc, &heap), GMM_ERROR_INVALID_DESCRIPTOR);
  CHECK(heap == NULL);
  heap = make_heap(0, 0, 0);
  void *block = (void *)0x1;
  RESULT(gmm_heap_alloc(heap, 0, 0, 0, GMM_STREAM_DEFAULT, &block), GMM_ERROR_INVALID_SIZE);
  RESULT(gmm_heap_alloc(heap, UINT64_MAX, 0, 0, GMM_STREAM_DEFAULT, &block), GMM_ERROR_SIZE_OVERFLOW);
  RESULT(gmm_heap_alloc(heap, 100, 0, 0, GMM_STREAM_DEFAULT, NULL), GMM_ERROR_NULL_ARGUMENT);
  RESULT(gmm_heap_alloc(NULL, 100, 0, 0, GMM_STREAM_DEFAULT, &block), GMM_ERROR_NULL_ARGUMENT);
  CHECK(block == NULL);
  OK(gmm_heap_destroy(heap));
}

static void many_heaps_come_and_go(void) {
  for (unsigned round = 0; round < 40; ++round) {
    gmm_heap *heap = make_heap(0, 0, 0);
    void *blocks[20];
    for (unsigned i = 0; i < 20; ++i) OK(gmm_heap_alloc(heap, 100 + i * 1000, 0, 0, GMM_STREAM_DEFAULT, &blocks[i]));
    for (unsigned i = 0; i < 20; ++i) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
    OK(gmm_heap_destroy(heap));
  }
  CHECK_EQUAL(stats().reserved_bytes, 0);
  CHECK_EQUAL(stats().live_blocks, 0);
}

int main(void) {
  KINDS(heaps_share_no_extent, ALL_KINDS);
  KINDS(a_heap_with_live_blocks_is_not_destroyed, ALL_KINDS);
  KINDS(destroying_waits_for_the_work, ALL_KINDS);
  KINDS(wishes_are_arguments, ALL_KINDS);
  KINDS(heap_limits_hold, ALL_KINDS);
  KINDS(the_minimum_extent_is_asked_for_at_once, ALL_KINDS);
  KINDS(a_heap_keeps_its_tag, ALL_KINDS);
  KINDS(peers_may_be_asked_for, 1u << GMM_KIND_VMM);
  KINDS(bad_heaps_are_refused, ALL_KINDS);
  KINDS(many_heaps_come_and_go, ALL_KINDS);
  return finish_clean();
}
