// SPDX-License-Identifier: Apache-2.0
// Faults of pause and resume about the process: a fork, its end in the middle of a transition, static destructors, a
// lost device context, limits of the system, and extreme sizes.
#include <errno.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "../support/second_process.h"
#include "fault_support.h"

#define FORKED(call)                                                           \
  do {                                                                         \
    gmm_result forked_r = (call);                                              \
    if (forked_r != GMM_ERROR_FORKED) {                                        \
      printf("# in the child %s gave %s\n", #call, gmm_result_name(forked_r)); \
      ++wrong;                                                                 \
    }                                                                          \
  } while (0)

static void a_fork_in_the_middle(void) {
  gmm_tag tag = make_tag("forked", GMM_CONTENTS_HOST), other = make_tag("paused", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 100);
  void *paused = ALLOC_TAG(100000, other);
  write_pattern(paused, 100000, 3, GMM_STREAM_DEFAULT);
  MUST(pause_of(other));
  blocker hold = BLOCKER;
  gmm_ticket *ticket = start_held(true, &tag, &hold);
  fflush(stdout);
  pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    leaks_are_wanted = 1;
    int wrong = 0;
    uint64_t bytes = 0;
    gmm_ticket *made = NULL;
    FORKED(gmm_ticket_wait(ticket, UINT64_MAX, &bytes));
    FORKED(gmm_ticket_destroy(ticket));
    FORKED(gmm_pause_async(context, NULL, &made));
    FORKED(gmm_resume_range(context, paused, 10, &bytes));
    FORKED(gmm_context_release(context));
    fflush(stdout);
    exit(wrong > 0 ? 3 : 0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK_EQUAL(status, 0);
  let_go(&hold);
  OK(gmm_ticket_wait(ticket, UINT64_MAX, NULL));
  OK(gmm_ticket_destroy(ticket));
  OK(gmm_resume(context, NULL, NULL));
  check_blocks(100);
  CHECK_PATTERN(paused, 100000, 3);
  free_blocks();
  OK(gmm_free(context, paused, GMM_STREAM_DEFAULT));
}

// Runs a second process, which prints why it fails.
static void run_second(const char *what, const char *way) {
  second_process second;
  REQUIRE(second_start(&second, (const char *const[]){what, way}, 2));
  char text[4000], rest[512];
  size_t filled = 0;
  for (ssize_t n = 1; n > 0; filled += filled + 1 < sizeof text ? (size_t)n : 0)
    n = filled + 1 < sizeof text ? read(second.from, text + filled, sizeof text - 1 - filled)
                                 : read(second.from, rest, sizeof rest);
  text[filled] = 0;
  const int ended = second_wait(&second);
  CHECK_MESSAGE(ended == 0, "%s %s: ended with %d: %s", what, way, ended, text);
}

// --- children that end -----------------------------------------------------------------------------------------------
static void *handler_block;
static void after_main(void) {
  // As a static destructor does: it frees, or releases the context.
  if (handler_block != NULL) gmm_free(context, handler_block, GMM_STREAM_DEFAULT);
  gmm_context_release(context);
}
static int32_t slowly(void *user, uint64_t done, uint64_t total) {
  (void)user, (void)done, (void)total;
  sleep_ms(5);
  return 0;
}
// Ends in the way that is named; leaks on purpose.
static int end_like(const char *way) {
  leaks_are_wanted = 1;
  context = open_context(1);
  read_device(0);
  kind = GMM_KIND_VMM;
  gmm_tag tag = make_tag("ends", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 1);
  gmm_pause_desc desc = one_tag(&tag);
  desc.progress.fn = slowly;
  gmm_ticket *ticket = NULL;
  const bool resuming = strstr(way, "resume") != NULL;
  if (strstr(way, "destructor") != NULL) {
    if (strstr(way, "free") != NULL) handler_block = blocks[1];
    atexit(after_main);
  }
  if (resuming || strstr(way, "paused") != NULL) MUST(gmm_pause(context, NULL, NULL));
  if (strstr(way, "ticket") != NULL)
    MUST(resuming ? gmm_resume_async(context, &desc, &ticket) : gmm_pause_async(context, &desc, &ticket));
  if (strstr(way, "inside") != NULL) sleep_ms(7);
  return check_state.failures != 0;
}
static void the_process_ends(void) {
  static const char *const ways[] = {"paused",
                                     "ticket",
                                     "ticket inside",
                                     "resume ticket",
                                     "resume ticket inside",
                                     "paused destructor",
                                     "paused destructor free",
                                     "ticket destructor",
                                     "ticket inside destructor free",
                                     "resume ticket inside destructor"};
  for (unsigned i = 0; i < sizeof ways / sizeof ways[0]; ++i) run_second("end", ways[i]);
}

// --- a device context that is lost ----------------------------------------------------------------------------------
static int lose_the_context(void) {
  leaks_are_wanted = 1;
  context = open_context(1);
  read_device(0);
  kind = GMM_KIND_VMM;
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  int (*cuMemUnmap)(uint64_t, size_t), (*cuMemsetD8Async)(uint64_t, unsigned char, size_t, void *);
  int (*cuCtxSetCurrent)(void *), (*cuDevicePrimaryCtxRetain)(void **, int);
  if (driver == NULL) return 20;
  *(void **)&cuMemUnmap = dlsym(driver, "cuMemUnmap");
  *(void **)&cuMemsetD8Async = dlsym(driver, "cuMemsetD8Async");
  *(void **)&cuCtxSetCurrent = dlsym(driver, "cuCtxSetCurrent");
  *(void **)&cuDevicePrimaryCtxRetain = dlsym(driver, "cuDevicePrimaryCtxRetain");
  gmm_tag tag = make_tag("lost", GMM_CONTENTS_HOST), other = make_tag("asleep", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 1);
  void *asleep = ALLOC_TAG(100000, other), *primary = NULL;
  write_pattern(asleep, 100000, 7, GMM_STREAM_DEFAULT);
  MUST(pause_of(other));
  gmm_stream stream = NULL;
  MUST(gmm_stream_create(context, NULL, &stream));
  void *victim = ALLOC_FLAGS(2 * MIB, GMM_ALLOC_DEDICATED);
  if (cuDevicePrimaryCtxRetain(&primary, 0) != 0 || cuCtxSetCurrent(primary) != 0) return 21;
  gate hold;
  gate_close(&hold, stream, 0.1);
  // Work on memory that somebody unmaps under it.
  if (cuMemsetD8Async((uint64_t)(uintptr_t)victim, 1, 4096, stream) != 0) return 22;
  if (cuMemUnmap((uint64_t)(uintptr_t)victim, 2 * MIB) != 0) return 23;
  gmm_stream_synchronize(context, stream);
  // Every call ends with an error, and none ends the process.
  CHECK(gmm_pause(context, NULL, NULL) < 0);
  CHECK(strlen(gmm_last_error_message()) > 20);
  CHECK(resume_of(other) < 0);
  CHECK(gmm_resume_range(context, asleep, 100, NULL) < 0);
  uint8_t bytes[100] = {0};  // contents in host memory are safe
  OK(gmm_backup_read(context, asleep, 100, bytes));
  for (uint64_t i = 0; i < 100; ++i) CHECK_EQUAL(bytes[i], pattern_at(i, 7));
  gmm_ticket *ticket = NULL;
  if (gmm_pause_async(context, NULL, &ticket) == GMM_OK) {
    CHECK(gmm_ticket_wait(ticket, UINT64_MAX, NULL) < 0);
    OK(gmm_ticket_destroy(ticket));
  }
  gmm_free(context, blocks[3], GMM_STREAM_DEFAULT);
  gmm_trim(context, NULL, NULL);
  gmm_context_release(context);
  return check_state.failures != 0;
}
static void a_lost_context_loses_no_process(void) {
  if (!find_fake_driver()) SKIP("needs the fake driver: a device context is lost");
  run_second("lose", "");
}

// --- limits of the system --------------------------------------------------------------------------------------------
#define LIMITED_SIZE (48 * MIB)
static struct rlimit limit_to(int resource, uint64_t most) {
  struct rlimit old, now;
  getrlimit(resource, &old);
  now = old;
  now.rlim_cur = most;
  if (setrlimit(resource, &now) != 0) CHECK_MESSAGE(false, "setrlimit: %s", strerror(errno));
  return old;
}
static uint64_t address_space(void) {
  unsigned long long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file == NULL || fscanf(file, "%llu", &pages) != 1) pages = 0;
  if (file != NULL) fclose(file);
  return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}
static int pause_under_limit(const char *way) {
  leaks_are_wanted = 1;
  context = open_context(1);
  read_device(0);
  kind = GMM_KIND_VMM;
  gmm_tag tag = make_tag("limited", GMM_CONTENTS_HOST);
  char *block = ALLOC_TAG(LIMITED_SIZE, tag);
  if (block == NULL) return 30;
  write_pattern(block, LIMITED_SIZE, 1, GMM_STREAM_DEFAULT);
  if (strcmp(way, "addresses") == 0 || strcmp(way, "addresses, no file") == 0) {
    // Neither page-locked nor pageable memory can be had: the file, or nothing.
    const bool no_file = strstr(way, "no file") != NULL;
    setenv("GMM_BACKUP_DIR", no_file ? "/nowhere/at/all" : "/tmp", 1);
    gmm_context *fresh = open_context(1);  // the folder is looked at when a context begins, or when it is used
    gmm_context_release(fresh);
    OK(gmm_backup_configure(context, NULL));
    gmm_stream warm = NULL;
    OK(gmm_stream_create(context, NULL, &warm));
    struct rlimit old = limit_to(RLIMIT_AS, address_space() + 24 * MIB);
    uint64_t bytes = 77;
    gmm_result result = gmm_pause(context, NULL, &bytes);
    gmm_tag_info info = tag_info(tag);
    setrlimit(RLIMIT_AS, &old);
    if (result == GMM_OK) {
      // The contents in the file did not fit elsewhere.
      CHECK_MESSAGE(!no_file, "paused without room");
      CHECK(info.backup_file_bytes > 0);
    } else {
      CHECK_MESSAGE(result == GMM_ERROR_OUT_OF_HOST_MEMORY || result == GMM_ERROR_IO || result == GMM_ERROR_SYSTEM,
                    "%s: %s", gmm_result_name(result), gmm_last_error_message());
      CHECK_EQUAL(bytes, 77);
      CHECK_EQUAL(state_of(block), GMM_STATE_ACTIVE);
      CHECK_PATTERN(block, LIMITED_SIZE, 1);
      OK(gmm_pause(context, NULL, NULL));
    }
  } else if (strcmp(way, "registered") == 0) {
    OK(gmm_pause(context, NULL, NULL));
    gmm_tag_info info = tag_info(tag);
    CHECK_EQUAL(info.backup_pinned_bytes, 0);
    CHECK(info.backup_host_bytes + info.backup_file_bytes >= LIMITED_SIZE);
  } else {
    signal(SIGXFSZ, SIG_IGN);  // the program's to do: the system kills it else
    struct rlimit old = limit_to(RLIMIT_FSIZE, 8 * MIB);
    gmm_pause_desc desc = one_tag(&tag);
    desc.flags = GMM_PAUSE_KEEP_FILE;
    uint64_t bytes = 77;
    RESULT(gmm_pause(context, &desc, &bytes), GMM_ERROR_IO);
    CHECK_EQUAL(bytes, 77);
    CHECK_EQUAL(state_of(block), GMM_STATE_ACTIVE);
    CHECK_PATTERN(block, LIMITED_SIZE, 1);
    setrlimit(RLIMIT_FSIZE, &old);
    OK(gmm_pause(context, &desc, NULL));
    CHECK(tag_info(tag).backup_file_bytes >= LIMITED_SIZE);
  }
  CHECK_EQUAL(state_of(block), GMM_STATE_PAUSED);
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(block, LIMITED_SIZE, 1);
  return check_state.failures != 0;
}
static void no_addresses_are_left(void) {
  if (CHECK_SANITIZED) SKIP("a sanitizer needs the addresses");
  run_second("limit", "addresses");
  run_second("limit", "addresses, no file");
}
// Each failure of a registration by itself is in kth_failure.c; here none ever succeeds.
static void memory_cannot_be_registered(void) {
  if (!find_fake_driver()) SKIP("needs the fake driver: it refuses to register memory");
  setenv("FAKE_CUDA_LACKS", "register", 1);
  run_second("limit", "registered");
  unsetenv("FAKE_CUDA_LACKS");
}
static void the_file_may_not_grow(void) { run_second("limit", "file"); }

// --- sizes -----------------------------------------------------------------------------------------------------------
static void impossible_sizes_are_refused(void) {
  static const uint64_t sizes[] = {1, 255, 6912, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 5 * MIB + 4097};
  enum { COUNT = sizeof sizes / sizeof sizes[0] };
  gmm_tag tag = make_tag("odd", GMM_CONTENTS_HOST);
  void *odd[COUNT];
  for (unsigned i = 0; i < COUNT; ++i) {
    REQUIRE((odd[i] = ALLOC_TAG(sizes[i], tag)) != NULL);
    CHECK_EQUAL(query(odd[i]).size, sizes[i]);
    CHECK(query(odd[i]).reserved_size >= sizes[i]);
    write_pattern(odd[i], sizes[i], i, GMM_STREAM_DEFAULT);
  }
  gmm_alloc_desc desc = alloc_desc();
  desc.tag = tag;
  static const uint64_t mad[] = {0, UINT64_MAX, UINT64_MAX - 4096, (uint64_t)1 << 63, UINT64_MAX - 2 * MIB + 1};
  for (unsigned i = 0; i < sizeof mad / sizeof mad[0]; ++i) {
    void *memory = NULL;
    gmm_result result = gmm_alloc(context, mad[i], &desc, &memory);
    CHECK_MESSAGE(result == GMM_ERROR_INVALID_SIZE || result == GMM_ERROR_SIZE_OVERFLOW, "%llu bytes: %s",
                  (unsigned long long)mad[i], gmm_result_name(result));
    CHECK(memory == NULL);
  }
  OK(gmm_pause(context, NULL, NULL));
  uint64_t bytes = 5;
  uint8_t byte;
  RESULT(gmm_resume_range(context, odd[2], 0, &bytes), GMM_ERROR_INVALID_SIZE);
  RESULT(gmm_resume_range(context, odd[2], UINT64_MAX, &bytes), GMM_ERROR_INVALID_SIZE);
  RESULT(gmm_resume_wait(context, odd[2], 0, 0), GMM_ERROR_INVALID_SIZE);
  RESULT(gmm_resume_wait(context, odd[2], UINT64_MAX, 0), GMM_ERROR_INVALID_SIZE);
  RESULT(gmm_resume_range(context, odd[6], (uint64_t)1 << 45, &bytes), GMM_ERROR_UNKNOWN_POINTER);
  CHECK_EQUAL(bytes, 5);
  RESULT(gmm_backup_read(context, odd[2], UINT64_MAX, &byte), GMM_ERROR_INVALID_SIZE);
  gmm_result prepared = gmm_backup_reserve(context, device, UINT64_MAX);
  CHECK_MESSAGE(prepared == GMM_ERROR_OUT_OF_HOST_MEMORY || prepared == GMM_ERROR_LIMIT_EXCEEDED, "%s",
                gmm_result_name(prepared));
  for (unsigned i = 0; i < COUNT; ++i) CHECK_EQUAL(state_of(odd[i]), GMM_STATE_PAUSED);
  OK(gmm_resume(context, NULL, NULL));
  for (unsigned i = 0; i < COUNT; ++i) {
    CHECK_PATTERN(odd[i], sizes[i], i);
    OK(gmm_free(context, odd[i], GMM_STREAM_DEFAULT));
  }
}

static int second(int count, char **words) {
  if (count != 4 || setjmp(check_state.leave) != 0) return 90;
  if (strcmp(words[2], "end") == 0) return end_like(words[3]);
  if (strcmp(words[2], "limit") == 0) return pause_under_limit(words[3]);
  if (strcmp(words[2], "lose") == 0) return lose_the_context();
  return 91;
}

int main(int count, char **words) {
  if (count > 2 && strcmp(words[1], "--second") == 0) return second(count, words);
  const gmm_kind_mask vmm = 1u << GMM_KIND_VMM;
  KINDS(a_fork_in_the_middle, vmm);
  PLAIN(the_process_ends);
  PLAIN(a_lost_context_loses_no_process);
  PLAIN(no_addresses_are_left);
  PLAIN(memory_cannot_be_registered);
  PLAIN(the_file_may_not_grow);
  KINDS(impossible_sizes_are_refused, vmm);
  return finish_clean();
}
