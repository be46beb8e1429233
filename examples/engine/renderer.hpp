// SPDX-License-Identifier: Apache-2.0
// The engine's Vulkan: it draws points from gmm's memory into gmm's memory. It allocates nothing for either: every
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
  // The palette of the next frames. The last frame that used another one is done.
  void set_palette(const view &palette) const;
  // Queues a frame: waits for one value of the timeline, draws, copies the picture out, and signals the next.
  void draw(const view &mesh, uint32_t mesh_points, const view &particles, uint32_t particle_count, const view &pixels,
            uint64_t wait, uint64_t signal);

 private:
  const char *find(bool is_cpu, const uint8_t uuid[16]);
  uint32_t memory_type(uint32_t bits, VkMemoryPropertyFlags wanted) const;
  void make_target();
  void make_pipeline();
  void barrier(VkImageLayout from, VkImageLayout to, VkAccessFlags before, VkAccessFlags after) const;

  bool is_cpu_ = false;
  VkInstance instance_ = nullptr;
  VkPhysicalDevice physical_ = nullptr;
  VkPhysicalDeviceProperties properties_ = {};
  VkDevice device_ = nullptr;
  VkQueue queue_ = nullptr;
  VkCommandPool pool_ = VK_NULL_HANDLE;
  VkCommandBuffer commands_ = nullptr;
  VkSemaphore timeline_ = VK_NULL_HANDLE;
  VkImage target_ = VK_NULL_HANDLE;
  VkDeviceMemory target_memory_ = VK_NULL_HANDLE;
  VkImageView target_view_ = VK_NULL_HANDLE;
  VkDescriptorSetLayout set_layout_ = VK_NULL_HANDLE;
  VkDescriptorPool set_pool_ = VK_NULL_HANDLE;
  VkDescriptorSet set_ = VK_NULL_HANDLE;
  VkPipelineLayout layout_ = VK_NULL_HANDLE;
  VkPipeline pipeline_ = VK_NULL_HANDLE;
};

#endif
