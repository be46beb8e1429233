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
  desc.flags = 2;
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

// --- GMM_HEAP_EXPORTABLE ---------------------------------------------------------------------------------------------

static gmm_heap *make_exportable(gmm_tag tag, gmm_result *result) {
  gmm_heap_desc desc = {
      .struct_size = sizeof desc, .kind = kind, .device = device, .tag = tag, .flags = GMM_HEAP_EXPORTABLE};
  gmm_heap *heap = NULL;
  *result = gmm_heap_create(context, &desc, &heap);
  CHECK_EQUAL(heap != NULL, *result == GMM_OK);
  return heap;
}

// The block has a descriptor, whose memory holds it whole.
static gmm_ipc_fd_info has_descriptor(void *block, uint64_t size) {
  gmm_ipc_fd_info info = {.struct_size = sizeof info, .fd = -1};
  uint32_t type = (query(block).ipc_routes & GMM_IPC_ROUTE_FD) != 0 ? GMM_FD_DEFAULT : GMM_FD_DMA_BUF;
  OK(gmm_ipc_export_fd(context, block, type, &info));
  CHECK(info.offset + size <= info.size);
  CHECK_EQUAL((uintptr_t)query(block).allocation_base + info.offset, (uintptr_t)block);
  CHECK_EQUAL(query(block).allocation_size, info.size);
  CHECK(close(info.fd) == 0);
  return info;
}

// The same bytes, through the descriptor and its offset.
static void is_seen_by_an_importer(void *block, uint64_t size, uint32_t seed) {
  gmm_ipc_fd_info info = {.struct_size = sizeof info, .fd = -1};
  uint32_t type = (query(block).ipc_routes & GMM_IPC_ROUTE_FD) != 0 ? GMM_FD_DEFAULT : GMM_FD_DMA_BUF;
  MUST(gmm_ipc_export_fd(context, block, type, &info));
  gmm_ipc_fd_desc desc = {.struct_size = sizeof desc, .type = info.type, .device = device, .size = info.size};
  char *view = NULL;
  MUST(gmm_ipc_import_fd(context, info.fd, &desc, (void **)&view));
  CHECK(close(info.fd) == 0);
  CHECK_PATTERN(view + info.offset, size, seed);
  OK(gmm_ipc_close(context, view));
}

static void blocks_of_an_exportable_heap_have_descriptors(void) {
  gmm_result result = GMM_OK;
  gmm_heap *heap = make_exportable(0, &result);
  if (kind == GMM_KIND_MANAGED) RESULT(result, GMM_ERROR_NOT_SUPPORTED);
  if (result == GMM_ERROR_NOT_SUPPORTED) return;
  MUST(result);
  // Sizes around those of extents, in an order that leaves gaps. Without the flag VMM blocks straddle extents here.
  enum { COUNT = 24 };
  static const uint64_t sizes[] = {3000, 300000, 2 * MIB, 3 * MIB + 5, 17 * MIB, 64 * MIB};
  void *blocks[COUNT] = {NULL};
  uint64_t length[COUNT] = {0};
  for (unsigned step = 0; step < 200; ++step) {
    unsigned i = step * 7 % COUNT;
    if (blocks[i] != NULL) {
      OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
      blocks[i] = NULL;
    } else {
      length[i] = sizes[step * 5 % 11 % 6] + step;
      MUST(gmm_heap_alloc(heap, length[i], 0, 0, GMM_STREAM_DEFAULT, &blocks[i]));
      has_descriptor(blocks[i], length[i]);
    }
    if (step % 50 == 49) OK(gmm_trim(context, NULL, NULL));
  }
  for (unsigned i = 0; i < COUNT; ++i) {
    if (blocks[i] == NULL) continue;
    has_descriptor(blocks[i], length[i]);
    OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  }
  // Two in one allocation of the driver.
  void *pair[2];
  for (unsigned i = 0; i < 2; ++i) {
    MUST(gmm_heap_alloc(heap, 300000, 0, 0, GMM_STREAM_DEFAULT, &pair[i]));
    write_pattern(pair[i], 300000, 7 + i, GMM_STREAM_DEFAULT);
  }
  if (device_info.capabilities & GMM_DEVICE_CAN_EXPORT_FD && kind == GMM_KIND_VMM)
    for (unsigned i = 0; i < 2; ++i) is_seen_by_an_importer(pair[i], 300000, 7 + i);
  CHECK(has_descriptor(pair[0], 300000).offset != has_descriptor(pair[1], 300000).offset);
  for (unsigned i = 0; i < 2; ++i) OK(gmm_free(context, pair[i], GMM_STREAM_DEFAULT));
  OK(gmm_heap_destroy(heap));
  CHECK_EQUAL(stats().reserved_bytes, 0);
}

static void an_exportable_heap_pauses(void) {
  if ((device_info.capabilities & GMM_DEVICE_CAN_PAUSE) == 0) SKIP("the device cannot pause");
  gmm_tag tag = make_tag("exported", GMM_CONTENTS_HOST);
  gmm_result result = GMM_OK;
  gmm_heap *heap = make_exportable(tag, &result);
  if (result == GMM_ERROR_NOT_SUPPORTED) SKIP("%s", gmm_last_error_message());
  MUST(result);
  void *kept[3], *gone = NULL;
  for (unsigned i = 0; i < 3; ++i) {
    MUST(gmm_heap_alloc(heap, 5 * MIB, 0, 0, GMM_STREAM_DEFAULT, &kept[i]));
    write_pattern(kept[i], 5 * MIB, i, GMM_STREAM_DEFAULT);
  }
  MUST(gmm_heap_alloc(heap, 9 * MIB, 0, 0, GMM_STREAM_DEFAULT, &gone));
  gmm_ipc_fd_info info = {.struct_size = sizeof info};
  const gmm_pause_desc pause = {.struct_size = sizeof pause, .tags = &tag, .tag_count = 1};
  OK(gmm_pause(context, &pause, NULL));
  CHECK_EQUAL(stats().reserved_bytes, 0);
  RESULT(gmm_ipc_export_fd(context, kept[0], GMM_FD_DEFAULT, &info), GMM_ERROR_PAUSED);
  OK(gmm_free(context, gone, GMM_STREAM_DEFAULT));
  void *meanwhile = NULL;
  OK(gmm_heap_alloc(heap, 64 * MIB, 0, 0, GMM_STREAM_DEFAULT, &meanwhile));
  has_descriptor(meanwhile, 64 * MIB);
  OK(gmm_resume(context, &pause, NULL));
  for (unsigned i = 0; i < 3; ++i) {
    CHECK_PATTERN(kept[i], 5 * MIB, i);
    has_descriptor(kept[i], 5 * MIB);
    is_seen_by_an_importer(kept[i], 5 * MIB, i);
    OK(gmm_free(context, kept[i], GMM_STREAM_DEFAULT));
  }
  OK(gmm_free(context, meanwhile, GMM_STREAM_DEFAULT));
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(stats().reserved_bytes, 0);
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
  KINDS(blocks_of_an_exportable_heap_have_descriptors, ALL_KINDS);
  KINDS(an_exportable_heap_pauses, 1u << GMM_KIND_VMM);
  KINDS(many_heaps_come_and_go, ALL_KINDS);
  return finish_clean();
}
