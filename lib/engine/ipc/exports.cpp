// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/exports.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "base/process.h"
#include "engine/ipc/descriptor.h"

namespace gmm {
namespace {

Region *region_of(const Extent *extent) {
  return extent == nullptr ? nullptr : extent->region.load(std::memory_order_acquire);
}

// NULL when no heap owns the region any more. With HeapSet::mutex held, under which no heap ends.
Heap *heap_of(const Region *region) {
  return region == nullptr ? nullptr : region->heap.load(std::memory_order_relaxed);
}

}  // namespace

// --- The table ------------------------------------------------------------------------------------------------------

// The extent of a piece; NULL when an extent of the export has another id by now. No lock: the memory of an
// Extent is never freed.
Extent *IpcExports::extent_of(const Export &entry, uint32_t piece) const {
  uintptr_t at = entry.base;
  for (uint32_t i = 0; i < entry.pieces; ++i) {
    Extent *extent = core_.page_map.find_extent(reinterpret_cast<void *>(at));
    if (extent == nullptr || extent->id != entry.extents[i]) return nullptr;
    if (i == piece) return extent;
    at += extent->size.load(std::memory_order_relaxed);
  }
  return nullptr;
}

// With mutex_ held.
IpcExports::Export *IpcExports::find(uint64_t id) {
  Export *found = std::lower_bound(exports_.begin(), exports_.end(), id,
                                   [](const Export &entry, uint64_t key) { return entry.id < key; });
  return found != exports_.end() && found->id == id ? found : nullptr;
}

bool IpcExports::is_block_live(const Export &entry) const {
  Block block;
  return extent_of(entry, entry.pieces - 1) != nullptr &&
         find_block(core_, reinterpret_cast<void *>(entry.block), &block) && block.base == entry.block;
}

// Removes the exports whose memory is gone and that nobody imports. The tables stay in order. The next removal comes
// when there are twice as many exports, so that the cost of each export is constant on average. With mutex_ held.
void IpcExports::remove_stale() {
  const auto is_stale = [this](const Export &entry) { return entry.importers == 0 && !is_block_live(entry); };
  exports_.truncate(
      static_cast<uint64_t>(std::remove_if(exports_.begin(), exports_.end(), is_stale) - exports_.begin()));
  const auto is_unused = [this](const SharedExtents &extents) {
    for (const Export &entry : exports_)
      if (entry.extents[0] == extents.first) return false;
    return true;
  };
  shared_extents_.truncate(static_cast<uint64_t>(
      std::remove_if(shared_extents_.begin(), shared_extents_.end(), is_unused) - shared_extents_.begin()));
  remove_stale_at_ = exports_.size() * 2 + 64;
}

IpcExports::SharedExtents *IpcExports::find_shared_extents(const Export &entry) {
  const uint64_t first = entry.extents[0], last = entry.extents[entry.pieces - 1];
  SharedExtents *found = std::lower_bound(shared_extents_.begin(), shared_extents_.end(), first,
                                          [last](const SharedExtents &extents, uint64_t key) {
                                            return extents.first != key ? extents.first < key : extents.last < last;
                                          });
  return found != shared_extents_.end() && found->first == first && found->last == last ? found : nullptr;
}

Status IpcExports::find_or_add_shared_extents(const Export &entry, SharedExtents **out) {
  *out = find_shared_extents(entry);
  if (*out != nullptr) return Status();
  SharedExtents added = {};
  added.first = entry.extents[0];
  added.last = entry.extents[entry.pieces - 1];
  GMM_TRY(random_bytes(added.token, sizeof added.token));
  const SharedExtents *after = std::lower_bound(shared_extents_.begin(), shared_extents_.end(), added,
                                                [](const SharedExtents &a, const SharedExtents &b) {
                                                  return a.first != b.first ? a.first < b.first : a.last < b.last;
                                                });
  if (!shared_extents_.insert(static_cast<uint64_t>(after - shared_extents_.begin()), added))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of an export.");
  *out = find_shared_extents(entry);
  return Status();
}

// The block and its extents, as the heap has them now.
Status IpcExports::describe(const Block &block, Export *out) const {
  out->block = block.base;
  out->base = block.extent->base.load(std::memory_order_relaxed);
  const uintptr_t end = block.base + block.reserved;
  for (uintptr_t at = out->base; at < end;) {
    const Extent *extent = core_.page_map.find_extent(reinterpret_cast<void *>(at));
    if (extent == nullptr || out->pieces == kIpcMaxPieces)
      return fail(
          GMM_ERROR_NOT_SUPPORTED,
          "gmm_ipc_export: the block lies over more than %u driver allocations; allocate it with GMM_ALLOC_DEDICATED.",
          kIpcMaxPieces);
    out->extents[out->pieces++] = extent->id;
    out->size += extent->size.load(std::memory_order_relaxed);
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
  SharedExtents *extents = nullptr;
  GMM_TRY(find_or_add_shared_extents(entry, &extents));
  std::memcpy(entry.token, extents->token, sizeof entry.token);
  const uint64_t new_id = next_id_.fetch_add(1, std::memory_order_relaxed);
  entry.id = new_id;
  GMM_TRY(block.heap->mark_exported(CacheEntry{reinterpret_cast<void *>(block.base), block.slot}, &entry.id));
  if (entry.id != new_id) {
    Export *known = find(entry.id);
    if (known != nullptr &&
        std::equal(entry.extents, entry.extents + entry.pieces, known->extents, known->extents + known->pieces)) {
      *out = *known;
      return Status();
    }
    // A pause has merged the extents since the first export. Importers of that one still hold the pieces of its id, so
    // the block gets a second export.
    if (known != nullptr) std::swap(entry.self_imports, known->self_imports);
    block.heap->export_anew(reinterpret_cast<void *>(block.base), entry.id, new_id);
    entry.id = new_id;
  }
  exports_.push_back_reserved(entry);
  *out = entry;
  return Status();
}

// The driver makes one handle for an allocation. With mutex_ held.
Status IpcExports::export_legacy_once(SharedExtents &extents, void *driver_base) {
  if (extents.has_legacy) return Status();
  GMM_TRY(core_.backend->legacy_export(driver_base, extents.legacy));
  extents.has_legacy = true;
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
  const uint32_t routes = ipc_routes(core_, block);
  if (routes == 0)
    return fail(GMM_ERROR_NOT_SUPPORTED,
                "gmm_ipc_export(%p): device %d cannot share %s memory; gmm_query() says which routes memory has.",
                memory, options.device.ordinal, kind_name(options.kind));
  IpcHandle handle;
  settings_.freeze();
  GMM_TRY(broker_.ensure_running(&handle.exporter));
  LockGuard guard(mutex_);
  LockGuard heap_guard(block.heap->mutex);
  GMM_TRY(find_block(core_, memory, "gmm_ipc_export", &block));
  if (block.paused)
    return fail(GMM_ERROR_PAUSED, "gmm_ipc_export(%p): the block is paused; resume its tag first.", memory);
  Export entry;
  GMM_TRY(find_or_add(block, &entry));
  Region *region = block.extent->region.load(std::memory_order_relaxed);
  handle.route = (routes & GMM_IPC_ROUTE_FD) != 0 ? IpcRoute::kBroker : IpcRoute::kLegacy;
  handle.kind = options.kind;
  handle.device = options.device;
  std::memcpy(handle.device_uuid, core_.traits(options.device).uuid, sizeof handle.device_uuid);
  std::memcpy(handle.token, entry.token, sizeof handle.token);
  handle.allocation = entry.id;
  handle.allocation_size = entry.size;
  handle.offset = reinterpret_cast<uintptr_t>(memory) - entry.base;
  handle.block_offset = block.base - entry.base;
  handle.block_size = block.requested;
  handle.generation = region->generation.load(std::memory_order_relaxed);
  if (handle.route == IpcRoute::kLegacy) {
    // The driver's handle means the driver's allocation, which may begin before the extent.
    const uint64_t shift = entry.base - reinterpret_cast<uintptr_t>(region->allocation.driver_base);
    SharedExtents &extents = *find_shared_extents(entry);
    GMM_TRY(export_legacy_once(extents, region->allocation.driver_base));
    std::memcpy(handle.legacy, extents.legacy, sizeof handle.legacy);
    handle.offset += shift;
    handle.block_offset += shift;
    handle.allocation_size += shift;
  }
  ipc_handle_encode(handle, out);
  return Status();
}

Status IpcExports::export_legacy(const void *memory, gmm_ipc_legacy_info *out) {
  Block block;
  GMM_TRY(find_block(core_, memory, "gmm_ipc_export_legacy", &block));
  if ((ipc_routes(core_, block) & GMM_IPC_ROUTE_LEGACY) == 0)
    return fail(GMM_ERROR_NOT_SUPPORTED,
                "gmm_ipc_export_legacy(%p): %s memory of device %d has no legacy handle of the driver; allocate DEVICE "
                "memory on a GPU, or use gmm_ipc_export().",
                memory, kind_name(block.heap->options().kind), block.heap->options().device.ordinal);
  LockGuard heap_guard(block.heap->mutex);
  GMM_TRY(find_block(core_, memory, "gmm_ipc_export_legacy", &block));
  const Allocation &allocation = block.extent->region.load(std::memory_order_relaxed)->allocation;
  uint8_t bytes[kLegacyHandleSize];
  GMM_TRY(core_.backend->legacy_export(allocation.driver_base, bytes));
  std::memcpy(out->bytes, bytes, sizeof out->bytes);
  out->device = block.heap->options().device.ordinal;
  out->offset = reinterpret_cast<uintptr_t>(memory) - reinterpret_cast<uintptr_t>(allocation.driver_base);
  out->size = allocation.driver_size;
  return Status();
}

Status IpcExports::import_own(const IpcHandle &handle, void **out) {
  LockGuard guard(mutex_);
  if (Export *entry = find(handle.allocation); entry != nullptr && ipc_token_equal(entry->token, handle.token)) {
    const uint64_t shift = handle.allocation_size - entry->size;  // of a legacy handle, see export_block()
    Block block;
    void *address = reinterpret_cast<void *>(entry->base + handle.offset - shift);
    if (extent_of(*entry, entry->pieces - 1) != nullptr && handle.allocation_size >= entry->size &&
        handle.offset >= shift && find_block(core_, address, &block) && block.base == entry->block) {
      LockGuard heap_guard(block.heap->mutex);
      if (block.heap->exported_as(reinterpret_cast<void *>(entry->block), entry->id)) {
        ++entry->self_imports;
        *out = address;
        return Status();
      }
    }
  }
  return fail(GMM_ERROR_IPC_PEER_GONE, "gmm_ipc_import: this process exported the memory and has freed it since.");
}

Status IpcExports::close_own(const void *memory) {
  Block block;
  GMM_TRY(find_block(core_, memory, "gmm_ipc_close", &block));
  LockGuard guard(mutex_);
  LockGuard heap_guard(block.heap->mutex);
  for (Export &entry : exports_)
    if (entry.block == block.base && entry.self_imports != 0 &&
        block.heap->exported_as(reinterpret_cast<void *>(entry.block), entry.id)) {
      --entry.self_imports;
      return Status();
    }
  return fail(GMM_ERROR_UNBALANCED, "gmm_ipc_close(%p): the memory is this process's own and was not imported.",
              memory);
}

// --- Importers ------------------------------------------------------------------------------------------------------

Status IpcExports::grant(uint64_t piece_id, const uint8_t token[kIpcTokenSize], IpcGrant *out) {
  const uint32_t piece = ipc_piece_index(piece_id);
  LockGuard guard(mutex_);
  Export *entry = find(ipc_export_id(piece_id));
  if (entry == nullptr) return fail(GMM_ERROR_IPC_PEER_GONE, "The allocation is not exported any more.");
  if (!ipc_token_equal(entry->token, token)) return fail(GMM_ERROR_IPC_REFUSED, "The token is not the allocation's.");
  LockGuard set_guard(heaps_.mutex);
  Extent *extent = extent_of(*entry, piece);
  const Region *region = region_of(extent);
  Heap *heap = heap_of(region);
  if (heap == nullptr) return fail(GMM_ERROR_IPC_PEER_GONE, "The memory was freed.");
  LockGuard heap_guard(heap->mutex);
  if (extent_of(*entry, piece) != extent || !heap->exported_as(reinterpret_cast<void *>(entry->block), entry->id))
    return fail(GMM_ERROR_IPC_PEER_GONE, "The memory was freed.");
  if (!extent->mapped) return fail(GMM_ERROR_PAUSED, "The memory is paused.");
  if (out->wants_fd) GMM_TRY(open_extent(core_, *heap, *extent, &out->fd));
  out->allocation_size = extent->size.load(std::memory_order_relaxed);
  out->generation = entry->granted_generation = region->generation.load(std::memory_order_relaxed);
  extent->importers.fetch_add(1, std::memory_order_acq_rel);
  ++entry->importers;
  return Status();
}

void IpcExports::importer_gone(uint64_t piece_id) {
  LockGuard guard(mutex_);
  Export *entry = find(ipc_export_id(piece_id));
  if (entry == nullptr) return;
  --entry->importers;
  LockGuard set_guard(heaps_.mutex);
  Extent *extent = extent_of(*entry, ipc_piece_index(piece_id));
  Heap *heap = heap_of(region_of(extent));
  if (heap == nullptr) return;
  extent->importers.fetch_sub(1, std::memory_order_acq_rel);
  heap->free_held_for_importers();
}

// A pause advances the generation of the memory. So an export whose last grant has another generation was paused after
// that grant; a grant that comes after this function is of the new generation.
void IpcExports::revoke_paused() {
  LockGuard guard(mutex_);
  for (const Export &entry : exports_) {
    if (entry.importers == 0) continue;
    const Region *region = region_of(extent_of(entry, 0));
    if (region != nullptr && region->generation.load(std::memory_order_relaxed) != entry.granted_generation)
      broker_.revoke(entry.id);
  }
}

}  // namespace gmm
