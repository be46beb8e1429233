// SPDX-License-Identifier: Apache-2.0
// A program that uses CUDA as programs do. Calls that are not CUDA's only inspect or pause its memory, or count the
// calls of the fake driver.
//
// It is built with the driver (-DWITH_DRIVER) or with a runtime; the runtime's also runs with the real one, on a GPU.
//
// Usage: [gmm run ...] driver_user linked|dlsym|dlvsym|entry taken|forwarded
//        [gmm run ...] runtime_user calls taken|forwarded
//        [gmm run --regions] runtime_user regions taken
#define _GNU_SOURCE  // RTLD_DEFAULT, dlvsym
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>

#include "../support/check.h"
#ifdef WITH_DRIVER
#include "../support/cuda_functions.h"
#include "../support/fake_cuda/fake_cuda.h"
#else
#include "../support/fake_cudart/fake_cudart.h"
#endif

#define MIB ((size_t)1 << 20)
enum { INVALID = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3 };  // of the driver and of the runtime

#define IS(call, expected)                                                                                            \
  do {                                                                                                                \
    const int check_r = (int)(call);                                                                                  \
    if (check_r != (int)(expected))                                                                                   \
      check_failed(__FILE__, __LINE__, "%s answered %d, expected %d: %s", #call, check_r, (int)(expected), reason()); \
  } while (0)

static bool taken;  // by gmm

// --- The calls: of the driver or of the runtime, which agree in their numbers of errors ------------------------------
typedef void *stream_handle;
typedef void (*function)(void);
static struct {
  int (*alloc)(void **, size_t);
  int (*free)(void *);
  int (*alloc_async)(void **, size_t, stream_handle);
  int (*free_async)(void *, stream_handle);
  int (*alloc_managed)(void **, size_t, unsigned);
  int (*alloc_host)(void **, size_t, unsigned);
  int (*free_host)(void *);
  int (*destroy_stream)(stream_handle);
  int (*begin_capture)(stream_handle, int);
  int (*end_capture)(stream_handle, void **);
} api;
static const struct {
  void *member;
  function linked;
  const char *symbol, *name;  // for cuGetProcAddress, with the version
  int version;
} calls[] = {
#ifdef WITH_DRIVER
#define CALL(member, symbol, name, version) \
  { &api.member, (function)symbol, #symbol, #name, version }
    CALL(alloc, cuMemAlloc_v2, cuMemAlloc, 3020),
    CALL(free, cuMemFree_v2, cuMemFree, 3020),
    CALL(alloc_async, cuMemAllocAsync, cuMemAllocAsync, 11020),
    CALL(free_async, cuMemFreeAsync, cuMemFreeAsync, 11020),
    CALL(alloc_managed, cuMemAllocManaged, cuMemAllocManaged, 6000),
    CALL(alloc_host, cuMemHostAlloc, cuMemHostAlloc, 2020),
    CALL(free_host, cuMemFreeHost, cuMemFreeHost, 2000),
    CALL(destroy_stream, cuStreamDestroy_v2, cuStreamDestroy, 4000),
    CALL(begin_capture, cuStreamBeginCapture_v2, cuStreamBeginCapture, 10010),
    CALL(end_capture, cuStreamEndCapture, cuStreamEndCapture, 10000),
#else
#define CALL(member, symbol) \
  { &api.member, (function)symbol, #symbol, NULL, 0 }
    CALL(alloc, cudaMalloc),
    CALL(free, cudaFree),
    CALL(alloc_async, cudaMallocAsync),
    CALL(free_async, cudaFreeAsync),
    CALL(alloc_managed, cudaMallocManaged),
    CALL(alloc_host, cudaHostAlloc),
    CALL(free_host, cudaFreeHost),
    CALL(destroy_stream, cudaStreamDestroy),
#endif
};

// The functions of the preload library, where it is there: a program is not linked with it.
#define LIBRARY(F)                                                       \
  F(bool, active, gmm_preload_active, (void))                            \
  F(const char *, last_error, gmm_preload_last_error, (void))            \
  F(int, pause, tms_pause, (const char *))                               \
  F(int, resume, tms_resume, (const char *))                             \
  F(void, set_interesting, tms_set_interesting_region, (bool))           \
  F(bool, is_interesting, tms_get_interesting_region, (void))            \
  F(void, set_tag, tms_set_current_tag, (const char *))                  \
  F(const char *, tag, tms_get_current_tag, (void))                      \
  F(void, set_backup, tms_set_enable_cpu_backup, (bool))                 \
  F(bool, has_backup, tms_get_enable_cpu_backup, (void))                 \
  F(void, set_directory, tms_set_disk_backup_dir, (const char *))        \
  F(void, set_margin, set_memory_margin_bytes, (uint64_t))               \
  F(void *, tms_malloc, tms_torch_malloc, (ssize_t, int, stream_handle)) \
  F(void, tms_free, tms_torch_free, (void *, ssize_t, int, stream_handle))
static struct {
#define FIELD(type, field, symbol, arguments) type(*field) arguments;
  LIBRARY(FIELD)
} library;

static void find_library(void) {
#define FIND(type, field, symbol, arguments) *(void **)&library.field = dlsym(RTLD_DEFAULT, #symbol);
  LIBRARY(FIND)
}
static const char *reason(void) { return library.last_error != NULL ? library.last_error() : ""; }
static bool is_active(void) { return library.active != NULL && library.active(); }

// The steps that differ between the driver and the runtime.
#ifdef WITH_DRIVER
static uint64_t (*count)(const char *);
static int (*fail_next)(const char *, uint64_t, int);
static CUcontext context;

static void copy(void *to, const void *from, size_t size) {
  IS(cuMemcpyAsync((CUdeviceptr)to, (CUdeviceptr)from, size, NULL), 0);
  IS(cuStreamSynchronize(NULL), 0);
}
static stream_handle make_stream(void) {
  CUstream stream = NULL;
  IS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
  return stream;
}
static void wait_for(stream_handle stream) { IS(cuStreamSynchronize(stream), 0); }
#define REFUSED(call, expected) IS(call, expected)
#define CALLS(name) count(name)
#define CHECK_CALLS(name, before, of_taken, of_forwarded) \
  CHECK_EQUAL(count(name) - (before), taken ? (of_taken) : (of_forwarded))
#else
static void copy(void *to, const void *from, size_t size) { IS(cudaMemcpy(to, from, size, cudaMemcpyDefault), 0); }
static stream_handle make_stream(void) {
  cudaStream_t stream = NULL;
  IS(cudaStreamCreate(&stream), 0);
  return stream;
}
static void wait_for(stream_handle stream) { IS(cudaStreamSynchronize(stream), 0); }
// The answers and what cudaGetLastError says after them are CUDA's.
#define REFUSED(call, expected)          \
  do {                                   \
    IS(call, expected);                  \
    IS(cudaPeekAtLastError(), expected); \
    IS(cudaGetLastError(), expected);    \
    IS(cudaGetLastError(), 0);           \
  } while (0)
#define CALLS(name) 0
#define CHECK_CALLS(name, before, of_taken, of_forwarded) ((void)(before))
#endif

// The pattern of a seed from byte i on: i * 31 + i / 4096 + seed * 7. i is a multiple of ROW.
enum { ROW = 256 };
static void make_row(uint8_t row[ROW], size_t i, int seed) {
  for (size_t k = 0; k < ROW; ++k) row[k] = (uint8_t)((i + k) * 31 + i / 4096 + (size_t)seed * 7);
}
static void write_to(void *memory, size_t size, int seed) {
  uint8_t *bytes = malloc(size), row[ROW];
  for (size_t i = 0; i < size; i += ROW) {
    if (i % 4096 == 0) make_row(row, i, seed);
    memcpy(bytes + i, row, size - i < ROW ? size - i : ROW);
  }
  copy(memory, bytes, size);
  free(bytes);
}
static bool holds(const void *memory, size_t size, int seed) {
  uint8_t *bytes = malloc(size), row[ROW];
  memset(bytes, 0xee, size);
  copy(bytes, memory, size);
  bool same = true;
  for (size_t i = 0; i < size && same; i += ROW) {
    if (i % 4096 == 0) make_row(row, i, seed);
    same = memcmp(bytes + i, row, size - i < ROW ? size - i : ROW) == 0;
  }
  free(bytes);
  return same;
}
static void *allocate(size_t size, int seed) {
  void *memory = NULL;
  IS(api.alloc(&memory, size), 0);
  CHECK_EQUAL((uintptr_t)memory % 256, 0);
  write_to(memory, size, seed);
  return memory;
}

// --- Each interface --------------------------------------------------------------------------------------------------
static void device_memory(void) {
  const uint64_t before = CALLS("cuMemAlloc");
  void *memory[30] = {NULL};
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 30; ++i) memory[i] = allocate((size_t)6912 << (i % 10), i);
    for (int i = 0; i < 30; ++i) CHECK(holds(memory[i], (size_t)6912 << (i % 10), i));
    for (int i = 0; i < 30; ++i) IS(api.free(memory[i]), 0);
  }
  CHECK_CALLS("cuMemAlloc", before, 0, 90);
}

static void stream_memory(void) {
  const uint64_t before = CALLS("cuMemAllocAsync");
  const stream_handle stream = make_stream();
  void *memory = NULL;
  for (int i = 0; i < 20; ++i) {
    IS(api.alloc_async(&memory, 100000, i % 2 ? stream : NULL), 0);
    wait_for(i % 2 ? stream : NULL);
    write_to(memory, 100000, i);
    CHECK(holds(memory, 100000, i));
    IS(api.free_async(memory, i % 2 ? stream : NULL), 0);
  }
  IS(api.alloc_async(&memory, 100000, stream), 0);
  wait_for(stream);
  IS(api.free(memory), 0);
  CHECK_CALLS("cuMemAllocAsync", before, 0, 21);
#ifdef WITH_DRIVER
  if (taken) {  // the other way round the fake driver refuses
    memory = allocate(5000, 1);
    IS(api.free_async(memory, stream), 0);
    IS(api.free(memory), INVALID);
  }
#else
  IS(cudaMallocAsync_ptsz(&memory, 100000, NULL), 0);
  IS(cudaDeviceSynchronize(), 0);
  write_to(memory, 100000, 3);
  IS(cudaFreeAsync_ptsz(memory, NULL), 0);
#endif
  IS(api.destroy_stream(stream), 0);
  // A stream that takes the place of the one that went is another one.
  const stream_handle next = make_stream();
  IS(api.alloc_async(&memory, 100000, next), 0);
  IS(api.free_async(memory, next), 0);
  IS(api.destroy_stream(next), 0);
}

static void managed_and_host_memory(void) {
  const uint64_t managed = CALLS("cuMemAllocManaged"), host = CALLS("cuMemHostAlloc");
  void *shared[2] = {NULL}, *locked = NULL;
  for (int i = 0; i < 4; ++i) {
    for (int k = 0; k < 2; ++k) {
      IS(api.alloc_managed(&shared[k], 70000, 1), 0);
      memset(shared[k], 3, 70000);
    }
    IS(api.alloc_host(&locked, 70000, 1), 0);
    memset(locked, 4, 70000);
    write_to(locked, 70000, 5);
    copy(shared[0], locked, 70000);
    CHECK(holds(shared[0], 70000, 5));
#ifdef WITH_DRIVER
    CUdeviceptr seen = 0;
    IS(cuMemHostGetDevicePointer_v2(&seen, locked, 0), 0);
#endif
    for (int k = 0; k < 2; ++k) IS(api.free(shared[k]), 0);
    IS(api.free_host(locked), 0);
  }
  CHECK_CALLS("cuMemAllocManaged", managed, 1, 8);
  CHECK_CALLS("cuMemHostAlloc", host, 0, 4);
  // Memory that gmm has no kind for stays CUDA's.
  IS(api.alloc_host(&locked, 70000, 4), 0);  // write-combined
  CHECK_CALLS("cuMemHostAlloc", host, 1, 5);
  IS(api.free_host(locked), 0);
#ifndef WITH_DRIVER
  IS(cudaMallocHost(&locked, 70000), 0);
  memset(locked, 4, 70000);
  IS(api.free_host(locked), 0);
#endif
}

static void wrong_arguments(void) {
  void *memory = (void *)1, *locked = NULL;
#ifdef WITH_DRIVER
  IS(api.alloc(&memory, 0), INVALID);
  IS(api.alloc(NULL, 4096), INVALID);
  IS(api.alloc(&memory, (size_t)40 << 30), OUT_OF_MEMORY);  // the device has 8 GiB
#else
  IS(api.alloc(&memory, 0), 0);
  CHECK(memory == NULL);
  IS(api.free(NULL), 0);
  REFUSED(cudaMallocHost(&memory, (size_t)1 << 55), OUT_OF_MEMORY);
#endif
  REFUSED(api.alloc(&memory, (size_t)1 << 50), OUT_OF_MEMORY);
  REFUSED(api.alloc_async(&memory, (size_t)1 << 50, NULL), OUT_OF_MEMORY);
  memory = allocate(100000, 1);
  REFUSED(api.free((char *)memory + 512), INVALID);
  REFUSED(api.free_host(memory), INVALID);
  CHECK(holds(memory, 100000, 1));
  IS(api.free(memory), 0);
  REFUSED(api.free(memory), INVALID);
  IS(api.alloc_host(&locked, 5000, 0), 0);
#ifdef WITH_DRIVER
  IS(api.free(locked), INVALID);
#endif
  IS(api.free_host(locked), 0);
}

static void whose_memory(void) { CHECK_EQUAL(is_active(), taken); }

#ifdef WITH_DRIVER
// --- The driver ------------------------------------------------------------------------------------------------------
// Found as the mode says.
static void *find(const char *mode, void *driver, const char *symbol, const char *name, int version) {
  if (strcmp(mode, "dlsym") == 0) return dlsym(driver, symbol);
  // The driver has no versions, so a look-up of one finds nothing, with gmm and without.
  if (strcmp(mode, "dlvsym") == 0) return dlvsym(driver, symbol, "NO_SUCH_1.0") != NULL ? NULL : dlsym(driver, symbol);
  void *found = NULL;
  cuGetProcAddress_v2_fn *look_up = NULL;
  *(void **)&look_up = dlsym(driver, "cuGetProcAddress_v2");
  CUdriverProcAddressQueryResult status;
  const bool finds = look_up != NULL && look_up(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &status) == 0;
  return finds ? found : NULL;
}

// The driver refuses once, at every call that an allocation makes: its own number comes back, or the allocation works.
static void driver_failures(void) {
  for (uint64_t kth = 1; kth < 60; ++kth) {
    fail_next(NULL, kth, OUT_OF_MEMORY);
    void *memory = NULL;
    const int result = api.alloc(&memory, 50 * MIB);
    fail_next(NULL, 0, 0);
    CHECK_MESSAGE(result == 0 || result == OUT_OF_MEMORY, "call %d failed: %d", (int)kth, result);
    if (result != 0) IS(api.alloc(&memory, 50 * MIB), 0);
    write_to(memory, 4096, 1);
    CHECK(holds(memory, 4096, 1));
    IS(api.free(memory), 0);
  }
}

static void hold(void *unused) {
  (void)unused;
  nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
}
// Memory that a stream still works on is not free before the work is done.
static void free_waits_for_the_device(void) {
  const stream_handle stream = make_stream();
  void *memory = NULL;
  IS(api.alloc(&memory, 16 * MIB), 0);
  IS(cuLaunchHostFunc(stream, hold, NULL), 0);
  IS(cuMemsetD8Async((CUdeviceptr)memory, 5, 16 * MIB, stream), 0);
  IS(api.free(memory), 0);
  IS(cuStreamQuery(stream), 0);
  IS(api.destroy_stream(stream), 0);
}

static void *free_it(void *memory) {
  IS(cuCtxSetCurrent(context), 0);
  IS(api.free(memory), 0);
  return NULL;
}
// A capture goes on while other threads free memory, and while its own does in the relaxed mode; the memory goes back
// afterwards.
static void free_during_a_capture(void) {
  const stream_handle stream = make_stream();
  void *graph = NULL, *kept = allocate(MIB, 1), *memory[3] = {NULL}, *fresh = NULL;
  for (int i = 0; i < 3; ++i) IS(api.alloc(&memory[i], 96 * MIB), 0);
  for (int round = 0; round < 2; ++round) {
    IS(api.begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), 0);
    IS(cuMemsetD8Async((CUdeviceptr)kept, 1, MIB, stream), 0);
    if (round == 0) {
      pthread_t thread;
      pthread_create(&thread, NULL, free_it, memory[0]);
      pthread_join(thread, NULL);
    }
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    IS(cuThreadExchangeStreamCaptureMode(&mode), 0);
    IS(api.free(memory[1 + round]), 0);
    IS(api.alloc(&fresh, MIB), 0);
    IS(api.free(fresh), 0);
    IS(cuThreadExchangeStreamCaptureMode(&mode), 0);
    IS(api.end_capture(stream, &graph), 0);
    CHECK(graph != NULL);
    IS(cuGraphDestroy(graph), 0);
  }
  // All of it can be had again: the device has 8 GiB.
  IS(api.alloc(&fresh, 7900 * MIB), 0);
  IS(api.free(fresh), 0);
  for (int i = 0; i < 3; ++i) IS(api.free(memory[i]), INVALID);
  IS(api.free(kept), 0);
  IS(api.destroy_stream(stream), 0);
}

