/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pause.h
 * Tags, pause and resume: physical memory goes, the address stays.
 */
#ifndef GMM_PAUSE_H
#define GMM_PAUSE_H

#include <gmm/memory.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- Tags ------------------------------------------------------------------------------------------------- */

/** What becomes of the contents of a tag's memory when it pauses. */
typedef uint32_t gmm_contents;
enum {
  GMM_CONTENTS_DROP = 0, /**< gone; after resume the bytes are undefined */
  GMM_CONTENTS_HOST =
      1,                /**< kept in host memory: page-locked while the arena may grow, else pageable, else in a file */
  GMM_CONTENTS_FILE = 2 /**< kept in a file in the folder for backups, which goes with the process */
};

enum {
  /** The contents are not written after they were first paused: a later pause does not copy what was kept already. The copy is kept through the
      resume. A block that was freed since is never taken for its successor. */
  GMM_TAG_READ_ONLY = 1u << 0,
  /** A checksum (XXH3) of each chunk that is kept, compared at the resume: a difference fails with CORRUPT. */
  GMM_TAG_CHECKSUM = 1u << 1
};

typedef struct gmm_tag_desc {
  uint32_t struct_size;
  gmm_contents contents;
  int32_t priority; /**< higher resumes first when several resume at once */
  uint32_t flags;   /**< GMM_TAG_* */
} gmm_tag_desc;

/**
 * Makes a tag, or finds it: a name that exists gives the same tag, and `desc`, when not NULL, must agree with it.
 * @param name  1 to 63 bytes of text, copied.
 * Errors: NULL_ARGUMENT, INVALID_VALUE (empty or long name, unknown contents, or a desc that differs), INVALID_FLAGS, INVALID_DESCRIPTOR,
 * OUT_OF_HOST_MEMORY, NOT_SUPPORTED (over 4,000 tags, or a checksum without the library for it), FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_tag_create(gmm_context *context, const char *name, const gmm_tag_desc *desc,
                                  gmm_tag *out) GMM_NOEXCEPT;

/**
 * Changes what a tag does, from the next pause or resume on. What is paused already stays kept as it was.
 * Taking GMM_TAG_READ_ONLY away forgets what is kept of active memory, and waits for a pause or resume under way.
 * Errors: NULL_ARGUMENT (desc), INVALID_TAG, INVALID_VALUE, INVALID_FLAGS, INVALID_DESCRIPTOR, NOT_SUPPORTED, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_tag_update(gmm_context *context, gmm_tag tag, const gmm_tag_desc *desc) GMM_NOEXCEPT;

/** Writes the tag of that name. Errors: NULL_ARGUMENT, INVALID_TAG (no such name), FORKED. Since: 0.1 */
GMM_API gmm_result gmm_tag_find(gmm_context *context, const char *name, gmm_tag *out) GMM_NOEXCEPT;

/** Makes `tag` the current tag of this thread, until the pop that belongs to it. Errors: INVALID_TAG, UNBALANCED (over 64 deep), FORKED. Since: 0.1 */
GMM_API gmm_result gmm_tag_push(gmm_context *context, gmm_tag tag) GMM_NOEXCEPT;

/** Takes back the last push of this thread on this context. Errors: UNBALANCED, FORKED. Since: 0.1 */
GMM_API gmm_result gmm_tag_pop(gmm_context *context) GMM_NOEXCEPT;

/**
 * Sets the current tag of every thread that has pushed none: helper threads of a framework do not escape a region.
 * ::GMM_TAG_DEFAULT undoes it. Errors: INVALID_TAG, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_tag_set_process_default(gmm_context *context, gmm_tag tag) GMM_NOEXCEPT;

/* --- Pause and resume -------------------------------------------------------------------------------------- */

enum {
  GMM_PAUSE_FORCE =
      1u
      << 0, /**< also when importers hold the memory: it is revoked. Their next call with it fails with IPC_REVOKED; they keep the old
                    pages until they close it, this process gets new ones */
  /* What becomes of the contents this time, whatever the tags say. At most one of: */
  GMM_PAUSE_DROP = 1u << 1,
  GMM_PAUSE_KEEP_HOST = 1u << 2,
  GMM_PAUSE_KEEP_FILE = 1u << 3
};

