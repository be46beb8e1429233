// SPDX-License-Identifier: Apache-2.0
// The fake driver refuses misuse, so that no test passes by its indulgence, and its calls fail on demand. The tests of
// the library show that it carries out the rest. Each case runs in a process of its own, so that it has its own
// environment and no cuInit behind it; `fake_cuda_test NAME` runs one.
#include "fake_cuda.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "../cuda_functions.h"

struct Case {
  const char *name;
  void (*run)();
  const char *environment;  // "NAME=value NAME=value"
};
static std::vector<Case> &cases() {
  static std::vector<Case> all;
  return all;
}
struct Register {
  Register(const char *name, void (*run)(), const char *environment) { cases().push_back({name, run, environment}); }
};

#define CASE(name, environment)                                    \
  static void name();                                              \
  static const Register register_##name(#name, name, environment); \
  static void name()

static void failed(const char *file, int line, const char *what, long got, long wanted) {
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
static CUcontext start(int device = 0) {
  CUcontext context = nullptr;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, device));
  OK(cuCtxSetCurrent(context));
  return context;
}

static CUmemAllocationProp device_memory(int device = 0) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

static CUmemAccessDesc access(CUmemAccess_flags flags, int type = CU_MEM_LOCATION_TYPE_DEVICE, int id = 0) {
  CUmemAccessDesc descriptor{};
  descriptor.location.type = static_cast<CUmemLocationType>(type);
  descriptor.location.id = id;
  descriptor.flags = flags;
  return descriptor;
}

