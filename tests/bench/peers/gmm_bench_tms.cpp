// SPDX-License-Identifier: Apache-2.0
// torch_memory_saver from PyPI, by the C functions of its `torch` hook mode: those that PyTorch's pluggable allocator
// calls. Neither Python nor PyTorch is needed. GMM_BENCH_TMS: its library; GMM_BENCH_CUDART: the runtime that it is
// linked with.
//
// It ends the process by exit(1) when one of its calls fails.
#include <dlfcn.h>

#include <type_traits>
#include <vector>

#include "../pause_subject.h"

namespace gmm_bench {
namespace {

constexpr const char *kTag = "bench";

struct Library {
  void *(*malloc)(ssize_t size, int device, void *stream);
  void (*free)(void *block, ssize_t size, int device, void *stream);
  void (*set_region)(bool on);
  void (*set_tag)(const char *tag);
  void (*set_backup)(bool on);
  void (*set_retain)(bool on);
  int (*pause)(const char *tag);
  int (*resume)(const char *tag);

  // "" when all is there.
  std::string open() {
    // By its name it is found for the library below, wherever it lies.
    if (dlopen(GMM_BENCH_CUDART, RTLD_NOW | RTLD_LOCAL) == nullptr) return dlerror();
    void *object = dlopen(GMM_BENCH_TMS, RTLD_NOW | RTLD_LOCAL);
    if (object == nullptr) return dlerror();
    std::string missing;
    const auto find = [&](auto *out, const char *name) {
      *out = reinterpret_cast<std::remove_pointer_t<decltype(out)>>(dlsym(object, name));
      if (*out == nullptr) missing = std::string("its library has no ") + name;
    };
    find(&malloc, "tms_torch_malloc");
    find(&free, "tms_torch_free");
    find(&set_region, "tms_set_interesting_region");
    find(&set_tag, "tms_set_current_tag");
    find(&set_backup, "tms_set_enable_cpu_backup");
    find(&set_retain, "tms_set_retain_cpu_backup");
    find(&pause, "tms_pause");
    find(&resume, "tms_resume");
    if (void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        missing.empty() && driver != nullptr && dlsym(driver, "fake_cuda_live") != nullptr)
      return "the CUDA runtime does not start on the fake driver";
    return missing;
  }
};

struct MemorySaver : gmm_bench_pausing {
  static constexpr const char *kName = "torch_memory_saver";
  static constexpr uint32_t kModes = 1u << GMM_BENCH_PAUSE_DROP | 1u << GMM_BENCH_PAUSE_COLD;
  static constexpr bool kNeedsCuda = true;

  Library library = {};
  gmm_bench_pause_options options = {};
  std::vector<void *> blocks;
  bool paused = false;
  std::string failure;

  bool open(const gmm_bench_pause_options &given) override {
    options = given;
    failure = library.open();
    if (!failure.empty()) return false;
    library.set_retain(false);
    library.set_tag(kTag);
    library.set_backup(options.mode != GMM_BENCH_PAUSE_DROP);
    library.set_region(true);
    for (uint64_t i = 0; i < options.blocks; ++i) {
      void *block = library.malloc(static_cast<ssize_t>(options.size), options.device, nullptr);
      if (block == nullptr) return failure = "tms_torch_malloc gave nothing", false;
      blocks.push_back(block);
    }
    return true;
  }
  void close() override {
    if (paused) resume();  // it does not free paused memory
    for (void *block : blocks) library.free(block, static_cast<ssize_t>(options.size), options.device, nullptr);
    if (library.set_region != nullptr) library.set_region(false);
  }
  void *block(uint64_t index) override { return blocks[index]; }
  bool pause() override {
    paused = true;
    return done("tms_pause", library.pause(kTag));
  }
  bool resume() override {
    paused = false;
    return done("tms_resume", library.resume(kTag));
  }
  bool done(const char *name, int result) {
    return result == 0 || (failure = std::string(name) + " returned " + std::to_string(result), false);
  }
  std::string error() override { return failure; }
};

constexpr gmm_bench_pause_subject kSaver = make_pause_subject<MemorySaver>();
constexpr const gmm_bench_pause_subject *kSubjects[] = {&kSaver};

}  // namespace
}  // namespace gmm_bench

extern "C" __attribute__((visibility("default"))) const gmm_bench_pause_subject *const *gmm_bench_pause_subjects(
    uint32_t *count);
const gmm_bench_pause_subject *const *gmm_bench_pause_subjects(uint32_t *count) {
  *count = sizeof gmm_bench::kSubjects / sizeof *gmm_bench::kSubjects;
  return gmm_bench::kSubjects;
}
