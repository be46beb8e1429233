// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <thread>

#include "fake_cuda_test.h"

// Older headers lack these declarations.
extern "C" CUresult cuCtxGetId(CUcontext, unsigned long long *);
extern "C" CUresult cuCtxRecordEvent(CUcontext, CUevent);
extern "C" CUresult cuDevicePrimaryCtxReset_v2(CUdevice);

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

CASE(delayed_work_shows_missing_waits, "FAKE_CUDA_DELAY_US=50000") {
  start();
  CUstream stream;
  CUdeviceptr m;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemAllocManaged(&m, 4096, CU_MEM_ATTACH_GLOBAL));
  const auto begin = std::chrono::steady_clock::now();
  const auto delayed = [&] { return std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(50); };
  OK(cuMemsetD8Async(m, 1, 4096, stream));
  const char seen = reinterpret_cast<volatile char *>(m)[0];
  CHECK(seen == 0 || delayed());  // this thread may have been held up as long
  OK(cuStreamSynchronize(stream));
  CHECK(delayed());
  IS(reinterpret_cast<volatile char *>(m)[0], 1);
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

CASE(each_thread_has_its_default_stream, "") {
  CUcontext context = start();
  std::atomic<bool> go{false};
  OK(cuLaunchHostFunc(CU_STREAM_PER_THREAD, wait_until_set, &go));
  std::thread([&] {
    OK(cuCtxSetCurrent(context));
    OK(cuStreamQuery(CU_STREAM_PER_THREAD));
  }).join();
  IS(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
  go = true;
  OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
}

CASE(events_order_streams, "") {
  start();
  CUstream a, b;
  CUevent event, timed;
  OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuEventCreate(&timed, 0));
  OK(cuEventQuery(event));  // never recorded
  OK(cuEventSynchronize(event));
  std::atomic<bool> go{false};
  std::atomic<int> count{0};
  OK(cuLaunchHostFunc(a, wait_until_set, &go));
  OK(cuEventRecord(event, a));
  OK(cuStreamWaitEvent(b, event, 0));
  OK(cuLaunchHostFunc(b, count_up, &count));
  IS(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  IS(count.load(), 0);
  go = true;
  OK(cuEventSynchronize(event));
  OK(cuStreamSynchronize(b));
  IS(count.load(), 1);
  float ms;
  OK(cuEventRecord(timed, a));
  OK(cuStreamSynchronize(a));
  IS(cuEventElapsedTime(&ms, event, timed), CUDA_ERROR_INVALID_HANDLE);  // no timing
  OK(cuEventElapsedTime(&ms, timed, timed));
  IS(live().events, 2);
  OK(cuEventDestroy_v2(event));
  IS(cuEventDestroy_v2(event), CUDA_ERROR_INVALID_HANDLE);
  IS(cuEventRecord(event, a), CUDA_ERROR_INVALID_HANDLE);
  IS(cuEventRecord(timed, reinterpret_cast<CUstream>(&ms)), CUDA_ERROR_INVALID_HANDLE);
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

CASE(a_graph_runs_what_was_captured_and_holds_its_objects, "") {
  start();
  CUstream stream;
  CUgraph graph, same;
  CUgraphExec executable;
  CUuserObject object, unused;
  CUdeviceptr d;
  CUstreamCaptureStatus status;
  cuuint64_t first = 0, second = 0;
  unsigned char bytes[16] = {};
  std::atomic<int> count{0}, gone{0};
  std::atomic<bool> go{false};
  fake_cuda_live_t live;
  const auto eventually = [&](std::atomic<int> &value) {
    for (int i = 0; i < 50000 && value == 0; i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return value.load();
  };
  OK(cuMemAlloc_v2(&d, 4096));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuStreamGetCaptureInfo_v2(stream, &status, &first, &same, nullptr, nullptr));
  OK(cuUserObjectCreate(&object, &gone, count_up, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  IS(cuUserObjectCreate(&unused, &gone, count_up, 1, 0), CUDA_ERROR_INVALID_VALUE);
  OK(cuGraphRetainUserObject(same, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  OK(cuMemsetD8Async(d, 7, 16, stream));
  OK(cuLaunchHostFunc(stream, wait_until_set, &go));
  OK(cuLaunchHostFunc(stream, count_up, &count));
  OK(cuStreamEndCapture(stream, &graph));
  IS(graph, same);
  IS(count.load(), 0);  // captured, not run
  OK(cuGraphInstantiateWithFlags(&executable, graph, 0));
  OK(cuGraphDestroy(graph));
  OK(cuGraphLaunch(executable, stream));
  OK(cuGraphLaunch(executable, stream));
  OK(cuGraphExecDestroy(executable));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  IS(gone.load(), 0);  // a launch is under way
  go = true;
  OK(cuStreamSynchronize(stream));
  IS(count.load(), 2);
  OK(cuMemcpyDtoH_v2(bytes, d, 16));
  IS(bytes[15], 7);
  IS(eventually(gone), 1);
  fake_cuda_live(&live);
  IS(live.graphs, uint64_t{0});
  // Another capture has another number; one that fails lets go of its objects, and waiting for its context is what
  // fails it.
  gone = 0;
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuStreamGetCaptureInfo_v2(stream, &status, &second, &same, nullptr, nullptr));
  IS(first == second, false);
  OK(cuUserObjectCreate(&object, &gone, count_up, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
  OK(cuGraphRetainUserObject(same, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  IS(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  OK(cuThreadExchangeStreamCaptureMode(&mode));
  IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  IS(eventually(gone), 1);
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

CASE(the_last_reference_of_a_context_waits_for_its_work, "") {
  start();
  CUstream stream;
  CUdeviceptr d;
  OK(cuMemAlloc_v2(&d, 4096));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  std::atomic<bool> go{false};
  std::atomic<int> count{0};
  OK(cuLaunchHostFunc(stream, wait_until_set, &go));
  OK(cuMemsetD8Async(d, 1, 4096, stream));
  OK(cuLaunchHostFunc(stream, count_up, &count));
  OK(cuStreamDestroy_v2(stream));  // returns at once
  IS(count.load(), 0);
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    go = true;
  });
  OK(cuDevicePrimaryCtxRelease_v2(0));
  IS(count.load(), 1);
  opener.join();
  start();
  OK(cuCtxSynchronize());  // the context is new, and whole
}

CASE(an_event_of_a_context_is_behind_every_stream_of_it, "") {
  CUcontext context = start();
  CUstream stream;
  CUevent event;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuCtxRecordEvent(context, event));
  OK(cuEventQuery(event));  // nothing was queued
  std::atomic<bool> go{false};
  OK(cuLaunchHostFunc(stream, wait_until_set, &go));
  OK(cuCtxRecordEvent(context, event));
  IS(cuEventQuery(event), CUDA_ERROR_NOT_READY);
  go = true;
  OK(cuEventSynchronize(event));
  OK(cuStreamQuery(stream));
  IS(cuCtxRecordEvent(nullptr, event), CUDA_ERROR_INVALID_HANDLE);
  CUgraph graph;
  OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  IS(cuCtxRecordEvent(context, event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  IS(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

CASE(a_reset_empties_the_primary_context, "") {
  CUcontext context = start();
  unsigned long long before = 0, after = 0;
  CUdeviceptr d;
  CUstream stream;
  OK(cuCtxGetId(context, &before));
  OK(cuMemAlloc_v2(&d, 4096));
  OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  OK(cuMemsetD8Async(d, 1, 4096, stream));
  OK(cuDevicePrimaryCtxReset_v2(0));
  IS(cuMemFree_v2(d), CUDA_ERROR_INVALID_VALUE);
  IS(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
  IS(live().device_bytes, 0);
  IS(live().context_references, 1);  // who retains it goes on with the empty one
  OK(cuCtxGetId(context, &after));
  CHECK(before != after);
  OK(cuMemAlloc_v2(&d, 4096));
  IS(cuDevicePrimaryCtxReset_v2(99), CUDA_ERROR_INVALID_DEVICE);
}