// Whether a process dies of reading the byte.
static bool crashes_on_read(const void *address) {
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

static fake_cuda_live_t live() {
  fake_cuda_live_t now;
  fake_cuda_live(&now);
  return now;
}

// --- The start, contexts and failures on demand

CASE(nothing_works_before_init, "") {
  int value = 0;
  CUdeviceptr address = 0;
  CUcontext context = nullptr;
  CUmemGenericAllocationHandle handle;
  auto properties = device_memory();
  OK(cuDriverGetVersion(&value));
  IS(value, 13000);
  IS(cuDeviceGetCount(&value), CUDA_ERROR_NOT_INITIALIZED);
  IS(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_NOT_INITIALIZED);
  IS(cuMemAlloc_v2(&address, 512), CUDA_ERROR_NOT_INITIALIZED);
  IS(cuMemCreate(&handle, kTwo, &properties, 0), CUDA_ERROR_NOT_INITIALIZED);
  IS(cuStreamSynchronize(nullptr), CUDA_ERROR_NOT_INITIALIZED);
  IS(cuInit(1), CUDA_ERROR_INVALID_VALUE);
  OK(cuInit(0));
  OK(cuInit(0));
  OK(cuDeviceGetCount(&value));
  IS(value, 1);
}

CASE(a_forked_child_is_not_initialized, "") {
  start();
  CUdeviceptr address;
  OK(cuMemAlloc_v2(&address, 512));
  CUstream stream;
  OK(cuStreamCreate(&stream, 0));
  OK(cuMemsetD8Async(address, 1, 512, stream));
  pid_t child = fork();
  if (child == 0) {
    CUdeviceptr other;
    int value;
    CUcontext context;
    IS(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
    IS(cuMemAlloc_v2(&other, 512), CUDA_ERROR_NOT_INITIALIZED);
    IS(cuMemFree_v2(address), CUDA_ERROR_NOT_INITIALIZED);
    IS(cuDeviceGetCount(&value), CUDA_ERROR_NOT_INITIALIZED);
    IS(cuCtxGetCurrent(&context), CUDA_ERROR_NOT_INITIALIZED);
    IS(cuStreamSynchronize(stream), CUDA_ERROR_NOT_INITIALIZED);
    IS(cuMemRelease(1), CUDA_ERROR_NOT_INITIALIZED);
    _exit(0);
  }
  int status;
  IS(waitpid(child, &status, 0), child);
  IS(status, 0);
  OK(cuMemFree_v2(address));
}

CASE(contexts_are_needed_counted_and_checked, "FAKE_CUDA_DEVICES=2") {
  OK(cuInit(0));
  CUdeviceptr address;
  size_t free, total;
  CUdevice device;
  CUcontext zero, one, popped;
  IS(cuMemAlloc_v2(&address, 512), CUDA_ERROR_INVALID_CONTEXT);
  IS(cuMemGetInfo_v2(&free, &total), CUDA_ERROR_INVALID_CONTEXT);
  IS(cuStreamSynchronize(nullptr), CUDA_ERROR_INVALID_CONTEXT);
  IS(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
  IS(cuCtxPopCurrent_v2(&popped), CUDA_ERROR_INVALID_CONTEXT);
  IS(cuCtxSetCurrent(reinterpret_cast<CUcontext>(&address)), CUDA_ERROR_INVALID_CONTEXT);
  IS(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
  IS(cuDevicePrimaryCtxRetain(&zero, 2), CUDA_ERROR_INVALID_DEVICE);
  OK(cuDevicePrimaryCtxRetain(&zero, 0));
  OK(cuDevicePrimaryCtxRetain(&one, 1));
  OK(cuDevicePrimaryCtxRetain(&one, 1));
  OK(cuCtxPushCurrent_v2(zero));
  OK(cuCtxPushCurrent_v2(one));
  OK(cuCtxGetDevice(&device));
  IS(device, 1);
  OK(cuCtxPopCurrent_v2(&popped));
  IS(popped, one);
  OK(cuCtxGetDevice(&device));
  IS(device, 0);
  std::thread([] {
    CUdeviceptr other;
    IS(cuMemAlloc_v2(&other, 512), CUDA_ERROR_INVALID_CONTEXT);  // a new thread has none
  }).join();
  IS(live().context_references, 3);
  OK(cuMemAlloc_v2(&address, 512));
  OK(cuDevicePrimaryCtxRelease_v2(0));
  IS(live().dropped, 1);
  IS(live().allocations, 0);
  IS(live().device_bytes, 0);
  IS(cuMemAlloc_v2(&address, 512), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

CASE(the_kth_call_fails_once_and_has_no_effect, "") {
  start();
  CUdeviceptr a, b, c;
  IS(fake_cuda_fail("cuNoSuchEntry", 1, CUDA_ERROR_UNKNOWN), -1);
  IS(fake_cuda_fail("cuMemAlloc", 2, CUDA_ERROR_OUT_OF_MEMORY), 0);
  OK(cuMemAlloc_v2(&a, 512));
  IS(cuMemAlloc_v2(&b, 512), CUDA_ERROR_OUT_OF_MEMORY);
  OK(cuMemAlloc_v2(&c, 512));
  IS(live().allocations, 2);
  IS(live().device_bytes, 1024);
  IS(fake_cuda_failures(), 1);
  IS(fake_cuda_fail("cuMemFree_v2", 1, CUDA_ERROR_UNKNOWN), 0);
  IS(cuMemFree_v2(a), CUDA_ERROR_UNKNOWN);
  IS(live().allocations, 2);
  OK(cuMemFree_v2(a));
  IS(fake_cuda_fail("cuMemFree", 1, CUDA_ERROR_UNKNOWN), 0);
  IS(fake_cuda_fail("cuMemFree", 0, 0), 0);  // taken back
  OK(cuMemFree_v2(c));
}

CASE(any_call_can_fail_but_not_bookkeeping, "") {
  CUcontext context = start();
  const char *text;
  uint64_t before = fake_cuda_calls_until_now();
  IS(fake_cuda_fail(nullptr, 2, CUDA_ERROR_LAUNCH_FAILED), 0);
  OK(cuCtxGetCurrent(&context));
  OK(cuCtxPushCurrent_v2(context));
  OK(cuCtxPopCurrent_v2(&context));
  OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
  IS(strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY"), 0);
  IS(fake_cuda_calls_until_now(), before);
  CUdeviceptr address;
  OK(cuMemAlloc_v2(&address, 512));
  IS(cuMemFree_v2(address), CUDA_ERROR_LAUNCH_FAILED);
  OK(cuMemFree_v2(address));
  IS(fake_cuda_calls_until_now(), before + 3);
  IS(fake_cuda_count("cuMemFree"), 2);
  IS(fake_cuda_count("cuCtxPushCurrent"), 1);
  IS(fake_cuda_count("nonsense"), UINT64_MAX);
  fake_cuda_reset_counts();
  IS(fake_cuda_count(nullptr), 0);
}

// --- Streams, events and captures

static void wait_until_set(void *flag) {
  while (!*static_cast<std::atomic<bool> *>(flag)) std::this_thread::yield();
}
static void count_up(void *counter) { ++*static_cast<std::atomic<int> *>(counter); }

CASE(work_runs_later_and_in_order, "") {
  start();
  CUstream stream;
  void *pinned;
  CUdeviceptr d;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemHostAlloc(&pinned, 16, 0));
  OK(cuMemAlloc_v2(&d, 16));
  std::atomic<bool> go{false};
  OK(cuLaunchHostFunc(stream, wait_until_set, &go));
  OK(cuMemsetD8Async(d, 1, 16, stream));
  OK(cuMemsetD8Async(d, 2, 8, stream));
  OK(cuMemcpyDtoHAsync_v2(pinned, d, 16, stream));
  IS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  IS(static_cast<char *>(pinned)[0], 0);
  go = true;
  OK(cuStreamSynchronize(stream));
  OK(cuStreamQuery(stream));
  IS(static_cast<char *>(pinned)[7], 2);
  IS(static_cast<char *>(pinned)[8], 1);
  OK(cuStreamDestroy_v2(stream));
  IS(cuStreamDestroy_v2(stream), CUDA_ERROR_INVALID_HANDLE);
  IS(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
}

CASE(the_legacy_stream_waits_for_blocking_ones_only, "") {
  start();
  CUstream blocking, free_running;
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  OK(cuStreamCreate(&free_running, CU_STREAM_NON_BLOCKING));
  std::atomic<bool> go{false}, never{false};
  std::atomic<int> count{0};
  OK(cuLaunchHostFunc(free_running, wait_until_set, &never));
  OK(cuLaunchHostFunc(blocking, wait_until_set, &go));
  OK(cuLaunchHostFunc(nullptr, count_up, &count));
  OK(cuLaunchHostFunc(blocking, count_up, &count));
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  IS(count.load(), 0);
  IS(cuStreamQuery(nullptr), CUDA_ERROR_NOT_READY);
  go = true;
  OK(cuStreamSynchronize(nullptr));
  CHECK(count >= 1);
  OK(cuStreamSynchronize(blocking));
  IS(count.load(), 2);
  IS(cuStreamQuery(free_running), CUDA_ERROR_NOT_READY);
  never = true;
  OK(cuCtxSynchronize());
}

CASE(unmapping_under_work_is_an_illegal_access, "") {
  start();
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  auto properties = device_memory();
  auto both = access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CUmemGenericAllocationHandle handle;
  CUdeviceptr a;
  OK(cuMemCreate(&handle, kTwo, &properties, 0));
  OK(cuMemAddressReserve(&a, kTwo, 0, 0, 0));
  OK(cuMemMap(a, kTwo, 0, handle, 0));
  OK(cuMemSetAccess(a, kTwo, &both, 1));
  std::atomic<bool> go{false};
  OK(cuLaunchHostFunc(stream, wait_until_set, &go));
  OK(cuMemsetD8Async(a, 1, kTwo, stream));
  OK(cuMemUnmap(a, kTwo));
  go = true;
  IS(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  size_t free, total;
  IS(cuMemGetInfo_v2(&free, &total), CUDA_ERROR_ILLEGAL_ADDRESS);  // the context is lost
}

CASE(a_plain_free_waits_and_a_pool_free_is_ordered, "") {
  start();
  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr d, p;
  std::atomic<bool> go{false};
  OK(cuMemAlloc_v2(&d, 4096));
  OK(cuMemAllocAsync(&p, 4096, stream));
  OK(cuLaunchHostFunc(stream, wait_until_set, &go));
  OK(cuMemsetD8Async(d, 1, 4096, stream));
  OK(cuMemsetD8Async(p, 1, 4096, stream));
  OK(cuMemFreeAsync(p, stream));
  IS(cuMemFreeAsync(p, stream), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemFreeAsync(d, stream), CUDA_ERROR_INVALID_VALUE);
  IS(live().allocations, 2);
  std::thread([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    go = true;
  }).detach();
  OK(cuMemFree_v2(d));
  CHECK(go);
  OK(cuStreamSynchronize(stream));
  IS(live().allocations, 0);
}

static std::atomic<int> from_callback{0};
static void call_the_driver(void *) { from_callback = cuCtxSynchronize(); }

CASE(host_functions_may_not_call_the_driver, "") {
  start();
  OK(cuLaunchHostFunc(nullptr, call_the_driver, nullptr));
  OK(cuStreamSynchronize(nullptr));
  IS(from_callback.load(), CUDA_ERROR_NOT_PERMITTED);
}

CASE(capture_forbids_what_it_cannot_record, "") {
  start();
  CUstream stream, other;
  CUevent event, join;
  CUgraph graph;
  CUdeviceptr d, more;
  CUstreamCaptureStatus status;
  std::atomic<int> count{0};
  OK(cuMemAlloc_v2(&d, 4096));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
  IS(cuStreamBeginCapture_v2(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuStreamIsCapturing(stream, &status));
  IS(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(cuLaunchHostFunc(stream, count_up, &count));  // recorded, not run
  OK(cuEventRecord(event, stream));
  OK(cuStreamWaitEvent(other, event, 0));
  OK(cuStreamIsCapturing(other, &status));
  IS(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  OK(cuEventRecord(join, other));
  OK(cuStreamWaitEvent(stream, join, 0));
  OK(cuMemAlloc_v2(&more, 4096));  // relaxed
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphDestroy(graph));
  IS(count.load(), 0);
  IS(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
  OK(cuEventRecord(event, stream));
  OK(cuEventSynchronize(event));
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  IS(cuMemAlloc_v2(&d, 4096), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  IS(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  OK(cuMemAlloc_v2(&d, 4096));
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  OK(cuEventRecord(event, stream));
  OK(cuStreamWaitEvent(other, event, 0));
  IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  OK(cuStreamIsCapturing(other, &status));
  IS(status, CU_STREAM_CAPTURE_STATUS_NONE);
}

CASE(a_capture_on_a_blocking_stream_closes_the_legacy_stream, "") {
  start();
  CUstream stream;
  CUgraph graph;
  CUstreamCaptureStatus status;
  CUdeviceptr d;
  OK(cuMemAlloc_v2(&d, 4096));
  OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  IS(cuStreamIsCapturing(nullptr, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  OK(cuStreamEndCapture(stream, &graph));  // the question has spoilt nothing
  OK(cuGraphDestroy(graph));
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  IS(cuMemsetD8Async(d, 1, 4096, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

// As driver 580 does on two H200.
CASE(events_between_processes_stay_on_their_device, "FAKE_CUDA_DEVICES=2") {
  enum Way { kHandle, kHandleElsewhere, kWaitElsewhere, kWait, kEnd };
  for (int way = 0; way < kEnd; ++way) {
    pid_t child = fork();
    if (child == 0) {
      close(2);
      CUcontext elsewhere = start(0);
      CUstream far, near;
      OK(cuStreamCreate(&far, CU_STREAM_NON_BLOCKING));
      start(1);
      CUevent event;
      CUipcEventHandle handle;
      OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
      OK(cuStreamCreate(&near, CU_STREAM_NON_BLOCKING));
      if (way == kHandle) OK(cuIpcGetEventHandle(&handle, event));
      OK(cuCtxSetCurrent(elsewhere));
      if (way == kHandleElsewhere) cuIpcGetEventHandle(&handle, event);
      if (way == kWaitElsewhere) cuStreamWaitEvent(far, event, 0);
      OK(cuStreamWaitEvent(near, event, 0));
      OK(cuEventQuery(event));
      OK(cuEventSynchronize(event));
      OK(cuEventDestroy_v2(event));
      _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    const bool crashes = way == kHandleElsewhere || way == kWaitElsewhere;
    IS(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), crashes ? SIGSEGV : 0);
  }
}

// --- Memory

static CUmemGenericAllocationHandle create(size_t size) {
  CUmemGenericAllocationHandle handle;
  auto properties = device_memory();
  OK(cuMemCreate(&handle, size, &properties, 0));
  return handle;
}
static CUdeviceptr reserve(size_t size) {
  CUdeviceptr address;
  OK(cuMemAddressReserve(&address, size, 0, 0, 0));
  IS(address % kTwo, 0);
  return address;
}

CASE(reservations_are_freed_exactly, "") {
  start();
  CUdeviceptr a;
  IS(cuMemAddressReserve(&a, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemAddressReserve(&a, 4097, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemAddressReserve(&a, kTwo, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemAddressReserve(&a, kTwo, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemAddressReserve(&a, size_t{1} << 60, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  a = reserve(3 * kTwo);
  CHECK(crashes_on_read(reinterpret_cast<void *>(a)));
  IS(cuMemAddressFree(a, kTwo), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemAddressFree(a + kTwo, 2 * kTwo), CUDA_ERROR_INVALID_VALUE);
  auto handle = create(kTwo);
  OK(cuMemMap(a + kTwo, kTwo, 0, handle, 0));
  IS(cuMemAddressFree(a, 3 * kTwo), CUDA_ERROR_INVALID_VALUE);  // still mapped
  OK(cuMemUnmap(a + kTwo, kTwo));
  OK(cuMemAddressFree(a, 3 * kTwo));
  IS(cuMemAddressFree(a, 3 * kTwo), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemRelease(handle));
}

CASE(mapping_takes_whole_handles_in_one_reservation, "") {
  start();
  CUdeviceptr a = reserve(4 * kTwo);
  auto two = create(2 * kTwo), one = create(kTwo);
  IS(cuMemMap(a, kTwo, 0, two, 0), CUDA_ERROR_INVALID_VALUE);             // a part
  IS(cuMemMap(a, 2 * kTwo, kTwo, two, 0), CUDA_ERROR_INVALID_VALUE);      // an offset
  IS(cuMemMap(a + 4096, 2 * kTwo, 0, two, 0), CUDA_ERROR_INVALID_VALUE);  // unaligned
  IS(cuMemMap(a + 3 * kTwo, 2 * kTwo, 0, two, 0), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemMap(a + 64 * kTwo, kTwo, 0, one, 0), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemMap(a, kTwo, 0, 12345, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemMap(a + kTwo, 2 * kTwo, 0, two, 0));
  IS(cuMemMap(a + 2 * kTwo, kTwo, 0, one, 0), CUDA_ERROR_INVALID_VALUE);  // taken
  IS(cuMemMap(a, 2 * kTwo, 0, two, 0), CUDA_ERROR_INVALID_VALUE);         // overlaps
  OK(cuMemMap(a, kTwo, 0, one, 0));
  IS(cuMemUnmap(a, 2 * kTwo), CUDA_ERROR_INVALID_VALUE);  // half of the second mapping
  IS(cuMemUnmap(a, 4 * kTwo), CUDA_ERROR_INVALID_VALUE);  // a hole at the end
  IS(cuMemUnmap(a + kTwo, kTwo), CUDA_ERROR_INVALID_VALUE);
  IS(live().mappings, 2);
  OK(cuMemUnmap(a, 3 * kTwo));
  IS(cuMemUnmap(a, 3 * kTwo), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemRelease(one));
  OK(cuMemRelease(two));
  OK(cuMemAddressFree(a, 4 * kTwo));
  auto now = live();
  IS(now.mappings + now.handles + now.reservations + now.device_bytes, 0);
}

CASE(access_belongs_to_a_mapping, "") {
  start();
  CUdeviceptr a = reserve(2 * kTwo);
  auto first = create(kTwo), second = create(kTwo);
  OK(cuMemMap(a, kTwo, 0, first, 0));
  char byte = 1;
  IS(cuMemcpyHtoD_v2(a, &byte, 1), CUDA_ERROR_INVALID_VALUE);  // no access yet
  auto both = access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE), read = access(CU_MEM_ACCESS_FLAGS_PROT_READ);
  IS(cuMemSetAccess(a, 2 * kTwo, &both, 1), CUDA_ERROR_INVALID_VALUE);  // a hole
  IS(cuMemSetAccess(a, kMiB, &both, 1), CUDA_ERROR_INVALID_VALUE);
  auto other = access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_LOCATION_TYPE_DEVICE, 5);
  IS(cuMemSetAccess(a, kTwo, &other, 1), CUDA_ERROR_INVALID_DEVICE);
  auto cpu = access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3);
  IS(cuMemSetAccess(a, kTwo, &cpu, 1), CUDA_ERROR_INVALID_VALUE);  // pages of a device
  OK(cuMemMap(a + kTwo, kTwo, 0, second, 0));
  OK(cuMemSetAccess(a, 2 * kTwo, &both, 1));
  OK(cuMemsetD8_v2(a + kTwo - 1, 3, 2));  // across two mappings
  OK(cuMemcpyDtoH_v2(&byte, a + kTwo, 1));
  IS(byte, 3);
  CHECK(crashes_on_read(reinterpret_cast<void *>(a)));
  OK(cuMemSetAccess(a, kTwo, &read, 1));
  IS(cuMemcpyHtoD_v2(a, &byte, 1), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemcpyDtoH_v2(&byte, a + kTwo - 1, 1));
  unsigned long long flags;
  OK(cuMemGetAccess(&flags, &read.location, a));
  IS(flags, CU_MEM_ACCESS_FLAGS_PROT_READ);
  OK(cuMemUnmap(a, kTwo));
  OK(cuMemMap(a, kTwo, 0, first, 0));
  OK(cuMemGetAccess(&flags, &read.location, a));
  IS(flags, 0);  // gone with the mapping
}

CASE(the_cpu_cannot_read_device_memory, "") {
  start();
  CUdeviceptr a;
  OK(cuMemAlloc_v2(&a, 4 * kMiB));
  CHECK(crashes_on_read(reinterpret_cast<void *>(a)));
}

CASE(copies_check_their_ends, "") {
  start();
  CUdeviceptr a;
  char bytes[1024] = {};
  OK(cuMemAlloc_v2(&a, 1024));
  for (int i = 0; i < 1024; i++) bytes[i] = static_cast<char>(i);
  OK(cuMemcpyHtoD_v2(a, bytes, 1024));
  memset(bytes, 0, sizeof bytes);
  OK(cuMemcpyDtoH_v2(bytes, a + 1, 1023));
  IS(bytes[0], 1);
  IS(bytes[1022], static_cast<char>(1023));
  IS(cuMemcpyDtoH_v2(bytes, a + 1, 1024), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemcpyDtoH_v2(bytes, reinterpret_cast<CUdeviceptr>(bytes), 10), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemcpyHtoD_v2(0, bytes, 10), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemsetD8_v2(reinterpret_cast<CUdeviceptr>(bytes), 1, 10), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemsetD8_v2(a, 1, 1025), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemFree_v2(a));
  IS(cuMemcpyDtoH_v2(bytes, a, 10), CUDA_ERROR_INVALID_VALUE);
}

CASE(host_memory_is_registered_once_and_whole, "") {
  start();
  size_t page = 4096;
  auto *memory =
      static_cast<char *>(mmap(nullptr, 8 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  OK(cuMemHostRegister_v2(memory, 4 * page, 0));
  IS(cuMemHostRegister_v2(memory, 4 * page, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  IS(cuMemHostRegister_v2(memory + 3 * page, 2 * page, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  OK(cuMemHostRegister_v2(memory + 4 * page, 100, 0));
  IS(cuMemHostRegister_v2(memory + 4 * page + 200, 100, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CUdeviceptr device;
  OK(cuMemHostGetDevicePointer_v2(&device, memory + 10, 0));
  IS(device, reinterpret_cast<CUdeviceptr>(memory + 10));
  IS(cuMemHostGetDevicePointer_v2(&device, memory + 6 * page, 0), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemHostUnregister(memory + page), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  IS(live().registrations, 2);
  OK(cuMemHostUnregister(memory));
  OK(cuMemHostUnregister(memory + 4 * page));
  IS(cuMemHostUnregister(memory), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  munmap(memory + 2 * page, page);
  IS(cuMemHostRegister_v2(memory, 4 * page, 0), CUDA_ERROR_INVALID_VALUE);  // a hole
  IS(cuMemHostRegister_v2(nullptr, page, 0), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemHostRegister_v2(memory, 0, 0), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr d;
  OK(cuMemAlloc_v2(&d, page));
  IS(cuMemHostRegister_v2(reinterpret_cast<void *>(d), page, 0), CUDA_ERROR_INVALID_VALUE);
  void *pinned;
  OK(cuMemHostAlloc(&pinned, page, CU_MEMHOSTALLOC_PORTABLE));
  IS(cuMemHostRegister_v2(pinned, page, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  IS(cuMemFree_v2(reinterpret_cast<CUdeviceptr>(pinned)), CUDA_ERROR_INVALID_VALUE);
  IS(cuMemFreeHost(static_cast<char *>(pinned) + 1), CUDA_ERROR_INVALID_VALUE);
  OK(cuMemFreeHost(pinned));
  IS(live().host_bytes, 0);
}

static bool run(const Case &one) {
  pid_t child = fork();
  if (child == 0) {
    std::string environment = one.environment;
    for (size_t at = 0; at < environment.size();) {
      size_t end = environment.find(' ', at);
      if (end == std::string::npos) end = environment.size();
      putenv(strdup(environment.substr(at, end - at).c_str()));
      at = end + 1;
    }
    alarm(60);
    one.run();
    exit(0);  // as a program ends, with threads of streams alive
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) {
    printf("FAILED %s (status %#x)\n", one.name, status);
    return false;
  }
  printf("ok %s\n", one.name);
  return true;
}

int main(int argc, char **argv) {
  setvbuf(stdout, nullptr, _IONBF, 0);
  int bad = 0, count = 0;
  for (const Case &one : cases()) {
    if (argc > 1 && strcmp(argv[1], one.name) != 0) continue;
    count++;
    bad += !run(one);
  }
  printf("%d of %d passed\n", count - bad, count);
  return bad || !count ? 1 : 0;
}
