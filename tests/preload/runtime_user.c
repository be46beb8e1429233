// SPDX-License-Identifier: Apache-2.0
// A program that uses the runtime as programs do. Calls that are not CUDA's only inspect or pause its memory.
//
// Usage: [gmm run ...] runtime_user taken|forwarded
#include "user.h"

static bool taken;
static const char *self;

static void device_memory(void) {
  void *memory[30] = {NULL};
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 30; ++i) {
      IS(cudaMalloc(&memory[i], (size_t)6912 << (i % 10)), 0);
      CHECK_EQUAL((uintptr_t)memory[i] % 256, 0);
      write_to(memory[i], (size_t)6912 << (i % 10), i);
    }
    for (int i = 0; i < 30; ++i) CHECK(holds(memory[i], (size_t)6912 << (i % 10), i));
    for (int i = 0; i < 30; ++i) IS(cudaFree(memory[i]), 0);
  }
  IS(cudaGetLastError(), 0);
}

static void stream_memory(void) {
  cudaStream_t stream = NULL;
  IS(cudaStreamCreate(&stream), 0);
  void *memory = NULL;
  for (int i = 0; i < 20; ++i) {
    IS(cudaMallocAsync(&memory, 100000, i % 2 ? stream : NULL), 0);
    IS(cudaStreamSynchronize(i % 2 ? stream : NULL), 0);
    write_to(memory, 100000, i);
    CHECK(holds(memory, 100000, i));
    IS(cudaFreeAsync(memory, i % 2 ? stream : NULL), 0);
  }
  IS(cudaMallocAsync_ptsz(&memory, 100000, NULL), 0);
  IS(cudaDeviceSynchronize(), 0);
  write_to(memory, 100000, 3);
  IS(cudaFreeAsync_ptsz(memory, NULL), 0);
  IS(cudaMallocAsync(&memory, 100000, stream), 0);
  IS(cudaStreamSynchronize(stream), 0);
  IS(cudaFree(memory), 0);
  IS(cudaStreamDestroy(stream), 0);
  // A stream that takes the place of the one that went is another one.
  IS(cudaStreamCreate(&stream), 0);
  IS(cudaMallocAsync(&memory, 100000, stream), 0);
  IS(cudaFreeAsync(memory, stream), 0);
  IS(cudaStreamDestroy(stream), 0);
}

static void managed_and_host_memory(void) {
  void *managed = NULL, *locked = NULL, *portable = NULL, *combined = NULL;
  IS(cudaMallocManaged(&managed, 70000, cudaMemAttachGlobal), 0);
  memset(managed, 3, 70000);
  IS(cudaMallocHost(&locked, 70000), 0);
  memset(locked, 4, 70000);
  IS(cudaHostAlloc(&portable, 70000, 1), 0);
  IS(cudaHostAlloc(&combined, 70000, cudaHostAllocWriteCombined), 0);
  write_to(locked, 70000, 5);
  IS(cudaMemcpy(managed, locked, 70000, cudaMemcpyDefault), 0);
  CHECK(holds(managed, 70000, 5));
  IS(cudaFree(managed), 0);
  IS(cudaFreeHost(locked), 0);
  IS(cudaFreeHost(portable), 0);
  IS(cudaFreeHost(combined), 0);
}

// The answers and what cudaGetLastError says after them are CUDA's.
static void errors(void) {
  void *memory = (void *)1;
  IS(cudaMalloc(&memory, (size_t)1 << 50), cudaErrorMemoryAllocation);
  IS(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  IS(cudaGetLastError(), cudaErrorMemoryAllocation);
  IS(cudaGetLastError(), 0);
  IS(cudaMallocHost(&memory, (size_t)1 << 55), cudaErrorMemoryAllocation);
  IS(cudaGetLastError(), cudaErrorMemoryAllocation);
  IS(cudaMallocAsync(&memory, (size_t)1 << 50, NULL), cudaErrorMemoryAllocation);
  IS(cudaGetLastError(), cudaErrorMemoryAllocation);
  IS(cudaMalloc(&memory, 0), 0);
  CHECK(memory == NULL);
  IS(cudaFree(NULL), 0);
  IS(cudaMalloc(&memory, 100000), 0);
  write_to(memory, 100000, 1);
  IS(cudaFree((char *)memory + 512), cudaErrorInvalidValue);
  IS(cudaGetLastError(), cudaErrorInvalidValue);
  CHECK(holds(memory, 100000, 1));
  IS(cudaFree(memory), 0);
  IS(cudaFree(memory), cudaErrorInvalidValue);
  IS(cudaGetLastError(), cudaErrorInvalidValue);
  IS(cudaGetLastError(), 0);
}

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
    void *memory = NULL;
    const size_t size = 6912 + (size_t)i * 4096;
    IS(cudaMalloc(&memory, size), 0);
    write_to(memory, size, i + (int)(intptr_t)user);
    CHECK(holds(memory, size, i + (int)(intptr_t)user));
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

// All memory of a program that knows nothing of it goes and comes back, contents included.
static void pause_of_everything(void) {
  if (!taken) SKIP("nothing is gmm's");
  void *memory[20], *locked = NULL, *fresh = NULL;
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
  IS(cudaMalloc(&fresh, 5 * MIB), 0);
  write_to(fresh, 5 * MIB, 77);
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

static void whose_memory(void) { CHECK_EQUAL(library.active != NULL && library.active(), taken); }

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  self = argv[0];
  taken = strcmp(argv[argc - 1], "taken") == 0;
  find_library();
  if (strcmp(argv[1], "child") == 0) {
    void *memory = NULL;
    if (cudaMalloc(&memory, MIB) != 0 || cudaFree(memory) != 0) return 1;
    return (library.active != NULL && library.active()) == taken ? 0 : 2;
  }
  RUN(device_memory);
  RUN(stream_memory);
  RUN(managed_and_host_memory);
  RUN(errors);
  RUN(entry_points);
  RUN(threads);
  RUN(child_by_exec);
  RUN(pause_of_everything);
  RUN(whose_memory);
  return check_finish();
}
