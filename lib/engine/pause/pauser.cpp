// SPDX-License-Identifier: Apache-2.0
#include "engine/pause/pauser.h"

#include <cinttypes>

#include "engine/heap/block.h"

namespace gmm {

Status Pauser::wait_ready(const void *address, uint64_t size, uint64_t timeout_ms) {
  return ready.wait(core, address, size, timeout_ms);
}

void Pauser::query(gmm_tag tag, gmm_tag_info *out) {
  const auto add = [&](Heap &heap) -> Status {
    if (heap.options().tag != tag || heap.options().kind != Kind::kVmm) return Status();
    const HeapTotals totals = heap.totals();
    out->active_bytes += totals.held;
    out->paused_bytes += totals.paused;
    out->foreign_bytes += totals.foreign;
    LockGuard heap_guard(heap.mutex);
    for_each_extent(heap, [&](Extent &extent) {
      if (extent.kept == nullptr) return;
      const BackupTotals kept = BackupStore::totals(*extent.kept);
      if (!is_paused(extent)) {
        out->backup_active_bytes += kept.all();
        return;
      }
      out->backup_host_bytes += kept.arena + kept.pageable;
      out->backup_pinned_bytes += kept.arena;
      out->backup_file_bytes += kept.file;
      out->backup_zero_bytes += kept.zero;
    });
    return Status();
  };
  heaps.for_each(add).ignore();  // it never fails
  out->state = out->paused_bytes == 0   ? GMM_STATE_ACTIVE
               : out->active_bytes == 0 ? GMM_STATE_PAUSED
                                        : GMM_STATE_PARTLY_PAUSED;
}

template <typename Fn>
Status Pauser::in_block(const char *operation, const void *address, uint64_t size, Fn fn) {
  Block block;
  HeapLock lock;
  GMM_TRY(find_locked(core, address, operation, &block, &lock));
  block.heap->begin_operation();  // a file may be read, and one thread makes the view of a block
  GMM_TRY(check_range(block, address, operation, &size));
  return fn(block, size);
}

Status Pauser::read_kept(const char *operation, ByteRange range, char *out) {
  for (uintptr_t at = range.base; at < range.end();) {
    const Extent *extent = core.page_map.find_extent(at);
    const bool is_kept = extent != nullptr && extent->kept != nullptr;
    if (extent != nullptr && extent->state != ExtentState::kPaused && !(is_kept && extent->kept->is_retained))
      return fail(GMM_ERROR_INVALID_VALUE, "%s(0x%" PRIxPTR "): the memory is active; read it directly.", operation,
                  range.base);
    if (!is_kept)
      return fail(GMM_ERROR_INVALID_VALUE,
                  "%s(0x%" PRIxPTR
                  "): its contents were dropped; set the contents of its tag to HOST or FILE to keep them.",
                  operation, range.base);
    const uintptr_t stop = end_of(*extent) < range.end() ? end_of(*extent) : range.end();
    GMM_TRY(backups.read(*extent->kept, ByteRange{at, stop - at}, out + (at - range.base)));
    at = stop;
  }
  return Status();
}

Status Pauser::read(const void *address, uint64_t size, void *out) {
  return in_block("gmm_backup_read", address, size, [&](const Block &, uint64_t bytes) {
    return read_kept("gmm_backup_read", ByteRange{reinterpret_cast<uintptr_t>(address), bytes},
                     static_cast<char *>(out));
  });
}

Status Pauser::map(const void *address, uint64_t size, const void **out) {
  return in_block("gmm_backup_map", address, size, [&](const Block &block, uint64_t) -> Status {
    const ByteRange range{block.base, block.requested};
    bool is_stale = false;
    char *view = backups.views.find(range.base, &is_stale);
    if (view == nullptr || is_stale) {
      if (!is_stale) view = static_cast<char *>(core.allocator.allocate(range.size, HostAllocator::kMaxAlignment));
      if (view == nullptr)
        return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "gmm_backup_map(%p): no host memory for %" PRIu64 " bytes.", address,
                    range.size);
      Status status = read_kept("gmm_backup_map", range, view);
      if (status.ok() && is_stale) {
        backups.views.renew(range.base);
      } else if (status.ok() && !backups.views.add(range, view)) {
        status = fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for a view.");
      }
      if (!status.ok()) {
        if (!is_stale) core.allocator.deallocate(view, range.size);
        return status;
      }
    }
    *out = view + (reinterpret_cast<uintptr_t>(address) - range.base);
    return Status();
  });
}

template <typename Fn>
void Pauser::for_heaps(const gmm_tag *tags, uint32_t count, Fn fn) {
  PauseRequest named;
  named.tags = tags;
  named.count = count;
  const auto visit = [&](Heap &heap) -> Status {
    if (!named.names(heap)) return Status();
    LockGuard guard(heap.mutex);
    fn(heap);
    return Status();
  };
  heaps.for_each(visit).ignore();  // it never fails
}

Status Pauser::discard(const PauseRequest &request, uint64_t *bytes) {
  *bytes = 0;
  const TagClaim claim(claims, request.tags, request.count);
  for_heaps(request.tags, request.count, [&](Heap &heap) {
    for_each_extent(heap, [&](Extent &extent) {
      if (extent.kept == nullptr || !is_paused(extent)) return;
      const BackupTotals kept = BackupStore::totals(*extent.kept);
      tags.get(heap.options().tag)->epoch.fetch_add(1, std::memory_order_relaxed);
      *bytes += kept.all();
      backups.forget(extent);
    });
  });
  if (*bytes == 0) return unchanged("gmm_backup_discard(): these tags have no kept contents.");
  return Status();
}

void Pauser::forget_all() {
  const TagClaim claim(claims, nullptr, 0);
  for_heaps(nullptr, 0, [&](Heap &heap) {
    for_each_extent(heap, [&](Extent &extent) { backups.forget(extent); });
    heap.paused().set_retaining(false);
    gmm::give_up_freed(heap, ready);
  });
}

void Pauser::give_up_freed(Heap &heap) {
  if (heap.options().kind != Kind::kVmm || heap.fast.has_paused.load(std::memory_order_relaxed) == 0) return;
  LockGuard guard(heap.mutex);
  gmm::give_up_freed(heap, ready);
}

void Pauser::forget_retained(gmm_tag tag) {
  const TagClaim claim(claims, &tag, 1);
  for_heaps(&tag, 1, [&](Heap &heap) {
    for_each_extent(heap, [&](Extent &extent) {
      if (!is_paused(extent)) backups.forget(extent);
    });
    heap.paused().set_retaining(false);
  });
}

void Pauser::clear() {
  const TagClaim claim(claims, nullptr, 0);
  for_heaps(nullptr, 0, [&](Heap &heap) { for_each_extent(heap, [&](Extent &extent) { backups.forget(extent); }); });
  backups.clear();
}

}  // namespace gmm
