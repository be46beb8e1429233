// SPDX-License-Identifier: Apache-2.0
// The options of the command line.
#ifndef GMM_BENCH_OPTIONS_H
#define GMM_BENCH_OPTIONS_H

#include <gmm/gmm.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gmm_bench {

enum ExitCode { kGood = 0, kFailed = 1, kUsage = 2, kHelp = -1 };  // kHelp: printed, the program ends with 0

struct Options {
  std::string command;
  std::vector<std::string> files;
  gmm_backend backend = GMM_BACKEND_AUTO;
  gmm_device device = 0;
  std::vector<uint32_t> kinds;     // empty: the command's own
  std::vector<uint64_t> sizes;     // empty: the command's own
  std::vector<uint32_t> threads;   // empty: 1
  std::vector<std::string> names;  // only these subjects; empty: all
  std::string peers;               // folder of peers; empty: the program's
  uint32_t samples = 0;            // 0: the command's own
  uint64_t sample_us = 0;          // 0: the command's own
  uint64_t iterations = 0;         // a sample; 0: as many as fill sample_us
  uint32_t blocks = 0;             // 0: the command's own
  gmm_contents contents = GMM_CONTENTS_DROP;
  std::string directory;  // for files; empty: GMM_BACKUP_DIR, or /tmp
  bool cold = false;
  bool pageable = false;
  uint32_t rest_ms = 0;  // between operations, not timed
  bool share = false;
  bool json = false;
};

// kGood, or kUsage after an error on stderr.
ExitCode parse(int argc, char **argv, Options *out);

const char *kind_name(uint32_t kind);   // "system", "device"...
std::string size_text(uint64_t bytes);  // "512 B", "64 KiB"

}  // namespace gmm_bench
#endif
