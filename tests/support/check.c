// SPDX-License-Identifier: Apache-2.0
#include "check.h"

struct check_state check_state;

void check_failed(const char *file, int line, const char *format, ...) {
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

void check_label(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(check_state.label, sizeof check_state.label, format, arguments);
  va_end(arguments);
}

void check_skip(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(check_state.skip, sizeof check_state.skip, format, arguments);
  va_end(arguments);
  check_state.skipped = true;
  longjmp(check_state.leave, 1);
}

static _Thread_local bool runs_case;

void check_leave(void) {
  if (runs_case) longjmp(check_state.leave, 1);
}

void check_run(const char *name, void (*function)(void)) {
  const char *only = getenv("CHECK_ONLY");  // runs the cases whose name contains this
  char full[256];
  snprintf(full, sizeof full, "%s%s%s", name, check_state.label[0] ? " " : "", check_state.label);
  if (only != NULL && strstr(full, only) == NULL) return;
  atomic_store(&check_state.failures, 0);
  check_state.skipped = false;
  runs_case = true;
  if (setjmp(check_state.leave) == 0) function();
  int failures = atomic_load(&check_state.failures);
  ++check_state.cases;
  if (failures > 0) ++check_state.failed;
  printf("%sok %d - %s", failures > 0 ? "not " : "", check_state.cases, full);
  if (check_state.skipped && failures == 0) printf(" # SKIP %s", check_state.skip);
  printf("\n");
  fflush(stdout);
}

int check_finish(void) {
  if (check_state.cases == 0) {  // a program that registered cases and did not run them
    printf("Bail out! no case ran\n");
    return 1;
  }
  printf("1..%d\n", check_state.cases);
  if (check_state.failed > 0) printf("# %d of %d failed\n", check_state.failed, check_state.cases);
  fflush(stdout);
  return check_state.failed > 0 ? 1 : 0;
}
