// SPDX-License-Identifier: Apache-2.0
// The function that a failed assertion of libstdc++'s headers calls. Without optimisation GCC 15 and newer have these
// assertions, and some distributions compile all with -D_GLIBCXX_ASSERTIONS. The function is in libstdc++, which gmm
// does not need.
#include <cstdio>
#include <cstdlib>

#ifdef _GLIBCXX_ASSERTIONS  // the headers above may have set it
namespace gmm {

// Weak and hidden: a program with libgmm.a inside keeps libstdc++'s own.
extern "C" {
[[noreturn, gnu::weak, gnu::visibility("hidden")]] void glibcxx_assert_fail(const char *file, int line,
                                                                            const char *function,
                                                                            const char *condition) noexcept
    __asm__("_ZSt21__glibcxx_assert_failPKciS0_S0_");

void glibcxx_assert_fail(const char *file, int line, const char *function, const char *condition) noexcept {
  std::fprintf(stderr, "%s:%d: %s: assertion '%s' failed\n", file, line, function, condition);
  std::abort();
}
}

}  // namespace gmm
#endif
