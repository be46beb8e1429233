/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pause.h
 * Tags, pause and resume: a pause frees the physical memory behind blocks and keeps their addresses.
 */
#ifndef GMM_PAUSE_H
#define GMM_PAUSE_H

#include <gmm/memory.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- Tags ------------------------------------------------------------------------------------------------- */

/** The fate of the contents of a tag's memory in a pause. */
typedef uint32_t gmm_contents;
enum {
  GMM_CONTENTS_DROP = 0, /**< drops them: after the resume the bytes are undefined */
  /**
   * Backs them up in host memory: page-locked while the arena may grow, else pageable. Contents beyond that go to a
   * file.
   */
  GMM_CONTENTS_HOST = 1,
  GMM_CONTENTS_FILE = 2 /**< backs them up in a file in the backup directory, which ends with the process */
};

enum {
  /**
   * The program does not write the contents after their first pause.
   *
   * gmm keeps the backup through the resume, so a later pause does not copy the same contents again. A block never gets
   * the backup of a freed block that lay at its address before. After a pause or gmm_backup_discard() that dropped
   * contents of the tag, the program may write all of its memory anew.
   */
  GMM_TAG_READ_ONLY = 1u << 0,
  /**
   * gmm stores a checksum (XXH3) of each chunk and compares it at the resume, which fails with CORRUPT if they differ.
   */
  GMM_TAG_CHECKSUM = 1u << 1,
  /**
   * Contents in host memory are never page-locked: the process's memory grows by them at the pause, and shrinks by them
   * at the resume. The copies take longer.
   */
  GMM_TAG_PAGEABLE = 1u << 2
};

/** The settings of a tag. */
typedef struct gmm_tag_desc {
  uint32_t struct_size;
  gmm_contents contents;
  int32_t priority; /**< among several tags of one resume the highest resumes first on each device */
  uint32_t flags;   /**< GMM_TAG_* */
} gmm_tag_desc;

/**
 * Creates a tag, or finds the tag of that name.
 *
 * @param name  1 to 63 bytes of text in UTF-8.
 * @param desc  NULL: the defaults for a new tag. For a tag that exists, a desc that is not NULL must equal its
 * settings.
 * Errors: NULL_ARGUMENT, INVALID_VALUE (the name is empty, too long or not UTF-8, contents are unknown, or desc differs
 * from the tag's settings), INVALID_FLAGS, INVALID_DESCRIPTOR, OUT_OF_HOST_MEMORY, NOT_SUPPORTED (a checksum in a
 * library without xxhash), FORKED.
 * Ownership: gmm copies the name. The tag lives until gmm_tag_destroy() or the end of its context.
 */
GMM_API gmm_result gmm_tag_create(gmm_context *context, const char *name, const gmm_tag_desc *desc,
                                  gmm_tag *out) GMM_NOEXCEPT;

/**
 * Changes the settings of a tag from its next pause or resume on.
 *
 * Backups of memory that is paused now stay as they are. If the change removes ::GMM_TAG_READ_ONLY, the call waits for
 * a pause or resume of the tag in progress and drops the backups of active memory.
 *
 * @param desc  must not be NULL.
 * Errors: NULL_ARGUMENT (desc), INVALID_TAG, INVALID_VALUE, INVALID_FLAGS, INVALID_DESCRIPTOR, NOT_SUPPORTED, FORKED.
 */
GMM_API gmm_result gmm_tag_configure(gmm_context *context, gmm_tag tag, const gmm_tag_desc *desc) GMM_NOEXCEPT;

/**
 * Destroys a tag that nobody uses, and returns its free memory to the driver.
 *
 * The tag's number is not used again. A tag of the same name that is made later is another tag.
 *
 * Errors: INVALID_TAG, BUSY (the tag has live blocks or heaps, importers or a graph have its memory, a thread has
 * pushed it, or it is the default), CAPTURING, DRIVER, FORKED.
 * Streams: the call waits for the work that may use the tag's free memory.
 * Threads: no other thread may use the tag during the call. A thread that ends takes its pushes back.
 */
GMM_API gmm_result gmm_tag_destroy(gmm_context *context, gmm_tag tag) GMM_NOEXCEPT;

