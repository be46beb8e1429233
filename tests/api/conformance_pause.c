// SPDX-License-Identifier: Apache-2.0
// pause.h: tags, and memory that goes while its address stays.
#include <dirent.h>
#include <sys/stat.h>

#include "../support/gmm_test.h"

#define BIG (64 * MIB)

static gmm_pause_desc one_tag(const gmm_tag *tag) { return (gmm_pause_desc){.struct_size = sizeof(gmm_pause_desc), .tags = tag, .tag_count = 1}; }

static gmm_pause_info pause_info(gmm_tag tag) {
  gmm_pause_info info = {.struct_size = sizeof info};
  OK(gmm_pause_query(context, tag, &info));
  return info;
}

// Resident pages of this process that belong to files and shared memory: what the host backend maps, without what malloc holds.
static uint64_t resident_shared(void) {
  unsigned long long total = 0, resident = 0, shared = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file == NULL || fscanf(file, "%llu %llu %llu", &total, &resident, &shared) != 3) shared = 0;
  if (file != NULL) fclose(file);
  return shared * (uint64_t)sysconf(_SC_PAGESIZE);
}

// Bytes that the memory files of this process really hold: unmapping alone would not give them back.
static uint64_t memory_file_bytes(void) {
  uint64_t sum = 0;
  DIR *directory = opendir("/proc/self/fd");
  if (directory == NULL) return 0;
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    char path[320], target[256];
    snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0) continue;
    target[length] = 0;
    struct stat status;
    if (strstr(target, "memfd:") != NULL && stat(path, &status) == 0) sum += (uint64_t)status.st_blocks * 512;
  }
  closedir(directory);
  return sum;
}

