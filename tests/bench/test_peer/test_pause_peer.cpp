// SPDX-License-Identifier: Apache-2.0
// Peers for the test of `gmm-bench pause`: one that works, one that cannot be opened, one that fails in the middle, one
// that forgets a byte, one that ends the process, and one of another ABI.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../pause_subject_of.h"

namespace {

struct Working {
  static constexpr const char *kName = "test-pausing";
  static constexpr uint32_t kModes = 0x1f;
  static constexpr bool kNeedsCuda = false;

  std::vector<std::vector<char>> blocks, kept;
  uint64_t changes = 0;

  bool open(const gmm_bench_pause_options &options) {
    blocks.assign(options.blocks, std::vector<char>(options.size));
    return true;
  }
  void close() {}
  void *block(uint64_t index) { return blocks[index].data(); }
  bool pause() {
    changes += 3;
    kept = blocks;
    for (auto &block : blocks) std::memset(block.data(), 0, block.size());
    return true;
  }
  bool resume() {
    changes += 5;
    blocks = kept;
    return true;
  }
  uint64_t calls() { return changes; }
  std::string setting() { return "as set"; }
  std::string error() { return "wrong"; }
};

struct Missing : Working {
  static constexpr const char *kName = "test-pause-missing";
  bool open(const gmm_bench_pause_options &) { return false; }
  std::string error() { return "its library is not here"; }
};

struct Failing : Working {
  static constexpr const char *kName = "test-pause-failing";
  bool resume() { return changes < 10 && Working::resume(); }
  std::string error() { return "not a second time"; }
};

struct Forgetting : Working {
  static constexpr const char *kName = "test-pause-forgetting";
  bool resume() {
    kept.back()[4097] ^= 1;
    return Working::resume();
  }
};

struct Ending : Working {
  static constexpr const char *kName = "test-pause-ending";
  bool resume() { return changes < 10 ? Working::resume() : (std::exit(3), false); }
};

constexpr gmm_bench_pause_subject of_another_abi(gmm_bench_pause_subject subject) {
  subject.abi = GMM_BENCH_PAUSE_ABI + 1;
  return subject;
}

constexpr gmm_bench_pause_subject kWorking = gmm_bench::make_pause_subject<Working>();
constexpr gmm_bench_pause_subject kMissing = gmm_bench::make_pause_subject<Missing>();
constexpr gmm_bench_pause_subject kFailing = gmm_bench::make_pause_subject<Failing>();
constexpr gmm_bench_pause_subject kForgetting = gmm_bench::make_pause_subject<Forgetting>();
constexpr gmm_bench_pause_subject kEnding = gmm_bench::make_pause_subject<Ending>();
constexpr gmm_bench_pause_subject kNewer = of_another_abi(kWorking);
const gmm_bench_pause_subject *const kAll[] = {&kWorking, &kMissing, &kFailing, &kForgetting, &kEnding, &kNewer};

}  // namespace

extern "C" __attribute__((visibility("default"))) const gmm_bench_pause_subject *const *gmm_bench_pause_subjects(
    uint32_t *count);
const gmm_bench_pause_subject *const *gmm_bench_pause_subjects(uint32_t *count) {
  *count = sizeof kAll / sizeof *kAll;
  return kAll;
}
