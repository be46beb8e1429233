// SPDX-License-Identifier: Apache-2.0
// A subject of `gmm-bench pause`: it gives the memory of its blocks back and gets it again. C++17, header only.
//
// A shared object named gmm_bench_NAME.so may export some by gmm_bench_pause_subjects(), as in subject.h.
#ifndef GMM_BENCH_PAUSE_SUBJECT_H
#define GMM_BENCH_PAUSE_SUBJECT_H

#include <cstdint>
#include <memory>
#include <string>

#include "subject.h"

// The fate of the contents, and the memory that keeps them.
enum {
  GMM_BENCH_PAUSE_DROP = 0,      // nothing is kept
  GMM_BENCH_PAUSE_WARM = 1,      // kept in host memory that an earlier pause left ready
  GMM_BENCH_PAUSE_COLD = 2,      // kept in host memory, by the first pause of a new subject
  GMM_BENCH_PAUSE_PAGEABLE = 3,  // kept in host memory that is not page-locked
  GMM_BENCH_PAUSE_FILE = 4
};

struct gmm_bench_pause_options {
  uint32_t mode;  // GMM_BENCH_PAUSE_*, one of those in the subject's `modes`
  int32_t device;
  bool cuda;  // the run is on CUDA, and the device's primary context is current on the thread
  uint64_t blocks;
  uint64_t size;          // of a block: whole 2 MiB
  const char *directory;  // for files
};

// Functions that return bool: false leaves the reason in error(). All are called from one thread.
class gmm_bench_pausing {
 public:
  virtual ~gmm_bench_pausing() = default;
  // Ends with all blocks there, active.
  virtual bool open(const gmm_bench_pause_options &options) = 0;
  virtual void close() = 0;  // paused or not, and after an open() that failed
  // The address of an active block; NULL: the subject has no memory of a device.
  virtual void *block(uint64_t) { return nullptr; }
  // The timed operations. They return when all is done.
  virtual bool pause() = 0;
  virtual bool resume() = 0;
  // Calls into the driver or system since open().
  virtual uint64_t calls() { return GMM_BENCH_UNKNOWN; }
  virtual std::string error() = 0;
};

struct gmm_bench_pause_subject {
  uint32_t abi;      // GMM_BENCH_ABI
  const char *name;  // as in the rows: "one_handle"
  uint32_t modes;    // bits 1u << GMM_BENCH_PAUSE_DROP and so on
  bool needs_cuda;
  std::unique_ptr<gmm_bench_pausing> (*make)();
};

// The subject of a class with kName, kModes and kNeedsCuda.
template <typename Pausing>
constexpr gmm_bench_pause_subject make_pause_subject() {
  return {GMM_BENCH_ABI, Pausing::kName, Pausing::kModes, Pausing::kNeedsCuda,
          []() -> std::unique_ptr<gmm_bench_pausing> { return std::make_unique<Pausing>(); }};
}

// The function that a peer's shared object exports. Its subjects stay as long as the object is loaded.
#define GMM_BENCH_PAUSE_SUBJECTS "gmm_bench_pause_subjects"

#endif
