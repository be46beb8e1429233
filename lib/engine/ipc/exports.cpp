// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/exports.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "base/process.h"
#include "engine/ipc/descriptor.h"

namespace gmm {
// --- The table ------------------------------------------------------------------------------------------------------

// Calls fn(extent) for the export's extents in order. False: memory of the export was replaced. Ids only grow, and an
// extent gets a new one with each place. No lock: the memory of an Extent is never freed.
template <class Fn>
bool IpcExports::for_each_extent(const Export &entry, Fn fn) const {
  uintptr_t at = entry.base;
  for (uint32_t i = 0; i < entry.extents; ++i) {
    Extent *extent = core_.page_map.find_extent(at);
    if (extent == nullptr || extent->id >= entry.next_extent_id) return false;
    at += size_of(*extent);
    fn(*extent);
  }
  return true;
}

// NULL: memory of the export was replaced.
Extent *IpcExports::first_extent(const Export &entry) const {
  Extent *first = nullptr;
  const bool is_whole = for_each_extent(entry, [&](Extent &extent) { first = first == nullptr ? &extent : first; });
  return is_whole ? first : nullptr;
}

// It grows with each pause of some of the memory.
uint64_t IpcExports::generation_of(const Export &entry) const {
  uint64_t sum = 0;
  for_each_extent(entry, [&](const Extent &extent) {
    if (const Region *region = region_of(&extent); region != nullptr)
      sum += region->generation.load(std::memory_order_relaxed);
  });
  return sum;
}

// With mutex_ held.
IpcExports::Export *IpcExports::find(uint64_t id) {
  Export *found = std::lower_bound(exports_.begin(), exports_.end(), id,
                                   [](const Export &entry, uint64_t key) { return entry.id < key; });
  return found != exports_.end() && found->id == id ? found : nullptr;
}

// Removes the exports whose memory is gone and that nobody imports. The next removal comes
// when there are twice as many exports, so that the cost of each export is constant on average. With mutex_ held.
void IpcExports::remove_stale() {
  const auto is_stale = [this](const Export &entry) {
    Block block;
    return entry.importers == 0 &&
           (first_extent(entry) == nullptr || !find_block(core_, reinterpret_cast<void *>(entry.block), &block) ||
            block.base != entry.block);
  };
  exports_.truncate(
      static_cast<uint64_t>(std::remove_if(exports_.begin(), exports_.end(), is_stale) - exports_.begin()));
  remove_stale_at_ = exports_.size() * 2 + 64;
}

// Tokens of exports of the same extents begin alike. Such exports are often the latest ones.
Status IpcExports::make_token(Export *entry) const {
  GMM_TRY(random_bytes(entry->token, sizeof entry->token));
  for (uint64_t i = exports_.size(); i-- != 0;) {
    const Export &other = exports_[i];
    if (other.base != entry->base || other.size != entry->size || first_extent(other) == nullptr) continue;
    std::memcpy(entry->token, other.token, kIpcExtentsTokenSize);
    break;
  }
  return Status();
}

// The block and its extents, as the heap has them now.
Status IpcExports::describe(const Block &block, Export *out) const {
  out->block = block.base;
  out->block_size = block.requested;
  out->base = base_of(*block.extent);
  out->next_extent_id = core_.next_extent_id.load(std::memory_order_relaxed);
  const uintptr_t end = block.base + block.reserved;
  for (uintptr_t at = out->base; at < end;) {
    const Extent *extent = core_.page_map.find_extent(at);
    if (extent == nullptr || out->extents == kIpcMaxExtents)
      return fail(
          GMM_ERROR_NOT_SUPPORTED,
          "gmm_ipc_export: the block lies over more than %u driver allocations; allocate it with GMM_ALLOC_DEDICATED.",
          kIpcMaxExtents);
    GMM_TRY(prefix(check_exportable(core_, *block.heap, *extent), "gmm_ipc_export: "));
    ++out->extents;
    out->size += size_of(*extent);
    at = out->base + out->size;
  }
  return Status();
}

// The export of a block, which its first export adds. With mutex_ and the heap's lock held.
Status IpcExports::find_or_add(const Block &block, Export *out) {
  if (exports_.size() >= remove_stale_at_) remove_stale();
  Export entry = {};
  GMM_TRY(describe(block, &entry));
  if (!exports_.reserve(exports_.size() + 1))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of an export.");
  GMM_TRY(make_token(&entry));
  const uint64_t new_id = next_id_.fetch_add(1, std::memory_order_relaxed);
  entry.id = new_id;
  GMM_TRY(block.heap->notes().mark_exported(CacheEntry{reinterpret_cast<void *>(block.base), block.slot}, &entry.id));
  if (entry.id != new_id) {
    Export *known = find(entry.id);
    if (known != nullptr && first_extent(*known) != nullptr) {
      *out = *known;
      return Status();
    }
    // A pause has merged the extents since the first export. Nobody imports them: extents with importers stay as they
    // are. Earlier connections may still be ending, so the block gets a second export.
    block.heap->notes().export_anew(reinterpret_cast<void *>(block.base), entry.id, new_id);
    entry.id = new_id;
  }
  exports_.push_back_reserved(entry);
  *out = entry;
  return Status();
}

// --- Exports --------------------------------------------------------------------------------------------------------

Status IpcExports::export_block(const void *memory, gmm_ipc_handle *out) {
  Block block;
  GMM_TRY(find_block(core_, memory, "gmm_ipc_export", &block));
  const HeapOptions &options = block.heap->options();
  if (options.kind == Kind::kManaged)
    return fail(GMM_ERROR_INVALID_KIND,
                "gmm_ipc_export(%p): MANAGED memory cannot be shared; allocate VMM, HOST or DEVICE memory.", memory);
  const uint32_t routes = ipc_routes(core_, options);
  if (routes == 0)
    return fail(GMM_ERROR_NOT_SUPPORTED,
                "gmm_ipc_export(%p): device %d cannot share %s memory; gmm_query() says which routes memory has.",
                memory, options.device.ordinal, kind_name(options.kind));
  IpcHandle handle;
  settings_.freeze();
  GMM_TRY(broker_.start(&handle.exporter));
  HeapLock heap_lock;
  GMM_TRY(find_locked(core_, memory, "gmm_ipc_export", &block, &heap_lock));
  if (block.paused) return paused_block(block, memory, "gmm_ipc_export");
  LockGuard guard(mutex_);
  Export entry;
  GMM_TRY(find_or_add(block, &entry));
  Region *region = block.extent->region.load(std::memory_order_relaxed);
  handle.route = (routes & GMM_IPC_ROUTE_FD) != 0 ? IpcRoute::kBroker : IpcRoute::kLegacy;
  handle.kind = options.kind;
  handle.device = options.device;
  std::memcpy(handle.token, entry.token, sizeof handle.token);
  handle.allocation = entry.id;
  handle.allocation_size = entry.size;
  handle.offset = reinterpret_cast<uintptr_t>(memory) - entry.base;
  handle.block_offset = block.base - entry.base;
  handle.block_size = block.requested;
  handle.generation = generation_of(entry);
  if (handle.route == IpcRoute::kLegacy) {
    // The driver's handle means the driver's allocation, which may begin before the extent.
    const uint64_t shift = entry.base - reinterpret_cast<uintptr_t>(region->allocation.driver_base);
    GMM_TRY(core_.backend->legacy_export(region->allocation.driver_base, handle.legacy));
    handle.offset += shift;
    handle.block_offset += shift;
    handle.allocation_size += shift;
  }
  if (handle.route == IpcRoute::kBroker && region->comm && entry.extents == 1) add_fabric(*block.extent, &handle);
  ipc_handle_encode(handle, out);
  return Status();
}

// For importers on other machines. Memory without a fabric handle stays this machine's.
void IpcExports::add_fabric(Extent &extent, IpcHandle *handle) const {
  const uint64_t machine = ipc_machine();
  if (machine == 0 || !core_.backend->has_fabric(handle->device)) return;
  MessageGuard message_guard;
  const Status status = core_.backend->export_fabric(extent.handle, handle->legacy);
  if (!status.ok()) {
    std::memset(handle->legacy, 0, sizeof handle->legacy);
    if (status.code() != GMM_ERROR_NOT_SUPPORTED)
      core_.log.write(LogLevel::kWarning, "gmm_ipc_export(): the handle is for this machine only: %s", last_message());
    return;
  }
  extent.is_out.store(true, std::memory_order_relaxed);
  handle->route = IpcRoute::kFabric;
  handle->machine = machine;
}

Status IpcExports::export_legacy(const void *memory, gmm_ipc_legacy_info *out) {
  Block block;
  GMM_TRY(find_block(core_, memory, "gmm_ipc_export_legacy", &block));
  if ((ipc_routes(core_, block.heap->options()) & GMM_IPC_ROUTE_LEGACY) == 0)
    return fail(GMM_ERROR_NOT_SUPPORTED,
                "gmm_ipc_export_legacy(%p): %s memory of device %d has no legacy handle of the driver; allocate DEVICE "
                "memory on a GPU, or use gmm_ipc_export().",
                memory, kind_name(block.heap->options().kind), block.heap->options().device.ordinal);
  HeapLock heap_lock;
  GMM_TRY(find_locked(core_, memory, "gmm_ipc_export_legacy", &block, &heap_lock));
  const Allocation &allocation = block.extent->region.load(std::memory_order_relaxed)->allocation;
  uint8_t bytes[kLegacyHandleSize];
  GMM_TRY(core_.backend->legacy_export(allocation.driver_base, bytes));
  std::memcpy(out->bytes, bytes, sizeof out->bytes);
  out->device = block.heap->options().device.ordinal;
  out->offset = reinterpret_cast<uintptr_t>(memory) - reinterpret_cast<uintptr_t>(allocation.driver_base);
  out->size = allocation.driver_size;
  return Status();
}

// --- Importers ------------------------------------------------------------------------------------------------------

// The export of an id and token, whose block lives, and its heap with the lock. fn(Export &, Heap &) -> Status.
template <typename Fn>
Status IpcExports::with_live(uint64_t id, const uint8_t token[kIpcTokenSize], bool may_wait, Fn fn) {
  Export entry;
  {
    LockGuard guard(mutex_);
    const Export *found = find(id);
    if (found == nullptr) return fail(GMM_ERROR_IPC_PEER_GONE, "The allocation is not exported any more.");
    if (!ipc_token_equal(found->token, token)) return fail(GMM_ERROR_IPC_REFUSED, "The token is not the allocation's.");
    entry = *found;
  }
  const HeapVisit visit(heaps_, heap_of(region_of(first_extent(entry))));
  Heap *heap = visit.heap;
  if (heap == nullptr) return fail(GMM_ERROR_IPC_PEER_GONE, "The memory was freed.");
  if (may_wait)
    heap->mutex.lock();
  else if (!heap->mutex.lock_unless_operation())
    return fail(GMM_ERROR_BUSY, "The memory is being paused or resumed.");
  const UnlockAtEnd guard(heap->mutex);
  bool is_same_heap = true;
  const bool is_whole = for_each_extent(
      entry, [&](const Extent &extent) { is_same_heap = is_same_heap && heap_of(region_of(&extent)) == heap; });
  if (!is_whole || !is_same_heap || !heap->notes().exported_as(reinterpret_cast<void *>(entry.block), entry.id))
    return fail(GMM_ERROR_IPC_PEER_GONE, "The memory was freed.");
  return fn(entry, *heap);
}

// With the heap's lock held.
Status IpcExports::count_importer(const Export &entry, bool is_own) {
  LockGuard guard(mutex_);
  Export *known = find(entry.id);
  if (known == nullptr) return fail(GMM_ERROR_IPC_PEER_GONE, "The memory is being freed.");
  if (!is_own) known->granted_generation = generation_of(entry);
  ++known->importers;
  for_each_extent(entry, [&](Extent &extent) {
    extent.importers.fetch_add(1, std::memory_order_acq_rel);
    if (is_own) extent.own_imports.fetch_add(1, std::memory_order_acq_rel);
  });
  return Status();
}

Status IpcExports::import_own(const IpcHandle &handle, bool counts, uintptr_t *base) {
  return with_live(handle.allocation, handle.token, true, [&](const Export &entry, Heap &) -> Status {
    *base = entry.base - (handle.allocation_size - entry.size);  // of a legacy handle it is shifted, see export_block()
    if (*base + handle.block_offset != entry.block || handle.block_size != entry.block_size)
      return fail(GMM_ERROR_IPC_PEER_GONE, "gmm_ipc_import: this process exported the memory and has freed it since.");
    return counts ? count_importer(entry, true) : Status();
  });
}

// The broker answers all importers, so it waits for no pause.
Status IpcExports::grant(uint64_t id, const uint8_t token[kIpcTokenSize], IpcGrant *out) {
  return with_live(id, token, false, [&](const Export &entry, Heap &heap) -> Status {
    bool is_mapped = true, is_pausing = false;
    for_each_extent(entry, [&](const Extent &extent) {
      is_mapped = is_mapped && extent.mapped;
      const Region &region = *region_of(&extent);
      is_pausing = is_pausing || region.elastic || region.paused.load(std::memory_order_relaxed) != 0;
    });
    if (!is_mapped) return fail(GMM_ERROR_PAUSED, "The memory is paused.");
    if (is_pausing && heap.paused().refuses_importers()) return fail(GMM_ERROR_BUSY, "The memory is being paused.");
    Status status;
    for_each_extent(entry, [&](Extent &extent) {
      int32_t fd = -1;
      if (out->wants_fds && status.ok()) status = open_extent(core_, heap, extent, &fd);
      if (fd >= 0) out->add_extent(fd, size_of(extent));
    });
    GMM_TRY(status);
    out->reply.allocation_size = entry.size;
    out->reply.generation = generation_of(entry);
    return out->counts ? count_importer(entry, false) : Status();
  });
}

void IpcExports::importer_gone(uint64_t id, bool is_own) {
  Extent *first = nullptr;
  {
    LockGuard guard(mutex_);
    Export *entry = find(id);
    if (entry == nullptr) return;
    --entry->importers;
    first = first_extent(*entry);
    for_each_extent(*entry, [&](Extent &extent) {
      if (is_own) extent.own_imports.fetch_sub(1, std::memory_order_acq_rel);
      extent.importers.fetch_sub(1, std::memory_order_acq_rel);
    });
  }
  const HeapVisit visit(heaps_, heap_of(region_of(first)));
  if (visit.heap != nullptr) visit.heap->free_held_for_importers(false);
}

// A pause advances the generation of the memory. So an export whose last grant has another generation was paused after
// that grant; a grant that comes after this function is of the new generation.
void IpcExports::revoke_paused() {
  LockGuard guard(mutex_);
  for (const Export &entry : exports_) {
    if (entry.importers == 0) continue;
    if (first_extent(entry) != nullptr && generation_of(entry) != entry.granted_generation) broker_.revoke(entry.id);
  }
}

}  // namespace gmm
