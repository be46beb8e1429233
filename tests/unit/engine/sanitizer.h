// SPDX-License-Identifier: Apache-2.0
// How much of a long test runs in this build.
#ifndef GMM_TESTS_UNIT_ENGINE_SANITIZER_H
#define GMM_TESTS_UNIT_ENGINE_SANITIZER_H

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#if defined(__SANITIZE_THREAD__)
#define GMM_TEST_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GMM_TEST_THREAD_SANITIZER 1
#endif
#endif

namespace gmm::test {

// A long test in memory alone runs so many times fewer histories under a sanitizer. The plain build runs all.
#if defined(GMM_TEST_THREAD_SANITIZER) || defined(__SANITIZE_ADDRESS__)
inline constexpr uint64_t kFewer = 10;
#else
inline constexpr uint64_t kFewer = 1;
#endif

// Memory that this thread allocates during its life may be lost: the test makes the library abandon it.
struct LeaksOnPurpose {
#if defined(__SANITIZE_ADDRESS__)
  LeaksOnPurpose() { __lsan_disable(); }
  ~LeaksOnPurpose() { __lsan_enable(); }
#else
  LeaksOnPurpose() {}
#endif
};

}  // namespace gmm::test
#endif
