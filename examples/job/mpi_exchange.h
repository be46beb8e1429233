/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An exchange of gmm_job_* over MPI's one-sided operations. One header, to be copied into a program.
 *
 * All registers stand in one table in rank 0's memory. Nobody changes a table: a rank that sets a register writes a new
 * one, and one MPI_Compare_and_swap of a word, the head, puts it in the old one's place. So no rank holds a lock, and
 * one that dies or stops at any moment holds up nobody. Rank 0 takes part in no operation of the others. Each rank has
 * two tables. It writes the one that is not in use. A reader looks at the head again afterwards: if that is as before,
 * what it has read was whole.
 *
 * MPI's calls have no timeout. Between processes of one machine (shared memory) they return in any case. On a network,
 * whether they return after rank 0's machine has died is up to MPI.
 *
 * MPI is called on the thread that calls gmm_job_pause() and gmm_job_resume(): MPI_THREAD_SERIALIZED is enough.
 */
#ifndef MPI_EXCHANGE_H
#define MPI_EXCHANGE_H

#include <gmm/gmm.h>
#include <mpi.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MPI_EXCHANGE_KEY = 128, MPI_EXCHANGE_REGISTERS = 192 };
/* An operation has 3 registers a rank and 3 more, and those of the one before may be there yet. */
enum { MPI_EXCHANGE_RANKS = (MPI_EXCHANGE_REGISTERS / 2 - 3) / 3 };

typedef struct mpi_register {
  char key[MPI_EXCHANGE_KEY];
  char value[GMM_EXCHANGE_VALUE];
} mpi_register;
typedef struct mpi_table {
  uint64_t count;
  mpi_register registers[MPI_EXCHANGE_REGISTERS];
} mpi_table;

typedef struct mpi_exchange {
  MPI_Comm ranks; /* of its own */
  MPI_Win window; /* rank 0: the head, then two tables for each rank */
  int rank;
  mpi_table table;
} mpi_exchange;

/* The head: 48 bits that no other head had, and the number of the table; 0: no table. */
static inline uint64_t mpi_table_of(uint64_t head) { return head & 0xffff; }
static inline MPI_Aint mpi_place_of(uint64_t table) { return (MPI_Aint)(sizeof(uint64_t) + table * sizeof(mpi_table)); }

static inline double mpi_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline int mpi_read_head(mpi_exchange *self, uint64_t *head) {
  const uint64_t unused = 0;
  return MPI_Fetch_and_op(&unused, head, MPI_UINT64_T, 0, 0, MPI_NO_OP, self->window) == MPI_SUCCESS &&
         MPI_Win_flush(0, self->window) == MPI_SUCCESS;
}

/* Reads the table that is in use. 0: MPI failed, or the time is over. */
static inline int mpi_read_table(mpi_exchange *self, uint64_t *head, double deadline) {
  uint64_t after = 0;
  if (!mpi_read_head(self, head)) return 0;
  for (;; *head = after) {
    self->table.count = 0;
    if (*head == 0) return 1;
    const MPI_Aint place = mpi_place_of(mpi_table_of(*head));
    if (MPI_Get(&self->table, sizeof self->table.count, MPI_BYTE, 0, place, sizeof self->table.count, MPI_BYTE,
                self->window) != MPI_SUCCESS ||
        MPI_Win_flush(0, self->window) != MPI_SUCCESS)
      return 0;
    const uint64_t count = self->table.count <= MPI_EXCHANGE_REGISTERS ? self->table.count : 0;
    const int size = (int)(count * sizeof(mpi_register));
    if (MPI_Get(self->table.registers, size, MPI_BYTE, 0, place + (MPI_Aint)offsetof(mpi_table, registers), size,
                MPI_BYTE, self->window) != MPI_SUCCESS ||
        MPI_Win_flush(0, self->window) != MPI_SUCCESS || !mpi_read_head(self, &after))
      return 0;
    if (after == *head) return 1;
    if (mpi_seconds() >= deadline) return 0;
  }
}

/* Puts the table of this call in the place of `head`. *stands: the head is another one by now. 0: MPI failed. */
static inline int mpi_replace(mpi_exchange *self, uint64_t head, int *stands) {
  uint64_t mine = 2 * (uint64_t)self->rank;
  if (head != 0 && mpi_table_of(head) == mine) ++mine;
  const uint64_t next = ((head >> 16) + 1) << 16 | mine;
  const int size = (int)(offsetof(mpi_table, registers) + self->table.count * sizeof(mpi_register));
  uint64_t found = 0;
  if (MPI_Put(&self->table, size, MPI_BYTE, 0, mpi_place_of(mine), size, MPI_BYTE, self->window) != MPI_SUCCESS ||
      MPI_Win_flush(0, self->window) != MPI_SUCCESS ||
      MPI_Compare_and_swap(&next, &head, &found, MPI_UINT64_T, 0, 0, self->window) != MPI_SUCCESS ||
      MPI_Win_flush(0, self->window) != MPI_SUCCESS)
    return 0;
  *stands = found != head;
  return 1;
}

