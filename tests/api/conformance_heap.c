// SPDX-License-Identifier: Apache-2.0
// Heaps of memory.h: creation, blocks, destruction.
#include "../support/gmm_test.h"

CASE_OF_KINDS(heaps_share_no_extent, ALL_KINDS) {
  enum { EACH = 20, OWNERS = 3 };  // of two heaps, and of none
  gmm_heap *heaps[OWNERS] = {HEAP(), HEAP(), NULL};
  void *blocks[OWNERS][EACH];
  for (unsigned i = 0; i < EACH; ++i)
    for (unsigned of = 0; of < OWNERS; ++of) {
      const uint64_t size = 1000 + i * 5000;
      blocks[of][i] = heaps[of] != NULL ? take_of(heaps[of], size) : ALLOC(size);
      CHECK_EQUAL((uintptr_t)blocks[of][i] % 256, 0);
      const gmm_pointer_info info = query((char *)blocks[of][i] + 900);
      CHECK(info.kind == kind && info.device == device && info.tag == GMM_TAG_DEFAULT && info.size == size);
      write_pattern(blocks[of][i], 1000, of * 50 + i, GMM_STREAM_DEFAULT);
    }
  for (unsigned i = 0; i < EACH; ++i)
    for (unsigned j = 0; j < EACH; ++j)
      for (unsigned of = 0; of < OWNERS; ++of)
        CHECK(query(blocks[of][i]).allocation_base != query(blocks[(of + 1) % OWNERS][j]).allocation_base);
  for (unsigned of = 0; of < OWNERS; ++of)
    for (unsigned i = 0; i < EACH; ++i) CHECK_PATTERN(blocks[of][i], 1000, of * 50 + i);
}

CASE_OF_KINDS(destroying_waits_for_the_work, ALL_KINDS) {
  gmm_heap *heap = HEAP();
  gmm_stream stream = open_stream();
  void *block = NULL;
  OK(gmm_heap_alloc(heap, MIB, 0, 0, stream, &block));
  static gate hold;
  gate_close(&hold, stream, 0.05);
  OK(gmm_fill(context, block, 1, MIB, stream));
  OK(gmm_free(context, block, stream));
  OK(gmm_heap_destroy(heap));
  CHECK_EQUAL(atomic_load(&hold.passed), 1);
}

CASE_OF_KINDS(wishes_are_arguments, ALL_KINDS) {
  gmm_heap *heap = HEAP();
  for (uint64_t alignment = 512; alignment <= 2 * MIB; alignment *= 8) {
    void *block = NULL;
    OK(gmm_heap_alloc(heap, 5000, alignment, 0, GMM_STREAM_DEFAULT, &block));
    CHECK_EQUAL((uintptr_t)block % alignment, 0);
    write_pattern(block, 5000, 7, GMM_STREAM_DEFAULT);
    FREE(block);
  }
  char *clean = NULL, *alone = NULL;
  OK(gmm_heap_alloc(heap, 5000, 0, GMM_ALLOC_ZERO, GMM_STREAM_DEFAULT, (void **)&clean));
  CHECK(is_filled(clean, 5000, 0, GMM_STREAM_DEFAULT));
  OK(gmm_heap_alloc(heap, 5000, 0, GMM_ALLOC_DEDICATED, GMM_STREAM_DEFAULT, (void **)&alone));
  CHECK(query(alone).allocation_base == alone);
}

CASE_OF_KINDS(heap_limits_hold, ALL_KINDS) {
  gmm_heap *heap = HEAP(.limit = 8 * MIB);
  void *blocks[40];
  unsigned count = 0;
  gmm_result result = GMM_OK;
  while (count < 40 && (result = gmm_heap_alloc(heap, 900000, 0, 0, GMM_STREAM_DEFAULT, &blocks[count])) == GMM_OK)
    ++count;
  CHECK_EQUAL(result, GMM_ERROR_LIMIT_EXCEEDED);
  CHECK_MESSAGE(count >= 4 && count <= 9, "%u blocks of 900,000 bytes fit into 8 MiB", count);
  CHECK(stats().reserved_bytes <= 8 * MIB);
  FREE(ALLOC(20 * MIB));  // not of the heap
  FREE_ALL(blocks, count);
  take_of(heap, 6 * MIB);  // the parts fit together again
}

