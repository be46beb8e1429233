// SPDX-License-Identifier: Apache-2.0
// A peer for the test of gmm-bench: one that works, one that cannot be opened, one that fails in the middle, and one of
// another ABI.
#include <cstdlib>

#include "../subject_loops.h"

namespace {

struct Working {
  static constexpr const char *kName = "test-working";
  static constexpr uint32_t kKinds = 1u << GMM_BENCH_VMM;
  static constexpr bool kNeedsCuda = false;
  struct Stream {};

  uint64_t live = 0;  // of one thread

  bool open(const gmm_bench_options &options) { return options.kind == GMM_BENCH_VMM; }
  void close() {}
  Stream stream(uint32_t) { return {}; }
  bool thread_begin() { return true; }
  void thread_end() {}
  void *allocate(uint64_t size, Stream) {
    live += size;
    return std::malloc(size);
  }
  bool deallocate(void *block, uint64_t size, Stream) {
    live -= size;
    std::free(block);
    return true;
  }
  uint64_t reserved() { return live; }
  uint64_t peak_reserved() { return GMM_BENCH_UNKNOWN; }
  uint64_t backend_calls() { return GMM_BENCH_UNKNOWN; }
  std::string error() { return "wrong kind"; }
};

struct Missing : Working {
  static constexpr const char *kName = "test-missing";
  bool open(const gmm_bench_options &) { return false; }
  std::string error() { return "its library is not here"; }
};

struct Failing : Working {
  static constexpr const char *kName = "test-failing";
  void *allocate(uint64_t size, Stream stream) { return size < 4096 ? Working::allocate(size, stream) : nullptr; }
  std::string error() { return "no block of a page or more"; }
};

constexpr gmm_bench_subject of_another_abi(gmm_bench_subject subject) {
  subject.abi = GMM_BENCH_ABI + 1;
  return subject;
}

constexpr gmm_bench_subject kWorking = gmm_bench::make_subject<Working>();
constexpr gmm_bench_subject kMissing = gmm_bench::make_subject<Missing>();
constexpr gmm_bench_subject kFailing = gmm_bench::make_subject<Failing>();
constexpr gmm_bench_subject kNewer = of_another_abi(kWorking);
const gmm_bench_subject *const kAll[] = {&kWorking, &kMissing, &kFailing, &kNewer};

}  // namespace

extern "C" __attribute__((visibility("default"))) const gmm_bench_subject *const *gmm_bench_subjects(uint32_t *count);
const gmm_bench_subject *const *gmm_bench_subjects(uint32_t *count) {
  *count = sizeof kAll / sizeof *kAll;
  return kAll;
}
