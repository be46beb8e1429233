// SPDX-License-Identifier: Apache-2.0
#include "vulkan_support.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>

#define VULKAN(from, name) PFN_##name name;
#include "functions.def"

vulkan vk;

enum { GLOBAL, INSTANCE, DEVICE };
static void *loader;
static VkInstance instance;

static bool has_extension(VkPhysicalDevice device, const char *name) {
  static VkExtensionProperties all[512];
  uint32_t count = sizeof all / sizeof *all;
  vkEnumerateDeviceExtensionProperties(device, NULL, &count, all);
  for (uint32_t i = 0; i < count; ++i)
    if (strcmp(all[i].extensionName, name) == 0) return true;
  return false;
}

// The device that the context means, or NULL.
static VkPhysicalDevice find_device(bool is_cpu, const uint8_t uuid[16]) {
  VkPhysicalDevice devices[16];
  uint32_t count = 16;
  if (vkEnumeratePhysicalDevices(instance, &count, devices) < 0) return NULL;
  for (uint32_t i = 0; i < count; ++i) {
    VkPhysicalDeviceExternalMemoryHostPropertiesEXT host = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT};
    VkPhysicalDeviceIDProperties id = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES, .pNext = &host};
    VkPhysicalDeviceProperties2 properties = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &id};
    vkGetPhysicalDeviceProperties2(devices[i], &properties);
    const bool fits = is_cpu ? properties.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU
                             : memcmp(id.deviceUUID, uuid, VK_UUID_SIZE) == 0;
    if (!fits || properties.properties.apiVersion < VK_API_VERSION_1_2) continue;
    memcpy(vk.name, properties.properties.deviceName, sizeof vk.name);
    if (has_extension(devices[i], VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME))
      vk.host_alignment = host.minImportedHostPointerAlignment;
    return devices[i];
  }
  return NULL;
}

static const char *open_device(VkPhysicalDevice physical) {
  const char *names[4];
  uint32_t count = 0;
  vk.has_memory_fd = has_extension(physical, VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME);
  vk.has_semaphore_fd = has_extension(physical, VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME);
  if (vk.has_memory_fd) names[count++] = VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME;
  if (vk.has_semaphore_fd) names[count++] = VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME;
  if (vk.host_alignment != 0) names[count++] = VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME;
  VkQueueFamilyProperties families[16];
  uint32_t family_count = 16, family = 0;
  vkGetPhysicalDeviceQueueFamilyProperties(physical, &family_count, families);
  while (family < family_count && (families[family].queueFlags & VK_QUEUE_GRAPHICS_BIT) == 0) ++family;
  for (uint32_t i = 0; family == family_count && i < family_count; ++i)  // a GPU for computing alone
    if ((families[i].queueFlags & VK_QUEUE_COMPUTE_BIT) != 0) family = i;
  if (family == family_count) return "the Vulkan device has no queue for graphics or compute";
  const float priority = 1;
  const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                         .queueFamilyIndex = family,
                                         .queueCount = 1,
                                         .pQueuePriorities = &priority};
  VkPhysicalDeviceTimelineSemaphoreFeatures timeline = {
      .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES, .timelineSemaphore = VK_TRUE};
  const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                   .pNext = &timeline,
                                   .queueCreateInfoCount = 1,
                                   .pQueueCreateInfos = &queue,
                                   .enabledExtensionCount = count,
                                   .ppEnabledExtensionNames = names};
  if (vkCreateDevice(physical, &info, NULL, &vk.device) != VK_SUCCESS) return "vkCreateDevice() failed";
#define VULKAN(from, name) \
  if (from == DEVICE) name = (PFN_##name)vkGetDeviceProcAddr(vk.device, #name);
#include "functions.def"
  vkGetDeviceQueue(vk.device, family, 0, &vk.queue);
  vkGetPhysicalDeviceMemoryProperties(physical, &vk.memory);
  const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                        .queueFamilyIndex = family};
  return vkCreateCommandPool(vk.device, &pool, NULL, &vk.pool) == VK_SUCCESS ? NULL : "vkCreateCommandPool() failed";
}

