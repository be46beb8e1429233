/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file version.h
 * The version of the library and of its binary interface.
 */
#ifndef GMM_VERSION_H
#define GMM_VERSION_H

#include <gmm/types.h>

#define GMM_VERSION_MAJOR 1
#define GMM_VERSION_MINOR 0
#define GMM_VERSION_PATCH 0
/** The end of the version's text: "rc0" for the first candidate, else "". */
#define GMM_VERSION_SUFFIX "rc0"

/** The version of this header in one number, which compares in order: 1.2.3 is 0x010203. */
#define GMM_VERSION ((GMM_VERSION_MAJOR << 16) | (GMM_VERSION_MINOR << 8) | GMM_VERSION_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Returns the version of the loaded library, in the form of @ref GMM_VERSION.
 *
 * The result may differ from the header's version: an older program runs on a newer library.
 *
 * Errors: none. Threads: any, also in a child after fork().
 */
GMM_API uint32_t gmm_version(void) GMM_NOEXCEPT;

/**
 * Returns the version of the loaded library as text, for example "1.0.0", or "1.0.0rc0" for a candidate.
 *
 * Errors: none. Threads: any, also in a child after fork().
 * Ownership: the text is static; the caller must not free it.
 */
GMM_API const char *gmm_version_string(void) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
