/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file job.h
 * Jobs: pause and resume of tags in several processes as one transaction.
 *
 * The ranks of a job call gmm_job_pause() and gmm_job_resume() in the same order, as they call a collective. Each such
 * operation changes the memory of all ranks or of none. The ranks agree over an exchange that the program gives, for
 * example a store of torch.distributed, a folder, or a window of MPI.
 */
#ifndef GMM_JOB_H
#define GMM_JOB_H

#include <gmm/pause.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  GMM_EXCHANGE_VALUE = 512 /**< bytes of the longest text of an exchange, with the zero at its end */
};

/**
 * Registers of text that all ranks of a job reach. Keys and values are ASCII text without line breaks.
 *
 * The functions run on the thread that called gmm_job_pause() or gmm_job_resume(), without a lock. They return by
 * `timeout_ms`, or soon after it. A failure or GMM_ERROR_NOT_READY may come earlier: gmm asks again until its own time
 * is over. GMM_ERROR_CANCELLED ends that: the operation then goes on without this exchange, as far as it can. They may
 * be called again with the same arguments after an answer was lost.
 */
typedef struct gmm_exchange {
  /**
   * Sets a register that has no value, and answers with the value that it has then, in one step for all ranks.
   *
   * A register that has a value keeps it. `out` has room for ::GMM_EXCHANGE_VALUE bytes.
   */
  gmm_result (*set)(void *user, const char *key, const char *value, char *out, uint64_t timeout_ms);
  /** Reads a register. GMM_ERROR_NOT_READY: it has no value in this time. */
  gmm_result (*get)(void *user, const char *key, char *out, uint64_t timeout_ms);
  /** Removes a register that nobody reads any more. May be NULL: then the registers stay. */
  void (*erase)(void *user, const char *key);
  void *user;
} gmm_exchange;

/** What gmm_job_create() makes. */
typedef struct gmm_job_desc {
  uint32_t struct_size;
  uint32_t flags;      /**< must be 0 */
  const char *name;    /**< 1 to 63 letters, digits, '.', '-' and '_'; no other job of the exchange had it */
  uint32_t rank;       /**< this process, below ranks */
  uint32_t ranks;      /**< at least 1 */
  uint64_t timeout_ms; /**< of each operation, at most 86,400,000; 0: 60,000 */
  gmm_exchange exchange;
} gmm_job_desc;

/** What a job did last. */
typedef uint32_t gmm_job_state;
enum {
  GMM_JOB_IDLE = 0,      /**< nothing yet */
  GMM_JOB_COMMITTED = 1, /**< all ranks carry it out, or have done so */
  GMM_JOB_ABORTED = 2,   /**< all ranks are as before it */
  /**
   * This rank could not reach the exchange after it had agreed. Its memory is as before and may be used. The next call
   * of the same function goes on with the operation, and keeps the contents of that time. Until then a heap with memory
   * of the tags cannot be destroyed (BUSY), and every other operation on the tags waits: gmm_pause(), gmm_resume(),
   * gmm_reset().
   */
  GMM_JOB_IN_DOUBT = 3,
  GMM_JOB_RUNNING = 4 /**< a thread is in gmm_job_pause() or gmm_job_resume() */
};

/** What gmm_job_query() tells about the last operation. */
typedef struct gmm_job_info {
  uint32_t struct_size;
  gmm_job_state state;
  uint64_t epoch;      /**< its number, from 1 on; 0: none */
  int32_t failed_rank; /**< the rank that refused, failed, or did not answer in time; -1: none */
  gmm_result cause;    /**< what that rank says; GMM_ERROR_NOT_READY: it did not answer in time */
  uint64_t bytes;      /**< bytes of this rank that changed state */
  uint64_t job_bytes;  /**< bytes of all ranks, as far as they told */
} gmm_job_info;

/** One rank of a job. A job keeps its context alive. */
typedef struct gmm_job gmm_job;

