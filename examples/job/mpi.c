/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of MPI that pause and resume their memory as one, or not at all: mpirun -np 2 job-mpi */
#include <gmm/gmm.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { SIZE = 8 << 20, HOLD_MS = 10000 };

#define MUST(call)                                                                                \
  do {                                                                                            \
    const gmm_result result_ = (call);                                                            \
    if (result_ < 0) {                                                                            \
      fprintf(stderr, "%s: %s: %s\n", #call, gmm_result_name(result_), gmm_last_error_message()); \
      MPI_Abort(MPI_COMM_WORLD, 1);                                                               \
    }                                                                                             \
  } while (0)

/* Each rank's operation is held, all tell whether they have come so far, and all commit or all undo. `fails`: this rank
 * behaves as if it could not. */
static gmm_result together(gmm_context *context, bool pauses, bool fails) {
  const gmm_pause_desc desc = {.struct_size = sizeof desc,
                               .flags = GMM_PAUSE_HOLD | (pauses ? GMM_PAUSE_KEEP_HOST | GMM_PAUSE_NO_WRITES : 0),
                               .hold_ms = HOLD_MS};
  gmm_ticket *ticket = NULL;
  gmm_result result = pauses ? gmm_pause_async(context, &desc, &ticket) : gmm_resume_async(context, &desc, &ticket);
  if (result >= 0) result = gmm_ticket_wait_held(ticket, HOLD_MS);
  int mine = result >= 0 && !fails, all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (ticket == NULL) return result;
  if (all)
    result = gmm_ticket_commit(ticket);
  else
    gmm_ticket_cancel(ticket);
  if (result >= 0) result = gmm_ticket_wait(ticket, GMM_FOREVER, NULL);
  gmm_ticket_destroy(ticket);
  return result;
}

static gmm_state state_of(gmm_context *context, const void *memory) {
  gmm_pointer_info info = {.struct_size = sizeof info};
  MUST(gmm_query(context, memory, &info));
  return info.state;
}

int main(int argc, char **argv) {
  int rank = 0, ranks = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  gmm_context *context = NULL;
  MUST(gmm_context_create(NULL, &context));
  const gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = GMM_KIND_VMM};
  void *memory = NULL;
  MUST(gmm_alloc(context, SIZE, &desc, &memory));
  MUST(gmm_fill(context, memory, 7 + rank, SIZE, GMM_STREAM_DEFAULT));

  const gmm_result refused = together(context, true, rank == ranks - 1);
  if (refused != GMM_ERROR_CANCELLED || state_of(context, memory) != GMM_STATE_ACTIVE) MPI_Abort(MPI_COMM_WORLD, 2);
  MUST(together(context, true, false));
  if (state_of(context, memory) != GMM_STATE_PAUSED) MPI_Abort(MPI_COMM_WORLD, 3);
  MUST(together(context, false, false));
  unsigned char last = 0;
  MUST(gmm_copy(context, &last, (char *)memory + SIZE - 1, 1, GMM_STREAM_DEFAULT));
  MUST(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  if (last != 7 + rank) MPI_Abort(MPI_COMM_WORLD, 4);
  if (rank == 0) printf("%d ranks paused and resumed as one, after one of them had refused\n", ranks);
  gmm_free(context, memory, GMM_STREAM_DEFAULT);
  gmm_context_release(context);
  return MPI_Finalize();
}
