// SPDX-License-Identifier: Apache-2.0
// Helpers of the programs that use the runtime. They link with the real runtime as well as with the tests' own, and run
// on a GPU or on the fake driver.
#ifndef GMM_TESTS_PRELOAD_USER_H
#define GMM_TESTS_PRELOAD_USER_H

#define _GNU_SOURCE  // RTLD_DEFAULT
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>

#include "../support/check.h"
#include "../support/fake_cudart/fake_cudart.h"

#define MIB ((size_t)1 << 20)

#define IS(call, expected)                                                                                            \
  do {                                                                                                                \
    const int check_r = (int)(call);                                                                                  \
    if (check_r != (int)(expected))                                                                                   \
      check_failed(__FILE__, __LINE__, "%s answered %d, expected %d: %s", #call, check_r, (int)(expected), reason()); \
  } while (0)

// Of the preload library, where it is there: a program is not linked with it.
static struct {
  bool (*active)(void);
  const char *(*last_error)(void);
  int (*pause)(const char *);
  int (*resume)(const char *);
  void (*set_interesting_region)(bool);
  bool (*get_interesting_region)(void);
  void (*set_current_tag)(const char *);
  const char *(*get_current_tag)(void);
  void (*set_enable_cpu_backup)(bool);
  bool (*get_enable_cpu_backup)(void);
} library;

__attribute__((unused)) static const char *reason(void) {
  return library.last_error != NULL ? library.last_error() : "";
}

__attribute__((unused)) static bool find_library(void) {
  *(void **)&library.active = dlsym(RTLD_DEFAULT, "gmm_preload_active");
  *(void **)&library.last_error = dlsym(RTLD_DEFAULT, "tms_last_error");
  *(void **)&library.pause = dlsym(RTLD_DEFAULT, "tms_pause");
  *(void **)&library.resume = dlsym(RTLD_DEFAULT, "tms_resume");
  *(void **)&library.set_interesting_region = dlsym(RTLD_DEFAULT, "tms_set_interesting_region");
  *(void **)&library.get_interesting_region = dlsym(RTLD_DEFAULT, "tms_get_interesting_region");
  *(void **)&library.set_current_tag = dlsym(RTLD_DEFAULT, "tms_set_current_tag");
  *(void **)&library.get_current_tag = dlsym(RTLD_DEFAULT, "tms_get_current_tag");
  *(void **)&library.set_enable_cpu_backup = dlsym(RTLD_DEFAULT, "tms_set_enable_cpu_backup");
  *(void **)&library.get_enable_cpu_backup = dlsym(RTLD_DEFAULT, "tms_get_enable_cpu_backup");
  return library.active != NULL;
}

// The pattern of a seed from byte i on: i * 31 + i / 4096 + seed * 7. i is a multiple of ROW.
enum { ROW = 256 };
static void make_row(uint8_t row[ROW], size_t i, int seed) {
  for (size_t k = 0; k < ROW; ++k) row[k] = (uint8_t)((i + k) * 31 + i / 4096 + (size_t)seed * 7);
}

__attribute__((unused)) static void write_to(void *memory, size_t size, int seed) {
  uint8_t *bytes = malloc(size), row[ROW];
  for (size_t i = 0; i < size; i += ROW) {
    if (i % 4096 == 0) make_row(row, i, seed);
    memcpy(bytes + i, row, size - i < ROW ? size - i : ROW);
  }
  IS(cudaMemcpy(memory, bytes, size, cudaMemcpyDefault), 0);
  free(bytes);
}

__attribute__((unused)) static bool holds(const void *memory, size_t size, int seed) {
  uint8_t *bytes = malloc(size), row[ROW];
  memset(bytes, 0xee, size);
  IS(cudaMemcpy(bytes, memory, size, cudaMemcpyDefault), 0);
  bool same = true;
  for (size_t i = 0; i < size && same; i += ROW) {
    if (i % 4096 == 0) make_row(row, i, seed);
    same = memcmp(bytes + i, row, size - i < ROW ? size - i : ROW) == 0;
  }
  free(bytes);
  return same;
}

// Bytes of the device that everybody uses.
__attribute__((unused)) static size_t used(void) {
  size_t left = 0, total = 0;
  IS(cudaDeviceSynchronize(), 0);
  IS(cudaMemGetInfo(&left, &total), 0);
  return total - left;
}

#endif
