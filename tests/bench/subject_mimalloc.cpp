// SPDX-License-Identifier: Apache-2.0
// mimalloc, opened at run time and on its own, so that the program's malloc stays glibc's.
#include <dlfcn.h>

#include "subject_loops.h"
#include "subjects.h"

namespace gmm_bench {
namespace {

struct Mimalloc : PlainPeer {
  static constexpr const char *kName = "mimalloc";

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
  void *allocate(uint64_t size, Stream) { return allocate_(size); }
  bool deallocate(void *block, uint64_t, Stream) { return free_(block), true; }
  // No reserved(): mi_process_info() of mimalloc 2.0 counts all bytes that were ever committed.
  std::string error() { return failure.empty() ? "no memory" : failure; }
};

constexpr gmm_bench_subject kMimalloc = make_subject<Mimalloc>();

}  // namespace

const gmm_bench_subject *mimalloc_subject() { return &kMimalloc; }

}  // namespace gmm_bench
