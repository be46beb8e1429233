// SPDX-License-Identifier: Apache-2.0
// The operations of a context that take pages from memory or give it some. A module makes the transition. This file has
// what spans other modules: the trim and retry when memory is short, revoked exports, the trace, and the watchers of a
// move or compaction.
#include <algorithm>

#include "base/nvtx.h"
#include "base/process.h"
#include "engine/context/context.h"
#include "engine/heap/block.h"
#include "engine/range/residency.h"

namespace gmm {

void Context::trace_held() {
  const auto record = [&](Heap &heap) -> Status {
    trace_.held(heap);
    return Status();
  };
  heaps_.for_each(record, false).ignore();
}

Status Context::pause(const PauseRequest &asked, uint64_t *bytes) {
  PauseRequest request = asked;
  if (request.caller == 0) request.caller = core_.caller();
  Vector<gmm_tag> tags(core_.allocator);
  GMM_TRY(pauser_.add_tags(true, &request, &tags));
  const auto is_named = [&](const Heap &heap) { return request.names(heap); };
  const NvtxRange range("gmm pause", [&] { return sum_of(&HeapTotals::held, is_named); });
  const uint64_t began = trace_.time(), began_ns = monotonic_ns();
  const Status status = pauser_.pause(request, bytes);
  if (status.code() == GMM_OK) metrics_.pauses.add_since(began_ns);
  if (status.ok() && (request.flags & GMM_PAUSE_FORCE) != 0) ipc_.exports.revoke_paused();
  return traced(status, [&] { trace_.tags_changed(TRACE_PAUSE, request.tags, request.count, *bytes, began); });
}

// The second failure's cause is the first one's, so the first message stays.
// resume(bool is_last). Watchers hear of a failure by the last try, which comes for them even if a trim gave nothing
// back.
template <typename Fn>
Status Context::resume_with_trim(Fn resume) {
  const uint64_t began = monotonic_ns();
  const auto counted = [&](Status status) {
    if (status.code() == GMM_OK) metrics_.resumes.add_since(began);
    return status;
  };
  const Status status = counted(resume(false));
  if (status.code() != GMM_ERROR_OUT_OF_MEMORY && status.code() != GMM_ERROR_LIMIT_EXCEEDED) return status;
  MessageGuard message_guard;
  gmm_scope_desc everything = {};
  uint64_t released = 0;
  const bool has_trimmed = trim(everything, &released).ok() && released != 0;
  if (!has_trimmed && !watchers_.any()) return status;
  const Status again = counted(resume(true));
  return again.ok() ? again : status;
}

Status Context::resume(const PauseRequest &asked, uint64_t *bytes) {
  PauseRequest request = asked;
  Vector<gmm_tag> tags(core_.allocator);
  GMM_TRY(pauser_.add_tags(false, &request, &tags));
  const auto is_named = [&](const Heap &heap) { return request.names(heap); };
  const NvtxRange range("gmm resume", [&] { return sum_of(&HeapTotals::paused, is_named); });
  const uint64_t began = trace_.time();
  const Status status = resume_with_trim([&](bool is_last) { return pauser_.resume(request, is_last, bytes); });
  return traced(status, [&] { trace_.tags_changed(TRACE_RESUME, request.tags, request.count, *bytes, began); });
}

Status Context::move(void *memory, Device location, uint32_t flags, gmm_stream stream) {
  const NvtxRange range("gmm move", [&] {
    Block block;
    return find_block(core_, memory, &block) ? block.requested : 0;
  });
  const uint64_t began = trace_.time();
  return traced(move_watched(memory, location, flags, stream), [&] {
    Block block;
    if (find_block(core_, memory, &block))
      trace_.moved(reinterpret_cast<const void *>(block.base), block.requested, location, began);
  });
}

Status Context::move_watched(void *memory, Device location, uint32_t flags, gmm_stream stream) {
  Block block;
  if (!watchers_.any() || !find_block(core_, memory, &block) || block.heap->options().kind != Kind::kVmm)
    return gmm::move(core_, memory, location, flags, stream);
  const gmm_tag tag = block.heap->options().tag;
  const Device device = block.heap->options().device;
  const TagClaim claim(pauser_.claims, &tag, 1);
  ByteRange range;
  const Status may_begin = check_move(core_, memory, location, stream, &range);
  if (may_begin.code() != GMM_OK) return may_begin;
  WatchCalls calls(watchers_, "gmm_move()");
  calls.select([&](const WatchTarget &target) {
    return target.is_range() ? target.range.base < range.end() && range.base < target.range.end() : target.tag == tag;
  });
  Status status = calls.prepare();
  if (status.ok() && calls.any()) status = core_.backend->synchronize(device);
  if (status.ok()) calls.losing();
  if (status.ok()) status = gmm::move(core_, memory, location, flags, stream);
  calls.end(status, true);
  return status;
}

Status Context::compact_heaps(const gmm_scope_desc &scope, const gmm_compact_desc &desc, gmm_compact_info *out) {
  Compaction work;
  work.is_live = (desc.flags & GMM_COMPACT_LIVE) != 0;
  if (desc.max_bytes != 0) work.bytes_left = desc.max_bytes;
  if (desc.max_us != 0) {
    const uint64_t now = monotonic_us();
    work.deadline = desc.max_us < UINT64_MAX - now ? now + desc.max_us : UINT64_MAX;
  }
  // A failure of one heap does not keep the others from it.
  Status first;
  const auto compact = [&](Heap &heap) -> Status {
    if (heap.options().kind != Kind::kVmm || (desc.heap != nullptr && &heap != desc.heap)) return Status();
    keep_first(&first, [&] { return heap.compact(&work); });
    out->largest_free = std::max(out->largest_free, heap.largest_free());
    return Status();
  };
  heaps_.for_each(scope, compact, false).ignore();
  out->moved_bytes = work.moved;
  out->released_bytes = work.released;
  return first;
}

Status Context::compact_watched(const gmm_scope_desc &scope, const gmm_compact_desc &desc, gmm_compact_info *out) {
  const bool has_tag = desc.heap != nullptr || (scope.flags & GMM_SCOPE_TAG) != 0;
  const gmm_tag tag = desc.heap != nullptr ? desc.heap->options().tag : scope.tag;
  const TagClaim claim(pauser_.claims, &tag, has_tag ? 1 : 0);
  WatchCalls calls(watchers_, "gmm_compact()");
  calls.select([&](const WatchTarget &target) {
    Heap *of_range = nullptr;
    if (target.is_range()) {
      of_range = heap_of(region_of(core_.page_map.find_extent(target.range.base)));
      if (of_range == nullptr) return false;
    }
    bool touches = false;
    const auto compare = [&](Heap &heap) -> Status {
      if (heap.options().kind == Kind::kVmm && (desc.heap == nullptr || &heap == desc.heap))
        touches = touches || (target.is_range() ? &heap == of_range : heap.options().tag == target.tag);
      return Status();
    };
    heaps_.for_each(scope, compare, false).ignore();  // it never fails
    return touches;
  });
  Status status = calls.prepare();
  for (uint32_t i = 0; i < device_count_ && status.ok() && calls.any(); ++i)
    status = core_.backend->synchronize(Device{static_cast<int32_t>(i)});
  if (status.ok()) calls.losing();
  if (status.ok()) status = compact_heaps(scope, desc, out);
  calls.end(status, true);
  return status;
}

Status Context::compact(const gmm_scope_desc &scope, const gmm_compact_desc &desc, gmm_compact_info *out) {
  const auto is_in_scope = [&](const Heap &heap) { return HeapSet::in_scope(heap, scope); };
  const NvtxRange range("gmm compact", [&] { return sum_of(&HeapTotals::free_bytes, is_in_scope); });
  const uint64_t began = trace_.time();
  Status status;
  // Inside gmm_defer_begin() nothing goes back to the driver, not even for a moment.
  if (core_.defer_depth.load(std::memory_order_acquire) == 0) {
    const bool is_watched = (desc.flags & GMM_COMPACT_LIVE) != 0 && watchers_.any();
    status = is_watched ? compact_watched(scope, desc, out) : compact_heaps(scope, desc, out);
  }
  if (status.ok() && out->moved_bytes + out->released_bytes == 0)
    return unchanged("gmm_compact: there was nothing to move or to give back.");
  return traced(status, [&] { trace_.compacted(out->moved_bytes, out->released_bytes, began); });
}

}  // namespace gmm
