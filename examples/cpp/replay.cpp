// SPDX-License-Identifier: Apache-2.0
#include "replay.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <gmm/gmm.hpp>
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

namespace {

constexpr uint64_t kMiB = 1024 * 1024;

struct Operation {
  uint64_t id, size;  // size 0: a free
  size_t stream;
};

struct Trace {
  std::vector<Operation> operations;
  std::map<uint64_t, size_t> streams = {{0, 0}};  // numbers of the trace
  uint64_t ids = 0;
  uint64_t peak = 0;
};

Trace read_trace(const std::string &path) {
  if (path.find('\'') != std::string::npos || access(path.c_str(), R_OK) != 0)
    throw std::runtime_error("cannot be read");
  const std::unique_ptr<FILE, int (*)(FILE *)> file(popen(("gzip -dcf < '" + path + "'").c_str(), "r"), pclose);
  if (!file) throw std::runtime_error("gzip cannot be started");
  Trace trace;
  std::vector<uint64_t> sizes;
  uint64_t requested = 0;
  char line[256];
  while (std::fgets(line, sizeof line, file.get()) != nullptr) {
    Operation o = {};
    uint64_t number = 0;
    if (std::sscanf(line, "a %" SCNu64 " %" SCNu64 " %" SCNu64, &o.id, &o.size, &number) != 3 &&
        std::sscanf(line, "f %" SCNu64 " %" SCNu64, &o.id, &number) != 2)
      throw std::runtime_error("not a line of a trace: " + std::string(line));
    o.stream = trace.streams.try_emplace(number, trace.streams.size()).first->second;
    trace.ids = std::max(trace.ids, o.id + 1);
    sizes.resize(trace.ids);
    requested = o.size > 0 ? requested + (sizes[o.id] = o.size) : requested - sizes[o.id];
    trace.peak = std::max(trace.peak, requested);
    trace.operations.push_back(o);
  }
  if (trace.operations.empty()) throw std::runtime_error("cannot be unpacked");
  return trace;
}

// Returns nanoseconds an operation.
double run(gmm::context_ref context, const Trace &trace, const std::vector<gmm::stream> &streams) {
  std::vector<gmm::buffer> live(trace.ids);
  gmm::alloc_desc desc;
  desc.kind = GMM_KIND_VMM;
  const auto start = std::chrono::steady_clock::now();
  for (const Operation &o : trace.operations) {
    desc.stream = streams[o.stream];
    if (o.size > 0)
      live[o.id] = context.alloc(o.size, desc);
    else
      live[o.id].free(desc.stream);
  }
  const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
  for (gmm::buffer &block : live) block.free(GMM_STREAM_DEFAULT);
  return time.count() / static_cast<double>(trace.operations.size());
}

std::string mebibytes(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / static_cast<double>(kMiB));
  return text;
}

}  // namespace

void print_replay_header() {
  std::printf("\nReplay of real PyTorch traces, kind VMM\n%-17s %-13s %-13s %-13s %-7s %-13s %s\n", "trace",
              "operations", "requested", "reserved", "ratio", "ns/op first", "ns/op again");
}

void replay(const std::string &path) {
  const Trace trace = read_trace(path);
  gmm::context_desc desc;
  desc.host_memory = 16 * 1024 * kMiB;
  const gmm::context context = gmm::context::create(desc);
  std::vector<gmm::stream> streams(trace.streams.size());
  for (size_t i = 1; i < streams.size(); ++i) streams[i] = gmm::stream::create(context);
  const double first = run(context, trace, streams);
  const gmm_stats_info statistics = context.stats_query(gmm::scope().kind(GMM_KIND_VMM));
  const double again = run(context, trace, streams);
  std::string name = path.substr(path.rfind('/') + 1);
  name = name.substr(0, name.find('.'));
  std::printf("%-17s %-13zu %-13s %-13s %-7.3f %-13.0f %.0f\n", name.c_str(), trace.operations.size(),
              mebibytes(trace.peak).c_str(), mebibytes(statistics.peak_reserved_bytes).c_str(),
              static_cast<double>(statistics.peak_reserved_bytes) / static_cast<double>(trace.peak), first, again);
}
