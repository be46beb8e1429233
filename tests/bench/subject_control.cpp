// SPDX-License-Identifier: Apache-2.0
// No allocator: some arithmetic without memory. Its gain by a second thread is the free capacity of the machine at the
// moment, by which a scaling measured beside it can be judged.
#include "subject_loops.h"
#include "subjects.h"

namespace gmm_bench {
namespace {

struct Control : PlainPeer {
  static constexpr const char *kName = "control";

  bool open(const gmm_bench_options &) { return true; }
  void *allocate(uint64_t size, Stream) {
    uint64_t word = size;
    for (int i = 0; i < 16; ++i) {
      word = word * 3 + 1;
      asm volatile("" : "+r"(word));  // not to be computed by the compiler
    }
    return reinterpret_cast<void *>(word | 1);
  }
  bool deallocate(void *, uint64_t, Stream) { return true; }
  std::string error() { return ""; }
};

constexpr gmm_bench_subject kControl = make_subject<Control>();

}  // namespace

const gmm_bench_subject *control_subject() { return &kControl; }

}  // namespace gmm_bench