/**
 * Makes this process a rank of a job. The call asks nothing of the exchange.
 *
 * @param desc  must not be NULL.
 * @param[out] out  the job.
 * Errors: NULL_ARGUMENT (desc, name, set or get), INVALID_DESCRIPTOR, INVALID_FLAGS, INVALID_VALUE (name, rank, ranks
 * or time), OUT_OF_HOST_MEMORY, SYSTEM, FORKED.
 * Ownership: gmm copies desc. `exchange.user` must live until gmm_job_destroy(), which the caller calls.
 * Since: 1.0
 */
GMM_API gmm_result gmm_job_create(gmm_context *context, const gmm_job_desc *desc, gmm_job **out) GMM_NOEXCEPT;

/**
 * Pauses the tags on all ranks, or on none.
 *
 * Every rank calls it, with tags of the same names and the same flags. First all ranks and their watchers agree. Then
 * each keeps the contents of its memory, which stays mapped. When all have done so, all release it.
 *
 * - A rank that refuses, fails, dies, hangs or is late before that ends the operation on all ranks. They are as
 *   before. The result is that rank's code; NOT_READY: it did not answer in time. The message and gmm_job_query()
 *   name the rank.
 * - A wrong `desc` of one rank ends the operation on all ranks, too.
 * - A rank that fails afterwards does not change the result of the others. info->failed_rank names it. On that rank the
 *   result is its own failure, nothing is lost, and the next call goes on.
 * - NOT_READY with ::GMM_JOB_IN_DOUBT: see there.
 *
 * @param desc  as for gmm_pause(); NULL: every tag.
 * @param[out] info  the operation; may be NULL. The caller sets info->struct_size first.
 * Results: OK also on a rank without active memory of the tags.
 * Errors: those of gmm_pause() on any rank, INVALID_HANDLE, NOT_READY, INVALID_VALUE (the ranks ask for different
 * things, or another process had this rank or this name), BUSY (another thread is in an operation of the job, an
 * operation of another kind is in doubt, or the caller is a callback of a watcher), SYSTEM (no thread), FORKED.
 * Streams: as gmm_pause().
 * Threads: one at a time for a job. During the call no thread or kernel may use the memory; a free waits only for the
 * copies.
 * Since: 1.0
 */
GMM_API gmm_result gmm_job_pause(gmm_job *job, const gmm_pause_desc *desc, gmm_job_info *info) GMM_NOEXCEPT;

/**
 * Resumes the tags on all ranks, or on none.
 *
 * As gmm_job_pause(). All ranks hold their pages before any of them maps one. A rank that cannot have its pages ends
 * the operation, and all ranks stay paused with their contents.
 *
 * @param desc  as for gmm_resume(); NULL: every tag.
 * @param[out] info  as for gmm_job_pause().
 * Results: OK also on a rank without paused memory of the tags.
 * Errors: those of gmm_resume() on any rank, and as gmm_job_pause().
 * Since: 1.0
 */
GMM_API gmm_result gmm_job_resume(gmm_job *job, const gmm_pause_desc *desc, gmm_job_info *info) GMM_NOEXCEPT;

/**
 * Describes the last operation of a job, also after its failure.
 *
 * @param[out] info  The caller sets info->struct_size first.
 * Errors: INVALID_HANDLE, NULL_ARGUMENT, INVALID_DESCRIPTOR, FORKED.
 * Since: 1.0
 */
GMM_API gmm_result gmm_job_query(gmm_job *job, gmm_job_info *info) GMM_NOEXCEPT;

/**
 * Ends this process's part of a job. An operation that is in doubt is undone here.
 *
 * @param job  NULL is allowed and does nothing.
 * Errors: INVALID_HANDLE, BUSY (a thread is in an operation of the job, or the caller is a callback of a watcher),
 * FORKED.
 * Since: 1.0
 */
GMM_API gmm_result gmm_job_destroy(gmm_job *job) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
