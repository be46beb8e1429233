// SPDX-License-Identifier: Apache-2.0
// The fake driver refuses misuse, so that no test passes by its indulgence, and its calls fail on demand. The tests of
// the library show that it carries out the rest.
#include "fake_cuda.h"

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
  IS(cuMemAlloc_v2(&memory, 512), CUDA_ERROR_NOT_INITIALIZED);
  WRONG(cuInit(1));
  OK(cuInit(0));
}

// --- Contexts, and failures on demand --------------------------------------------------------------------------------
static void contexts_are_needed_and_checked(void) {
  CUdeviceptr memory;
  CUcontext popped;
  CUdevice device;
  IS(cuMemAlloc_v2(&memory, 512), CUDA_ERROR_INVALID_CONTEXT);
  IS(cuCtxSetCurrent((CUcontext)&memory), CUDA_ERROR_INVALID_CONTEXT);
  IS(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
  IS(cuDevicePrimaryCtxRetain(&context, 2), CUDA_ERROR_INVALID_DEVICE);
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuDevicePrimaryCtxRetain(&second_context, 1));
  OK(cuCtxPushCurrent_v2(context));
  OK(cuCtxPushCurrent_v2(second_context));
  allocate(512);
  OK(cuDevicePrimaryCtxRelease_v2(1));
  IS(live().dropped, 1);
  IS(cuMemAlloc_v2(&memory, 512), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  OK(cuCtxPopCurrent_v2(&popped));
  CHECK(popped == second_context);
  OK(cuCtxGetDevice(&device));
  IS(device, 0);
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

static void a_forked_child_may_call_nothing(void) {
  const pid_t child = fork();
  if (child == 0) {
    IS(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
    IS(cuStreamSynchronize(stream), CUDA_ERROR_NOT_INITIALIZED);
    _exit(atomic_load(&check_state.failures));
  }
  int status = 1;
  IS(waitpid(child, &status, 0), child);
  IS(status, 0);
}

static void the_kth_call_fails_once_and_has_no_effect(void) {
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
  IS(fake_cuda_fail(NULL, 1, CUDA_ERROR_LAUNCH_FAILED), 0);
  OK(cuCtxGetCurrent(&current));  // bookkeeping, which does not count among all calls
  IS(cuMemFree_v2(memory), CUDA_ERROR_LAUNCH_FAILED);
  IS(live().allocations, 1);
  OK(cuMemFree_v2(memory));
  IS(fake_cuda_calls_until_now(), before + 4);
  IS(fake_cuda_count("cuMemAlloc"), 2);
  IS(fake_cuda_count(NULL), 4);
}

// --- Memory ----------------------------------------------------------------------------------------------------------
static void mapping_takes_whole_handles_in_one_reservation(void) {
  CUdeviceptr a = 0;
  WRONG(cuMemAddressReserve(&a, 4097, 0, 0, 0));
  WRONG(cuMemAddressReserve(&a, TWO, 3, 0, 0));
  a = reserve(4 * TWO);
  const CUmemGenericAllocationHandle two = create(2 * TWO), one = create(TWO);
  WRONG(cuMemMap(a, TWO, 0, two, 0));             // a part
  WRONG(cuMemMap(a, 2 * TWO, TWO, two, 0));       // an offset
  WRONG(cuMemMap(a + PAGE, 2 * TWO, 0, two, 0));  // unaligned
  WRONG(cuMemMap(a + 3 * TWO, 2 * TWO, 0, two, 0));
  WRONG(cuMemMap(a, TWO, 0, 12345, 0));
  OK(cuMemMap(a + TWO, 2 * TWO, 0, two, 0));
  WRONG(cuMemMap(a + 2 * TWO, TWO, 0, one, 0));  // taken
  WRONG(cuMemMap(a, 2 * TWO, 0, two, 0));        // overlaps
  OK(cuMemMap(a, TWO, 0, one, 0));
  WRONG(cuMemUnmap(a, 2 * TWO));  // half of the second mapping
  WRONG(cuMemUnmap(a, 4 * TWO));  // a hole at the end
  WRONG(cuMemAddressFree(a, 4 * TWO));
  OK(cuMemUnmap(a, 3 * TWO));
  WRONG(cuMemAddressFree(a + TWO, 3 * TWO));
  OK(cuMemAddressFree(a, 4 * TWO));
  OK(cuMemRelease(one));
  WRONG(cuMemRelease(one));
  OK(cuMemRelease(two));
  IS(live().mappings + live().handles + live().reservations + live().device_bytes, 0);
}

static void access_belongs_to_a_mapping(void) {
  const CUmemAccessDesc both = access_to(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
                        read = access_to(CU_MEM_LOCATION_TYPE_DEVICE, 0, CU_MEM_ACCESS_FLAGS_PROT_READ),
                        cpu = access_to(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  const CUdeviceptr a = reserve(2 * TWO);
  const CUmemGenericAllocationHandle first = create(TWO);
  unsigned long long flags = 0;
  char byte = 1;
  OK(cuMemMap(a, TWO, 0, first, 0));
  WRONG(cuMemcpyHtoD_v2(a, &byte, 1));          // no access yet
  WRONG(cuMemSetAccess(a, 2 * TWO, &both, 1));  // a hole
  WRONG(cuMemSetAccess(a, TWO / 2, &both, 1));  // a part
  WRONG(cuMemSetAccess(a, TWO, &cpu, 1));       // pages of a device
  OK(cuMemSetAccess(a, TWO, &both, 1));
  IS(signal_of_read(a), SIGSEGV);
  OK(cuMemSetAccess(a, TWO, &read, 1));
  WRONG(cuMemcpyHtoD_v2(a, &byte, 1));
  OK(cuMemUnmap(a, TWO));
  OK(cuMemMap(a, TWO, 0, first, 0));
  OK(cuMemGetAccess(&flags, &read.location, a));
  IS(flags, 0);  // gone with the mapping
}

static void addresses_are_checked(void) {
  char bytes[1024];
  char *const memory = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const CUdeviceptr device = allocate(1024);
  WRONG(cuMemcpyDtoH_v2(bytes, device + 1, 1024));
  WRONG(cuMemcpyDtoH_v2(bytes, (CUdeviceptr)bytes, 10));
  WRONG(cuMemsetD8_v2(device, 1, 1025));
  OK(cuMemFree_v2(device));
  WRONG(cuMemcpyDtoH_v2(bytes, device, 10));
  OK(cuMemHostRegister_v2(memory, 100, 0));
  IS(cuMemHostRegister_v2(memory + 200, 100, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);  // a page of both
  IS(cuMemHostUnregister(memory + 1), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  OK(cuMemHostUnregister(memory));
  munmap(memory + PAGE, PAGE);
  WRONG(cuMemHostRegister_v2(memory, 2 * PAGE, 0));  // a hole
  WRONG(cuMemHostRegister_v2((void *)allocate(PAGE), PAGE, 0));
}

// --- Streams and captures --------------------------------------------------------------------------------------------
static void call_the_driver(void *result) { atomic_store((atomic_int *)result, (int)cuCtxSynchronize()); }
static void host_functions_may_not_call_the_driver(void) {
  atomic_int result = 0;
  OK(cuLaunchHostFunc(NULL, call_the_driver, &result));
  OK(cuStreamSynchronize(NULL));
  IS(atomic_load(&result), CUDA_ERROR_NOT_PERMITTED);
}

static void capture_forbids_what_it_cannot_record(void) {
  CUstream other, blocking;
  CUevent event;
  CUgraph graph;
  CUdeviceptr memory;
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  IS(cuStreamBeginCapture_v2(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuEventRecord(event, stream));
  OK(cuMemFree_v2(allocate(PAGE)));  // relaxed
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphDestroy(graph));
  IS(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  IS(cuMemAlloc_v2(&memory, PAGE), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  IS(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuEventRecord(event, stream));
  OK(cuStreamWaitEvent(other, event, 0));
  IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  OK(cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  IS(cuMemcpyHtoDAsync_v2(allocate(PAGE), &memory, sizeof memory, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
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
  RUN(mapping_takes_whole_handles_in_one_reservation);
  RUN(access_belongs_to_a_mapping);
  RUN(addresses_are_checked);
  RUN(host_functions_may_not_call_the_driver);
  RUN(capture_forbids_what_it_cannot_record);
  RUN(unmapping_under_work_is_an_illegal_access);
  return check_finish();
}
