// SPDX-License-Identifier: Apache-2.0
// Three libraries for look_up_user.c, by LIBRARY.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#if LIBRARY == 3
int cuMemAlloc_v2(void **out, size_t size);
int cuMemAlloc_v2(void **out, size_t size) {
  (void)out;
  (void)size;
  return 4711;
}
#else
int which(void);
int which(void) { return LIBRARY; }
#if LIBRARY == 1
int next_which(void);
int next_which(void) {
  int (*next)(void) = NULL;
  *(void **)&next = dlsym(RTLD_NEXT, "which");
  return next != NULL ? next() : 0;
}
#else
int second(void);
int second(void) { return which(); }  // without a use of it, the linker leaves the library out
#endif
#endif
