// SPDX-License-Identifier: Apache-2.0
// Makes a subject from a class with the allocator's calls. Header only, C++17.
//
//   struct Peer {
//     static constexpr const char *kName = "mimalloc";
//     static constexpr uint32_t kKinds = 1u << GMM_BENCH_SYSTEM;
//     static constexpr bool kNeedsCuda = false;
//     using Stream = ...;                              // for allocate(): a cudaStream_t, or an empty struct
//     bool open(const gmm_bench_options &options);
//     void close();                                    // also after an open() that failed
//     Stream stream(uint32_t index);                   // 0: the default stream
//     bool thread_begin(); void thread_end();          // on the thread, for example to make a device current
//     void *allocate(uint64_t size, Stream stream);    // inline; nullptr on failure
//     bool deallocate(void *block, uint64_t size, Stream stream);  // inline
//     bool use(void *block, Stream stream);            // may be left out: PyTorch's record_stream
//     uint64_t reserved(); uint64_t peak_reserved(); uint64_t backend_calls();  // GMM_BENCH_UNKNOWN: not known
//     std::string error();                             // of the last call that failed
//   };
//   static const gmm_bench_subject table = gmm_bench::make_subject<Peer>();
#ifndef GMM_BENCH_SUBJECT_LOOPS_H
#define GMM_BENCH_SUBJECT_LOOPS_H

#include <sched.h>

#include <cstdio>
#include <mutex>
#include <string>

#include "subject.h"

namespace gmm_bench {

// A base for allocators of ordinary memory, which know neither streams nor counts.
struct PlainPeer {
  static constexpr uint32_t kKinds = 1u << GMM_BENCH_SYSTEM;
  static constexpr bool kNeedsCuda = false;
  struct Stream {};

  void close() {}
  Stream stream(uint32_t) { return {}; }
  bool thread_begin() { return true; }
  void thread_end() {}
  uint64_t reserved() { return GMM_BENCH_UNKNOWN; }
  uint64_t peak_reserved() { return GMM_BENCH_UNKNOWN; }
  uint64_t backend_calls() { return GMM_BENCH_UNKNOWN; }
};

// Hides a block from the compiler, which may drop a malloc whose block is unused.
inline void keep(void *block) { asm volatile("" : : "r"(block) : "memory"); }

template <typename Peer>
class Loops : public gmm_bench_allocator {
 public:
  ~Loops() override { peer_.close(); }
  bool open(const gmm_bench_options &options) override {
    return peer_.open(options) || (error_ = peer_.error(), false);
  }
  std::string error() override { return error_; }
  std::unique_ptr<gmm_bench_thread> begin_thread(uint32_t stream) override {
    if (!peer_.thread_begin()) return failed("thread"), nullptr;
    return std::make_unique<Thread>(this, stream);
  }
  uint64_t reserved() override { return peer_.reserved(); }
  uint64_t peak_reserved() override { return peer_.peak_reserved(); }
  uint64_t backend_calls() override { return peer_.backend_calls(); }

 private:
  using Stream = typename Peer::Stream;

  bool failed(const std::string &what) {
    std::lock_guard<std::mutex> guard(mutex_);
    error_ = what + ": " + peer_.error();
    return false;
  }

  class Thread : public gmm_bench_thread {
   public:
    Thread(Loops *loops, uint32_t stream) : loops_(*loops), peer_(loops->peer_), stream_(peer_.stream(stream)) {}
    ~Thread() override { peer_.thread_end(); }

    bool pair(uint64_t size, uint64_t iterations) override {
      const Stream stream = stream_;
      for (uint64_t i = 0; i < iterations; ++i) {
        void *block = peer_.allocate(size, stream);
        keep(block);
        if (__builtin_expect(block == nullptr, 0)) return loops_.failed("allocate");
        if (__builtin_expect(!peer_.deallocate(block, size, stream), 0)) return loops_.failed("free");
      }
      return true;
    }

