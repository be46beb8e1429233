// SPDX-License-Identifier: Apache-2.0
// The metrics of a context, as Prometheus text. metrics.cpp has the table of names.
//
// The heaps have the counters, so an allocation counts nothing here. GMM_METRICS=folder writes the text to a file for
// node_exporter: Decommit's thread does that.
//
// Locks: short visits of the heaps. Neither an operation nor a stream is waited for, and the text is written without a
// lock.
// Callers: Context, which has one, and leases.
#ifndef GMM_ENGINE_CONTEXT_METRICS_H
#define GMM_ENGINE_CONTEXT_METRICS_H

#include <gmm/stats.h>

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/disk_file.h"
#include "base/status.h"

namespace gmm {

class Context;

// How often something took how long. Thread-safe.
class Histogram {
 public:
  static constexpr uint32_t kBounds = 6;  // from 0.1 ms to 10 s, each ten times the one before
  // Counts the time since this one of monotonic_ns().
  void add_since(uint64_t began) {
    const uint64_t took = monotonic_ns() - began;
    uint32_t i = 0;
    for (uint64_t bound = 100'000; i < kBounds && took > bound; bound *= 10) ++i;
    counts[i].fetch_add(1, std::memory_order_relaxed);
    sum.fetch_add(took, std::memory_order_relaxed);
  }
  std::atomic<uint64_t> counts[kBounds + 1] = {};  // up to each bound, and above all
  std::atomic<uint64_t> sum{0};                    // nanoseconds
};

class Metrics : NoCopy {
 public:
  explicit Metrics(Context &context);

  // gmm_metrics_write().
  Status write(gmm_write_fn fn, void *user);
  // Writes the file of GMM_METRICS now, and says whether it is set.
  bool begin_file();
  void write_file();  // a failure is logged
  void end_file();    // the context ends

  Histogram pauses, resumes, lease_waits;

 private:
  Context &context_;
  const uint32_t number_;  // of the context in its process, from 1
  const char *folder_ = nullptr;
  char path_[os::kMaxFilePath] = {};
};

}  // namespace gmm
#endif