/**
 * Lists the tags of a context in ascending order.
 *
 * @param[out] tags  the first `capacity` tags; may be NULL if `capacity` is 0.
 * @param[out] count  the number of tags, which may be more than `capacity`.
 * Errors: NULL_ARGUMENT, FORKED.
 */
GMM_API gmm_result gmm_tag_list(gmm_context *context, gmm_tag *tags, uint32_t capacity, uint32_t *count) GMM_NOEXCEPT;

/**
 * Finds a tag by its name.
 *
 * Errors: NULL_ARGUMENT, INVALID_TAG (no tag has that name), FORKED.
 */
GMM_API gmm_result gmm_tag_find(gmm_context *context, const char *name, gmm_tag *out) GMM_NOEXCEPT;

/**
 * Makes `tag` the current tag of this thread until the matching gmm_tag_pop().
 *
 * Errors: INVALID_TAG, UNBALANCED (more than 64 pushes deep), FORKED.
 * Threads: the call affects the calling thread only.
 */
GMM_API gmm_result gmm_tag_push(gmm_context *context, gmm_tag tag) GMM_NOEXCEPT;

/**
 * Takes back the last gmm_tag_push() of this thread on this context.
 *
 * Errors: UNBALANCED, FORKED.
 * Threads: the call affects the calling thread only.
 */
GMM_API gmm_result gmm_tag_pop(gmm_context *context) GMM_NOEXCEPT;

/**
 * Sets the current tag of every thread that has pushed none.
 *
 * A program uses it so that allocations of a framework's helper threads get the tag too.
 *
 * @param tag  ::GMM_TAG_DEFAULT restores the initial state.
 * Errors: INVALID_TAG, FORKED.
 */
GMM_API gmm_result gmm_tag_set_default(gmm_context *context, gmm_tag tag) GMM_NOEXCEPT;

/* --- Pause and resume -------------------------------------------------------------------------------------- */

enum {
  /**
   * Pauses memory that importers hold, too, and revokes it.
   *
   * The importers' next call with the memory fails with IPC_REVOKED. They keep the old pages until they close the
   * import. This process gets new pages at the resume.
   */
  GMM_PAUSE_FORCE = 1u << 0,
  /* The contents in this pause, in place of the tags' setting. At most one of: */
  GMM_PAUSE_DROP = 1u << 1,
  GMM_PAUSE_KEEP_HOST = 1u << 2,
  GMM_PAUSE_KEEP_FILE = 1u << 3,
  /**
   * For gmm_resume() alone: blocks over 128 KiB keep their backup in host memory, though they are active.
   *
   * gmm_backup_read() and gmm_backup_map() go on to answer for them, with the contents of the last pause, until the
   * memory is freed or a resume without the flag. Blocks under 2 MiB share backups, which end with the first of them.
   * gmm_backup_map() gives a block the same address after each such resume. The call after a pause brings the contents
   * there up to date. Backups in files end with the resume.
   */
  GMM_RESUME_RETAIN = 1u << 4,
  /**
   * For gmm_pause_async() and gmm_resume_async() alone: the operation is held where it can no longer fail for want of
   * memory or space, and has changed nothing yet. gmm_ticket_commit() or gmm_ticket_cancel() ends that.
   *
   * A held pause has copied all contents, and the memory is active with all of its pages. The program may read, write
   * and free the memory. The commit copies all contents again, to the same places, except those of tags with
   * ::GMM_TAG_READ_ONLY.
   *
   * A held resume has all of its pages, charged to the limits, and maps none yet.
   *
   * While it is held, another operation on the tags waits for the decision, gmm_heap_destroy() of a heap of theirs is
   * BUSY, and so is an import of the memory. An operation without memory to change is held, too. Several
   * processes use it to pause together or not at all: see examples/job.
   */
  GMM_PAUSE_HOLD = 1u << 5,
  /**
   * With ::GMM_PAUSE_HOLD: no thread or kernel writes the memory while the pause is held, so its commit copies nothing
   * again. Bytes that are written in that time are lost.
   */
  GMM_PAUSE_NO_WRITES = 1u << 6,
  /** For gmm_resume() alone: pages whose contents are not kept read as zero. */
  GMM_RESUME_ZERO = 1u << 7,
  /**
   * For gmm_pause() and gmm_resume() with ranges: in the order of gmm_pause_desc.stream, and no device is waited for.
   *
   * Work that was queued on the stream before the pause may still use the pages. Work that is queued on the stream
   * after the resume finds the pages, behind all work of other streams that could use them before. The host and other
   * streams need an order with that stream. A pause that keeps contents waits for the device even so.
   */
  GMM_PAUSE_ORDERED = 1u << 8,
  /**
   * For gmm_resume() and gmm_resume_async() with ranges: makes pages for the parts that have none, and leaves them
   * paused. A later resume of such a part calls no driver. The limits count the pages.
   */
  GMM_RESUME_PREPARE = 1u << 9
};

