/* SPDX-License-Identifier: Apache-2.0
 *
 * Macros whose values SWIG cannot read from the headers, for their casts and names of <stdint.h>.
 */
/* Text, which the languages read from gmm_version_string(). */
%ignore GMM_VERSION_SUFFIX;
%constant int32_t GMM_DEVICE_HOST = -1;
%constant uint32_t GMM_TAG_CURRENT = 0;
%constant uint32_t GMM_TAG_DEFAULT = 1;
%constant uint32_t GMM_STREAM_DEFAULT = 0;
%constant uint32_t GMM_STREAM_LEGACY = 1;
%constant uint32_t GMM_STREAM_PER_THREAD = 2;
%constant uint64_t GMM_FOREVER = 18446744073709551615ull;
%constant uint64_t GMM_NO_LIMIT = 18446744073709551615ull;
%constant uint64_t GMM_DECOMMIT_NEVER = 18446744073709551615ull;
