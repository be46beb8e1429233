// SPDX-License-Identifier: Apache-2.0
#include "engine/trace/snapshot.h"

#include <cinttypes>
#include <cstdarg>
#include <cstdio>

namespace gmm {
namespace {

// Collects text and passes it on in large pieces. It remembers that the writer stopped.
class Writer {
 public:
  Writer(gmm_write_fn write, void *user) : write_(write), user_(user) {}
  [[gnu::format(printf, 2, 3)]] void print(const char *format, ...) {
    if (sizeof text_ - used_ < kLine) flush();
    va_list arguments;
    va_start(arguments, format);
    const int written = std::vsnprintf(text_ + used_, kLine, format, arguments);
    va_end(arguments);
    if (written > 0) used_ += static_cast<uint64_t>(written) < kLine ? static_cast<uint64_t>(written) : kLine - 1;
  }
  // Writes a JSON string, escaped.
  void quote(const char *text) {
    print("\"");
    for (; *text != '\0'; ++text) {
      const unsigned char c = static_cast<unsigned char>(*text);
      if (c < 0x20 || c == '"' || c == '\\')
        print("\\u%04x", c);
      else
        print("%c", c);
    }
    print("\"");
  }
  void flush() {
    if (used_ != 0 && !stopped_) stopped_ = write_(user_, text_, used_) != 0;
    used_ = 0;
  }
  bool stopped() const { return stopped_; }

 private:
  static constexpr uint64_t kLine = 512;
  gmm_write_fn write_;
  void *user_;
  bool stopped_ = false;
  uint64_t used_ = 0;
  char text_[8192];
};

constexpr const char *kKinds[kKindCount] = {"unspecified", "device", "vmm", "host", "managed"};

void write_span(Writer &writer, Span &span, bool paused, bool *first) {
  if (!span.live()) return;
  const uint32_t count = span.is_slab_object ? span.block_count.load(std::memory_order_relaxed) : 1;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t requested = span.slot(i).load(std::memory_order_relaxed) & ~kUsedElsewhere;
    if (requested == 0) continue;
    writer.print("%s{\"address\":\"0x%" PRIxPTR "\",\"size\":%" PRIu64 ",\"reserved\":%" PRIu64 ",\"state\":\"%s\"}",
                 *first ? "" : ",", span.block(i), requested, span.block_bytes(), paused ? "paused" : "active");
    *first = false;
  }
}

void write_heap(Writer &writer, Heap &heap, const TagTable &tags) {
  const HeapTotals totals = heap.totals();
  const HeapOptions &options = heap.options();
  writer.print("{\"kind\":\"%s\",\"device\":%d,\"tag\":", kKinds[static_cast<uint32_t>(options.kind)],
               options.device.ordinal);
  writer.quote(tags.get(options.tag)->name);
  writer.print(",\"capture\":%" PRIu64 ",\"live_bytes\":%" PRIu64 ",\"live_blocks\":%" PRIu64
               ",\"reserved_bytes\":%" PRIu64 ",\"paused_bytes\":%" PRIu64 ",\"extents\":[",
               options.capture, totals.live_bytes, totals.live_blocks, totals.held, totals.paused);
  LockGuard guard(heap.mutex);
  bool first = true;
  for (Region *region = heap.regions().front(); region != nullptr; region = heap.regions().next(region))
    for (Extent *extent = region->extents.front(); extent != nullptr; extent = region->extents.next(extent)) {
      writer.print("%s{\"address\":\"0x%" PRIxPTR "\",\"size\":%" PRIu64 ",\"mapped\":%s,\"importers\":%u}",
                   first ? "" : ",", extent->base.load(std::memory_order_relaxed),
                   extent->size.load(std::memory_order_relaxed), extent->mapped ? "true" : "false",
                   extent->importers.load(std::memory_order_relaxed));
      first = false;
    }
  writer.print("],\"blocks\":[");
  first = true;
  for (Region *region = heap.regions().front(); region != nullptr; region = heap.regions().next(region)) {
    for_each_span(*region, [&](Span &span) {
      const Extent *extent = heap.core().page_map.find_extent(reinterpret_cast<void *>(span.begin()));
      write_span(writer, span, extent != nullptr && is_paused(*extent), &first);
    });
  }
  writer.print("]}");
}

}  // namespace

Status write_snapshot(Core &core, HeapSet &heaps, TagTable &tags, gmm_write_fn write, void *user) {
  Writer writer(write, user);
  writer.print("{\"format\":\"gmm-snapshot\",\"version\":1,\"backend\":\"%s\",\"heaps\":[", core.backend->name());
  bool first = true;
  gmm_scope_desc everything = {};
  GMM_TRY(heaps.for_each(everything, [&](Heap &heap) -> Status {
    if (!first) writer.print(",");
    first = false;
    write_heap(writer, heap, tags);
    return Status();
  }));
  writer.print("]}\n");
  writer.flush();
  return writer.stopped()
             ? fail(GMM_ERROR_IO,
                    "gmm_snapshot(): the write function stopped before the end, so the snapshot is incomplete.")
             : Status();
}

}  // namespace gmm
