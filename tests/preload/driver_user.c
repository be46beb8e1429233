// SPDX-License-Identifier: Apache-2.0
// A program that uses the driver as programs do, and knows nothing of gmm, but for the end of each case, which counts
// the driver's calls.
//
// Usage: [gmm run ...] driver_user linked|dlsym|dlvsym|entry taken|forwarded
#define _GNU_SOURCE  // dlvsym
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>

#include "../support/check.h"
#include "../support/cuda_functions.h"
#include "../support/fake_cuda/fake_cuda.h"

static cuMemAlloc_v2_fn *mem_alloc;
static cuMemFree_v2_fn *mem_free;
static cuMemAllocAsync_fn *mem_alloc_async;
static cuMemFreeAsync_fn *mem_free_async;
static cuMemAllocManaged_fn *mem_alloc_managed;
static cuMemHostAlloc_fn *mem_host_alloc;
static cuMemFreeHost_fn *mem_free_host;
static cuStreamDestroy_v2_fn *stream_destroy;
static cuStreamBeginCapture_v2_fn *begin_capture;
static cuStreamEndCapture_fn *end_capture;

static uint64_t (*count)(const char *);
static int (*fail_next)(const char *, uint64_t, int);
static bool taken;  // by gmm
static CUcontext context;

#define MUST_BE(call, expected)                                                                         \
  do {                                                                                                  \
    int check_r = (int)(call);                                                                          \
    if (check_r != (int)(expected)) check_failed(__FILE__, __LINE__, "%s answered %d", #call, check_r); \
  } while (0)

// Found as the mode says.
static void *find(const char *mode, void *library, const char *symbol, const char *name, int version) {
  void *found = NULL;
  if (strcmp(mode, "dlsym") == 0) return dlsym(library, symbol);
  if (strcmp(mode, "dlvsym") == 0) {
    // The driver has no versions, so a look-up of one finds nothing, with gmm and without.
    if (dlvsym(library, symbol, "NO_SUCH_1.0") != NULL) return NULL;
    return dlsym(library, symbol);
  }
  cuGetProcAddress_v2_fn *look_up = NULL;
  *(void **)&look_up = dlsym(library, "cuGetProcAddress_v2");
  CUdriverProcAddressQueryResult status;
  if (look_up != NULL && look_up(name, &found, version, CU_GET_PROC_ADDRESS_DEFAULT, &status) != CUDA_SUCCESS)
    found = NULL;
  return found;
}

static void look_up_all(const char *mode) {
  if (strcmp(mode, "linked") == 0) {
    mem_alloc = cuMemAlloc_v2;
    mem_free = cuMemFree_v2;
    mem_alloc_async = cuMemAllocAsync;
    mem_free_async = cuMemFreeAsync;
    mem_alloc_managed = cuMemAllocManaged;
    mem_host_alloc = cuMemHostAlloc;
    mem_free_host = cuMemFreeHost;
    stream_destroy = cuStreamDestroy_v2;
    begin_capture = cuStreamBeginCapture_v2;
    end_capture = cuStreamEndCapture;
    return;
  }
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  *(void **)&mem_alloc = find(mode, library, "cuMemAlloc_v2", "cuMemAlloc", 3020);
  *(void **)&mem_free = find(mode, library, "cuMemFree_v2", "cuMemFree", 3020);
  *(void **)&mem_alloc_async = find(mode, library, "cuMemAllocAsync", "cuMemAllocAsync", 11020);
  *(void **)&mem_free_async = find(mode, library, "cuMemFreeAsync", "cuMemFreeAsync", 11020);
  *(void **)&mem_alloc_managed = find(mode, library, "cuMemAllocManaged", "cuMemAllocManaged", 6000);
  *(void **)&mem_host_alloc = find(mode, library, "cuMemHostAlloc", "cuMemHostAlloc", 2020);
  *(void **)&mem_free_host = find(mode, library, "cuMemFreeHost", "cuMemFreeHost", 2000);
  *(void **)&stream_destroy = find(mode, library, "cuStreamDestroy_v2", "cuStreamDestroy", 4000);
  *(void **)&begin_capture = find(mode, library, "cuStreamBeginCapture_v2", "cuStreamBeginCapture", 10010);
  *(void **)&end_capture = find(mode, library, "cuStreamEndCapture", "cuStreamEndCapture", 10000);
}

static void fill_and_check(CUdeviceptr memory, size_t size, CUstream stream) {
  uint8_t *bytes = malloc(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = (uint8_t)(i * 31 + i / 4096);
  MUST_BE(cuMemcpyAsync(memory, (CUdeviceptr)bytes, size, stream), 0);
  MUST_BE(cuStreamSynchronize(stream), 0);
  memset(bytes, 0xee, size);
  MUST_BE(cuMemcpyAsync((CUdeviceptr)bytes, memory, size, stream), 0);
  MUST_BE(cuStreamSynchronize(stream), 0);
  size_t wrong = 0;
  for (size_t i = 0; i < size; ++i) wrong += bytes[i] != (uint8_t)(i * 31 + i / 4096);
  CHECK_EQUAL(wrong, 0);
  free(bytes);
}

static void device_memory(void) {
  const uint64_t before = count("cuMemAlloc");
  CUdeviceptr memory[40] = {0};
  for (int i = 0; i < 40; ++i) MUST_BE(mem_alloc(&memory[i], (size_t)6912 << (i % 10)), 0);
  for (int i = 0; i < 40; ++i) {
    CHECK_EQUAL(memory[i] % 256, 0);
    fill_and_check(memory[i], (size_t)6912 << (i % 10), NULL);
  }
  for (int i = 0; i < 40; ++i) MUST_BE(mem_free(memory[i]), 0);
  CHECK_EQUAL(count("cuMemAlloc") - before, taken ? 0 : 40);
  CHECK(!taken || count("cuMemCreate") > 0);
}

static void stream_memory(void) {
  const uint64_t before = count("cuMemAllocAsync");
  CUstream stream = NULL;
  MUST_BE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
  CUdeviceptr memory = 0, other = 0;
  for (int i = 0; i < 20; ++i) {
    MUST_BE(mem_alloc_async(&memory, 100000, i % 2 ? stream : NULL), 0);
    fill_and_check(memory, 100000, i % 2 ? stream : NULL);
    MUST_BE(mem_free_async(memory, i % 2 ? stream : NULL), 0);
  }
  MUST_BE(mem_alloc_async(&memory, 5000, stream), 0);
  MUST_BE(cuStreamSynchronize(stream), 0);
  MUST_BE(mem_free(memory), 0);
  CHECK_EQUAL(count("cuMemAllocAsync") - before, taken ? 0 : 21);
  if (taken) {  // the other way round the fake driver refuses
    MUST_BE(mem_alloc(&other, 5000), 0);
    MUST_BE(mem_free_async(other, stream), 0);
    MUST_BE(mem_free(other), CUDA_ERROR_INVALID_VALUE);
  }
  MUST_BE(stream_destroy(stream), 0);
}

static void managed_and_host_memory(void) {
  const uint64_t managed = count("cuMemAllocManaged"), host = count("cuMemHostAlloc");
  CUdeviceptr shared = 0, second = 0;
  uint8_t *locked = NULL, *combined = NULL;
  for (int i = 0; i < 4; ++i) {
    MUST_BE(mem_alloc_managed(&shared, 70000, CU_MEM_ATTACH_GLOBAL), 0);
    memset((void *)shared, 3, 70000);
    MUST_BE(mem_alloc_managed(&second, 70000, CU_MEM_ATTACH_GLOBAL), 0);
    MUST_BE(mem_free(shared), 0);
    MUST_BE(mem_free(second), 0);
    MUST_BE(mem_host_alloc((void **)&locked, 70000, CU_MEMHOSTALLOC_PORTABLE), 0);
    memset(locked, 4, 70000);
    fill_and_check((CUdeviceptr)locked, 70000, NULL);
    CUdeviceptr seen = 0;
    MUST_BE(cuMemHostGetDevicePointer_v2(&seen, locked, 0), 0);
    MUST_BE(mem_free_host(locked), 0);
  }
  CHECK_EQUAL(count("cuMemAllocManaged") - managed, taken ? 1 : 8);
  CHECK_EQUAL(count("cuMemHostAlloc") - host, taken ? 0 : 4);
  // Memory that gmm has no kind for stays CUDA's.
  MUST_BE(mem_host_alloc((void **)&combined, 70000, CU_MEMHOSTALLOC_WRITECOMBINED), 0);
  CHECK_EQUAL(count("cuMemHostAlloc") - host, taken ? 1 : 5);
  MUST_BE(mem_free_host(combined), 0);
}

static void wrong_arguments(void) {
  CUdeviceptr memory = 0;
  void *locked = NULL;
  MUST_BE(mem_alloc(&memory, 0), CUDA_ERROR_INVALID_VALUE);
  MUST_BE(mem_alloc(NULL, 4096), CUDA_ERROR_INVALID_VALUE);
  MUST_BE(mem_alloc(&memory, (size_t)1 << 60), CUDA_ERROR_OUT_OF_MEMORY);
  MUST_BE(mem_alloc(&memory, (size_t)40 << 30), CUDA_ERROR_OUT_OF_MEMORY);  // the device has 8 GiB
  MUST_BE(mem_alloc(&memory, 100000), 0);
  MUST_BE(mem_free(memory + 512), CUDA_ERROR_INVALID_VALUE);
  MUST_BE(mem_free_host((void *)memory), CUDA_ERROR_INVALID_VALUE);
  fill_and_check(memory, 100000, NULL);
  MUST_BE(mem_free(memory), 0);
  MUST_BE(mem_free(memory), CUDA_ERROR_INVALID_VALUE);
  MUST_BE(mem_host_alloc(&locked, 5000, 0), 0);
  MUST_BE(mem_free((CUdeviceptr)locked), CUDA_ERROR_INVALID_VALUE);
  MUST_BE(mem_free_host(locked), 0);
}

// The driver refuses once, at every call that an allocation makes: its own number comes back, or the allocation works.
static void driver_failures(void) {
  for (uint64_t kth = 1; kth < 60; ++kth) {
    fail_next(NULL, kth, CUDA_ERROR_OUT_OF_MEMORY);
    CUdeviceptr memory = 0;
    const CUresult result = mem_alloc(&memory, (size_t)50 << 20);
    fail_next(NULL, 0, 0);
    CHECK_MESSAGE(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY, "call %d failed: %d", (int)kth,
                  (int)result);
    if (result != CUDA_SUCCESS) MUST_BE(mem_alloc(&memory, (size_t)50 << 20), 0);
    fill_and_check(memory, 4096, NULL);
    MUST_BE(mem_free(memory), 0);
  }
}

static void hold(void *unused) {
  (void)unused;
  nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
}

// Memory that a stream still works on is not free before the work is done.
static void free_waits_for_the_device(void) {
  CUstream stream = NULL;
  MUST_BE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
  CUdeviceptr memory = 0;
  const size_t size = (size_t)16 << 20;
  MUST_BE(mem_alloc(&memory, size), 0);
  MUST_BE(cuLaunchHostFunc(stream, hold, NULL), 0);
  MUST_BE(cuMemsetD8Async(memory, 5, size, stream), 0);
  MUST_BE(mem_free(memory), 0);
  MUST_BE(cuStreamQuery(stream), CUDA_SUCCESS);
  MUST_BE(stream_destroy(stream), 0);
}

static void *free_it(void *user) {
  const CUdeviceptr *memory = user;
  MUST_BE(cuCtxSetCurrent(context), 0);
  MUST_BE(mem_free(*memory), 0);
  return NULL;
}

// A capture goes on while other threads free memory, and while its own does in the relaxed mode; the memory goes back
// afterwards.
static void free_during_a_capture(void) {
  CUstream stream = NULL;
  CUgraph graph = NULL;
  CUdeviceptr kept = 0, memory[3] = {0};
  MUST_BE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), 0);
  MUST_BE(mem_alloc(&kept, 1 << 20), 0);
  for (int i = 0; i < 3; ++i) MUST_BE(mem_alloc(&memory[i], 96 << 20), 0);
  for (int round = 0; round < 2; ++round) {
    MUST_BE(begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), 0);
    MUST_BE(cuMemsetD8Async(kept, 1, 1 << 20, stream), 0);
    if (round == 0) {
      pthread_t thread;
      pthread_create(&thread, NULL, free_it, &memory[0]);
      pthread_join(thread, NULL);
    }
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    MUST_BE(cuThreadExchangeStreamCaptureMode(&mode), 0);
    MUST_BE(mem_free(memory[1 + round]), 0);
    CUdeviceptr fresh = 0;
    MUST_BE(mem_alloc(&fresh, 1 << 20), 0);
    MUST_BE(mem_free(fresh), 0);
    MUST_BE(cuThreadExchangeStreamCaptureMode(&mode), 0);
    MUST_BE(end_capture(stream, &graph), 0);
    CHECK(graph != NULL);
    MUST_BE(cuGraphDestroy(graph), 0);
  }
  // All of it can be had again: the device has 8 GiB.
  CUdeviceptr most = 0;
  MUST_BE(mem_alloc(&most, (size_t)7900 << 20), 0);
  MUST_BE(mem_free(most), 0);
  for (int i = 0; i < 3; ++i) MUST_BE(mem_free(memory[i]), CUDA_ERROR_INVALID_VALUE);
  MUST_BE(mem_free(kept), 0);
  MUST_BE(stream_destroy(stream), 0);
}