/**
 * Called while contents are copied, at least every 64 MiB, with the bytes that are done and all that there are. Anything but 0 ends the
 * operation, which is undone and fails with CANCELLED. It runs on the thread that works, with locks held: it must not call gmm.
 */
typedef int32_t (*gmm_progress_fn)(void *user, uint64_t done, uint64_t total);

typedef struct gmm_pause_desc {
  uint32_t struct_size;
  uint32_t flags; /**< GMM_PAUSE_* */
  const gmm_tag *tags;
  uint32_t tag_count; /**< 0: every tag */
  uint32_t reserved;
  gmm_progress_fn progress; /**< may be NULL */
  void *progress_user;
} gmm_pause_desc;

/**
 * Gives the physical memory of the tags' VMM blocks back to the driver and keeps every address. Waits for the devices that own the memory first.
 * All or nothing: a failure leaves every block usable with its contents. Blocks allocated under the tag from now
 * on are active. Other kinds of memory under the tag stay as they are. A free of the memory meanwhile waits; a free of paused memory works.
 *
 * @param desc  NULL: every tag.
 * @param[out] bytes  bytes that went back to the driver; may be NULL.
 * Results: GMM_UNCHANGED with 0 bytes when nothing was active.
 * Errors: INVALID_TAG, INVALID_FLAGS, INVALID_DESCRIPTOR, NULL_ARGUMENT (tags), BUSY (importers, or a moved block), CAPTURING, CANCELLED,
 * OUT_OF_HOST_MEMORY and IO (no room for contents), NOT_SUPPORTED, DRIVER, FORKED.
 * Thread safety: any thread; no thread or kernel may use the memory meanwhile. Since: 0.1
 */
GMM_API gmm_result gmm_pause(gmm_context *context, const gmm_pause_desc *desc, uint64_t *bytes) GMM_NOEXCEPT;

/**
 * Gives paused memory its pages back at the same addresses, with the contents where the tag keeps them; in the order of the
 * tags' priorities. All or nothing: a failure leaves everything paused with its backups, and a retry works, except for memory that
 * gmm_resume_wait() has already told somebody is ready: that stays active.
 * @param desc  NULL: every tag; flags must be 0.
 * @param[out] bytes  bytes taken from the driver; may be NULL.
 * Results: GMM_UNCHANGED with 0 bytes when nothing was paused. Errors: as gmm_pause(), OUT_OF_MEMORY, LIMIT_EXCEEDED,
 * CORRUPT (kept contents differ from their checksum; the message names the range). Since: 0.1
 */
GMM_API gmm_result gmm_resume(gmm_context *context, const gmm_pause_desc *desc, uint64_t *bytes) GMM_NOEXCEPT;

/**
 * Resumes a part: what lies in [address, address + size), and what shares pages of the driver with it. All or nothing. The rest of the
 * tag stays paused, and a later gmm_resume() brings it.
 * @param address  in memory of this context; the range may span several blocks.
 * Results: GMM_UNCHANGED with 0 bytes when all of it was active. Errors: as gmm_resume(), NULL_ARGUMENT, INVALID_SIZE,
 * UNKNOWN_POINTER (some of the range is not memory of this context). Since: 0.1
 */
GMM_API gmm_result gmm_resume_range(gmm_context *context, const void *address, uint64_t size,
                                    uint64_t *bytes) GMM_NOEXCEPT;

