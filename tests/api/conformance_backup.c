// SPDX-License-Identifier: Apache-2.0
// Contents that a tag keeps while its memory is paused: in host memory, in a file, and when there is no room.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "../support/second_process.h"
#include "pause_support.h"

VMM_CASE(zeros_take_no_memory) {
  if (backend_id() == GMM_BACKEND_HIP) SKIP("no kernel searches for zeros");
  gmm_tag tag = make_tag("zeros", GMM_CONTENTS_HOST);
  char *block = ALLOC_TAG(12 * MIB, tag);
  OK(gmm_fill(context, block, 0, 12 * MIB, GMM_STREAM_DEFAULT));
  write_pattern(block + 5 * MIB, 4096, 3, GMM_STREAM_DEFAULT);
  OK(gmm_pause(context, NULL, NULL));
  gmm_tag_info info = tag_info(tag);
  CHECK(info.backup_zero_bytes >= 4 * MIB);
  CHECK(info.backup_host_bytes > 0 && info.backup_host_bytes <= 8 * MIB);
  uint8_t read = 1;
  OK(gmm_backup_read(context, block + 11 * MIB, 1, &read));
  CHECK_EQUAL(read, 0);
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(block + 5 * MIB, 4096, 3);
  CHECK(is_filled(block, 5 * MIB, 0, GMM_STREAM_DEFAULT));
  CHECK(is_filled(block + 5 * MIB + 4096, 7 * MIB - 4096, 0, GMM_STREAM_DEFAULT));
}

VMM_CASE(the_backup_file_has_no_name) {
  char directory[] = "/tmp/gmm-backup-XXXXXX";
  REQUIRE(mkdtemp(directory) != NULL);
  setenv("GMM_BACKUP_DIR", directory, 1);
  gmm_context_release(context);
  context = open_context(2);
  gmm_tag tag = make_tag("kept", GMM_CONTENTS_FILE);
  void *block = FILLED_TAG(5 * MIB, tag, 1);
  OK(gmm_pause(context, NULL, NULL));
  CHECK(rmdir(directory) == 0);  // empty: no name was left there
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(block, 5 * MIB, 1);
  gmm_context_release(context);
  // The directory is gone now: a pause fails and changes nothing.
  context = open_context(2);
  tag = make_tag("kept", GMM_CONTENTS_FILE);
  block = FILLED_TAG(5 * MIB, tag, 2);
  LEAVES_BYTES(gmm_pause(context, NULL, &bytes), GMM_ERROR_IO);
  CHECK(message_has(directory));
  CHECK_EQUAL(query(block).state, GMM_STATE_ACTIVE);
  CHECK_PATTERN(block, 5 * MIB, 2);
  REQUIRE(mkdir(directory, 0700) == 0);
  OK(gmm_pause(context, NULL, NULL));
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(block, 5 * MIB, 2);
  rmdir(directory);
  unsetenv("GMM_BACKUP_DIR");
}

VMM_CASE(a_wrong_limit_in_the_environment_is_refused) {
  void *block = FILLED_TAG(MIB, make_tag("limited", GMM_CONTENTS_HOST), 1);
  setenv("GMM_BACKUP_ARENA_LIMIT", "5G", 1);
  RESULT(gmm_pause(context, NULL, NULL), GMM_ERROR_INVALID_VALUE);
  CHECK(message_has("GMM_BACKUP_ARENA_LIMIT"));
  setenv("GMM_BACKUP_ARENA_LIMIT", "2097152", 1);
  OK(gmm_pause(context, NULL, NULL));
  CHECK_EQUAL(backup_info().arena_limit, 2 * MIB);
  unsetenv("GMM_BACKUP_ARENA_LIMIT");
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(block, MIB, 1);
}

// --- A control group below the top -----------------------------------------------------------------------------------

#define GROUP_LIMIT (256 * MIB)
#define KEPT (32 * MIB)
static const char *group_folder;

static void use_of_group(uint64_t bytes) {
  char path[512];
  snprintf(path, sizeof path, "%s/groups/slurm/job/memory.current", group_folder);
  FILE *file = fopen(path, "w");
  REQUIRE(file != NULL && fprintf(file, "%llu\n", (unsigned long long)bytes) >= 0 && fclose(file) == 0);
}