// CUDA does not work in a child without exec, and gmm neither: the child gets CUDA's answer, and ends as it likes.
static void child_without_exec(void) {
  void *memory = allocate(4096, 1), *own = NULL;
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const int made = api.alloc(&own, 4096), freed = api.free(memory);
    _exit(made == NOT_INITIALIZED && freed == NOT_INITIALIZED ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  IS(api.free(memory), 0);
}

static int run_cases(char **argv) {
  void *const driver = dlopen("libcuda.so.1", RTLD_NOW);
  *(void **)&count = dlsym(driver, "fake_cuda_count");
  *(void **)&fail_next = dlsym(driver, "fake_cuda_fail");
  for (size_t i = 0; i < sizeof calls / sizeof *calls && strcmp(argv[1], "linked") != 0; ++i)
    *(void **)calls[i].member = find(argv[1], driver, calls[i].symbol, calls[i].name, calls[i].version);
  CUdevice device = 0;
  void *early = NULL;
  IS(api.alloc(&early, 4096), NOT_INITIALIZED);
  if (cuInit(0) != 0 || cuDeviceGet(&device, 0) != 0 || cuDevicePrimaryCtxRetain(&context, device) != 0 ||
      cuCtxSetCurrent(context) != 0)
    return 99;
  check_label("(%s)", argv[1]);
  RUN(device_memory);
  RUN(stream_memory);
  RUN(managed_and_host_memory);
  RUN(wrong_arguments);
  if (taken) RUN(driver_failures);
  RUN(free_waits_for_the_device);
  RUN(free_during_a_capture);
  RUN(child_without_exec);
  RUN(whose_memory);
  if (taken) CHECK(count("cuMemCreate") > 0);
  char entries[] =
      "cuInit cuMemAlloc cuMemFree cuMemAllocAsync cuMemFreeAsync cuMemAllocManaged cuMemHostAlloc cuMemFreeHost "
      "cuMemCreate cuMemMap cuCtxSynchronize cuCtxGetDevice cuPointerGetAttributes cuStreamCreate cuStreamDestroy "
      "cuEventCreate";
  printf("# calls all=%llu", (unsigned long long)count(NULL));
  for (const char *entry = strtok(entries, " "); entry != NULL; entry = strtok(NULL, " "))
    printf(" %s=%llu", entry, (unsigned long long)count(entry));
  printf("\n");
  return check_finish();
}
#else
// --- The runtime -----------------------------------------------------------------------------------------------------
static const char *self;

// Of the driver, as the runtime finds them.
static void entry_points(void) {
  int (*alloc)(void **, size_t) = NULL;
  int (*release)(void *) = NULL;
  void *memory = NULL;
  IS(cudaGetDriverEntryPoint("cuMemAlloc", (void **)&alloc, 0, NULL), 0);
  IS(cudaGetDriverEntryPoint("cuMemFree", (void **)&release, 0, NULL), 0);
  if (alloc == NULL || release == NULL) return;
  IS(alloc(&memory, 3 * MIB), 0);
  write_to(memory, 3 * MIB, 9);
  CHECK(holds(memory, 3 * MIB, 9));
  IS(release(memory), 0);
}

static void *allocate_and_free(void *user) {
  for (int i = 0; i < 50; ++i) {
    const size_t size = 6912 + (size_t)i * 4096;
    const int seed = i + (int)(intptr_t)user;
    void *memory = allocate(size, seed);
    CHECK(holds(memory, size, seed));
    IS(cudaFree(memory), 0);
  }
  return NULL;
}
static void threads(void) {
  pthread_t thread[4];
  for (intptr_t i = 0; i < 4; ++i) pthread_create(&thread[i], NULL, allocate_and_free, (void *)i);
  for (int i = 0; i < 4; ++i) pthread_join(thread[i], NULL);
}

// The child is started as the parent was, and takes its memory the same way.
static void child_by_exec(void) {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    execl(self, self, "child", taken ? "taken" : "forwarded", NULL);
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK_MESSAGE(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %x", (unsigned)status);
}

// Bytes of the device that everybody uses.
static size_t used(void) {
  size_t left = 0, total = 0;
  IS(cudaDeviceSynchronize(), 0);
  IS(cudaMemGetInfo(&left, &total), 0);
  return total - left;
}

// All memory of a program that knows nothing of it goes and comes back, contents included.
static void pause_of_everything(void) {
  if (!taken) SKIP("nothing is gmm's");
  void *memory[20], *locked = NULL;
  for (int i = 0; i < 20; ++i) {
    IS(i % 2 ? cudaMallocAsync(&memory[i], 4 * MIB, NULL) : cudaMalloc(&memory[i], 4 * MIB), 0);
    IS(cudaDeviceSynchronize(), 0);
    write_to(memory[i], 4 * MIB, i);
  }
  IS(cudaMallocHost(&locked, 70000), 0);
  const size_t before = used();
  IS(library.pause(NULL), 0);
  IS(library.pause(NULL), 0);
  const size_t paused = used();
  CHECK_MESSAGE(paused + 70 * MIB <= before, "%zu MiB in use before, %zu while paused", before / MIB, paused / MIB);
  // Memory that is allocated during the pause is usable, and paused memory can be freed.
  void *fresh = allocate(5 * MIB, 77);
  for (int i = 0; i < 4; ++i) IS(cudaFree(memory[i]), 0);
  memset(locked, 1, 70000);
  IS(library.resume("no such tag"), 0);
  CHECK(used() <= paused + 30 * MIB);
  IS(library.resume(""), 0);
  IS(library.resume(NULL), 0);
  for (int i = 4; i < 20; ++i) CHECK_MESSAGE(holds(memory[i], 4 * MIB, i), "block %d lost its contents", i);
  CHECK(holds(fresh, 5 * MIB, 77));
  for (int i = 4; i < 20; ++i) IS(cudaFree(memory[i]), 0);
  IS(cudaFree(fresh), 0);
  IS(cudaFreeHost(locked), 0);
}

// --- Regions as torch_memory_saver has them: only memory that is allocated in one is gmm's, paused by its tag --------
// tests/bindings/python/test_memory_saver.py has the rest of them.
// The calls of torch_memory_saver's Python side at the entry and at the end of a region.
typedef struct region {
  char tag[512];
  bool interesting, backup;
} region;
static region enter(const char *tag, bool backup) {
  region before = {.interesting = library.is_interesting(), .backup = library.has_backup()};
  snprintf(before.tag, sizeof before.tag, "%s", library.tag());
  library.set_tag(tag);
  library.set_interesting(true);
  library.set_backup(backup);
  return before;
}
static void leave(const region *before) {
  library.set_tag(before->tag);
  library.set_interesting(before->interesting);
  library.set_backup(before->backup);
}
static void *in_region(const char *tag, bool backup, size_t size, int seed) {
  const region outer = enter(tag, backup);
  void *memory = allocate(size, seed);
  leave(&outer);
  return memory;
}
// The pause gives the driver so much more to give.
static void pause_gives(const char *tag, size_t size) {
  const size_t before = used();
  IS(library.pause(tag), 0);
  const size_t after = used();
  CHECK_MESSAGE(after + size <= before, "%zu bytes were used, now %zu: not %zu less", before, after, size);
}

// One name with and without backup: both pause by the name, and each comes back as its region said.
static void one_name_two_contents(void) {
  void *kept = in_region("model", true, 8 * MIB, 1), *dropped = in_region("model", false, 8 * MIB, 2);
  pause_gives("model", 16 * MIB);
  IS(library.resume("model"), 0);
  CHECK(holds(kept, 8 * MIB, 1));
  write_to(dropped, 8 * MIB, 3);
  IS(cudaFree(kept), 0);
  IS(cudaFree(dropped), 0);
}

static void long_and_empty_names(void) {
  char name[300];
  memset(name, 'n', sizeof name - 1);
  name[sizeof name - 1] = '\0';
  const region outer = enter(name, true);
  CHECK(strcmp(library.tag(), name) == 0);
  void *memory = allocate(8 * MIB, 1);
  library.set_tag("");
  CHECK(strstr(reason(), "is empty") != NULL);
  library.set_directory("");
  CHECK(strstr(reason(), "directory for backups is empty") != NULL);
  library.set_directory("/no/such/folder");
  CHECK(strstr(reason(), "/no/such/folder") != NULL);
  leave(&outer);
  pause_gives(name, 8 * MIB);
  const size_t paused = used();
  name[100] = 'm';  // another one
  IS(library.resume(name), 0);
  CHECK(used() <= paused);
  name[100] = 'n';
  IS(library.resume(name), 0);
  CHECK(holds(memory, 8 * MIB, 1));
  IS(cudaFree(memory), 0);
}

static void *in_no_region(void *out) {
  CHECK(!library.is_interesting());
  *(void **)out = allocate(8 * MIB, 8);
  return NULL;
}
// A thread that is started inside of a region is in none.
static void threads_and_regions(void) {
  void *memory = NULL;
  pthread_t thread;
  const region outer = enter("train", true);
  pthread_create(&thread, NULL, in_no_region, &memory);
  pthread_join(thread, NULL);
  leave(&outer);
  const size_t before = used();
  IS(library.pause("train"), 0);
  CHECK(used() + 8 * MIB > before);
  CHECK(holds(memory, 8 * MIB, 8));
  IS(library.resume(NULL), 0);
  IS(cudaFree(memory), 0);
}

static void no_space_at_resume(void) {
  void *memory = in_region("weights", true, 128 * MIB, 3);
  size_t left = 0, total = 0;
  IS(library.pause("weights"), 0);
  IS(cudaMemGetInfo(&left, &total), 0);
  void *others[1024];
  size_t count = 0;
  // Other memory takes the space.
  while (count < 1024 && left > 100 * MIB) {
    if (cudaMalloc(&others[count], left > 256 * MIB ? left - 175 * MIB : 64 * MIB) != 0) break;
    ++count;
    usleep(100000);  // a process that has just ended may still give memory back
    IS(cudaMemGetInfo(&left, &total), 0);
  }
  CHECK(library.resume("weights") < 0);
  CHECK(strlen(reason()) > 20);
  CHECK(library.resume(NULL) < 0);
  while (count > 0) IS(cudaFree(others[--count]), 0);
  IS(library.resume("weights"), 0);
  CHECK(holds(memory, 128 * MIB, 3));
  IS(cudaFree(memory), 0);
}

static void torch_allocator(void) {
  const stream_handle stream = make_stream();
  const region outer = enter("torch", true);
  void *memory = library.tms_malloc(30 * MIB, 0, stream);
  CHECK(library.tms_malloc((ssize_t)1 << 50, 0, stream) == NULL && strlen(reason()) > 20);
  CHECK(library.tms_malloc(-1, 0, stream) == NULL && library.tms_malloc(4096, 99, stream) == NULL);
  leave(&outer);
  REQUIRE(memory != NULL);
  write_to(memory, 30 * MIB, 1);
  // Once before it is measured: the copies of a pause have a stream of their own, here for the first time beside one of
  // the program's, and the driver may take memory of the device for a stream.
  IS(library.pause("torch"), 0);
  IS(library.resume("torch"), 0);
  pause_gives("torch", 30 * MIB);
  IS(library.resume("torch"), 0);
  CHECK(holds(memory, 30 * MIB, 1));
  library.tms_free(memory, 30 * MIB, 0, stream);
  library.tms_free((void *)&stream, 8, 0, stream);
  CHECK(strstr(reason(), "was not allocated by this library") != NULL);
  IS(cudaStreamDestroy(stream), 0);
}

static void margin(void) {
  size_t left = 0, total = 0;
  IS(cudaMemGetInfo(&left, &total), 0);
  const region outer = enter("weights", false);
  void *memory = NULL;
  library.set_margin(left - 64 * MIB);
  REFUSED(cudaMalloc(&memory, 128 * MIB), OUT_OF_MEMORY);
  library.set_margin(0);
  IS(cudaMalloc(&memory, 128 * MIB), 0);
  leave(&outer);
  IS(cudaFree(memory), 0);
}

static int run_cases(char **argv) {
  self = argv[0];
  if (strcmp(argv[1], "child") == 0) {
    void *memory = NULL;
    if (cudaMalloc(&memory, MIB) != 0 || cudaFree(memory) != 0) return 1;
    return is_active() == taken ? 0 : 2;
  }
  if (strcmp(argv[1], "calls") == 0) {
    RUN(device_memory);
    RUN(stream_memory);
    RUN(managed_and_host_memory);
    RUN(wrong_arguments);
    RUN(entry_points);
    RUN(threads);
    RUN(child_by_exec);
    RUN(pause_of_everything);
    RUN(whose_memory);
  } else {
    if (library.active == NULL) return 99;
    RUN(one_name_two_contents);
    RUN(long_and_empty_names);
    RUN(threads_and_regions);
    RUN(no_space_at_resume);
    RUN(torch_allocator);
    RUN(margin);
  }
  return check_finish();
}
#endif

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  taken = strcmp(argv[2], "taken") == 0;
  find_library();
  for (size_t i = 0; i < sizeof calls / sizeof *calls; ++i)
    memcpy(calls[i].member, &calls[i].linked, sizeof calls[i].linked);
  return run_cases(argv);
}
