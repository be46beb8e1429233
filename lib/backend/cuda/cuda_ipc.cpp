// SPDX-License-Identifier: Apache-2.0
// The driver's legacy IPC of cuMemAlloc() memory: a handle of 64 bytes for a whole allocation.
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

}  // namespace gmm::cuda

#endif