CASE_OF_KINDS(the_minimum_extent_is_asked_for_at_once, ALL_KINDS) {
  gmm_heap *heap = HEAP(.minimum_extent = 32 * MIB);
  void *block = take_of(heap, 1000);
  CHECK(query(block).allocation_size >= 32 * MIB || stats().reserved_bytes >= 32 * MIB);
  const uint64_t calls = stats().backend_calls;
  for (unsigned i = 0; i < 20; ++i) take_of(heap, MIB);
  CHECK_EQUAL(stats().backend_calls, calls);
}

CASE_OF_KINDS(a_heap_keeps_its_tag, ALL_KINDS) {
  gmm_tag tag = make_tag("heap's", GMM_CONTENTS_HOST), other = make_tag("other", GMM_CONTENTS_DROP);
  OK(gmm_tag_push(context, tag));
  gmm_heap *heap = HEAP(.tag = GMM_TAG_CURRENT);
  OK(gmm_tag_pop(context));
  OK(gmm_tag_push(context, other));
  void *block = take_of(heap, 100000);
  OK(gmm_tag_pop(context));
  CHECK_EQUAL(query(block).tag, tag);
  if (kind == GMM_KIND_VMM) {
    write_pattern(block, 100000, 3, GMM_STREAM_DEFAULT);
    OK(pause_of(tag));
    CHECK_EQUAL(query(block).state, GMM_STATE_PAUSED);
    RESULT(gmm_heap_destroy(heap), GMM_ERROR_BUSY);
    void *fresh = take_of(heap, 100000);
    CHECK_EQUAL(query(fresh).state, GMM_STATE_ACTIVE);
    FREE(fresh);
    OK(resume_of(tag));
    CHECK_PATTERN(block, 100000, 3);
    OK(pause_of(tag));
    FREE(block);
    OK(gmm_heap_destroy(heap));  // with paused memory that nobody owns
    CHECK_EQUAL(stats().paused_bytes, 0);
  } else {
    FREE(block);
    OK(gmm_heap_destroy(heap));
  }
  CHECK_EQUAL(stats().reserved_bytes, 0);
}

