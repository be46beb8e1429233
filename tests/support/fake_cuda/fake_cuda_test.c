// SPDX-License-Identifier: Apache-2.0
// The fake driver refuses misuse, so that no test passes by its indulgence, and its calls fail on demand. The tests of
// the library show that it carries out the rest.
#include "fake_cuda.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "../check.h"
#include "../cuda_functions.h"

#define IS(call, expected) CHECK_EQUAL(call, expected)
#define OK(call) CHECK_EQUAL(call, CUDA_SUCCESS)
#define WRONG(call) CHECK_EQUAL(call, CUDA_ERROR_INVALID_VALUE)

enum { PAGE = 4096 };
#define TWO ((size_t)2 << 20)  // what the driver maps

static const CUmemAllocationProp device_memory = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
static CUcontext context, second_context;
static CUstream stream;

static fake_cuda_live_t live(void) {
  fake_cuda_live_t now;
  fake_cuda_live(&now);
  return now;
}
static CUdeviceptr allocate(size_t size) {
  CUdeviceptr memory = 0;
  OK(cuMemAlloc_v2(&memory, size));
  return memory;
}
static CUmemGenericAllocationHandle create(size_t size) {
  CUmemGenericAllocationHandle handle = 0;
  OK(cuMemCreate(&handle, size, &device_memory, 0));
  return handle;
}
static CUdeviceptr reserve(size_t size) {
  CUdeviceptr address = 0;
  OK(cuMemAddressReserve(&address, size, 0, 0, 0));
  IS(address % TWO, 0);
  return address;
}
static CUmemAccessDesc access_to(CUmemLocationType type, int device, CUmemAccess_flags flags) {
  return (CUmemAccessDesc){.location = {.type = type, .id = device}, .flags = flags};
}
// The signal that ends a child which reads the byte.
static int signal_of_read(CUdeviceptr address) {
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL);
    (void)*(const volatile char *)address;
    _exit(0);
  }
  int status = 0;
  IS(waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}
static void wait_until_set(void *flag) {
  while (!atomic_load((atomic_bool *)flag)) sched_yield();
}
static void count_up(void *counter) { atomic_fetch_add((atomic_int *)counter, 1); }

// --- Before cuInit(), by which the children of this process could not start any more ---------------------------------
// As driver 580 does on two H200.
static void events_between_processes_stay_on_their_device(void) {
  enum { HANDLE, HANDLE_ELSEWHERE, WAIT_ELSEWHERE, WAIT, WAYS };
  for (int way = 0; way < WAYS; ++way) {
    const pid_t child = fork();
    if (child == 0) {
      close(2);
      CUcontext elsewhere, here;
      CUstream far, near;
      CUevent event;
      CUipcEventHandle handle;
      OK(cuInit(0));
      OK(cuDevicePrimaryCtxRetain(&elsewhere, 0));
      OK(cuDevicePrimaryCtxRetain(&here, 1));
      OK(cuCtxSetCurrent(elsewhere));
      OK(cuStreamCreate(&far, CU_STREAM_NON_BLOCKING));
      OK(cuCtxSetCurrent(here));
      OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
      OK(cuStreamCreate(&near, CU_STREAM_NON_BLOCKING));
      if (way == HANDLE) OK(cuIpcGetEventHandle(&handle, event));
      OK(cuCtxSetCurrent(elsewhere));
      if (way == HANDLE_ELSEWHERE) cuIpcGetEventHandle(&handle, event);
      if (way == WAIT_ELSEWHERE) cuStreamWaitEvent(far, event, 0);
      OK(cuStreamWaitEvent(near, event, 0));
      OK(cuEventSynchronize(event));
      _exit(atomic_load(&check_state.failures));
    }
    int status = 0;
    IS(waitpid(child, &status, 0), child);
    const bool crashes = way == HANDLE_ELSEWHERE || way == WAIT_ELSEWHERE;
    IS(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), crashes ? SIGSEGV : 0);
  }
}

