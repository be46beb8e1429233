// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime's own allocators. cudaMallocAsync: the device's default pool, which keeps freed memory.
#include "cuda_peer.h"

namespace gmm_bench {
namespace {

// Each kind by the call that a program would use for it.
struct Malloc : CudaPeer {
  static constexpr const char *kName = "cudaMalloc";
  static constexpr uint32_t kKinds = 1u << GMM_BENCH_DEVICE | 1u << GMM_BENCH_HOST | 1u << GMM_BENCH_MANAGED;
  uint32_t kind = 0;

  bool open(const gmm_bench_options &options) {
    kind = options.kind;
    return CudaPeer::open(options);
  }
  void *allocate(uint64_t size, Stream) {
    void *block = nullptr;
    const cudaError_t result = kind == GMM_BENCH_DEVICE ? cudaMalloc(&block, size)
                               : kind == GMM_BENCH_HOST ? cudaMallocHost(&block, size)
                                                        : cudaMallocManaged(&block, size);
    return good(result, "cudaMalloc") ? block : nullptr;
  }
  bool deallocate(void *block, uint64_t, Stream) {
    return good(kind == GMM_BENCH_HOST ? cudaFreeHost(block) : cudaFree(block), "cudaFree");
  }
};

struct MallocAsync : CudaPeer {
  static constexpr const char *kName = "cudaMallocAsync";
  static constexpr uint32_t kKinds = 1u << GMM_BENCH_DEVICE;
  cudaMemPool_t pool = nullptr;
  uint64_t threshold = 0;  // before open()

  bool open(const gmm_bench_options &options) {
    if (!CudaPeer::open(options)) return false;
    if (!good(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool")) return pool = nullptr, false;
    uint64_t all = UINT64_MAX, none = 0;
    return good(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold),
                "cudaMemPoolGetAttribute") &&
           good(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "cudaMemPoolSetAttribute") &&
           good(cudaMemPoolTrimTo(pool, 0), "cudaMemPoolTrimTo") &&
           good(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReservedMemHigh, &none), "cudaMemPoolSetAttribute");
  }
  void close() {
    CudaPeer::close();
    if (pool == nullptr) return;
    complain(cudaMemPoolTrimTo(pool, 0), "cudaMemPoolTrimTo");
    complain(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold), "cudaMemPoolSetAttribute");
  }
  void *allocate(uint64_t size, Stream stream) {
    void *block = nullptr;
    return good(cudaMallocAsync(&block, size, stream), "cudaMallocAsync") ? block : nullptr;
  }
  bool deallocate(void *block, uint64_t, Stream stream) { return good(cudaFreeAsync(block, stream), "cudaFreeAsync"); }
  uint64_t attribute(cudaMemPoolAttr which) {
    uint64_t value = 0;
    return good(cudaMemPoolGetAttribute(pool, which, &value), "cudaMemPoolGetAttribute") ? value : GMM_BENCH_UNKNOWN;
  }
  uint64_t reserved() { return attribute(cudaMemPoolAttrReservedMemCurrent); }
  uint64_t peak_reserved() { return attribute(cudaMemPoolAttrReservedMemHigh); }
};

constexpr gmm_bench_subject kMalloc = make_subject<Malloc>();
constexpr gmm_bench_subject kMallocAsync = make_subject<MallocAsync>();
constexpr const gmm_bench_subject *kSubjects[] = {&kMalloc, &kMallocAsync};

}  // namespace
}  // namespace gmm_bench

const gmm_bench_subject *const *gmm_bench_subjects(uint32_t *count) {
  *count = 2;
  return gmm_bench::kSubjects;
}