const char *vulkan_open(bool is_cpu, const uint8_t uuid[16]) {
  const char *path = getenv("GMM_TEST_VULKAN");
  loader = dlopen(path != NULL ? path : "libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
  if (loader == NULL) return "there is no Vulkan loader (Debian: libvulkan1)";
  PFN_vkGetInstanceProcAddr get = NULL;
  *(void **)&get = dlsym(loader, "vkGetInstanceProcAddr");
  if (get == NULL) return "the Vulkan loader has no vkGetInstanceProcAddr()";
  vkCreateInstance = (PFN_vkCreateInstance)get(NULL, "vkCreateInstance");
  vkEnumerateInstanceVersion = (PFN_vkEnumerateInstanceVersion)get(NULL, "vkEnumerateInstanceVersion");
  const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_2};
  const VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &application};
  if (vkEnumerateInstanceVersion == NULL || vkCreateInstance(&info, NULL, &instance) != VK_SUCCESS)
    return "the Vulkan loader found no driver (ICD)";
#define VULKAN(from, name) \
  if (from == INSTANCE) name = (PFN_##name)get(instance, #name);
#include "functions.def"
  const VkPhysicalDevice physical = find_device(is_cpu, uuid);
  if (physical == NULL)
    return is_cpu ? "Vulkan has no CPU device (Debian: mesa-vulkan-drivers)"
                  : "Vulkan does not show the context's device, which it would show by its UUID";
  return open_device(physical);
}

void vulkan_close(void) {
  if (vk.device != NULL) {
    vkDestroyCommandPool(vk.device, vk.pool, NULL);
    vkDestroyDevice(vk.device, NULL);
  }
  if (instance != NULL) vkDestroyInstance(instance, NULL);
  vk.device = NULL;
  instance = NULL;
}

VkBuffer make_buffer(VkDeviceSize size, VkExternalMemoryHandleTypeFlags external) {
  const VkExternalMemoryBufferCreateInfo outside = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
                                                    .handleTypes = external};
  const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                   .pNext = external != 0 ? &outside : NULL,
                                   .size = size,
                                   .usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT};
  VkBuffer made = VK_NULL_HANDLE;
  VK(vkCreateBuffer(vk.device, &info, NULL, &made));
  return made;
}

uint32_t memory_type(uint32_t bits, VkMemoryPropertyFlags wanted) {
  for (uint32_t i = 0; i < vk.memory.memoryTypeCount; ++i)
    if ((bits >> i & 1) != 0 && (vk.memory.memoryTypes[i].propertyFlags & wanted) == wanted) return i;
  check_failed(__FILE__, __LINE__, "no memory type of 0x%x has the properties 0x%x", bits, wanted);
  longjmp(check_state.leave, 1);
}

buffer host_visible(VkDeviceSize size) {
  buffer made = {.buffer = make_buffer(size, 0)};
  VkMemoryRequirements needs;
  vkGetBufferMemoryRequirements(vk.device, made.buffer, &needs);
  const VkMemoryAllocateInfo info = {
      .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
      .allocationSize = needs.size,
      .memoryTypeIndex = memory_type(needs.memoryTypeBits,
                                     VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT)};
  VK(vkAllocateMemory(vk.device, &info, NULL, &made.memory));
  VK(vkBindBufferMemory(vk.device, made.buffer, made.memory, 0));
  VK(vkMapMemory(vk.device, made.memory, 0, VK_WHOLE_SIZE, 0, &made.mapped));
  made.allocated = needs.size;
  return made;
}

void end_buffer(buffer *of) {
  vkDestroyBuffer(vk.device, of->buffer, NULL);
  vkFreeMemory(vk.device, of->memory, NULL);
  *of = (buffer){0};
}

gmm_heap *exportable_heap(gmm_tag tag) {
  gmm_heap *heap = NULL;
  const gmm_result result = gmm_heap_create(context,
                                            DESC(heap_desc, .kind = GMM_KIND_VMM, .device = device, .tag = tag,
                                                 .minimum_extent = 64 * MIB, .flags = GMM_HEAP_EXPORTABLE),
                                            &heap);
  if (result == GMM_ERROR_NOT_SUPPORTED) SKIP("%s", gmm_last_error_message());
  MUST(result);
  return heap;
}

