// SPDX-License-Identifier: Apache-2.0
// Raw on the host: a handle is a memory file.
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "pause_raw.h"

namespace gmm_bench {
namespace {

class HostRaw : public Raw {
 public:
  HostRaw() {
    rlimit files = {};  // a file a block
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
      files.rlim_cur = files.rlim_max;
      (void)setrlimit(RLIMIT_NOFILE, &files);  // too few are told by create()
    }
  }

  bool reserve(uint64_t size, char **out) override {
    ++calls_;
    void *base = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *out = static_cast<char *>(base);
    return base != MAP_FAILED || failed("mmap");
  }
  bool unreserve(char *base, uint64_t size) override {
    ++calls_;
    return munmap(base, size) == 0 || failed("munmap");
  }
  bool create(uint64_t size, uint64_t *handle) override {
    ++calls_;
    const int file = memfd_create("gmm-bench", MFD_CLOEXEC);
    if (file < 0) return failed("memfd_create");
    if (ftruncate(file, static_cast<off_t>(size)) != 0) {
      failed("ftruncate");
      ::close(file);
      return false;
    }
    *handle = static_cast<uint64_t>(file);
    return true;
  }
  bool map(char *base, uint64_t size, uint64_t handle) override {
    ++calls_;
    return mmap(base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, static_cast<int>(handle), 0) !=
               MAP_FAILED ||
           failed("mmap");
  }
  bool set_access(char *, uint64_t) override { return true; }  // map() did
  bool unmap(char *base, uint64_t size) override {
    ++calls_;
    return mmap(base, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED ||
           failed("mmap");
  }
  bool release(uint64_t handle) override {
    ++calls_;
    return ::close(static_cast<int>(handle)) == 0 || failed("close");
  }

  bool host_alloc(uint64_t size, char **out) override {
    ++calls_;
    void *base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (base == MAP_FAILED) return failed("mmap");
    *out = static_cast<char *>(base);
    return lock(*out, size);
  }
  bool host_free(char *base, uint64_t size) override {
    ++calls_;
    return munmap(base, size) == 0 || failed("munmap");
  }
  // Past what `ulimit -l` allows, memory that is there already is as good for a copy by the processor.
  bool lock(char *base, uint64_t size) override {
    return mlock(base, size) == 0 || errno == ENOMEM || errno == EPERM || errno == EAGAIN || failed("mlock");
  }
  bool unlock(char *base, uint64_t size) override { return munlock(base, size) == 0 || failed("munlock"); }

  bool copy_out(char *host, const char *device, uint64_t size) override {
    std::memcpy(host, device, size);
    return true;
  }
  bool copy_in(char *device, const char *host, uint64_t size) override {
    std::memcpy(device, host, size);
    return true;
  }
  bool wait() override { return true; }

 private:
  bool failed(const char *what) { return fail(std::string(what) + ": " + std::strerror(errno)); }
};

}  // namespace

Raw *host_raw() {
  static HostRaw raw;
  return &raw;
}

Raw *open_raw(bool cuda, int32_t device, std::string *error) { return cuda ? cuda_raw(device, error) : host_raw(); }

char *touched_memory(uint64_t size) {
  constexpr uint64_t kHuge = uint64_t{2} << 20;
  void *base = mmap(nullptr, size + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  // Cut to what lies on huge pages.
  char *begin = static_cast<char *>(base), *end = begin + size + kHuge;
  char *first = reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(begin) + kHuge - 1) / kHuge * kHuge);
  if (first != begin) munmap(begin, static_cast<size_t>(first - begin));
  munmap(first + size, static_cast<size_t>(end - first) - size);
  (void)madvise(first, size, MADV_HUGEPAGE);  // where there are none it is slower, no more
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

}  // namespace gmm_bench
