// SPDX-License-Identifier: Apache-2.0
// Makes the table of a subject from a class with the allocator's calls. Header only, C++17.
//
//   struct Peer {
//     static constexpr const char *kName = "mimalloc";
//     static constexpr uint32_t kKinds = 1u << GMM_BENCH_SYSTEM;
//     static constexpr bool kNeedsCuda = false;
//     using Stream = ...;                                   // what allocate() takes: a cudaStream_t, or an empty
//     struct bool open(const gmm_bench_options &options);          // false: set_error() was called void close();
//     // also after an open() that failed Stream stream(uint32_t index);                        // 0: the default
//     stream bool thread_begin(); void thread_end();               // on the thread, for example to make a device
//     current void *allocate(uint64_t size, Stream stream);         // inline; nullptr on failure bool deallocate(void
//     *block, uint64_t size, Stream stream);  // inline bool use(void *block, Stream stream);                  // may
//     be left out: PyTorch's record_stream uint64_t reserved(); uint64_t peak_reserved(); uint64_t backend_calls();  //
//     GMM_BENCH_UNKNOWN where it cannot tell std::string error();                                  // of the last call
//     that failed
//   };
//   static const gmm_bench_subject table = gmm_bench::make_subject<Peer>();
#ifndef GMM_BENCH_SUBJECT_LOOPS_H
#define GMM_BENCH_SUBJECT_LOOPS_H

#include <sched.h>

#include <cstdio>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "subject.h"

namespace gmm_bench {

// Where allocate() shall not be seen through: a compiler may drop a malloc whose block nobody uses.
inline void keep(void *block) { asm volatile("" : : "r"(block) : "memory"); }

template <typename Peer>
struct Loops {
  struct State {
    Peer peer;
    std::mutex mutex;  // of `error`, which several threads may set
    std::string error;
  };
  struct Block {
    void *address = nullptr;
    uint64_t size = 0;
  };
  struct Thread {
    State *state;
    typename Peer::Stream stream;
    std::vector<Block> slots;  // of mixed()
  };

  static State &state_of(gmm_bench_state *state) { return *reinterpret_cast<State *>(state); }
  static Thread &thread_of(gmm_bench_thread *thread) { return *reinterpret_cast<Thread *>(thread); }

  static int32_t failed(State &state, const char *what) {
    std::lock_guard<std::mutex> guard(state.mutex);
    state.error = std::string(what) + ": " + state.peer.error();
    return 0;
  }

  static int32_t open(const gmm_bench_options *options, gmm_bench_state **out, char *error, size_t size) {
    State *state = new (std::nothrow) State();
    if (state == nullptr) return std::snprintf(error, size, "no memory"), 0;
    if (!state->peer.open(*options)) {
      std::snprintf(error, size, "%s", state->peer.error().c_str());
      state->peer.close();
      delete state;
      return 0;
    }
    *out = reinterpret_cast<gmm_bench_state *>(state);
    return 1;
  }

  static void close(gmm_bench_state *state) {
    state_of(state).peer.close();
    delete &state_of(state);
  }

  static const char *error(gmm_bench_state *state) { return state_of(state).error.c_str(); }

  static int32_t thread_begin(gmm_bench_state *state, uint32_t stream, gmm_bench_thread **out) {
    State &own = state_of(state);
    if (!own.peer.thread_begin()) return failed(own, "thread");
    *out = reinterpret_cast<gmm_bench_thread *>(new Thread{&own, own.peer.stream(stream), {}});
    return 1;
  }

  static void thread_end(gmm_bench_thread *thread) {
    thread_of(thread).state->peer.thread_end();
    delete &thread_of(thread);
  }

  // peer.use() where there is one.
  template <typename P>
  static auto use(P &peer, void *block, typename P::Stream stream, int) -> decltype(peer.use(block, stream)) {
    return peer.use(block, stream);
  }
  template <typename P>
  static bool use(P &, void *, typename P::Stream, long) {
    return true;
  }

  static int32_t pair(gmm_bench_thread *thread, uint64_t size, uint64_t iterations) {
    State &state = *thread_of(thread).state;
    const auto stream = thread_of(thread).stream;
    for (uint64_t i = 0; i < iterations; ++i) {
      void *block = state.peer.allocate(size, stream);
      keep(block);
      if (__builtin_expect(block == nullptr, 0)) return failed(state, "allocate");
      if (__builtin_expect(!state.peer.deallocate(block, size, stream), 0)) return failed(state, "free");
    }
    return 1;
  }

  static int32_t mixed(gmm_bench_thread *thread, const gmm_bench_operation *operations, uint64_t count) {
    Thread &own = thread_of(thread);
    State &state = *own.state;
    for (uint64_t i = 0; i < count; ++i) {
      const gmm_bench_operation &operation = operations[i];
      if (operation.block >= own.slots.size()) own.slots.resize(operation.block + 1);
      Block &block = own.slots[operation.block];
      if (block.address != nullptr && !state.peer.deallocate(block.address, block.size, own.stream))
        return failed(state, "free");
      block.address = state.peer.allocate(operation.size, own.stream);
      block.size = operation.size;
      if (block.address == nullptr) return failed(state, "allocate");
    }
    return 1;
  }

  static int32_t mixed_clear(gmm_bench_thread *thread) {
    Thread &own = thread_of(thread);
    int32_t good = 1;
    for (Block &block : own.slots)
      if (block.address != nullptr && !own.state->peer.deallocate(block.address, block.size, own.stream))
        good = failed(*own.state, "free");
    own.slots.clear();
    return good;
  }