buffer exported_buffer(VkDeviceSize size) {
  buffer made = {.buffer = make_buffer(size, OPAQUE_FD), .size = size};
  VkMemoryRequirements needs;
  vkGetBufferMemoryRequirements(vk.device, made.buffer, &needs);
  const VkExportMemoryAllocateInfo outside = {.sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO,
                                              .handleTypes = OPAQUE_FD};
  const VkMemoryAllocateInfo info = {
      .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
      .pNext = &outside,
      .allocationSize = needs.size,
      .memoryTypeIndex = memory_type(needs.memoryTypeBits, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT)};
  VK(vkAllocateMemory(vk.device, &info, NULL, &made.memory));
  VK(vkBindBufferMemory(vk.device, made.buffer, made.memory, 0));
  made.allocated = needs.size;
  return made;
}

int export_memory(const buffer *of) {
  const VkMemoryGetFdInfoKHR get = {
      .sType = VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR, .memory = of->memory, .handleType = OPAQUE_FD};
  int fd = -1;
  VK(vkGetMemoryFdKHR(vk.device, &get, &fd));
  return fd;
}

// Lavapipe puts a header of its own before the memory in the file. The pattern tells where the memory begins.
static uint64_t find_pattern(const uint8_t *memory, uint64_t size, uint64_t wanted, uint32_t seed) {
  for (uint64_t at = 0; at + wanted <= size; at += 8)
    if (pattern_length(memory + at, wanted, seed) == wanted) return at;
  return UINT64_MAX;
}

uint8_t *import_in_gmm(const buffer *of, uint32_t seed, uint64_t *size) {
  vulkan_write(of->buffer, of->size, seed);
  const int fd = export_memory(of);
  gmm_ipc_fd_desc desc = {.struct_size = sizeof desc, .type = GMM_FD_VULKAN, .device = device, .size = of->allocated};
  if (on_host_backend()) {
    struct stat file;
    REQUIRE(fstat(fd, &file) == 0);
    desc.type = GMM_FD_FILE;
    desc.size = (uint64_t)file.st_size & ~(uint64_t)4095;
  }
  uint8_t *memory = NULL;
  MUST(gmm_ipc_import_fd(context, fd, &desc, (void **)&memory));
  CHECK(close(fd) == 0);
  uint64_t offset = 0;
  if (on_host_backend()) offset = find_pattern(memory, desc.size, 65536, seed);
  REQUIRE(offset != UINT64_MAX);
  printf("# Vulkan's memory begins %llu bytes into its descriptor\n", (unsigned long long)offset);
  *size = desc.size - offset < of->size ? desc.size - offset : of->size;
  return memory + offset;
}

VkCommandBuffer begin_commands(void) {
  const VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                            .commandPool = vk.pool,
                                            .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                            .commandBufferCount = 1};
  const VkCommandBufferBeginInfo once = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                         .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
  VkCommandBuffer commands = NULL;
  VK(vkAllocateCommandBuffers(vk.device, &info, &commands));
  VK(vkBeginCommandBuffer(commands, &once));
  return commands;
}

void copy_buffer(VkCommandBuffer commands, VkBuffer from, VkBuffer to, VkDeviceSize size) {
  const VkBufferCopy region = {.size = size};
  const VkMemoryBarrier all = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                               .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT,
                               .dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT};
  vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, 0, 1, &all, 0,
                       NULL, 0, NULL);
  vkCmdCopyBuffer(commands, from, to, 1, &region);
}

void submit(VkCommandBuffer commands, VkSemaphore wait, uint64_t wait_value, VkSemaphore signal,
            uint64_t signal_value) {
  VK(vkEndCommandBuffer(commands));
  const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
  const VkTimelineSemaphoreSubmitInfo values = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                .waitSemaphoreValueCount = wait != VK_NULL_HANDLE,
                                                .pWaitSemaphoreValues = &wait_value,
                                                .signalSemaphoreValueCount = signal != VK_NULL_HANDLE,
                                                .pSignalSemaphoreValues = &signal_value};
  const VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                             .pNext = &values,
                             .waitSemaphoreCount = wait != VK_NULL_HANDLE,
                             .pWaitSemaphores = &wait,
                             .pWaitDstStageMask = &stage,
                             .commandBufferCount = 1,
                             .pCommandBuffers = &commands,
                             .signalSemaphoreCount = signal != VK_NULL_HANDLE,
                             .pSignalSemaphores = &signal};
  VK(vkQueueSubmit(vk.queue, 1, &info, VK_NULL_HANDLE));
}