VMM_CASE(peers_may_be_asked_for) {
  if (device_count() < 2) SKIP("one device only");
  gmm_heap *heap = NULL;
  const gmm_result result =
      gmm_heap_create(context, DESC(heap_desc, .kind = kind, .device = device, .peer_devices = 3), &heap);
  if (result == GMM_ERROR_NOT_SUPPORTED) SKIP("%s", gmm_last_error_message());
  MUST(result);
  void *block = take_of(heap, 100000);
  write_pattern(block, 100000, 2, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(block, 100000, 2);
}

// --- GMM_HEAP_EXPORTABLE ---------------------------------------------------------------------------------------------

static gmm_result make_exportable(gmm_tag tag, gmm_heap **out) {
  const gmm_result result = gmm_heap_create(
      context, DESC(heap_desc, .kind = kind, .device = device, .tag = tag, .flags = GMM_HEAP_EXPORTABLE), out);
  CHECK_EQUAL(*out != NULL, result == GMM_OK);
  return result;
}

// The block has a descriptor, whose memory holds it whole. An importer finds the pattern at its offset, if there is
// one.
enum { NO_PATTERN = -1 };
static uint64_t has_descriptor(void *block, uint64_t size, int64_t seed) {
  gmm_ipc_fd_info info = {.struct_size = sizeof info, .fd = -1};
  const gmm_pointer_info about = query(block);
  uint32_t type = (about.ipc_routes & GMM_IPC_ROUTE_FD) != 0 ? GMM_FD_DEFAULT : GMM_FD_DMA_BUF;
  MUST(gmm_ipc_export_fd(context, block, type, &info));
  CHECK(info.offset + size <= info.size);
  CHECK_EQUAL((uintptr_t)about.allocation_base + info.offset, (uintptr_t)block);
  CHECK_EQUAL(about.allocation_size, info.size);
  if (seed != NO_PATTERN) {
    char *view = NULL;
    MUST(gmm_ipc_import_fd(context, info.fd, DESC(ipc_fd_desc, .type = info.type, .device = device, .size = info.size),
                           (void **)&view));
    CHECK_PATTERN(view + info.offset, size, (uint32_t)seed);
    OK(gmm_ipc_close(context, view));
  }
  CHECK(close(info.fd) == 0);
  return info.offset;
}

CASE_OF_KINDS(blocks_of_an_exportable_heap_have_descriptors, ALL_KINDS) {
  gmm_heap *heap = NULL;
  const gmm_result result = make_exportable(0, &heap);
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
      FREE(blocks[i]);
      blocks[i] = NULL;
    } else {
      length[i] = sizes[step * 5 % 11 % 6] + step;
      blocks[i] = take_of(heap, length[i]);
      has_descriptor(blocks[i], length[i], NO_PATTERN);
    }
    if (step % 50 == 49) OK(gmm_trim(context, NULL, NULL));
  }
  for (unsigned i = 0; i < COUNT; ++i) {
    if (blocks[i] == NULL) continue;
    has_descriptor(blocks[i], length[i], NO_PATTERN);
    FREE(blocks[i]);
  }
  // Two in one allocation of the driver.
  void *pair[2];
  for (unsigned i = 0; i < 2; ++i) {
    pair[i] = take_of(heap, 300000);
    write_pattern(pair[i], 300000, 7 + i, GMM_STREAM_DEFAULT);
  }
  const bool imports = (device_info.capabilities & GMM_DEVICE_CAN_EXPORT_FD) != 0 && kind == GMM_KIND_VMM;
  CHECK(has_descriptor(pair[0], 300000, imports ? 7 : NO_PATTERN) !=
        has_descriptor(pair[1], 300000, imports ? 8 : NO_PATTERN));
  FREE_ALL(pair, 2);
  OK(gmm_heap_destroy(heap));
  CHECK_EQUAL(stats().reserved_bytes, 0);
}

VMM_CASE(an_exportable_heap_pauses) {
  if ((device_info.capabilities & GMM_DEVICE_CAN_PAUSE) == 0) SKIP("the device cannot pause");
  gmm_tag tag = make_tag("exported", GMM_CONTENTS_HOST);
  gmm_heap *heap = NULL;
  const gmm_result result = make_exportable(tag, &heap);
  if (result == GMM_ERROR_NOT_SUPPORTED) SKIP("%s", gmm_last_error_message());
  MUST(result);
  void *kept[3];
  for (unsigned i = 0; i < 3; ++i) {
    kept[i] = take_of(heap, 5 * MIB);
    write_pattern(kept[i], 5 * MIB, i, GMM_STREAM_DEFAULT);
  }
  void *gone = take_of(heap, 9 * MIB);
  OK(pause_of(tag));
  CHECK_EQUAL(stats().reserved_bytes, 0);
  RESULT(gmm_ipc_export_fd(context, kept[0], GMM_FD_DEFAULT, DESC(ipc_fd_info)), GMM_ERROR_PAUSED);
  FREE(gone);
  void *meanwhile = take_of(heap, 64 * MIB);
  has_descriptor(meanwhile, 64 * MIB, NO_PATTERN);
  OK(resume_of(tag));
  for (unsigned i = 0; i < 3; ++i) {
    CHECK_PATTERN(kept[i], 5 * MIB, i);
    has_descriptor(kept[i], 5 * MIB, i);
    FREE(kept[i]);
  }
  FREE(meanwhile);
  NOTHING_STAYS();
}

int main(void) { return run_cases(); }
