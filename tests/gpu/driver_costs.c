/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What calls of the CUDA driver cost on the machine at hand: libcuda alone, nothing of gmm. Prints medians.
 *
 * Build:  cc -O2 -std=gnu11 tests/gpu/driver_costs.c -o driver_costs -lpthread -ldl
 * Usage:  driver_costs [SCALE]    SCALE divides the repetitions, for a try on the tests' fake driver; 1
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../support/cuda_functions.h"

enum { MOST_THREADS = 8, ROUNDS = 9, MOST_REPETITIONS = 64, PIECES = 16 };

static struct cuda_driver driver;

static void check(CUresult result, const char *what, int line) {
  if (result == CUDA_SUCCESS) return;
  const char *name = "?";
  if (driver.cuGetErrorName != NULL) (void)driver.cuGetErrorName(result, &name);
  fprintf(stderr, "driver_costs: line %d: %s: %s (%d)\n", line, what, name, (int)result);
  exit(1);
}
#define OK(call) check(driver.call, #call, __LINE__)

static void open_driver(void) {
  const char *missing = cuda_driver_open(&driver);
  if (missing == NULL) return;
  fprintf(stderr, "driver_costs: %s\n", missing);
  exit(1);
}

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static int before(const void *a, const void *b) {
  const uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
  return (left > right) - (left < right);
}

static uint64_t median(uint64_t *values, size_t count) {
  qsort(values, count, sizeof *values, before);
  return values[count / 2];
}

/* --- calls on a stream, from one or several threads ---------------------------------------------------------- */

typedef struct job {
  CUstream stream; /* the thread's own */
  CUstream other;
  CUevent event; /* of the thread's own stream */
} job;

#define BODY(name, ...)                                    \
  static void name(const job *own, uint64_t repetitions) { \
    for (uint64_t i = 0; i < repetitions; ++i) {           \
      __VA_ARGS__;                                         \
    }                                                      \
  }

BODY(is_capturing, CUstreamCaptureStatus status; OK(cuStreamIsCapturing(own->stream, &status)))
BODY(is_capturing_legacy, (void)own; CUstreamCaptureStatus status; OK(cuStreamIsCapturing(CU_STREAM_LEGACY, &status)))
BODY(is_capturing_per_thread, (void)own; CUstreamCaptureStatus status;
     OK(cuStreamIsCapturing(CU_STREAM_PER_THREAD, &status)))
BODY(capture_info, CUstreamCaptureStatus status; cuuint64_t id;
     OK(cuStreamGetCaptureInfo_v2(own->stream, &status, &id, NULL, NULL, NULL)))
BODY(current_context, (void)own; CUcontext context; OK(cuCtxGetCurrent(&context)))
BODY(stream_query, OK(cuStreamQuery(own->stream)))
BODY(event_record, OK(cuEventRecord(own->event, own->stream)))
BODY(event_query, OK(cuEventQuery(own->event)))
BODY(wait_finished_event, OK(cuStreamWaitEvent(own->other, own->event, 0)))
BODY(record_and_wait, OK(cuEventRecord(own->event, own->stream)); OK(cuStreamWaitEvent(own->other, own->event, 0)))
BODY(create_and_destroy, (void)own; CUevent event; OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
     OK(cuEventDestroy_v2(event)))

typedef struct worker {
  pthread_t thread;
  job job;
  void (*body)(const job *, uint64_t);
  uint64_t repetitions;
  CUcontext context;
  pthread_barrier_t *barrier;
  uint64_t times[ROUNDS]; /* ns for all repetitions */
} worker;

static void *work(void *argument) {
  worker *own = argument;
  OK(cuCtxSetCurrent(own->context));
  own->body(&own->job, own->repetitions / 8 + 1); /* warm */
  OK(cuStreamSynchronize(own->job.stream));
  OK(cuStreamSynchronize(own->job.other));
  for (int round = 0; round < ROUNDS; ++round) {
    pthread_barrier_wait(own->barrier);
    const uint64_t begin = now();
    own->body(&own->job, own->repetitions);
    own->times[round] = now() - begin;
    OK(cuStreamSynchronize(own->job.stream)); /* what was queued shall not slow the next round */
    OK(cuStreamSynchronize(own->job.other));
  }
  return NULL;
}