// The second process: FOLDER. It sees the folder's files where the system has those of control groups.
// 77: it may not change what it sees.
static int second_main(char **words) {
  const char *const places[][2] = {{"groups", "/sys/fs/cgroup"}, {"cgroup", "/proc/self/cgroup"}};
  group_folder = words[0];
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return 77;
  for (unsigned i = 0; i < 2; ++i) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", group_folder, places[i][0]);
    if (mount(path, places[i][1], NULL, MS_BIND, NULL) != 0) return 77;
  }
  context = open_context(2);
  read_device(device);
  const gmm_tag tag = make_tag("kept", GMM_CONTENTS_HOST);
  void *block = FILLED_TAG(KEPT, tag, 3);
  for (int is_full = 1; is_full >= 0; --is_full) {
    use_of_group(is_full ? GROUP_LIMIT - 2 * MIB : 0);  // then what is left is far too little for the contents
    OK(pause_of(tag));
    const gmm_backup_info info = backup_info();
    CHECK_MESSAGE(is_full ? info.file_bytes >= KEPT - 2 * MIB && info.arena_used + info.pageable_bytes <= 2 * MIB
                          : info.file_bytes == 0,
                  "arena %llu, pageable %llu, file %llu bytes", (unsigned long long)info.arena_used,
                  (unsigned long long)info.pageable_bytes, (unsigned long long)info.file_bytes);
    use_of_group(0);
    OK(resume_of(tag));
    CHECK_PATTERN(block, KEPT, 3);
  }
  return gmm_context_release(context) == GMM_OK ? 0 : 20;
}

// Only the group of the process has a limit, as in a job of Slurm or a unit with MemoryMax=.
VMM_CASE(the_limit_of_a_group_leads_to_the_file) {
  char folder[] = "/tmp/gmm-groups-XXXXXX", command[400];
  REQUIRE(mkdtemp(folder) != NULL);
  group_folder = folder;
  snprintf(command, sizeof command,
           "cd %s && mkdir -p groups/slurm/job && echo 0::/slurm/job >cgroup && echo max >groups/slurm/memory.max && "
           "echo %llu >groups/slurm/job/memory.max",
           folder, (unsigned long long)GROUP_LIMIT);
  REQUIRE(system(command) == 0);
  use_of_group(0);
  second_process second;
  REQUIRE(second_start(&second, &group_folder, 1));
  const int code = second_wait(&second);
  snprintf(command, sizeof command, "rm -r %s", folder);
  CHECK(system(command) == 0);
  if (code == 77) SKIP("the process may not mount files over those of the system");
  CHECK_EQUAL(code, 0);
}

enum { LARGE = 5 * (int)MIB };

// The view of a block of LARGE bytes has the pattern of this seed.
static const void *view_of(int line, void *block, uint32_t seed) {
  static uint8_t expected[LARGE];
  fill_pattern(expected, LARGE, seed);
  const void *view = NULL;
  if (gmm_backup_map(context, block, LARGE, &view) != GMM_OK)
    check_failed(__FILE__, line, "no view: %s", gmm_last_error_message());
  else if (memcmp(view, expected, LARGE) != 0)
    check_failed(__FILE__, line, "the view of %p differs", block);
  return view;
}
#define VIEW(block, seed) view_of(__LINE__, block, seed)

static void resume_retaining(gmm_tag tag) {
  OK(gmm_resume(context, DESC(pause_desc, .tags = &tag, .tag_count = 1, .flags = GMM_RESUME_RETAIN), NULL));
}

