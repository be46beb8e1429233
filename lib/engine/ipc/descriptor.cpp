// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/descriptor.h"

#include <cinttypes>

#include "base/memory_files.h"
#include "base/os_memory.h"

namespace gmm {

uint32_t ipc_routes(const Core &core, const HeapOptions &options) {
  const uint32_t capabilities = core.traits(options.device).capabilities;
  const auto route = [&](uint32_t capability, uint32_t bit) { return (capabilities & capability) != 0 ? bit : 0; };
  switch (options.kind) {
    case Kind::kVmm:
      return route(GMM_DEVICE_CAN_EXPORT_FD, GMM_IPC_ROUTE_FD) | route(GMM_DEVICE_CAN_DMA_BUF, GMM_IPC_ROUTE_DMA_BUF);
    case Kind::kHost:
      return route(GMM_DEVICE_CAN_EXPORT_FD, GMM_IPC_ROUTE_FD);
    case Kind::kDevice:
      return route(GMM_DEVICE_CAN_LEGACY_IPC, GMM_IPC_ROUTE_LEGACY) |
             route(GMM_DEVICE_IS_CPU, GMM_IPC_ROUTE_FD) |  // the host backend makes it from a file
             route(GMM_DEVICE_CAN_DMA_BUF, GMM_IPC_ROUTE_DMA_BUF);
    default:
      return 0;
  }
}

Status export_descriptor(const Core &core, const void *memory, gmm_fd_type type, gmm_ipc_fd_info *out) {
  Block block;
  GMM_TRY(find_block(core, memory, "gmm_ipc_export_fd", &block));
  const Kind kind = block.heap->options().kind;
  const Device device = block.heap->options().device;
  const uint32_t ways = ipc_routes(core, block.heap->options());
  if ((ways & (GMM_IPC_ROUTE_FD | GMM_IPC_ROUTE_DMA_BUF)) == 0 ||
      (type == GMM_FD_DEFAULT && (ways & GMM_IPC_ROUTE_FD) == 0))
    return fail(kind == Kind::kVmm || kind == Kind::kHost ? GMM_ERROR_NOT_SUPPORTED : GMM_ERROR_INVALID_KIND,
                "gmm_ipc_export_fd(%p): %s memory has no descriptor on device %d; allocate VMM or HOST memory.", memory,
                kind_name(kind), device.ordinal);
  const bool opaque = kind == Kind::kVmm && (core.traits(device).capabilities & GMM_DEVICE_IS_CPU) == 0;
  const gmm_fd_type own = opaque ? GMM_FD_OPAQUE : GMM_FD_FILE;
  if (type == GMM_FD_DEFAULT) type = own;
  const bool fits =
      type == GMM_FD_DMA_BUF ? (ways & GMM_IPC_ROUTE_DMA_BUF) != 0 : type == own && (ways & GMM_IPC_ROUTE_FD) != 0;
  if (!fits)
    return fail(
        GMM_ERROR_NOT_SUPPORTED,
        "gmm_ipc_export_fd(%p): %s memory of device %d has no descriptor of type %s; gmm_query() says which routes "
        "it has, and GMM_FD_DEFAULT asks for the usual type.",
        memory, kind_name(kind), device.ordinal, descriptor_type_name(type));
  HeapLock heap_lock;
  GMM_TRY(find_locked(core, memory, "gmm_ipc_export_fd", &block, &heap_lock));
  if (block.paused) return paused_block(block, memory, "gmm_ipc_export_fd");
  const uintptr_t begin = base_of(*block.extent);
  const uint64_t bytes = size_of(*block.extent);
  if (block.base + block.reserved > begin + bytes)
    return fail(GMM_ERROR_NOT_SUPPORTED,
                "gmm_ipc_export_fd(%p): the block lies over several driver allocations; allocate it from a heap with "
                "GMM_HEAP_EXPORTABLE, or with GMM_ALLOC_DEDICATED.",
                memory);
  block.extent->is_out.store(true, std::memory_order_relaxed);
  if (type == GMM_FD_DMA_BUF)
    GMM_TRY(core.backend->export_dma_buf(reinterpret_cast<void *>(begin), bytes, &out->fd));
  else
    GMM_TRY(open_extent(core, *block.heap, *block.extent, &out->fd));
  out->type = type;
  out->device = device.ordinal;
  out->offset = reinterpret_cast<uintptr_t>(memory) - begin;
  out->size = bytes;
  return Status();
}

Status check_exportable(const Core &core, const Heap &heap, const Extent &extent) {
  const HeapOptions &options = heap.options();
  const bool needs_file = (ipc_routes(core, options) & GMM_IPC_ROUTE_FD) != 0;
  if (options.kind == Kind::kVmm ? core.backend->is_exportable(extent.handle)
                                 : !needs_file || region_of(&extent)->allocation.fd >= 0)
    return Status();
  return fail(GMM_ERROR_NOT_SUPPORTED,
              "The memory shares a file of this process with other memory, so its descriptor cannot leave the process: "
              "only the first %u driver allocations have files of their own. Allocate the block from a heap with "
              "GMM_HEAP_EXPORTABLE, or with GMM_ALLOC_DEDICATED.",
              MemoryFiles::kOwnFiles);
}

Status open_extent(const Core &core, const Heap &heap, Extent &extent, int32_t *fd) {
  GMM_TRY(check_exportable(core, heap, extent));
  extent.is_out.store(true, std::memory_order_relaxed);
  if (heap.options().kind == Kind::kVmm) return core.backend->export_fd(extent.handle, fd);
  return os::duplicate(region_of(&extent)->allocation.fd, fd);
}

const char *descriptor_type_name(gmm_fd_type type) {
  constexpr const char *kNames[] = {"DEFAULT", "OPAQUE", "FILE", "DMA_BUF", "VULKAN"};
  return type < sizeof kNames / sizeof *kNames ? kNames[type] : "unknown";
}

Status check_descriptor(int32_t fd, gmm_fd_type *type) {
  os::FileFacts facts;
  if (const int error = os::file_facts(fd, &facts); error != 0) {
    return fail_native(GMM_ERROR_INVALID_VALUE, error,
                       "gmm_ipc_import_fd(%" PRId32 "): not an open file descriptor: %s.", fd, ErrorText(error).text);
  }
  if (*type == GMM_FD_DEFAULT) *type = facts.is_file ? GMM_FD_FILE : GMM_FD_OPAQUE;
  if (facts.is_file || *type != GMM_FD_FILE) return Status();
  return fail(GMM_ERROR_INVALID_VALUE,
              "gmm_ipc_import_fd(%" PRId32
              "): the descriptor is no file, but its type is GMM_FD_FILE; pass the type that its maker states.",
              fd);
}

}  // namespace gmm
