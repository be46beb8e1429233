// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/exports.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "base/process.h"
#include "engine/ipc/descriptor.h"
#include "engine/ipc/imports.h"

namespace gmm {
namespace {

// A live block, and the lock of its heap.
class LockedBlock {
 public:
  LockedBlock() = default;
  ~LockedBlock() {
    if (heap_ != nullptr) heap_->mutex.unlock();
  }
  LockedBlock(const LockedBlock &) = delete;
  LockedBlock &operator=(const LockedBlock &) = delete;

  Status find(const Core &core, const void *memory, const char *operation) {
    for (;;) {
      GMM_TRY(find_block(core, memory, operation, &block));
      Heap *heap = block.heap;
      heap->mutex.lock();
      const Status status = find_block(core, memory, operation, &block);
      if (status.ok() && block.heap == heap) {
        heap_ = heap;
        return Status();
      }
      heap->mutex.unlock();
      GMM_TRY(status);
    }
  }

  Block block;

 private:
  Heap *heap_ = nullptr;
};

}  // namespace

// --- The table ------------------------------------------------------------------------------------------------------

// Calls fn(extent) for the export's extents in order. False: memory of the export was replaced. Ids only grow, and an
// extent gets a new one with each place. No lock: the memory of an Extent is never freed.
template <class Fn>
bool IpcExports::for_each_extent(const Export &entry, Fn fn) const {
  uintptr_t at = entry.base;
  for (uint32_t i = 0; i < entry.extents; ++i) {
    Extent *extent = core_.page_map.find_extent(reinterpret_cast<void *>(at));
    if (extent == nullptr || extent->id >= entry.next_extent_id) return false;
    at += extent->size.load(std::memory_order_relaxed);
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

bool IpcExports::is_block_live(const Export &entry) const {
  Block block;
  return first_extent(entry) != nullptr && find_block(core_, reinterpret_cast<void *>(entry.block), &block) &&
         block.base == entry.block;
}

// Removes the exports whose memory is gone and that nobody imports. The next removal comes
// when there are twice as many exports, so that the cost of each export is constant on average. With mutex_ held.
void IpcExports::remove_stale() {
  const auto is_stale = [this](const Export &entry) {
    return entry.importers == 0 && entry.own_imports == 0 && !is_block_live(entry);
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
    if (other.first_extent != entry->first_extent || other.last_extent != entry->last_extent) continue;
    std::memcpy(entry->token, other.token, kIpcExtentsTokenSize);
    break;
  }
  return Status();
}

// The block and its extents, as the heap has them now.
Status IpcExports::describe(const Block &block, Export *out) const {
  out->block = block.base;
  out->block_size = block.requested;
  out->place = IpcImports::place(block.heap->options().kind, block.heap->options().device);
  out->base = block.extent->base.load(std::memory_order_relaxed);
  out->next_extent_id = core_.next_extent_id.load(std::memory_order_relaxed);
  const uintptr_t end = block.base + block.reserved;
  for (uintptr_t at = out->base; at < end;) {
    const Extent *extent = core_.page_map.find_extent(reinterpret_cast<void *>(at));
    if (extent == nullptr || out->extents == kIpcMaxExtents)
      return fail(
          GMM_ERROR_NOT_SUPPORTED,
          "gmm_ipc_export: the block lies over more than %u driver allocations; allocate it with GMM_ALLOC_DEDICATED.",
          kIpcMaxExtents);
    if (out->extents++ == 0) out->first_extent = extent->id;
    out->last_extent = extent->id;
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
  GMM_TRY(make_token(&entry));
  const uint64_t new_id = next_id_.fetch_add(1, std::memory_order_relaxed);
  entry.id = new_id;
  GMM_TRY(block.heap->mark_exported(CacheEntry{reinterpret_cast<void *>(block.base), block.slot}, &entry.id));
  if (entry.id != new_id) {
    Export *known = find(entry.id);
    if (known != nullptr && first_extent(*known) != nullptr) {
      *out = *known;
      return Status();
    }
    // A pause has merged the extents since the first export. Nobody imports them: extents with importers stay as they
    // are. Earlier connections may still be ending, so the block gets a second export.
    block.heap->export_anew(reinterpret_cast<void *>(block.base), entry.id, new_id);
    entry.id = new_id;
  }
  exports_.push_back_reserved(entry);
  *out = entry;
  return Status();
}

// --- Exports --------------------------------------------------------------------------------------------------------

Status IpcExports::export_block(const void *memory, gmm_ipc_handle *out) {
  Block first_look;
  GMM_TRY(find_block(core_, memory, "gmm_ipc_export", &first_look));
  const HeapOptions &options = first_look.heap->options();
  if (options.kind == Kind::kManaged)
    return fail(GMM_ERROR_INVALID_KIND,
                "gmm_ipc_export(%p): MANAGED memory cannot be shared; allocate VMM, HOST or DEVICE memory.", memory);
  const uint32_t routes = ipc_routes(core_, first_look.heap->options());
  if (routes == 0)
    return fail(GMM_ERROR_NOT_SUPPORTED,
                "gmm_ipc_export(%p): device %d cannot share %s memory; gmm_query() says which routes memory has.",
                memory, options.device.ordinal, kind_name(options.kind));
  IpcHandle handle;
  settings_.freeze(core_.log);
  GMM_TRY(broker_.start(&handle.exporter));
  LockedBlock locked;
  GMM_TRY(locked.find(core_, memory, "gmm_ipc_export"));
  const Block &block = locked.block;
  if (block.paused)
    return fail(GMM_ERROR_PAUSED, "gmm_ipc_export(%p): the block is paused; resume its tag first.", memory);
  LockGuard guard(mutex_);
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

// --- Imports of this context's own memory ---------------------------------------------------------------------------

Status IpcExports::import_own(const IpcHandle &handle, void **out) {
  const auto gone = [] {
    return fail(GMM_ERROR_IPC_PEER_GONE, "gmm_ipc_import: this process exported the memory and has freed it since.");
  };
  Export entry;
  {
    LockGuard guard(mutex_);
    const Export *found = find(handle.allocation);
    if (found == nullptr || !ipc_token_equal(found->token, handle.token)) return gone();
    entry = *found;
  }
  const uint64_t shift = handle.allocation_size - entry.size;  // of a legacy handle, see export_block()
  if (handle.allocation_size < entry.size || handle.offset < shift) return gone();
  void *address = reinterpret_cast<void *>(entry.base + handle.offset - shift);
  LockedBlock locked;
  {
    MessageGuard message;
    if (!locked.find(core_, address, "gmm_ipc_import").ok()) locked.block.base = 0;
  }
  const Block &block = locked.block;
  if (block.base != entry.block || first_extent(entry) == nullptr ||
      !block.heap->exported_as(reinterpret_cast<void *>(entry.block), entry.id))
    return gone();
  LockGuard guard(mutex_);
  Export *known = find(entry.id);
  if (known == nullptr) return gone();  // a free has begun
  ++known->own_imports;
  if (known->own_imports == 1) {
    if (!publish_own()) {
      --known->own_imports;
      return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the bookkeeping of an import.");
    }
    count_own(*known, true);
  }
  *out = address;
  return Status();
}

Status IpcExports::close_own(const void *memory) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  {
    LockGuard guard(mutex_);
    Export *found = std::find_if(exports_.begin(), exports_.end(), [&](const Export &entry) {
      return entry.own_imports != 0 && address - entry.block < entry.block_size;
    });
    if (found == exports_.end()) {
      Block block;
      GMM_TRY(find_block(core_, memory, "gmm_ipc_close", &block));
      return fail(GMM_ERROR_UNBALANCED, "gmm_ipc_close(%p): the memory is this process's own and was not imported.",
                  memory);
    }
    if (--found->own_imports != 0) return Status();
    (void)publish_own();  // there is one range less
    count_own(*found, false);
  }
  may_hold_blocks_.store(true, std::memory_order_release);
  if (catch_up()) broker_.request_catch_up();
  return Status();
}

Status IpcExports::check_own(const Range &range, const void *address, uint64_t size, const char *operation) const {
  const uint64_t left = range.base + range.size - reinterpret_cast<uint64_t>(address);
  if (size > left)
    return fail(GMM_ERROR_INVALID_SIZE,
                "%s(%p): %" PRIu64 " bytes reach past the imported block, which ends after %" PRIu64 " more.",
                operation, address, size, left);
  for (auto at = reinterpret_cast<uintptr_t>(address), end = at + size; at < end;) {
    const Extent *extent = core_.page_map.find_extent(reinterpret_cast<void *>(at));
    if (extent == nullptr) break;
    if (is_paused(*extent))
      return fail(GMM_ERROR_PAUSED, "%s(%p): the block is paused; resume its tag first.", operation, address);
    at = base_of(*extent) + size_of(*extent);
  }
  return Status();
}

// Counts the first own import on the extents, or the last one down. The extents are there: the block lives, or the
// count keeps them. With mutex_ held.
void IpcExports::count_own(const Export &entry, bool is_import) {
  for_each_extent(entry, [&](Extent &extent) {
    if (is_import) {
      extent.importers.fetch_add(1, std::memory_order_acq_rel);
      extent.own_imports.fetch_add(1, std::memory_order_acq_rel);
    } else {
      extent.own_imports.fetch_sub(1, std::memory_order_acq_rel);
      extent.importers.fetch_sub(1, std::memory_order_acq_rel);
    }
  });
}

// Gives readers the blocks with own imports. False: there is no host memory for more of them than before.
bool IpcExports::publish_own() {
  ranges_.clear();
  const auto count = static_cast<uint64_t>(
      std::count_if(exports_.begin(), exports_.end(), [](const Export &entry) { return entry.own_imports != 0; }));
  if (!ranges_.reserve(count) || !own_table_.reserve(count)) return false;
  for (const Export &entry : exports_)
    if (entry.own_imports != 0) ranges_.push_back_reserved(Range{entry.block, entry.block_size, entry.place});
  std::sort(ranges_.begin(), ranges_.end(), [](const Range &a, const Range &b) { return a.base < b.base; });
  own_table_.set(ranges_.data(), ranges_.size());
  return true;
}

void IpcExports::clear() {
  LockGuard guard(mutex_);
  for (Export &entry : exports_) {
    if (entry.own_imports == 0) continue;
    entry.own_imports = 0;
    count_own(entry, false);
  }
  (void)publish_own();
}

// --- Importers ------------------------------------------------------------------------------------------------------

Status IpcExports::grant(uint64_t id, const uint8_t token[kIpcTokenSize], IpcGrant *out) {
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
  // The broker answers all importers, so it waits for no pause.
  if (!heap->mutex.lock_unless_operation()) return fail(GMM_ERROR_BUSY, "The memory is being paused or resumed.");
  const auto grant_locked = [&]() -> Status {
    GMM_TRY(check_grant(entry, *heap));
    Status status;
    for_each_extent(entry, [&](Extent &extent) {
      if (!out->wants_fds || !status.ok()) return;
      int32_t fd = -1;
      status = open_extent(core_, *heap, extent, &fd);
      if (!status.ok()) return;
      out->sizes[out->extents] = extent.size.load(std::memory_order_relaxed);
      out->fds[out->extents++] = fd;
    });
    GMM_TRY(status);
    out->allocation_size = entry.size;
    out->generation = generation_of(entry);
    if (!out->counts) return Status();
    LockGuard guard(mutex_);
    Export *known = find(entry.id);
    if (known == nullptr) return fail(GMM_ERROR_IPC_PEER_GONE, "The memory is being freed.");
    known->granted_generation = out->generation;
    ++known->importers;
    for_each_extent(entry, [](Extent &extent) { extent.importers.fetch_add(1, std::memory_order_acq_rel); });
    return Status();
  };
  const Status status = grant_locked();
  heap->mutex.unlock();
  return status;
}

// With the heap's lock held.
Status IpcExports::check_grant(const Export &entry, Heap &heap) const {
  bool is_same_heap = true, is_mapped = true, is_pausing = false;
  const bool is_whole = for_each_extent(entry, [&](const Extent &extent) {
    const Region *region = region_of(&extent);
    is_same_heap = is_same_heap && heap_of(region) == &heap;
    is_mapped = is_mapped && extent.mapped;
    is_pausing = is_pausing || (region != nullptr && region->paused.load(std::memory_order_relaxed) != 0);
  });
  if (!is_whole || !is_same_heap || !heap.exported_as(reinterpret_cast<void *>(entry.block), entry.id))
    return fail(GMM_ERROR_IPC_PEER_GONE, "The memory was freed.");
  if (!is_mapped) return fail(GMM_ERROR_PAUSED, "The memory is paused.");
  if (is_pausing && heap.paused().refuses_importers()) return fail(GMM_ERROR_BUSY, "The memory is being paused.");
  return Status();
}

void IpcExports::importer_gone(uint64_t id) {
  Extent *first = nullptr;
  {
    LockGuard guard(mutex_);
    Export *entry = find(id);
    if (entry == nullptr) return;
    --entry->importers;
    first = first_extent(*entry);
    for_each_extent(*entry, [](Extent &extent) { extent.importers.fetch_sub(1, std::memory_order_acq_rel); });
  }
  const HeapVisit visit(heaps_, heap_of(region_of(first)));
  if (visit.heap != nullptr && !visit.heap->free_held_for_importers(false))
    may_hold_blocks_.store(true, std::memory_order_release);
}

bool IpcExports::catch_up() {
  if (!may_hold_blocks_.exchange(false, std::memory_order_acq_rel)) return false;
  const auto give_back = [this](Heap &heap) -> Status {
    if (!heap.free_held_for_importers(false)) may_hold_blocks_.store(true, std::memory_order_release);
    return Status();
  };
  heaps_.for_each(give_back, false).ignore();  // it never fails
  return may_hold_blocks_.load(std::memory_order_relaxed);
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
