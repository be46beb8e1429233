// SPDX-License-Identifier: Apache-2.0
#include "engine/trace/snapshot.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <string_view>
#include <tuple>

#include "base/device_text.h"
#include "base/process.h"
#include "base/text_writer.h"
#include "engine/heap/block.h"

namespace gmm {
namespace {

// Where the pages of an extent lie. Only VMM memory leaves the device of its heap.
gmm_device location_of(const Extent &extent, const HeapOptions &options) {
  return options.kind == Kind::kVmm ? extent.location.load(std::memory_order_relaxed).ordinal : options.device.ordinal;
}

}  // namespace

bool Snapshot::copy_span(Span &span, Heap &of, bool paused) {
  const uint32_t count = span.live() ? span.blocks() : 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t size = bytes_of_slot(span.slot(i).load(std::memory_order_relaxed));
    if (size == 0) continue;
    const uintptr_t block = span.block(i);
    const BlockNotes::Note note = of.notes().of(reinterpret_cast<void *>(block));
    if (note.block != nullptr && !notes_.push_back(note)) return false;
    const uint32_t heap = static_cast<uint32_t>(heaps_.size());  // it is added behind its blocks
    if (!blocks_.push_back(BlockCopy{block, size, span.block_bytes(), heap,
                                     note.block == nullptr ? 0 : static_cast<uint32_t>(notes_.size()), paused,
                                     span.region->elastic}))
      return false;
  }
  return true;
}

Status Snapshot::copy_heap(Heap &heap, const Tag &tag, bool waits) {
  const HeapOptions &options = heap.options();
  HeapCopy copy = {};
  copy.heap = &heap;
  copy.kind = options.kind;
  copy.device = options.device.ordinal;
  copy.tag = options.tag;
  const Heap *shared = tag.heaps[static_cast<uint32_t>(options.kind)][copy.device].load(std::memory_order_relaxed);
  copy.is_of_user = &heap != shared && options.capture == 0;
  std::memcpy(copy.tag_name, tag.name, sizeof copy.tag_name);
  copy.capture = options.capture;
  copy.totals = heap.totals();
  if (!waits && !heap.mutex.lock_unless_operation()) return Status();
  if (waits) heap.mutex.lock();
  const UnlockAtEnd guard(heap.mutex);
  bool good = true;
  heap.for_each_region([&](Region &region) {
    for_each_extent(region, [&](const Extent &extent) {
      good = good && extents_.push_back(ExtentCopy{base_of(extent), size_of(extent),
                                                   static_cast<uint32_t>(heaps_.size()),  // it is added behind them
                                                   extent.importers.load(std::memory_order_relaxed),
                                                   location_of(extent, options), extent.mapped});
    });
    for_each_span(region, [&](Span &span) {
      const Extent *extent = heap.core().page_map.find_extent(span.begin());
      const bool paused = region.elastic ? region.active == 0 : extent != nullptr && is_paused(*extent);
      good = good && copy_span(span, heap, paused);
    });
  });
  copy.extents_end = extents_.size();
  copy.blocks_end = blocks_.size();
  if (good && heaps_.push_back(copy)) return Status();
  blocks_.truncate(heaps_.empty() ? 0 : heaps_.back().blocks_end);
  return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the copy of a heap.");
}

Status Snapshot::take(Core &core, HeapSet &heaps, const TagTable &tags, const gmm_scope_desc &scope) {
  backend_ = core.backend->id();
  backend_name_ = core.backend->name();
  stacks_ = &core.stacks;
  return heaps.for_each(scope, [&](Heap &heap) { return copy_heap(heap, *tags.get(heap.options().tag), true); });
}

// A device without memory of the context is not asked: the question would make a context on it. A device that does not
// answer is left out, so a program whose context is lost still gets its snapshot.
Status Snapshot::add_devices(Backend &backend) {
  bool has_memory = true;
  const auto copy_of = [&](gmm_device device) -> DeviceCopy * {
    for (DeviceCopy &each : devices_)
      if (each.device == device) return &each;
    DeviceCopy made = {};
    made.device = device;
    MessageGuard message_guard;
    if (device < 0 || !backend.device_use(Device{device}, &made.use).ok()) return nullptr;
    has_memory = has_memory && devices_.push_back(made);
    return has_memory ? &devices_[devices_.size() - 1] : nullptr;
  };
  uint64_t i = 0;
  for (const HeapCopy &heap : heaps_) {
    const bool counts = heap.kind == Kind::kDevice || heap.kind == Kind::kVmm;
    DeviceCopy *of_heap = counts ? copy_of(heap.device) : nullptr;
    if (of_heap != nullptr) of_heap->foreign += heap.totals.foreign;
    // gmm_move() puts pages elsewhere.
    for (; i < heap.extents_end; ++i) {
      DeviceCopy *copy = counts && extents_[i].mapped ? copy_of(extents_[i].location) : nullptr;
      if (copy != nullptr) copy->held += extents_[i].size;
    }
  }
  return has_memory ? Status()
                    : fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "gmm_snapshot_create: no host memory for the devices.");
}

