// SPDX-License-Identifier: Apache-2.0
// RMM's pool and arena over cudaMalloc, and its resource over cudaMallocAsync.
#include <algorithm>
#include <exception>
#include <optional>
#include <rmm/aligned.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_async_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include "cuda_peer.h"

namespace gmm_bench {
namespace {

struct Pool {
  static constexpr const char *kName = "rmm-pool";
  rmm::mr::pool_memory_resource resource{rmm::mr::cuda_memory_resource{}, size_t{1} << 30};  // grows
  uint64_t reserved() { return resource.pool_size(); }
};

struct Arena {
  static constexpr const char *kName = "rmm-arena";
  // It takes all of its memory at once, by itself half of the device's, which other subjects of a run need too.
  static uint64_t size() {
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) return 0;
    return std::min<uint64_t>(uint64_t{16} << 30, free / 4) & ~((uint64_t{1} << 21) - 1);
  }
  uint64_t bytes = size();
  rmm::mr::arena_memory_resource resource{rmm::mr::cuda_memory_resource{}, bytes};
  uint64_t reserved() { return bytes; }
};

struct Async {
  static constexpr const char *kName = "rmm-async";
  rmm::mr::cuda_async_memory_resource resource{};
  uint64_t reserved() {
    uint64_t value = 0;
    return cudaMemPoolGetAttribute(resource.pool_handle(), cudaMemPoolAttrReservedMemCurrent, &value) == cudaSuccess
               ? value
               : GMM_BENCH_UNKNOWN;
  }
};

template <typename Resource>
struct Rmm : CudaPeer {
  static constexpr const char *kName = Resource::kName;
  static constexpr uint32_t kKinds = 1u << GMM_BENCH_DEVICE;
  std::optional<Resource> held;

  bool open(const gmm_bench_options &options) {
    if (!CudaPeer::open(options)) return false;
    try {
      held.emplace();
      return true;
    } catch (const std::exception &error) {
      failure = error.what();
      return false;
    }
  }
  void close() {
    if (!streams.empty()) complain(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    held.reset();
    CudaPeer::close();
  }
  void *allocate(uint64_t size, Stream stream) {
    try {
      return held->resource.allocate(cuda::stream_ref{stream}, size, rmm::CUDA_ALLOCATION_ALIGNMENT);
    } catch (const std::exception &error) {
      failure = error.what();
      return nullptr;
    }
  }
  bool deallocate(void *block, uint64_t size, Stream stream) {
    held->resource.deallocate(cuda::stream_ref{stream}, block, size, rmm::CUDA_ALLOCATION_ALIGNMENT);
    return true;
  }
  uint64_t reserved() { return held->reserved(); }
};

constexpr gmm_bench_subject kPool = make_subject<Rmm<Pool>>();
constexpr gmm_bench_subject kArena = make_subject<Rmm<Arena>>();
constexpr gmm_bench_subject kAsync = make_subject<Rmm<Async>>();
constexpr const gmm_bench_subject *kSubjects[] = {&kPool, &kArena, &kAsync};

}  // namespace
}  // namespace gmm_bench

const gmm_bench_subject *const *gmm_bench_subjects(uint32_t *count) {
  *count = 3;
  return gmm_bench::kSubjects;
}
