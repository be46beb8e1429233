// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstring>

#include "base/process.h"

namespace gmm {
namespace {

Status duplicate(int32_t fd, int32_t *out) {
  *out = fcntl(fd, F_DUPFD_CLOEXEC, 3);
  if (*out >= 0) return Status();
  const int error = errno;
  char text[96];
  return fail_native(GMM_ERROR_SYSTEM, error, "The memory's descriptor could not be duplicated: %s.",
                     system_error_text(error, text, sizeof text));
}

// The descriptor of one extent, the caller's to close. With the heap's lock held, the extent not paused.
Status open_extent(Backend &backend, const Heap &heap, const Extent &extent, int32_t *fd) {
  if (heap.options().kind == Kind::kVmm) return backend.export_fd(extent.handle, fd);
  return duplicate(extent.region.load(std::memory_order_relaxed)->allocation.fd, fd);
}

}  // namespace

Sharing::Sharing(Core &core, HeapSet &heaps)
    : core_(core),
      heaps_(heaps),
      broker_(core.allocator, core.log, IpcResolver{resolve, importer_gone, this}),
      exports_(core.allocator),
      imports_(core.allocator),
      table_(core.allocator),
      ranges_(core.allocator) {}

uint32_t Sharing::routes(const Block &block) const {
  const uint32_t capabilities = core_.traits(block.heap->options().device).capabilities;
  switch (block.heap->options().kind) {
    case Kind::kVmm:
    case Kind::kHost:
      return (capabilities & GMM_DEVICE_CAN_EXPORT_FD) != 0 ? GMM_IPC_ROUTE_FD : 0;
    case Kind::kDevice:
      return ((capabilities & GMM_DEVICE_CAN_LEGACY_IPC) != 0 ? GMM_IPC_ROUTE_LEGACY : 0) |
             ((capabilities & GMM_DEVICE_IS_HOST) != 0 ? GMM_IPC_ROUTE_FD : 0);  // a file is behind it there
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

// Whether the memory of an export is gone and nobody holds a grant. With mutex_ held.
bool Sharing::stale(const Export &entry) const {
  uintptr_t base = 0;
  Block block;
  if (entry.importers != 0) return false;
  return piece_of(entry, entry.pieces - 1, &base) == nullptr ||
         !find_block(core_, reinterpret_cast<void *>(entry.block), &block) || block.base != entry.block;
}

// The export of a block; made at its first. With mutex_ and the heap's lock held.
Status Sharing::find_export(const Block &block, Export *out) {
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
  GMM_TRY(random_bytes(fresh.token, sizeof fresh.token));
  fresh.id = next_id_;
  GMM_TRY(block.heap->mark_exported(CacheEntry{reinterpret_cast<void *>(block.base), block.slot}, &fresh.id));
  for (uint64_t i = exports_.size(); i-- > 0;) {
    const Export &known = exports_[i];
    if (known.id == fresh.id) {
      *out = known;
      return Status();
    }
    if (stale(known)) {
      exports_.erase_unordered(i);
    } else if (known.base == fresh.base && known.size == fresh.size &&
               std::memcmp(known.extents, fresh.extents, sizeof fresh.extents) == 0) {
      std::memcpy(fresh.token, known.token, sizeof fresh.token);
    }
  }
  ++next_id_;
  exports_.push_back_reserved(fresh);
  *out = fresh;
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
  GMM_TRY(broker_.start(&endpoint_));
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
  handle.block_size = block.asked;
  handle.generation = region->generation.load(std::memory_order_relaxed);
  if (handle.route == IpcRoute::kLegacy) {
    // The driver's handle speaks of its own allocation, which may begin before what the engine uses.
    const uint64_t shift = entry.base - reinterpret_cast<uintptr_t>(region->allocation.driver_base);
    GMM_TRY(core_.backend->legacy_export(region->allocation.driver_base, handle.legacy));
    handle.offset += shift;
    handle.block_offset += shift;
    handle.allocation_size += shift;
  }
  ipc_handle_encode(handle, out);
  return Status();
}

Status Sharing::export_fd(const void *memory, int32_t *fd, uint64_t *offset, uint64_t *size) {
  Block block;
  GMM_TRY(find_block(core_, memory, "gmm_ipc_export_fd", &block));
  const Kind kind = block.heap->options().kind;
  if ((routes(block) & GMM_IPC_ROUTE_FD) == 0)
    return fail(kind == Kind::kVmm || kind == Kind::kHost ? GMM_ERROR_NOT_SUPPORTED : GMM_ERROR_INVALID_KIND,
                "gmm_ipc_export_fd(%p): %s memory has no descriptor on device %d; allocate VMM or HOST memory.", memory,
                kind_name(kind), block.heap->options().device.ordinal);
  LockGuard heap_guard(block.heap->mutex);
  GMM_TRY(find_block(core_, memory, "gmm_ipc_export_fd", &block));
  if (block.paused)
    return fail(GMM_ERROR_PAUSED, "gmm_ipc_export_fd(%p): the block is paused; resume its tag first.", memory);
  const uintptr_t begin = block.extent->base.load(std::memory_order_relaxed);
  const uint64_t bytes = block.extent->size.load(std::memory_order_relaxed);
  if (block.base + block.reserved > begin + bytes)
    return fail(
        GMM_ERROR_NOT_SUPPORTED,
        "gmm_ipc_export_fd(%p): the block lies over several driver allocations; allocate it with GMM_ALLOC_DEDICATED.",
        memory);
  GMM_TRY(open_extent(*core_.backend, *block.heap, *block.extent, fd));
  if (offset != nullptr) *offset = reinterpret_cast<uintptr_t>(memory) - begin;
  if (size != nullptr) *size = bytes;
  return Status();
}

Status Sharing::resolve(void *self, uint64_t id, const uint8_t token[kIpcTokenSize], IpcGrant *out) {
  Sharing &sharing = *static_cast<Sharing *>(self);
  const uint32_t piece = static_cast<uint32_t>(id >> kPieceShift);
  const uint64_t plain = id & ((uint64_t{1} << kPieceShift) - 1);
  LockGuard guard(sharing.mutex_);
  for (Export &entry : sharing.exports_) {
    if (entry.id != plain) continue;
    if (!ipc_token_equal(entry.token, token)) return fail(GMM_ERROR_IPC_REFUSED, "The token is not the allocation's.");
    LockGuard set_guard(sharing.heaps_.mutex);
    uintptr_t base = 0;
    Extent *extent = sharing.piece_of(entry, piece, &base);
    Region *region = extent == nullptr ? nullptr : extent->region.load(std::memory_order_acquire);
    Heap *heap = region == nullptr ? nullptr : region->heap.load(std::memory_order_relaxed);
    if (heap == nullptr) return fail(GMM_ERROR_IPC_PEER_GONE, "The memory was freed.");
    LockGuard heap_guard(heap->mutex);
    if (sharing.piece_of(entry, piece, &base) != extent ||
        !heap->exported_as(reinterpret_cast<void *>(entry.block), entry.id))
      return fail(GMM_ERROR_IPC_PEER_GONE, "The memory was freed.");
    if (!extent->mapped) return fail(GMM_ERROR_PAUSED, "The memory is paused.");
    if (out->wants_fd) GMM_TRY(open_extent(*sharing.core_.backend, *heap, *extent, &out->fd));
    out->allocation_size = extent->size.load(std::memory_order_relaxed);
    out->generation = region->generation.load(std::memory_order_relaxed);
    extent->importers.fetch_add(1, std::memory_order_acq_rel);
    ++entry.importers;
    return Status();
  }
  return fail(GMM_ERROR_IPC_PEER_GONE, "The allocation is not exported any more.");
}

void Sharing::importer_gone(void *self, uint64_t id) {
  Sharing &sharing = *static_cast<Sharing *>(self);
  const uint32_t piece = static_cast<uint32_t>(id >> kPieceShift);
  const uint64_t plain = id & ((uint64_t{1} << kPieceShift) - 1);
  LockGuard guard(sharing.mutex_);
  for (Export &entry : sharing.exports_) {
    if (entry.id != plain) continue;
    --entry.importers;
    LockGuard set_guard(sharing.heaps_.mutex);
    uintptr_t base = 0;
    Extent *extent = sharing.piece_of(entry, piece, &base);
    Region *region = extent == nullptr ? nullptr : extent->region.load(std::memory_order_acquire);
    Heap *heap = region == nullptr ? nullptr : region->heap.load(std::memory_order_relaxed);
    if (heap == nullptr) return;
    extent->importers.fetch_sub(1, std::memory_order_acq_rel);
    heap->free_kept_aside();
    return;
  }
}

}  // namespace gmm
