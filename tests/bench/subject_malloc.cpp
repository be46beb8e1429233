// SPDX-License-Identifier: Apache-2.0
// The host's allocators. mimalloc and jemalloc are opened at run time and on their own, so that the program's malloc
// stays glibc's.
#include <dlfcn.h>
#include <malloc.h>

#include <cstdlib>
#include <initializer_list>

#include "subject_loops.h"
#include "subjects.h"

namespace gmm_bench {
namespace {

struct NoStream {};

struct HostPeer {
  static constexpr uint32_t kKinds = 1u << GMM_BENCH_SYSTEM;
  static constexpr bool kNeedsCuda = false;
  using Stream = NoStream;

  std::string failure;

  NoStream stream(uint32_t) { return {}; }
  bool thread_begin() { return true; }
  void thread_end() {}
  void close() {}
  uint64_t peak_reserved() { return GMM_BENCH_UNKNOWN; }
  uint64_t backend_calls() { return GMM_BENCH_UNKNOWN; }
  std::string error() { return failure.empty() ? "no memory" : failure; }

  // Stays open: threads may have memory of it until they end.
  void *library(std::initializer_list<const char *> names, const char *package) {
    for (const char *name : names)
      if (void *found = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return found;
    failure = std::string(dlerror()) + " (Debian and Ubuntu: apt-get install " + package + ")";
    return nullptr;
  }

  template <typename Function>
  bool symbol(void *object, const char *name, Function **out) {
    *out = reinterpret_cast<Function *>(dlsym(object, name));
    if (*out == nullptr) failure = std::string("no ") + name + "() in the library";
    return *out != nullptr;
  }
};

struct Malloc : HostPeer {
  static constexpr const char *kName = "malloc";
  uint64_t before =
      0;  // what the benchmark itself uses; free memory that malloc holds counts as held for whoever gets it

  bool open(const gmm_bench_options &) {
    malloc_trim(0);  // what another trace left
    const struct mallinfo2 info = mallinfo2();
    before = info.uordblks + info.hblkhd;
    return true;
  }
  void *allocate(uint64_t size, Stream) { return std::malloc(size); }
  bool deallocate(void *block, uint64_t, Stream) { return std::free(block), true; }
  uint64_t reserved() {
    const struct mallinfo2 info = mallinfo2();
    const uint64_t now = info.arena + info.hblkhd;
    return now > before ? now - before : 0;
  }
};

struct Mimalloc : HostPeer {
  static constexpr const char *kName = "mimalloc";
  void *(*allocate_)(size_t) = nullptr;
  void (*free_)(void *) = nullptr;

  bool open(const gmm_bench_options &) {
    void *object = library({"libmimalloc.so.2", "libmimalloc.so.3", "libmimalloc.so"}, "libmimalloc-dev");
    return object != nullptr && symbol(object, "mi_malloc", &allocate_) && symbol(object, "mi_free", &free_);
  }
  void *allocate(uint64_t size, Stream) { return allocate_(size); }
  bool deallocate(void *block, uint64_t, Stream) { return free_(block), true; }
  // mi_process_info() of mimalloc 2.0 counts what was ever committed.
  uint64_t reserved() { return GMM_BENCH_UNKNOWN; }
};

struct Jemalloc : HostPeer {
  static constexpr const char *kName = "jemalloc";
  void *(*allocate_)(size_t, int) = nullptr;
  void (*free_)(void *, size_t, int) = nullptr;
  int (*control_)(const char *, void *, size_t *, void *, size_t) = nullptr;

  bool open(const gmm_bench_options &) {
    void *object = library({"libjemalloc.so.2"}, "libjemalloc-dev");
    return object != nullptr && symbol(object, "mallocx", &allocate_) && symbol(object, "sdallocx", &free_) &&
           symbol(object, "mallctl", &control_);
  }
  void *allocate(uint64_t size, Stream) { return allocate_(size, 0); }
  bool deallocate(void *block, uint64_t size, Stream) { return free_(block, size, 0), true; }
  uint64_t reserved() {
    uint64_t epoch = 1;
    size_t mapped = 0, size = sizeof mapped;
    if (control_("epoch", nullptr, nullptr, &epoch, sizeof epoch) != 0) return GMM_BENCH_UNKNOWN;
    return control_("stats.mapped", &mapped, &size, nullptr, 0) == 0 ? mapped : GMM_BENCH_UNKNOWN;
  }
};

constexpr gmm_bench_subject kMalloc = make_subject<Malloc>();
constexpr gmm_bench_subject kMimalloc = make_subject<Mimalloc>();
constexpr gmm_bench_subject kJemalloc = make_subject<Jemalloc>();

}  // namespace

const gmm_bench_subject *malloc_subject() { return &kMalloc; }
const gmm_bench_subject *mimalloc_subject() { return &kMimalloc; }
const gmm_bench_subject *jemalloc_subject() { return &kJemalloc; }

}  // namespace gmm_bench
