// SPDX-License-Identifier: Apache-2.0
// Contexts, primary ones and those that a program makes, and the calling thread's stack of contexts.
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "state.h"
#include "stream.h"

using namespace fake;

namespace {

// Without a destructor: like the driver, it answers while the thread ends, in the destructors of other thread-local
// data.
struct ContextStack {
  static constexpr unsigned kDepth = 64;
  Context *entries[kDepth];
  unsigned size;
  bool empty() const { return size == 0; }
  Context *back() const { return entries[size - 1]; }
  void pop_back() { --size; }
  void push_back(Context *context) {
    if (size == kDepth) std::abort();  // a test that never pops
    entries[size++] = context;
  }
};
thread_local ContextStack stack;

// Null when it is no live context.
Context *live_context(CUcontext value) {
  for (Context &context : state().contexts)
    if (reinterpret_cast<CUcontext>(&context) == value) return context.references ? &context : nullptr;
  return nullptr;
}
CUcontext handle_of(Context *context) { return reinterpret_cast<CUcontext>(context); }

void empty_context(Context *context, std::unique_lock<std::mutex> &lock) {
  release_context_streams(context);
  release_context_events(context);
  release_context_regions(context);
  context->error = CUDA_SUCCESS;
  join_closed_streams(context, lock);  // their work was done
}

}  // namespace

namespace fake {

void start_all_devices() {
  State &s = state();
  for (int i = 0; i < s.configuration.devices; i++)
    if (!s.contexts[i].references) s.contexts[i].references = 1;
}

CUresult current_context(Context **out) {
  if (is_hip() && stack.empty()) {
    start_all_devices();
    stack.push_back(&state().contexts[0]);
  }
  if (stack.empty() || !stack.back()) return CUDA_ERROR_INVALID_CONTEXT;
  if (!stack.back()->references) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *out = stack.back();
  return (*out)->error;
}

void crash(const char *why) {
  std::fprintf(stderr, "fake CUDA driver: %s: a real driver crashes here\n", why);
  std::signal(SIGSEGV, SIG_DFL);
  std::raise(SIGSEGV);
  std::abort();
}

}  // namespace fake

extern "C" {

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuCtxGetId(CUcontext value, unsigned long long *id);
CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext value);

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  FAKE_CUDA_OF_DEVICE(cuDevicePrimaryCtxRetain, !context);
  Context &primary = state().contexts[device];
  primary.references++;
  note_context(device, true);
  *context = handle_of(&primary);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  FAKE_CUDA_OF_DEVICE(cuDevicePrimaryCtxRelease_v2);
  Context &primary = state().contexts[device];
  if (!primary.references) return CUDA_ERROR_INVALID_CONTEXT;
  if (primary.references > 1) return primary.references--, CUDA_SUCCESS;
  wait_for_context(&primary, lock);
  join_closed_streams(&primary, lock);  // their work needs the context
  if (--primary.references == 0) {
    empty_context(&primary, lock);
    note_context(device, false);
  }
  return CUDA_SUCCESS;
}

// Takes everything in the context along, whoever retains it; that goes on with the empty context.
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  FAKE_CUDA_OF_DEVICE(cuDevicePrimaryCtxReset_v2);
  Context &primary = state().contexts[device];
  wait_for_context(&primary, lock);
  join_closed_streams(&primary, lock);
  empty_context(&primary, lock);
  primary.resets++;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
  FAKE_CUDA_OF_DEVICE(cuDevicePrimaryCtxGetState, !flags || !active);
  *flags = 0;
  *active = state().contexts[device].references != 0;
  return CUDA_SUCCESS;
}

// One of a device at a time. It is current from then on.
CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) {
  FAKE_CUDA_OF_DEVICE(cuCtxCreate_v2, !context || flags);
  Context &made = state().contexts[kMaxDevices + device];
  if (made.references) return CUDA_ERROR_OUT_OF_MEMORY;
  made.references = 1;
  stack.push_back(&made);
  *context = handle_of(&made);
  return CUDA_SUCCESS;
}

CUresult cuCtxDestroy_v2(CUcontext value) {
  FAKE_CUDA_ENTER(cuCtxDestroy_v2);
  Context *context = live_context(value);
  if (!context || context < state().contexts + kMaxDevices) return CUDA_ERROR_INVALID_CONTEXT;
  wait_for_context(context, lock);
  join_closed_streams(context, lock);
  empty_context(context, lock);
  context->references = 0;
  if (!stack.empty() && stack.back() == context) stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  FAKE_CUDA_ENTER(cuCtxGetCurrent, !context);
  *context = stack.empty() ? nullptr : handle_of(stack.back());
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  FAKE_CUDA_ENTER(cuCtxSetCurrent);
  Context *live = live_context(context);
  if (context && !live) return CUDA_ERROR_INVALID_CONTEXT;
  if (!stack.empty()) stack.pop_back();
  if (live) stack.push_back(live);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  FAKE_CUDA_ENTER(cuCtxPushCurrent_v2, !context);
  Context *live = live_context(context);
  if (!live) return CUDA_ERROR_INVALID_CONTEXT;
  stack.push_back(live);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  FAKE_CUDA_ENTER(cuCtxPopCurrent_v2);
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context) *context = handle_of(stack.back());
  stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
  FAKE_CUDA_IN_CONTEXT(cuCtxGetDevice, !device);
  *device = context->device;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext value, unsigned long long *id) {
  FAKE_CUDA_ENTER(cuCtxGetId);
  Context *context = live_context(value);
  if (value && !context) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (!value)
    if (CUresult none = current_context(&context)) return none;
  if (!id) return CUDA_ERROR_INVALID_VALUE;
  *id = 1 + static_cast<unsigned long long>(context->device) + kMaxDevices * context->resets;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
  FAKE_CUDA_UNCAPTURED(cuCtxSynchronize);
  if (CUresult capturing = refuse_capturing_context(context)) return capturing;
  wait_for_context(context, lock);
  return context->error;
}

}  // extern "C"