/** A part of the memory of a context. */
typedef struct gmm_range {
  const void *address;
  uint64_t size; /**< bytes, at least 1 */
} gmm_range;

/**
 * Receives the progress of a copy of contents: bytes done and bytes in total. It comes at least every 64 MiB; where
 * several devices copy side by side, also every 20 ms.
 *
 * 0 continues. Any other result cancels the operation, which is undone and fails with CANCELLED. The function runs on
 * the thread of the operation and with locks held, so it must not call gmm.
 */
typedef int32_t (*gmm_progress_fn)(void *user, uint64_t done, uint64_t total);

/** A function that receives progress, with the pointer that it gets. */
typedef struct gmm_progress_callback {
  gmm_progress_fn fn; /**< may be NULL */
  void *user;
} gmm_progress_callback;

/** The options of gmm_pause() and gmm_resume(). */
typedef struct gmm_pause_desc {
  uint32_t struct_size;
  /**
   * GMM_PAUSE_* of a pause; of a resume GMM_RESUME_RETAIN, GMM_RESUME_ZERO, GMM_RESUME_PREPARE, GMM_PAUSE_HOLD and
   * GMM_PAUSE_ORDERED
   */
  uint32_t flags;
  const gmm_tag *tags;
  uint32_t tag_count;   /**< 0: every tag */
  uint32_t range_count; /**< 0: all memory of the tags */
  /** Its `user` must live until the pause or resume has ended. */
  gmm_progress_callback progress;
  uint64_t hold_ms; /**< with ::GMM_PAUSE_HOLD: milliseconds until it is undone, at most 86,400,000; 0: 60,000 */
  /**
   * In place of tags, and without ::GMM_PAUSE_HOLD: only these parts, as gmm_pause_range() and gmm_resume_range() take
   * one. They do not overlap. All of them change, or none.
   */
  const gmm_range *ranges;
  gmm_stream stream; /**< with ::GMM_PAUSE_ORDERED */
} gmm_pause_desc;

/**
 * Returns the physical memory of the tags' VMM blocks to the driver and keeps every address.
 *
 * The call does all or nothing: a failure leaves every block usable with its contents. Memory of other kinds under the
 * tags stays as it is. Blocks that are allocated under the tags from now on are active. Contents of several devices are
 * copied side by side, as each device has a link of its own; a thread of the library serves each further one.
 *
 * @param desc  NULL: every tag.
 * @param[out] bytes  bytes that returned to the driver; may be NULL. Exported memory and memory of
 * ::GMM_ALLOC_COMM that others hold is not among them: see gmm_tag_info.foreign_bytes.
 * Results: UNCHANGED with 0 bytes (nothing was active).
 * Errors: INVALID_TAG, INVALID_FLAGS, INVALID_DESCRIPTOR, NULL_ARGUMENT (tags), BUSY (importers hold a block, a watcher
 * of gmm_watch() refuses, or a failure left memory that only gmm_resume() mends), CAPTURING, CANCELLED,
 * OUT_OF_HOST_MEMORY and IO (no space for the contents), NOT_SUPPORTED, DRIVER, FORKED.
 * Streams: the call first waits for the devices that own the memory.
 * Threads: any. During the call no thread or kernel may use the memory. A free of the memory during the call waits; a
 * free of paused memory does not.
 */
GMM_API gmm_result gmm_pause(gmm_context *context, const gmm_pause_desc *desc, uint64_t *bytes) GMM_NOEXCEPT;

