// SPDX-License-Identifier: Apache-2.0
// Replays files through a fuzz target without libFuzzer: each argument is a file or a directory of files.
#ifndef GMM_TESTS_FUZZ_STANDALONE_H
#define GMM_TESTS_FUZZ_STANDALONE_H

#include <cstddef>
#include <cstdint>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifndef GMM_LIBFUZZER
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

inline int replay(const std::filesystem::path &path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.good() && !file.eof()) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    return 1;
  }
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t *>(bytes.data()), bytes.size());
  return 0;
}

int main(int argc, char **argv) {
  int failed = 0, count = 0;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      failed += replay(argv[i]);
      ++count;
      continue;
    }
    for (const auto &entry : std::filesystem::directory_iterator(argv[i])) {
      failed += replay(entry.path());
      ++count;
    }
  }
  std::printf("%d inputs replayed, %d unreadable\n", count, failed);
  // A corpus that is not there must not pass for one that was replayed.
  return failed != 0 || count == 0;
}
#endif
#endif
