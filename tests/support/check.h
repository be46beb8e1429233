// SPDX-License-Identifier: Apache-2.0
// A test in plain C that prints TAP, one line a case. Include it in one file of a program.
//
//   static void frees_twice(void) { CHECK(...); REQUIRE(...); if (...) SKIP("why"); }
//   int main(void) { RUN(frees_twice); return check_finish(); }
//
// CHECK notes a failure and goes on; REQUIRE ends the case; both say where and what. CHECK may be used on any
// thread, REQUIRE and SKIP only on the thread that runs the case. check_label() adds words to the names of the cases that follow.
#ifndef GMM_TESTS_CHECK_H
#define GMM_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static struct {
  int cases, failed;
  atomic_int failures;  // of the case that runs
  jmp_buf leave;
  char label[96];
  char skip[512];
  bool skipped;
} check_state;

__attribute__((unused, format(printf, 3, 4))) static void check_failed(const char *file, int line, const char *format,
                                                                       ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  for (char *c = text; *c != 0; ++c)
    if (*c == '\n') *c = ' ';
  atomic_fetch_add(&check_state.failures, 1);
  const char *slash = strrchr(file, '/');
  if (atomic_load(&check_state.failures) <= 12) printf("# %s:%d: %s\n", slash ? slash + 1 : file, line, text);
  fflush(stdout);
}

__attribute__((unused)) static void check_label(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(check_state.label, sizeof check_state.label, format, arguments);
  va_end(arguments);
}

__attribute__((unused, noreturn, format(printf, 1, 2))) static void check_skip(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(check_state.skip, sizeof check_state.skip, format, arguments);
  va_end(arguments);
  check_state.skipped = true;
  longjmp(check_state.leave, 1);
}

__attribute__((unused)) static void check_run(const char *name, void (*function)(void)) {
  const char *only = getenv("CHECK_ONLY");  // runs the cases whose name contains this
  char full[256];
  snprintf(full, sizeof full, "%s%s%s", name, check_state.label[0] ? " " : "", check_state.label);
  if (only != NULL && strstr(full, only) == NULL) return;
  atomic_store(&check_state.failures, 0);
  check_state.skipped = false;
  if (setjmp(check_state.leave) == 0) function();
  int failures = atomic_load(&check_state.failures);
  ++check_state.cases;
  if (failures > 0) ++check_state.failed;
  printf("%sok %d - %s", failures > 0 ? "not " : "", check_state.cases, full);
  if (check_state.skipped && failures == 0) printf(" # SKIP %s", check_state.skip);
  printf("\n");
  fflush(stdout);
}

__attribute__((unused)) static int check_finish(void) {
  printf("1..%d\n", check_state.cases);
  if (check_state.failed > 0) printf("# %d of %d failed\n", check_state.failed, check_state.cases);
  fflush(stdout);
  return check_state.failed > 0 ? 1 : 0;
}

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
