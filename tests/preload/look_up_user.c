// SPDX-License-Identifier: Apache-2.0
// `gmm run` does not change the meaning of dlsym and dlvsym: RTLD_NEXT and RTLD_DEFAULT as seen from the caller,
// errors, versions.
//
// Usage: [gmm run] look_up_user [taken]     needs no driver
#define _GNU_SOURCE  // RTLD_DEFAULT
#include <dlfcn.h>

#include "../support/check.h"

int which(void);  // of the first library
int next_which(void);
int second(void);  // of the second

static bool taken;

// RTLD_NEXT is behind the library that calls, not behind the program or behind the one that passes the call on.
static void next_of_a_library(void) {
  CHECK_EQUAL(which(), 1);
  CHECK_EQUAL(second(), 1);
  CHECK_EQUAL(next_which(), 2);
  int (*found)(void) = NULL;
  *(void **)&found = dlsym(RTLD_NEXT, "which");
  CHECK(found == which);
  *(void **)&found = dlsym(RTLD_DEFAULT, "which");
  CHECK(found == which);
}

static void symbols_of_libraries(void) {
  void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  REQUIRE(libc != NULL);
  CHECK(dlsym(libc, "malloc") != NULL);
  CHECK(dlsym(RTLD_NEXT, "strlen") != NULL);
  CHECK(dlsym(libc, "dlsym") == dlsym(RTLD_NEXT, "dlsym") || taken);
  CHECK(dlvsym(libc, "malloc", "NO_SUCH_1.0") == NULL);
  const char *error = dlerror();
  CHECK(error != NULL && strstr(error, "NO_SUCH_1.0") != NULL);
  CHECK(dlerror() == NULL);
  CHECK(dlsym(libc, "no_such_function") == NULL);
  error = dlerror();
  CHECK(error != NULL && strstr(error, "no_such_function") != NULL);
  CHECK(dlsym(libc, "cu_no_such_function") == NULL);
  CHECK(dlerror() != NULL);
#if defined(__x86_64__)
  CHECK(dlvsym(libc, "malloc", "GLIBC_2.2.5") == dlsym(libc, "malloc"));
#endif
}

// Once: as Python's ctypes does, which takes the text without a look whether there is one.
static bool says(const char *name) {
  const char *error = dlerror();
  return error != NULL && strstr(error, name) != NULL && dlerror() == NULL;
}

// A program that looks for CUDA does not take the library in front of it for CUDA.
static void no_cuda_where_there_is_none(void) {
  void *program = dlopen(NULL, RTLD_NOW);
  static const char *const names[] = {"cuMemAlloc_v2", "cuGetProcAddress_v2", "cudaMalloc", "cudaFree",
                                      "cuMemFreeAsync_ptsz"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    CHECK_MESSAGE(dlsym(RTLD_DEFAULT, names[i]) == NULL, "%s is found", names[i]);
    CHECK_MESSAGE(says(names[i]), "%s is not found, and nothing says so", names[i]);
    CHECK_MESSAGE(dlsym(program, names[i]) == NULL, "%s is found in the program", names[i]);
    CHECK_MESSAGE(says(names[i]), "%s is not found in the program, and nothing says so", names[i]);
    CHECK_MESSAGE(dlvsym(program, names[i], "NO_SUCH_1.0") == NULL, "%s has a version", names[i]);
    CHECK_MESSAGE(says(names[i]), "%s has no version, and nothing says so", names[i]);
  }
}

// A library that is not CUDA's but has a function of such a name keeps it.
static void others_of_the_same_name(void) {
  void *third = dlopen("liblook_up_third.so", RTLD_NOW | RTLD_LOCAL);
  REQUIRE(third != NULL);
  int (*found)(void **, size_t) = NULL;
  *(void **)&found = dlsym(third, "cuMemAlloc_v2");
  REQUIRE(found != NULL);
  CHECK_EQUAL(found(NULL, 0), 4711);
}

int main(int argc, char **argv) {
  taken = argc > 1 && strcmp(argv[1], "taken") == 0;
  RUN(next_of_a_library);
  RUN(symbols_of_libraries);
  RUN(no_cuda_where_there_is_none);
  RUN(others_of_the_same_name);
  return check_finish();
}