void Snapshot::query(gmm_snapshot_info *out) const {
  out->backend = backend_;
  out->heap_count = heaps_.size();
  out->extent_count = extents_.size();
  out->block_count = blocks_.size();
  for (const BlockCopy &block : blocks_) out->live_bytes += block.size;
}

void Snapshot::query_block(uint64_t index, gmm_block_info *out, Heap **heap) const {
  const BlockCopy &block = blocks_[index];
  const HeapCopy &of = heaps_[block.heap];
  out->kind = static_cast<gmm_kind>(of.kind);
  out->device = of.device;
  out->tag = of.tag;
  out->state = block.paused ? GMM_STATE_PAUSED : GMM_STATE_ACTIVE;
  out->address = reinterpret_cast<void *>(block.address);
  out->size = block.size;
  out->reserved_size = block.reserved_size;
  std::strcpy(out->name, note_of(block).name);
  *heap = of.is_of_user ? of.heap : nullptr;
}

void Snapshot::query_extent(uint64_t index, gmm_extent_info *out, Heap **heap) const {
  const ExtentCopy &extent = extents_[index];
  const HeapCopy &of = heaps_[extent.heap];
  out->kind = static_cast<gmm_kind>(of.kind);
  out->device = of.device;
  out->tag = of.tag;
  out->location = extent.location;
  out->state = extent.mapped ? GMM_STATE_ACTIVE : GMM_STATE_PAUSED;
  out->importers = extent.importers;
  out->address = reinterpret_cast<void *>(extent.address);
  out->size = extent.size;
  *heap = of.is_of_user ? of.heap : nullptr;
}

Status Snapshot::write(gmm_write_fn write, void *user) const {
  JsonWriter writer(write, user);
  writer.open('{');
  writer.fields("format", "gmm-snapshot", "version", 1, "backend", backend_name_, "process", process_number());
  writer.open("devices", '[');
  for (const DeviceCopy &copy : devices_) {
    const DeviceUse &use = copy.use;
    char uuid[UUID_TEXT_SIZE];
    uuid_text(use.uuid, uuid);
    writer.object("device", copy.device, "uuid", uuid, "total_bytes", use.total, "used_bytes", use.used, "held_bytes",
                  copy.held, "foreign_bytes", copy.foreign, "outside_bytes",
                  use.used > copy.held ? use.used - copy.held : 0, "pool_bytes", use.pool, "graph_bytes", use.graphs);
  }
  writer.close("]");
  writer.open("heaps", '[');
  uint64_t extent = 0, block = 0;
  for (const HeapCopy &heap : heaps_) {
    writer.open('{');
    writer.fields("kind", kind_words[static_cast<uint32_t>(heap.kind)], "device", heap.device, "tag", heap.tag_name,
                  "capture", heap.capture, "live_bytes", heap.totals.live_bytes, "live_blocks", heap.totals.live_blocks,
                  "reserved_bytes", heap.totals.held, "paused_bytes", heap.totals.paused);
    writer.open("extents", '[');
    for (; extent < heap.extents_end; ++extent) {
      const ExtentCopy &each = extents_[extent];
      writer.object("address", Hexadecimal{each.address}, "size", each.size, "mapped", each.mapped, "importers",
                    each.importers);
    }
    writer.close("]");
    writer.open("blocks", '[');
    for (; block < heap.blocks_end; ++block) {
      const BlockCopy &each = blocks_[block];
      writer.open('{');
      writer.fields("address", Hexadecimal{each.address}, "size", each.size, "reserved", each.reserved_size, "state",
                    each.paused ? "paused" : "active");
      const BlockNotes::Note &note = note_of(each);
      if (note.name[0] != '\0') writer.fields("name", note.name);
      if (note.stack != 0) writer.fields("stack", note.stack);
      writer.close("}");
    }
    writer.close("]}");
  }
  writer.close("]");
  if (!write_stacks(&writer))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "gmm_snapshot_write: no host memory to sort the stacks.");
  writer.close("}");
  writer.put('\n');
  writer.flush();
  return writer.stopped()
             ? fail(GMM_ERROR_IO, "gmm_snapshot_write: the function stopped before the end, so the text is incomplete.")
             : Status();
}

