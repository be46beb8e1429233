/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A subject of `gmm-bench pause`: something that gives the memory of its blocks back and gets it again. C11 and C++.
 *
 * As with subject.h, a subject is a table of functions, and a shared object named gmm_bench_NAME.so may export some, by
 * gmm_bench_pause_subjects(). pause_subject_of.h makes the table from a class.
 */
#ifndef GMM_BENCH_PAUSE_SUBJECT_H
#define GMM_BENCH_PAUSE_SUBJECT_H

#include <stddef.h>
#include <stdint.h>

#include "subject.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Grows with every change of this file; gmm-bench refuses a peer of another one. */
#define GMM_BENCH_PAUSE_ABI 1u

/* What a run measures: what becomes of the contents, and where they go. */
enum {
  GMM_BENCH_PAUSE_DROP = 0,     /* nothing is kept */
  GMM_BENCH_PAUSE_WARM = 1,     /* kept in host memory that an earlier pause left ready */
  GMM_BENCH_PAUSE_COLD = 2,     /* kept in host memory, by the first pause of a new subject */
  GMM_BENCH_PAUSE_PAGEABLE = 3, /* kept in host memory that is not page-locked */
  GMM_BENCH_PAUSE_FILE = 4
};

typedef struct gmm_bench_pause_options {
  uint32_t struct_size;
  uint32_t mode; /* GMM_BENCH_PAUSE_*, one of those in the subject's `modes` */
  int32_t device;
  /* 1: the run is on CUDA, and the device's primary context is current on the thread; 0: on the host backend of gmm */
  uint32_t cuda;
  uint64_t blocks;
  uint64_t size;         /* of a block: whole 2 MiB */
  const char *directory; /* for files */
} gmm_bench_pause_options;

typedef struct gmm_bench_pause_state gmm_bench_pause_state; /* the subject's own, between open() and close() */

/*
 * Functions that return int32_t: 1 good, 0 failed, and error(state) says why. All are called from one thread. One state
 * of a subject is open at a time.
 */
typedef struct gmm_bench_pause_subject {
  uint32_t abi;         /* GMM_BENCH_PAUSE_ABI */
  uint32_t struct_size; /* sizeof(gmm_bench_pause_subject) */
  const char *name;     /* as in the rows: "one_handle" */
  uint32_t modes;       /* bits 1u << GMM_BENCH_PAUSE_DROP and so on */
  uint32_t needs_cuda;  /* 1: runs only with --backend cuda */

  /* Ends with all blocks there, active. On failure writes to `error` (of `size` bytes) why it is not available. */
  int32_t (*open)(const gmm_bench_pause_options *options, gmm_bench_pause_state **out, char *error, size_t size);
  void (*close)(gmm_bench_pause_state *state); /* paused or not */
  const char *(*error)(gmm_bench_pause_state *state);

  /* Where the block lies, while it is active; NULL when it has no memory of a device, and there is nothing to fill and
     check. */
  void *(*block)(gmm_bench_pause_state *state, uint64_t index);

  /* What is timed. They return when it is done. */
  int32_t (*pause)(gmm_bench_pause_state *state);
  int32_t (*resume)(gmm_bench_pause_state *state);

  uint64_t (*calls)(gmm_bench_pause_state *state); /* into the driver or system since open(), or GMM_BENCH_UNKNOWN */
  const char *(*setting)(
      gmm_bench_pause_state *state); /* while paused: what it chose, or where the contents lie; may be "" */
} gmm_bench_pause_subject;

/* What a peer's shared object exports, for as long as it is loaded. */
typedef const gmm_bench_pause_subject *const *(*gmm_bench_pause_subjects_fn)(uint32_t *count);
#define GMM_BENCH_PAUSE_SUBJECTS "gmm_bench_pause_subjects"

#ifdef __cplusplus
}
#endif
#endif
