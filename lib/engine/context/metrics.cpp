// SPDX-License-Identifier: Apache-2.0
#include "engine/context/metrics.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>

#include "base/device_text.h"
#include "base/environment.h"
#include "base/process.h"
#include "base/text_writer.h"
#include "engine/context/context.h"
#include "engine/pause/heap_transition.h"

namespace gmm {
namespace {

constexpr uint64_t kUnknown = UINT64_MAX;
constexpr char kFilePrefix[] = "gmm-metrics-";
constinit std::atomic<uint32_t> g_contexts{0};  // of the process so far

// The heaps of one device, kind and tag together.
struct Row : HeapTotals {
  HeapOptions options;
  char tag[sizeof(Tag::name)] = {};
  uint64_t kept = 0;  // kUnknown: an operation has one of the heaps
};

// Every name. All samples have the labels `process` and `context`, as one folder has the files of many; those of heaps
// also `device`, `UUID`, as in DCGM's metrics, `kind` and `tag`.
constexpr struct {
  const char *name, *type, *help;
  uint64_t Row::*value;
} kOfHeaps[] = {
    {"gmm_live_bytes", "gauge", "Bytes requested and not freed.", &Row::live_bytes},
    {"gmm_live_blocks", "gauge", "Blocks that are not freed.", &Row::live_blocks},
    {"gmm_cached_bytes", "gauge", "Bytes that are free and held for later allocations.", &Row::free_bytes},
    {"gmm_reserved_bytes", "gauge", "Bytes held from the driver.", &Row::held},
    {"gmm_paused_bytes", "gauge", "Bytes of addresses without memory.", &Row::paused},
    {"gmm_kept_bytes", "gauge", "Bytes of kept contents; absent during a pause or resume.", &Row::kept},
    {"gmm_allocations_total", "counter", "Allocations that succeeded.", &Row::allocations},
    {"gmm_frees_total", "counter", "Blocks that were freed.", &Row::frees},
    {"gmm_out_of_memory_total", "counter", "Allocations for which memory or a limit was short.", &Row::failures},
};
constexpr struct {
  const char *name, *help;
  Histogram Metrics::*value;
} kTimes[] = {
    {"gmm_pause_seconds", "The time of pauses that succeeded.", &Metrics::pauses},
    {"gmm_resume_seconds", "The time of resumes that succeeded.", &Metrics::resumes},
    {"gmm_lease_wait_seconds", "The time of requests of leases, granted or not.", &Metrics::lease_waits},
};
constexpr const char *kBounds[] = {"1e-4", "1e-3", "1e-2", "1e-1", "1", "10", "+Inf"};
static_assert(sizeof kBounds / sizeof *kBounds == Histogram::kBounds + 1);
constexpr char kCopied[] = "gmm_copied_bytes_total", kCopiedHelp[] = "Bytes copied by pauses and resumes.";

Status add_heap(Heap &heap, const TagTable &tags, Vector<Row> *rows) {
  Row more;
  static_cast<HeapTotals &>(more) = heap.totals();
  more.options = heap.options();
  std::memcpy(more.tag, tags.get(more.options.tag)->name, sizeof more.tag);
  more.kept = kept_bytes(heap);
  for (Row &row : *rows) {
    if (!(row.options.device == more.options.device) || row.options.kind != more.options.kind ||
        row.options.tag != more.options.tag)
      continue;
    for (const auto &of : kOfHeaps) {
      const bool is_known = row.*of.value != kUnknown && more.*of.value != kUnknown;
      row.*of.value = is_known ? row.*of.value + more.*of.value : kUnknown;
    }
    return Status();
  }
  return rows->push_back(more) ? Status() : fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "gmm_metrics_write: no host memory.");
}

struct OpenFile {
  int32_t file = -1;
  int error = 0;
  uint64_t size = 0;
};

// A write past the limit of a file's size would end the program, so the blocks are taken first.
int32_t append_to_file(void *user, const char *text, uint64_t size) {
  auto *to = static_cast<OpenFile *>(user);
  to->error = os::reserve_blocks(to->file, to->size, size);
  if (to->error == 0) to->error = os::write_file(to->file, to->size, text, size);
  to->size += size;
  return to->error;
}

}  // namespace