VMM_CASE(a_resume_can_retain_contents) {
  gmm_tag tag = make_tag("retained", GMM_CONTENTS_HOST), file = make_tag("in a file", GMM_CONTENTS_FILE);
  void *block = FILLED_TAG(LARGE, tag, 1), *neighbour = FILLED_TAG(LARGE, tag, 2), *small = FILLED_TAG(1000, tag, 3),
       *filed = FILLED_TAG(LARGE, file, 4);
  const void *view = NULL;
  RESULT(gmm_pause(context, DESC(pause_desc, .flags = GMM_RESUME_RETAIN), NULL), GMM_ERROR_INVALID_FLAGS);
  MUST(gmm_pause(context, NULL, NULL));
  const void *first = VIEW(block, 1);
  resume_retaining(tag);
  resume_retaining(file);
  CHECK_EQUAL(query(block).state, GMM_STATE_ACTIVE);
  CHECK(VIEW(block, 1) == first);
  VIEW(neighbour, 2);  // it had no view before the resume
  RESULT(gmm_backup_map(context, filed, LARGE, &view), GMM_ERROR_INVALID_VALUE);
  RESULT(gmm_backup_map(context, small, 1000, &view), GMM_ERROR_INVALID_VALUE);
  CHECK(tag_info(tag).backup_active_bytes >= 2 * (uint64_t)LARGE);

  // The contents are those of the last pause, at the same place.
  write_pattern(block, LARGE, 5, GMM_STREAM_DEFAULT);
  CHECK(VIEW(block, 1) == first);
  MUST(gmm_pause(context, NULL, NULL));
  CHECK(VIEW(block, 5) == first);
  resume_retaining(tag);
  CHECK(VIEW(block, 5) == first);
  CHECK_PATTERN(block, LARGE, 5);
  write_pattern(block, LARGE, 6, GMM_STREAM_DEFAULT);
  MUST(gmm_pause(context, NULL, NULL));
  resume_retaining(tag);  // nobody asked while it was paused
  CHECK(VIEW(block, 6) == first);
  uint8_t byte = 0;
  OK(gmm_backup_read(context, neighbour, 1, &byte));

  // A free ends what is retained of its block, and of no other.
  FREE(block);
  void *later = FILLED_TAG(LARGE, tag, 7);
  RESULT(gmm_backup_map(context, later, LARGE, &view), GMM_ERROR_INVALID_VALUE);
  VIEW(neighbour, 2);
  MUST(gmm_pause(context, NULL, NULL));
  VIEW(later, 7);
  OK(gmm_resume(context, NULL, NULL));
  RESULT(gmm_backup_map(context, later, LARGE, &view), GMM_ERROR_INVALID_VALUE);
  RESULT(gmm_backup_map(context, neighbour, LARGE, &view), GMM_ERROR_INVALID_VALUE);
  CHECK_EQUAL(tag_info(tag).backup_active_bytes, 0);
  CHECK_PATTERN(later, LARGE, 7);
  CHECK_PATTERN(neighbour, LARGE, 2);
  CHECK_PATTERN(small, 1000, 3);
  CHECK_PATTERN(filed, LARGE, 4);
}

// A resume retains contents of memory that the program may write. They never stand for its later contents.
VMM_CASE(retained_contents_are_not_those_of_a_read_only_tag) {
  gmm_tag tag = make_tag("later read-only", GMM_CONTENTS_HOST);
  void *block = ALLOC_TAG(LARGE, tag);
  gmm_tag_desc settings = {.struct_size = sizeof settings, .contents = GMM_CONTENTS_HOST};
  for (uint32_t seed = 1; seed < 4; ++seed) {
    write_pattern(block, LARGE, seed, GMM_STREAM_DEFAULT);
    MUST(gmm_pause(context, NULL, NULL));
    resume_retaining(tag);
    CHECK_PATTERN(block, LARGE, seed);
    VIEW(block, seed);
    write_pattern(block, LARGE, 10 + seed, GMM_STREAM_DEFAULT);
    settings.flags = GMM_TAG_READ_ONLY;
    OK(gmm_tag_configure(context, tag, &settings));
    for (unsigned round = 0; round < 2; ++round) {
      MUST(gmm_pause(context, NULL, NULL));
      VIEW(block, 10 + seed);
      if (round == 0)
        resume_retaining(tag);
      else
        OK(gmm_resume(context, NULL, NULL));
      CHECK_PATTERN(block, LARGE, 10 + seed);
    }
    settings.flags = 0;
    OK(gmm_tag_configure(context, tag, &settings));
  }
}

