// SPDX-License-Identifier: Apache-2.0
// pause.h: ranges of a tag, waits for them, and kept contents.
#include "pause_support.h"

static uint64_t kept_bytes(gmm_tag tag) {
  const gmm_tag_info info = tag_info(tag);
  return info.backup_host_bytes + info.backup_file_bytes + info.backup_zero_bytes;
}
// Pauses and resumes all tags.
static void cycle(void) {
  OK(gmm_pause(context, NULL, NULL));
  OK(gmm_resume(context, NULL, NULL));
}

VMM_CASE(a_range_comes_back_alone) {
  gmm_tag tag = make_tag("parts", GMM_CONTENTS_HOST);
  char *blocks_[3];
  for (int i = 0; i < 3; ++i) blocks_[i] = FILLED_ALONE(6 * MIB, tag, 10 + i);
  MUST(gmm_pause(context, NULL, NULL));
  uint64_t bytes = 0;
  OK(gmm_resume_range(context, blocks_[1] + MIB, 100, &bytes));
  CHECK_EQUAL(bytes, 6 * MIB);
  CHECK_EQUAL(state_of(blocks_[0]), GMM_STATE_PAUSED);
  CHECK_EQUAL(state_of(blocks_[1]), GMM_STATE_ACTIVE);
  CHECK_EQUAL(state_of(blocks_[2]), GMM_STATE_PAUSED);
  CHECK_EQUAL(tag_info(tag).state, GMM_STATE_PARTLY_PAUSED);
  CHECK_PATTERN(blocks_[1], 6 * MIB, 11);
  RESULT(gmm_resume_range(context, blocks_[1], 6 * MIB, &bytes), GMM_UNCHANGED);
  CHECK_EQUAL(bytes, 0);
  // The range that came back may change, and be paused again.
  write_pattern(blocks_[1], 6 * MIB, 77, GMM_STREAM_DEFAULT);
  OK(gmm_pause(context, NULL, &bytes));
  CHECK_EQUAL(bytes, 6 * MIB);
  OK(gmm_resume(context, NULL, &bytes));
  CHECK_EQUAL(bytes, 18 * MIB);
  CHECK_PATTERN(blocks_[0], 6 * MIB, 10);
  CHECK_PATTERN(blocks_[1], 6 * MIB, 77);
  CHECK_PATTERN(blocks_[2], 6 * MIB, 12);
}

// Of a block over several extents a part can be used while the rest is paused.
VMM_CASE(the_part_that_came_back_is_usable) {
  gmm_tag tag = make_tag("part of a block", GMM_CONTENTS_HOST);
  ALLOC_TAG(1, tag);
  char *block = FILLED_TAG(3 * MIB, tag, 21);
  MUST(gmm_pause(context, NULL, NULL));
  OK(gmm_resume_range(context, block, 4096, NULL));
  if (state_of(block) == GMM_STATE_PARTLY_PAUSED) {
    OK(gmm_resume_wait(context, block, 4096, 0));
    CHECK_PATTERN(block, 4096, 21);
    OK(gmm_fill(context, block, 9, 10, GMM_STREAM_DEFAULT));
    write_pattern(block, 10, 21, GMM_STREAM_DEFAULT);
    RESULT(gmm_fill(context, block, 9, 3 * MIB, GMM_STREAM_DEFAULT), GMM_ERROR_PAUSED);
    RESULT(gmm_fill(context, block + 3 * MIB - 1, 9, 1, GMM_STREAM_DEFAULT), GMM_ERROR_PAUSED);
    RESULT(gmm_fill(context, block, 9, 3 * MIB + 1, GMM_STREAM_DEFAULT), GMM_ERROR_INVALID_SIZE);
  }
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(block, 3 * MIB, 21);
}

