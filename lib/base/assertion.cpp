// SPDX-License-Identifier: Apache-2.0
// Functions of the C++ runtime that compilers call, as gmm does not need libstdc++. They are weak and hidden: a program
// with libgmm.a inside keeps libstdc++'s own.
#include <cstdio>
#include <cstdlib>

namespace gmm {
extern "C" {

#ifdef __ELF__
// A call of a pure virtual function, which an object makes before its constructor or after its destructor.
[[noreturn, gnu::weak, gnu::visibility("hidden")]] void pure_virtual_called() __asm__("__cxa_pure_virtual");
void pure_virtual_called() { __builtin_trap(); }
#endif

#ifdef _GLIBCXX_ASSERTIONS  // the headers above may have set it
// A failed assertion of libstdc++'s headers. Without optimisation GCC 15 and newer have these assertions, and some
// distributions compile all with -D_GLIBCXX_ASSERTIONS.
[[noreturn, gnu::weak, gnu::visibility("hidden")]] void glibcxx_assert_fail(const char *file, int line,
                                                                            const char *function,
                                                                            const char *condition) noexcept
    __asm__("_ZSt21__glibcxx_assert_failPKciS0_S0_");

void glibcxx_assert_fail(const char *file, int line, const char *function, const char *condition) noexcept {
  std::fprintf(stderr, "%s:%d: %s: assertion '%s' failed\n", file, line, function, condition);
  std::abort();
}
#endif
}
}  // namespace gmm
