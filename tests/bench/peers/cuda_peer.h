// SPDX-License-Identifier: Apache-2.0
// The base of peers on CUDA: the device, a stream for each index, and the text of an error.
#ifndef GMM_BENCH_PEERS_CUDA_PEER_H
#define GMM_BENCH_PEERS_CUDA_PEER_H

#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "../subject_loops.h"

namespace gmm_bench {

struct CudaPeer {
  static constexpr bool kNeedsCuda = true;
  using Stream = cudaStream_t;

  int device = 0;
  std::vector<cudaStream_t> streams;
  static inline thread_local std::string failure;

  // True for cudaSuccess; else sets the error and clears CUDA's own.
  bool good(cudaError_t result, const char *what) {
    if (__builtin_expect(result == cudaSuccess, 1)) return true;
    failure = std::string(what) + ": " + cudaGetErrorName(result) + ": " + cudaGetErrorString(result);
    (void)cudaGetLastError();
    return false;
  }

  bool open(const gmm_bench_options &options) {
    device = options.device;
    if (!good(cudaSetDevice(device), "cudaSetDevice")) return false;
    streams.assign(options.stream_count, nullptr);
    for (uint32_t i = 1; i < options.stream_count; ++i)
      if (!good(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), "cudaStreamCreateWithFlags"))
        return false;
    return true;
  }

  void close() {
    if (streams.empty()) return;  // the device did not even open
    complain(cudaSetDevice(device), "cudaSetDevice");
    complain(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    for (cudaStream_t stream : streams)
      if (stream != nullptr) complain(cudaStreamDestroy(stream), "cudaStreamDestroy");
    streams.clear();
  }

  void complain(cudaError_t result, const char *what) {
    if (!good(result, what)) std::fprintf(stderr, "gmm-bench: warning: %s\n", failure.c_str());
  }

  Stream stream(uint32_t index) { return streams[index]; }
  bool thread_begin() { return good(cudaSetDevice(device), "cudaSetDevice"); }
  void thread_end() {}
  uint64_t reserved() { return GMM_BENCH_UNKNOWN; }
  uint64_t peak_reserved() { return GMM_BENCH_UNKNOWN; }
  uint64_t backend_calls() { return GMM_BENCH_UNKNOWN; }
  std::string error() { return failure; }
};

}  // namespace gmm_bench

extern "C" __attribute__((visibility("default"))) const gmm_bench_subject *const *gmm_bench_subjects(uint32_t *count);
#endif