// CUDA does not work in a child without exec, and gmm neither: the child gets CUDA's answer, and ends as it likes.
static void child_without_exec(void) {
  CUdeviceptr memory = 0;
  MUST_BE(mem_alloc(&memory, 4096), 0);
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    CUdeviceptr own = 0;
    const CUresult made = mem_alloc(&own, 4096), freed = mem_free(memory);
    _exit(made == CUDA_ERROR_NOT_INITIALIZED && freed == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  MUST_BE(mem_free(memory), 0);
}

static void context_of_gmm(void) {
  bool (*active)(void) = NULL;
  *(void **)&active = dlsym(RTLD_DEFAULT, "gmm_preload_active");
  CHECK_EQUAL(active != NULL && active(), taken);
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  taken = strcmp(argv[2], "taken") == 0;
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  *(void **)&count = dlsym(library, "fake_cuda_count");
  *(void **)&fail_next = dlsym(library, "fake_cuda_fail");
  look_up_all(argv[1]);
  CUdevice device = 0;
  CUdeviceptr early = 0;
  int early_code = (int)mem_alloc(&early, 4096);
  if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS ||
      cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS)
    return 99;
  check_label("(%s)", argv[1]);
  if (early_code != CUDA_ERROR_NOT_INITIALIZED) check_failed(__FILE__, __LINE__, "before cuInit: %d", early_code);
  RUN(device_memory);
  RUN(stream_memory);
  RUN(managed_and_host_memory);
  RUN(wrong_arguments);
  if (taken) RUN(driver_failures);
  RUN(free_waits_for_the_device);
  RUN(free_during_a_capture);
  RUN(child_without_exec);
  RUN(context_of_gmm);
  static const char *const entries[] = {"cuInit",
                                        "cuMemAlloc",
                                        "cuMemFree",
                                        "cuMemAllocAsync",
                                        "cuMemFreeAsync",
                                        "cuMemAllocManaged",
                                        "cuMemHostAlloc",
                                        "cuMemFreeHost",
                                        "cuMemCreate",
                                        "cuMemMap",
                                        "cuCtxSynchronize",
                                        "cuCtxGetDevice",
                                        "cuPointerGetAttributes",
                                        "cuStreamCreate",
                                        "cuStreamDestroy",
                                        "cuEventCreate"};
  printf("# calls all=%llu", (unsigned long long)count(NULL));
  for (size_t i = 0; i < sizeof entries / sizeof *entries; ++i)
    printf(" %s=%llu", entries[i], (unsigned long long)count(entries[i]));
  printf("\n");
  return check_finish();
}
