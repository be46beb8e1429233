/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file version.h
 * Version of the library and of its binary interface.
 */
#ifndef GMM_VERSION_H
#define GMM_VERSION_H

#include <gmm/types.h>

#define GMM_VERSION_MAJOR 0
#define GMM_VERSION_MINOR 1
#define GMM_VERSION_PATCH 0

/** Major, minor and patch in one number that compares in order: 1.2.3 is 0x010203. */
#define GMM_VERSION ((GMM_VERSION_MAJOR << 16) | (GMM_VERSION_MINOR << 8) | GMM_VERSION_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The version of the library that is loaded, in the form of @ref GMM_VERSION.
 * It may differ from the header's: an older program runs on a newer library.
 * Thread safety: any thread, any time. Never fails. Since: 0.1
 */
GMM_API uint32_t gmm_version(void) GMM_NOEXCEPT;

/**
 * The version as text, for example "0.1.0". The text is static; do not free it.
 * Thread safety: any thread, any time. Never fails. Since: 0.1
 */
GMM_API const char *gmm_version_string(void) GMM_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
