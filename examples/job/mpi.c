/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job over MPI: the ranks compute, pause all their memory as one, resume it, and compute on. The sums are bit for bit
 * those of a run without a pause.
 *
 *   mpirun -np 2 build/examples/job/job-mpi
 */
#include <stdio.h>

#include "mpi_exchange.h"

enum { COUNT = 1 << 20, STEPS = 6, PAUSE_AFTER = 3 };

#define MUST(call)                                                                                \
  do {                                                                                            \
    const gmm_result result_ = (call);                                                            \
    if (result_ < 0) {                                                                            \
      fprintf(stderr, "%s: %s: %s\n", #call, gmm_result_name(result_), gmm_last_error_message()); \
      MPI_Abort(MPI_COMM_WORLD, 1);                                                               \
    }                                                                                             \
  } while (0)

typedef struct rank {
  gmm_context *context;
  gmm_job *job;
  gmm_tag tag;
  double *weights; /* of gmm, on the device */
  double *host;    /* where this example computes: it needs no compiler for GPUs */
  int number;
} rank;

/* A step of training: all ranks add their part to the sum, which each then uses. */
static double step(rank *self, int number) {
  double mine = 0, sum = 0;
  MUST(gmm_copy(self->context, self->host, self->weights, sizeof(double) * COUNT, GMM_STREAM_DEFAULT));
  MUST(gmm_stream_synchronize(self->context, GMM_STREAM_DEFAULT));
  for (int i = 0; i < COUNT; ++i) mine += self->host[i] * (1.0 + 1e-3 * (double)((i + number) % 17));
  MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; i < COUNT; ++i) self->host[i] -= 1e-7 * sum / (1.0 + (double)(i % 5));
  MUST(gmm_copy(self->context, self->weights, self->host, sizeof(double) * COUNT, GMM_STREAM_DEFAULT));
  MUST(gmm_stream_synchronize(self->context, GMM_STREAM_DEFAULT));
  return sum;
}

static void pause_and_resume(rank *self) {
  gmm_job_info info = {.struct_size = sizeof info};
  gmm_tag_info tag = {.struct_size = sizeof tag};
  MUST(gmm_job_pause(self->job, NULL, &info));
  MUST(gmm_tag_query(self->context, self->tag, &tag));
  if (self->number == 0)
    printf("all ranks have paused: %.0f MiB of this rank, %.0f MiB of all\n", (double)info.bytes / 1048576,
           (double)info.job_bytes / 1048576);
  if (tag.paused_bytes < sizeof(double) * COUNT) MPI_Abort(MPI_COMM_WORLD, 1);
  /* The devices are free for others here. */
  MUST(gmm_job_resume(self->job, NULL, &info));
}

static void run(rank *self, int pauses, double sums[STEPS]) {
  for (int i = 0; i < COUNT; ++i) self->host[i] = 1.0 / (1.0 + (double)((i * 7 + self->number) % 1001));
  MUST(gmm_copy(self->context, self->weights, self->host, sizeof(double) * COUNT, GMM_STREAM_DEFAULT));
  for (int i = 0; i < STEPS; ++i) {
    sums[i] = step(self, i);
    if (pauses && i + 1 == PAUSE_AFTER) pause_and_resume(self);
  }
}

int main(int argc, char **argv) {
  const gmm_context_desc context_desc = {.struct_size = sizeof context_desc};
  const gmm_tag_desc tag_desc = {.struct_size = sizeof tag_desc, .contents = GMM_CONTENTS_HOST};
  gmm_alloc_desc alloc_desc = {.struct_size = sizeof alloc_desc, .kind = GMM_KIND_VMM};
  gmm_context_info about = {.struct_size = sizeof about};
  static mpi_exchange exchange;
  rank self = {0};
  int ranks = 0;
  double undisturbed[STEPS], paused[STEPS];

  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level); /* gmm has threads, which call no MPI */
  MPI_Comm_rank(MPI_COMM_WORLD, &self.number);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MUST(gmm_context_create(&context_desc, &self.context));
  MUST(gmm_context_query(self.context, &about));
  MUST(gmm_tag_create(self.context, "weights", &tag_desc, &self.tag));
  alloc_desc.tag = self.tag;
  alloc_desc.device = self.number % (int)about.device_count;
  MUST(gmm_alloc(self.context, sizeof(double) * COUNT, &alloc_desc, (void **)&self.weights));
  self.host = malloc(sizeof(double) * COUNT);
  if (self.host == NULL || !mpi_exchange_open(&exchange, MPI_COMM_WORLD)) MPI_Abort(MPI_COMM_WORLD, 1);
  const gmm_job_desc job_desc = {.struct_size = sizeof job_desc,
                                 .name = "example",
                                 .rank = (uint32_t)self.number,
                                 .ranks = (uint32_t)ranks,
                                 .timeout_ms = 30000,
                                 .exchange = mpi_exchange_calls(&exchange)};
  MUST(gmm_job_create(self.context, &job_desc, &self.job));

  run(&self, 0, undisturbed);
  run(&self, 1, paused);
  const int same = memcmp(undisturbed, paused, sizeof paused) == 0;
  if (self.number == 0)
    printf("%d ranks on backend %s: the last sum is %.17g, %s\n", ranks, about.backend_name, paused[STEPS - 1],
           same ? "bit for bit as without a pause" : "and another one without a pause");

  MUST(gmm_job_destroy(self.job));
  mpi_exchange_close(&exchange);
  MUST(gmm_free(self.context, self.weights, GMM_STREAM_DEFAULT));
  MUST(gmm_context_release(self.context));
  free(self.host);
  MPI_Finalize();
  return same ? EXIT_SUCCESS : EXIT_FAILURE;
}
