// SPDX-License-Identifier: Apache-2.0
// The cases that gmm has with each API of graphics. The program that includes them defines the type `view`, a buffer
// over a block of gmm, and view_of(), end_view(), write_view() and check_view(), which are the API's.
#ifndef GMM_TESTS_SHARED_CASES_H
#define GMM_TESTS_SHARED_CASES_H

static void check_both_ways(void *block, const view *seen, uint64_t size, uint32_t seed) {
  write_pattern(block, size, seed, GMM_STREAM_DEFAULT);
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  check_view(__LINE__, seen, size, seed);
  write_view(seen, size, seed + 100);
  CHECK_PATTERN(block, size, seed + 100);
}

static void a_block_of_each_kind_is_a_buffer(void) {
  if (!on_host_backend() && kind != GMM_KIND_VMM) SKIP("graphics take VMM memory of CUDA");
  if (!on_host_backend() && device != 0) SKIP("the device of graphics is device 0");
  uint8_t *block = ALLOC_FLAGS(2 * MIB, GMM_ALLOC_DEDICATED);
  view seen = view_of(block, 2 * MIB);
  check_both_ways(block, &seen, 2 * MIB, 1);
  end_view(&seen);
  FREE(block);
}

static void pooled_blocks_are_buffers(void) {
  enum { COUNT = 3 };
  static const uint64_t sizes[COUNT] = {MIB, 300000, 20 * MIB};
  gmm_heap *heap = exportable_heap(0);
  void *blocks[COUNT];
  view views[COUNT];
  for (unsigned i = 0; i < COUNT; ++i) {
    blocks[i] = take_of(heap, sizes[i]);
    views[i] = view_of(blocks[i], sizes[i]);
    CHECK_EQUAL((uintptr_t)query(blocks[i]).allocation_base, (uintptr_t)query(blocks[0]).allocation_base);
  }
  for (unsigned i = 0; i < COUNT; ++i) write_pattern(blocks[i], sizes[i], i, GMM_STREAM_DEFAULT);
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  for (unsigned i = 0; i < COUNT; ++i) check_view(__LINE__, &views[i], sizes[i], i);
  for (unsigned i = 0; i < COUNT; ++i) write_view(&views[i], sizes[i], 10 + i);
  for (unsigned i = 0; i < COUNT; ++i) {
    CHECK_PATTERN(blocks[i], sizes[i], 10 + i);
    end_view(&views[i]);
    FREE(blocks[i]);
  }
  OK(gmm_heap_destroy(heap));
}

// As ipc.h says: the API lets go of the memory before the pause, and imports it anew after the resume.
static void a_pause_of_exported_memory(void) {
  const gmm_tag tag = make_tag("drawn", GMM_CONTENTS_HOST);
  gmm_heap *heap = exportable_heap(tag);
  void *block = take_of(heap, 3 * MIB);
  view seen = view_of(block, 3 * MIB);
  write_view(&seen, 3 * MIB, 5);
  end_view(&seen);
  MUST(pause_of(tag));
  CHECK_EQUAL(stats().reserved_bytes, 0);
  MUST(resume_of(tag));
  seen = view_of(block, 3 * MIB);
  check_view(__LINE__, &seen, 3 * MIB, 5);
  check_both_ways(block, &seen, 3 * MIB, 6);
  end_view(&seen);
  FREE(block);
  OK(gmm_heap_destroy(heap));
}

#endif
