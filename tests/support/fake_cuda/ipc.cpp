// SPDX-License-Identifier: Apache-2.0
// Legacy IPC: a 64-byte handle for memory of cuMemAlloc.
#include <unistd.h>

#include "state.h"
#include "stream.h"

using namespace fake;

extern "C" {

CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address) {
  FAKE_CUDA_IN_CONTEXT(cuIpcGetMemHandle, !out);
  if (lacks("ipc")) return CUDA_ERROR_NOT_SUPPORTED;
  // It harms the kernel's driver (clr#266).
  if (has_quirk("ipc") && find_mapping(address, nullptr)) crash("legacy IPC of VMM memory");
  Region *region = find_region(address);
  if (!region || region->kind != Kind::device) return CUDA_ERROR_INVALID_VALUE;
  const Backing &backing = *region->backing;
  write_wire(
      out, {kMemoryWire, backing.id, region->size, region->base - region->view, 0, backing.fd, backing.device, 0, {}});
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags) {
  FAKE_CUDA_IN_CONTEXT(cuIpcOpenMemHandle_v2, !out || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (lacks("ipc")) return CUDA_ERROR_NOT_SUPPORTED;
  Wire wire;
  if (!read_wire(handle.reserved, kMemoryWire, &wire)) return CUDA_ERROR_INVALID_VALUE;
  if (wire.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  if (wire.device != context->device) return CUDA_ERROR_INVALID_DEVICE;
  State &s = state();
  for (auto &[base, region] : s.regions) {
    if (region.kind != Kind::imported || region.backing->id != wire.id || region.context != context) continue;
    region.opened++;
    *out = base;
    return CUDA_SUCCESS;
  }
  int fd = open_of_process(wire.pid, wire.fd);
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;  // the exporter has freed it, or is gone
  auto backing = adopt_backing(fd, wire.id);
  if (!backing || wire.offset > backing->size || wire.size > backing->size - wire.offset)
    return CUDA_ERROR_INVALID_VALUE;
  *out = add_view(backing, Kind::imported, wire.offset, wire.size, context);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  FAKE_CUDA_IN_CONTEXT(cuIpcCloseMemHandle);
  auto it = state().regions.find(address);
  if (it == state().regions.end() || it->second.kind != Kind::imported) return CUDA_ERROR_INVALID_VALUE;
  if (--it->second.opened == 0) drop_region(it);
  return CUDA_SUCCESS;
}

}  // extern "C"
