// SPDX-License-Identifier: Apache-2.0
// Faults of pause and resume: failures while a failure is undone, and damage to kept contents.
#include <fcntl.h>
#include <sys/stat.h>

#include "fault_support.h"

#define PIECES 4
#define PIECE (2 * MIB)
static char *pieces[PIECES];
static uint64_t written = PIECE;  // of each piece: a test that only asks for states and orders writes less

// Each has an extent of its own.
static void allocate_pieces(gmm_tag tag, uint32_t seed) {
  for (unsigned i = 0; i < PIECES; ++i) {
    pieces[i] = alloc_here(__LINE__, PIECE, tag, GMM_STREAM_DEFAULT, GMM_ALLOC_DEDICATED);
    write_pattern(pieces[i], written, seed + i, GMM_STREAM_DEFAULT);
  }
}
static void check_pieces(uint32_t seed) {
  for (unsigned i = 0; i < PIECES; ++i) CHECK_PATTERN(pieces[i], written, seed + i);
}
static void free_pieces(void) {
  for (unsigned i = 0; i < PIECES; ++i) FREE(pieces[i]);
}

// The driver fails, and fails again while that is undone: whatever the state is then, a resume makes it whole.
typedef struct fault {
  gmm_tag tag;
  bool keeps, pausing;
  const char *first, *undoing;  // the entries that fail
  unsigned k, j;                // at their calls with these numbers
} fault;
static unsigned failed, refused;
static void pause_or_resume_twice_failing(const fault *of) {
  allocate_pieces(of->tag, 40);
  if (!of->pausing) MUST(gmm_pause(context, NULL, NULL));
  fake.fail(of->first, of->k, 999);
  fake.fail(of->undoing, of->j + (strcmp(of->first, of->undoing) == 0 ? of->k : 0), 999);
  const gmm_result result = (of->pausing ? gmm_pause : gmm_resume)(context, NULL, NULL);
  fake.fail(NULL, 0, 0);
  fake.fail(of->first, 0, 0);
  fake.fail(of->undoing, 0, 0);
  failed += result < 0;
  // Memory that holds what nobody has kept is not paused again.
  bool away = false;
  for (unsigned i = 0; i < PIECES; ++i) away = away || state_of(pieces[i]) != GMM_STATE_ACTIVE;
  if (of->pausing && result < 0 && away) {
    RESULT(gmm_pause(context, NULL, NULL), GMM_ERROR_BUSY);
    ++refused;
  }
  const gmm_result back = gmm_resume(context, NULL, NULL);
  CHECK_MESSAGE(back >= 0, "%s: %s", gmm_result_name(back), gmm_last_error_message());
  for (unsigned i = 0; i < PIECES; ++i) CHECK_EQUAL(state_of(pieces[i]), GMM_STATE_ACTIVE);
  if (of->keeps || (of->pausing && result < 0)) check_pieces(40);
  for (unsigned i = 0; i < PIECES; ++i) write_pattern(pieces[i], written, 50 + i, GMM_STREAM_DEFAULT);
  OK(gmm_pause(context, NULL, NULL));
  CHECK_EQUAL(stats().reserved_bytes, 0);
  OK(gmm_resume(context, NULL, NULL));
  if (of->keeps) check_pieces(50);
  free_pieces();
  fake_cuda_live_t live;
  fake.live(&live);
  if (live.handles + live.mappings != 0) OK(gmm_trim(context, NULL, NULL));  // offers the driver again what it refused
  fake.live(&live);
  CHECK_EQUAL(live.handles, 0);
  CHECK_EQUAL(live.mappings, 0);
  CHECK_EQUAL(live.device_bytes, 0);
}

VMM_CASE(double_failures_are_mended) {
  if (!find_fake_driver()) SKIP("needs the fake driver, which fails on demand");
  static const char *const first[] = {"cuMemUnmap", "cuMemMap", "cuMemSetAccess", "cuMemCreate", "cuMemcpyAsync"};
  static const char *const undoing[] = {"cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"};
  enum { FIRST = 5, UNDOING = 4, K = 3, J = 2, ALL = 2 * FIRST * UNDOING * K * J * 2 };
  failed = refused = 0;
  written = 16 * KIB;
  // A trim gives the arena back, and the next pause takes the pages of a whole segment: 32 MiB without a limit.
  MUST(gmm_backup_configure(context, DESC(backup_desc, .arena_limit = 2 * PIECES * PIECE)));
  const gmm_tag tags[2] = {make_tag("dropped twice", GMM_CONTENTS_DROP), make_tag("kept twice", GMM_CONTENTS_HOST)};
  for (unsigned n = 0; n < ALL; ++n) {
    const bool keeps = n / (ALL / 2) != 0;
    const fault of = {.tag = tags[keeps],
                      .keeps = keeps,
                      .pausing = n % 2 == 0,
                      .first = first[n / (2 * J * K * UNDOING) % FIRST],
                      .undoing = undoing[n / (2 * J * K) % UNDOING],
                      .k = n / (2 * J) % K + 1,
                      .j = n / 2 % J + 1};
    const int before = atomic_load(&check_state.failures);
    pause_or_resume_twice_failing(&of);
    if (atomic_load(&check_state.failures) > before)
      printf("# so it went with tag %u, %s at %u, then %s at %u, %s\n", of.tag, of.first, of.k, of.undoing, of.j,
             of.pausing ? "pause" : "resume");
    REQUIRE(atomic_load(&check_state.failures) < 12);
  }
  written = PIECE;
  printf("# %u failed, %u of them left memory that holds its contents unmapped\n", failed, refused);
  CHECK(failed > 100);
  CHECK(refused > 0);
}

