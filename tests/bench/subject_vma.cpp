// SPDX-License-Identifier: Apache-2.0
// Vulkan Memory Allocator's virtual allocator: it places blocks in an address range and needs no device. Engines place
// their buffers in large Vulkan allocations by the same code.
#include "subjects.h"

#if __has_include(<vk_mem_alloc.h>)

#include "subject_loops.h"

#define VMA_IMPLEMENTATION
#define VMA_STATIC_VULKAN_FUNCTIONS 0
#define VMA_DYNAMIC_VULKAN_FUNCTIONS 0
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wimplicit-fallthrough"
#pragma GCC diagnostic ignored "-Wparentheses"
#pragma GCC diagnostic ignored "-Wundef"
#include <vk_mem_alloc.h>
#pragma GCC diagnostic pop

namespace gmm_bench {
namespace {

struct Vma {
  static constexpr const char *kName = "vma-virtual";
  static constexpr uint32_t kKinds = 1u << GMM_BENCH_SYSTEM;
  static constexpr bool kNeedsCuda = false;
  struct Stream {};

  VmaVirtualBlock block = VK_NULL_HANDLE;

  bool open(const gmm_bench_options &) {
    VmaVirtualBlockCreateInfo info = {};
    info.size = VkDeviceSize{4} << 30;
    return vmaCreateVirtualBlock(&info, &block) == VK_SUCCESS;
  }
  void close() {
    if (block == VK_NULL_HANDLE) return;
    vmaClearVirtualBlock(block);
    vmaDestroyVirtualBlock(block);
    block = VK_NULL_HANDLE;
  }
  Stream stream(uint32_t) { return {}; }
  bool thread_begin() { return true; }
  void thread_end() {}
  void *allocate(uint64_t size, Stream) {
    VmaVirtualAllocationCreateInfo info = {};
    info.size = size;
    info.alignment = 256;
    VmaVirtualAllocation made = VK_NULL_HANDLE;
    VkDeviceSize offset = 0;
    return vmaVirtualAllocate(block, &info, &made, &offset) == VK_SUCCESS ? reinterpret_cast<void *>(made) : nullptr;
  }
  bool deallocate(void *made, uint64_t, Stream) {
    vmaVirtualFree(block, reinterpret_cast<VmaVirtualAllocation>(made));
    return true;
  }
  uint64_t reserved() { return GMM_BENCH_UNKNOWN; }
  uint64_t peak_reserved() { return GMM_BENCH_UNKNOWN; }
  uint64_t backend_calls() { return GMM_BENCH_UNKNOWN; }
  std::string error() { return "the virtual block has no room"; }
};

constexpr gmm_bench_subject kVma = make_subject<Vma>();

}  // namespace

const gmm_bench_subject *vma_subject() { return &kVma; }

}  // namespace gmm_bench

#else

namespace gmm_bench {

const gmm_bench_subject *vma_subject() { return nullptr; }

}  // namespace gmm_bench

#endif