/**
 * Gives paused memory physical memory again, at the same addresses and with the contents that were backed up.
 *
 * The tags resume in the order of their priorities. The call does all or nothing: after a failure everything stays
 * paused with its backups, and a retry works. The exception is memory that gmm_resume_wait() has already reported as
 * usable: that stays active.
 *
 * @param desc  NULL: every tag. Its flags are those of gmm_resume().
 * @param[out] bytes  bytes taken from the driver; may be NULL.
 * Results: UNCHANGED with 0 bytes (nothing was paused).
 * Errors: as gmm_pause(), OUT_OF_MEMORY, LIMIT_EXCEEDED, CORRUPT (a backup differs from its checksum; the message names
 * the range).
 */
GMM_API gmm_result gmm_resume(gmm_context *context, const gmm_pause_desc *desc, uint64_t *bytes) GMM_NOEXCEPT;

/**
 * Pauses a part of a block of ::GMM_ALLOC_PAUSED.
 *
 * Without kept contents the part is as it was born: gmm_resume() of the tag does not bring it back. Its pages stay, and
 * count as reserved, until somebody wants them: a resume of the same part finds them without a call of the driver, and
 * one of another part of the tag gets them if the sizes are the same. They return to the driver by a trim, a pause of
 * the tag, the age of gmm_context_set_decommit(), and where other memory of the device grows. Pages of which a
 * descriptor left the process return at once. So do those of a part whose contents are kept or that an import has, and
 * both kinds of resume bring that part back. Of a part that is paused, contents that the call drops go.
 *
 * @param address  in the block; the range holds whole driver allocations, as gmm_query() tells them.
 * @param size  bytes, at least 1; the last may be that of the block.
 * @param flags  ::GMM_PAUSE_FORCE, and one of ::GMM_PAUSE_DROP, ::GMM_PAUSE_KEEP_HOST and ::GMM_PAUSE_KEEP_FILE; none:
 * as the tag has it.
 * @param[out] bytes  bytes that were given back; may be NULL.
 * Results: UNCHANGED with 0 bytes (there was nothing to take).
 * Errors: as gmm_pause(), INVALID_SIZE (the range is empty, or reaches past the block), INVALID_KIND (another block),
 * INVALID_VALUE (the range cuts a driver allocation), UNKNOWN_POINTER (it is in no live block).
 * Streams, threads: as gmm_pause(). The rest of the block may be used meanwhile.
 */
GMM_API gmm_result gmm_pause_range(gmm_context *context, const void *address, uint64_t size, uint32_t flags,
                                   uint64_t *bytes) GMM_NOEXCEPT;

/**
 * Resumes the memory in [address, address + size), and all memory in the same pages of the driver.
 *
 * The call does all or nothing. The rest of the tag stays paused until a later gmm_resume(). In a block of
 * ::GMM_ALLOC_PAUSED it takes memory for the pages that have none.
 *
 * @param address  an address in memory of this context; the range may span several blocks.
 * @param size  bytes, at least 1.
 * @param[out] bytes  bytes that have become usable; may be NULL.
 * Results: UNCHANGED with 0 bytes (all of the range was active).
 * Errors: as gmm_resume(), NULL_ARGUMENT, INVALID_SIZE, UNKNOWN_POINTER (a part of the range is not memory of this
 * context).
 */
GMM_API gmm_result gmm_resume_range(gmm_context *context, const void *address, uint64_t size,
                                    uint64_t *bytes) GMM_NOEXCEPT;

/**
 * Waits until another thread or a ticket has resumed a range, contents included.
 *
 * The call starts no resume itself.
 *
 * @param size  bytes, at least 1.
 * @param timeout_ms  milliseconds; 0 does not wait; ::GMM_FOREVER waits without a limit.
 * Results: OK means that all of the range is usable.
 * Errors: NOT_READY (the timeout passed first), NULL_ARGUMENT, INVALID_SIZE, UNKNOWN_POINTER (also if the memory is
 * freed during the wait), FORKED.
 */
GMM_API gmm_result gmm_resume_wait(gmm_context *context, const void *address, uint64_t size,
                                   uint64_t timeout_ms) GMM_NOEXCEPT;