static void measure(const char *name, void (*body)(const job *, uint64_t), uint64_t repetitions, CUcontext context) {
  static const int counts[] = {1, MOST_THREADS};
  for (size_t c = 0; c < sizeof counts / sizeof *counts; ++c) {
    const int threads = counts[c];
    worker workers[MOST_THREADS];
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    for (int i = 0; i < threads; ++i) {
      worker *own = &workers[i];
      own->body = body;
      own->repetitions = repetitions;
      own->context = context;
      own->barrier = &barrier;
      OK(cuStreamCreate(&own->job.stream, CU_STREAM_NON_BLOCKING));
      OK(cuStreamCreate(&own->job.other, CU_STREAM_NON_BLOCKING));
      OK(cuEventCreate(&own->job.event, CU_EVENT_DISABLE_TIMING));
      OK(cuEventRecord(own->job.event, own->job.stream));
      OK(cuStreamSynchronize(own->job.stream));
    }
    for (int i = 0; i < threads; ++i)
      if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) abort();
    uint64_t times[ROUNDS] = {0};
    for (int i = 0; i < threads; ++i) {
      pthread_join(workers[i].thread, NULL);
      for (int round = 0; round < ROUNDS; ++round) times[round] += workers[i].times[round];
    }
    for (int i = 0; i < threads; ++i) {
      OK(cuEventDestroy_v2(workers[i].job.event));
      OK(cuStreamDestroy_v2(workers[i].job.stream));
      OK(cuStreamDestroy_v2(workers[i].job.other));
    }
    pthread_barrier_destroy(&barrier);
    const double each = (double)median(times, ROUNDS) / threads / (double)repetitions;
    printf("%-44s %d thread%s %9.1f ns a call\n", name, threads, threads == 1 ? " " : "s", each);
  }
}

/* --- VMM ------------------------------------------------------------------------------------------------------- */

static const CUmemAllocationProp device_memory = {
    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
};
static const CUmemAccessDesc read_write = {
    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};

#define TIMED(into, call)         \
  do {                            \
    const uint64_t begin = now(); \
    OK(call);                     \
    (into) = now() - begin;       \
  } while (0)

static double us(uint64_t *values, size_t count) { return (double)median(values, count) / 1000; }

static void one_handle(size_t size, size_t repetitions) {
  uint64_t reserve[MOST_REPETITIONS], create[MOST_REPETITIONS], map[MOST_REPETITIONS], access[MOST_REPETITIONS],
      unmap[MOST_REPETITIONS], release[MOST_REPETITIONS], leave[MOST_REPETITIONS];
  for (size_t i = 0; i < repetitions; ++i) {
    CUdeviceptr address;
    CUmemGenericAllocationHandle handle;
    TIMED(reserve[i], cuMemAddressReserve(&address, size, 0, 0, 0));
    TIMED(create[i], cuMemCreate(&handle, size, &device_memory, 0));
    TIMED(map[i], cuMemMap(address, size, 0, handle, 0));
    TIMED(access[i], cuMemSetAccess(address, size, &read_write, 1));
    TIMED(unmap[i], cuMemUnmap(address, size));
    TIMED(release[i], cuMemRelease(handle));
    TIMED(leave[i], cuMemAddressFree(address, size));
  }
  printf("%3zu MiB   %8.1f %8.1f %8.1f %9.1f %8.1f %8.1f %8.1f\n", size >> 20, us(reserve, repetitions),
         us(create, repetitions), us(map, repetitions), us(access, repetitions), us(unmap, repetitions),
         us(release, repetitions), us(leave, repetitions));
}

/* One handle that moves between two addresses of one reservation. */
static void remap(size_t size, size_t repetitions) {
  uint64_t unmap[MOST_REPETITIONS], map[MOST_REPETITIONS], access[MOST_REPETITIONS], all[MOST_REPETITIONS];
  CUdeviceptr base;
  CUmemGenericAllocationHandle handle;
  OK(cuMemAddressReserve(&base, 2 * size, 0, 0, 0));
  OK(cuMemCreate(&handle, size, &device_memory, 0));
  CUdeviceptr address = base;
  OK(cuMemMap(address, size, 0, handle, 0));
  OK(cuMemSetAccess(address, size, &read_write, 1));
  for (size_t i = 0; i < repetitions; ++i) {
    TIMED(unmap[i], cuMemUnmap(address, size));
    address = address == base ? base + size : base;
    TIMED(map[i], cuMemMap(address, size, 0, handle, 0));
    TIMED(access[i], cuMemSetAccess(address, size, &read_write, 1));
    all[i] = unmap[i] + map[i] + access[i];
  }
  OK(cuMemUnmap(address, size));
  OK(cuMemRelease(handle));
  OK(cuMemAddressFree(base, 2 * size));
  printf("%3zu MiB   %8.1f %8.1f %9.1f %9.1f\n", size >> 20, us(unmap, repetitions), us(map, repetitions),
         us(access, repetitions), us(all, repetitions));
}