VMM_CASE(each_pause_chooses_where_contents_go) {
  gmm_tag tag = make_tag("weights", GMM_CONTENTS_DROP);
  allocate_blocks(tag, 200);
  gmm_pause_desc pause = one_tag(&tag);
  uint64_t live = 0;
  for (unsigned i = 0; i < BLOCKS; ++i) live += block_size(i);
  for (unsigned to_file = 0; to_file < 2; ++to_file) {
    uint64_t bytes = 0;
    pause.flags = to_file ? GMM_PAUSE_KEEP_FILE : GMM_PAUSE_KEEP_HOST;
    OK(gmm_pause(context, &pause, &bytes));
    gmm_tag_info info = tag_info(tag);
    CHECK((to_file ? info.backup_file_bytes : info.backup_host_bytes) >= live);
    CHECK_EQUAL(to_file ? info.backup_host_bytes : info.backup_file_bytes, 0);
    CHECK_EQUAL(info.state, GMM_STATE_PAUSED);
    CHECK_EQUAL(info.active_bytes, 0);
    CHECK_EQUAL(info.paused_bytes, bytes);
    CHECK_EQUAL(info.contents, GMM_CONTENTS_DROP);
    CHECK_EQUAL(info.pauses, to_file + 1);
    CHECK(strcmp(info.name, "weights") == 0);
    OK(gmm_resume(context, NULL, NULL));
    check_blocks(200);
    info = tag_info(tag);
    CHECK_EQUAL(info.paused_bytes + info.backup_host_bytes + info.backup_file_bytes, 0);
    CHECK(info.active_bytes > 0);
  }
  OK(gmm_tag_configure(context, tag, DESC(tag_desc, .contents = GMM_CONTENTS_HOST, .priority = 3)));
  CHECK_EQUAL(tag_info(tag).priority, 3);
  pause.flags = GMM_PAUSE_DROP;
  OK(gmm_pause(context, &pause, NULL));
  CHECK_EQUAL(kept_bytes(tag), 0);
  uint8_t byte = 0;
  RESULT(gmm_backup_read(context, blocks[0], 1, &byte), GMM_ERROR_INVALID_VALUE);
  OK(gmm_resume(context, NULL, NULL));
}

