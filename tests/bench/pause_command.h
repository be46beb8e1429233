// SPDX-License-Identifier: Apache-2.0
// The parts of `gmm-bench pause`.
#ifndef GMM_BENCH_PAUSE_COMMAND_H
#define GMM_BENCH_PAUSE_COMMAND_H

#include <gmm/gmm.h>

#include <string>
#include <vector>

#include "pause_raw.h"
#include "pause_subject.h"

namespace gmm_bench {

// gmm, and gmm with page-locked memory asked for ahead of the first pause.
const gmm_bench_pause_subject *gmm_pause_subject();
const gmm_bench_pause_subject *gmm_prepared_subject();
void set_pause_backend(gmm_backend backend, uint64_t host_memory);

std::vector<const gmm_bench_pause_subject *> pause_baselines();
const gmm_bench_pause_subject *direct_write_subject();

// Contents that differ by place and by generation, and have no word that is 0.
class Contents {
 public:
  Contents() = default;
  ~Contents();
  Contents(const Contents &) = delete;
  Contents &operator=(const Contents &) = delete;

  bool open(Raw *raw);
  bool fill(char *block, uint64_t index, uint64_t size, uint64_t generation);
  // False also when they differ.
  bool check(const char *block, uint64_t index, uint64_t size, uint64_t generation);
  const std::string &error() const { return error_; }

 private:
  void stamp(uint64_t index, uint64_t piece, uint64_t generation);

  Raw *raw_ = nullptr;
  char *pattern_ = nullptr, *got_ = nullptr;
  bool locked_ = false;
  std::string error_;
};

}  // namespace gmm_bench
#endif
