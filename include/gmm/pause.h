/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file pause.h
 * Tags, pause and resume: physical memory goes, the address stays.
 */
#ifndef GMM_PAUSE_H
#define GMM_PAUSE_H

#include <gmm/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What becomes of the contents of a tag's memory when it pauses. */
typedef uint32_t gmm_contents;
enum {
  GMM_CONTENTS_DROP = 0, /**< gone; after resume the bytes are undefined */
  GMM_CONTENTS_HOST = 1, /**< kept in host memory */
  GMM_CONTENTS_FILE =
      2 /**< kept in a file under GMM_BACKUP_DIR (default /tmp); the file has no name and dies with the process */
};

typedef struct gmm_tag_desc {
  uint32_t struct_size;
  gmm_contents contents;
  int32_t priority; /**< higher resumes first when several resume at once */
  uint32_t reserved;
} gmm_tag_desc;

/**
 * Makes a tag, or finds it: a name that exists gives the same tag, and `desc`, when not NULL, must agree with it.
 * @param name  1 to 63 bytes of text, copied.
 * Errors: NULL_ARGUMENT, INVALID_VALUE (empty or long name, unknown contents, or a desc that differs), INVALID_DESCRIPTOR,
 * OUT_OF_HOST_MEMORY, NOT_SUPPORTED (over 4,000 tags), FORKED. Since: 0.1
 */
GMM_API gmm_result gmm_tag_create(gmm_context *context, const char *name, const gmm_tag_desc *desc,
                                  gmm_tag *out) GMM_NOEXCEPT;

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

enum {
  GMM_PAUSE_FORCE =
      1u << 0 /**< also when importers hold the memory: they keep the old pages, this process gets new ones */
};

typedef struct gmm_pause_desc {
  uint32_t struct_size;
  uint32_t flags; /**< GMM_PAUSE_* */
  const gmm_tag *tags;
  uint32_t tag_count; /**< 0: every tag */
  uint32_t reserved;
} gmm_pause_desc;

/**
 * Gives the physical memory of the tags' VMM blocks back to the driver and keeps every address. Waits for the devices first.
 * All or nothing: a failure leaves every block usable with its contents. Blocks allocated under the tag from now
 * on are active. Other kinds of memory under the tag stay as they are.
 *
 * @param desc  NULL: every tag.
 * @param[out] bytes  bytes that went back to the driver; may be NULL.
 * Results: GMM_UNCHANGED with 0 bytes when nothing was active.
 * Errors: INVALID_TAG, INVALID_FLAGS, INVALID_DESCRIPTOR, NULL_ARGUMENT (tags), BUSY (importers, or a moved block), CAPTURING,
 * OUT_OF_HOST_MEMORY and IO (no room for contents), NOT_SUPPORTED, DRIVER, FORKED.
 * Thread safety: any thread; no thread or kernel may use the memory meanwhile. Since: 0.1
 */
GMM_API gmm_result gmm_pause(gmm_context *context, const gmm_pause_desc *desc, uint64_t *bytes) GMM_NOEXCEPT;

/**
 * Gives paused memory its pages back at the same addresses, with the contents where the tag keeps them; in the order of the
 * tags' priorities. All or nothing: a failure leaves everything paused with its backups, and a retry works.
 * @param desc  NULL: every tag; flags must be 0.
 * @param[out] bytes  bytes taken from the driver; may be NULL.
 * Results: GMM_UNCHANGED with 0 bytes when nothing was paused. Errors: as gmm_pause(), OUT_OF_MEMORY. Since: 0.1
 */
GMM_API gmm_result gmm_resume(gmm_context *context, const gmm_pause_desc *desc, uint64_t *bytes) GMM_NOEXCEPT;

typedef struct gmm_pause_info {
  uint32_t struct_size;
  gmm_tag tag;
  gmm_contents contents;
  int32_t priority;
  uint64_t active_bytes;      /**< VMM memory that has pages now */
  uint64_t paused_bytes;      /**< VMM memory whose pages are gone */
  uint64_t backup_host_bytes; /**< of it, contents kept in host memory */
  uint64_t backup_file_bytes; /**< of it, contents kept in a file */
  uint64_t pauses;            /**< how often this tag was paused */
  char name[64];
} gmm_pause_info;

/** Tells how a tag stands. Errors: NULL_ARGUMENT, INVALID_TAG, INVALID_DESCRIPTOR, FORKED. Since: 0.1 */
GMM_API gmm_result gmm_pause_query(gmm_context *context, gmm_tag tag, gmm_pause_info *out) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
