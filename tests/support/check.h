// SPDX-License-Identifier: Apache-2.0
// The writer of the Test Anything Protocol for tests in plain C: one line a case.
//
//  static void frees_twice(void) { CHECK(...); REQUIRE(...); if (...) SKIP("why"); }
//  int main(void) { RUN(frees_twice); return check_finish(); }
//
// CHECK notes a failure and goes on. REQUIRE ends the case. Both print where and what. Any thread may use CHECK. Only
// the thread that runs the case may use REQUIRE and SKIP. check_label() adds words to the names of the cases that
// follow.
//
// A test in C++ has CHECK and RUN. The macros that leave a case by longjmp() are for C, which has no destructors.
#ifndef GMM_TESTS_CHECK_H
#define GMM_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef __cplusplus
#include <stdatomic.h>
#endif

// The address and thread sanitizers leave out mlock() and know no memory behind tagged pointers.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CHECK_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CHECK_SANITIZED 1
#endif
#endif
#ifndef CHECK_SANITIZED
#define CHECK_SANITIZED 0
#endif

#ifdef __cplusplus
extern "C" {
#else
extern struct check_state {
  int cases, failed;
  atomic_int failures;  // of the case that runs
  jmp_buf leave;
  char label[96];
  char skip[512];
  bool skipped;
} check_state;

__attribute__((noreturn, format(printf, 1, 2))) void check_skip(const char *format, ...);
#endif

__attribute__((format(printf, 3, 4))) void check_failed(const char *file, int line, const char *format, ...);
void check_label(const char *format, ...);
void check_run(const char *name, void (*function)(void));
// Ends the case when its own thread calls; another thread goes on.
void check_leave(void);
int check_finish(void);
#ifdef __cplusplus
}
#endif

#define RUN(function) check_run(#function, function)
#define SKIP(...) check_skip(__VA_ARGS__)

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) check_failed(__FILE__, __LINE__, "not so: %s", #condition); \
  } while (0)

#define CHECK_MESSAGE(condition, ...)                                \
  do {                                                               \
    if (!(condition)) check_failed(__FILE__, __LINE__, __VA_ARGS__); \
  } while (0)

#define CHECK_EQUAL(actual, expected)                                                                           \
  do {                                                                                                          \
    long long check_a = (long long)(actual), check_e = (long long)(expected);                                   \
    if (check_a != check_e)                                                                                     \
      check_failed(__FILE__, __LINE__, "%s is %lld, expected %s = %lld", #actual, check_a, #expected, check_e); \
  } while (0)

#define REQUIRE(condition)                                        \
  do {                                                            \
    if (!(condition)) {                                           \
      check_failed(__FILE__, __LINE__, "not so: %s", #condition); \
      longjmp(check_state.leave, 1);                              \
    }                                                             \
  } while (0)

#endif