/** The answer of gmm_tag_query(). */
typedef struct gmm_tag_info {
  uint32_t struct_size;
  gmm_tag tag;
  gmm_contents contents;
  int32_t priority;
  uint64_t active_bytes;      /**< VMM memory that has pages now */
  uint64_t paused_bytes;      /**< VMM memory without pages, which gmm_resume() brings back */
  uint64_t backup_host_bytes; /**< of paused_bytes: contents in host memory, page-locked or not */
  uint64_t backup_file_bytes; /**< of paused_bytes: contents in a file */
  uint64_t pauses;            /**< number of pauses of this tag */
  char name[64];
  uint64_t backup_pinned_bytes; /**< of backup_host_bytes: contents in the page-locked arena */
  uint64_t backup_zero_bytes;   /**< contents that are all zero and take no memory */
  uint64_t backup_active_bytes; /**< backups of active read-only memory, for the next pause */
  uint32_t flags;               /**< GMM_TAG_* */
  gmm_state state;              /**< ACTIVE, PAUSED, or PARTLY_PAUSED if the tag has both kinds of memory */
  /**
   * Bytes that left gmm at the last pause of this memory, but did not return to the device: others hold them.
   *
   * The holder is an open descriptor of gmm_ipc_export_fd() or an object on it, an importer under
   * ::GMM_PAUSE_FORCE, an importer on another machine, or a library that registered the memory (an NCCL window). On
   * CUDA gmm compares the device's free memory before and after, so allocations and frees of other processes in that
   * moment change the number. The next pause measures anew.
   */
  uint64_t foreign_bytes;
} gmm_tag_info;

/**
 * Describes a tag: its settings, its active and paused bytes, and its backups.
 *
 * The call waits for a pause or resume of the tag in progress.
 *
 * Errors: NULL_ARGUMENT, INVALID_TAG, INVALID_DESCRIPTOR, FORKED.
 */
GMM_API gmm_result gmm_tag_query(gmm_context *context, gmm_tag tag, gmm_tag_info *out) GMM_NOEXCEPT;

/* --- Tickets: pause and resume in the background ------------------------------------------------------------ */

/** A pause or resume that a thread of the library carries out. A ticket keeps its context alive. */
typedef struct gmm_ticket gmm_ticket;

/** The progress of a ticket's operation. */
typedef uint32_t gmm_ticket_state;
enum {
  GMM_TICKET_RUNNING = 0,
  GMM_TICKET_DONE = 1, /**< it has ended, with success or failure */
  GMM_TICKET_HELD = 2  /**< ::GMM_PAUSE_HOLD: it waits for gmm_ticket_commit() or gmm_ticket_cancel() */
};

/** The answer of gmm_ticket_query(). */
typedef struct gmm_ticket_info {
  uint32_t struct_size;
  gmm_ticket_state state;
  gmm_result result;     /**< the operation's result; GMM_ERROR_NOT_READY before its end */
  uint32_t reserved;     /**< 0 */
  uint64_t bytes;        /**< bytes that changed state */
  uint64_t copied_bytes; /**< bytes of contents copied so far */
  uint64_t total_bytes;  /**< bytes of contents to copy; 0 until that is known */
} gmm_ticket_info;

/**
 * Starts gmm_pause() on a thread of its own.
 *
 * @param desc  as for gmm_pause().
 * Errors: NULL_ARGUMENT, SYSTEM (no thread), OUT_OF_HOST_MEMORY, and those of gmm_pause() about its arguments. Later
 * errors are the result of gmm_ticket_wait().
 * Ownership: gmm copies desc and its tags. The caller destroys the ticket with gmm_ticket_destroy().
 */
GMM_API gmm_result gmm_pause_async(gmm_context *context, const gmm_pause_desc *desc, gmm_ticket **out) GMM_NOEXCEPT;

/**
 * Starts gmm_resume() on a thread of its own.
 *
 * @param desc  as for gmm_resume().
 * Errors: as gmm_pause_async().
 * Ownership: as gmm_pause_async().
 */
GMM_API gmm_result gmm_resume_async(gmm_context *context, const gmm_pause_desc *desc, gmm_ticket **out) GMM_NOEXCEPT;

