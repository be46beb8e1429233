// SPDX-License-Identifier: Apache-2.0
// The engine's Vulkan: a compute shader draws points from gmm's memory into gmm's memory. It allocates nothing: every
// buffer lies in memory that the caller names.
#ifndef ENGINE_RENDERER_HPP
#define ENGINE_RENDERER_HPP

#include <vulkan/vulkan.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "particles.hpp"

#define VK(call)                                                                     \
  do {                                                                               \
    const VkResult vk_result = (call);                                               \
    if (vk_result != VK_SUCCESS) {                                                   \
      std::fprintf(stderr, "%s: VkResult %d\n", #call, static_cast<int>(vk_result)); \
      std::exit(1);                                                                  \
    }                                                                                \
  } while (0)

// A source of memory: an address of the CPU, or a descriptor, which Vulkan takes over.
struct memory_source {
  void *address = nullptr;
  int fd = -1;
  uint64_t size = 0;    // of the whole allocation
  uint64_t offset = 0;  // of the block in it
};

// A block as Vulkan sees it.
struct view {
  VkBuffer buffer = VK_NULL_HANDLE;
  VkDeviceMemory memory = VK_NULL_HANDLE;
};

class renderer {
 public:
  static constexpr uint32_t kWidth = 480, kHeight = 270;

  // The CPU device, or the one with the uuid. Returns nullptr, or why there is none.
  const char *open(bool is_cpu, const uint8_t uuid[16]);
  void close();
  const char *name() const { return properties_.deviceName; }
  VkDevice device() const { return device_; }
  VkSemaphore timeline() const { return timeline_; }
  int timeline_fd() const;  // the caller closes it

  view import(const memory_source &source, uint64_t size) const;
  void end(view *of) const;
  // The buffers of the next frames, which have so many points. The last frame is done.
  void bind(const view &mesh, const view &particles, const view &palette, const view &pixels, uint32_t points) const;
  // Queues a frame: waits for one value of the timeline, adds light to the pixels, and signals the next value.
  void draw(uint64_t wait, uint64_t signal) const;

 private:
  static constexpr uint32_t kBuffers = 4;
  const char *find(bool is_cpu, const uint8_t uuid[16]);
  void make_pipeline();

  bool is_cpu_ = false;
  VkInstance instance_ = nullptr;
  VkPhysicalDevice physical_ = nullptr;
  VkPhysicalDeviceProperties properties_ = {};
  VkDevice device_ = nullptr;
  VkQueue queue_ = nullptr;
  VkCommandPool pool_ = VK_NULL_HANDLE;
  VkCommandBuffer commands_ = nullptr;
  VkSemaphore timeline_ = VK_NULL_HANDLE;
  VkDescriptorSetLayout set_layout_ = VK_NULL_HANDLE;
  VkDescriptorPool set_pool_ = VK_NULL_HANDLE;
  VkDescriptorSet set_ = VK_NULL_HANDLE;
  VkPipelineLayout layout_ = VK_NULL_HANDLE;
  VkPipeline pipeline_ = VK_NULL_HANDLE;
};

#endif