VMM_CASE(pageable_contents_lock_no_memory) {
  gmm_tag tag = make_tag_of("pageable", GMM_CONTENTS_HOST, GMM_TAG_PAGEABLE);
  CHECK_EQUAL(tag_info(tag).flags, GMM_TAG_PAGEABLE);
  void *block = FILLED_TAG(LARGE, tag, 1);
  const uint64_t before = backup_info().arena_bytes;
  OK(gmm_pause(context, NULL, NULL));
  CHECK_EQUAL(backup_info().arena_bytes, before);
  CHECK(backup_info().pageable_bytes >= LARGE);
  CHECK_EQUAL(tag_info(tag).backup_pinned_bytes, 0);
  OK(gmm_resume(context, NULL, NULL));
  CHECK_EQUAL(backup_info().pageable_bytes, 0);
  CHECK_PATTERN(block, LARGE, 1);
}

// The files in a directory, and their bytes.
static unsigned files_in(const char *directory, uint64_t *bytes) {
  unsigned count = 0;
  *bytes = 0;
  DIR *opened = opendir(directory);
  if (opened == NULL) return 0;
  for (const struct dirent *entry; (entry = readdir(opened)) != NULL;) {
    char path[600];
    struct stat state;
    snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
    if (entry->d_name[0] == '.' || stat(path, &state) != 0) continue;
    ++count;
    *bytes += (uint64_t)state.st_size;
  }
  closedir(opened);
  return count;
}

VMM_CASE(backup_files_can_have_names) {
  enum { COUNT = 3, MANY = 60, SIZE = 200000 };
  char directory[] = "/tmp/gmm-named-XXXXXX", other[] = "/tmp/gmm-named-XXXXXX";
  REQUIRE(mkdtemp(directory) != NULL && mkdtemp(other) != NULL);
  gmm_backup_desc desc = {.struct_size = sizeof desc, .flags = GMM_BACKUP_NAMED_FILES, .directory = directory};
  OK(gmm_backup_configure(context, &desc));
  gmm_tag tag = make_tag("named", GMM_CONTENTS_FILE);
  void *few[COUNT], *many[MANY];
  for (unsigned i = 0; i < COUNT; ++i) few[i] = FILLED_TAG(LARGE, tag, i);
  uint64_t bytes = 0, first = 0;
  for (unsigned cycle = 0; cycle < 3; ++cycle) {
    MUST(gmm_pause(context, NULL, NULL));
    CHECK_EQUAL(files_in(directory, &bytes), COUNT);
    if (cycle == 0) first = bytes;
    CHECK(first >= COUNT * (uint64_t)LARGE);
    CHECK_EQUAL(bytes, first);
    OK(gmm_resume(context, NULL, NULL));
    for (unsigned i = 0; i < COUNT; ++i) CHECK_PATTERN(few[i], LARGE, i);
  }
  // More blocks than files.
  for (unsigned i = 0; i < MANY; ++i) many[i] = FILLED_TAG(SIZE, tag, 100 + i);
  for (unsigned cycle = 0; cycle < 2; ++cycle) {
    MUST(gmm_pause(context, NULL, NULL));
    CHECK_EQUAL(files_in(directory, &bytes), 48);
    if (cycle == 0) first = bytes;
    CHECK_EQUAL(bytes, first);
    OK(gmm_resume(context, NULL, NULL));
    for (unsigned i = 0; i < MANY; ++i) CHECK_PATTERN(many[i], SIZE, 100 + i);
  }
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(files_in(directory, &bytes), 0);
  // Contents stay in the first directory, and its files go with them.
  MUST(gmm_pause(context, NULL, NULL));
  desc.directory = other;
  OK(gmm_backup_configure(context, &desc));
  OK(gmm_resume(context, NULL, NULL));
  MUST(gmm_pause(context, NULL, NULL));
  CHECK_EQUAL(files_in(directory, &bytes), 0);
  CHECK_EQUAL(files_in(other, &bytes), 48);
  OK(gmm_resume(context, NULL, NULL));
  for (unsigned i = 0; i < MANY; ++i) CHECK_PATTERN(many[i], SIZE, 100 + i);
  MUST(gmm_context_release(context));
  CHECK_EQUAL(files_in(other, &bytes), 0);
  CHECK(rmdir(directory) == 0 && rmdir(other) == 0);
  context = open_context(2);
}

int main(int count, char **words) { return run_cases_or(second_main, count, words); }
