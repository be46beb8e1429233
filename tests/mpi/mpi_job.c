/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of a job over MPI that pauses its memory while a rank kills itself where it sets a register: between what it
 * wrote and the compare-and-swap, or after that. The others tell how it ended for them, and whether their contents are
 * whole.
 *
 * Usage: mpi_job TIMEOUT_MS VICTIM KEY before|after      KEY: the end of the register's
 */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "../../examples/job/mpi_exchange.h"

enum { SIZE = 3 << 20 };

static int victim, is_after, number, is_armed, is_due;
static const char *wanted_key;

#define MUST(call)                                                                                \
  do {                                                                                            \
    const gmm_result result_ = (call);                                                            \
    if (result_ < 0) {                                                                            \
      fprintf(stderr, "%s: %s: %s\n", #call, gmm_result_name(result_), gmm_last_error_message()); \
      _exit(1);                                                                                   \
    }                                                                                             \
  } while (0)

/* MPI calls nothing else by this name: PMPI_* are its own entries. */
int MPI_Compare_and_swap(const void *origin, const void *compare, void *result, MPI_Datatype type, int target,
                         MPI_Aint place, MPI_Win window) {
  if (is_due && !is_after) kill(getpid(), SIGKILL);
  const int code = PMPI_Compare_and_swap(origin, compare, result, type, target, place, window);
  if (!is_due) return code;
  PMPI_Win_flush(target, window);
  if (memcmp(result, compare, sizeof(uint64_t)) == 0) kill(getpid(), SIGKILL);
  return code;
}

static gmm_result set_and_die(void *user, const char *key, const char *value, char *out, uint64_t timeout_ms) {
  const size_t length = strlen(key), end = strlen(wanted_key);
  is_due = is_armed && number == victim && length > end && strcmp(key + length - end, wanted_key) == 0;
  const gmm_result result = mpi_exchange_set(user, key, value, out, timeout_ms);
  is_due = 0;
  return result;
}

static unsigned char *pattern(unsigned char *bytes) {
  for (int i = 0; i < SIZE; ++i) bytes[i] = (unsigned char)(i * 7 + i / 4096 + number);
  return bytes;
}

static int is_whole(gmm_context *context, const void *block) {
  unsigned char *wanted = pattern(malloc(SIZE)), *found = malloc(SIZE);
  MUST(gmm_copy(context, found, block, SIZE, GMM_STREAM_DEFAULT));
  MUST(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  const int is_same = memcmp(wanted, found, SIZE) == 0;
  free(wanted);
  free(found);
  return is_same;
}

int main(int argc, char **argv) {
  const gmm_context_desc context_desc = {.struct_size = sizeof context_desc};
  const gmm_tag_desc tag_desc = {.struct_size = sizeof tag_desc, .contents = GMM_CONTENTS_HOST};
  gmm_alloc_desc alloc_desc = {.struct_size = sizeof alloc_desc, .kind = GMM_KIND_VMM};
  gmm_job_info info = {.struct_size = sizeof info};
  gmm_tag_info tag_info = {.struct_size = sizeof tag_info};
  static mpi_exchange exchange;
  gmm_context *context = NULL;
  gmm_job *job = NULL;
  void *block = NULL;
  int ranks = 0;
  if (argc != 5) return 2;
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &number);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  victim = atoi(argv[2]);
  wanted_key = argv[3];
  is_after = strcmp(argv[4], "after") == 0;
  MUST(gmm_context_create(&context_desc, &context));
  MUST(gmm_tag_create(context, "weights", &tag_desc, &alloc_desc.tag));
  MUST(gmm_alloc(context, SIZE, &alloc_desc, &block));
  unsigned char *bytes = pattern(malloc(SIZE));
  MUST(gmm_copy(context, block, bytes, SIZE, GMM_STREAM_DEFAULT));
  MUST(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  free(bytes);
  if (!mpi_exchange_open(&exchange, MPI_COMM_WORLD)) return 1;
  gmm_exchange calls = mpi_exchange_calls(&exchange);
  calls.set = set_and_die;
  gmm_job_desc job_desc = {.struct_size = sizeof job_desc,
                           .name = "first",
                           .rank = (uint32_t)number,
                           .ranks = (uint32_t)ranks,
                           .timeout_ms = 60000,
                           .exchange = calls};
  /* A round trip without a fault first, which also makes the arena. Only the time of the pause below is short. */
  MUST(gmm_job_create(context, &job_desc, &job));
  MUST(gmm_job_pause(job, NULL, NULL));
  MUST(gmm_job_resume(job, NULL, NULL));
  MUST(gmm_job_destroy(job));
  job_desc.name = "mpi";
  job_desc.timeout_ms = strtoull(argv[1], NULL, 10);
  MUST(gmm_job_create(context, &job_desc, &job));
  MPI_Barrier(MPI_COMM_WORLD);
  is_armed = 1;
  const double begin = mpi_seconds();
  const gmm_result result = gmm_job_pause(job, NULL, NULL);
  const double seconds = mpi_seconds() - begin;
  MUST(gmm_job_query(job, &info));
  MUST(gmm_tag_query(context, alloc_desc.tag, &tag_info));
  const int was_paused = tag_info.paused_bytes != 0;
  if (was_paused) MUST(gmm_resume(context, NULL, NULL));
  printf("rank %d: result %d state %u failed %d paused %d whole %d seconds %.3f\n", number, result, info.state,
         info.failed_rank, was_paused, is_whole(context, block), seconds);
  fflush(stdout);
  _exit(0); /* beside a rank that died MPI_Finalize() waits for ever */
}
