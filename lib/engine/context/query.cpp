// SPDX-License-Identifier: Apache-2.0
#include "engine/context/query.h"

#include "engine/heap/block.h"
#include "engine/ipc/descriptor.h"

namespace gmm {
namespace {

void fill_access(Context &context, Kind kind, gmm_device device, gmm_pointer_info *out) {
  out->flags = GMM_POINTER_DEVICE_ACCESSIBLE;
  if (kind == Kind::kHost || kind == Kind::kManaged || context.core.backend->is_cpu_memory())
    out->flags |= GMM_POINTER_HOST_ACCESSIBLE;
  out->usm = kind == Kind::kHost ? GMM_USM_HOST : kind == Kind::kManaged ? GMM_USM_SHARED : GMM_USM_DEVICE;
  out->kind = static_cast<gmm_kind>(kind);
  out->device = device;
}

void fill_block(Context &context, const Block &block, const void *address, gmm_pointer_info *out) {
  const HeapOptions &options = block.heap->options();
  fill_access(context, options.kind, options.device.ordinal, out);
  out->base = reinterpret_cast<void *>(block.base);
  out->size = block.requested;
  out->reserved_size = block.reserved;
  out->tag = options.tag;
  out->state = block.partly ? GMM_STATE_PARTLY_PAUSED : block.paused ? GMM_STATE_PAUSED : GMM_STATE_ACTIVE;
  const Region *region = block.extent->region.load(std::memory_order_acquire);
  const bool is_comm = region != nullptr && region->comm;
  out->ipc_routes = ipc_routes(context.core, block.heap->options());
  if (is_comm && context.core.backend->has_fabric(options.device)) out->ipc_routes |= GMM_IPC_ROUTE_FABRIC;
  out->allocation_base = reinterpret_cast<void *>(block.extent->base.load(std::memory_order_relaxed));
  out->allocation_size = block.extent->size.load(std::memory_order_relaxed);
  out->device_pointer = context.core.backend->device_address(address);
  out->generation = region == nullptr ? 0 : region->generation.load(std::memory_order_relaxed);
  // Pages that were moved to the host are the host's to touch.
  if (block.extent->location.load(std::memory_order_relaxed).is_host()) out->flags |= GMM_POINTER_HOST_ACCESSIBLE;
  if (block.paused) out->flags = 0;
  if (is_comm) out->flags |= GMM_POINTER_COMM;
}

}  // namespace

void query(Context &context, const void *address, gmm_pointer_info *out) {
  Block block;
  if (find_block(context.core, address, &block)) return fill_block(context, block, address, out);
  if (const Extent *extent = context.core.page_map.find_extent(address)) {
    const Region *region = extent->region.load(std::memory_order_acquire);
    const Heap *heap = region == nullptr ? nullptr : region->heap.load(std::memory_order_relaxed);
    if (heap != nullptr) {
      fill_access(context, heap->options().kind, heap->options().device.ordinal, out);
      out->tag = heap->options().tag;
    }
    out->state = GMM_STATE_FREE;
    Range range;
    if (context.ipc.exports.find_own(address, &range)) {
      // Freed, but imported by this context.
      out->state = GMM_STATE_IMPORTED;
      out->base = reinterpret_cast<void *>(range.base);
      out->size = out->reserved_size = range.size;
      out->device_pointer = context.core.backend->device_address(address);
    }
    if (out->state == GMM_STATE_FREE || is_paused(*extent)) out->flags = 0;
    out->allocation_base = reinterpret_cast<void *>(extent->base.load(std::memory_order_relaxed));
    out->allocation_size = extent->size.load(std::memory_order_relaxed);
    return;
  }
  out->device = GMM_DEVICE_HOST;
  Range range;
  if (context.pins.find(address, &range)) {
    out->state = GMM_STATE_PINNED;
    out->kind = GMM_KIND_HOST;
    out->usm = GMM_USM_HOST;
    out->flags = GMM_POINTER_HOST_ACCESSIBLE | GMM_POINTER_DEVICE_ACCESSIBLE;
    out->base = reinterpret_cast<void *>(range.base);
    out->size = out->reserved_size = range.size;
    out->device_pointer = reinterpret_cast<void *>(reinterpret_cast<uint64_t>(address) + range.value);
    return;
  }
  if (context.ipc.imports.find(address, &range)) {
    fill_access(context, IpcImports::kind(range), IpcImports::device(range).ordinal, out);
    const PeerState state = IpcImports::state(range);
    out->state = state == PeerState::kRevoked ? GMM_STATE_REVOKED : GMM_STATE_IMPORTED;
    if (state == PeerState::kGone) out->flags |= GMM_POINTER_PEER_GONE;
    out->allocation_base = reinterpret_cast<void *>(range.base);
    out->allocation_size = range.size;
    Range block;
    if (!context.ipc.imports.find_block(address, &block)) block = range;  // an address that no import named
    out->base = reinterpret_cast<void *>(block.base);
    out->size = out->reserved_size = block.size;
    out->device_pointer = context.core.backend->device_address(address);
    return;
  }
  ForeignPointer foreign;
  context.core.backend->identify(address, &foreign);
  if (!foreign.known) return;
  out->kind = static_cast<gmm_kind>(foreign.kind);
  out->usm = foreign.usm;
  out->device = foreign.device.ordinal;
  out->base = out->allocation_base = foreign.base;
  out->size = out->allocation_size = foreign.size;
  out->device_pointer = const_cast<void *>(address);
  out->flags = GMM_POINTER_DEVICE_ACCESSIBLE;
  if (foreign.usm == GMM_USM_HOST || foreign.usm == GMM_USM_SHARED) out->flags |= GMM_POINTER_HOST_ACCESSIBLE;
}

}  // namespace gmm
