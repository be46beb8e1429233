// SPDX-License-Identifier: Apache-2.0
#include "engine/trace.h"

#include <cerrno>
#include <cinttypes>

namespace gmm {

Status Trace::begin(const char *path) {
  LockGuard guard(mutex_);
  if (file_ != nullptr)
    return fail(GMM_ERROR_BUSY, "gmm_trace_begin(\"%.200s\"): a trace is running; end it first.", path);
  file_ = std::fopen(path, "we");
  if (file_ == nullptr) {
    const int error = errno;
    char text[96];
    return fail_native(GMM_ERROR_IO, error, "gmm_trace_begin(\"%.200s\"): %s.", path,
                       system_error_text(error, text, sizeof text));
  }
  broken_ = false;
  next_id_ = 0;
  live_count_ = 0;
  live_.clear();
  running_.store(true, std::memory_order_relaxed);
  core_.gate->word.store(kGateWatched, std::memory_order_seq_cst);
  return Status();
}

Status Trace::end() {
  LockGuard guard(mutex_);
  if (file_ == nullptr) return fail(GMM_ERROR_UNBALANCED, "gmm_trace_end(): no trace is running.");
  core_.gate->word.store(kGateOpen, std::memory_order_seq_cst);
  running_.store(false, std::memory_order_relaxed);
  const bool bad = std::ferror(file_) != 0;
  const bool closed = std::fclose(file_) == 0;
  file_ = nullptr;
  if (bad || !closed || broken_)
    return fail(GMM_ERROR_IO, "gmm_trace_end(): the trace is not whole; the disk may be full, or host memory short.");
  return Status();
}

bool Trace::insert(const void *memory, uint64_t id) {
  if ((live_count_ + 1) * 2 > live_.size()) {
    Vector<Live> grown(core_.allocator);
    const uint64_t size = live_.size() == 0 ? 1024 : live_.size() * 2;
    if (!grown.reserve(size)) return false;
    for (uint64_t i = 0; i < size; ++i) grown.push_back_reserved(Live{nullptr, 0});
    grown.swap(live_);
    live_count_ = 0;
    for (const Live &live : grown)
      if (live.memory != nullptr && !insert(live.memory, live.id)) return false;
  }
  const uint64_t mask = live_.size() - 1;
  uint64_t at = hash(memory) & mask;
  while (live_[at].memory != nullptr) at = (at + 1) & mask;
  live_[at] = Live{memory, id};
  ++live_count_;
  return true;
}

bool Trace::remove(const void *memory, uint64_t *id) {
  if (live_.size() == 0) return false;
  const uint64_t mask = live_.size() - 1;
  uint64_t at = hash(memory) & mask;
  while (live_[at].memory != memory) {
    if (live_[at].memory == nullptr) return false;
    at = (at + 1) & mask;
  }
  *id = live_[at].id;
  // Close the gap (Knuth, vol. 3, 6.4 algorithm R).
  uint64_t hole = at;
  for (uint64_t next = (at + 1) & mask; live_[next].memory != nullptr; next = (next + 1) & mask) {
    const uint64_t home = hash(live_[next].memory) & mask;
    if (((next - home) & mask) < ((next - hole) & mask)) continue;
    live_[hole] = live_[next];
    hole = next;
  }
  live_[hole].memory = nullptr;
  --live_count_;
  return true;
}

void Trace::allocated(const void *memory, uint64_t size, gmm_stream stream) {
  LockGuard guard(mutex_);
  if (file_ == nullptr) return;
  if (!insert(memory, next_id_)) broken_ = true;
  std::fprintf(file_, "a %" PRIu64 " %" PRIu64 " %" PRIuPTR "\n", next_id_++, size,
               reinterpret_cast<uintptr_t>(stream));
}

void Trace::freeing(const void *memory, gmm_stream stream) {
  LockGuard guard(mutex_);
  uint64_t id = 0;
  // Blocks from before the trace have no number and are left out.
  if (file_ == nullptr || !remove(memory, &id)) return;
  std::fprintf(file_, "f %" PRIu64 " %" PRIuPTR "\n", id, reinterpret_cast<uintptr_t>(stream));
}

}  // namespace gmm