Metrics::Metrics(Context &context)
    : context_(context), number_(g_contexts.fetch_add(1, std::memory_order_relaxed) + 1) {}

Status Metrics::write(gmm_write_fn fn, void *user) {
  Vector<Row> rows(context_.core().allocator);
  GMM_TRY(context_.heaps().for_each([&](Heap &heap) { return add_heap(heap, context_.tags(), &rows); }, false));
  TextWriter writer(fn, user);
  const auto family = [&](const char *name, const char *type, const char *help) {
    writer.print("# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
  };
  const auto sample = [&](const char *name, const char *suffix) {
    writer.print("%s%s{process=\"%d\",context=\"%u\"", name, suffix, process_number(), number_);
  };
  for (const auto &of : kOfHeaps) {
    family(of.name, of.type, of.help);
    for (const Row &row : rows) {
      if (row.*of.value == kUnknown) continue;
      sample(of.name, "");
      writer.print(",device=\"%d\",UUID=\"GPU-", row.options.device.ordinal);
      writer.uuid(context_.core().traits(row.options.device).uuid);
      writer.print("\",kind=\"%s\",tag=", kind_words[static_cast<uint32_t>(row.options.kind)]);
      writer.quote(row.tag, false);
      writer.print("} %" PRIu64 "\n", row.*of.value);
    }
  }
  for (const auto &of : kTimes) {
    const Histogram &times = this->*of.value;
    family(of.name, "histogram", of.help);
    uint64_t count = 0;
    for (uint32_t i = 0; i <= Histogram::kBounds; ++i) {
      sample(of.name, "_bucket");
      count += times.counts[i].load(std::memory_order_relaxed);
      writer.print(",le=\"%s\"} %" PRIu64 "\n", kBounds[i], count);
    }
    // In whole nanoseconds, as the program's locale may have a comma.
    sample(of.name, "_sum");
    writer.print("} %" PRIu64 "e-9\n", times.sum.load(std::memory_order_relaxed));
    sample(of.name, "_count");
    writer.print("} %" PRIu64 "\n", count);
  }
  gmm_backup_info backups = {};
  context_.backups().query(&backups);
  family(kCopied, "counter", kCopiedHelp);
  sample(kCopied, "");
  writer.print("} %" PRIu64 "\n", backups.copied_bytes);
  writer.flush();
  return writer.stopped() ? fail(GMM_ERROR_IO, "gmm_metrics_write: the function stopped before the end.") : Status();
}

bool Metrics::begin_file() {
  folder_ = environment_text(Variable::kMetrics);
  if (folder_ == nullptr) return false;
  os::delete_orphaned_files(folder_, kFilePrefix);
  write_file();
  return true;
}

void Metrics::write_file() {
  MessageGuard message_guard;
  OpenFile to;
  char temporary[os::kMaxFilePath];
  to.error = os::make_named_file(folder_, kFilePrefix, temporary, &to.file);
  if (to.error == 0) {
    // The process and its start time stay, for delete_orphaned_files() of others.
    const auto same = static_cast<int>(std::strrchr(temporary, '-') - temporary);
    std::snprintf(path_, sizeof path_, "%.*s-%u.prom", same, temporary, number_);
    if (!write(append_to_file, &to).ok() && to.error == 0) to.error = ENOMEM;  // its one other failure
    to.error = os::publish_file(to.file, temporary, path_, to.error);
  }
  if (to.error != 0)
    context_.core().log.complain("GMM_METRICS=%.200s: the metrics cannot be written: %s; name a folder with room.",
                                 folder_, ErrorText(to.error).text);
}

void Metrics::end_file() {
  if (path_[0] != '\0') os::delete_file(path_);
}

}  // namespace gmm
