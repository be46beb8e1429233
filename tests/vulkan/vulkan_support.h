// SPDX-License-Identifier: Apache-2.0
// Vulkan for the tests: one device with one queue, buffers, and commands that are waited for.
//
// The loader is opened at run time, so that a machine without it skips the tests. GMM_TEST_VULKAN names another loader
// than libvulkan.so.1.
#ifndef GMM_TESTS_VULKAN_SUPPORT_H
#define GMM_TESTS_VULKAN_SUPPORT_H

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan.h>

#include "../support/gmm_test.h"

#define GLOBAL(name) extern PFN_##name name;
#define INSTANCE(name) GLOBAL(name)
#define DEVICE(name) GLOBAL(name)
#define OPTIONAL(name) GLOBAL(name)
#include "functions.def"
#undef GLOBAL
#undef INSTANCE
#undef DEVICE
#undef OPTIONAL

// Checks a result of Vulkan, and ends the case when it is none.
#define VK(call)                                                                 \
  do {                                                                           \
    const VkResult vk_r = (call);                                                \
    if (vk_r != VK_SUCCESS) {                                                    \
      check_failed(__FILE__, __LINE__, "%s gave VkResult %d", #call, (int)vk_r); \
      longjmp(check_state.leave, 1);                                             \
    }                                                                            \
  } while (0)

typedef struct vulkan {
  VkDevice device;
  VkQueue queue;
  VkCommandPool pool;
  VkPhysicalDeviceMemoryProperties memory;
  VkDeviceSize host_alignment;  // of host pointers that it imports; 0: it imports none
  bool has_memory_fd, has_semaphore_fd;
  char name[VK_MAX_PHYSICAL_DEVICE_NAME_SIZE];
} vulkan;
extern vulkan vk;

// Opens the CPU device for the host backend, else the device with the uuid. Returns NULL, or why there is none.
const char *vulkan_open(bool is_cpu, const uint8_t uuid[16]);
void vulkan_close(void);

// A buffer with memory, or over imported memory.
typedef struct buffer {
  VkBuffer buffer;
  VkDeviceMemory memory;
  void *mapped;  // of host_visible()
  VkDeviceSize allocated, size;
} buffer;
VkBuffer make_buffer(VkDeviceSize size, VkExternalMemoryHandleTypeFlags external);
uint32_t memory_type(uint32_t bits, VkMemoryPropertyFlags wanted);
buffer host_visible(VkDeviceSize size);
void end_buffer(buffer *of);

// A heap of VMM memory whose blocks have descriptors, or a skip.
gmm_heap *exportable_heap(gmm_tag tag);

// A buffer whose memory has descriptors, each of which the caller closes or gives away.
#define OPAQUE_FD VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT
buffer exported_buffer(VkDeviceSize size);
int export_memory(const buffer *of);
// Writes the pattern and imports the memory, which gmm_ipc_close() closes. `size` is the part that gmm has.
uint8_t *import_in_gmm(const buffer *of, uint32_t seed, uint64_t *size);

// A command buffer to record into; submit() also ends it. The last submission of each case is waited for.
VkCommandBuffer begin_commands(void);
void copy_buffer(VkCommandBuffer commands, VkBuffer from, VkBuffer to, VkDeviceSize size);
void submit(VkCommandBuffer commands, VkSemaphore wait, uint64_t wait_value, VkSemaphore signal, uint64_t signal_value);
void submit_and_wait(VkCommandBuffer commands);
VkSemaphore make_semaphore(bool is_timeline, bool is_exported);
// A descriptor of a semaphore, or a skip. As an event of gmm; on the host backend a timeline semaphore by functions.
int export_semaphore(VkSemaphore semaphore);
gmm_event *import_semaphore(VkSemaphore semaphore, bool is_timeline);
int32_t wait_in_vulkan(void *user, uint64_t value);
int32_t signal_in_vulkan(void *user, uint64_t value);

// A pattern through Vulkan: written to a buffer, and compared with its contents.
void vulkan_write(VkBuffer to, VkDeviceSize size, uint32_t seed);
void vulkan_check(int line, VkBuffer from, VkDeviceSize size, uint32_t seed);
#define VULKAN_CHECK(from, size, seed) vulkan_check(__LINE__, from, size, seed)

#endif