// --- damage ----------------------------------------------------------------------------------------------------------
struct wanted {
  const char *folder;
  int file;
};
static void open_backup(const char *path, const char *target, void *user) {
  struct wanted *wanted = user;
  const size_t length = strlen(wanted->folder);
  // A descriptor of its own, without direct transfers.
  if (wanted->file < 0 && strncmp(target, wanted->folder, length) == 0 && target[length] == '/')
    wanted->file = open(path, O_RDWR);
}
// The backup's file, which has no name: by its folder. -1 when there is none.
static int backup_file(const char *folder) {
  struct wanted wanted = {folder, -1};
  each_descriptor(open_backup, &wanted);
  return wanted.file;
}

// The file shrinks, or a byte of it changes, while memory is paused: it is reported, the rest is not lost, and when the
// file is whole again so is the memory.
VMM_CASE(damage_to_the_file_is_reported) {
  char folder[] = "/tmp/gmm-fault-XXXXXX";
  REQUIRE(mkdtemp(folder) != NULL);
  MUST(gmm_backup_configure(context, DESC(backup_desc, .directory = folder)));
  for (int way = 0; way < 2; ++way) {
    gmm_tag tag = 0;
    const gmm_result made =
        gmm_tag_create(context, way == 0 ? "cut" : "changed",
                       DESC(tag_desc, .contents = GMM_CONTENTS_FILE, .flags = way == 0 ? 0 : GMM_TAG_CHECKSUM), &tag);
    if (made == GMM_ERROR_NOT_SUPPORTED) SKIP("the library was built without xxhash");
    MUST(made);
    allocate_pieces(tag, 70);
    OK(gmm_pause(context, NULL, NULL));
    const int fd = backup_file(folder);
    struct stat state;
    REQUIRE(fd >= 0 && fstat(fd, &state) == 0 && state.st_size > 0);
    const uint64_t size = (uint64_t)state.st_size;
    char *saved = malloc(size);
    REQUIRE(pread(fd, saved, size, 0) == (ssize_t)size);
    if (way == 0) {
      REQUIRE(ftruncate(fd, 4096) == 0);
    } else {
      uint64_t at = 0;  // inside contents that look like these
      uint8_t head[64];
      for (unsigned i = 0; i < sizeof head; ++i) head[i] = pattern_at(i + 8192, 71);
      while (at + sizeof head < size && memcmp(saved + at, head, sizeof head) != 0) at += 64;
      REQUIRE(at + sizeof head < size);
      const char wrong = (char)~saved[at];
      REQUIRE(pwrite(fd, &wrong, 1, (off_t)at) == 1);
    }
    uint64_t bytes = 5;
    RESULT(gmm_resume(context, NULL, &bytes), way == 0 ? GMM_ERROR_IO : GMM_ERROR_CORRUPT);
    CHECK(message_has("0x"));  // it names the range
    CHECK_EQUAL(bytes, 5);
    for (unsigned i = 0; i < PIECES; ++i) CHECK_EQUAL(state_of(pieces[i]), GMM_STATE_PAUSED);
    CHECK_EQUAL(stats_of(GMM_SCOPE_TAG, 0, tag, 0).reserved_bytes, 0);
    CHECK(tag_info(tag).backup_file_bytes >= PIECES * PIECE);
    if (way == 1) {
      // The others are whole, and can be had.
      unsigned corrupt = 0;
      uint8_t *read = malloc(PIECE);
      for (unsigned i = 0; i < PIECES; ++i) {
        const gmm_result result = gmm_backup_read(context, pieces[i], PIECE, read);
        corrupt += result == GMM_ERROR_CORRUPT;
        if (result != GMM_ERROR_CORRUPT) CHECK_EQUAL(result, GMM_OK);
        if (result == GMM_OK) CHECK_EQUAL(pattern_length(read, PIECE, 70 + i), PIECE);
      }
      CHECK_EQUAL(corrupt, 1);
      free(read);
    }
    REQUIRE(pwrite(fd, saved, size, 0) == (ssize_t)size);
    free(saved);
    close(fd);
    OK(gmm_resume(context, NULL, NULL));
    check_pieces(70);
    free_pieces();
  }
  OK(gmm_trim(context, NULL, NULL));
  rmdir(folder);
}

int main(void) { return run_cases(); }