/**
 * Describes the progress of a ticket's operation without waiting.
 *
 * Errors: INVALID_HANDLE, NULL_ARGUMENT, INVALID_DESCRIPTOR, FORKED.
 */
GMM_API gmm_result gmm_ticket_query(gmm_ticket *ticket, gmm_ticket_info *out) GMM_NOEXCEPT;

/**
 * Waits for the end of a ticket's operation and returns its result.
 *
 * The operation's message becomes this thread's message.
 *
 * @param timeout_ms  milliseconds; 0 does not wait; ::GMM_FOREVER waits without a limit.
 * @param[out] bytes  bytes that changed state; may be NULL.
 * Results: the operation's.
 * Errors: NOT_READY (the timeout passed first), BUSY (a request of a lease, in a lease's `asked`), INVALID_HANDLE,
 * FORKED, and the operation's. A request of a lease may itself end with NOT_READY: gmm_ticket_info.state shows
 * whether it has ended.
 */
GMM_API gmm_result gmm_ticket_wait(gmm_ticket *ticket, uint64_t timeout_ms, uint64_t *bytes) GMM_NOEXCEPT;

/**
 * Waits until an operation with ::GMM_PAUSE_HOLD is held.
 *
 * @param timeout_ms  milliseconds; 0 does not wait; ::GMM_FOREVER waits without a limit.
 * Results: OK means that it is held. If the operation has ended instead, its result is returned, with its message.
 * Errors: NOT_READY (the timeout passed first), BUSY (a request of a lease, in a lease's `asked`), INVALID_HANDLE,
 * FORKED, and the operation's.
 */
GMM_API gmm_result gmm_ticket_wait_held(gmm_ticket *ticket, uint64_t timeout_ms) GMM_NOEXCEPT;

/**
 * Carries out an operation that is held. The call does not wait: gmm_ticket_wait() does.
 *
 * From now on a cancellation has no effect. The operation may still fail if the driver or the system refuses a call.
 * Then it is undone, nothing is lost, and gmm_ticket_wait() returns the failure.
 *
 * Results: UNCHANGED (it was committed before).
 * Errors: NOT_READY (it is not held: it still runs, has no ::GMM_PAUSE_HOLD, or has ended), INVALID_HANDLE, FORKED. An
 * operation that has ended with a failure returns that: CANCELLED after gmm_ticket_cancel() or gmm_pause_desc.hold_ms.
 */
GMM_API gmm_result gmm_ticket_commit(gmm_ticket *ticket) GMM_NOEXCEPT;

/**
 * Requests the cancellation of a ticket's operation.
 *
 * An operation that has committed completes normally. Any other, also one that is held, is undone and ends with
 * CANCELLED. The call does not wait.
 *
 * Errors: INVALID_HANDLE, FORKED.
 */
GMM_API gmm_result gmm_ticket_cancel(gmm_ticket *ticket) GMM_NOEXCEPT;

/**
 * Waits for the end of a ticket's operation and destroys the ticket.
 *
 * An operation with ::GMM_PAUSE_HOLD that was not committed is undone. The ticket keeps its context alive until then.
 *
 * @param ticket  NULL is allowed and does nothing.
 * Errors: INVALID_HANDLE, FORKED.
 */
GMM_API gmm_result gmm_ticket_destroy(gmm_ticket *ticket) GMM_NOEXCEPT;

/* --- Backups: the contents of paused memory ---------------------------------------------------------------- */

enum {
  /** The arena does not grow, and pauses use only the memory that it has. gmm page-locks a small ring for copies. */
  GMM_BACKUP_NO_ARENA = 1u << 0,
  GMM_BACKUP_NO_PAGEABLE = 1u << 1, /**< contents that do not fit into the arena go to a file */
  /**
   * Backup files have names in the directory: one a block, and beyond 48 files several blocks share one.
   *
   * A file stays for the next pause of as much memory, until gmm_trim() or the end of the context. A process that is
   * killed leaves its files. The next process that backs up there deletes them.
   */
  GMM_BACKUP_NAMED_FILES = 1u << 2
};

