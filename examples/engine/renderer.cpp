// SPDX-License-Identifier: Apache-2.0
#include "renderer.hpp"

#include <cstring>

#include "points.comp.h"

namespace {

// A struct of Vulkan with its type; all else is zero.
template <class T>
T made(VkStructureType type) {
  T one = {};
  one.sType = type;
  return one;
}

}  // namespace

const char *renderer::find(bool is_cpu, const uint8_t uuid[16]) {
  VkPhysicalDevice devices[16];
  uint32_t count = 16;
  if (vkEnumeratePhysicalDevices(instance_, &count, devices) < 0) return "Vulkan shows no device";
  for (uint32_t i = 0; i < count; ++i) {
    auto id = made<VkPhysicalDeviceIDProperties>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES);
    auto all = made<VkPhysicalDeviceProperties2>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2);
    all.pNext = &id;
    vkGetPhysicalDeviceProperties2(devices[i], &all);
    if (all.properties.apiVersion < VK_API_VERSION_1_2) continue;
    if (is_cpu ? all.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU
               : std::memcmp(id.deviceUUID, uuid, VK_UUID_SIZE) == 0) {
      physical_ = devices[i];
      properties_ = all.properties;
      return nullptr;
    }
  }
  return is_cpu ? "Vulkan 1.2 has no CPU device (Debian: mesa-vulkan-drivers)"
                : "Vulkan 1.2 does not show gmm's device";
}

const char *renderer::open(bool is_cpu, const uint8_t uuid[16]) {
  is_cpu_ = is_cpu;
  auto application = made<VkApplicationInfo>(VK_STRUCTURE_TYPE_APPLICATION_INFO);
  application.apiVersion = VK_API_VERSION_1_2;
  auto instance = made<VkInstanceCreateInfo>(VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO);
  instance.pApplicationInfo = &application;
  if (vkCreateInstance(&instance, nullptr, &instance_) != VK_SUCCESS) return "Vulkan has no driver";
  if (const char *why = find(is_cpu, uuid); why != nullptr) return why;

  VkQueueFamilyProperties families[16];
  uint32_t family_count = 16, family = 0;
  vkGetPhysicalDeviceQueueFamilyProperties(physical_, &family_count, families);
  while (family < family_count && (families[family].queueFlags & VK_QUEUE_COMPUTE_BIT) == 0) ++family;
  if (family == family_count) return "the Vulkan device has no queue for compute";
  const char *host[] = {VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME};
  const char *descriptors[] = {VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME, VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME};
  const float priority = 1;
  const VkDeviceQueueCreateInfo queue = {VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, nullptr, 0, family, 1, &priority};
  auto timeline = made<VkPhysicalDeviceVulkan12Features>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES);
  timeline.timelineSemaphore = VK_TRUE;
  const VkDeviceCreateInfo device = {
      VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, &timeline, 0, 1, &queue, 0, nullptr, is_cpu ? 1u : 2u,
      is_cpu ? host : descriptors,          nullptr};
  if (vkCreateDevice(physical_, &device, nullptr, &device_) != VK_SUCCESS)
    return "the Vulkan device lacks an extension for memory of others";
  vkGetDeviceQueue(device_, family, 0, &queue_);

  const VkCommandPoolCreateInfo pool = {VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO, nullptr, 0, family};
  VK(vkCreateCommandPool(device_, &pool, nullptr, &pool_));
  const VkCommandBufferAllocateInfo commands = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, nullptr, pool_,
                                                VK_COMMAND_BUFFER_LEVEL_PRIMARY, 1};
  VK(vkAllocateCommandBuffers(device_, &commands, &commands_));
  const VkExportSemaphoreCreateInfo outside = {VK_STRUCTURE_TYPE_EXPORT_SEMAPHORE_CREATE_INFO, nullptr,
                                               VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT};
  const VkSemaphoreTypeCreateInfo type = {VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO, is_cpu ? nullptr : &outside,
                                          VK_SEMAPHORE_TYPE_TIMELINE, 0};
  const VkSemaphoreCreateInfo semaphore = {VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, &type, 0};
  VK(vkCreateSemaphore(device_, &semaphore, nullptr, &timeline_));
  make_pipeline();
  return nullptr;
}

void renderer::close() {
  if (device_ != nullptr) {
    vkDestroyPipeline(device_, pipeline_, nullptr);
    vkDestroyPipelineLayout(device_, layout_, nullptr);
    vkDestroyDescriptorPool(device_, set_pool_, nullptr);
    vkDestroyDescriptorSetLayout(device_, set_layout_, nullptr);
    vkDestroySemaphore(device_, timeline_, nullptr);
    vkDestroyCommandPool(device_, pool_, nullptr);
    vkDestroyDevice(device_, nullptr);
  }
  if (instance_ != nullptr) vkDestroyInstance(instance_, nullptr);
}

// --- gmm's memory ----------------------------------------------------------------------------------------------------

