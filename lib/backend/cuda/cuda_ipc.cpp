// SPDX-License-Identifier: Apache-2.0
// The driver's legacy IPC: of cuMemAlloc() memory, a handle of 64 bytes for a whole allocation; and of events.
#if defined(GMM_WITH_CUDA)

#include <cstring>

#include "backend/cuda/cuda_backend_impl.h"

namespace gmm::cuda {

static_assert(sizeof(CUipcMemHandle) == kLegacyHandleSize);

Status CudaBackend::legacy_export(void *driver_base, uint8_t out[kLegacyHandleSize]) {
  if (driver_.cuIpcGetMemHandle == nullptr) return driver_.missing("cuIpcGetMemHandle");
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_owner(guard, driver_base));
  CaptureGuard capture(driver_);
  CUipcMemHandle handle = {};
  count_call();
  Status status = driver_.check(driver_.cuIpcGetMemHandle(&handle, to_driver(driver_base)), "cuIpcGetMemHandle");
  if (!status.ok()) return prefix(status, "Exporting the allocation at %p by legacy IPC: ", driver_base);
  std::memcpy(out, handle.reserved, kLegacyHandleSize);
  return Status();
}

Status CudaBackend::legacy_import(const uint8_t handle[kLegacyHandleSize], Device device, void **driver_base) {
  DeviceState *state = nullptr;
  GMM_TRY(state_of(device, &state));
  if (!state->legacy_ipc) return device_lacks(device, "legacy IPC", "CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED");
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter(guard, device));
  CaptureGuard capture(driver_);
  CUipcMemHandle bytes = {};
  std::memcpy(bytes.reserved, handle, kLegacyHandleSize);
  CUdeviceptr address = 0;
  count_call();
  Status status = driver_.check(driver_.cuIpcOpenMemHandle(&address, bytes, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                                "cuIpcOpenMemHandle");
  if (!status.ok()) return prefix(status, "Opening a legacy IPC handle on CUDA device %d: ", device.ordinal);
  *driver_base = from_driver(address);
  return Status();
}

Status CudaBackend::legacy_close(void *driver_base) {
  if (driver_.cuIpcCloseMemHandle == nullptr) return driver_.missing("cuIpcCloseMemHandle");
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_owner(guard, driver_base));
  CaptureGuard capture(driver_);
  count_call();
  Status status = driver_.check(driver_.cuIpcCloseMemHandle(to_driver(driver_base)), "cuIpcCloseMemHandle");
  return status.ok() ? status : prefix(status, "Closing the legacy IPC mapping at %p: ", driver_base);
}

static_assert(sizeof(CUipcEventHandle) == kLegacyHandleSize);

Status CudaBackend::shared_event_create(Device device, NativeEvent *out) {
  DeviceState *state = nullptr;
  GMM_TRY(state_of(device, &state));
  if (!state->legacy_ipc || driver_.cuIpcGetEventHandle == nullptr)
    return device_lacks(device, "events between processes", "CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED");
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter(guard, device));
  CaptureGuard capture(driver_);
  CUevent event = nullptr;
  Status status =
      driver_.check(driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS), "cuEventCreate");
  if (!status.ok()) return prefix(status, "Making an event for other processes on CUDA device %d: ", device.ordinal);
  *out = reinterpret_cast<NativeEvent>(event);
  return Status();
}

Status CudaBackend::shared_event_export(NativeEvent event, uint8_t out[kLegacyHandleSize], int32_t *fd) {
  if (driver_.cuIpcGetEventHandle == nullptr) return driver_.missing("cuIpcGetEventHandle");
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter_any(guard));
  CaptureGuard capture(driver_);
  CUipcEventHandle handle = {};
  Status status = driver_.check(driver_.cuIpcGetEventHandle(&handle, to_driver(event)), "cuIpcGetEventHandle");
  if (!status.ok()) return prefix(status, "Exporting an event: ");
  std::memcpy(out, handle.reserved, kLegacyHandleSize);
  *fd = -1;
  return Status();
}

// The maker's life is watched by the engine: what the driver does about its death is the driver's affair.
Status CudaBackend::shared_event_import(Device device, const uint8_t handle[kLegacyHandleSize], int32_t, const Peer &,
                                        NativeEvent *out) {
  if (driver_.cuIpcOpenEventHandle == nullptr) return driver_.missing("cuIpcOpenEventHandle");
  ContextGuard guard(driver_, log_);
  GMM_TRY(enter(guard, device));
  CaptureGuard capture(driver_);
  CUipcEventHandle bytes = {};
  std::memcpy(bytes.reserved, handle, kLegacyHandleSize);
  CUevent event = nullptr;
  Status status = driver_.check(driver_.cuIpcOpenEventHandle(&event, bytes), "cuIpcOpenEventHandle");
  if (!status.ok()) return prefix(status, "Opening an event of another process on CUDA device %d: ", device.ordinal);
  *out = reinterpret_cast<NativeEvent>(event);
  return Status();
}

}  // namespace gmm::cuda

#endif
