// SPDX-License-Identifier: Apache-2.0
// A subject of the benchmark: gmm, or an allocator that it is compared with. C++17, header only.
//
// Peers that need other compilers or libraries are shared objects named gmm_bench_NAME.so, which gmm-bench opens from
// --peers DIR. Each exports gmm_bench_subjects() and uses nothing of gmm-bench. The measured loops lie inside the
// subject, so that only the allocator's own calls are timed. subject_loops.h makes them, one template for all.
#ifndef GMM_BENCH_SUBJECT_H
#define GMM_BENCH_SUBJECT_H

#include <cstdint>
#include <memory>
#include <string>

// Grows with every change of this file and of pause_subject.h; gmm-bench refuses a peer of another one.
#define GMM_BENCH_ABI 5u

// Kinds of memory, with gmm_kind's numbers, and ordinary memory of the process.
enum { GMM_BENCH_SYSTEM = 0, GMM_BENCH_DEVICE = 1, GMM_BENCH_VMM = 2, GMM_BENCH_HOST = 3, GMM_BENCH_MANAGED = 4 };

// A count that a subject does not know.
#define GMM_BENCH_UNKNOWN UINT64_MAX

struct gmm_bench_options {
  uint32_t kind;  // one of those in the subject's `kinds`
  int32_t device;
  uint32_t stream_count;  // streams by index: 0 is the default stream, 1 to stream_count - 1 are made by open()
};

// The size of an operation of a replay that says that the block is used on another stream too.
#define GMM_BENCH_USE UINT64_MAX

// One operation: size 0 frees the block, GMM_BENCH_USE is a use, any other size allocates.
struct gmm_bench_operation {
  uint64_t size;
  uint32_t block;
  uint32_t stream;  // index
};

struct gmm_bench_replay {
  void **blocks;    // by number of block
  uint64_t *sizes;  // by number of block
  uint64_t *peak;   // NULL, or the place of the highest reserved() after an allocation
};

// Blocks on their way from the thread that allocates to the one that frees; one of each. Made by gmm-bench.
struct gmm_bench_ring {
  void **blocks;
  uint64_t mask;    // number of places - 1
  uint32_t batch;   // blocks are passed on by so many at once, so that the ring costs little; divides the places
  uint32_t failed;  // set by a side that gives up, so that the other does not wait for it
  alignas(64) uint64_t produced;
  alignas(64) uint64_t consumed;
};

// One thread that measures. All is called on this thread. Functions that return bool: false leaves the reason in the
// allocator's error().
class gmm_bench_thread {
 public:
  virtual ~gmm_bench_thread() = default;
  // The measured loops.
  virtual bool pair(uint64_t size, uint64_t iterations) = 0;
  virtual bool produce(uint64_t size, uint64_t count, gmm_bench_ring *ring) = 0;
  // Frees on the stream with this index: the producer's, as PyTorch does.
  virtual bool consume(uint64_t size, uint64_t count, uint32_t stream, gmm_bench_ring *ring) = 0;
  // Operations in order. Blocks that they do not free stay.
  virtual bool replay(const gmm_bench_operation *operations, uint64_t count, const gmm_bench_replay &shared) = 0;
};

// An open allocator. Any thread may call it.
class gmm_bench_allocator {
 public:
  virtual ~gmm_bench_allocator() = default;  // after the end of all threads
  // Several may be open at once, unless there is only one for the process: then a second open() fails. The error says
  // why it is not available: "libmimalloc.so.2 is not installed (Debian: libmimalloc-dev)".
  virtual bool open(const gmm_bench_options &options) = 0;
  virtual std::string error() = 0;
  // On the thread that will call the loops; NULL on failure. `stream`: the index of the thread's own stream.
  virtual std::unique_ptr<gmm_bench_thread> begin_thread(uint32_t stream) = 0;

  virtual uint64_t reserved() = 0;       // bytes held from the driver or system now
  virtual uint64_t peak_reserved() = 0;  // the most since open()
  virtual uint64_t backend_calls() = 0;  // calls into the driver or system since open()
};

struct gmm_bench_subject {
  uint32_t abi;      // GMM_BENCH_ABI
  const char *name;  // as in the rows: "mimalloc", "pytorch-expandable"
  uint32_t kinds;    // bits 1u << GMM_BENCH_DEVICE and so on
  bool needs_cuda;   // runs only with --backend cuda
  std::unique_ptr<gmm_bench_allocator> (*make)();
};

// The function that a peer's shared object exports: its subjects, which stay as long as the object is loaded.
#define GMM_BENCH_SUBJECTS "gmm_bench_subjects"

#endif