VMM_CASE(kept_contents_can_be_read_and_forgotten) {
  gmm_tag tag = make_tag("kept", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 300);
  OK(gmm_pause(context, NULL, NULL));
  const uint64_t size = block_size(38);
  uint8_t *read = malloc(size), *expected = malloc(size);
  fill_pattern(expected, size, 300 + 38);
  OK(gmm_backup_read(context, blocks[38], size, read));
  CHECK(memcmp(read, expected, size) == 0);
  OK(gmm_backup_read(context, (char *)blocks[38] + 12345, 1000, read));
  CHECK(memcmp(read, expected + 12345, 1000) == 0);
  const void *view = NULL, *again = NULL;
  OK(gmm_backup_map(context, blocks[38], size, &view));
  CHECK(view != NULL && memcmp(view, expected, size) == 0);
  OK(gmm_backup_map(context, (char *)blocks[38] + 100, 1, &again));
  CHECK(again == (const char *)view + 100);
  RESULT(gmm_backup_read(context, blocks[38], size + 1, read), GMM_ERROR_INVALID_SIZE);
  CHECK_EQUAL(state_of(blocks[38]), GMM_STATE_PAUSED);
  uint64_t bytes = 0;
  OK(gmm_backup_discard(context, NULL, &bytes));
  CHECK(bytes >= size);
  RESULT(gmm_backup_discard(context, NULL, &bytes), GMM_UNCHANGED);
  CHECK_EQUAL(bytes, 0);
  CHECK_EQUAL(tag_info(tag).backup_host_bytes, 0);
  RESULT(gmm_backup_read(context, blocks[38], 1, read), GMM_ERROR_INVALID_VALUE);
  OK(gmm_resume(context, NULL, NULL));
  write_pattern(blocks[38], size, 5, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(blocks[38], size, 5);
  free(read);
  free(expected);
}

VMM_CASE(read_only_contents_are_copied_once) {
  gmm_tag_desc desc = {.struct_size = sizeof desc, .contents = GMM_CONTENTS_HOST};
  const gmm_tag tag = make_tag_of("constant", GMM_CONTENTS_HOST, GMM_TAG_READ_ONLY);
  char *kept = FILLED_TAG(20 * MIB, tag, 1), *replaced = FILLED_TAG(10 * MIB, tag, 2);
  cycle();
  CHECK(tag_info(tag).backup_active_bytes >= 30 * MIB);
  // Another block at the same address is another block.
  FREE(replaced);
  char *successor = FILLED_TAG(10 * MIB, tag, 3);
  CHECK(successor == replaced);  // else this shows nothing
  uint64_t skipped = backup_info().skipped_bytes;
  OK(gmm_pause(context, NULL, NULL));
  CHECK(backup_info().skipped_bytes - skipped >= 16 * MIB);
  CHECK(backup_info().skipped_bytes - skipped <= 20 * MIB + 64 * KIB);
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(kept, 20 * MIB, 1);
  CHECK_PATTERN(successor, 10 * MIB, 3);
  // No longer read-only: changes are kept too.
  OK(gmm_tag_configure(context, tag, &desc));
  cycle();
  CHECK_EQUAL(tag_info(tag).backup_active_bytes, 0);
  write_pattern(kept, 20 * MIB, 9, GMM_STREAM_DEFAULT);
  cycle();
  CHECK_PATTERN(kept, 20 * MIB, 9);
  // Writing is allowed between two times of being read-only, with no pause between them.
  for (uint32_t round = 0; round < 3; ++round) {
    desc.flags = round == 1 ? 0 : GMM_TAG_READ_ONLY;
    OK(gmm_tag_configure(context, tag, &desc));
    if (round == 1)
      write_pattern(kept, 20 * MIB, 10, GMM_STREAM_DEFAULT);
    else
      cycle();
  }
  CHECK_PATTERN(kept, 20 * MIB, 10);
}

// Some of the contents are dropped while the rest is paused with its backup: all is written anew.
VMM_CASE(dropped_read_only_contents_may_be_written_anew) {
  enum { PARTS = 5 };
  const gmm_tag tag = make_tag_of("anew", GMM_CONTENTS_HOST, GMM_TAG_READ_ONLY);
  const uint64_t size = 6 * MIB;
  char *parts[PARTS];
  for (uint32_t i = 0; i < PARTS; ++i)  // extents of their own
    parts[i] = alloc_here(__LINE__, size, tag, GMM_STREAM_DEFAULT, GMM_ALLOC_DEDICATED);
  gmm_pause_desc drop = one_tag(&tag);
  drop.flags = GMM_PAUSE_DROP;
  for (uint32_t discards = 0; discards < 2; ++discards) {
    const uint32_t first = 1 + 20 * discards, anew = 11 + 20 * discards;
    for (uint32_t i = 0; i < PARTS; ++i) write_pattern(parts[i], size, first + i, GMM_STREAM_DEFAULT);
    OK(gmm_pause(context, NULL, NULL));
    OK(gmm_resume_range(context, parts[0], size, NULL));
    CHECK_PATTERN(parts[0], size, first);
    if (discards)
      OK(gmm_backup_discard(context, NULL, NULL));
    else
      OK(gmm_pause(context, &drop, NULL));
    OK(gmm_resume(context, NULL, NULL));
    // The part that was not dropped is there, but the program need not know.
    if (discards) CHECK_PATTERN(parts[0], size, first);
    for (uint32_t i = 1; i < PARTS && !discards; ++i) CHECK_PATTERN(parts[i], size, first + i);
    for (uint32_t i = 0; i < PARTS; ++i) write_pattern(parts[i], size, anew + i, GMM_STREAM_DEFAULT);
    cycle();
    for (uint32_t i = 0; i < PARTS; ++i) CHECK_PATTERN(parts[i], size, anew + i);
    // From then on it is read-only again.
    const uint64_t skipped = backup_info().skipped_bytes;
    OK(gmm_pause(context, NULL, NULL));
    CHECK_EQUAL(backup_info().skipped_bytes - skipped, PARTS * size);
    OK(gmm_resume(context, NULL, NULL));
    for (uint32_t i = 0; i < PARTS; ++i) CHECK_PATTERN(parts[i], size, anew + i);
    // The next round begins with other contents.
    OK(gmm_pause(context, &drop, NULL));
    OK(gmm_resume(context, NULL, NULL));
  }
}

VMM_CASE(memory_freed_while_it_is_paused_goes_back) {
  enum { COUNT = 40 };
  const gmm_tag tag = make_tag("freed", GMM_CONTENTS_HOST);
  const gmm_stream other = open_stream();
  for (uint32_t round = 0; round < 2; ++round) {
    const bool trims = round == 0;  // else the next pause does it
    char *freed[COUNT];
    for (uint32_t i = 0; i < COUNT; ++i)
      freed[i] = FILLED_TAG(i % 4 == 0 ? 100 * KIB : MIB + i * 64 * KIB, tag, round + i);
    MUST(gmm_pause(context, NULL, NULL));
    CHECK(kept_bytes(tag) >= 40 * MIB);
    for (uint32_t i = 0; i < COUNT - 1; ++i) FREE_ON(i % 3 == 0 ? other : GMM_STREAM_DEFAULT, freed[i]);
    RESULT(gmm_free(context, freed[0], GMM_STREAM_DEFAULT), GMM_ERROR_ALREADY_FREED);
    if (trims) {
      OK(gmm_trim(context, NULL, NULL));
      // One block lives, in a chunk of at most 4 MiB at each of its ends.
      CHECK_MESSAGE(kept_bytes(tag) <= 12 * MIB, "%llu MiB are kept", (unsigned long long)(kept_bytes(tag) / MIB));
    }
    FREE(freed[COUNT - 1]);
    if (!trims) break;
    OK(gmm_trim(context, NULL, NULL));
    CHECK_EQUAL(kept_bytes(tag), 0);
    CHECK_EQUAL(backup_info().arena_used + backup_info().pageable_bytes, 0);
    CHECK_EQUAL(tag_info(tag).paused_bytes, 0);
    CHECK_EQUAL(stats().extents, 0);
  }
  RESULT(gmm_resume(context, NULL, NULL), GMM_UNCHANGED);  // nothing lives
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(kept_bytes(tag), 0);
}

static uint64_t calls, total_told;
static int32_t stop_at(void *user, uint64_t done, uint64_t total) {
  CHECK(done <= total);
  total_told = total;
  return ++calls == *(uint64_t *)user;
}

VMM_CASE(a_program_may_end_it_at_any_call) {
  gmm_tag tag = make_tag("stopped", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 400);
  gmm_pause_desc desc = one_tag(&tag);
  uint64_t k = 0;
  desc.progress.fn = stop_at;
  desc.progress.user = &k;
  for (int pausing = 1; pausing >= 0; --pausing) {
    gmm_result result = GMM_ERROR_CANCELLED;
    for (k = 1; result != GMM_OK && k < 1000; ++k) {
      calls = 0;
      uint64_t bytes = 9;
      result = (pausing ? gmm_pause : gmm_resume)(context, &desc, &bytes);
      if (result == GMM_OK) break;
      RESULT(result, GMM_ERROR_CANCELLED);
      CHECK_EQUAL(bytes, 9);
      for (unsigned i = 0; i < BLOCKS; ++i)
        CHECK_EQUAL(state_of(blocks[i]), pausing ? GMM_STATE_ACTIVE : GMM_STATE_PAUSED);
      if (pausing) check_blocks(400);
    }
    CHECK_EQUAL(result, GMM_OK);
    CHECK(k > 1);
    CHECK(total_told > 1000000);
  }
  check_blocks(400);
}

static atomic_int waiting;
static void *wait_for_block(void *number) {
  atomic_fetch_add(&waiting, 1);
  OK(gmm_resume_wait(context, blocks[(uintptr_t)number * 19], 100, SOON_S * 1000));
  return NULL;
}
static void *resume_or_wait(void *number) {
  if ((uintptr_t)number < 3) return wait_for_block(number);
  SOON(atomic_load(&waiting) == 3);
  OK(gmm_resume(context, NULL, NULL));
  return NULL;
}

VMM_CASE(a_thread_waits_for_its_block) {
  gmm_tag tag = make_tag("awaited", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 500);
  OK(gmm_resume_wait(context, blocks[0], 100, 0));
  MUST(gmm_pause(context, NULL, NULL));
  RESULT(gmm_resume_wait(context, blocks[0], 100, 0), GMM_ERROR_NOT_READY);
  RESULT(gmm_resume_wait(context, blocks[0], 100, 20), GMM_ERROR_NOT_READY);
  atomic_store(&waiting, 0);
  run_threads(4, resume_or_wait);
  check_blocks(500);
  free_blocks();
  int foreign = 0;
  RESULT(gmm_resume_wait(context, &foreign, 4, 0), GMM_ERROR_UNKNOWN_POINTER);
}

// Free memory of another tag stands in the way of a resume: it goes back to the driver, for a range as for whole tags.
VMM_CASE(a_range_comes_back_when_free_memory_is_in_the_way) {
  const gmm_tag tag = make_tag("ranged", GMM_CONTENTS_DROP);
  set_limit(GMM_SCOPE_DEVICE, 0, 64 * MIB);
  void *block = ALLOC_TAG(40 * MIB, tag);
  MUST(gmm_pause(context, NULL, NULL));
  FREE(ALLOC_TAG(40 * MIB, make_tag("in_the_way", GMM_CONTENTS_DROP)));
  uint64_t came = 0;
  OK(gmm_resume_range(context, block, 40 * MIB, &came));
  CHECK_EQUAL(came, 40 * MIB);
  CHECK_EQUAL(state_of(block), GMM_STATE_ACTIVE);
}

VMM_CASE(pauses_take_few_calls) {
  enum { COUNT = 1000 };
  reopen_with(4096 * MIB);
  const uint64_t most = backend_id() == GMM_BACKEND_HIP ? 200 : 100;  // it ends mappings one by one
  gmm_tag tag = make_tag("many", GMM_CONTENTS_DROP);
  if (free_device_bytes() < 2 * COUNT * MIB) SKIP("the device has too little memory");
  for (int i = 0; i < COUNT; ++i) ALLOC_TAG(2 * MIB, tag);
  for (int step = 0; step < 6; ++step) {
    const uint64_t before = stats().backend_calls;
    uint64_t bytes = 0;
    MUST((step % 2 == 0 ? gmm_pause : gmm_resume)(context, NULL, &bytes));
    const uint64_t made = stats().backend_calls - before;
    CHECK(bytes >= 2 * COUNT * MIB);
    CHECK_MESSAGE(made <= most, "step %d made %llu calls", step, (unsigned long long)made);
  }
}

int main(void) { return run_cases(); }