/**
 * Waits until a resume by another thread or a ticket has made the range usable, contents included. It starts none.
 * @param timeout_ms  0: only looks; UINT64_MAX: for ever.
 * Results: GMM_OK when all of it is usable; GMM_NOT_READY when the time was over first.
 * Errors: NULL_ARGUMENT, INVALID_SIZE, UNKNOWN_POINTER (also when it is freed meanwhile), FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_resume_wait(gmm_context *context, const void *address, uint64_t size,
                                   uint64_t timeout_ms) GMM_NOEXCEPT;

typedef struct gmm_pause_info {
  uint32_t struct_size;
  gmm_tag tag;
  gmm_contents contents;
  int32_t priority;
  uint64_t active_bytes;      /**< VMM memory that has pages now */
  uint64_t paused_bytes;      /**< VMM memory whose pages are gone */
  uint64_t backup_host_bytes; /**< of it, contents kept in host memory, page-locked or not */
  uint64_t backup_file_bytes; /**< of it, contents kept in a file */
  uint64_t pauses;            /**< how often this tag was paused */
  char name[64];
  uint64_t backup_pinned_bytes; /**< of backup_host_bytes, what lies in the page-locked arena */
  uint64_t backup_zero_bytes;   /**< contents that are all zero and take no room */
  uint64_t retained_bytes;      /**< kept of active read-only memory, for the next pause */
  uint32_t flags;               /**< GMM_TAG_* */
  gmm_state state;              /**< ACTIVE, PAUSED, or PARTLY_PAUSED when both kinds of memory are there */
} gmm_pause_info;

/** Tells how a tag stands. Waits for a transition under way. Errors: NULL_ARGUMENT, INVALID_TAG, INVALID_DESCRIPTOR, FORKED. Since: 0.1 */
GMM_API gmm_result gmm_pause_query(gmm_context *context, gmm_tag tag, gmm_pause_info *out) GMM_NOEXCEPT;

/* --- Tickets: the same in the background ------------------------------------------------------------------- */

/** A pause or resume that a thread of the library carries out. It belongs to who asked for it, and keeps its context. */
typedef struct gmm_ticket gmm_ticket;

typedef struct gmm_ticket_info {
  uint32_t struct_size;
  uint32_t done;         /**< 1 when it ended, however */
  gmm_result result;     /**< what it came to; GMM_NOT_READY while it runs */
  uint32_t reserved;     /**< 0 */
  uint64_t bytes;        /**< bytes that changed state */
  uint64_t copied_bytes; /**< of the contents, so far */
  uint64_t total_bytes;  /**< of contents to copy; 0 until that is known */
} gmm_ticket_info;

/** gmm_pause() by a thread of its own. The descriptor is copied. Errors: as gmm_pause() where they show at once, NULL_ARGUMENT, SYSTEM (no thread). Since: 0.1 */
GMM_API gmm_result gmm_pause_async(gmm_context *context, const gmm_pause_desc *desc, gmm_ticket **out) GMM_NOEXCEPT;

/** gmm_resume() by a thread of its own. Errors: as gmm_pause_async(). Since: 0.1 */
GMM_API gmm_result gmm_resume_async(gmm_context *context, const gmm_pause_desc *desc, gmm_ticket **out) GMM_NOEXCEPT;

/** Looks, without waiting. Errors: INVALID_HANDLE, NULL_ARGUMENT, INVALID_DESCRIPTOR, FORKED. Since: 0.1 */
GMM_API gmm_result gmm_ticket_query(gmm_ticket *ticket, gmm_ticket_info *out) GMM_NOEXCEPT;

/**
 * Waits for its end and returns what it came to, with the operation's message as this thread's message.
 * @param timeout_ms  UINT64_MAX: for ever. @param[out] bytes  may be NULL.
 * Results: GMM_NOT_READY when the time was over first. Errors: INVALID_HANDLE, FORKED, and the operation's. Since: 0.1
 */
GMM_API gmm_result gmm_ticket_wait(gmm_ticket *ticket, uint64_t timeout_ms, uint64_t *bytes) GMM_NOEXCEPT;

/** Asks it to stop: it is undone and ends with CANCELLED, or ends as it would have when it is too late. Does not wait. Errors: INVALID_HANDLE, FORKED. Since: 0.1 */
GMM_API gmm_result gmm_ticket_cancel(gmm_ticket *ticket) GMM_NOEXCEPT;

/** Waits for its end and frees it. NULL is allowed. Errors: INVALID_HANDLE, FORKED. Since: 0.1 */
GMM_API gmm_result gmm_ticket_destroy(gmm_ticket *ticket) GMM_NOEXCEPT;