  // Until the other side is there or gave up.
  template <typename Ready>
  static bool wait(gmm_bench_ring *ring, Ready ready) {
    for (uint32_t spins = 0; !ready(); ++spins) {
      if (__atomic_load_n(&ring->failed, __ATOMIC_RELAXED) != 0) return false;
      if (spins > 200) sched_yield();
    }
    return true;
  }

  static int32_t give_up(State &state, const char *what, gmm_bench_ring *ring) {
    failed(state, what);
    __atomic_store_n(&ring->failed, 1, __ATOMIC_RELAXED);
    return 0;
  }

  static int32_t produce(gmm_bench_thread *thread, uint64_t size, uint64_t count, gmm_bench_ring *ring) {
    State &state = *thread_of(thread).state;
    const auto stream = thread_of(thread).stream;
    uint64_t produced = __atomic_load_n(&ring->produced, __ATOMIC_RELAXED);
    const uint64_t end = produced + count;
    while (produced != end) {
      const uint64_t next = end - produced < ring->batch ? end : produced + ring->batch;
      if (!wait(ring, [&] { return next - __atomic_load_n(&ring->consumed, __ATOMIC_ACQUIRE) <= ring->mask + 1; }))
        return 0;
      for (; produced != next; ++produced) {
        void *block = state.peer.allocate(size, stream);
        if (__builtin_expect(block == nullptr, 0)) return give_up(state, "allocate", ring);
        ring->blocks[produced & ring->mask] = block;
      }
      __atomic_store_n(&ring->produced, produced, __ATOMIC_RELEASE);
    }
    return 1;
  }

  static int32_t consume(gmm_bench_thread *thread, uint64_t size, uint64_t count, uint32_t stream_index,
                         gmm_bench_ring *ring) {
    State &state = *thread_of(thread).state;
    const auto stream = state.peer.stream(stream_index);
    uint64_t consumed = __atomic_load_n(&ring->consumed, __ATOMIC_RELAXED);
    const uint64_t end = consumed + count;
    while (consumed != end) {
      uint64_t ready = 0;
      if (!wait(ring, [&] { return (ready = __atomic_load_n(&ring->produced, __ATOMIC_ACQUIRE)) != consumed; }))
        return 0;
      for (; consumed != ready; ++consumed)
        if (__builtin_expect(!state.peer.deallocate(ring->blocks[consumed & ring->mask], size, stream), 0))
          return give_up(state, "free", ring);
      __atomic_store_n(&ring->consumed, consumed, __ATOMIC_RELEASE);
    }
    return 1;
  }

  static int32_t replay_failed(State &state, uint64_t operation, const char *what) {
    return failed(state, ("operation " + std::to_string(operation + 1) + ", " + what).c_str());
  }

  static int32_t replay(gmm_bench_thread *thread, const gmm_bench_operation *operations, uint64_t count,
                        const gmm_bench_replay *shared) {
    State &state = *thread_of(thread).state;
    for (uint64_t i = 0; i < count; ++i) {
      const gmm_bench_operation &operation = operations[i];
      const auto stream = state.peer.stream(operation.stream);
      void *&block = shared->blocks[operation.block];
      if (operation.size == 0) {
        if (!state.peer.deallocate(block, shared->sizes[operation.block], stream))
          return replay_failed(state, i, "free");
        block = nullptr;
      } else if (operation.size == GMM_BENCH_USE) {
        if (!use(state.peer, block, stream, 0)) return replay_failed(state, i, "use");
      } else {
        block = state.peer.allocate(operation.size, stream);
        shared->sizes[operation.block] = operation.size;
        if (block == nullptr) return replay_failed(state, i, "allocate");
        if (shared->peak != nullptr) {
          const uint64_t now = state.peer.reserved();
          if (now != GMM_BENCH_UNKNOWN && now > *shared->peak) *shared->peak = now;
        }
      }
    }
    return 1;
  }

  static void *allocate(gmm_bench_thread *thread, uint64_t size, uint32_t stream) {
    State &state = *thread_of(thread).state;
    void *block = state.peer.allocate(size, state.peer.stream(stream));
    if (block == nullptr) failed(state, "allocate");
    return block;
  }

  static int32_t deallocate(gmm_bench_thread *thread, void *block, uint64_t size, uint32_t stream) {
    State &state = *thread_of(thread).state;
    return state.peer.deallocate(block, size, state.peer.stream(stream)) ? 1 : failed(state, "free");
  }

  static uint64_t reserved(gmm_bench_state *state) { return state_of(state).peer.reserved(); }
  static uint64_t peak_reserved(gmm_bench_state *state) { return state_of(state).peer.peak_reserved(); }
  static uint64_t backend_calls(gmm_bench_state *state) { return state_of(state).peer.backend_calls(); }
};

template <typename Peer>
constexpr gmm_bench_subject make_subject() {
  using L = Loops<Peer>;
  return {GMM_BENCH_ABI,
          sizeof(gmm_bench_subject),
          Peer::kName,
          Peer::kKinds,
          Peer::kNeedsCuda ? 1u : 0u,
          L::open,
          L::close,
          L::error,
          L::thread_begin,
          L::thread_end,
          L::pair,
          L::mixed,
          L::mixed_clear,
          L::produce,
          L::consume,
          L::replay,
          L::allocate,
          L::deallocate,
          L::reserved,
          L::peak_reserved,
          L::backend_calls};
}

}  // namespace gmm_bench
#endif
