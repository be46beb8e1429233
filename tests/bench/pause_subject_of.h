// SPDX-License-Identifier: Apache-2.0
// Makes the table of a subject of `gmm-bench pause` from a class. Header only, C++17.
//
//   struct Peer {
//     static constexpr const char *kName = "one_handle";
//     static constexpr uint32_t kModes = 1u << GMM_BENCH_PAUSE_DROP;
//     static constexpr bool kNeedsCuda = true;
//     bool open(const gmm_bench_pause_options &options);
//     void close();                     // also after an open() that failed
//     void *block(uint64_t index);
//     bool pause(); bool resume();
//     uint64_t calls();
//     std::string setting();
//     std::string error();              // of the last call that failed
//   };
//   constexpr gmm_bench_pause_subject table = gmm_bench::make_pause_subject<Peer>();
#ifndef GMM_BENCH_PAUSE_SUBJECT_OF_H
#define GMM_BENCH_PAUSE_SUBJECT_OF_H

#include <cstdio>
#include <new>
#include <string>

#include "pause_subject.h"

namespace gmm_bench {

template <typename Peer>
struct PauseTable {
  struct State {
    Peer peer;
    std::string error, setting;
  };
  static State &of(gmm_bench_pause_state *state) { return *reinterpret_cast<State *>(state); }

  static int32_t open(const gmm_bench_pause_options *options, gmm_bench_pause_state **out, char *error, size_t size) {
    State *state = new (std::nothrow) State();
    if (state == nullptr) return std::snprintf(error, size, "no memory"), 0;
    if (!state->peer.open(*options)) {
      std::snprintf(error, size, "%s", state->peer.error().c_str());
      state->peer.close();
      delete state;
      return 0;
    }
    *out = reinterpret_cast<gmm_bench_pause_state *>(state);
    return 1;
  }
  static void close(gmm_bench_pause_state *state) {
    of(state).peer.close();
    delete &of(state);
  }
  static const char *error(gmm_bench_pause_state *state) {
    of(state).error = of(state).peer.error();
    return of(state).error.c_str();
  }
  static void *block(gmm_bench_pause_state *state, uint64_t index) { return of(state).peer.block(index); }
  static int32_t pause(gmm_bench_pause_state *state) { return of(state).peer.pause() ? 1 : 0; }
  static int32_t resume(gmm_bench_pause_state *state) { return of(state).peer.resume() ? 1 : 0; }
  static uint64_t calls(gmm_bench_pause_state *state) { return of(state).peer.calls(); }
  static const char *setting(gmm_bench_pause_state *state) {
    of(state).setting = of(state).peer.setting();
    return of(state).setting.c_str();
  }
};

template <typename Peer>
constexpr gmm_bench_pause_subject make_pause_subject() {
  using T = PauseTable<Peer>;
  return {GMM_BENCH_PAUSE_ABI,
          sizeof(gmm_bench_pause_subject),
          Peer::kName,
          Peer::kModes,
          Peer::kNeedsCuda ? 1u : 0u,
          T::open,
          T::close,
          T::error,
          T::block,
          T::pause,
          T::resume,
          T::calls,
          T::setting};
}

}  // namespace gmm_bench
#endif
