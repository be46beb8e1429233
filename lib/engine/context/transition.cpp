// SPDX-License-Identifier: Apache-2.0
#include "engine/context/transition.h"

#include "engine/heap/block.h"
#include "engine/range/residency.h"

namespace gmm {
namespace {

// The second failure's cause is the first one's, so the first message stays.
// operation(bool is_last). Watchers hear of a failure by the last try, which comes for them even if a trim gave nothing
// back.
template <typename Fn>
Status trim_and_retry(Context &context, Fn operation) {
  const Status status = operation(false);
  if (status.code() != GMM_ERROR_OUT_OF_MEMORY && status.code() != GMM_ERROR_LIMIT_EXCEEDED) return status;
  MessageGuard message_guard;
  gmm_scope_desc everything = {};
  uint64_t released = 0;
  const bool has_trimmed = context.trim(everything, &released).ok() && released != 0;
  if (!has_trimmed && !context.watchers.any()) return status;
  const Status again = operation(true);
  return again.ok() ? again : status;
}

}  // namespace

Status pause(Context &context, const PauseRequest &request, uint64_t *bytes) {
  const Status status = context.pauser.pause(request, bytes);
  if (status.ok() && (request.flags & GMM_PAUSE_FORCE) != 0) context.ipc.exports.revoke_paused();
  if (status.ok() && context.trace.running()) context.trace.paused(request.tags, request.count, *bytes);
  return status;
}

Status resume(Context &context, const PauseRequest &request, uint64_t *bytes) {
  const Status status =
      trim_and_retry(context, [&](bool is_last) { return context.pauser.resume(request, is_last, bytes); });
  if (status.ok() && context.trace.running()) context.trace.resumed(request.tags, request.count, *bytes);
  return status;
}

Status resume_range(Context &context, ByteRange range, uint64_t *bytes) {
  const void *address = reinterpret_cast<void *>(range.base);
  const Status status = trim_and_retry(
      context, [&](bool is_last) { return context.pauser.resume_range(address, range.size, is_last, bytes); });
  Block block;
  if (status.ok() && context.trace.running() && find_block(context.core, address, &block)) {
    const gmm_tag tag = block.heap->options().tag;
    context.trace.resumed(&tag, 1, *bytes);
  }
  return status;
}

Status move(Context &context, void *memory, Device location, uint32_t flags, gmm_stream stream) {
  Core &core = context.core;
  Block block;
  if (!context.watchers.any() || !find_block(core, memory, &block) || block.heap->options().kind != Kind::kVmm)
    return move(core, memory, location, flags, stream);
  const gmm_tag tag = block.heap->options().tag;
  const Device device = block.heap->options().device;
  const TagClaim claim(context.pauser.claims(), &tag, 1);
  ByteRange range;
  const Status may_begin = check_move(core, memory, location, stream, &range);
  if (may_begin.code() != GMM_OK) return may_begin;
  WatchCalls calls(context.watchers, "gmm_move()");
  calls.select([&](const WatchTarget &target) {
    return target.is_range() ? target.range.base < range.end() && range.base < target.range.end() : target.tag == tag;
  });
  Status status = calls.prepare();
  if (status.ok() && calls.any()) status = core.backend->synchronize(device);
  if (status.ok()) calls.losing();
  if (status.ok()) status = move(core, memory, location, flags, stream);
  calls.end(status, true);
  return status;
}

Status compact(Context &context, const gmm_scope_desc &scope, const gmm_compact_desc &desc, gmm_compact_info *out) {
  if ((desc.flags & GMM_COMPACT_LIVE) == 0 || !context.watchers.any()) return context.compact(scope, desc, out);
  const bool has_tag = desc.heap != nullptr || (scope.flags & GMM_SCOPE_TAG) != 0;
  const gmm_tag tag = desc.heap != nullptr ? desc.heap->options().tag : scope.tag;
  const TagClaim claim(context.pauser.claims(), &tag, has_tag ? 1 : 0);
  WatchCalls calls(context.watchers, "gmm_compact()");
  calls.select([&](const WatchTarget &target) {
    Heap *of_range = nullptr;
    if (target.is_range()) {
      const Extent *extent = context.core.page_map.find_extent(reinterpret_cast<void *>(target.range.base));
      const Region *region = extent == nullptr ? nullptr : extent->region.load(std::memory_order_acquire);
      of_range = region == nullptr ? nullptr : region->heap.load(std::memory_order_relaxed);
      if (of_range == nullptr) return false;
    }
    bool touches = false;
    const auto compare = [&](Heap &heap) -> Status {
      if (heap.options().kind == Kind::kVmm && (desc.heap == nullptr || &heap == desc.heap))
        touches = touches || (target.is_range() ? &heap == of_range : heap.options().tag == target.tag);
      return Status();
    };
    context.heaps.for_each(scope, compare, false).ignore();  // it never fails
    return touches;
  });
  Status status = calls.prepare();
  for (uint32_t i = 0; i < context.device_count && status.ok() && calls.any(); ++i)
    status = context.core.backend->synchronize(Device{static_cast<int32_t>(i)});
  if (status.ok()) calls.losing();
  if (status.ok()) status = context.compact(scope, desc, out);
  calls.end(status, true);
  return status;
}

}  // namespace gmm