void submit_and_wait(VkCommandBuffer commands) {
  submit(commands, VK_NULL_HANDLE, 0, VK_NULL_HANDLE, 0);
  VK(vkQueueWaitIdle(vk.queue));
  VK(vkResetCommandPool(vk.device, vk.pool, 0));
}

VkSemaphore make_semaphore(bool is_timeline, bool is_exported) {
  const VkExportSemaphoreCreateInfo outside = {.sType = VK_STRUCTURE_TYPE_EXPORT_SEMAPHORE_CREATE_INFO,
                                               .handleTypes = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT};
  const VkSemaphoreTypeCreateInfo type = {
      .sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
      .pNext = is_exported ? &outside : NULL,
      .semaphoreType = is_timeline ? VK_SEMAPHORE_TYPE_TIMELINE : VK_SEMAPHORE_TYPE_BINARY};
  const VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};
  VkSemaphore made = VK_NULL_HANDLE;
  VK(vkCreateSemaphore(vk.device, &info, NULL, &made));
  return made;
}

int32_t wait_in_vulkan(void *user, uint64_t value) {
  VkSemaphore semaphore = user;
  const VkSemaphoreWaitInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                    .semaphoreCount = 1,
                                    .pSemaphores = &semaphore,
                                    .pValues = &value};
  return vkWaitSemaphores(vk.device, &info, UINT64_MAX);
}
int32_t signal_in_vulkan(void *user, uint64_t value) {
  const VkSemaphoreSignalInfo info = {
      .sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, .semaphore = user, .value = value};
  return vkSignalSemaphore(vk.device, &info);
}

int export_semaphore(VkSemaphore semaphore) {
  if (!vk.has_semaphore_fd) SKIP("the Vulkan device has no VK_KHR_external_semaphore_fd");
  const VkSemaphoreGetFdInfoKHR get = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_GET_FD_INFO_KHR,
                                       .semaphore = semaphore,
                                       .handleType = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT};
  int fd = -1;
  VK(vkGetSemaphoreFdKHR(vk.device, &get, &fd));
  return fd;
}

gmm_event *import_semaphore(VkSemaphore semaphore, bool is_timeline) {
  gmm_semaphore_desc desc = {.struct_size = sizeof desc, .device = device};
  gmm_event *event = NULL;
  if (on_host_backend()) {
    desc.type = GMM_SEMAPHORE_CALLS;
    desc.calls = (gmm_semaphore_calls){wait_in_vulkan, signal_in_vulkan, semaphore};
  } else {
    desc.type = is_timeline ? GMM_SEMAPHORE_TIMELINE_FD : GMM_SEMAPHORE_BINARY_FD;
    desc.fd = export_semaphore(semaphore);
  }
  MUST(gmm_event_import_semaphore(context, &desc, &event));
  if (!on_host_backend()) CHECK(close(desc.fd) == 0);
  return event;
}

void vulkan_write(VkBuffer to, VkDeviceSize size, uint32_t seed) {
  buffer staging = host_visible(size);
  fill_pattern(staging.mapped, size, seed);
  const VkCommandBuffer commands = begin_commands();
  copy_buffer(commands, staging.buffer, to, size);
  submit_and_wait(commands);
  end_buffer(&staging);
}

void vulkan_check(int line, VkBuffer from, VkDeviceSize size, uint32_t seed) {
  buffer staging = host_visible(size);
  const VkCommandBuffer commands = begin_commands();
  copy_buffer(commands, from, staging.buffer, size);
  submit_and_wait(commands);
  const uint64_t same = pattern_length(staging.mapped, size, seed);
  CHECK_MESSAGE(same == size, "line %d: Vulkan reads the pattern %u in %llu of %llu bytes", line, seed,
                (unsigned long long)same, (unsigned long long)size);
  end_buffer(&staging);
}
