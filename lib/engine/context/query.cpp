// SPDX-License-Identifier: Apache-2.0
// Queries: the context, its devices, its statistics, a snapshot, any address.
#include <cstdio>

#include "engine/context/context.h"
#include "engine/heap/block.h"
#include "engine/ipc/descriptor.h"
#include "engine/limits/limits.h"

namespace gmm {
namespace {

void fill_access(Context &context, Kind kind, gmm_device device, gmm_pointer_info *out) {
  out->flags = GMM_POINTER_DEVICE_ACCESSIBLE;
  if (kind == Kind::kHost || kind == Kind::kManaged || context.core().backend->is_cpu_memory())
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
  const auto [extent, place] = context.core().page_map.find_place(reinterpret_cast<uintptr_t>(address));
  const Region *region = block.elastic == nullptr ? region_of(extent) : block.elastic;
  const bool is_comm = region != nullptr && region->comm;
  out->ipc_routes = ipc_routes(context.core(), block.heap->options());
  if (is_comm && context.core().backend->has_fabric(options.device)) out->ipc_routes |= GMM_IPC_ROUTE_FABRIC;
  out->allocation_base = reinterpret_cast<void *>(place.base);
  out->allocation_size = place.size;
  out->device_pointer = context.core().backend->device_address(address);
  out->generation = region == nullptr ? 0 : region->generation.load(std::memory_order_relaxed);
  // Pages that were moved to the host are the host's to touch.
  if (extent != nullptr && extent->location.load(std::memory_order_relaxed).is_host())
    out->flags |= GMM_POINTER_HOST_ACCESSIBLE;
  if (block.paused && (extent == nullptr || is_paused(*extent))) out->flags = 0;
  if (is_comm) out->flags |= GMM_POINTER_COMM;
}

}  // namespace

void Context::query_free(const Extent &extent, const void *address, gmm_pointer_info *out) {
  const Heap *heap = heap_of(region_of(&extent));
  if (heap != nullptr) {
    fill_access(*this, heap->options().kind, heap->options().device.ordinal, out);
    out->tag = heap->options().tag;
  }
  out->state = GMM_STATE_FREE;
  Range range;
  if (ipc_.imports.find_block(address, &range)) {
    // Freed, but imported by this context.
    out->state = GMM_STATE_IMPORTED;
    out->base = reinterpret_cast<void *>(range.base);
    out->size = out->reserved_size = range.size;
    out->device_pointer = core_.backend->device_address(address);
  }
  if (out->state == GMM_STATE_FREE || is_paused(extent)) out->flags = 0;
  out->allocation_base = reinterpret_cast<void *>(base_of(extent));
  out->allocation_size = size_of(extent);
}

// Pinned or imported memory.
bool Context::query_other(const void *address, gmm_pointer_info *out) {
  Range range;
  if (pins_.find(address, &range)) {
    out->state = GMM_STATE_PINNED;
    out->kind = GMM_KIND_HOST;
    out->usm = GMM_USM_HOST;
    out->flags = GMM_POINTER_HOST_ACCESSIBLE | GMM_POINTER_DEVICE_ACCESSIBLE;
    out->base = reinterpret_cast<void *>(range.base);
    out->size = out->reserved_size = range.size;
    out->device_pointer = reinterpret_cast<void *>(reinterpret_cast<uint64_t>(address) + range.value);
    return true;
  }
  if (!ipc_.imports.find(address, &range)) return false;
  fill_access(*this, IpcImports::kind(range), IpcImports::device(range).ordinal, out);
  const PeerState state = IpcImports::state(range);
  out->state = state == PeerState::kRevoked ? GMM_STATE_REVOKED : GMM_STATE_IMPORTED;
  if (state == PeerState::kGone) out->flags |= GMM_POINTER_PEER_GONE;
  if (IpcImports::is_read_only(range)) out->flags |= GMM_POINTER_READ_ONLY;
  out->allocation_base = reinterpret_cast<void *>(range.base);
  out->allocation_size = range.size;
  Range block;
  if (!ipc_.imports.find_block(address, &block)) block = range;  // an address that no import named
  out->base = reinterpret_cast<void *>(block.base);
  out->size = out->reserved_size = block.size;
  out->device_pointer = core_.backend->device_address(address);
  return true;
}

void Context::query(const void *address, gmm_pointer_info *out) {
  Block block;
  if (find_block(core_, address, &block)) return fill_block(*this, block, address, out);
  if (const Extent *extent = core_.page_map.find_extent(address)) return query_free(*extent, address, out);
  out->device = GMM_DEVICE_HOST;
  if (query_other(address, out)) return;
  ForeignPointer foreign;
  core_.backend->identify(address, &foreign);
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

void Context::query(gmm_context_info *out) const {
  out->backend = core_.backend->id();
  out->device_count = device_count_;
  out->flags = flags_;
  std::snprintf(out->backend_name, sizeof out->backend_name, "%s", core_.backend->name());
  core_.backend->driver_version(out->driver_version, sizeof out->driver_version);
  out->decommit_after_ms = decommit_.age();
}

Status Context::query_device(Device device, gmm_device_info *out) {
  return describe_device(*core_.backend, held_, held_on_[device.ordinal], device, out);
}

// The quota of a checked scope without a kind.
Quota &Context::quota_of(const gmm_scope_desc &scope) {
  const bool has_device = (scope.flags & GMM_SCOPE_DEVICE) != 0;
  if ((scope.flags & GMM_SCOPE_TAG) == 0) return has_device ? held_on_[scope.device] : held_;
  Tag &tag = *tags_.get(scope.tag);
  return has_device ? tag.held_on[scope.device] : tag.held;
}

Status Context::collect_statistics(const gmm_scope_desc &scope, gmm_stats_info *out) {
  collect_ended_captures(false);
  GMM_TRY(gmm::collect_statistics(heaps_, tags_, scope, out));
  // The quota of a device or tag knows its true peak. The peaks of its heaps may have been at different times.
  out->limit_bytes = GMM_NO_LIMIT;
  if ((scope.flags & GMM_SCOPE_KIND) == 0) {
    const Quota &quota = quota_of(scope);
    out->peak_reserved_bytes = quota.peak();
    out->limit_bytes = quota.limit();
  }
  if (scope.flags == 0) {
    out->pinned_bytes = pins_.bytes();
    out->imported_bytes = ipc_.imports.bytes();
    out->backend_calls = core_.backend->calls();
  }
  return Status();
}

Status Context::take_snapshot(const gmm_scope_desc &scope, gmm_snapshot **out) {
  collect_ended_captures(false);
  gmm_snapshot *made = core_.allocator.create<gmm_snapshot>(*this, core_.allocator);
  if (made == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "The host has no memory for a snapshot; free memory.");
  Status status = made->copy.take(core_, heaps_, tags_, scope);
  if (status.ok() && scope.flags == 0) status = made->copy.add_devices(*core_.backend);
  if (!status.ok()) {
    core_.allocator.destroy(made);
    return status;
  }
  retain();
  *out = made;
  return Status();
}

}  // namespace gmm
