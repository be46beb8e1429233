// SPDX-License-Identifier: Apache-2.0
// gmm_compact() of stats.h: free memory of VMM heaps side by side, and the rest back to the driver.
#include "../support/gmm_test.h"

// 16 extents of 2 MiB side by side, each with a block of its own. `live` says which blocks stay (bit i: block i).
enum { EXTENTS = 16, ODD_FREE = 0x5555 };
static const uint64_t EACH = 2 * MIB;
static gmm_heap *heap;
static void *blocks[EXTENTS];

static uint64_t held(void) { return stats_of(GMM_SCOPE_KIND, 0, 0, GMM_KIND_VMM).reserved_bytes; }
static uint64_t calls(void) { return stats().backend_calls; }
static void free_block(unsigned i) {
  FREE(blocks[i]);
  blocks[i] = NULL;
}
static void keep_live(unsigned live) {
  for (unsigned i = 0; i < EXTENTS; ++i) {
    if ((live >> i & 1) == 0)
      free_block(i);
    else
      write_pattern(blocks[i], EACH, i, GMM_STREAM_DEFAULT);
  }
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
}
static void make_blocks(gmm_tag tag, unsigned live) {
  heap = HEAP(.tag = tag);
  for (unsigned i = 1; i <= EXTENTS; ++i) OK(gmm_heap_reserve(heap, i * EACH));
  REQUIRE(stats().extents == EXTENTS);
  for (unsigned i = 0; i < EXTENTS; ++i) {
    blocks[i] = take_of(heap, EACH);
    REQUIRE(query(blocks[i]).allocation_base == blocks[i]);
    REQUIRE(i == 0 || (uint8_t *)blocks[i] == (uint8_t *)blocks[i - 1] + EACH);
  }
  keep_live(live);
}
// Every block still has its address, and every byte of it.
static void check_and_end(void) {
  for (unsigned i = 0; i < EXTENTS; ++i) {
    if (blocks[i] == NULL) continue;
    CHECK_PATTERN(blocks[i], EACH, i);
    free_block(i);
  }
  OK(gmm_heap_destroy(heap));
  CHECK_EQUAL(held(), 0);
}
static gmm_compact_info info;  // of the last call
static gmm_result compact_by(uint32_t flags, uint64_t max_bytes, uint64_t max_us) {
  info = *DESC(compact_info);
  return gmm_compact(context, NULL,
                     DESC(compact_desc, .flags = flags, .heap = heap, .max_bytes = max_bytes, .max_us = max_us), &info);
}
static gmm_result compact(uint64_t max_bytes) { return compact_by(0, max_bytes, 0); }
static gmm_result compact_live(uint64_t max_bytes) { return compact_by(GMM_COMPACT_LIVE, max_bytes, 0); }

