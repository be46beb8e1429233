// SPDX-License-Identifier: Apache-2.0
// Runs every case, and tests the start, the control calls and the look-up of entries.
#include "fake_cuda_test.h"

#include <dlfcn.h>

#include <string>
#include <thread>

std::vector<Case> &cases() {
  static std::vector<Case> all;
  return all;
}

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

CASE(no_device_is_said_at_init, "FAKE_CUDA_DEVICES=0") { IS(cuInit(0), CUDA_ERROR_NO_DEVICE); }

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

template <class F>
static F look_up(const char *name, int version, CUresult wanted, int status) {
  void *found = nullptr;
  CUdriverProcAddressQueryResult result;
  IS(cuGetProcAddress_v2(name, &found, version, 0, &result), wanted);
  IS(static_cast<int>(result), status);
  return reinterpret_cast<F>(found);
}

CASE(entries_are_found_by_name_and_version, "") {
  using Any = void *;
  start();
  CHECK(look_up<Any>("cuMemAlloc", 13000, CUDA_SUCCESS, 0) == reinterpret_cast<Any>(&cuMemAlloc_v2));
  CHECK(look_up<Any>("cuMemAdvise", 13000, CUDA_SUCCESS, 0) == reinterpret_cast<Any>(&cuMemAdvise_v2));
  CHECK(look_up<Any>("cuMemAdvise", 12020, CUDA_SUCCESS, 0) == reinterpret_cast<Any>(&cuMemAdvise_v2));
  CHECK(look_up<Any>("cuMemAdvise", 12010, CUDA_SUCCESS, 0) == reinterpret_cast<Any>(&cuMemAdvise));
  CHECK(look_up<Any>("cuMemPrefetchAsync", 11000, CUDA_SUCCESS, 0) == reinterpret_cast<Any>(&cuMemPrefetchAsync));
  CHECK(!look_up<Any>("cuMemCreate", 10000, CUDA_ERROR_NOT_FOUND, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT));
  CHECK(!look_up<Any>("cuNoSuchEntry", 13000, CUDA_ERROR_NOT_FOUND, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND));
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(library && dlsym(library, "cuMemAlloc_v2") && dlsym(library, "fake_cuda_live"));
  CHECK(!dlsym(library, "_ZN4fake5stateEv"));  // nothing else is exported
}

CASE(an_old_driver_gives_old_entries, "FAKE_CUDA_VERSION=12010") {
  int version;
  OK(cuDriverGetVersion(&version));
  IS(version, 12010);
  CHECK(look_up<void *>("cuMemAdvise", 13000, CUDA_SUCCESS, 0) == reinterpret_cast<void *>(&cuMemAdvise));
  OK(cuInit(0));
  CHECK(!look_up<void *>("cuCtxGetDevice", 13000, CUDA_SUCCESS, 0) == false);
  int value;
  IS(cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(145), 0), CUDA_ERROR_INVALID_VALUE);
}

CASE(attributes_can_be_taken_away, "FAKE_CUDA_LACKS=vmm,managed") {
  start();
  int value;
  OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
  IS(value, 0);
  OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0));
  IS(value, 0);
  OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 0));
  IS(value, 1);
  CUdeviceptr address;
  CUmemGenericAllocationHandle handle;
  auto properties = device_memory();
  IS(cuMemAllocManaged(&address, 4096, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_NOT_SUPPORTED);
  IS(cuMemCreate(&handle, kTwo, &properties, 0), CUDA_ERROR_NOT_SUPPORTED);
  IS(cuMemAddressReserve(&address, kTwo, 0, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
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