/* --- Where kept contents lie --------------------------------------------------------------------------------- */

enum {
  GMM_BACKUP_NO_ARENA =
      1u << 0, /**< no further page-locked memory but a small ring for copies; what there is serves until gmm_trim() */
  GMM_BACKUP_NO_PAGEABLE = 1u << 1 /**< what the arena does not hold goes to a file */
};

/** How contents are kept. Zero means the default everywhere. */
typedef struct gmm_backup_desc {
  uint32_t struct_size;
  uint32_t flags;          /**< GMM_BACKUP_* */
  uint64_t arena_limit;    /**< bytes of page-locked memory; 0: GMM_BACKUP_ARENA_LIMIT, or what the host can spare */
  uint64_t pageable_limit; /**< bytes of other host memory; 0: GMM_BACKUP_PAGEABLE_LIMIT, or what the host can spare */
  const char *directory;   /**< for files; copied; NULL: GMM_BACKUP_DIR, or /tmp */
  uint32_t threads;        /**< that copy, touch and scan host memory; 0: one for each core, 16 at most */
  uint32_t reserved;
} gmm_backup_desc;

/** Sets it, from the next pause on; what is kept stays where it is. NULL: the defaults. Errors: INVALID_DESCRIPTOR, INVALID_FLAGS, INVALID_VALUE (a directory's name that is too long), IO (no such directory, or not writable), FORKED. Since: 0.1 */
GMM_API gmm_result gmm_set_backup(gmm_context *context, const gmm_backup_desc *desc) GMM_NOEXCEPT;

/** Gets page-locked memory for `bytes` of contents of a device ahead of time, so that the first pause is as fast as later ones. Errors: INVALID_DEVICE, OUT_OF_HOST_MEMORY, LIMIT_EXCEEDED, DRIVER, FORKED. Since: 0.1 */
GMM_API gmm_result gmm_backup_prepare(gmm_context *context, gmm_device device, uint64_t bytes) GMM_NOEXCEPT;

typedef struct gmm_backup_info {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t arena_bytes; /**< page-locked now; gmm_trim() gives back what is unused */
  uint64_t arena_used;  /**< of them, holding contents */
  uint64_t arena_limit;
  uint64_t pageable_bytes; /**< contents in other host memory */
  uint64_t file_bytes;     /**< contents; gmm_trim() gives back a file that keeps none */
  uint64_t zero_bytes;     /**< contents that are all zero: they take no room */
  uint64_t copied_bytes;   /**< by all pauses and resumes so far */
  uint64_t skipped_bytes;  /**< not copied as they were zero, or kept already and read-only */
} gmm_backup_info;

/** Errors: NULL_ARGUMENT, INVALID_DESCRIPTOR, FORKED. Since: 0.1 */
GMM_API gmm_result gmm_backup_query(gmm_context *context, gmm_backup_info *out) GMM_NOEXCEPT;

/**
 * Copies kept contents of paused memory to `out`, which leaves the memory paused.
 * Errors: NULL_ARGUMENT, INVALID_SIZE, UNKNOWN_POINTER, INVALID_VALUE (active, or its contents were dropped), IO, CORRUPT, FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_backup_read(gmm_context *context, const void *address, uint64_t size, void *out) GMM_NOEXCEPT;

/**
 * The kept contents of paused memory as one piece of host memory, to read. It is made at the first call where they lie apart. Good until the memory is
 * resumed, freed or discarded. Errors: as gmm_backup_read(), OUT_OF_HOST_MEMORY. Since: 0.1
 */
GMM_API gmm_result gmm_backup_map(gmm_context *context, const void *address, uint64_t size,
                                  const void **out) GMM_NOEXCEPT;

/**
 * Forgets the kept contents of the tags' paused memory: after a resume the bytes are undefined. The room goes back.
 * @param[out] bytes  of contents; may be NULL. Results: GMM_UNCHANGED when there were none. Errors: as gmm_resume(). Since: 0.1
 */
GMM_API gmm_result gmm_backup_discard(gmm_context *context, const gmm_pause_desc *desc, uint64_t *bytes) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
