// SPDX-License-Identifier: Apache-2.0
// The disk's bandwidth: sequential O_DIRECT writes and reads of large aligned blocks, several in flight, as fio makes
// them. No memory of a device takes part. The file has its blocks before the first write, and each write ends
// with fdatasync().
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "options.h"
#include "subjects.h"

namespace gmm_bench {
namespace {

struct Setting {
  uint64_t block;
  uint32_t flight;
};
constexpr Setting kSettings[] = {{uint64_t{1} << 20, 16}, {uint64_t{4} << 20, 8}, {uint64_t{16} << 20, 4}};
constexpr uint64_t kLargest = uint64_t{16} << 20, kTrial = uint64_t{256} << 20;

struct DirectWrite : gmm_bench_pausing {
  static constexpr const char *kName = "direct_write";
  static constexpr uint32_t kModes = 1u << GMM_BENCH_PAUSE_FILE;
  static constexpr bool kNeedsCuda = false;

  int file = -1;
  uint64_t bytes = 0;
  Setting chosen = {};
  std::vector<char *> buffers;
  std::string failure;

  bool open(const gmm_bench_pause_options &options) override {
    bytes = options.blocks * options.size;
    if (!make_file(options.directory)) return false;
    for (const Setting &setting : kSettings)
      while (buffers.size() < setting.flight) {
        char *buffer = touched_memory(kLargest);
        if (buffer == nullptr) return failure = "no host memory", false;
        buffers.push_back(buffer);
        fill_random(buffer, kLargest);
      }
    double best = 0;
    for (const Setting &setting : kSettings) {
      const auto begin = std::chrono::steady_clock::now();
      const uint64_t part = std::min(bytes, kTrial);
      if (!transfer(setting, part, true) || !transfer(setting, part, false)) return false;
      const double time = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      if (chosen.block != 0 && time >= best) continue;
      best = time;
      chosen = setting;
    }
    return true;
  }

  bool make_file(const char *folder) {
    std::string path = std::string(folder) + "/gmm-bench-XXXXXX";
    const int made = mkostemp(path.data(), O_CLOEXEC);
    if (made < 0) return failed(path.c_str());
    file = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_DIRECT);
    if (file < 0) {  // a file system without O_DIRECT
      std::fputs("gmm-bench: warning: direct_write: this file system lacks O_DIRECT\n", stderr);
      file = dup(made);
    }
    unlink(path.c_str());
    const int result = posix_fallocate(made, 0, static_cast<off_t>(bytes));
    ::close(made);
    if (result == 0) return true;
    errno = result;
    return failed("posix_fallocate");
  }

  void close() override {
    if (file >= 0) ::close(file);
    for (char *buffer : buffers) free_touched(buffer, kLargest);
  }

  bool transfer(const Setting &setting, uint64_t size, bool out) {
    std::atomic<uint64_t> next{0};
    std::atomic<int> error{0};
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < setting.flight; ++i)
      threads.emplace_back([&, i] {
        for (uint64_t at; error == 0 && (at = next.fetch_add(setting.block)) < size;) {
          const uint64_t length = std::min(setting.block, size - at);
          const ssize_t done = out ? pwrite(file, buffers[i], length, static_cast<off_t>(at))
                                   : pread(file, buffers[i], length, static_cast<off_t>(at));
          if (done != static_cast<ssize_t>(length)) error = done < 0 ? errno : EIO;
        }
      });
    for (std::thread &thread : threads) thread.join();
    if (error == 0 && out && fdatasync(file) != 0) error = errno;
    errno = error;
    return error == 0 || failed(out ? "write" : "read");
  }

  bool pause() override { return transfer(chosen, bytes, true); }
  bool resume() override { return transfer(chosen, bytes, false); }
  std::string error() override { return failure; }
  bool failed(const char *what) { return failure = std::string(what) + ": " + std::strerror(errno), false; }
};

constexpr gmm_bench_pause_subject kDirectWrite = make_pause_subject<DirectWrite>();

}  // namespace

const gmm_bench_pause_subject *direct_write_subject() { return &kDirectWrite; }

}  // namespace gmm_bench
