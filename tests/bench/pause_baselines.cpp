// SPDX-License-Identifier: Apache-2.0
// What gmm's pause is held against: the driver's own calls, in the ways in which programs use them.
#include <algorithm>
#include <chrono>
#include <vector>

#include "options.h"
#include "pause_command.h"
#include "pause_raw.h"
#include "pause_subject_of.h"
#include "rows.h"

namespace gmm_bench {
namespace {

constexpr uint32_t kDrop = 1u << GMM_BENCH_PAUSE_DROP, kWarm = 1u << GMM_BENCH_PAUSE_WARM,
                   kCold = 1u << GMM_BENCH_PAUSE_COLD, kPageable = 1u << GMM_BENCH_PAUSE_PAGEABLE;

struct Baseline {
  static constexpr bool kNeedsCuda = false;
  Raw *raw = nullptr;
  gmm_bench_pause_options options = {};
  std::string failure;

  bool open(const gmm_bench_pause_options &given) {
    options = given;
    raw = open_raw(options.cuda != 0, options.device, &failure);
    return raw != nullptr;
  }
  uint64_t calls() const { return raw->calls(); }
  std::string setting() { return ""; }
  std::string error() const { return failure.empty() ? raw->error() : failure; }
  void complain(bool good) const {
    if (!good) std::fprintf(stderr, "gmm-bench: warning: %s\n", raw->error().c_str());
  }
};

// One address range, mapped piece by piece.
struct Range {
  struct Piece {
    uint64_t at, size, handle;
    bool held, mapped;
  };
  char *base = nullptr;
  uint64_t size = 0;
  bool early = false;  // handles are released once they are mapped: unmap() gives the memory back
  std::vector<Piece> pieces;

  bool open(Raw &raw, uint64_t bytes, uint64_t handle_size) {
    if (!raw.reserve(bytes, &base)) return base = nullptr, false;
    size = bytes;
    for (uint64_t at = 0; at < bytes; at += handle_size)
      pieces.push_back({at, std::min(handle_size, bytes - at), 0, false, false});
    return get(raw);
  }
  bool get(Raw &raw) {
    for (Piece &piece : pieces) {
      if (!raw.create(piece.size, &piece.handle)) return false;
      piece.held = true;
      if (!raw.map(base + piece.at, piece.size, piece.handle)) return false;
      piece.mapped = true;
      if (early && !let_go(raw, &piece)) return false;
    }
    return raw.set_access(base, size);
  }
  bool give(Raw &raw) {
    for (Piece &piece : pieces) {
      if (piece.mapped && !raw.unmap(base + piece.at, piece.size)) return false;
      piece.mapped = false;
      if (!let_go(raw, &piece)) return false;
    }
    return true;
  }
  bool close(Raw &raw) {
    if (base == nullptr) return true;
    const bool gone = give(raw);
    return raw.unreserve(base, size) && gone;
  }

 private:
  static bool let_go(Raw &raw, Piece *piece) {
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

  bool open(const gmm_bench_pause_options &given) {
    if (!Baseline::open(given)) return false;
    blocks.resize(options.blocks);
    for (Range &block : blocks)
      if (!block.open(*raw, options.size, options.size)) return false;
    return true;
  }
  void close() {
    for (Range &block : blocks) complain(block.close(*raw));
  }
  void *block(uint64_t index) { return blocks[index].base; }
  bool pause() {
    for (Range &block : blocks)
      if (!block.give(*raw)) return false;
    return true;
  }
  bool resume() {
    for (Range &block : blocks)
      if (!block.get(*raw)) return false;
    return true;
  }
};

// The same, and each block's contents in host memory that is page-locked for this one use.
struct HostAlloc : OneHandle {
  static constexpr const char *kName = "host_alloc";
  static constexpr uint32_t kModes = kCold;
  std::vector<char *> kept;