    bool produce(uint64_t size, uint64_t count, gmm_bench_ring *ring) override {
      const Stream stream = stream_;
      uint64_t produced = __atomic_load_n(&ring->produced, __ATOMIC_RELAXED);
      const uint64_t end = produced + count;
      while (produced != end) {
        const uint64_t next = end - produced < ring->batch ? end : produced + ring->batch;
        if (!wait(ring, [&] { return next - __atomic_load_n(&ring->consumed, __ATOMIC_ACQUIRE) <= ring->mask + 1; }))
          return false;
        for (; produced != next; ++produced) {
          void *block = peer_.allocate(size, stream);
          if (__builtin_expect(block == nullptr, 0)) return give_up("allocate", ring);
          ring->blocks[produced & ring->mask] = block;
        }
        __atomic_store_n(&ring->produced, produced, __ATOMIC_RELEASE);
      }
      return true;
    }

    bool consume(uint64_t size, uint64_t count, uint32_t stream_index, gmm_bench_ring *ring) override {
      const Stream stream = peer_.stream(stream_index);
      uint64_t consumed = __atomic_load_n(&ring->consumed, __ATOMIC_RELAXED);
      const uint64_t end = consumed + count;
      while (consumed != end) {
        uint64_t ready = 0;
        if (!wait(ring, [&] { return (ready = __atomic_load_n(&ring->produced, __ATOMIC_ACQUIRE)) != consumed; }))
          return false;
        for (; consumed != ready; ++consumed)
          if (__builtin_expect(!peer_.deallocate(ring->blocks[consumed & ring->mask], size, stream), 0))
            return give_up("free", ring);
        __atomic_store_n(&ring->consumed, consumed, __ATOMIC_RELEASE);
      }
      return true;
    }

    bool replay(const gmm_bench_operation *operations, uint64_t count, const gmm_bench_replay &shared) override {
      for (uint64_t i = 0; i < count; ++i) {
        const gmm_bench_operation &operation = operations[i];
        const Stream stream = peer_.stream(operation.stream);
        void *&block = shared.blocks[operation.block];
        if (operation.size == 0) {
          if (!peer_.deallocate(block, shared.sizes[operation.block], stream)) return replay_failed(i, "free");
          block = nullptr;
        } else if (operation.size == GMM_BENCH_USE) {
          if (!use(peer_, block, stream, 0)) return replay_failed(i, "use");
        } else {
          block = peer_.allocate(operation.size, stream);
          shared.sizes[operation.block] = operation.size;
          if (block == nullptr) return replay_failed(i, "allocate");
          if (shared.peak == nullptr) continue;
          const uint64_t now = peer_.reserved();
          if (now != GMM_BENCH_UNKNOWN && now > *shared.peak) *shared.peak = now;
        }
      }
      return true;
    }

   private:
    // Until the other side is there or gave up.
    template <typename Ready>
    static bool wait(gmm_bench_ring *ring, Ready ready) {
      for (uint32_t spins = 0; !ready(); ++spins) {
        if (__atomic_load_n(&ring->failed, __ATOMIC_RELAXED) != 0) return false;
        if (spins > 200) sched_yield();
      }
      return true;
    }
    bool give_up(const char *what, gmm_bench_ring *ring) {
      __atomic_store_n(&ring->failed, 1, __ATOMIC_RELAXED);
      return loops_.failed(what);
    }
    bool replay_failed(uint64_t operation, const char *what) {
      return loops_.failed("operation " + std::to_string(operation + 1) + ", " + what);
    }
    // peer.use() where there is one.
    template <typename P>
    static auto use(P &peer, void *block, Stream stream, int) -> decltype(peer.use(block, stream)) {
      return peer.use(block, stream);
    }
    template <typename P>
    static bool use(P &, void *, Stream, long) {
      return true;
    }

    Loops &loops_;
    Peer &peer_;
    const Stream stream_;
  };

  Peer peer_;
  std::mutex mutex_;  // of error_, which several threads may set
  std::string error_;
};

template <typename Peer>
constexpr gmm_bench_subject make_subject() {
  return {GMM_BENCH_ABI, Peer::kName, Peer::kKinds, Peer::kNeedsCuda,
          []() -> std::unique_ptr<gmm_bench_allocator> { return std::make_unique<Loops<Peer>>(); }};
}

}  // namespace gmm_bench
#endif