/* PIECES fresh mappings side by side, made accessible by one call or by one call each. They are taken down by one unmap
   or by one each. */
static void adjacent(size_t size, size_t repetitions) {
  uint64_t access[2][MOST_REPETITIONS], unmap[2][MOST_REPETITIONS];
  CUdeviceptr base;
  CUmemGenericAllocationHandle handles[PIECES];
  OK(cuMemAddressReserve(&base, PIECES * size, 0, 0, 0));
  for (size_t i = 0; i < repetitions; ++i)
    for (int single = 0; single < 2; ++single) {
      for (size_t piece = 0; piece < PIECES; ++piece) {
        OK(cuMemCreate(&handles[piece], size, &device_memory, 0));
        OK(cuMemMap(base + piece * size, size, 0, handles[piece], 0));
      }
      uint64_t begin = now();
      if (single)
        for (size_t piece = 0; piece < PIECES; ++piece) OK(cuMemSetAccess(base + piece * size, size, &read_write, 1));
      else
        OK(cuMemSetAccess(base, PIECES * size, &read_write, 1));
      access[single][i] = now() - begin;
      begin = now();
      if (single)
        for (size_t piece = 0; piece < PIECES; ++piece) OK(cuMemUnmap(base + piece * size, size));
      else
        OK(cuMemUnmap(base, PIECES * size));
      unmap[single][i] = now() - begin;
      for (size_t piece = 0; piece < PIECES; ++piece) OK(cuMemRelease(handles[piece]));
    }
  OK(cuMemAddressFree(base, PIECES * size));
  printf("%3zu MiB   %12.1f %12.1f %12.1f %12.1f\n", size >> 20, us(access[0], repetitions), us(access[1], repetitions),
         us(unmap[0], repetitions), us(unmap[1], repetitions));
}

int main(int count, char **arguments) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  const uint64_t scale = count > 1 ? strtoull(arguments[1], NULL, 10) : 1;
  if (scale == 0) {
    fprintf(stderr, "driver_costs: SCALE is a number of at least 1, not '%s'\n", arguments[1]);
    return 2;
  }
  open_driver();
  OK(cuInit(0));
  CUdevice device;
  CUcontext context;
  char name[128];
  int version;
  OK(cuDeviceGet(&device, 0));
  OK(cuDeviceGetName(name, sizeof name, device));
  OK(cuDriverGetVersion(&version));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
  printf("%s, CUDA %d.%d; medians\n\n", name, version / 1000, version % 1000 / 10);

  const uint64_t many = 200000 / scale + 1, some = 20000 / scale + 1;
  measure("cuStreamIsCapturing", is_capturing, many, context);
  measure("cuStreamIsCapturing, legacy default stream", is_capturing_legacy, many, context);
  measure("cuStreamIsCapturing, per-thread stream", is_capturing_per_thread, many, context);
  measure("cuStreamGetCaptureInfo", capture_info, many, context);
  measure("cuCtxGetCurrent", current_context, many, context);
  measure("cuStreamQuery, idle", stream_query, many, context);
  measure("cuEventRecord", event_record, some, context);
  measure("cuEventQuery, finished", event_query, many, context);
  measure("cuStreamWaitEvent, finished event", wait_finished_event, some, context);
  measure("cuEventRecord + cuStreamWaitEvent on another", record_and_wait, some, context);
  measure("cuEventCreate + cuEventDestroy, no timing", create_and_destroy, some, context);

  static const size_t sizes[] = {2, 4, 8, 16, 32, 64};
  const size_t repetitions = scale >= MOST_REPETITIONS ? 1 : MOST_REPETITIONS / scale;
  printf("\none handle, us\n%-9s %8s %8s %8s %9s %8s %8s %8s\n", "size", "reserve", "create", "map", "setaccess",
         "unmap", "release", "free");
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) one_handle(sizes[i] << 20, repetitions);
  printf("\none handle moved to another address, us\n%-9s %8s %8s %9s %9s\n", "size", "unmap", "map", "setaccess",
         "sum");
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) remap(sizes[i] << 20, repetitions);
  printf("\n%d handles side by side, us for all\n%-9s %12s %12s %12s %12s\n", PIECES, "size", "setaccess 1x", "16x",
         "unmap 1x", "16x");
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) adjacent(sizes[i] << 20, repetitions / 4 + 1);

  OK(cuCtxSetCurrent(NULL));
  OK(cuDevicePrimaryCtxRelease_v2(device));
  return 0;
}
