// SPDX-License-Identifier: Apache-2.0
// PyTorch's caching allocator as libtorch calls it, with default and with expandable segments.
//
// PyTorch has one allocator in a process, and its setting holds for all of it: the first of the two that is opened
// decides, and the other one says so. Compare both by two runs with --subject; gmm is in each of them.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <exception>

#include "cuda_peer.h"

namespace gmm_bench {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

enum class Segments { kUndecided, kDefault, kExpandable };
Segments decided = Segments::kUndecided;
bool is_open = false;

template <Segments kSegments>
struct PyTorch : CudaPeer {
  static constexpr bool kExpandable = kSegments == Segments::kExpandable;
  static constexpr const char *kName = kExpandable ? "pytorch-expandable" : "pytorch";
  // Expandable segments are mappings, as gmm's kind VMM is.
  static constexpr uint32_t kKinds = kExpandable ? 1u << GMM_BENCH_VMM : 1u << GMM_BENCH_DEVICE;
  bool mine = false;

  template <typename Call>
  bool attempt(Call call) {
    try {
      call();
      return true;
    } catch (const std::exception &error) {
      failure = error.what();
      failure = failure.substr(0, failure.find('\n'));  // the rest is a stack
      return false;
    }
  }

  bool open(const gmm_bench_options &options) {
    if (decided != Segments::kUndecided && decided != kSegments)
      return failure = std::string("PyTorch's allocator is one for the process, and has ") +
                       (kExpandable ? "default" : "expandable") + " segments here; run again with --subject gmm," +
                       kName,
             false;
    if (is_open) return failure = "PyTorch's allocator is one for the process, and is open already", false;
    if (!CudaPeer::open(options)) return false;
    const bool good = attempt([&] {
      if (decided == Segments::kUndecided) {
        int count = 0;
        if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
        allocator::setAllocatorSettings(kExpandable ? "expandable_segments:True" : "expandable_segments:False");
        allocator::init(count);
        decided = kSegments;
      }
      allocator::emptyCache();
      allocator::resetPeakStats(static_cast<c10::DeviceIndex>(device));
    });
    calls_before = good ? calls() : 0;
    is_open = mine = good;
    return good;
  }
  void close() {
    // Before the streams go, which expandable segments wait for when they are unmapped.
    if (mine) {
      complain(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      if (!attempt([] { allocator::emptyCache(); })) std::fprintf(stderr, "gmm-bench: warning: %s\n", failure.c_str());
      is_open = false;
    }
    CudaPeer::close();
  }

  void *allocate(uint64_t size, Stream stream) {
    try {
      return allocator::raw_alloc_with_stream(size, stream);
    } catch (const std::exception &error) {
      failure = error.what();
      return nullptr;
    }
  }
  bool deallocate(void *block, uint64_t, Stream) {
    try {
      allocator::raw_delete(block);
      return true;
    } catch (const std::exception &error) {
      failure = error.what();
      return false;
    }
  }
  bool use(void *block, Stream stream) {
    return attempt([&] {
      const auto index = static_cast<c10::DeviceIndex>(device);
      // recordStream() takes only a pointer with this deleter. The block stays ours.
      c10::DataPtr data(block, block, allocator::get()->raw_deleter(), c10::Device(c10::DeviceType::CUDA, index));
      allocator::recordStream(data, c10::cuda::getStreamFromExternal(stream, index));
      (void)data.release_context();
    });
  }

  c10::CachingDeviceAllocator::DeviceStats stats() {
    return allocator::getDeviceStats(static_cast<c10::DeviceIndex>(device));
  }
  static constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  uint64_t reserved() { return static_cast<uint64_t>(stats().reserved_bytes[kAll].current); }
  uint64_t peak_reserved() { return static_cast<uint64_t>(stats().reserved_bytes[kAll].peak); }
  uint64_t calls() {
    const auto now = stats();
    return static_cast<uint64_t>(now.num_device_alloc + now.num_device_free);
  }
  uint64_t calls_before = 0;
  uint64_t backend_calls() { return calls() - calls_before; }
};

constexpr gmm_bench_subject kDefault = make_subject<PyTorch<Segments::kDefault>>();
constexpr gmm_bench_subject kExpandable = make_subject<PyTorch<Segments::kExpandable>>();
constexpr const gmm_bench_subject *kSubjects[] = {&kDefault, &kExpandable};

}  // namespace
}  // namespace gmm_bench

const gmm_bench_subject *const *gmm_bench_subjects(uint32_t *count) {
  *count = 2;
  return gmm_bench::kSubjects;
}