  bool open(const gmm_bench_pause_options &given) {
    kept.assign(given.blocks, nullptr);
    return OneHandle::open(given);
  }
  void close() {
    OneHandle::close();
    for (char *&copy : kept)
      if (copy != nullptr) complain(raw->host_free(copy, options.size));
  }
  bool pause() {
    for (uint64_t i = 0; i < options.blocks; ++i) {
      if (!raw->host_alloc(options.size, &kept[i])) return kept[i] = nullptr, false;
      if (!raw->copy_out(kept[i], blocks[i].base, options.size) || !raw->wait() || !blocks[i].give(*raw)) return false;
    }
    return true;
  }
  bool resume() {
    for (uint64_t i = 0; i < options.blocks; ++i) {
      if (!blocks[i].get(*raw) || !raw->copy_in(blocks[i].base, kept[i], options.size) || !raw->wait()) return false;
      if (!raw->host_free(kept[i], options.size)) return false;
      kept[i] = nullptr;
    }
    return true;
  }
};

// The same bytes in handles of whatever size is fastest here; also whether a handle is kept while it is mapped.
struct RawBest : Baseline {
  static constexpr const char *kName = "raw_best";
  static constexpr uint32_t kModes = kDrop;
  static constexpr uint32_t kTrials = 4;
  Range range;
  std::string chosen;

  bool open(const gmm_bench_pause_options &given) {
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
    chosen = "handles of " + size_text(best_size) + (best_early ? ", released once mapped" : "");
    return range.open(*raw, bytes, best_size);
  }
  // The median time of a pause and resume.
  bool trial(uint64_t handle_size, bool early, double *out) {
    range = Range();
    range.early = early;
    if (!range.open(*raw, options.blocks * options.size, handle_size)) return false;
    std::vector<double> times;
    for (uint32_t i = 0; i < kTrials; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      if (!range.give(*raw) || !range.get(*raw)) return false;
      times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    *out = median(times);
    return range.close(*raw);
  }
  void close() {
    if (raw != nullptr) complain(range.close(*raw));
  }
  void *block(uint64_t index) { return range.base + index * options.size; }
  bool pause() { return range.give(*raw); }
  bool resume() { return range.get(*raw); }
  std::string setting() { return chosen; }
};

// The copies alone: the memory stays mapped.
struct PinnedCopy : Baseline {
  static constexpr const char *kName = "pinned_memcpy";
  static constexpr uint32_t kModes = kWarm;
  Range range;
  char *host = nullptr;
  bool locked = false;

  uint64_t bytes() const { return options.blocks * options.size; }
  bool open(const gmm_bench_pause_options &given, bool pinned = true) {
    if (!Baseline::open(given) || !range.open(*raw, bytes(), options.size)) return false;
    host = touched_memory(bytes());
    if (host == nullptr) return failure = "no host memory", false;
    if (pinned && !raw->lock(host, bytes())) return false;
    locked = pinned;
    return true;
  }
  void close() {
    if (raw != nullptr) {
      complain(range.close(*raw));
      if (locked) complain(raw->unlock(host, bytes()));
    }
    if (host != nullptr) free_touched(host, bytes());
  }
  void *block(uint64_t index) { return range.base + index * options.size; }
  bool pause() {
    for (uint64_t i = 0; i < options.blocks; ++i)
      if (!raw->copy_out(host + i * options.size, range.base + i * options.size, options.size)) return false;
    return raw->wait();
  }
  bool resume() {
    for (uint64_t i = 0; i < options.blocks; ++i)
      if (!raw->copy_in(range.base + i * options.size, host + i * options.size, options.size)) return false;
    return raw->wait();
  }
};

// The same with memory that is touched, and not page-locked.
struct PageableCopy : PinnedCopy {
  static constexpr const char *kName = "pageable_memcpy";
  static constexpr uint32_t kModes = kPageable;
  bool open(const gmm_bench_pause_options &given) { return PinnedCopy::open(given, false); }
};

constexpr gmm_bench_pause_subject kOneHandle = make_pause_subject<OneHandle>();
constexpr gmm_bench_pause_subject kRawBest = make_pause_subject<RawBest>();
constexpr gmm_bench_pause_subject kPinnedCopy = make_pause_subject<PinnedCopy>();
constexpr gmm_bench_pause_subject kHostAlloc = make_pause_subject<HostAlloc>();
constexpr gmm_bench_pause_subject kPageableCopy = make_pause_subject<PageableCopy>();

}  // namespace

std::vector<const gmm_bench_pause_subject *> pause_baselines() {
  return {&kOneHandle, &kRawBest, &kPinnedCopy, &kHostAlloc, &kPageableCopy, direct_write_subject()};
}

}  // namespace gmm_bench
