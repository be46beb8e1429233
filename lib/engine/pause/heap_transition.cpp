// SPDX-License-Identifier: Apache-2.0
#include "engine/pause/heap_transition.h"

#include <algorithm>
#include <cinttypes>

#include "base/process.h"
#include "engine/heap/block.h"

namespace gmm {

uint64_t kept_bytes(Heap &heap) {
  if (!heap.mutex.lock_unless_operation()) return UINT64_MAX;
  uint64_t sum = 0;
  for_each_extent(heap, [&](Extent &extent) {
    if (extent.kept != nullptr) sum += BackupStore::totals(*extent.kept).all();
  });
  heap.mutex.unlock();
  return sum;
}

void ReadySignal::announce(Extent &extent) {
  LockGuard guard(mutex);
  extent.state.store(ExtentState::kRestored, std::memory_order_release);
  Region &region = *region_of(&extent);
  if (region.elastic) region.active.fetch_add(size_of(extent), std::memory_order_relaxed);
  restored_.notify_all();
}

Status ReadySignal::wait(const Core &core, const void *address, uint64_t size, uint64_t timeout_ms) {
  constexpr uint64_t kPollMs = 50;  // another thread may free the memory, which notifies nobody
  const uintptr_t begin = reinterpret_cast<uintptr_t>(address), end = begin + size;
  const uint64_t start = monotonic_ms();
  LockGuard guard(mutex);
  for (;;) {
    bool paused = false;
    const auto look = [&](const Extent &extent) {
      paused = paused || is_paused(extent) || region_of(&extent) == nullptr;  // it ended just now
      return true;
    };
    const bool has_gap = !core.page_map.for_each_extent(begin, end, look);
    paused = paused || has_gap;
    Block block;
    if (has_gap &&
        (!find_block(core, address, &block) || block.elastic == nullptr || end > block.base + block.reserved))
      return fail(GMM_ERROR_UNKNOWN_POINTER,
                  "gmm_resume_wait(%p, %" PRIu64 "): the range is not memory of this context, or was freed.", address,
                  size);
    if (!paused) {
      core.page_map.for_each_extent(begin, end, [](Extent &extent) {
        if (extent.state == ExtentState::kRestored) extent.state = ExtentState::kPromised;
        return true;
      });
      return Status();
    }
    const uint64_t past = monotonic_ms() - start;
    if (past >= timeout_ms)
      return fail(GMM_ERROR_NOT_READY, "gmm_resume_wait(%p): the memory is still paused.", address);
    restored_.wait_for(mutex, timeout_ms - past < kPollMs ? timeout_ms - past : kPollMs);
  }
}

void give_up_freed(Heap &heap, ReadySignal &ready) {
  {
    // gmm_resume_wait() must not take an extent that ends here for one that is ready.
    LockGuard ready_guard(ready.mutex);
    heap.for_each_region([&](Region &region) {
      if (is_detached(region) && heap.paused().drop(region)) heap.paused().settle(region);
    });
  }
  heap.paused().end_empty_regions();
}

Status HeapTransition::check_capture(const char *operation) {
  // A stream that another thread forgets must not be asked about, so the lock is no operation's for this question.
  const bool has_operation = heap_.mutex.is_operation_of_holder();
  if (has_operation) heap_.mutex.end_operation();
  const bool capturing = heap_.any_capturing();
  if (has_operation) heap_.begin_operation();
  if (!capturing) return Status();
  return fail(GMM_ERROR_CAPTURING, "%s: a stream that uses tag \"%s\" is being captured; end the capture first.",
              operation, tag().name);
}

void HeapTransition::attach_active() {
  // After the change of a part it may go on for nothing, until the next change of the tag.
  bool retaining = request_.has_ranges() && heap_.paused().is_retaining();
  const auto look = [&](Extent &extent) { retaining = retaining || (!is_paused(extent) && extent.kept != nullptr); };
  if (request_.has_ranges())
    for (const PlannedExtent &planned : extents_) look(*planned.extent);
  else
    for_each_extent(heap_, look);
  heap_.paused().set_retaining(retaining);
  heap_.paused().keep_detached(false);
  heap_.for_each_region([&](Region &region) {
    if (region.elastic && !request_.has_ranges()) Extents::count_active(region);
    heap_.paused().settle(region);
  });
}

void HeapTransition::leave_gap(Extent &extent) {
  heap_.paused().uncount(extent);
  // gmm_resume_wait() must not take an extent that ends here for one that is ready.
  LockGuard ready_guard(context_.ready.mutex);
  heap_.paused().end(extent);
}

void HeapTransition::forget_plan() {
  extents_.clear();
  parts_.clear();
  bytes_ = 0;
}

void HeapTransition::begin_step(TransitionProgress &progress, bool tells) {
  progress_ = &progress;
  tells_ = tells;
  copied_ = 0;
}

Status HeapTransition::report(uint64_t bytes) {
  progress_->add(bytes - copied_);
  copied_ = bytes;
  if (progress_->is_stopped()) return fail(GMM_ERROR_CANCELLED, "The copies of another device failed.");
  return tells_ ? progress_->tell() : Status();
}

BackupSteps HeapTransition::backup_steps() {
  BackupSteps steps;
  steps.user = this;
  steps.progress = [](void *self, uint64_t bytes) { return static_cast<HeapTransition *>(self)->report(bytes); };
  return steps;
}

void HeapTransition::sort_planned() {
  std::sort(extents_.begin(), extents_.end(),
            [](const PlannedExtent &a, const PlannedExtent &b) { return base_of(*a.extent) < base_of(*b.extent); });
}

Status HeapTransition::plan_live_ranges() {
  ranges_.clear();
  blocks_.clear();
  parts_.clear();
  bytes_ = 0;
  // The contents of other extents are dropped, or still in their memory.
  const auto is_kept = [](const PlannedExtent &each) {
    return each.extent->kept != nullptr && each.before != ExtentState::kUnmapped;
  };
  if (std::none_of(extents_.begin(), extents_.end(), is_kept)) return Status();
  const bool separates = context_.backups.names_files();
  Vector<ByteRange> live(context_.core.allocator);  // blocks; neighbours that may share a chunk as one range
  bool last_may_share = false;
  bool planned = parts_.reserve(extents_.size());
  heap_.for_each_region([&](Region &region) {
    for_each_span(region, [&](Span &span) {
      // A large block whose slot is 0 is on its way back to the heap: nobody wants its contents, unless this context
      // has imported it.
      const auto is_imported = [&] {
        const Extent *extent = context_.core.page_map.find_extent(span.begin());
        return extent != nullptr && extent->own_imports.load(std::memory_order_relaxed) != 0;
      };
      const bool wanted =
          span.is(SpanState::kSlab) ||
          (span.is(SpanState::kLarge) && (span.slot(0).load(std::memory_order_relaxed) != 0 || is_imported()));
      if (!wanted || !planned) return;
      // A free ends the chunks of its block. Those of a block of this size have no other memory; copies of smaller
      // ones would be many.
      constexpr uint64_t kOwnChunks = uint64_t{2} << 20;
      const bool may_share = span.is(SpanState::kSlab) || (!separates && span.bytes() < kOwnChunks);
      if (may_share && last_may_share && live.back().end() == span.begin())
        live.back().size += span.bytes();
      else
        planned = live.push_back(ByteRange{span.begin(), span.bytes()});
      last_may_share = may_share;
    });
  });
  std::sort(live.begin(), live.end(), [](const ByteRange &a, const ByteRange &b) { return a.base < b.base; });
  // The ranges are cut at the borders of extents. A live range touches one extent more than it has borders inside it.
  // They are reserved, as the parts point into them.
  planned = planned && ranges_.reserve(live.size() + extents_.size()) &&
            (!separates || blocks_.reserve(live.size() + extents_.size()));
  if (!planned) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to plan a pause or resume.");
  uint64_t at = 0;
  for (const PlannedExtent &each : extents_) {
    const uintptr_t begin = base_of(*each.extent), end = end_of(*each.extent);
    const uint64_t first = ranges_.size();
    while (at < live.size() && live[at].end() <= begin) ++at;
    for (uint64_t i = at; is_kept(each) && i < live.size() && live[i].base < end; ++i) {
      const uintptr_t from = std::max(live[i].base, begin), to = std::min(live[i].end(), end);
      ranges_.push_back_reserved(ByteRange{from, to - from});
      if (separates) blocks_.push_back_reserved(live[i].base);
      bytes_ += to - from;
    }
    parts_.push_back_reserved(BackupPart{ranges_.data() + first, ranges_.size() - first, each.extent->kept,
                                         separates ? blocks_.data() + first : nullptr});
  }
  return Status();
}

bool HeapTransition::release_pages(Extent &extent) {
  if (context_.core.backend->release(extent.handle).ok()) {
    extent.handle = PhysicalHandle{};
    return true;
  }
  context_.core.log.write(
      LogLevel::kError, "A handle could not be released; the next pause or resume goes on with it: %s", last_message());
  return false;
}

Status HeapTransition::unmap(uint64_t first, uint64_t count) {
  const bool takes_runs = context_.core.backend->unmaps_runs();
  for (uint64_t i = first, end = first + count, next; i < end; i = next) {
    const Extent &start = *extents_[i].extent;
    uint64_t bytes = size_of(start);
    for (next = i + 1; takes_runs && next < end && base_of(*extents_[next].extent) == base_of(start) + bytes; ++next)
      bytes += size_of(*extents_[next].extent);
    const auto set_state = [&](ExtentState state) {
      for (uint64_t k = i; k < next; ++k) extents_[k].extent->state.store(state, std::memory_order_release);
    };
    set_state(ExtentState::kUnmapped);
    if (Status status = context_.core.backend->unmap(address_of(start), bytes); !status.ok()) {
      set_state(ExtentState::kActive);
      return status;
    }
    for (uint64_t k = i; k < next; ++k) extents_[k].extent->mapped = false;
  }
  return Status();
}

Status HeapTransition::map(uint64_t first, uint64_t count) {
  Backend &backend = *context_.core.backend;
  const Device device = heap_.options().device;
  const auto owner_of = [&](const Extent &extent) {
    return extent.location.load(std::memory_order_relaxed).is_host() ? kHostLocation : device;
  };
  const auto peers_of = [](const Extent &extent) { return extent.region.load(std::memory_order_relaxed)->peers; };
  Status status;
  uint64_t end = first + count, next = first;
  for (uint64_t i = first; i < end && status.ok(); i = next) {
    Extent &start = *extents_[i].extent;
    next = i + 1;
    if (start.mapped) continue;
    uint64_t bytes = 0;
    for (next = i; next < end; ++next) {
      Extent &extent = *extents_[next].extent;
      if (extent.mapped || base_of(extent) != base_of(start) + bytes || !(owner_of(extent) == owner_of(start)) ||
          peers_of(extent) != peers_of(start))
        break;
      status = context_.core.deferred_release.end_mappings(backend, address_of(extent), size_of(extent));
      if (status.ok()) status = backend.map(address_of(extent), size_of(extent), extent.handle);
      if (!status.ok()) break;
      bytes += size_of(extent);
    }
    if (status.ok()) status = backend.set_access(address_of(start), bytes, owner_of(start), peers_of(start));
    if (status.ok()) {
      for (uint64_t k = i; k < next; ++k) extents_[k].extent->mapped = true;
    } else {
      for (uint64_t k = i; bytes != 0; bytes -= size_of(*extents_[k++].extent))
        context_.core.deferred_release.unmap(backend, address_of(*extents_[k].extent), size_of(*extents_[k].extent));
    }
  }
  return status;
}

}  // namespace gmm