// A block that needs no driver.
static void use_at_once(uint64_t size) {
  void *block = NULL;
  MUST(gmm_heap_try_alloc(heap, size, 0, 0, GMM_STREAM_DEFAULT, &block));
  write_pattern(block, size, 99, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(block, size, 99);
  FREE(block);
}

VMM_CASE(a_reserve_is_moved_together) {
  make_blocks(0, ODD_FREE);
  OK(compact(0));
  CHECK_EQUAL(info.moved_bytes, 7 * EACH);  // the last one lies before addresses without memory: the others go there
  CHECK_EQUAL(info.released_bytes, 0);
  CHECK_EQUAL(info.largest_free, 8 * EACH);
  CHECK_EQUAL(held(), EXTENTS * EACH);
  CHECK_EQUAL(stats().extents, EXTENTS);
  RESULT(compact(0), GMM_UNCHANGED);
  CHECK_EQUAL(info.moved_bytes, 0);
  CHECK_EQUAL(info.largest_free, 8 * EACH);
  // It is a reserve as before: what fits into it needs no driver and no host memory, wherever it begins.
  const uint64_t before = calls();
  void *parts[8];
  use_at_once(8 * EACH);
  const uint64_t odd = MIB + 16 * KIB;
  for (unsigned i = 0; i < 8; ++i) OK(gmm_heap_try_alloc(heap, odd, 0, 0, GMM_STREAM_DEFAULT, &parts[i]));
  FREE_ALL(parts, 8);
  CHECK_EQUAL(calls(), before);
  check_and_end();
}

VMM_CASE(memory_above_the_reserve_goes_back) {
  for (unsigned kept = 0; kept <= 4; kept += 4) {  // of the 8 free extents
    make_blocks(0, ODD_FREE);
    OK(gmm_heap_reserve(heap, kept == 0 ? 0 : (8 + kept) * EACH));
    OK(compact(0));
    CHECK_EQUAL(info.released_bytes, (8 - kept) * EACH);
    // The last one may lie where the others go.
    CHECK(info.moved_bytes == kept * EACH || (kept != 0 && info.moved_bytes == (kept - 1) * EACH));
    CHECK_EQUAL(info.largest_free, kept * EACH);
    CHECK_EQUAL(held(), (8 + kept) * EACH);
    check_and_end();
  }
}

VMM_CASE(memory_goes_to_either_side_of_a_hole) {
  make_blocks(0, 0xfff0);
  OK(gmm_heap_reserve(heap, 12 * EACH));
  OK(compact(0));
  CHECK_EQUAL(info.released_bytes, 4 * EACH);
  free_block(4);  // behind the hole
  free_block(10);
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  OK(compact(0));
  CHECK_EQUAL(info.moved_bytes, EACH);
  CHECK_EQUAL(info.largest_free, 2 * EACH);
  use_at_once(2 * EACH);
  check_and_end();
}

VMM_CASE(a_budget_of_bytes_is_kept) {
  uint64_t moved = 0, largest = 0;
  make_blocks(0, ODD_FREE);
  RESULT(compact(EACH - 1), GMM_UNCHANGED);  // less than any extent
  CHECK_EQUAL(info.largest_free, EACH);
  for (unsigned call = 0; call < 4; ++call) {
    OK(compact(2 * EACH));
    CHECK(info.moved_bytes <= 2 * EACH);
    CHECK(info.largest_free > largest);
    largest = info.largest_free;
    moved += info.moved_bytes;
  }
  CHECK_EQUAL(moved, 7 * EACH);
  CHECK_EQUAL(largest, 8 * EACH);
  // A dedicated block counts as well.
  void *dedicated = NULL;
  MUST(gmm_heap_alloc(heap, 3 * EACH, 0, GMM_ALLOC_DEDICATED, GMM_STREAM_DEFAULT, &dedicated));
  FREE(dedicated);
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  RESULT(compact(2 * EACH), GMM_UNCHANGED);
  CHECK_EQUAL(held(), (EXTENTS + 3) * EACH);
  OK(compact(3 * EACH));
  CHECK_EQUAL(info.released_bytes, 3 * EACH);
  CHECK_EQUAL(held(), EXTENTS * EACH);
  check_and_end();
}

// 1 to 4 are the largest run, and no hole touches it.
VMM_CASE(the_largest_run_moves_last) {
  make_blocks(0, 0xfd61);  // 1 to 4, 7 and 9 are free
  for (unsigned call = 0; call < 6; ++call) {
    CHECK(compact(2 * EACH) >= GMM_OK);
    CHECK_EQUAL(info.largest_free, 4 * EACH);
  }
  OK(compact(0));
  CHECK_EQUAL(info.moved_bytes, 4 * EACH);
  CHECK_EQUAL(info.largest_free, 6 * EACH);
  check_and_end();
}

VMM_CASE(a_budget_of_time_is_kept) {
  uint64_t largest = 4 * EACH;
  make_blocks(0, 0xfd61);
  RESULT(compact(EACH - 1), GMM_UNCHANGED);
  CHECK_EQUAL(info.largest_free, largest);
  // How much a microsecond is enough for is the machine's. No call makes the largest run smaller.
  for (unsigned call = 0; call < 20; ++call) {
    CHECK(compact_by(0, 0, 1) >= GMM_OK);
    CHECK(info.largest_free >= largest);
    largest = info.largest_free;
  }
  CHECK(compact_by(0, 0, 60000000) >= GMM_OK);
  CHECK_EQUAL(info.largest_free, 4 * EACH);
  OK(compact_by(0, 6 * EACH, UINT64_MAX));  // that is no bound
  CHECK_EQUAL(info.largest_free, 6 * EACH);
  check_and_end();
}

VMM_CASE(memory_in_use_by_queued_work_stays) {
  make_blocks(0, ODD_FREE);
  gmm_stream stream = open_stream();
  static gate hold;
  gate_close(&hold, stream, GATE_S);
  void *used = take_of(heap, EACH);
  OK(gmm_free(context, used, stream));
  OK(compact(0));
  CHECK_EQUAL(atomic_load(&hold.passed), 0);  // nobody waited
  CHECK_EQUAL(info.largest_free, 7 * EACH);
  // As many as may be used: those of the run at the end stay, unless it is the one in use.
  CHECK(info.moved_bytes == 6 * EACH || info.moved_bytes == 7 * EACH);
  OK(gmm_heap_reserve(heap, 0));
  OK(compact(0));
  CHECK_EQUAL(info.released_bytes, 7 * EACH);
  atomic_store(&hold.open, 1);
  OK(gmm_stream_synchronize(context, stream));
  OK(compact(0));
  CHECK_EQUAL(info.released_bytes, EACH);
  OK(gmm_stream_destroy(context, stream));
  check_and_end();
}

VMM_CASE(memory_that_importers_hold_stays) {
  gmm_ipc_handle handle;
  void *imported = NULL;
  make_blocks(0, ODD_FREE);
  MUST(gmm_ipc_export(context, blocks[4], &handle));
  MUST(gmm_ipc_import(context, &handle, NULL, &imported));
  free_block(4);
  OK(compact(0));
  CHECK_EQUAL(info.largest_free, 8 * EACH);  // without it
  CHECK_PATTERN(imported, EACH, 4);
  OK(gmm_ipc_close(context, imported));
  OK(compact(0));
  CHECK_EQUAL(info.largest_free, 9 * EACH);
  check_and_end();
}

// A block would otherwise find itself on another device than its heap's.
VMM_CASE(memory_that_was_moved_stays) {
  make_blocks(0, ODD_FREE);
  OK(compact(0));
  const gmm_move_desc now = {.struct_size = sizeof now};
  const gmm_result moved = gmm_move(context, blocks[6], GMM_DEVICE_HOST, &now);
  if (moved == GMM_OK) {
    free_block(6);
    OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
    RESULT(compact(0), GMM_UNCHANGED);
    OK(gmm_heap_reserve(heap, 15 * EACH));
    OK(compact(EACH));  // a single run goes first
    CHECK_EQUAL(info.released_bytes, EACH);
    CHECK_EQUAL(info.largest_free, 8 * EACH);
  } else {
    RESULT(moved, GMM_ERROR_NOT_SUPPORTED);
  }
  check_and_end();
}

VMM_CASE(paused_memory_stays) {
  const gmm_tag tag = make_tag("paused", GMM_CONTENTS_HOST);
  make_blocks(tag, ODD_FREE);
  OK(pause_of(tag));
  const uint64_t paused = held();
  RESULT(compact(0), GMM_UNCHANGED);
  CHECK_EQUAL(info.largest_free, 0);
  CHECK_EQUAL(held(), paused);
  OK(resume_of(tag));
  CHECK(compact(0) >= GMM_OK);
  // Moved memory is paused and resumed with the rest.
  OK(pause_of(tag));
  OK(resume_of(tag));
  check_and_end();
}

VMM_CASE(a_scope_and_a_heap_are_kept_to) {
  info = *DESC(compact_info);
  make_blocks(0, ODD_FREE);
  gmm_scope_desc scope = scope_of(GMM_SCOPE_TAG, 0, make_tag("other", GMM_CONTENTS_DROP), 0);
  RESULT(gmm_compact(context, &scope, NULL, &info), GMM_UNCHANGED);
  CHECK_EQUAL(info.largest_free, 0);
  scope = scope_of(GMM_SCOPE_KIND, 0, 0, GMM_KIND_HOST);
  RESULT(gmm_compact(context, &scope, NULL, &info), GMM_UNCHANGED);
  OK(gmm_defer_begin(context));
  RESULT(gmm_compact(context, NULL, NULL, &info), GMM_UNCHANGED);
  OK(gmm_defer_end(context));
  CHECK_EQUAL(held(), EXTENTS * EACH);
  scope = scope_of(GMM_SCOPE_DEVICE | GMM_SCOPE_KIND, device, 0, GMM_KIND_VMM);
  OK(gmm_compact(context, &scope, NULL, &info));
  CHECK_EQUAL(info.moved_bytes, 7 * EACH);

  gmm_compact_desc desc = {.struct_size = sizeof desc};
  MUST(gmm_heap_create(context, DESC(heap_desc, .kind = GMM_KIND_HOST, .device = device), &desc.heap));
  RESULT(gmm_compact(context, NULL, &desc, &info), GMM_ERROR_INVALID_KIND);
  OK(gmm_heap_destroy(desc.heap));
  gmm_context *other = open_context(0);
  MUST(gmm_heap_create(other, NULL, &desc.heap));
  RESULT(gmm_compact(context, NULL, &desc, &info), GMM_ERROR_INVALID_HANDLE);
  OK(gmm_context_release(other));
  check_and_end();
}

// Its blocks may each be a driver allocation of another process or API.
VMM_CASE(an_exportable_heap_gives_back_only) {
  if (gmm_heap_create(context, DESC(heap_desc, .flags = GMM_HEAP_EXPORTABLE, .kind = kind, .device = device), &heap) !=
      GMM_OK)
    return;
  void *first = take_of(heap, 8 * MIB);
  take_of(heap, 8 * MIB);
  void *last = take_of(heap, 8 * MIB);
  const uint64_t all = held();
  OK(gmm_heap_reserve(heap, all));
  FREE(first, last);
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  RESULT(compact(0), GMM_UNCHANGED);
  CHECK_EQUAL(held(), all);
  OK(gmm_heap_reserve(heap, 0));
  OK(compact(0));
  CHECK_EQUAL(info.released_bytes, all - held());
}

// --- Live blocks: two extents of 16 MiB ------------------------------------------------------------------------------

enum { SPARSE = 0x3e26 };  // 1, 2 and 5 of the first extent stay, and 9 to 13 of the second one
static void make_extents(gmm_tag tag) {
  heap = HEAP(.tag = tag, .minimum_extent = EXTENTS / 2 * EACH);
  OK(gmm_heap_reserve(heap, EXTENTS / 2 * EACH));
  OK(gmm_heap_reserve(heap, EXTENTS * EACH));
  REQUIRE(stats().extents == 2);
  OK(gmm_heap_reserve(heap, 0));
}
static void make_sparse(gmm_tag tag) {
  make_extents(tag);
  for (unsigned i = 0; i < EXTENTS; ++i) blocks[i] = take_of(heap, EACH);
  REQUIRE(stats().extents == 2);
  keep_live(SPARSE);
}
VMM_CASE(live_blocks_keep_their_addresses) {
  make_sparse(0);
  RESULT(compact(0), GMM_UNCHANGED);
  OK(gmm_name(context, blocks[2], "a block"));
  OK(gmm_limit_set(context, NULL, stats().reserved_bytes));  // no byte more
  RESULT(compact_live(EXTENTS / 2 * EACH - 1), GMM_UNCHANGED);
  OK(compact_live(0));
  CHECK_EQUAL(info.moved_bytes, 3 * EACH);
  CHECK_EQUAL(info.released_bytes, 5 * EACH);
  CHECK_EQUAL(held(), (EXTENTS - 5) * EACH);
  CHECK_EQUAL(stats().extents, 3);
  RESULT(compact_live(0), GMM_UNCHANGED);
  for (unsigned i = 0; i < EXTENTS; ++i)
    if (blocks[i] != NULL) CHECK_PATTERN(blocks[i], EACH, i);
  const gmm_pointer_info about = query((uint8_t *)blocks[2] + 100);
  CHECK(about.base == blocks[2] && about.allocation_base == blocks[1]);
  CHECK_EQUAL(about.allocation_size, 2 * EACH);
  // The addresses between them serve again.
  OK(gmm_limit_set(context, NULL, GMM_NO_LIMIT));
  for (unsigned i = 0; i < EXTENTS; ++i) {
    if (blocks[i] != NULL) continue;
    OK(gmm_heap_alloc(heap, EACH, 0, 0, GMM_STREAM_DEFAULT, &blocks[i]));
    write_pattern(blocks[i], EACH, i, GMM_STREAM_DEFAULT);
  }
  check_and_end();
}

VMM_CASE(a_block_over_two_extents_and_small_ones_move) {
  void *small[64];
  make_extents(0);
  for (unsigned i = 0; i < 64; ++i) {
    small[i] = take_of(heap, 1000);
    write_pattern(small[i], 1000, i, GMM_STREAM_DEFAULT);
  }
  void *filler = take_of(heap, 7 * EACH), *large = take_of(heap, 2 * EACH);
  write_pattern(large, 2 * EACH, 99, GMM_STREAM_DEFAULT);
  REQUIRE(stats().extents == 2);
  const uint8_t *second = (const uint8_t *)query(small[0]).allocation_base + EXTENTS / 2 * EACH;
  REQUIRE((uint8_t *)large < second && (uint8_t *)large + 2 * EACH > second);
  FREE(filler);
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  OK(compact_live(0));
  CHECK(info.released_bytes >= 10 * EACH);
  CHECK_EQUAL(info.moved_bytes + info.released_bytes, EXTENTS * EACH);
  CHECK_EQUAL(held(), EXTENTS * EACH - info.released_bytes);
  CHECK_PATTERN(large, 2 * EACH, 99);
  for (unsigned i = 0; i < 64; ++i) {
    CHECK_PATTERN(small[i], 1000, i);
    FREE(small[i]);
  }
  FREE(large);
  check_and_end();
}

VMM_CASE(live_memory_that_others_know_stays) {
  gmm_ipc_handle handle;
  void *imported = NULL;
  const gmm_tag tag = make_tag("live", GMM_CONTENTS_HOST);
  make_sparse(tag);
  // A handle that nobody imported yet stays valid.
  MUST(gmm_ipc_export(context, blocks[2], &handle));
  RESULT(compact_live(0), GMM_UNCHANGED);
  MUST(gmm_ipc_import(context, &handle, NULL, &imported));
  RESULT(compact_live(0), GMM_UNCHANGED);
  CHECK_PATTERN(imported, EACH, 2);
  OK(gmm_ipc_close(context, imported));
  free_block(2);
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  // The reserve has no byte for it.
  OK(gmm_heap_reserve(heap, EXTENTS * EACH));
  OK(gmm_heap_reserve(heap, (EXTENTS - 5) * EACH));
  RESULT(compact_live(0), GMM_UNCHANGED);
  OK(gmm_heap_reserve(heap, 0));
  OK(pause_of(tag));
  RESULT(compact_live(0), GMM_UNCHANGED);
  OK(resume_of(tag));
  OK(compact_live(0));
  CHECK_EQUAL(info.released_bytes, 9 * EACH);  // the resume made one extent of both, and more than half of it is free
  // Moved memory is paused and resumed like any other.
  OK(pause_of(tag));
  CHECK_EQUAL(held(), 0);
  OK(resume_of(tag));
  check_and_end();
}

int main(void) { return run_cases(); }
