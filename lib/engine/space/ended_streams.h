// SPDX-License-Identifier: Apache-2.0
// The handles of streams that gmm_stream_destroy() ended. CUDA's driver and SYCL's runtime do not look at a handle and
// crash on that of a destroyed stream, so gmm answers in their place.
//
// The driver may give a handle out again. gmm_stream_create() removes it, and so does every call by which the program
// says that a stream with this handle lives. A program may say nothing, and its own stream has the handle. Then what it
// frees there waits for the device, as after any stream that is lost.
//
// Invariant: at most kSets * kWays handles. A further one takes the place of the oldest of its set, which the driver is
// asked about again.
// Lock: none. An operation on one handle happens before or after another because the program orders the use of a stream
// and its end.
// Callers: api/ at the start and end of a stream; StreamOrder, before it asks the driver about a stream.
#ifndef GMM_ENGINE_SPACE_ENDED_STREAMS_H
#define GMM_ENGINE_SPACE_ENDED_STREAMS_H

#include <gmm/types.h>

#include <atomic>
#include <cstdint>

namespace gmm {

class EndedStreams {
 public:
  static constexpr uint32_t kSets = 64, kWays = 8;

  // The stream is about to be destroyed.
  void add(gmm_stream stream) {
    any_.store(true, std::memory_order_relaxed);
    const uint32_t number = number_of(stream);
    Place *set = streams_[number];
    if (find(set, stream) != nullptr) return;
    for (uint32_t i = 0; i < kWays; ++i) {
      gmm_stream none = nullptr;
      if (set[i].compare_exchange_strong(none, stream, std::memory_order_relaxed)) return;
    }
    set[next_[number].fetch_add(1, std::memory_order_relaxed) % kWays].store(stream, std::memory_order_relaxed);
  }
  // A stream with this handle lives.
  void remove(gmm_stream stream) {
    if (stream == nullptr || !any_.load(std::memory_order_relaxed)) return;
    while (Place *place = find(set_of(stream), stream)) {
      gmm_stream known = stream;
      place->compare_exchange_strong(known, nullptr, std::memory_order_relaxed);
    }
  }
  bool contains(gmm_stream stream) const {
    return any_.load(std::memory_order_relaxed) && stream != nullptr && find(set_of(stream), stream) != nullptr;
  }

 private:
  using Place = std::atomic<gmm_stream>;
  static uint32_t number_of(gmm_stream stream) {
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(stream) * 0x9e3779b97f4a7c15 >> 58);
  }
  Place *set_of(gmm_stream stream) const { return streams_[number_of(stream)]; }
  static Place *find(Place *set, gmm_stream stream) {
    for (uint32_t i = 0; i < kWays; ++i)
      if (set[i].load(std::memory_order_relaxed) == stream) return &set[i];
    return nullptr;
  }

  std::atomic<bool> any_{false};
  std::atomic<uint32_t> next_[kSets] = {};  // the place of the oldest, once all of a set are taken
  mutable Place streams_[kSets][kWays] = {};
};
static_assert(EndedStreams::kSets == 1 << (64 - 58));

}  // namespace gmm
#endif
