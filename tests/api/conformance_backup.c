// SPDX-License-Identifier: Apache-2.0
// Contents that a tag keeps while its memory is paused: in host memory, in a file, and when there is no room.
#include <sys/stat.h>

#include "pause_support.h"

static void contents_are_kept(gmm_contents contents) {
  gmm_tag tag = make_tag("kept", contents);
  allocate_blocks(tag, 100);
  gmm_pause_desc desc = one_tag(&tag);
  for (unsigned round = 0; round < 3; ++round) {
    uint64_t bytes = 0;
    MUST(gmm_pause(context, &desc, &bytes));
    CHECK(bytes > 0);
    gmm_tag_info info = pause_info(tag);
    CHECK_EQUAL(info.active_bytes, 0);
    CHECK_EQUAL(info.paused_bytes, bytes);
    CHECK_EQUAL(info.contents, contents);
    CHECK_EQUAL(info.pauses, round + 1);
    CHECK(strcmp(info.name, "kept") == 0);
    uint64_t live = 0;
    for (unsigned i = 0; i < BLOCKS; ++i) live += block_size(i);
    CHECK(info.backup_host_bytes + info.backup_file_bytes >= live);
    if (contents == GMM_CONTENTS_FILE) CHECK(info.backup_file_bytes >= live);
    for (unsigned i = 0; i < BLOCKS; ++i) CHECK_EQUAL(query(blocks[i]).state, GMM_STATE_PAUSED);
    MUST(gmm_resume(context, &desc, NULL));
    check_blocks(100);
    info = pause_info(tag);
    CHECK_EQUAL(info.paused_bytes, 0);
    CHECK_EQUAL(info.backup_host_bytes, 0);
    CHECK_EQUAL(info.backup_file_bytes, 0);
    CHECK(info.active_bytes > 0);
  }
  free_blocks();
}
static void contents_are_kept_in_host_memory(void) { contents_are_kept(GMM_CONTENTS_HOST); }
static void contents_are_kept_in_a_file(void) { contents_are_kept(GMM_CONTENTS_FILE); }

