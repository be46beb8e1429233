// SPDX-License-Identifier: Apache-2.0
// The CUDA driver's own calls, in the ways in which programs use them for a pause.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "raw_cuda.h"
#include "rows.h"
#include "subjects.h"

namespace gmm_bench {
namespace {

constexpr uint32_t kDrop = 1u << GMM_BENCH_PAUSE_DROP, kWarm = 1u << GMM_BENCH_PAUSE_WARM,
                   kCold = 1u << GMM_BENCH_PAUSE_COLD;

struct Baseline : gmm_bench_pausing {
  static constexpr bool kNeedsCuda = true;
  RawCuda &raw = raw_cuda();
  gmm_bench_pause_options options = {};
  std::string failure;

  bool open(const gmm_bench_pause_options &given) override {
    options = given;
    return raw.open(options.device);
  }
  uint64_t calls() override { return raw.calls; }
  std::string error() override { return failure.empty() ? raw.error : failure; }
  void complain(bool good) const {
    if (!good) std::fprintf(stderr, "gmm-bench: warning: %s\n", raw.error.c_str());
  }
};

// One address range, mapped piece by piece.
struct Range {
  struct Piece {
    uint64_t at, size;
    CUmemGenericAllocationHandle handle;
    bool held, mapped;
  };
  CUdeviceptr base = 0;
  uint64_t size = 0;
  bool early = false;  // handles are released once they are mapped: unmap() gives the memory back
  std::vector<Piece> pieces;

  bool open(RawCuda &raw, uint64_t bytes, uint64_t handle_size) {
    if (!raw.reserve(bytes, &base)) return base = 0, false;
    size = bytes;
    for (uint64_t at = 0; at < bytes; at += handle_size)
      pieces.push_back({at, std::min(handle_size, bytes - at), 0, false, false});
    return get(raw);
  }
  bool get(RawCuda &raw) {
    for (Piece &piece : pieces) {
      if (!raw.create(piece.size, CU_MEM_HANDLE_TYPE_NONE, &piece.handle)) return false;
      piece.held = true;
      if (!raw.map(base + piece.at, piece.size, piece.handle)) return false;
      piece.mapped = true;
      if (early && !let_go(raw, &piece)) return false;
    }
    return raw.set_access(base, size);
  }
  bool give(RawCuda &raw) {
    for (Piece &piece : pieces) {
      if (piece.mapped && !raw.unmap(base + piece.at, piece.size)) return false;
      piece.mapped = false;
      if (!let_go(raw, &piece)) return false;
    }
    return true;
  }
  bool close(RawCuda &raw) {
    if (base == 0) return true;
    const bool gone = give(raw);
    return raw.unreserve(base, size) && gone;
  }

 private:
  static bool let_go(RawCuda &raw, Piece *piece) {
    if (!piece->held) return true;
    piece->held = false;
    return raw.release(piece->handle);
  }
};

// One handle a block, as torch_memory_saver and vLLM do.
struct OneHandle : Baseline {
  static constexpr const char *kName = "one_handle";
  static constexpr uint32_t kModes = kDrop;
  std::vector<Range> blocks;

  bool open(const gmm_bench_pause_options &given) override {
    if (!Baseline::open(given)) return false;
    blocks.resize(options.blocks);
    for (Range &block : blocks)
      if (!block.open(raw, options.size, options.size)) return false;
    return true;
  }
  void close() override {
    for (Range &block : blocks) complain(block.close(raw));
  }
  void *block(uint64_t index) override { return reinterpret_cast<void *>(blocks[index].base); }
  bool pause() override {
    for (Range &block : blocks)
      if (!block.give(raw)) return false;
    return true;
  }
  bool resume() override {
    for (Range &block : blocks)
      if (!block.get(raw)) return false;
    return true;
  }
};

// One handle a block, and each block's contents in host memory that is page-locked for this one use.
struct HostAlloc : OneHandle {
  static constexpr const char *kName = "host_alloc";
  static constexpr uint32_t kModes = kCold;
  std::vector<void *> kept;

