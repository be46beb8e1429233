// SPDX-License-Identifier: Apache-2.0
// The tests of the fake driver. Each case runs in a process of its own, so that it has its own environment and no
// cuInit behind it.
#ifndef FAKE_CUDA_TEST_H
#define FAKE_CUDA_TEST_H

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../cuda_functions.h"
#include "fake_cuda.h"

struct Case {
  const char *name;
  void (*run)();
  const char *environment;  // "NAME=value NAME=value"
};
std::vector<Case> &cases();
struct Register {
  Register(const char *name, void (*run)(), const char *environment) { cases().push_back({name, run, environment}); }
};

#define CASE(name, environment)                                    \
  static void name();                                              \
  static const Register register_##name(#name, name, environment); \
  static void name()

inline void failed(const char *file, int line, const char *what, long got, long wanted) {
  fprintf(stderr, "%s:%d: %s: got %ld, wanted %ld\n", file, line, what, got, wanted);
  _exit(1);
}
#define IS(got, wanted)                                                                                     \
  do {                                                                                                      \
    auto got_ = (got);                                                                                      \
    auto wanted_ = static_cast<decltype(got_)>(wanted);                                                     \
    if (!(got_ == wanted_)) failed(__FILE__, __LINE__, #got " == " #wanted, (long)(got_), (long)(wanted_)); \
  } while (0)
#define OK(call) IS(call, CUDA_SUCCESS)
#define CHECK(condition) IS(static_cast<bool>(condition), true)

constexpr size_t kMiB = size_t{1} << 20, kTwo = 2 * kMiB;

// cuInit and device 0's primary context, current.
inline CUcontext start(int device = 0) {
  CUcontext context = nullptr;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
  return context;
}

inline CUmemAllocationProp device_memory(int device = 0, bool fd = false) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  if (fd) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

inline CUmemAccessDesc access(CUmemAccess_flags flags, int type = CU_MEM_LOCATION_TYPE_DEVICE, int id = 0) {
  CUmemAccessDesc descriptor{};
  descriptor.location.type = static_cast<CUmemLocationType>(type);
  descriptor.location.id = id;
  descriptor.flags = flags;
  return descriptor;
}

// Whether a process dies of reading the byte.
inline bool crashes_on_read(const void *address) {
  pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    (void)*static_cast<const volatile char *>(address);
    _exit(0);
  }
  int status = 0;
  IS(waitpid(child, &status, 0), child);
  return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

inline fake_cuda_live_t live() {
  fake_cuda_live_t now;
  fake_cuda_live(&now);
  return now;
}

#endif