static inline mpi_register *mpi_find(mpi_exchange *self, const char *key) {
  for (uint64_t i = 0; i < self->table.count; ++i)
    if (strcmp(self->table.registers[i].key, key) == 0) return &self->table.registers[i];
  return NULL;
}

static inline gmm_result mpi_exchange_set(void *user, const char *key, const char *value, char *out,
                                          uint64_t timeout_ms) {
  mpi_exchange *self = user;
  const double deadline = mpi_seconds() + (double)timeout_ms / 1000;
  int has_lost = 1;
  if (strlen(key) >= MPI_EXCHANGE_KEY) return GMM_ERROR_INVALID_VALUE;
  while (has_lost) {
    uint64_t head = 0;
    if (!mpi_read_table(self, &head, deadline)) return GMM_ERROR_IO;
    const mpi_register *stands = mpi_find(self, key);
    if (stands != NULL) {
      strcpy(out, stands->value);
      return GMM_OK;
    }
    if (self->table.count == MPI_EXCHANGE_REGISTERS) return GMM_ERROR_OUT_OF_MEMORY;
    mpi_register *made = &self->table.registers[self->table.count++];
    strcpy(made->key, key);
    strcpy(made->value, value);
    if (!mpi_replace(self, head, &has_lost)) return GMM_ERROR_IO;
    if (has_lost && mpi_seconds() >= deadline) return GMM_ERROR_NOT_READY;
  }
  strcpy(out, value);
  return GMM_OK;
}

static inline gmm_result mpi_exchange_get(void *user, const char *key, char *out, uint64_t timeout_ms) {
  mpi_exchange *self = user;
  const double deadline = mpi_seconds() + (double)timeout_ms / 1000;
  for (;;) {
    uint64_t head = 0;
    if (!mpi_read_table(self, &head, deadline)) return GMM_ERROR_IO;
    const mpi_register *stands = mpi_find(self, key);
    if (stands != NULL) {
      strcpy(out, stands->value);
      return GMM_OK;
    }
    if (mpi_seconds() >= deadline) return GMM_ERROR_NOT_READY;
    const struct timespec moment = {.tv_nsec = 200000};
    nanosleep(&moment, NULL);
  }
}

/* A failure leaves the register, which costs room only. */
static inline void mpi_exchange_erase(void *user, const char *key) {
  mpi_exchange *self = user;
  const double deadline = mpi_seconds() + 1;
  int has_lost = 1;
  while (has_lost && mpi_seconds() < deadline) {
    uint64_t head = 0;
    mpi_register *found = mpi_read_table(self, &head, deadline) ? mpi_find(self, key) : NULL;
    if (found == NULL) return;
    *found = self->table.registers[--self->table.count];
    if (!mpi_replace(self, head, &has_lost)) return;
  }
}

/* Collective over `ranks`. Returns 0 when MPI failed, or for more than MPI_EXCHANGE_RANKS. */
static inline int mpi_exchange_open(mpi_exchange *self, MPI_Comm ranks) {
  int count = 0;
  char *memory = NULL;
  memset(self, 0, sizeof *self);
  if (MPI_Comm_dup(ranks, &self->ranks) != MPI_SUCCESS) return 0;
  MPI_Comm_rank(self->ranks, &self->rank);
  MPI_Comm_size(self->ranks, &count);
  if (count > MPI_EXCHANGE_RANKS) return 0;
  const MPI_Aint size = self->rank == 0 ? mpi_place_of(2 * (uint64_t)count) : 0;
  if (MPI_Win_allocate(size, 1, MPI_INFO_NULL, self->ranks, &memory, &self->window) != MPI_SUCCESS) return 0;
  MPI_Win_set_errhandler(self->window, MPI_ERRORS_RETURN);
  if (MPI_Win_lock_all(0, self->window) != MPI_SUCCESS) return 0;
  if (self->rank == 0) {
    const uint64_t none = 0;
    MPI_Put(&none, 1, MPI_UINT64_T, 0, 0, 1, MPI_UINT64_T, self->window);
    MPI_Win_flush(0, self->window);
  }
  return MPI_Barrier(self->ranks) == MPI_SUCCESS;
}

/* Collective. */
static inline void mpi_exchange_close(mpi_exchange *self) {
  MPI_Win_unlock_all(self->window);
  MPI_Win_free(&self->window);
  MPI_Comm_free(&self->ranks);
}

static inline gmm_exchange mpi_exchange_calls(mpi_exchange *self) {
  const gmm_exchange calls = {mpi_exchange_set, mpi_exchange_get, mpi_exchange_erase, self};
  return calls;
}

#endif