static void nothing_works_before_init(void) {
  int value = 0;
  CUdeviceptr memory = 0;
  OK(cuDriverGetVersion(&value));
  IS(value, 13000);
  IS(cuDeviceGetCount(&value), CUDA_ERROR_NOT_INITIALIZED);
  IS(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_NOT_INITIALIZED);
  IS(cuMemAlloc_v2(&memory, 512), CUDA_ERROR_NOT_INITIALIZED);
  IS(cuStreamSynchronize(NULL), CUDA_ERROR_NOT_INITIALIZED);
  WRONG(cuInit(1));
  OK(cuInit(0));
}

// --- Contexts, and failures on demand --------------------------------------------------------------------------------
static void *allocate_in_a_new_thread(void *unused) {
  CUdeviceptr memory;
  IS(cuMemAlloc_v2(&memory, 512), CUDA_ERROR_INVALID_CONTEXT);
  return unused;
}
static void contexts_are_needed_and_checked(void) {
  CUdeviceptr memory;
  CUcontext popped;
  CUdevice device;
  pthread_t thread;
  IS(cuMemAlloc_v2(&memory, 512), CUDA_ERROR_INVALID_CONTEXT);
  IS(cuStreamSynchronize(NULL), CUDA_ERROR_INVALID_CONTEXT);
  IS(cuCtxPopCurrent_v2(&popped), CUDA_ERROR_INVALID_CONTEXT);
  IS(cuCtxSetCurrent((CUcontext)&memory), CUDA_ERROR_INVALID_CONTEXT);
  IS(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
  IS(cuDevicePrimaryCtxRetain(&context, 2), CUDA_ERROR_INVALID_DEVICE);
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuDevicePrimaryCtxRetain(&second_context, 1));
  OK(cuCtxPushCurrent_v2(context));
  OK(cuCtxPushCurrent_v2(second_context));
  pthread_create(&thread, NULL, allocate_in_a_new_thread, NULL);
  pthread_join(thread, NULL);
  allocate(512);
  OK(cuDevicePrimaryCtxRelease_v2(1));
  IS(live().dropped, 1);
  IS(live().device_bytes, 0);
  IS(cuMemAlloc_v2(&memory, 512), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  OK(cuCtxPopCurrent_v2(&popped));
  CHECK(popped == second_context);
  OK(cuCtxGetDevice(&device));
  IS(device, 0);
}

static void a_forked_child_may_call_nothing(void) {
  const CUdeviceptr memory = allocate(512);
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemsetD8Async(memory, 1, 512, stream));
  const pid_t child = fork();
  if (child == 0) {
    CUcontext current;
    IS(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
    IS(cuMemFree_v2(memory), CUDA_ERROR_NOT_INITIALIZED);
    IS(cuCtxGetCurrent(&current), CUDA_ERROR_NOT_INITIALIZED);
    IS(cuStreamSynchronize(stream), CUDA_ERROR_NOT_INITIALIZED);
    _exit(atomic_load(&check_state.failures));
  }
  int status = 1;
  IS(waitpid(child, &status, 0), child);
  IS(status, 0);
  OK(cuMemFree_v2(memory));
}

static void the_kth_call_fails_once_and_has_no_effect(void) {
  const char *text;
  CUcontext current;
  CUdeviceptr memory, second;
  IS(fake_cuda_fail("cuNoSuchEntry", 1, CUDA_ERROR_UNKNOWN), -1);
  IS(fake_cuda_count("cuNoSuchEntry"), UINT64_MAX);
  fake_cuda_reset_counts();
  const uint64_t before = fake_cuda_calls_until_now();
  IS(fake_cuda_fail("cuMemAlloc", 2, CUDA_ERROR_OUT_OF_MEMORY), 0);
  memory = allocate(512);
  IS(cuMemAlloc_v2(&second, 512), CUDA_ERROR_OUT_OF_MEMORY);
  IS(live().allocations, 1);
  IS(live().device_bytes, 512);
  IS(fake_cuda_failures(), 1);
  IS(fake_cuda_fail("cuMemFree_v2", 1, CUDA_ERROR_UNKNOWN), 0);
  IS(fake_cuda_fail("cuMemFree", 0, 0), 0);  // taken back
  // Bookkeeping does not count among all calls.
  IS(fake_cuda_fail(NULL, 1, CUDA_ERROR_LAUNCH_FAILED), 0);
  OK(cuCtxGetCurrent(&current));
  OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
  IS(strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY"), 0);
  IS(cuMemFree_v2(memory), CUDA_ERROR_LAUNCH_FAILED);
  IS(live().allocations, 1);
  OK(cuMemFree_v2(memory));
  IS(fake_cuda_calls_until_now(), before + 4);
  IS(fake_cuda_count("cuMemAlloc"), 2);
  IS(fake_cuda_count(NULL), 4);
}

// --- Memory ----------------------------------------------------------------------------------------------------------
static void reservations_are_freed_exactly(void) {
  CUdeviceptr a = 0;
  WRONG(cuMemAddressReserve(&a, 4097, 0, 0, 0));
  WRONG(cuMemAddressReserve(&a, TWO, 3, 0, 0));
  WRONG(cuMemAddressReserve(&a, TWO, 0, 0, 1));
  a = reserve(3 * TWO);
  IS(signal_of_read(a), SIGSEGV);
  WRONG(cuMemAddressFree(a, TWO));
  WRONG(cuMemAddressFree(a + TWO, 2 * TWO));
  const CUmemGenericAllocationHandle handle = create(TWO);
  OK(cuMemMap(a + TWO, TWO, 0, handle, 0));
  WRONG(cuMemAddressFree(a, 3 * TWO));  // still mapped
  OK(cuMemUnmap(a + TWO, TWO));
  OK(cuMemAddressFree(a, 3 * TWO));
  WRONG(cuMemAddressFree(a, 3 * TWO));
  OK(cuMemRelease(handle));
  WRONG(cuMemRelease(handle));
}

static void mapping_takes_whole_handles_in_one_reservation(void) {
  const CUdeviceptr a = reserve(4 * TWO);
  const CUmemGenericAllocationHandle two = create(2 * TWO), one = create(TWO);
  WRONG(cuMemMap(a, TWO, 0, two, 0));             // a part
  WRONG(cuMemMap(a, 2 * TWO, TWO, two, 0));       // an offset
  WRONG(cuMemMap(a + PAGE, 2 * TWO, 0, two, 0));  // unaligned
  WRONG(cuMemMap(a + 3 * TWO, 2 * TWO, 0, two, 0));
  WRONG(cuMemMap(a + 64 * TWO, TWO, 0, one, 0));
  WRONG(cuMemMap(a, TWO, 0, 12345, 0));
  OK(cuMemMap(a + TWO, 2 * TWO, 0, two, 0));
  WRONG(cuMemMap(a + 2 * TWO, TWO, 0, one, 0));  // taken
  WRONG(cuMemMap(a, 2 * TWO, 0, two, 0));        // overlaps
  OK(cuMemMap(a, TWO, 0, one, 0));
  WRONG(cuMemUnmap(a, 2 * TWO));  // half of the second mapping
  WRONG(cuMemUnmap(a, 4 * TWO));  // a hole at the end
  IS(live().mappings, 2);
  OK(cuMemUnmap(a, 3 * TWO));
  WRONG(cuMemUnmap(a, 3 * TWO));
  OK(cuMemRelease(one));
  OK(cuMemRelease(two));
  OK(cuMemAddressFree(a, 4 * TWO));
  IS(live().mappings + live().handles + live().reservations + live().device_bytes, 0);
}

static void access_belongs_to_a_mapping(void) {
  const CUmemAccessDesc both = access_to(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
                        read = access_to(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ACCESS_FLAGS_PROT_READ),
                        unknown = access_to(CU_MEM_LOCATION_TYPE_DEVICE, 5, CU_MEM_ACCESS_FLAGS_PROT_READ),
                        cpu = access_to(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  const CUdeviceptr a = reserve(2 * TWO);
  const CUmemGenericAllocationHandle first = create(TWO), second = create(TWO);
  unsigned long long flags = 0;
  char byte = 1;
  OK(cuMemMap(a, TWO, 0, first, 0));
  WRONG(cuMemcpyHtoD_v2(a, &byte, 1));          // no access yet
  WRONG(cuMemSetAccess(a, 2 * TWO, &both, 1));  // a hole
  WRONG(cuMemSetAccess(a, TWO / 2, &both, 1));  // a part
  WRONG(cuMemSetAccess(a, TWO, &cpu, 1));       // pages of a device
  IS(cuMemSetAccess(a, TWO, &unknown, 1), CUDA_ERROR_INVALID_DEVICE);
  OK(cuMemMap(a + TWO, TWO, 0, second, 0));
  OK(cuMemSetAccess(a, 2 * TWO, &both, 1));
  OK(cuMemsetD8_v2(a + TWO - 1, 3, 2));  // across two mappings
  OK(cuMemcpyDtoH_v2(&byte, a + TWO, 1));
  IS(byte, 3);
  IS(signal_of_read(a), SIGSEGV);
  OK(cuMemSetAccess(a, TWO, &read, 1));
  WRONG(cuMemcpyHtoD_v2(a, &byte, 1));
  OK(cuMemGetAccess(&flags, &read.location, a));
  IS(flags, CU_MEM_ACCESS_FLAGS_PROT_READ);
  OK(cuMemUnmap(a, TWO));
  OK(cuMemMap(a, TWO, 0, first, 0));
  OK(cuMemGetAccess(&flags, &read.location, a));
  IS(flags, 0);  // gone with the mapping
}

static void copies_check_their_ends(void) {
  const CUdeviceptr memory = allocate(1024);
  char bytes[1024];
  IS(signal_of_read(memory), SIGSEGV);
  WRONG(cuMemcpyDtoH_v2(bytes, memory + 1, 1024));
  WRONG(cuMemcpyDtoH_v2(bytes, (CUdeviceptr)bytes, 10));
  WRONG(cuMemcpyHtoD_v2(0, bytes, 10));
  WRONG(cuMemsetD8_v2((CUdeviceptr)bytes, 1, 10));
  WRONG(cuMemsetD8_v2(memory, 1, 1025));
  OK(cuMemFree_v2(memory));
  WRONG(cuMemcpyDtoH_v2(bytes, memory, 10));
}

static void host_memory_is_registered_once_and_whole(void) {
  char *memory = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CUdeviceptr device = 0;
  void *pinned = NULL;
  OK(cuMemHostRegister_v2(memory, 4 * PAGE, 0));
  OK(cuMemHostRegister_v2(memory + 4 * PAGE, 100, 0));
  IS(cuMemHostRegister_v2(memory + 3 * PAGE, 2 * PAGE, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  IS(cuMemHostRegister_v2(memory + 4 * PAGE + 200, 100, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  WRONG(cuMemHostGetDevicePointer_v2(&device, memory + 6 * PAGE, 0));
  IS(cuMemHostUnregister(memory + PAGE), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  OK(cuMemHostUnregister(memory));
  OK(cuMemHostUnregister(memory + 4 * PAGE));
  IS(cuMemHostUnregister(memory), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  munmap(memory + 2 * PAGE, PAGE);
  WRONG(cuMemHostRegister_v2(memory, 4 * PAGE, 0));  // a hole
  WRONG(cuMemHostRegister_v2((void *)allocate(PAGE), PAGE, 0));
  OK(cuMemHostAlloc(&pinned, PAGE, CU_MEMHOSTALLOC_PORTABLE));
  IS(cuMemHostRegister_v2(pinned, PAGE, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  WRONG(cuMemFree_v2((CUdeviceptr)pinned));
  WRONG(cuMemFreeHost((char *)pinned + 1));
  OK(cuMemFreeHost(pinned));
  IS(live().host_bytes, 0);
}

// --- Streams and captures --------------------------------------------------------------------------------------------
static void the_legacy_stream_waits_for_blocking_ones_only(void) {
  CUstream blocking;
  atomic_bool go = false, never = false;
  atomic_int count = 0;
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  OK(cuLaunchHostFunc(stream, wait_until_set, &never));
  OK(cuLaunchHostFunc(blocking, wait_until_set, &go));
  OK(cuLaunchHostFunc(NULL, count_up, &count));
  OK(cuLaunchHostFunc(blocking, count_up, &count));
  usleep(30000);
  IS(atomic_load(&count), 0);
  IS(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
  atomic_store(&go, true);
  OK(cuStreamSynchronize(blocking));
  IS(atomic_load(&count), 2);
  IS(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  atomic_store(&never, true);
  OK(cuCtxSynchronize());
  OK(cuStreamDestroy_v2(blocking));
  IS(cuStreamSynchronize(blocking), CUDA_ERROR_INVALID_HANDLE);
}

static void call_the_driver(void *result) { atomic_store((atomic_int *)result, (int)cuCtxSynchronize()); }
static void host_functions_may_not_call_the_driver(void) {
  atomic_int result = 0;
  OK(cuLaunchHostFunc(NULL, call_the_driver, &result));
  OK(cuStreamSynchronize(NULL));
  IS(atomic_load(&result), CUDA_ERROR_NOT_PERMITTED);
}

static CUstreamCaptureStatus status_of(CUstream of) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  OK(cuStreamIsCapturing(of, &status));
  return status;
}
static void capture_forbids_what_it_cannot_record(void) {
  CUstream other;
  CUevent event;
  CUgraph graph;
  CUdeviceptr memory;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  atomic_int count = 0;
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  IS(cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuLaunchHostFunc(stream, count_up, &count));  // recorded, not run
  OK(cuEventRecord(event, stream));
  OK(cuMemFree_v2(allocate(PAGE)));  // relaxed
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphDestroy(graph));
  IS(atomic_load(&count), 0);
  IS(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  IS(cuMemAlloc_v2(&memory, PAGE), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  IS(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  OK(cuMemFree_v2(allocate(PAGE)));  // relaxed by this thread
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  OK(cuEventRecord(event, stream));
  OK(cuStreamWaitEvent(other, event, 0));
  IS(status_of(other), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  IS(status_of(other), CU_STREAM_CAPTURE_STATUS_NONE);
}

static void a_capture_on_a_blocking_stream_closes_the_legacy_stream(void) {
  const CUdeviceptr memory = allocate(PAGE);
  CUstream blocking;
  CUgraph graph;
  CUstreamCaptureStatus status;
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  OK(cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  IS(cuStreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  OK(cuStreamEndCapture(blocking, &graph));  // the question has spoilt nothing
  OK(cuGraphDestroy(graph));
  OK(cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  IS(cuMemsetD8Async(memory, 1, PAGE, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  IS(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

// The last case: the context is lost.
static void unmapping_under_work_is_an_illegal_access(void) {
  const CUmemAccessDesc both = access_to(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  const CUdeviceptr a = reserve(TWO);
  atomic_bool go = false;
  CUdeviceptr memory;
  OK(cuMemMap(a, TWO, 0, create(TWO), 0));
  OK(cuMemSetAccess(a, TWO, &both, 1));
  OK(cuLaunchHostFunc(stream, wait_until_set, &go));
  OK(cuMemsetD8Async(a, 1, TWO, stream));
  OK(cuMemUnmap(a, TWO));
  atomic_store(&go, true);
  IS(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  IS(cuMemAlloc_v2(&memory, 512), CUDA_ERROR_ILLEGAL_ADDRESS);
}

int main(void) {
  alarm(60);
  RUN(events_between_processes_stay_on_their_device);
  RUN(nothing_works_before_init);
  RUN(contexts_are_needed_and_checked);
  RUN(a_forked_child_may_call_nothing);
  RUN(the_kth_call_fails_once_and_has_no_effect);
  RUN(reservations_are_freed_exactly);
  RUN(mapping_takes_whole_handles_in_one_reservation);
  RUN(access_belongs_to_a_mapping);
  RUN(copies_check_their_ends);
  RUN(host_memory_is_registered_once_and_whole);
  RUN(the_legacy_stream_waits_for_blocking_ones_only);
  RUN(host_functions_may_not_call_the_driver);
  RUN(capture_forbids_what_it_cannot_record);
  RUN(a_capture_on_a_blocking_stream_closes_the_legacy_stream);
  RUN(unmapping_under_work_is_an_illegal_access);
  return check_finish();
}