static void pausing_gives_the_memory_back(void) {
  gmm_tag tag = make_tag("big", GMM_CONTENTS_DROP);
  char *block = ALLOC_TAG(BIG, tag);
  REQUIRE(block != NULL);
  write_pattern(block, BIG, 1, GMM_STREAM_DEFAULT);
  uint64_t resident = resident_shared(), files = memory_file_bytes(), on_device = free_device_bytes();
  uint64_t generation = query(block).generation;
  gmm_statistics before = stats();
  uint64_t bytes = 0;
  gmm_pause_desc desc = one_tag(&tag);
  MUST(gmm_pause(context, &desc, &bytes));
  CHECK(bytes >= BIG);
  uint64_t resident_now = resident_shared(), files_now = memory_file_bytes(), on_device_now = free_device_bytes();
  CHECK_MESSAGE(on_device_now >= on_device + BIG * 9 / 10 || !on_host_backend(), "free memory of the device: %llu before, %llu paused", (unsigned long long)on_device, (unsigned long long)on_device_now);
  if (on_host_backend()) {
    CHECK_MESSAGE(resident >= resident_now + BIG * 9 / 10, "resident: %llu before, %llu paused", (unsigned long long)resident, (unsigned long long)resident_now);
    CHECK_MESSAGE(files >= files_now + BIG * 9 / 10, "memory files hold %llu before, %llu paused", (unsigned long long)files, (unsigned long long)files_now);
  } else {
    CHECK_MESSAGE(on_device_now >= on_device + BIG / 2, "free memory of the device: %llu before, %llu paused", (unsigned long long)on_device, (unsigned long long)on_device_now);
  }
  gmm_pointer_info info = query(block + 12345);
  CHECK_EQUAL(info.state, GMM_STATE_PAUSED);
  CHECK(info.base == block);
  CHECK_EQUAL(info.size, BIG);
  CHECK_EQUAL(info.tag, tag);
  gmm_statistics paused = stats();
  CHECK(paused.paused_bytes >= BIG);
  CHECK_EQUAL(paused.live_bytes, before.live_bytes);
  CHECK_EQUAL(paused.live_blocks, before.live_blocks);
  CHECK(paused.reserved_bytes + BIG <= before.reserved_bytes);
  uint64_t back = 0;
  MUST(gmm_resume(context, &desc, &back));
  CHECK_EQUAL(back, bytes);
  info = query(block + 12345);
  CHECK_EQUAL(info.state, GMM_STATE_ACTIVE);
  CHECK(info.base == block);
  CHECK(info.generation > generation);
  CHECK_EQUAL(stats().paused_bytes, 0);
  CHECK_EQUAL(stats().reserved_bytes, before.reserved_bytes);
  write_pattern(block, BIG, 2, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(block, BIG, 2);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

#define BLOCKS 40
static void *blocks[BLOCKS];
static uint64_t block_size(unsigned i) { return i < 30 ? 100 + i * 3000 : i < 36 ? 100000 + i * 50000 : 3000000 + i * 100001; }
static void allocate_blocks(gmm_tag tag, uint32_t seed) {
  for (unsigned i = 0; i < BLOCKS; ++i) {
    blocks[i] = ALLOC_TAG(block_size(i), tag);
    REQUIRE(blocks[i] != NULL);
    write_pattern(blocks[i], block_size(i), seed + i, GMM_STREAM_DEFAULT);
  }
}
static void check_blocks(uint32_t seed) {
  for (unsigned i = 0; i < BLOCKS; ++i)
    if (blocks[i] != NULL) CHECK_PATTERN(blocks[i], block_size(i), seed + i);
}
static void free_blocks(void) {
  for (unsigned i = 0; i < BLOCKS; ++i) {
    OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
    blocks[i] = NULL;
  }
}

static void contents_are_kept(gmm_contents contents) {
  gmm_tag tag = make_tag("kept", contents);
  allocate_blocks(tag, 100);
  gmm_pause_desc desc = one_tag(&tag);
  for (unsigned round = 0; round < 3; ++round) {
    uint64_t bytes = 0;
    MUST(gmm_pause(context, &desc, &bytes));
    CHECK(bytes > 0);
    gmm_pause_info info = pause_info(tag);
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

static void dropped_memory_is_usable_again(void) {
  gmm_tag tag = make_tag("dropped", GMM_CONTENTS_DROP);
  allocate_blocks(tag, 200);
  gmm_pause_desc desc = one_tag(&tag);
  OK(gmm_pause(context, &desc, NULL));
  gmm_pause_info info = pause_info(tag);
  CHECK_EQUAL(info.backup_host_bytes, 0);
  CHECK_EQUAL(info.backup_file_bytes, 0);
  OK(gmm_resume(context, &desc, NULL));
  for (unsigned i = 0; i < BLOCKS; ++i) write_pattern(blocks[i], block_size(i), 300 + i, GMM_STREAM_DEFAULT);
  check_blocks(300);
  free_blocks();
}

static void a_paused_tag_still_allocates(void) {
  gmm_tag tag = make_tag("going on", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 10);
  gmm_pause_desc desc = one_tag(&tag);
  MUST(gmm_pause(context, &desc, NULL));
  void *fresh[20];
  for (unsigned i = 0; i < 20; ++i) {
    fresh[i] = ALLOC_TAG(block_size(i * 2), tag);
    REQUIRE(fresh[i] != NULL);
    CHECK_EQUAL(query(fresh[i]).state, GMM_STATE_ACTIVE);
    write_pattern(fresh[i], block_size(i * 2), 900 + i, GMM_STREAM_DEFAULT);
  }
  CHECK(pause_info(tag).active_bytes > 0 && pause_info(tag).paused_bytes > 0);
  uint64_t bytes = 0;
  OK(gmm_pause(context, &desc, &bytes));  // what came since
  CHECK(bytes > 0);
  CHECK_EQUAL(query(fresh[0]).state, GMM_STATE_PAUSED);
  OK(gmm_resume(context, &desc, NULL));
  check_blocks(10);
  for (unsigned i = 0; i < 20; ++i) {
    CHECK_PATTERN(fresh[i], block_size(i * 2), 900 + i);
    OK(gmm_free(context, fresh[i], GMM_STREAM_DEFAULT));
  }
  free_blocks();
}

static void cached_memory_of_a_paused_tag_is_not_given_out(void) {
  gmm_tag tag = make_tag("cached", GMM_CONTENTS_HOST);
  void *keep = ALLOC_TAG(1000, tag);
  for (unsigned i = 0; i < 200; ++i) {
    void *block = ALLOC_TAG(1000 + i, tag);
    OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  }
  write_pattern(keep, 1000, 4, GMM_STREAM_DEFAULT);
  gmm_pause_desc desc = one_tag(&tag);
  OK(gmm_pause(context, &desc, NULL));
  for (unsigned i = 0; i < 200; ++i) {
    void *block = ALLOC_TAG(1000 + i, tag);
    REQUIRE(block != NULL);
    CHECK_EQUAL(query(block).state, GMM_STATE_ACTIVE);
    write_pattern(block, 1000, i, GMM_STREAM_DEFAULT);
    if (i % 2) OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  }
  OK(gmm_resume(context, &desc, NULL));
  CHECK_PATTERN(keep, 1000, 4);
}

static void paused_memory_may_be_freed(void) {
  gmm_tag tag = make_tag("freed", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 50);
  gmm_pause_desc desc = one_tag(&tag);
  MUST(gmm_pause(context, &desc, NULL));
  for (unsigned i = 0; i < BLOCKS; i += 2) {
    OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
    RESULT(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT), GMM_ERROR_ALREADY_FREED);
    blocks[i] = NULL;
  }
  OK(gmm_resume(context, &desc, NULL));
  check_blocks(50);
  MUST(gmm_pause(context, &desc, NULL));
  free_blocks();
  CHECK_EQUAL(stats_of(GMM_SCOPE_TAG, 0, tag, 0).live_blocks, 0);
  gmm_result result = gmm_resume(context, &desc, NULL);
  CHECK_MESSAGE(result == GMM_OK || result == GMM_UNCHANGED, "%s: %s", gmm_result_name(result), gmm_last_error_message());
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(stats().reserved_bytes, 0);
  CHECK_EQUAL(stats().paused_bytes, 0);
}

static void paused_memory_is_refused_everywhere(void) {
  gmm_tag tag = make_tag("refused", GMM_CONTENTS_HOST);
  char *block = ALLOC_TAG(100000, tag);
  write_pattern(block, 100000, 1, GMM_STREAM_DEFAULT);
  OK(gmm_pause(context, NULL, NULL));
  char bytes[100];
  gmm_ipc_handle handle;
  int32_t fd = -1;
  RESULT(gmm_copy(context, block, bytes, 100, GMM_STREAM_DEFAULT), GMM_ERROR_PAUSED);
  RESULT(gmm_copy(context, bytes, block + 5000, 100, GMM_STREAM_DEFAULT), GMM_ERROR_PAUSED);
  RESULT(gmm_fill(context, block, 0, 100, GMM_STREAM_DEFAULT), GMM_ERROR_PAUSED);
  RESULT(gmm_ipc_export(context, block, &handle), GMM_ERROR_PAUSED);
  RESULT(gmm_ipc_export_fd(context, block, &fd, NULL, NULL), GMM_ERROR_PAUSED);
  CHECK_EQUAL(fd, -1);
  CHECK(strstr(gmm_last_error_message(), "resume") != NULL);
  CHECK((query(block).flags & GMM_POINTER_HOST_ACCESSIBLE) == 0 || !"paused memory is not accessible");
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(block, 100000, 1);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void a_second_pause_changes_nothing(void) {
  gmm_tag tag = make_tag("twice", GMM_CONTENTS_HOST);
  gmm_pause_desc desc = one_tag(&tag);
  uint64_t bytes = 5;
  RESULT(gmm_resume(context, &desc, &bytes), GMM_UNCHANGED);
  CHECK_EQUAL(bytes, 0);
  bytes = 5;
  RESULT(gmm_pause(context, &desc, &bytes), GMM_UNCHANGED);  // nothing there
  CHECK_EQUAL(bytes, 0);
  void *block = ALLOC_TAG(100000, tag);
  write_pattern(block, 100000, 1, GMM_STREAM_DEFAULT);
  bytes = 5;
  RESULT(gmm_resume(context, &desc, &bytes), GMM_UNCHANGED);
  CHECK_EQUAL(bytes, 0);
  OK(gmm_pause(context, &desc, NULL));
  bytes = 5;
  RESULT(gmm_pause(context, &desc, &bytes), GMM_UNCHANGED);
  CHECK_EQUAL(bytes, 0);
  OK(gmm_resume(context, &desc, NULL));
  bytes = 5;
  RESULT(gmm_resume(context, &desc, &bytes), GMM_UNCHANGED);
  CHECK_EQUAL(bytes, 0);
  CHECK_PATTERN(block, 100000, 1);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void other_tags_and_kinds_stay(void) {
  gmm_tag tag = make_tag("a", GMM_CONTENTS_HOST), other = make_tag("b", GMM_CONTENTS_HOST);
  void *paused = ALLOC_TAG(100000, tag), *stays = ALLOC_TAG(100000, other), *plain = ALLOC(100000), *kinds[5] = {0};
  for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_MANAGED; ++k) {
    if (k == GMM_KIND_VMM || !has_kind(k)) continue;
    gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = k, .device = device, .tag = tag};
    MUST(gmm_alloc(context, 100000, &desc, &kinds[k]));
    write_pattern(kinds[k], 100000, k, GMM_STREAM_DEFAULT);
  }
  write_pattern(paused, 100000, 11, GMM_STREAM_DEFAULT);
  write_pattern(stays, 100000, 12, GMM_STREAM_DEFAULT);
  write_pattern(plain, 100000, 13, GMM_STREAM_DEFAULT);
  gmm_pause_desc desc = one_tag(&tag);
  OK(gmm_pause(context, &desc, NULL));
  CHECK_EQUAL(query(paused).state, GMM_STATE_PAUSED);
  CHECK_EQUAL(query(stays).state, GMM_STATE_ACTIVE);
  CHECK_PATTERN(stays, 100000, 12);
  CHECK_PATTERN(plain, 100000, 13);
  for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_MANAGED; ++k)
    if (kinds[k] != NULL) CHECK_PATTERN(kinds[k], 100000, k);
  const gmm_tag both[] = {tag, other};
  gmm_pause_desc list = {.struct_size = sizeof list, .tags = both, .tag_count = 2};
  OK(gmm_pause(context, &list, NULL));
  CHECK_EQUAL(query(stays).state, GMM_STATE_PAUSED);
  CHECK_EQUAL(query(plain).state, GMM_STATE_ACTIVE);
  OK(gmm_resume(context, NULL, NULL));  // every tag
  CHECK_PATTERN(paused, 100000, 11);
  CHECK_PATTERN(stays, 100000, 12);
  OK(gmm_pause(context, NULL, NULL));  // the default tag too, which drops
  CHECK_EQUAL(query(plain).state, GMM_STATE_PAUSED);
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(paused, 100000, 11);
}

static void bad_pauses_are_refused(void) {
  gmm_tag tag = make_tag("bad", GMM_CONTENTS_HOST);
  void *block = ALLOC_TAG(100000, tag);
  write_pattern(block, 100000, 3, GMM_STREAM_DEFAULT);
  const gmm_tag tags[] = {tag, 3999};
  gmm_pause_desc desc = {.struct_size = sizeof desc, .tags = tags, .tag_count = 2};
  uint64_t bytes = 9;
  RESULT(gmm_pause(context, &desc, &bytes), GMM_ERROR_INVALID_TAG);
  CHECK(strstr(gmm_last_error_message(), "3999") != NULL);
  CHECK_EQUAL(query(block).state, GMM_STATE_ACTIVE);
  desc.tags = NULL;
  RESULT(gmm_pause(context, &desc, &bytes), GMM_ERROR_NULL_ARGUMENT);
  RESULT(gmm_resume(context, &desc, &bytes), GMM_ERROR_NULL_ARGUMENT);
  desc.tags = &tag;
  desc.tag_count = 1;
  desc.flags = 0x40;
  RESULT(gmm_pause(context, &desc, &bytes), GMM_ERROR_INVALID_FLAGS);
  desc.flags = GMM_PAUSE_FORCE;
  RESULT(gmm_resume(context, &desc, &bytes), GMM_ERROR_INVALID_FLAGS);
  desc.flags = 0;
  desc.reserved = 1;
  RESULT(gmm_pause(context, &desc, &bytes), GMM_ERROR_INVALID_DESCRIPTOR);
  CHECK_EQUAL(bytes, 9);
  CHECK_PATTERN(block, 100000, 3);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void queued_work_is_in_the_backup(void) {
  gmm_tag tag = make_tag("queued", GMM_CONTENTS_HOST);
  gmm_stream stream = 0;
  MUST(gmm_stream_create(context, device, &stream));
  gmm_alloc_desc alloc = alloc_desc();
  alloc.tag = tag;
  alloc.stream = stream;
  void *block = NULL;
  MUST(gmm_alloc(context, 100000, &alloc, &block));
  gate hold;
  gate_close(&hold, stream, 0.3);
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

static void higher_priorities_resume_first(void) {
  gmm_tag_desc low = {.struct_size = sizeof low, .contents = GMM_CONTENTS_HOST, .priority = -5}, high = low;
  high.priority = 9;
  gmm_tag first = 0, second = 0;
  OK(gmm_tag_create(context, "low", &low, &first));
  OK(gmm_tag_create(context, "high", &high, &second));
  CHECK_EQUAL(pause_info(first).priority, -5);
  CHECK_EQUAL(pause_info(second).priority, 9);
  void *one = ALLOC_TAG(100000, first), *two = ALLOC_TAG(100000, second);
  write_pattern(one, 100000, 1, GMM_STREAM_DEFAULT);
  write_pattern(two, 100000, 2, GMM_STREAM_DEFAULT);
  OK(gmm_pause(context, NULL, NULL));
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(one, 100000, 1);
  CHECK_PATTERN(two, 100000, 2);
}

// --- tags ------------------------------------------------------------------------------------------------------
static gmm_tag tag_of_alloc(void) {
  void *block = ALLOC(1000);
  gmm_tag tag = query(block).tag;
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  return tag;
}

static void names_find_tags(void) {
  gmm_tag tag = 0, again = 0, found = 0;
  gmm_tag_desc desc = {.struct_size = sizeof desc, .contents = GMM_CONTENTS_FILE, .priority = 3};
  OK(gmm_tag_create(context, "model", &desc, &tag));
  CHECK(tag != GMM_TAG_CURRENT && tag != GMM_TAG_DEFAULT);
  OK(gmm_tag_create(context, "model", NULL, &again));
  CHECK_EQUAL(again, tag);
  OK(gmm_tag_create(context, "model", &desc, &again));
  CHECK_EQUAL(again, tag);
  OK(gmm_tag_find(context, "model", &found));
  CHECK_EQUAL(found, tag);
  again = 77;
  desc.contents = GMM_CONTENTS_HOST;
  RESULT(gmm_tag_create(context, "model", &desc, &again), GMM_ERROR_INVALID_VALUE);
  desc.contents = GMM_CONTENTS_FILE;
  desc.priority = 4;
  RESULT(gmm_tag_create(context, "model", &desc, &again), GMM_ERROR_INVALID_VALUE);
  RESULT(gmm_tag_create(context, "", NULL, &again), GMM_ERROR_INVALID_VALUE);
  char name[65];
  memset(name, 'x', 64);
  name[64] = 0;
  RESULT(gmm_tag_create(context, name, NULL, &again), GMM_ERROR_INVALID_VALUE);
  desc.contents = 9;
  RESULT(gmm_tag_create(context, "odd", &desc, &again), GMM_ERROR_INVALID_VALUE);
  RESULT(gmm_tag_find(context, "nobody", &again), GMM_ERROR_INVALID_TAG);
  CHECK(strstr(gmm_last_error_message(), "nobody") != NULL);
  CHECK_EQUAL(again, 77);
  name[63] = 0;
  OK(gmm_tag_create(context, name, NULL, &tag));
  CHECK(strcmp(pause_info(tag).name, name) == 0);
  char given[] = "copied";
  OK(gmm_tag_create(context, given, NULL, &tag));
  memset(given, 'z', 6);
  CHECK(strcmp(pause_info(tag).name, "copied") == 0);
  RESULT(gmm_tag_push(context, 3998), GMM_ERROR_INVALID_TAG);
  gmm_pause_info info = {.struct_size = sizeof info};
  RESULT(gmm_pause_query(context, 3998, &info), GMM_ERROR_INVALID_TAG);
  OK(gmm_pause_query(context, GMM_TAG_DEFAULT, &info));
  CHECK_EQUAL(info.tag, GMM_TAG_DEFAULT);
}

static gmm_tag seen_by_thread[3];
static void *thread_with_own_tags(void *tag) {
  seen_by_thread[0] = tag_of_alloc();
  OK(gmm_tag_push(context, *(gmm_tag *)tag));
  seen_by_thread[1] = tag_of_alloc();
  OK(gmm_tag_pop(context));
  RESULT(gmm_tag_pop(context), GMM_ERROR_UNBALANCED);
  seen_by_thread[2] = tag_of_alloc();
  return NULL;
}

static void tags_nest_for_each_thread(void) {
  gmm_tag a = make_tag("a", GMM_CONTENTS_DROP), b = make_tag("b", GMM_CONTENTS_DROP), c = make_tag("c", GMM_CONTENTS_DROP);
  CHECK_EQUAL(tag_of_alloc(), GMM_TAG_DEFAULT);
  RESULT(gmm_tag_pop(context), GMM_ERROR_UNBALANCED);
  OK(gmm_tag_push(context, a));
  CHECK_EQUAL(tag_of_alloc(), a);
  OK(gmm_tag_push(context, b));
  CHECK_EQUAL(tag_of_alloc(), b);
  void *named = ALLOC_TAG(1000, c);
  CHECK_EQUAL(query(named).tag, c);  // named in the descriptor
  OK(gmm_free(context, named, GMM_STREAM_DEFAULT));
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, thread_with_own_tags, &c) == 0);
  pthread_join(thread, NULL);
  CHECK_EQUAL(seen_by_thread[0], GMM_TAG_DEFAULT);
  CHECK_EQUAL(seen_by_thread[1], c);
  CHECK_EQUAL(seen_by_thread[2], GMM_TAG_DEFAULT);
  CHECK_EQUAL(tag_of_alloc(), b);
  OK(gmm_tag_push(context, GMM_TAG_DEFAULT));
  CHECK_EQUAL(tag_of_alloc(), GMM_TAG_DEFAULT);
  OK(gmm_tag_pop(context));
  OK(gmm_tag_pop(context));
  CHECK_EQUAL(tag_of_alloc(), a);
  OK(gmm_tag_pop(context));
  CHECK_EQUAL(tag_of_alloc(), GMM_TAG_DEFAULT);
  for (unsigned i = 0; i < 64; ++i) OK(gmm_tag_push(context, i % 2 ? a : b));
  RESULT(gmm_tag_push(context, c), GMM_ERROR_UNBALANCED);
  CHECK_EQUAL(tag_of_alloc(), a);
  for (unsigned i = 0; i < 64; ++i) OK(gmm_tag_pop(context));
  RESULT(gmm_tag_pop(context), GMM_ERROR_UNBALANCED);
}

static void pushes_belong_to_their_context(void) {
  gmm_tag a = make_tag("a", GMM_CONTENTS_DROP);
  OK(gmm_tag_push(context, a));
  gmm_context *mine = context;
  context = open_context(1);
  CHECK_EQUAL(tag_of_alloc(), GMM_TAG_DEFAULT);
  RESULT(gmm_tag_pop(context), GMM_ERROR_UNBALANCED);
  gmm_context_release(context);
  context = mine;
  CHECK_EQUAL(tag_of_alloc(), a);
  OK(gmm_tag_pop(context));
}

static void the_process_default_reaches_threads(void) {
  gmm_tag a = make_tag("region", GMM_CONTENTS_DROP), c = make_tag("c", GMM_CONTENTS_DROP);
  OK(gmm_tag_set_process_default(context, a));
  CHECK_EQUAL(tag_of_alloc(), a);
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, thread_with_own_tags, &c) == 0);
  pthread_join(thread, NULL);
  CHECK_EQUAL(seen_by_thread[0], a);
  CHECK_EQUAL(seen_by_thread[1], c);
  CHECK_EQUAL(seen_by_thread[2], a);
  OK(gmm_tag_push(context, c));
  CHECK_EQUAL(tag_of_alloc(), c);
  OK(gmm_tag_pop(context));
  RESULT(gmm_tag_set_process_default(context, 3997), GMM_ERROR_INVALID_TAG);
  CHECK_EQUAL(tag_of_alloc(), a);
  OK(gmm_tag_set_process_default(context, GMM_TAG_DEFAULT));
  CHECK_EQUAL(tag_of_alloc(), GMM_TAG_DEFAULT);
}