static void zeros_take_no_memory(void) {
  gmm_tag tag = make_tag("zeros", GMM_CONTENTS_HOST);
  char *block = ALLOC_TAG(12 * MIB, tag);
  REQUIRE(block != NULL);
  OK(gmm_fill(context, block, 0, 12 * MIB, GMM_STREAM_DEFAULT));
  write_pattern(block + 5 * MIB, 4096, 3, GMM_STREAM_DEFAULT);
  OK(gmm_pause(context, NULL, NULL));
  gmm_tag_info info = pause_info(tag);
  CHECK(info.backup_zero_bytes >= 4 * MIB);
  CHECK(info.backup_host_bytes > 0 && info.backup_host_bytes <= 8 * MIB);
  uint8_t read = 1;
  OK(gmm_backup_read(context, block + 11 * MIB, 1, &read));
  CHECK_EQUAL(read, 0);
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(block + 5 * MIB, 4096, 3);
  static uint8_t back[MIB], zeros[MIB];
  for (uint64_t at = 0; at < 12 * MIB; at += MIB) {
    if (at == 5 * MIB) continue;
    OK(gmm_copy(context, back, block + at, MIB, GMM_STREAM_DEFAULT));
    OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
    CHECK_MESSAGE(memcmp(back, zeros, MIB) == 0, "not zero in the MiB at %llu", (unsigned long long)at);
  }
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void the_backup_file_has_no_name(void) {
  char directory[] = "/tmp/gmm-backup-XXXXXX";
  REQUIRE(mkdtemp(directory) != NULL);
  setenv("GMM_BACKUP_DIR", directory, 1);
  gmm_context_release(context);
  context = open_context(2);
  gmm_tag tag = make_tag("kept", GMM_CONTENTS_FILE);
  void *block = ALLOC_TAG(5 * MIB, tag);
  write_pattern(block, 5 * MIB, 1, GMM_STREAM_DEFAULT);
  OK(gmm_pause(context, NULL, NULL));
  CHECK(rmdir(directory) == 0);  // empty: no name was left there
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(block, 5 * MIB, 1);
  gmm_context_release(context);
  // The directory is gone now: a pause fails and changes nothing.
  context = open_context(2);
  tag = make_tag("kept", GMM_CONTENTS_FILE);
  block = ALLOC_TAG(5 * MIB, tag);
  write_pattern(block, 5 * MIB, 2, GMM_STREAM_DEFAULT);
  uint64_t bytes = 77;
  RESULT(gmm_pause(context, NULL, &bytes), GMM_ERROR_IO);
  CHECK_EQUAL(bytes, 77);
  CHECK(strstr(gmm_last_error_message(), directory) != NULL);
  CHECK_EQUAL(query(block).state, GMM_STATE_ACTIVE);
  CHECK_PATTERN(block, 5 * MIB, 2);
  REQUIRE(mkdir(directory, 0700) == 0);
  OK(gmm_pause(context, NULL, NULL));
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(block, 5 * MIB, 2);
  rmdir(directory);
  unsetenv("GMM_BACKUP_DIR");
}

static void queued_work_is_in_the_backup(void) {
  gmm_tag tag = make_tag("queued", GMM_CONTENTS_HOST);
  gmm_stream stream = 0;
  MUST(gmm_stream_create(context, STREAM_ON(device), &stream));
  gmm_alloc_desc alloc = alloc_desc();
  alloc.tag = tag;
  alloc.stream = stream;
  void *block = NULL;
  MUST(gmm_alloc(context, 100000, &alloc, &block));
  gate hold;
  gate_close(&hold, stream, 0.05);
  OK(gmm_fill(context, block, 0x3c, 100000, stream));
  OK(gmm_pause(context, NULL, NULL));
  CHECK_EQUAL(atomic_load(&hold.passed), 1);
  OK(gmm_resume(context, NULL, NULL));
  uint8_t bytes[1000] = {0};
  OK(gmm_copy(context, bytes, block, 1000, stream));
  OK(gmm_stream_synchronize(context, stream));
  CHECK(bytes[0] == 0x3c && bytes[999] == 0x3c);
  OK(gmm_free(context, block, stream));
  OK(gmm_stream_destroy(context, stream));
}

static void a_resume_without_room_fails_and_a_retry_works(void) {
  gmm_context_release(context);
  gmm_context_desc desc = {.struct_size = sizeof desc, .host_memory = 96 * MIB, .host_devices = 2};
  context = NULL;
  MUST(gmm_context_create(&desc, &context));
  read_device(device);
  if (!on_host_backend()) SKIP("a real device is not filled here");
  gmm_tag tag = make_tag("waits", GMM_CONTENTS_HOST), other = make_tag("takes", GMM_CONTENTS_DROP);
  void *one = ALLOC_TAG(24 * MIB, tag), *two = ALLOC_TAG(24 * MIB, tag);
  REQUIRE(one != NULL && two != NULL);
  write_pattern(one, 24 * MIB, 1, GMM_STREAM_DEFAULT);
  write_pattern(two, 24 * MIB, 2, GMM_STREAM_DEFAULT);
  MUST(gmm_pause(context, NULL, NULL));
  void *taken = ALLOC_TAG(60 * MIB, other);
  REQUIRE(taken != NULL);
  gmm_pause_desc pause = one_tag(&tag);
  uint64_t bytes = 5;
  RESULT(gmm_resume(context, &pause, &bytes), GMM_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(bytes, 5);
  CHECK_EQUAL(query(one).state, GMM_STATE_PAUSED);
  CHECK_EQUAL(query(two).state, GMM_STATE_PAUSED);
  CHECK(pause_info(tag).backup_host_bytes >= 48 * MIB);
  OK(gmm_free(context, taken, GMM_STREAM_DEFAULT));  // the resume trims what is cached by itself
  OK(gmm_resume(context, &pause, &bytes));
  CHECK(bytes >= 48 * MIB);
  CHECK_PATTERN(one, 24 * MIB, 1);
  CHECK_PATTERN(two, 24 * MIB, 2);
}

int main(void) {
  const gmm_kind_mask vmm = 1u << GMM_KIND_VMM;
  KINDS(contents_are_kept_in_host_memory, vmm);
  KINDS(contents_are_kept_in_a_file, vmm);
  KINDS(zeros_take_no_memory, vmm);
  KINDS(the_backup_file_has_no_name, vmm);
  KINDS(queued_work_is_in_the_backup, vmm);
  KINDS(a_resume_without_room_fails_and_a_retry_works, vmm);
  return check_finish();
}
