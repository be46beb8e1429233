// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/ipc.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "base/process.h"

namespace gmm {
Sharing::Sharing(Core &core, HeapSet &heaps)
    : core_(core),
      heaps_(heaps),
      broker_(core.allocator, core.log, IpcResolver{resolve, importer_gone, this}, policy_),
      exports_(core.allocator),
      runs_(core.allocator),
      events_(core.allocator),
      imports_(core.allocator),
      table_(core.allocator),
      ranges_(core.allocator) {}

Status Sharing::configure(const IpcPolicy &policy) {
  LockGuard guard(mutex_);
  if (settled_)
    return fail(GMM_ERROR_BUSY,
                "gmm_ipc_configure: something was exported or imported already; configure the context before that.");
  policy_ = policy;
  return Status();
}

uint32_t Sharing::routes(const Block &block) const {
  const uint32_t capabilities = core_.traits(block.heap->options().device).capabilities;
  const auto route = [&](uint32_t capability, uint32_t bit) { return (capabilities & capability) != 0 ? bit : 0; };
  switch (block.heap->options().kind) {
    case Kind::kVmm:
      return route(GMM_DEVICE_CAN_EXPORT_FD, GMM_IPC_ROUTE_FD) | route(GMM_DEVICE_CAN_DMA_BUF, GMM_IPC_ROUTE_DMA_BUF);
    case Kind::kHost:
      return route(GMM_DEVICE_CAN_EXPORT_FD, GMM_IPC_ROUTE_FD);
    case Kind::kDevice:
      return route(GMM_DEVICE_CAN_LEGACY_IPC, GMM_IPC_ROUTE_LEGACY) |
             route(GMM_DEVICE_IS_HOST, GMM_IPC_ROUTE_FD) |  // a file is behind it there
             route(GMM_DEVICE_CAN_DMA_BUF, GMM_IPC_ROUTE_DMA_BUF);
    default:
      return 0;
  }
}

// --- The exporter's side ----------------------------------------------------------------------------------

// The extent of a piece if it is still the exported one. Without a lock: extents keep their memory.
Extent *Sharing::piece_of(const Export &entry, uint32_t piece, uintptr_t *base) const {
  uintptr_t at = entry.base;
  for (uint32_t i = 0; i < entry.pieces; ++i) {
    Extent *extent = core_.page_map.find_extent(reinterpret_cast<void *>(at));
    if (extent == nullptr || extent->id != entry.extents[i]) return nullptr;
    if (i == piece) {
      *base = at;
      return extent;
    }
    at += extent->size.load(std::memory_order_relaxed);
  }
  return nullptr;
}

// With mutex_ held.
Status Sharing::start_broker() {
  if (serving_) return Status();
  settled_ = true;
  GMM_TRY(broker_.start(&endpoint_));
  serving_ = true;
  return Status();
}

// With mutex_ held.
Sharing::Export *Sharing::export_of(uint64_t id) {
  Export *found = std::lower_bound(exports_.begin(), exports_.end(), id,
                                   [](const Export &entry, uint64_t key) { return entry.id < key; });
  return found != exports_.end() && found->id == id ? found : nullptr;
}

bool Sharing::block_lives(const Export &entry) const {
  uintptr_t base = 0;
  Block block;
  return piece_of(entry, entry.pieces - 1, &base) != nullptr &&
         find_block(core_, reinterpret_cast<void *>(entry.block), &block) && block.base == entry.block;
}

// Whether the memory of an export is gone and nobody holds a grant. With mutex_ held.
bool Sharing::stale(const Export &entry) const { return entry.importers == 0 && !block_lives(entry); }

// What is left of exports and runs is in order. Once for as many exports as there are, so that each costs the same on average.
void Sharing::drop_stale() {
  exports_.truncate(static_cast<uint64_t>(
      std::remove_if(exports_.begin(), exports_.end(), [this](const Export &entry) { return stale(entry); }) -
      exports_.begin()));
  runs_.truncate(static_cast<uint64_t>(std::remove_if(runs_.begin(), runs_.end(),
                                                      [this](const Run &run) {
                                                        for (const Export &entry : exports_)
                                                          if (entry.extents[0] == run.first) return false;
                                                        return true;
                                                      }) -
                                       runs_.begin()));
  sweep_at_ = exports_.size() * 2 + 64;
}

Sharing::Run *Sharing::run_of(const Export &entry) {
  const uint64_t first = entry.extents[0], last = entry.extents[entry.pieces - 1];
  Run *found = std::lower_bound(runs_.begin(), runs_.end(), first, [last](const Run &run, uint64_t key) {
    return run.first != key ? run.first < key : run.last < last;
  });
  return found != runs_.end() && found->first == first && found->last == last ? found : nullptr;
}

Status Sharing::make_run(const Export &entry, Run **out) {
  *out = run_of(entry);
  if (*out != nullptr) return Status();
  Run fresh = {};
  fresh.first = entry.extents[0];
  fresh.last = entry.extents[entry.pieces - 1];
  GMM_TRY(random_bytes(fresh.token, sizeof fresh.token));
  const Run *after = std::lower_bound(runs_.begin(), runs_.end(), fresh, [](const Run &a, const Run &b) {
    return a.first != b.first ? a.first < b.first : a.last < b.last;
  });
  if (!runs_.insert(static_cast<uint64_t>(after - runs_.begin()), fresh))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of an export.");
  *out = run_of(entry);
  return Status();
}

// The export of a block; made at its first. With mutex_ and the heap's lock held.
Status Sharing::find_export(const Block &block, Export *out) {
  if (exports_.size() >= sweep_at_) drop_stale();
  Export fresh = {};
  fresh.block = block.base;
  fresh.base = block.extent->base.load(std::memory_order_relaxed);
  const uintptr_t end = block.base + block.reserved;
  for (uintptr_t at = fresh.base; at < end;) {
    const Extent *extent = core_.page_map.find_extent(reinterpret_cast<void *>(at));
    if (extent == nullptr || fresh.pieces == kMaxPieces)
      return fail(
          GMM_ERROR_NOT_SUPPORTED,
          "gmm_ipc_export: the block lies over more than %u driver allocations; allocate it with GMM_ALLOC_DEDICATED.",
          kMaxPieces);
    fresh.extents[fresh.pieces++] = extent->id;
    fresh.size += extent->size.load(std::memory_order_relaxed);
    at = fresh.base + fresh.size;
  }
  if (!exports_.reserve(exports_.size() + 1))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of an export.");
  Run *run = nullptr;
  GMM_TRY(make_run(fresh, &run));
  std::memcpy(fresh.token, run->token, sizeof fresh.token);
  fresh.id = next_id_;
  GMM_TRY(block.heap->mark_exported(CacheEntry{reinterpret_cast<void *>(block.base), block.slot}, &fresh.id));
  if (fresh.id != next_id_) {
    Export *known = export_of(fresh.id);
    if (known != nullptr &&
        std::equal(fresh.extents, fresh.extents + fresh.pieces, known->extents, known->extents + known->pieces)) {
      *out = *known;
      return Status();
    }
    // A pause has made one extent of several since. Importers know what they have by its old name.
    if (known != nullptr) std::swap(fresh.self_imports, known->self_imports);
    block.heap->export_anew(reinterpret_cast<void *>(block.base), fresh.id, next_id_);
    fresh.id = next_id_;
  }
  ++next_id_;
  exports_.push_back_reserved(fresh);
  *out = fresh;
  return Status();
}

// The driver's handle of a run, which is one allocation then; asked for once. With mutex_ held.
Status Sharing::legacy_handle(Run &run, void *driver_base) {
  if (run.has_legacy) return Status();
  GMM_TRY(core_.backend->legacy_export(driver_base, run.legacy));
  run.has_legacy = true;
  return Status();
}

Status Sharing::export_block(const void *memory, gmm_ipc_handle *out) {
  Block block;
  GMM_TRY(find_block(core_, memory, "gmm_ipc_export", &block));
  const HeapOptions &options = block.heap->options();
  if (options.kind == Kind::kManaged)
    return fail(GMM_ERROR_INVALID_KIND,
                "gmm_ipc_export(%p): MANAGED memory cannot be shared; allocate VMM, HOST or DEVICE memory.", memory);
  const uint32_t ways = routes(block);
  if (ways == 0)
    return fail(GMM_ERROR_NOT_SUPPORTED, "gmm_ipc_export(%p): device %d has no way to share this kind.", memory,
                options.device.ordinal);
  LockGuard guard(mutex_);
  GMM_TRY(start_broker());
  LockGuard heap_guard(block.heap->mutex);
  GMM_TRY(find_block(core_, memory, "gmm_ipc_export", &block));
  if (block.paused)
    return fail(GMM_ERROR_PAUSED, "gmm_ipc_export(%p): the block is paused; resume its tag first.", memory);
  Export entry;
  GMM_TRY(find_export(block, &entry));
  Region *region = block.extent->region.load(std::memory_order_relaxed);
  IpcHandle handle;
  handle.route = (ways & GMM_IPC_ROUTE_FD) != 0 ? IpcRoute::kBroker : IpcRoute::kLegacy;
  handle.kind = options.kind;
  handle.device = options.device;
  std::memcpy(handle.device_uuid, core_.traits(options.device).uuid, sizeof handle.device_uuid);
  handle.exporter = endpoint_;
  std::memcpy(handle.token, entry.token, sizeof handle.token);
  handle.allocation = entry.id;
  handle.allocation_size = entry.size;
  handle.offset = reinterpret_cast<uintptr_t>(memory) - entry.base;
  handle.block_offset = block.base - entry.base;
  handle.block_size = block.requested;
  handle.generation = region->generation.load(std::memory_order_relaxed);
  if (handle.route == IpcRoute::kLegacy) {
    // The driver's handle speaks of its own allocation, which may begin before what the engine uses.
    const uint64_t shift = entry.base - reinterpret_cast<uintptr_t>(region->allocation.driver_base);
    Run &run = *run_of(entry);
    GMM_TRY(legacy_handle(run, region->allocation.driver_base));
    std::memcpy(handle.legacy, run.legacy, sizeof handle.legacy);
    handle.offset += shift;
    handle.block_offset += shift;
    handle.allocation_size += shift;
  }
  ipc_handle_encode(handle, out);
  return Status();
}

Status Sharing::export_legacy(const void *memory, gmm_ipc_legacy_handle *out, uint64_t *offset, uint64_t *size) {
  Block block;
  GMM_TRY(find_block(core_, memory, "gmm_ipc_export_legacy", &block));
  if ((routes(block) & GMM_IPC_ROUTE_LEGACY) == 0)
    return fail(GMM_ERROR_NOT_SUPPORTED,
                "gmm_ipc_export_legacy(%p): %s memory of device %d has no legacy handle of the driver; allocate DEVICE "
                "memory on a GPU, or "
                "use gmm_ipc_export().",
                memory, kind_name(block.heap->options().kind), block.heap->options().device.ordinal);
  LockGuard heap_guard(block.heap->mutex);
  GMM_TRY(find_block(core_, memory, "gmm_ipc_export_legacy", &block));
  const Allocation &allocation = block.extent->region.load(std::memory_order_relaxed)->allocation;
  uint8_t bytes[kLegacyHandleSize];
  GMM_TRY(core_.backend->legacy_export(allocation.driver_base, bytes));
  std::memcpy(out->bytes, bytes, sizeof out->bytes);
  *offset = reinterpret_cast<uintptr_t>(memory) - reinterpret_cast<uintptr_t>(allocation.driver_base);
  if (size != nullptr) *size = allocation.driver_size;
  return Status();
}

// Called by the broker.
Status Sharing::resolve(void *self, uint64_t id, const uint8_t token[kIpcTokenSize], IpcGrant *out) {
  Sharing &sharing = *static_cast<Sharing *>(self);
  const uint32_t piece = static_cast<uint32_t>(id >> kPieceShift);
  const uint64_t plain = id & kPlainId;
  LockGuard guard(sharing.mutex_);
  Export *entry = sharing.export_of(plain);
  SharedEvent *event = entry == nullptr ? sharing.event_of(plain) : nullptr;
  if (entry == nullptr && event == nullptr)
    return fail(GMM_ERROR_IPC_PEER_GONE, "The allocation is not exported any more.");
  if (!ipc_token_equal(entry != nullptr ? entry->token : event->token, token))
    return fail(GMM_ERROR_IPC_REFUSED, "The token is not the allocation's.");
  if (event != nullptr) return sharing.resolve_event(*event, out);
  LockGuard set_guard(sharing.heaps_.mutex);
  uintptr_t base = 0;
  Extent *extent = sharing.piece_of(*entry, piece, &base);
  Region *region = extent == nullptr ? nullptr : extent->region.load(std::memory_order_acquire);
  Heap *heap = region == nullptr ? nullptr : region->heap.load(std::memory_order_relaxed);
  if (heap == nullptr) return fail(GMM_ERROR_IPC_PEER_GONE, "The memory was freed.");
  LockGuard heap_guard(heap->mutex);
  if (sharing.piece_of(*entry, piece, &base) != extent ||
      !heap->exported_as(reinterpret_cast<void *>(entry->block), entry->id))
    return fail(GMM_ERROR_IPC_PEER_GONE, "The memory was freed.");
  if (!extent->mapped) return fail(GMM_ERROR_PAUSED, "The memory is paused.");
  if (out->wants_fd) GMM_TRY(sharing.open_extent(*heap, *extent, &out->fd));
  out->allocation_size = extent->size.load(std::memory_order_relaxed);
  out->generation = entry->granted_generation = region->generation.load(std::memory_order_relaxed);
  extent->importers.fetch_add(1, std::memory_order_acq_rel);
  ++entry->importers;
  return Status();
}

void Sharing::importer_gone(void *self, uint64_t id) {
  Sharing &sharing = *static_cast<Sharing *>(self);
  const uint32_t piece = static_cast<uint32_t>(id >> kPieceShift);
  const uint64_t plain = id & kPlainId;
  LockGuard guard(sharing.mutex_);
  for (uint64_t i = 0; i < sharing.events_.size(); ++i) {
    if (sharing.events_[i]->id != plain) continue;
    --sharing.events_[i]->importers;
    return sharing.finish_event(i);
  }
  Export *entry = sharing.export_of(plain);
  if (entry == nullptr) return;
  --entry->importers;
  LockGuard set_guard(sharing.heaps_.mutex);
  uintptr_t base = 0;
  Extent *extent = sharing.piece_of(*entry, piece, &base);
  Region *region = extent == nullptr ? nullptr : extent->region.load(std::memory_order_acquire);
  Heap *heap = region == nullptr ? nullptr : region->heap.load(std::memory_order_relaxed);
  if (heap == nullptr) return;
  extent->importers.fetch_sub(1, std::memory_order_acq_rel);
  heap->free_kept_aside();
}

// The generation of paused memory has moved on since it was granted; what is granted later is not meant.
void Sharing::revoke_paused() {
  LockGuard guard(mutex_);
  for (const Export &entry : exports_) {
    if (entry.importers == 0) continue;
    uintptr_t base = 0;
    const Extent *extent = piece_of(entry, 0, &base);
    const Region *region = extent == nullptr ? nullptr : extent->region.load(std::memory_order_acquire);
    if (region != nullptr && region->generation.load(std::memory_order_relaxed) != entry.granted_generation)
      broker_.revoke(entry.id);
  }
}

}  // namespace gmm