static void many_tags_are_made(void) {
  gmm_tag last = 0;
  gmm_result result = GMM_OK;
  unsigned made = 0;
  for (; made < 4500; ++made) {
    char name[32];
    snprintf(name, sizeof name, "tag %u", made);
    if ((result = gmm_tag_create(context, name, NULL, &last)) != GMM_OK) break;
  }
  CHECK_EQUAL(result, GMM_ERROR_NOT_SUPPORTED);
  CHECK_MESSAGE(made >= 3990 && made <= 4096, "%u tags were made", made);
  gmm_tag found = 0;
  OK(gmm_tag_find(context, "tag 3000", &found));
  void *block = ALLOC_TAG(1000, found);
  CHECK_EQUAL(query(block).tag, found);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

int main(void) {
  const gmm_kind_mask vmm = 1u << GMM_KIND_VMM;
  KINDS(pausing_gives_the_memory_back, vmm);
  KINDS(contents_are_kept_in_host_memory, vmm);
  KINDS(contents_are_kept_in_a_file, vmm);
  KINDS(the_backup_file_has_no_name, vmm);
  KINDS(dropped_memory_is_usable_again, vmm);
  KINDS(a_paused_tag_still_allocates, vmm);
  KINDS(cached_memory_of_a_paused_tag_is_not_given_out, vmm);
  KINDS(paused_memory_may_be_freed, vmm);
  KINDS(paused_memory_is_refused_everywhere, vmm);
  KINDS(a_second_pause_changes_nothing, vmm);
  KINDS(other_tags_and_kinds_stay, vmm);
  KINDS(bad_pauses_are_refused, vmm);
  KINDS(queued_work_is_in_the_backup, vmm);
  KINDS(a_resume_without_room_fails_and_a_retry_works, vmm);
  KINDS(higher_priorities_resume_first, vmm);
  PLAIN(names_find_tags);
  PLAIN(tags_nest_for_each_thread);
  PLAIN(pushes_belong_to_their_context);
  PLAIN(the_process_default_reaches_threads);
  PLAIN(many_tags_are_made);
  return check_finish();
}
