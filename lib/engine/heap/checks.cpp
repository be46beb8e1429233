// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/checks.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "base/memory_tool.h"
#include "engine/heap/block.h"

namespace gmm {
namespace {

bool processor_reaches(const Core &core, const HeapOptions &options) {
  const bool shares = (core.traits(options.device).capabilities & GMM_DEVICE_CAN_CONCURRENT_MANAGED) != 0;
  return options.capture == 0 &&
         (core.backend->is_cpu_memory() || options.kind == Kind::kHost || (options.kind == Kind::kManaged && shares));
}

// The offset of the first byte with another value; `size` where there is none.
uint64_t first_other(uintptr_t base, uint64_t size, uint8_t value) {
  const uint8_t *bytes = reinterpret_cast<const uint8_t *>(base);
  return static_cast<uint64_t>(std::find_if(bytes, bytes + size, [=](uint8_t b) { return b != value; }) - bytes);
}

}  // namespace

HeapChecks::HeapChecks(Heap &heap)
    : HeapPart(heap),
      heap_(heap),
      is_readable_(processor_reaches(core_, options_)),
      has_tool_(is_readable_ && is_on(kCheckTool)),
      quarantine_(core_.allocator) {}

// The driver must not be asked about a stream that has ended or is captured.
bool HeapChecks::is_idle(gmm_stream stream) const {
  if (core_.ended_streams.contains(stream) || core_.backend->may_be_capturing(options_.device, stream)) return false;
  const MessageGuard message_guard;
  bool idle = false;
  return core_.backend->stream_query(options_.device, stream, &idle).ok() && idle;
}

bool HeapChecks::is_paused_in(const CheckedBlock &block) const {
  return !core_.page_map.for_each_extent(block.base(), block.base() + block.bytes,
                                         [](const Extent &extent) { return !is_paused(extent); });
}

// --- Blocks ----------------------------------------------------------------------------------------------------------

bool HeapChecks::allocated(const void *memory, uint64_t size, gmm_stream stream) {
  if (!has_tool_ && red_zone() == 0) return true;
  const LockGuard guard(mutex_);
  Block found;
  if (!find_block(core_, memory, &found) || found.paused) return false;
  const bool idle = is_idle(stream);
  if (has_tool_) {
    memory_tool::begin_block(found.base, size);
    if (idle && !is_allowed_) memory_tool::forbid(found.base + size, found.reserved - size);
    return true;
  }
  void *zone = reinterpret_cast<void *>(found.base + size);
  const MessageGuard message_guard;
  if (idle || !core_.backend->fill(options_.device, stream, zone, kRedZoneByte, kRedZone).ok())
    std::memset(zone, kRedZoneByte, kRedZone);
  return true;
}

Status HeapChecks::check_red_zone(const CheckedBlock &block, gmm_stream stream) {
  if (has_tool_ || red_zone() == 0) return Status();
  const LockGuard guard(mutex_);
  if (is_paused_in(block) || !is_idle(stream)) return Status();
  const uintptr_t zone = block.base() + block.size;
  const uint64_t wrong = first_other(zone, kRedZone, kRedZoneByte);
  // A pause that dropped contents left zeros.
  if (wrong == kRedZone || (options_.kind == Kind::kVmm && first_other(zone, kRedZone, 0) == kRedZone)) return Status();
  const char *name = notes_.name_of(block.entry.block);
  const Status status =
      fail(GMM_ERROR_CORRUPT,
           "gmm_free(%p): the program wrote past the end of the block%s%s, which has %" PRIu64
           " bytes of %s memory of device %d with tag \"%s\": byte %" PRIu64
           " is the first wrong one. The block stays live. Run the program under valgrind or the address sanitizer to "
           "find the write.",
           block.entry.block, *name != '\0' ? " " : "", name, block.size, kind_name(options_.kind),
           options_.device.ordinal, options_.tag_name, block.size + wrong);
  core_.log.complain("%s", last_message());
  return status;
}

bool HeapChecks::freed(const CheckedBlock &block, gmm_stream stream, bool is_held) {
  const LockGuard guard(mutex_);
  const MessageGuard message_guard;
  const bool is_usable = !is_held && !is_paused_in(block);
  const bool is_done = is_usable && is_readable_ && is_idle(stream);
  if (has_tool_) {
    memory_tool::end_block(block.base(), block.bytes, is_done);
    has_allowed_free_ = has_allowed_free_ || !is_done;
  }
  const bool poisons = is_on(kCheckPoison) && !has_tool_ && is_usable && options_.capture == 0;
  if (poisons && is_done) {
    std::memset(block.entry.block, kPoisonByte, block.size);
  } else if (poisons && !is_readable_ && !core_.ended_streams.contains(stream) &&
             !core_.backend->may_be_capturing(options_.device, stream)) {
    core_.backend->fill(options_.device, stream, block.entry.block, kPoisonByte, block.size).ignore();
  }
  if (!is_usable || !may_wait_here(block, stream)) return false;
  if (!quarantine_.push_back(Quarantined{block, StreamKey{stream, 0}, poisons && is_done})) return false;
  quarantined_bytes_ += block.bytes;
  while (quarantined_bytes_ > kQuarantine) release_oldest();
  return true;
}

// --- Quarantine ------------------------------------------------------------------------------------------------------

// As in a thread cache: no paused memory, and no block with a driver allocation of its own. Only its own thread can put
// back what a per-thread stream freed.
bool HeapChecks::may_wait_here(const CheckedBlock &block, gmm_stream stream) const {
  return is_on(kCheckQuarantine) && options_.capture == 0 && block.bytes <= kQuarantine &&
         stream != GMM_STREAM_PER_THREAD && !core_.ended_streams.contains(stream) &&
         heap_.fast.has_paused.load(std::memory_order_relaxed) == 0 &&
         !core_.page_map.find(block.entry.block)->region->dedicated;
}

void HeapChecks::release_oldest() {
  const Quarantined oldest = quarantine_[first_++];
  quarantined_bytes_ -= oldest.block.bytes;
  if (first_ * 2 > quarantine_.size()) {
    std::copy(quarantine_.begin() + first_, quarantine_.end(), quarantine_.begin());
    quarantine_.truncate(quarantine_.size() - first_);
    first_ = 0;
  }
  if (oldest.is_poisoned) find_late_write(oldest.block);
  heap_.put_back_one(oldest.block.entry, heap_.bit_of_free(oldest.key));
}

void HeapChecks::find_late_write(const CheckedBlock &block) const {
  const uint64_t wrong = first_other(block.base(), block.size, kPoisonByte);
  if (wrong == block.size) return;
  core_.log.complain(
      "The program wrote to a block after its free: byte %" PRIu64 " of %p, which had %" PRIu64
      " bytes of %s memory of device %d with tag \"%s\". Run it under valgrind or the address sanitizer to find the "
      "write.",
      wrong, block.entry.block, block.size, kind_name(options_.kind), options_.device.ordinal, options_.tag_name);
}

void HeapChecks::drain() {
  if (!is_on(kCheckQuarantine)) return;
  const LockGuard guard(mutex_);
  while (first_ < quarantine_.size()) release_oldest();
}

// --- Memory of the heap ----------------------------------------------------------------------------------------------

void HeapChecks::added(ByteRange range) {
  if (has_tool_ && !is_allowed_) memory_tool::forbid(range.base, range.size);
}

void HeapChecks::removed(ByteRange range) {
  if (has_tool_) memory_tool::allow(range.base, range.size);
}

void HeapChecks::begin_operation() {
  if (!has_tool_) return;
  is_allowed_ = true;
  heap_.for_each_region([](Region &region) {
    for (Extent *extent = region.extents.front(); extent != nullptr; extent = region.extents.next(extent))
      memory_tool::allow(base_of(*extent), size_of(*extent));
  });
}

void HeapChecks::end_operation() {
  if (!is_allowed_) return;  // a free that waited
  is_allowed_ = false;
  if (!has_allowed_free_) forbid_free_memory();
}

// fn(block, its bytes, its size or 0)
template <typename Fn>
static void for_each_block(Span &span, Fn fn) {
  if (!span.live()) return;
  const uint32_t count = span.is(SpanState::kLarge) ? 1 : span.block_count.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < count; ++i)
    fn(span.block(i), span.block_bytes(), span.slot(i).load(std::memory_order_relaxed) & ~kUsedElsewhere);
}

void HeapChecks::end_blocks() {
  if (!has_tool_) return;
  heap_.for_each_region([](Region &region) {
    for_each_span(region, [](Span &span) {
      for_each_block(span, [](uintptr_t block, uint64_t bytes, uint64_t size) {
        if (size != 0) memory_tool::end_block(block, bytes, true);
      });
    });
  });
}

// Never a live block, which another thread may be using. An import of the context's own export has the memory of a
// freed block at its address.
void HeapChecks::forbid_free_memory() {
  heap_.for_each_region([this](Region &region) {
    for_each_span(region, [this](Span &span) {
      const Extent *extent = core_.page_map.find_extent(span.begin());
      if (extent == nullptr || extent->own_imports.load(std::memory_order_relaxed) != 0) return;
      if (span.is(SpanState::kFree)) memory_tool::forbid(span.begin(), span.bytes());
      for_each_block(span, [](uintptr_t block, uint64_t bytes, uint64_t size) {
        memory_tool::forbid(block + size, bytes - size);
      });
    });
  });
}

}  // namespace gmm
