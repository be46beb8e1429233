// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/checks.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "base/memory_tool.h"
#include "base/nvtx.h"
#include "engine/heap/block.h"

namespace gmm {
namespace {

bool processor_reaches(const Core &core, const HeapOptions &options) {
  const bool shares = (core.traits(options.device).capabilities & GMM_DEVICE_CAN_CONCURRENT_MANAGED) != 0;
  return core.backend->is_cpu_memory() || options.kind == Kind::kHost || (options.kind == Kind::kManaged && shares);
}

// The offset of the first byte with another value; `size` where there is none.
uint64_t first_other(uintptr_t base, uint64_t size, uint8_t value) {
  const uint8_t *bytes = reinterpret_cast<const uint8_t *>(base);
  return static_cast<uint64_t>(std::find_if(bytes, bytes + size, [=](uint8_t b) { return b != value; }) - bytes);
}

auto of_block(uintptr_t block) {
  return [block](const auto &each) { return each.block == block; };
}

constexpr char kPastEnd[] = "past the end of";

}  // namespace

HeapChecks::HeapChecks(Heap &heap)
    : HeapPart(heap),
      heap_(heap),
      is_readable_(processor_reaches(core_, options_)),
      has_tool_(is_readable_ && options_.capture == 0 && is_on(kCheckTool) && memory_tool::is_attached()),
      has_gpu_tool_(!is_readable_ && options_.capture == 0 && is_on(kCheckTool) && options_.kind == Kind::kDevice &&
                    has_nvtx_memory_tool()),
      quarantine_(core_.allocator),
      red_zones_(core_.allocator),
      slots_(core_),
      looks_(core_.allocator),
      told_(core_.allocator) {}

HeapChecks::~HeapChecks() {
  if (looks_ended_ != looks_begun_) slots_.abandon();
}

// The driver must not be asked about a stream that has ended or is captured.
bool HeapChecks::is_idle(gmm_stream stream) const {
  const MessageGuard message_guard;
  bool idle = false;
  return may_queue_on(stream) && core_.backend->stream_query(options_.device, stream, &idle).ok() && idle;
}

// Of work in the middle of the program's.
bool HeapChecks::may_queue_on(gmm_stream stream) const {
  bool capturing = false;
  return !core_.ended_streams.contains(stream) &&
         core_.backend->stream_is_capturing(options_.device, stream, &capturing).ok() && !capturing;
}

bool HeapChecks::is_paused_in(const CheckedBlock &block) const {
  return !core_.page_map.for_each_extent(block.base(), block.base() + block.bytes,
                                         [](const Extent &extent) { return !is_paused(extent); });
}

// --- Blocks ----------------------------------------------------------------------------------------------------------

bool HeapChecks::allocated(const void *memory, uint64_t size, gmm_stream stream) {
  if (!has_tool_ && !has_gpu_tool_ && red_zone() == 0) return true;
  const LockGuard guard(mutex_);
  const uintptr_t block = reinterpret_cast<uintptr_t>(memory);
  if (has_gpu_tool_) {
    if (void *allocation = allocation_of(block); allocation != nullptr) begin_nvtx_block(allocation, block, size);
    return true;
  }
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
  const bool by_processor = is_readable_ && idle;
  if (!red_zones_.reserve() || (!by_processor && !may_queue_on(stream))) return true;
  if (by_processor)
    std::memset(zone, kRedZoneByte, kRedZone);
  else if (!core_.backend->fill(options_.device, stream, zone, kRedZoneByte, kRedZone).ok())
    return true;
  red_zones_.add(found.base, RedZone{found.base, by_processor ? 0 : heap_.bit_of_free(key_of_caller(stream))});
  return true;
}

Status HeapChecks::begin_free(CheckedBlock *block, gmm_stream stream) {
  block->note = {};
  block->has_red_zone = false;
  if (has_tool_) return Status();
  const LockGuard guard(mutex_);
  block->note = notes_.of(block->entry.block);
  if (red_zone() == 0 || is_paused_in(*block)) return Status();
  const RedZone *zone = red_zones_.find(block->base(), of_block(block->base()));
  {
    const MessageGuard message_guard;
    block->has_red_zone = zone != nullptr && streams_.put_behind(key_of_caller(stream), zone->streams).ok();
  }
  if (!block->has_red_zone || !is_readable_ || !is_idle(stream)) return Status();
  const uint64_t wrong = first_other(block->base() + block->size, kRedZone, kRedZoneByte);
  if (wrong == kRedZone) return Status();
  return report(*block, kPastEnd, block->size + wrong, "gmm_free() leaves the block live. ");
}

bool HeapChecks::freed(const CheckedBlock &block, gmm_stream stream, bool is_held) {
  const LockGuard guard(mutex_);
  const MessageGuard message_guard;
  const bool is_usable = !is_held && !is_paused_in(block) && options_.capture == 0;
  const bool is_done = is_usable && is_readable_ && is_idle(stream);
  if (has_tool_) {
    memory_tool::end_block(block.base(), block.bytes, is_done);
    has_allowed_free_ = has_allowed_free_ || !is_done;
  }
  if (has_gpu_tool_) tell_free(block, stream);
  if (red_zones_.find(block.base(), of_block(block.base())) != nullptr)
    red_zones_.remove(block.base(), of_block(block.base()));
  if (!is_usable) return false;
  Quarantined freed{block, key_of_caller(stream), false};
  const bool poisons = is_on(kCheckPoison) && !has_tool_ && !has_gpu_tool_;
  if (poisons && is_done) {
    std::memset(block.entry.block, kPoisonByte, block.size);
    freed.is_poisoned = true;
  } else if (poisons && !is_readable_ && may_queue_on(stream)) {
    freed.is_poisoned = core_.backend->fill(options_.device, stream, block.entry.block, kPoisonByte, block.size).ok();
  }
  if (!may_wait_here(block, stream) || !quarantine_.push_back(freed)) {
    freed.is_poisoned = false;  // what comes after the free is the next block's
    if (!is_readable_) begin_look(freed);
    return false;
  }
  quarantined_bytes_ += block.bytes;
  while (quarantined_bytes_ > kQuarantine) release_oldest();
  return true;
}

Status HeapChecks::report(const CheckedBlock &block, const char *where, uint64_t byte, const char *call) const {
  const Status status =
      fail(GMM_ERROR_CORRUPT,
           "%sThe program wrote %s block %p%s%s of %" PRIu64
           " bytes of %s memory of device %d with tag \"%s\": byte %" PRIu64 " is the first wrong one.%s",
           call, where, block.entry.block, *block.note.name != '\0' ? " " : "", block.note.name, block.size,
           kind_name(options_.kind), options_.device.ordinal, options_.tag_name, byte,
           core_.backend->is_cpu_memory() ? " Run it under valgrind or the address sanitizer to find the write." : "");
  const StackText allocated(core_.stacks, block.note.stack), freed(core_.stacks, block.note.free_stack);
  core_.log.complain("%s%s%s%s%s", last_message(), block.note.stack != 0 ? " Allocated" : "", allocated.text,
                     block.note.free_stack != 0 ? "; freed" : "", freed.text);
  return status;
}

// --- Quarantine ------------------------------------------------------------------------------------------------------

// As in a thread cache: no paused memory, and no block with a driver allocation of its own. Only its own thread can put
// back what a per-thread stream freed.
bool HeapChecks::may_wait_here(const CheckedBlock &block, gmm_stream stream) const {
  return is_on(kCheckQuarantine) && block.bytes <= kQuarantine && stream != GMM_STREAM_PER_THREAD &&
         !core_.ended_streams.contains(stream) && heap_.fast.has_paused.load(std::memory_order_relaxed) == 0 &&
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
  if (!is_readable_)
    begin_look(oldest);
  else if (oldest.is_poisoned)
    find_wrong(oldest.block, oldest.block.base(), oldest.block.size, 0);
  heap_.put_back_one(oldest.block.entry, heap_.bit_of_free(oldest.key));
}

void HeapChecks::find_wrong(const CheckedBlock &block, uintptr_t at, uint64_t poison, uint64_t red_zone) const {
  const uint64_t late = first_other(at, poison, kPoisonByte);
  const uint64_t past = first_other(at + poison, red_zone, kRedZoneByte);
  if (late != poison) report(block, "after its free to", block.size - poison + late).ignore();
  if (past != red_zone) report(block, kPastEnd, block.size + past).ignore();
}

void HeapChecks::drain(const gmm_stream *stream) {
  if (core_.checks == 0) return;
  const LockGuard guard(mutex_);
  const MessageGuard message_guard;
  while (first_ < quarantine_.size()) release_oldest();
  if (looks_ended_ == looks_begun_) return;
  if (stream == nullptr) {
    streams_.wait_for_frees(~uint64_t{0}).ignore();
  } else if (streams_.known_bit(StreamKey{*stream, 0}) != 0) {
    mutex_.begin_operation();
    core_.backend->stream_synchronize(options_.device, *stream).ignore();
    mutex_.end_operation();
  }
  end_looks();
}

// --- Looks at memory that the processor does not reach ---------------------------------------------------------------

// A look is left out where the driver refuses it, or where all slots wait for their streams.
void HeapChecks::begin_look(const Quarantined &freed) {
  const CheckedBlock &block = freed.block;
  const uint64_t red_zone = block.has_red_zone ? kRedZone : 0;
  const uint64_t poison = freed.is_poisoned ? std::min(block.size, kSlot - kRedZone) : 0;
  if (red_zone + poison == 0 || !may_queue_on(freed.key.stream)) return;
  if (slots_.data() == nullptr) {
    // To lock pages may wait.
    mutex_.begin_operation();
    const bool is_open = looks_.reserve(kLooks) && slots_.open(options_.device, kLooks * kSlot).ok();
    mutex_.end_operation();
    if (!is_open) return;
  }
  if (looks_begun_ % kLooksAtOnce == 0) end_looks();
  if (slots_.device_data() == nullptr || looks_begun_ - looks_ended_ == kLooks) return;
  const uint64_t slot = looks_begun_ % kLooks;
  const void *from = reinterpret_cast<const void *>(block.base() + block.size - poison);
  if (!core_.backend->copy(options_.device, freed.key.stream, slots_.data() + slot * kSlot, from, poison + red_zone)
           .ok())
    return;
  const uint64_t bit = heap_.bit_of_free(freed.key);
  looks_.data()[slot] = Look{block, poison, red_zone, bit, streams_.stamp()};
  ++looks_begun_;
}

void HeapChecks::end_looks() {
  const MessageGuard message_guard;
  uint64_t bits = 0;
  for (uint64_t i = looks_ended_; i != looks_begun_; ++i) bits |= looks_.data()[i % kLooks].streams;
  streams_.ask(bits);
  for (; looks_ended_ != looks_begun_; ++looks_ended_) {
    const Look &look = looks_.data()[looks_ended_ % kLooks];
    if (streams_.done(look.streams, look.stamp) != look.streams) return;
    find_wrong(look.block, reinterpret_cast<uintptr_t>(slots_.data() + looks_ended_ % kLooks * kSlot), look.poison,
               look.red_zone);
  }
}

// --- Memory of the heap ----------------------------------------------------------------------------------------------

// fn(block, its bytes, its size or 0)
template <typename Fn>
static void for_each_block(Span &span, Fn fn) {
  if (!span.live()) return;
  for (uint32_t i = 0; i < span.blocks(); ++i)
    fn(span.block(i), span.block_bytes(), bytes_of_slot(span.slot(i).load(std::memory_order_relaxed)));
}

void HeapChecks::added(ByteRange range) {
  if (has_tool_ && !is_allowed_) memory_tool::forbid(range.base, range.size);
  if (!has_gpu_tool_ || !told_.reserve(told_.size() + 1)) return;
  if (void *handle = begin_nvtx_allocation(range.base, range.size); handle != nullptr)
    told_.push_back_reserved(ToldAllocation{range.base, handle});
}

void HeapChecks::removed(ByteRange range) {
  if (has_tool_) memory_tool::allow(range.base, range.size);
  for (uint64_t i = told_.size(); i-- > 0;) {
    if (told_[i].base != range.base) continue;
    end_nvtx_allocation(told_[i].handle);
    told_.erase(i);
  }
}

// The GPU's tool looks at an access when it happens, and the stream may still use the block.
void HeapChecks::tell_free(const CheckedBlock &block, gmm_stream stream) {
  if (allocation_of(block.base()) == nullptr || !may_queue_on(stream)) return;
  mutex_.begin_operation();
  const bool is_done = core_.backend->stream_synchronize(options_.device, stream).ok();
  mutex_.end_operation();
  if (is_done) end_nvtx_block(block.base());
}

// NULL: the tool does not know it.
void *HeapChecks::allocation_of(uintptr_t block) const {
  const Extent *extent = core_.page_map.find_extent(block);
  for (const ToldAllocation &each : told_)
    if (extent != nullptr && each.base == base_of(*extent)) return each.handle;
  return nullptr;
}

void HeapChecks::begin_operation() {
  if (!has_tool_) return;
  is_allowed_ = true;
  heap_.for_each_region([](Region &region) {
    for_each_extent(region, [](const Extent &extent) { memory_tool::allow(base_of(extent), size_of(extent)); });
  });
}

void HeapChecks::end_operation() {
  if (!is_allowed_) return;  // a free that waited
  is_allowed_ = false;
  if (!has_allowed_free_) forbid_free_memory();
}

void HeapChecks::end_blocks() {
  dropped();
  if (!has_tool_ && !has_gpu_tool_) return;
  heap_.for_each_region([this](Region &region) {
    if (region.elastic) return;
    for_each_span(region, [this](Span &span) {
      for_each_block(span, [this](uintptr_t block, uint64_t bytes, uint64_t size) {
        if (size != 0 && has_gpu_tool_ && allocation_of(block) != nullptr) end_nvtx_block(block);
        if (size != 0 && has_tool_) memory_tool::end_block(block, bytes, true);
      });
    });
  });
}

// Never a live block, which another thread may be using. An import of the context's own export has the memory of a
// freed block at its address.
void HeapChecks::forbid_free_memory() {
  heap_.for_each_region([this](Region &region) {
    if (region.elastic) return;
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