view renderer::import(const memory_source &source, uint64_t size) const {
  view of;
  const auto handle =
      is_cpu_ ? VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT : VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT;
  const VkExternalMemoryBufferCreateInfo outside = {VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO, nullptr,
                                                    static_cast<VkExternalMemoryHandleTypeFlags>(handle)};
  auto buffer = made<VkBufferCreateInfo>(VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO);
  buffer.pNext = &outside;
  buffer.size = size;
  buffer.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT;
  VK(vkCreateBuffer(device_, &buffer, nullptr, &of.buffer));
  VkMemoryRequirements needs;
  vkGetBufferMemoryRequirements(device_, of.buffer, &needs);

  const VkImportMemoryHostPointerInfoEXT by_address = {VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT, nullptr,
                                                       handle, source.address};
  const VkImportMemoryFdInfoKHR by_fd = {VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR, nullptr, handle, source.fd};
  VkPhysicalDeviceMemoryProperties memory;
  vkGetPhysicalDeviceMemoryProperties(physical_, &memory);
  uint32_t type = 0;
  while (type < memory.memoryTypeCount &&
         ((needs.memoryTypeBits >> type & 1) == 0 ||
          (memory.memoryTypes[type].propertyFlags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT) == 0))
    ++type;
  const VkMemoryAllocateInfo info = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                     is_cpu_ ? static_cast<const void *>(&by_address) : &by_fd, source.size, type};
  VK(type < memory.memoryTypeCount ? vkAllocateMemory(device_, &info, nullptr, &of.memory)
                                   : VK_ERROR_FEATURE_NOT_PRESENT);
  VK(vkBindBufferMemory(device_, of.buffer, of.memory, source.offset));
  return of;
}

void renderer::end(view *of) const {
  vkDestroyBuffer(device_, of->buffer, nullptr);
  vkFreeMemory(device_, of->memory, nullptr);
  *of = view();
}

int renderer::timeline_fd() const {
  const auto get = reinterpret_cast<PFN_vkGetSemaphoreFdKHR>(vkGetDeviceProcAddr(device_, "vkGetSemaphoreFdKHR"));
  const VkSemaphoreGetFdInfoKHR info = {VK_STRUCTURE_TYPE_SEMAPHORE_GET_FD_INFO_KHR, nullptr, timeline_,
                                        VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT};
  int fd = -1;
  VK(get(device_, &info, &fd));
  return fd;
}

// --- Drawing ---------------------------------------------------------------------------------------------------------

void renderer::make_pipeline() {
  VkDescriptorSetLayoutBinding bindings[kBuffers];
  for (uint32_t i = 0; i < kBuffers; ++i)
    bindings[i] = {i, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, nullptr};
  const VkDescriptorSetLayoutCreateInfo set_layout = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, nullptr, 0,
                                                      kBuffers, bindings};
  VK(vkCreateDescriptorSetLayout(device_, &set_layout, nullptr, &set_layout_));
  const VkDescriptorPoolSize buffers = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, kBuffers};
  const VkDescriptorPoolCreateInfo pool = {VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, nullptr, 0, 1, 1, &buffers};
  VK(vkCreateDescriptorPool(device_, &pool, nullptr, &set_pool_));
  const VkDescriptorSetAllocateInfo set = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO, nullptr, set_pool_, 1,
                                           &set_layout_};
  VK(vkAllocateDescriptorSets(device_, &set, &set_));
  const VkPipelineLayoutCreateInfo layout = {
      VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, nullptr, 0, 1, &set_layout_, 0, nullptr};
  VK(vkCreatePipelineLayout(device_, &layout, nullptr, &layout_));

  const VkShaderModuleCreateInfo code = {VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, nullptr, 0, sizeof points_comp,
                                         points_comp};
  VkShaderModule shader = VK_NULL_HANDLE;
  VK(vkCreateShaderModule(device_, &code, nullptr, &shader));
  const uint32_t size[] = {kWidth, kHeight};
  const VkSpecializationMapEntry entries[] = {{0, 0, 4}, {1, 4, 4}};
  const VkSpecializationInfo constants = {2, entries, sizeof size, size};
  auto pipeline = made<VkComputePipelineCreateInfo>(VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO);
  pipeline.stage = made<VkPipelineShaderStageCreateInfo>(VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO);
  pipeline.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  pipeline.stage.module = shader;
  pipeline.stage.pName = "main";
  pipeline.stage.pSpecializationInfo = &constants;
  pipeline.layout = layout_;
  VK(vkCreateComputePipelines(device_, VK_NULL_HANDLE, 1, &pipeline, nullptr, &pipeline_));
  vkDestroyShaderModule(device_, shader, nullptr);
}

void renderer::bind(const view &mesh, const view &particles, const view &palette, const view &pixels,
                    uint32_t points) const {
  const VkDescriptorBufferInfo where[kBuffers] = {{mesh.buffer, 0, VK_WHOLE_SIZE},
                                                  {particles.buffer, 0, VK_WHOLE_SIZE},
                                                  {palette.buffer, 0, 1024},
                                                  {pixels.buffer, 0, VK_WHOLE_SIZE}};
  auto write = made<VkWriteDescriptorSet>(VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET);
  write.dstSet = set_;
  write.descriptorCount = kBuffers;  // consecutive bindings
  write.descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
  write.pBufferInfo = where;
  vkUpdateDescriptorSets(device_, 1, &write, 0, nullptr);

  VK(vkResetCommandPool(device_, pool_, 0));
  const auto begin = made<VkCommandBufferBeginInfo>(VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO);
  VK(vkBeginCommandBuffer(commands_, &begin));
  vkCmdBindPipeline(commands_, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline_);
  vkCmdBindDescriptorSets(commands_, VK_PIPELINE_BIND_POINT_COMPUTE, layout_, 0, 1, &set_, 0, nullptr);
  vkCmdDispatch(commands_, (points + 63) / 64, 1, 1);
  VK(vkEndCommandBuffer(commands_));
}

void renderer::draw(uint64_t wait, uint64_t signal) const {
  const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
  const VkTimelineSemaphoreSubmitInfo values = {
      VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO, nullptr, 1, &wait, 1, &signal};
  const VkSubmitInfo submit = {
      VK_STRUCTURE_TYPE_SUBMIT_INFO, &values, 1, &timeline_, &stage, 1, &commands_, 1, &timeline_};
  VK(vkQueueSubmit(queue_, 1, &submit, VK_NULL_HANDLE));
}