// Those that blocks name, and the files of code, where there are any.
bool Snapshot::write_stacks(JsonWriter *writer) const {
  Vector<uint32_t> numbers(allocator_);
  for (const BlockNotes::Note &note : notes_)
    if (note.stack != 0 && !numbers.push_back(note.stack)) return false;
  std::sort(numbers.begin(), numbers.end());
  numbers.truncate(static_cast<uint64_t>(std::unique(numbers.begin(), numbers.end()) - numbers.begin()));
  uint64_t words[StackTable::kMostWords];
  writer->open("stacks", '[');
  for (const uint32_t number : numbers) {
    writer->open('{');
    writer->fields("stack", number);
    writer->open("calls", '[');
    const uint32_t count = stacks_->read(number, words);
    for (uint32_t i = 0; i < count; ++i) {
      StackTable::CallText call;
      stacks_->name_call(words[i], false, call);
      writer->value(static_cast<const char *>(call));
    }
    writer->close("]}");
  }
  writer->close("]");
  writer->open("modules", '[');
  uint32_t number;
  for (uint64_t i = 0; !numbers.empty() && (number = stacks_->module(i)) != 0; ++i) {
    stacks_->read(number, words);
    Module module;
    std::memcpy(&module, words, sizeof module);
    char build_id[65];
    build_id_text(module.build_id, module.build_id_bytes, build_id);
    writer->object("path", static_cast<const char *>(module.path), "build_id", static_cast<const char *>(build_id));
  }
  writer->close("]");
  return true;
}

void Snapshot::report_leaks(const Core &core) {
  const auto key_of = [this](const BlockCopy &block) {
    const HeapCopy &heap = heaps_[block.heap];
    const BlockNotes::Note &note = note_of(block);
    return std::make_tuple(block.size, heap.tag, heap.kind, heap.device, std::string_view(note.name), note.stack);
  };
  std::sort(blocks_.begin(), blocks_.end(),
            [&](const BlockCopy &a, const BlockCopy &b) { return key_of(a) < key_of(b); });
  struct Group {
    const BlockCopy *first;
    uint64_t blocks;
    uint64_t bytes() const { return first->size * blocks; }
  };
  Vector<Group> groups(core.allocator);
  uint64_t bytes = 0;
  for (const BlockCopy &block : blocks_) {
    bytes += block.size;
    if (!groups.empty() && key_of(*groups.back().first) == key_of(block))
      ++groups.back().blocks;
    else
      (void)groups.push_back(Group{&block, 1});  // without host memory it is only counted
  }
  std::sort(groups.begin(), groups.end(), [](const Group &a, const Group &b) {
    return a.bytes() != b.bytes() ? a.bytes() > b.bytes() : a.blocks > b.blocks;
  });
  for (uint64_t i = 0; i < groups.size() && i < kMostLines; ++i) {
    const HeapCopy &heap = heaps_[groups[i].first->heap];
    const BlockNotes::Note &note = note_of(*groups[i].first);
    const char *name = note.name;
    core.log.write(LogLevel::kWarning,
                   "Leak: %" PRIu64 " x %" PRIu64 " bytes of %s memory on device %d, tag \"%s\"%s%s%s%s%s.",
                   groups[i].blocks, groups[i].first->size, kind_name(heap.kind), heap.device, heap.tag_name,
                   *name != '\0' ? ", name \"" : "", name, *name != '\0' ? "\"" : "",
                   note.stack != 0 ? ", allocated" : "", StackText(core.stacks, note.stack).text);
  }
  if (!blocks_.empty())
    core.log.write(LogLevel::kWarning,
                   "Leaks: the context ends, and %" PRIu64 " blocks of %" PRIu64
                   " bytes in all are live; free them before, or set GMM_CONTEXT_NO_LEAK_REPORT.",
                   blocks_.size(), bytes);
}

}  // namespace gmm