/** The settings of backups. Zero means the default in every field. */
typedef struct gmm_backup_desc {
  uint32_t struct_size;
  uint32_t flags;          /**< GMM_BACKUP_* */
  uint64_t arena_limit;    /**< bytes of page-locked memory; 0: GMM_BACKUP_ARENA_LIMIT, or spare memory */
  uint64_t pageable_limit; /**< bytes of other host memory; 0: GMM_BACKUP_PAGEABLE_LIMIT, or spare memory */
  const char *directory;   /**< the directory of the files, copied; NULL: GMM_BACKUP_DIR, or /tmp */
  uint32_t threads;        /**< threads that copy, touch and scan host memory; 0: one for each core, at most 16 */
  uint32_t reserved;
} gmm_backup_desc;

/**
 * Configures the backups of later pauses.
 *
 * Backups that exist stay where they are.
 *
 * @param desc  NULL: the defaults.
 * Errors: INVALID_DESCRIPTOR, INVALID_FLAGS, INVALID_VALUE (the directory's name is too long), IO (the directory does
 * not exist or is not writable), FORKED.
 */
GMM_API gmm_result gmm_backup_configure(gmm_context *context, const gmm_backup_desc *desc) GMM_NOEXCEPT;

/**
 * Page-locks host memory for `bytes` of contents of a device ahead of time.
 *
 * The first pause is then as fast as later ones.
 *
 * Errors: INVALID_DEVICE, OUT_OF_HOST_MEMORY, LIMIT_EXCEEDED (arena_limit), DRIVER, FORKED.
 */
GMM_API gmm_result gmm_backup_reserve(gmm_context *context, gmm_device device, uint64_t bytes) GMM_NOEXCEPT;

/** The answer of gmm_backup_query(). */
typedef struct gmm_backup_info {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t arena_bytes; /**< bytes page-locked now; gmm_trim() returns those without contents */
  uint64_t arena_used;  /**< of arena_bytes: bytes that hold contents */
  uint64_t arena_limit;
  uint64_t pageable_bytes; /**< contents in other host memory */
  uint64_t file_bytes;     /**< contents in files; gmm_trim() deletes a file without contents */
  uint64_t zero_bytes;     /**< contents that are all zero and take no memory */
  uint64_t copied_bytes;   /**< bytes copied by all pauses and resumes so far */
  uint64_t skipped_bytes;  /**< bytes not copied: they were zero, or read-only and already backed up */
} gmm_backup_info;

/**
 * Describes the backups of a context: bytes in each place, limits and copies.
 *
 * Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, FORKED.
 */
GMM_API gmm_result gmm_backup_query(gmm_context *context, gmm_backup_info *out) GMM_NOEXCEPT;

/**
 * Copies the backed-up contents of paused memory to the host.
 *
 * The memory stays paused.
 *
 * @param size  bytes, at least 1.
 * @param[out] out  a buffer of `size` bytes.
 * Errors: NULL_ARGUMENT, INVALID_SIZE, UNKNOWN_POINTER, INVALID_VALUE (the memory is active without
 * ::GMM_RESUME_RETAIN, or its contents were dropped), IO, CORRUPT, FORKED.
 */
GMM_API gmm_result gmm_backup_read(gmm_context *context, const void *address, uint64_t size, void *out) GMM_NOEXCEPT;

/**
 * Returns the backed-up contents of paused memory as one piece of host memory to read.
 *
 * The first call copies the contents into one piece if they do not lie in one.
 *
 * @param size  bytes, at least 1.
 * Errors: as gmm_backup_read(), OUT_OF_HOST_MEMORY.
 * Ownership: the contents belong to gmm. They live until the memory is resumed without ::GMM_RESUME_RETAIN, freed or
 * discarded.
 */
GMM_API gmm_result gmm_backup_map(gmm_context *context, const void *address, uint64_t size,
                                  const void **out) GMM_NOEXCEPT;

/**
 * Drops the backups of the tags' paused memory.
 *
 * After a resume the bytes are undefined. The memory and files of the backups are free again.
 *
 * @param desc  NULL: every tag. Its flags must be 0.
 * @param[out] bytes  bytes of contents; may be NULL.
 * Results: UNCHANGED (there were no backups).
 * Errors: as gmm_resume().
 */
GMM_API gmm_result gmm_backup_discard(gmm_context *context, const gmm_pause_desc *desc, uint64_t *bytes) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
