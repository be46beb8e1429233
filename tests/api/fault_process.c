// SPDX-License-Identifier: Apache-2.0
// Faults of pause and resume about the process: a fork, its end in the middle of a transition, static destructors, and
// a lost device context.
#include "../support/cuda_functions.h"
#include "../support/second_process.h"
#include "fault_support.h"

static void child_of_a_held_pause(gmm_ticket *ticket, void *paused) {
  uint64_t bytes = 0;
  gmm_ticket *made = NULL;
  leaks_are_wanted = 1;
  RESULT(gmm_ticket_wait(ticket, UINT64_MAX, &bytes), GMM_ERROR_FORKED);
  RESULT(gmm_ticket_destroy(ticket), GMM_ERROR_FORKED);
  RESULT(gmm_pause_async(context, NULL, &made), GMM_ERROR_FORKED);
  RESULT(gmm_resume_range(context, paused, 10, &bytes), GMM_ERROR_FORKED);
  RESULT(gmm_context_release(context), GMM_ERROR_FORKED);
  exit(atomic_load(&check_state.failures));
}
VMM_CASE(a_fork_in_the_middle) {
  const gmm_tag tag = make_tag("forked", GMM_CONTENTS_HOST), other = make_tag("paused", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 100);
  void *paused = FILLED_TAG(100000, other, 3);
  MUST(pause_of(other));
  blocker hold = BLOCKER;
  gmm_ticket *ticket = start_held(true, &tag, &hold);
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) child_of_a_held_pause(ticket, paused);
  int status = -1;
  REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
  CHECK_EQUAL(status, 0);
  let_go(&hold);
  ENDS_WITH(ticket, GMM_OK);
  OK(gmm_resume(context, NULL, NULL));
  check_blocks(100);
  CHECK_PATTERN(paused, 100000, 3);
}

static void run_second(const char *what, const char *way) {
  second_process second;
  REQUIRE(second_start(&second, (const char *const[]){what, way}, 2));
  const int ended = second_wait(&second);
  CHECK_MESSAGE(ended == 0, "%s %s: ended with %d", what, way, ended);
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
static void end_like(const char *way) {
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
  if (strstr(way, "ticket") != NULL) MUST((resuming ? gmm_resume_async : gmm_pause_async)(context, &desc, &ticket));
  if (strstr(way, "inside") != NULL) sleep_ms(7);
}
CASE(the_process_ends) {
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
static void lose_the_context(const char *unused) {
  (void)unused;
  static struct cuda_driver cuda;
  REQUIRE(cuda_driver_open(&cuda) == NULL);
  const gmm_tag tag = make_tag("lost", GMM_CONTENTS_HOST), other = make_tag("asleep", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 1);
  void *asleep = FILLED_TAG(100000, other, 7);
  CUcontext primary = NULL;
  MUST(pause_of(other));
  const gmm_stream stream = open_stream();
  const CUdeviceptr victim = (uintptr_t)ALLOC_FLAGS(2 * MIB, GMM_ALLOC_DEDICATED);
  REQUIRE(cuda.cuDevicePrimaryCtxRetain(&primary, 0) == 0 && cuda.cuCtxSetCurrent(primary) == 0);
  static gate hold;
  gate_close(&hold, stream, 0.1);
  // Work on memory that somebody unmaps under it.
  REQUIRE(cuda.cuMemsetD8Async(victim, 1, 4096, (CUstream)stream) == 0 && cuda.cuMemUnmap(victim, 2 * MIB) == 0);
  gmm_stream_synchronize(context, stream);
  // Every call ends with an error, and none ends the process.
  CHECK(gmm_pause(context, NULL, NULL) < 0);
  CHECK(strlen(gmm_last_error_message()) > 20);
  CHECK(resume_of(other) < 0);
  CHECK(gmm_resume_range(context, asleep, 100, NULL) < 0);
  uint8_t bytes[100] = {0};  // contents in host memory are safe
  OK(gmm_backup_read(context, asleep, 100, bytes));
  CHECK_EQUAL(pattern_length(bytes, 100, 7), 100);
  gmm_ticket *ticket = NULL;
  if (gmm_pause_async(context, NULL, &ticket) == GMM_OK) {
    CHECK(gmm_ticket_wait(ticket, UINT64_MAX, NULL) < 0);
    OK(gmm_ticket_destroy(ticket));
  }
  gmm_free(context, blocks[3], GMM_STREAM_DEFAULT);
  gmm_trim(context, NULL, NULL);
  gmm_context_release(context);
}
CASE(a_lost_context_loses_no_process) {
  if (!find_fake_driver()) SKIP("needs the fake driver: a device context is lost");
  run_second("lose", "");
}

// WHAT, and the way of it.
static int second(char **words) {
  leaks_are_wanted = 1;
  context = open_context(1);
  read_device(0);
  kind = GMM_KIND_VMM;
  (strcmp(words[0], "end") == 0 ? end_like : lose_the_context)(words[1]);
  return 0;
}

int main(int count, char **words) { return run_cases_or(second, count, words); }
