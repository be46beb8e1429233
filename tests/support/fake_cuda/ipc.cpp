// SPDX-License-Identifier: Apache-2.0
// Legacy IPC: a 64-byte handle for memory of cuMemAlloc. Another process finds the bytes through the exporter's
// descriptors in /proc, which only the same user may open; the memory's random number tells a reused descriptor.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "state.h"
#include "stream.h"

using namespace fake;

namespace {

struct MemoryWire {
  char magic[8];
  uint64_t id, size, offset;  // of the allocation in its file
  int32_t pid, fd, device;
  uint32_t check;
};
static_assert(sizeof(MemoryWire) <= CU_IPC_HANDLE_SIZE);
constexpr char kMemoryMagic[8] = "fakeIPC";

uint32_t check_of(MemoryWire wire) {
  wire.check = 0;
  uint32_t sum = 2166136261u;
  const auto *bytes = reinterpret_cast<const unsigned char *>(&wire);
  for (size_t i = 0; i < sizeof wire; i++) sum = (sum ^ bytes[i]) * 16777619u;
  return sum;
}

}  // namespace

extern "C" {

CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address) {
  FAKE_CUDA_IN_CONTEXT(cuIpcGetMemHandle, !out);
  if (lacks("ipc")) return CUDA_ERROR_NOT_SUPPORTED;
  Region *region = find_region(address);
  if (!region || region->kind != Kind::device) return CUDA_ERROR_INVALID_VALUE;
  MemoryWire wire{{},
                  region->backing->id,
                  region->size,
                  region->base - region->view,
                  getpid(),
                  region->backing->fd,
                  region->backing->device,
                  0};
  memcpy(wire.magic, kMemoryMagic, sizeof kMemoryMagic);
  wire.check = check_of(wire);
  memset(out, 0, sizeof *out);
  memcpy(out->reserved, &wire, sizeof wire);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags) {
  FAKE_CUDA_IN_CONTEXT(cuIpcOpenMemHandle_v2, !out || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (lacks("ipc")) return CUDA_ERROR_NOT_SUPPORTED;
  MemoryWire wire;
  memcpy(&wire, handle.reserved, sizeof wire);
  for (size_t i = sizeof wire; i < CU_IPC_HANDLE_SIZE; i++)
    if (handle.reserved[i]) return CUDA_ERROR_INVALID_VALUE;
  if (memcmp(wire.magic, kMemoryMagic, sizeof kMemoryMagic) != 0 || wire.check != check_of(wire))
    return CUDA_ERROR_INVALID_VALUE;
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
