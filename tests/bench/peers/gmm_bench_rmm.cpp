// SPDX-License-Identifier: Apache-2.0
// RMM's pool over cudaMalloc.
#include <exception>
#include <optional>
#include <rmm/aligned.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

#include "cuda_peer.h"

namespace gmm_bench {
namespace {

struct Pool : CudaPeer {
  static constexpr const char *kName = "rmm-pool";
  static constexpr uint32_t kKinds = 1u << GMM_BENCH_DEVICE;
  std::optional<rmm::mr::pool_memory_resource> resource;

  bool open(const gmm_bench_options &options) {
    if (!CudaPeer::open(options)) return false;
    try {
      resource.emplace(rmm::mr::cuda_memory_resource{}, size_t{1} << 30);  // grows
      return true;
    } catch (const std::exception &error) {
      failure = error.what();
      return false;
    }
  }
  void close() {
    if (!streams.empty()) complain(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    resource.reset();
    CudaPeer::close();
  }
  void *allocate(uint64_t size, Stream stream) {
    try {
      return resource->allocate(cuda::stream_ref{stream}, size, rmm::CUDA_ALLOCATION_ALIGNMENT);
    } catch (const std::exception &error) {
      failure = error.what();
      return nullptr;
    }
  }
  bool deallocate(void *block, uint64_t size, Stream stream) {
    resource->deallocate(cuda::stream_ref{stream}, block, size, rmm::CUDA_ALLOCATION_ALIGNMENT);
    return true;
  }
  uint64_t reserved() { return resource->pool_size(); }
};

constexpr gmm_bench_subject kPool = make_subject<Pool>();
constexpr const gmm_bench_subject *kSubjects[] = {&kPool};

}  // namespace
}  // namespace gmm_bench

const gmm_bench_subject *const *gmm_bench_subjects(uint32_t *count) {
  *count = 1;
  return gmm_bench::kSubjects;
}
