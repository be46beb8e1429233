// SPDX-License-Identifier: Apache-2.0
// mimalloc, opened at run time and on its own, so that the program's malloc stays glibc's.
#include <dlfcn.h>

#include "subject_loops.h"
#include "subjects.h"

namespace gmm_bench {
namespace {

struct Mimalloc {
  static constexpr const char *kName = "mimalloc";
  static constexpr uint32_t kKinds = 1u << GMM_BENCH_SYSTEM;
  static constexpr bool kNeedsCuda = false;
  struct Stream {};

  void *(*allocate_)(size_t) = nullptr;
  void (*free_)(void *) = nullptr;
  std::string failure;

  // Stays open: threads may have memory of it until they end.
  bool open(const gmm_bench_options &) {
    void *object = nullptr;
    for (const char *name : {"libmimalloc.so.2", "libmimalloc.so.3", "libmimalloc.so"})
      if (object == nullptr) object = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (object == nullptr) {
      failure = std::string(dlerror()) + " (Debian and Ubuntu: apt-get install libmimalloc-dev)";
      return false;
    }
    allocate_ = reinterpret_cast<decltype(allocate_)>(dlsym(object, "mi_malloc"));
    free_ = reinterpret_cast<decltype(free_)>(dlsym(object, "mi_free"));
    if (allocate_ == nullptr || free_ == nullptr) failure = "no mi_malloc() or mi_free() in the library";
    return failure.empty();
  }
  void close() {}
  Stream stream(uint32_t) { return {}; }
  bool thread_begin() { return true; }
  void thread_end() {}
  void *allocate(uint64_t size, Stream) { return allocate_(size); }
  bool deallocate(void *block, uint64_t, Stream) { return free_(block), true; }
  // mi_process_info() of mimalloc 2.0 counts all that was ever committed.
  uint64_t reserved() { return GMM_BENCH_UNKNOWN; }
  uint64_t peak_reserved() { return GMM_BENCH_UNKNOWN; }
  uint64_t backend_calls() { return GMM_BENCH_UNKNOWN; }
  std::string error() { return failure.empty() ? "no memory" : failure; }
};

constexpr gmm_bench_subject kMimalloc = make_subject<Mimalloc>();

}  // namespace

const gmm_bench_subject *mimalloc_subject() { return &kMimalloc; }

}  // namespace gmm_bench
