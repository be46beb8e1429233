// SPDX-License-Identifier: Apache-2.0
// Whether page locks can be tested in this build.
#ifndef GMM_TESTS_UNIT_PAGE_LOCKS_H
#define GMM_TESTS_UNIT_PAGE_LOCKS_H

namespace gmm::test {

// The address and thread sanitizers turn mlock() into nothing, so that its refusals cannot be seen under them.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define GMM_TEST_NO_PAGE_LOCKS 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(GMM_TEST_NO_PAGE_LOCKS)
inline constexpr bool kPageLocksAreReal = false;
#else
inline constexpr bool kPageLocksAreReal = true;
#endif

}  // namespace gmm::test
#endif
