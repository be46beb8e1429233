// SPDX-License-Identifier: Apache-2.0
// Which driver context an operation runs in.
//
// Memory belongs to the device's primary context, also where the calling thread uses another context of the device: it must not
// go when the program destroys that one. Work on a stream runs in the stream's own context.
#if defined(GMM_WITH_CUDA)

#include "backend/cuda/cuda_backend_impl.h"

namespace gmm::cuda {

Status CudaBackend::primary(Device device, CUcontext *out) {
  DeviceState *state = nullptr;
  GMM_TRY(state_of(device, &state));
  *out = state->primary.load(std::memory_order_acquire);
  if (*out != nullptr) [[likely]]
    return Status();
  LockGuard lock(mutex_);
  *out = state->primary.load(std::memory_order_relaxed);
  if (*out != nullptr) return Status();
  CaptureGuard capture(driver_);
  Status status = driver_.check(driver_.cuDevicePrimaryCtxRetain(out, state->handle), "cuDevicePrimaryCtxRetain");
  if (!status.ok()) return prefix(status, "Starting CUDA on device %d: ", device.ordinal);
  state->primary.store(*out, std::memory_order_release);
  return Status();
}

Status CudaBackend::enter(ContextGuard &guard, Device device) {
  CUcontext context = nullptr;
  GMM_TRY(primary(device, &context));
  return guard.enter(context);
}

Status CudaBackend::enter_any(ContextGuard &guard) {
  CUcontext now = nullptr;
  GMM_TRY(guard.current(&now));
  if (now != nullptr) return Status();
  for (uint32_t i = 0; i < device_count_; ++i) {
    CUcontext retained = devices_[i].primary.load(std::memory_order_acquire);
    if (retained != nullptr) return guard.enter(retained);
  }
  // Nor was a device started here. One that another part of the process has started costs nothing to share.
  for (uint32_t i = 0; i < device_count_ && driver_.cuDevicePrimaryCtxGetState != nullptr; ++i) {
    unsigned int flags = 0;
    int active = 0;
    GMM_TRY(driver_.check(driver_.cuDevicePrimaryCtxGetState(devices_[i].handle, &flags, &active),
                          "cuDevicePrimaryCtxGetState"));
    if (active != 0) return enter(guard, Device{static_cast<int32_t>(i)});
  }
  // The calls that name no device (reserving addresses) do without: starting one takes its memory.
  return Status();
}

Status CudaBackend::enter_owner(ContextGuard &guard, const void *address) {
  GMM_TRY(enter_any(guard));
  CUcontext owner = nullptr;
  CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_CONTEXT};
  void *values[] = {&owner};
  if (driver_.cuPointerGetAttributes(1, which, values, to_driver(address)) != CUDA_SUCCESS || owner == nullptr)
    return Status();  // the operation itself says what is wrong with the address
  return guard.enter(owner);
}

Status CudaBackend::enter_stream(ContextGuard &guard, Device device, gmm_stream stream) {
  CUcontext now = nullptr;
  GMM_TRY(guard.current(&now));
  if (is_special(stream)) {
    // A default stream of the context that the caller works in, if it is one of this device.
    if (now != nullptr) {
      DeviceState *state = nullptr;
      GMM_TRY(state_of(device, &state));
      if (now == state->primary.load(std::memory_order_acquire)) return Status();
      CUdevice current_device = 0;
      GMM_TRY(driver_.check(driver_.cuCtxGetDevice(&current_device), "cuCtxGetDevice"));
      if (current_device == state->handle) return Status();
    }
    return enter(guard, device);
  }
  if (now == nullptr) GMM_TRY(enter(guard, device));
  CUcontext own = nullptr;
  Status status = driver_.check(driver_.cuStreamGetCtx(to_driver(stream), &own), "cuStreamGetCtx");
  if (!status.ok()) return prefix(status, "Looking up stream %p: ", static_cast<void *>(stream));
  return guard.enter(own);
}

}  // namespace gmm::cuda

#endif