  bool host_free(void *copy) { return raw.counted(raw.driver.cuMemFreeHost(copy), "cuMemFreeHost"); }
  bool open(const gmm_bench_pause_options &given) override {
    kept.assign(given.blocks, nullptr);
    return OneHandle::open(given);
  }
  void close() override {
    OneHandle::close();
    for (void *copy : kept)
      if (copy != nullptr) complain(host_free(copy));
  }
  bool pause() override {
    for (uint64_t i = 0; i < options.blocks; ++i) {
      if (!raw.counted(raw.driver.cuMemHostAlloc(&kept[i], options.size, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc"))
        return kept[i] = nullptr, false;
      if (!raw.copy_out(kept[i], blocks[i].base, options.size) || !raw.wait() || !blocks[i].give(raw)) return false;
    }
    return true;
  }
  bool resume() override {
    for (uint64_t i = 0; i < options.blocks; ++i) {
      if (!blocks[i].get(raw) || !raw.copy_in(blocks[i].base, kept[i], options.size) || !raw.wait()) return false;
      if (!host_free(kept[i])) return false;
      kept[i] = nullptr;
    }
    return true;
  }
};

// All bytes in handles of the size that is fastest here; also whether a handle is kept while it is mapped.
struct RawBest : Baseline {
  static constexpr const char *kName = "raw_best";
  static constexpr uint32_t kModes = kDrop;
  static constexpr uint32_t kTrials = 4;
  Range range;

  bool open(const gmm_bench_pause_options &given) override {
    if (!Baseline::open(given)) return false;
    const uint64_t bytes = options.blocks * options.size;
    uint64_t best_size = 0;
    bool best_early = false;
    double best = 0;
    for (const uint64_t limit : {UINT64_MAX, uint64_t{4} << 30, uint64_t{1} << 30, uint64_t{256} << 20,
                                 uint64_t{64} << 20, uint64_t{32} << 20}) {
      const uint64_t handle_size = std::min(limit, bytes);
      if (limit < UINT64_MAX && limit >= bytes) continue;
      for (const bool early : {false, true}) {
        double time = 0;
        if (!trial(handle_size, early, &time)) return false;
        if (best_size != 0 && time >= best) continue;
        best = time, best_size = handle_size, best_early = early;
      }
    }
    range = Range();
    range.early = best_early;
    return range.open(raw, bytes, best_size);
  }
  // The median time of a pause and resume.
  bool trial(uint64_t handle_size, bool early, double *out) {
    range = Range();
    range.early = early;
    if (!range.open(raw, options.blocks * options.size, handle_size)) return false;
    std::vector<double> times;
    for (uint32_t i = 0; i < kTrials; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      if (!range.give(raw) || !range.get(raw)) return false;
      times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    *out = median(times);
    return range.close(raw);
  }
  void close() override { complain(range.close(raw)); }
  void *block(uint64_t index) override { return reinterpret_cast<void *>(range.base + index * options.size); }
  bool pause() override { return range.give(raw); }
  bool resume() override { return range.get(raw); }
};

// The copies alone: the memory stays mapped.
struct PinnedCopy : Baseline {
  static constexpr const char *kName = "pinned_memcpy";
  static constexpr uint32_t kModes = kWarm;
  Range range;
  char *host = nullptr;
  bool locked = false;

  uint64_t bytes() const { return options.blocks * options.size; }
  bool open(const gmm_bench_pause_options &given) override {
    if (!Baseline::open(given) || !range.open(raw, bytes(), options.size)) return false;
    host = touched_memory(bytes());
    if (host == nullptr) return failure = "no host memory", false;
    locked = raw.good(raw.driver.cuMemHostRegister_v2(host, bytes(), CU_MEMHOSTREGISTER_PORTABLE), "cuMemHostRegister");
    return locked;
  }
  void close() override {
    complain(range.close(raw));
    if (locked) complain(raw.good(raw.driver.cuMemHostUnregister(host), "cuMemHostUnregister"));
    if (host != nullptr) free_touched(host, bytes());
  }
  void *block(uint64_t index) override { return reinterpret_cast<void *>(range.base + index * options.size); }
  bool pause() override {
    for (uint64_t at = 0; at < bytes(); at += options.size)
      if (!raw.copy_out(host + at, range.base + at, options.size)) return false;
    return raw.wait();
  }
  bool resume() override {
    for (uint64_t at = 0; at < bytes(); at += options.size)
      if (!raw.copy_in(range.base + at, host + at, options.size)) return false;
    return raw.wait();
  }
};

constexpr gmm_bench_pause_subject kOneHandle = make_pause_subject<OneHandle>();
constexpr gmm_bench_pause_subject kRawBest = make_pause_subject<RawBest>();
constexpr gmm_bench_pause_subject kPinnedCopy = make_pause_subject<PinnedCopy>();
constexpr gmm_bench_pause_subject kHostAlloc = make_pause_subject<HostAlloc>();

}  // namespace

std::vector<const gmm_bench_pause_subject *> pause_baselines() {
  return {&kOneHandle, &kRawBest, &kPinnedCopy, &kHostAlloc};
}

char *touched_memory(uint64_t size) {
  constexpr uint64_t kHuge = uint64_t{2} << 20;
  void *base = mmap(nullptr, size + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  // Cut to whole huge pages.
  char *begin = static_cast<char *>(base), *end = begin + size + kHuge;
  char *first = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(begin) + kHuge - 1) / kHuge * kHuge);
  if (first != begin) munmap(begin, static_cast<size_t>(first - begin));
  munmap(first + size, static_cast<size_t>(end - first) - size);
  (void)madvise(first, size, MADV_HUGEPAGE);  // without huge pages it is only slower
  const uint64_t threads = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
  std::vector<std::thread> workers;
  for (uint64_t i = 0; i < threads; ++i)
    workers.emplace_back([=] {
      const uint64_t from = size / 4096 * i / threads, to = size / 4096 * (i + 1) / threads;
      for (uint64_t page = from; page < to; ++page) static_cast<volatile char *>(first)[page * 4096] = 1;
    });
  for (std::thread &worker : workers) worker.join();
  return first;
}

void free_touched(char *base, uint64_t size) { munmap(base, size); }

void fill_random(char *memory, uint64_t size) {
  std::mt19937_64 random(1);
  for (uint64_t at = 0; at < size; at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(memory + at, &word, sizeof word);
  }
}

}  // namespace gmm_bench
