/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A subject of the benchmark: gmm, or an allocator that it is held against. C11 and C++.
 *
 * A subject is a table of functions. Peers that need other compilers or libraries are shared objects named
 * gmm_bench_NAME.so, which gmm-bench opens from --peers DIR; each exports gmm_bench_subjects() and uses nothing of
 * gmm-bench. The measured loops lie inside the subject, so that nothing but the allocator's own calls is timed;
 * subject_loops.h makes them, the same for all, from an inline allocate() and deallocate().
 */
#ifndef GMM_BENCH_SUBJECT_H
#define GMM_BENCH_SUBJECT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Grows with every change of this file; gmm-bench refuses a peer of another one. */
#define GMM_BENCH_ABI 3u

/* Kinds of memory, with gmm_kind's numbers, and ordinary memory of the process. */
enum { GMM_BENCH_SYSTEM = 0, GMM_BENCH_DEVICE = 1, GMM_BENCH_VMM = 2, GMM_BENCH_HOST = 3, GMM_BENCH_MANAGED = 4 };

/* "It cannot tell", where a count is asked for. */
#define GMM_BENCH_UNKNOWN UINT64_MAX

typedef struct gmm_bench_options {
  uint32_t struct_size;
  uint32_t kind; /* one of those in the subject's `kinds` */
  int32_t device;
  uint32_t stream_count; /* streams by index: 0 is the default stream, 1 to stream_count - 1 are made by open() */
  uint32_t thread_count; /* the most threads at a time between thread_begin() and thread_end() */
  uint32_t cuda;         /* 1: the run is on CUDA; 0: on the host backend of gmm */
} gmm_bench_options;

/* The size of an operation of a replay that says that the block is used on another stream too. */
#define GMM_BENCH_USE UINT64_MAX

/* One operation. In a replay: size 0 frees the block, GMM_BENCH_USE is a use, else allocates. In mixed(): frees what
   the slot holds, then allocates. */
typedef struct gmm_bench_operation {
  uint64_t size;
  uint32_t block;
  uint32_t stream; /* replay only: index */
} gmm_bench_operation;

typedef struct gmm_bench_replay {
  void **blocks;   /* by number of block */
  uint64_t *sizes; /* by number of block */
  uint64_t *peak;  /* NULL, or where the highest reserved() after an allocation goes */
} gmm_bench_replay;

/* Blocks on their way from the thread that allocates to the one that frees; one of each. Made by gmm-bench. */
typedef struct gmm_bench_ring {
  void **blocks;
  uint64_t mask; /* number of places - 1 */
  /* blocks are passed on by so many at once, so that the ring itself costs little; divides the number of places */
  uint32_t batch;
  uint32_t failed; /* set by a side that gives up, so that the other does not wait for it */
  uint8_t pad0[64 - 2 * sizeof(uint64_t) - 2 * sizeof(uint32_t)];
  uint64_t produced; /* written by the producer */
  uint8_t pad1[64 - sizeof(uint64_t)];
  uint64_t consumed; /* written by the consumer */
  uint8_t pad2[64 - sizeof(uint64_t)];
} gmm_bench_ring;

typedef struct gmm_bench_state gmm_bench_state;   /* the subject's own, between open() and close() */
typedef struct gmm_bench_thread gmm_bench_thread; /* the subject's own, for one thread that measures */

/*
 * Functions that return int32_t: 1 good, 0 failed, and error(state) says why. All may be called from any thread unless
 * said otherwise. Every function is there; what a subject cannot tell it answers with GMM_BENCH_UNKNOWN.
 */
typedef struct gmm_bench_subject {
  uint32_t abi;         /* GMM_BENCH_ABI */
  uint32_t struct_size; /* sizeof(gmm_bench_subject) */
  const char *name;     /* as in the rows: "mimalloc", "pytorch-expandable" */
  uint32_t kinds;       /* bits 1u << GMM_BENCH_DEVICE and so on */
  uint32_t needs_cuda;  /* 1: runs only with --backend cuda */

  /*
   * Several states of one subject may be open at once, unless the allocator has only one for the process: then open()
   * of a second one fails, and says so. On failure writes to `error` (of `size` bytes) why it is not available:
   * "libmimalloc.so.2 is not installed (Debian: libmimalloc-dev)".
   */
  int32_t (*open)(const gmm_bench_options *options, gmm_bench_state **out, char *error, size_t size);
  void (*close)(gmm_bench_state *state); /* after all thread_end() */
  const char *(*error)(gmm_bench_state *state);

  /* On the thread that will call the loops. `stream`: the index of the thread's own stream. */
  int32_t (*thread_begin)(gmm_bench_state *state, uint32_t stream, gmm_bench_thread **out);
  void (*thread_end)(gmm_bench_thread *thread);

  /* The measured loops. */
  int32_t (*pair)(gmm_bench_thread *thread, uint64_t size, uint64_t iterations);
  int32_t (*mixed)(gmm_bench_thread *thread, const gmm_bench_operation *operations, uint64_t count);
  int32_t (*mixed_clear)(gmm_bench_thread *thread); /* frees what mixed() left */
  int32_t (*produce)(gmm_bench_thread *thread, uint64_t size, uint64_t count, gmm_bench_ring *ring);
  /* Frees on the stream with this index: the producer's, as PyTorch does, or the thread's own. */
  int32_t (*consume)(gmm_bench_thread *thread, uint64_t size, uint64_t count, uint32_t stream, gmm_bench_ring *ring);
  /* Operations in order. Leaves what the trace does not free. */
  int32_t (*replay)(gmm_bench_thread *thread, const gmm_bench_operation *operations, uint64_t count,
                    const gmm_bench_replay *shared);

  /* One at a time, for checks and for clearing up. NULL on failure. */
  void *(*allocate)(gmm_bench_thread *thread, uint64_t size, uint32_t stream);
  int32_t (*deallocate)(gmm_bench_thread *thread, void *block, uint64_t size, uint32_t stream);

  uint64_t (*reserved)(gmm_bench_state *state);      /* bytes held from the driver or system now */
  uint64_t (*peak_reserved)(gmm_bench_state *state); /* the most since open() */
  uint64_t (*backend_calls)(gmm_bench_state *state); /* calls into the driver or system since open() */
} gmm_bench_subject;

/* What a peer's shared object exports: a table for each allocator in it, for as long as the object is loaded. */
typedef const gmm_bench_subject *const *(*gmm_bench_subjects_fn)(uint32_t *count);
#define GMM_BENCH_SUBJECTS "gmm_bench_subjects"

#ifdef __cplusplus
}
#endif
#endif
