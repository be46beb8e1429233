// SPDX-License-Identifier: Apache-2.0
// gmm's pause as its users call it: blocks under a tag, and the public interface.
#include <cstdio>
#include <cstring>

#include "subjects.h"

namespace gmm_bench {
namespace {

struct GmmPause : gmm_bench_pausing {
  static constexpr const char *kName = "gmm";
  static constexpr uint32_t kModes = 1u << GMM_BENCH_PAUSE_DROP | 1u << GMM_BENCH_PAUSE_WARM |
                                     1u << GMM_BENCH_PAUSE_COLD | 1u << GMM_BENCH_PAUSE_PAGEABLE |
                                     1u << GMM_BENCH_PAUSE_FILE;
  static constexpr bool kNeedsCuda = false;

  gmm_context *context = nullptr;
  gmm_tag tag = 0;
  std::vector<void *> blocks;
  uint64_t bytes = 0;
  std::string failure;

  // GMM_UNCHANGED: nothing was paused or resumed.
  bool good(gmm_result result, const char *what) {
    if (result == GMM_OK) return true;
    failure = std::string(what) + ": " + gmm_result_name(result);
    if (result < 0) failure += std::string(": ") + gmm_last_error_message();
    return false;
  }

  bool open(const gmm_bench_pause_options &options) override {
    gmm_backup_desc backup = {};
    backup.struct_size = sizeof backup;
    if (options.mode == GMM_BENCH_PAUSE_PAGEABLE) backup.flags = GMM_BACKUP_NO_ARENA;
    backup.directory = options.directory;
    // By default the arena has the memory that the host can spare now. Here all contents must fit.
    if (options.mode == GMM_BENCH_PAUSE_WARM || options.mode == GMM_BENCH_PAUSE_COLD)
      backup.arena_limit = 2 * options.blocks * options.size;
    gmm_tag_desc kept = {};
    kept.struct_size = sizeof kept;
    kept.contents = options.mode == GMM_BENCH_PAUSE_DROP   ? GMM_CONTENTS_DROP
                    : options.mode == GMM_BENCH_PAUSE_FILE ? GMM_CONTENTS_FILE
                                                           : GMM_CONTENTS_HOST;
    if (!good(create_gmm_context(&context), "gmm_context_create") ||
        !good(gmm_backup_configure(context, &backup), "gmm_backup_configure") ||
        !good(gmm_tag_create(context, "bench", &kept, &tag), "gmm_tag_create") ||
        !good(gmm_tag_push(context, tag), "gmm_tag_push"))
      return false;
    gmm_alloc_desc block = {};
    block.struct_size = sizeof block;
    block.kind = GMM_KIND_VMM;
    block.device = options.device;
    bytes = options.blocks * options.size;
    for (uint64_t i = 0; i < options.blocks; ++i)
      if (!good(gmm_alloc(context, options.size, &block, &blocks.emplace_back()), "gmm_alloc")) return false;
    return good(gmm_tag_pop(context), "gmm_tag_pop");
  }
  void close() override {
    if (context == nullptr) return;
    if (!good(gmm_reset(context), "gmm_reset") || !good(gmm_context_release(context), "gmm_context_release"))
      std::fprintf(stderr, "gmm-bench: warning: %s\n", failure.c_str());
  }

  void *block(uint64_t index) override { return blocks[index]; }

  bool pause() override { return change("gmm_pause", gmm_pause); }
  bool resume() override { return change("gmm_resume", gmm_resume); }
  bool change(const char *name, decltype(&gmm_pause) function) {
    gmm_pause_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.tags = &tag;
    desc.tag_count = 1;
    uint64_t changed = 0;
    if (!good(function(context, &desc, &changed), name)) return false;
    // At least the blocks: the heap's free memory pauses too.
    return changed >= bytes || (failure = std::string(name) + ": " + std::to_string(changed) + " bytes changed, of " +
                                          std::to_string(bytes),
                                false);
  }

  uint64_t calls() override {
    gmm_stats_info out = {};
    out.struct_size = sizeof out;
    return gmm_stats_query(context, nullptr, &out) == GMM_OK ? out.backend_calls : GMM_BENCH_UNKNOWN;
  }
  std::string error() override { return failure; }
};

constexpr gmm_bench_pause_subject kGmmPause = make_pause_subject<GmmPause>();

}  // namespace

const gmm_bench_pause_subject *gmm_pause_subject() { return &kGmmPause; }

}  // namespace gmm_bench
