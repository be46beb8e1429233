// SPDX-License-Identifier: Apache-2.0
#include "renderer.hpp"

#include <cstring>

#include "points.frag.h"
#include "points.vert.h"

namespace {

constexpr VkFormat kFormat = VK_FORMAT_R8G8B8A8_UNORM;
constexpr VkImageSubresourceRange kWhole = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1};

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
    if (all.properties.apiVersion < VK_API_VERSION_1_3) continue;
    if (is_cpu ? all.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU
               : std::memcmp(id.deviceUUID, uuid, VK_UUID_SIZE) == 0) {
      physical_ = devices[i];
      properties_ = all.properties;
      return nullptr;
    }
  }
  return is_cpu ? "Vulkan 1.3 has no CPU device (Debian: mesa-vulkan-drivers)"
                : "Vulkan 1.3 does not show gmm's device";
}

const char *renderer::open(bool is_cpu, const uint8_t uuid[16]) {
  is_cpu_ = is_cpu;
  auto application = made<VkApplicationInfo>(VK_STRUCTURE_TYPE_APPLICATION_INFO);
  application.apiVersion = VK_API_VERSION_1_3;
  auto instance = made<VkInstanceCreateInfo>(VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO);
  instance.pApplicationInfo = &application;
  if (vkCreateInstance(&instance, nullptr, &instance_) != VK_SUCCESS) return "Vulkan has no driver";
  if (const char *why = find(is_cpu, uuid); why != nullptr) return why;

  VkQueueFamilyProperties families[16];
  uint32_t family_count = 16, family = 0;
  vkGetPhysicalDeviceQueueFamilyProperties(physical_, &family_count, families);
  while (family < family_count && (families[family].queueFlags & VK_QUEUE_GRAPHICS_BIT) == 0) ++family;
  if (family == family_count) return "the Vulkan device has no queue for graphics";
  const char *host[] = {VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME};
  const char *descriptors[] = {VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME, VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME};
  const float priority = 1;
  const VkDeviceQueueCreateInfo queue = {VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, nullptr, 0, family, 1, &priority};
  auto newer = made<VkPhysicalDeviceVulkan13Features>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES);
  newer.dynamicRendering = VK_TRUE;
  auto timeline = made<VkPhysicalDeviceVulkan12Features>(VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES);
  timeline.pNext = &newer;
  timeline.timelineSemaphore = VK_TRUE;
  VkPhysicalDeviceFeatures features = {};
  features.largePoints = VK_TRUE;
  const VkDeviceCreateInfo device = {
      VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, &timeline, 0, 1, &queue, 0, nullptr, is_cpu ? 1u : 2u,
      is_cpu ? host : descriptors,          &features};
  if (vkCreateDevice(physical_, &device, nullptr, &device_) != VK_SUCCESS)
    return "the Vulkan device lacks large points, or an extension for memory of others";
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
  make_target();
  make_pipeline();
  return nullptr;
}

void renderer::close() {
  if (device_ != nullptr) {
    vkDestroyPipeline(device_, pipeline_, nullptr);
    vkDestroyPipelineLayout(device_, layout_, nullptr);
    vkDestroyDescriptorPool(device_, set_pool_, nullptr);
    vkDestroyDescriptorSetLayout(device_, set_layout_, nullptr);
    vkDestroyImageView(device_, target_view_, nullptr);
    vkDestroyImage(device_, target_, nullptr);
    vkFreeMemory(device_, target_memory_, nullptr);
    vkDestroySemaphore(device_, timeline_, nullptr);
    vkDestroyCommandPool(device_, pool_, nullptr);
    vkDestroyDevice(device_, nullptr);
  }
  if (instance_ != nullptr) vkDestroyInstance(instance_, nullptr);
}

VkDeviceMemory renderer::allocate(const void *source, VkDeviceSize size, uint32_t type_bits) const {
  VkPhysicalDeviceMemoryProperties memory;
  vkGetPhysicalDeviceMemoryProperties(physical_, &memory);
  uint32_t type = 0;
  while (type < memory.memoryTypeCount && ((type_bits >> type & 1) == 0 || (memory.memoryTypes[type].propertyFlags &
                                                                            VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT) == 0))
    ++type;
  const VkMemoryAllocateInfo info = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, source, size, type};
  VkDeviceMemory allocated = VK_NULL_HANDLE;
  VK(type < memory.memoryTypeCount ? vkAllocateMemory(device_, &info, nullptr, &allocated)
                                   : VK_ERROR_FEATURE_NOT_PRESENT);
  return allocated;
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
  buffer.usage =
      VK_BUFFER_USAGE_VERTEX_BUFFER_BIT | VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
  VK(vkCreateBuffer(device_, &buffer, nullptr, &of.buffer));
  VkMemoryRequirements needs;
  vkGetBufferMemoryRequirements(device_, of.buffer, &needs);

  const VkImportMemoryHostPointerInfoEXT by_address = {VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT, nullptr,
                                                       handle, source.address};
  const VkImportMemoryFdInfoKHR by_fd = {VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR, nullptr, handle, source.fd};
  of.memory = allocate(is_cpu_ ? static_cast<const void *>(&by_address) : &by_fd, source.size, needs.memoryTypeBits);
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

// --- The picture, and its drawing -----------------------------------------------------------------------------------

void renderer::make_target() {
  auto image = made<VkImageCreateInfo>(VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO);
  image.imageType = VK_IMAGE_TYPE_2D;
  image.format = kFormat;
  image.extent = {kWidth, kHeight, 1};
  image.mipLevels = image.arrayLayers = 1;
  image.samples = VK_SAMPLE_COUNT_1_BIT;
  image.usage = VK_IMAGE_USAGE_COLOR_ATTACHMENT_BIT | VK_IMAGE_USAGE_TRANSFER_SRC_BIT;
  VK(vkCreateImage(device_, &image, nullptr, &target_));
  VkMemoryRequirements needs;
  vkGetImageMemoryRequirements(device_, target_, &needs);
  target_memory_ = allocate(nullptr, needs.size, needs.memoryTypeBits);
  VK(vkBindImageMemory(device_, target_, target_memory_, 0));
  const VkImageViewCreateInfo seen = {
      VK_STRUCTURE_TYPE_IMAGE_VIEW_CREATE_INFO, nullptr, 0, target_, VK_IMAGE_VIEW_TYPE_2D, kFormat, {}, kWhole};
  VK(vkCreateImageView(device_, &seen, nullptr, &target_view_));
}

VkPipelineShaderStageCreateInfo renderer::stage(const uint32_t *code, size_t size, VkShaderStageFlagBits of) const {
  const VkShaderModuleCreateInfo info = {VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, nullptr, 0, size, code};
  VkShaderModule module = VK_NULL_HANDLE;
  VK(vkCreateShaderModule(device_, &info, nullptr, &module));
  return {VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO, nullptr, 0, of, module, "main", nullptr};
}

void renderer::make_pipeline() {
  const VkDescriptorSetLayoutBinding palette = {0, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_VERTEX_BIT,
                                                nullptr};
  const VkDescriptorSetLayoutCreateInfo set_layout = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, nullptr, 0,
                                                      1, &palette};
  VK(vkCreateDescriptorSetLayout(device_, &set_layout, nullptr, &set_layout_));
  const VkDescriptorPoolSize one = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1};
  const VkDescriptorPoolCreateInfo pool = {VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, nullptr, 0, 1, 1, &one};
  VK(vkCreateDescriptorPool(device_, &pool, nullptr, &set_pool_));
  const VkDescriptorSetAllocateInfo set = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO, nullptr, set_pool_, 1,
                                           &set_layout_};
  VK(vkAllocateDescriptorSets(device_, &set, &set_));
  const VkPipelineLayoutCreateInfo layout = {
      VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO, nullptr, 0, 1, &set_layout_, 0, nullptr};
  VK(vkCreatePipelineLayout(device_, &layout, nullptr, &layout_));

  const VkPipelineShaderStageCreateInfo stages[] = {
      stage(points_vert, sizeof points_vert, VK_SHADER_STAGE_VERTEX_BIT),
      stage(points_frag, sizeof points_frag, VK_SHADER_STAGE_FRAGMENT_BIT)};
  const VkVertexInputBindingDescription points = {0, sizeof(point), VK_VERTEX_INPUT_RATE_VERTEX};
  const VkVertexInputAttributeDescription fields = {0, 0, VK_FORMAT_R32G32B32A32_SFLOAT, 0};
  const VkPipelineVertexInputStateCreateInfo input = {
      VK_STRUCTURE_TYPE_PIPELINE_VERTEX_INPUT_STATE_CREATE_INFO, nullptr, 0, 1, &points, 1, &fields};
  const VkPipelineInputAssemblyStateCreateInfo assembly = {VK_STRUCTURE_TYPE_PIPELINE_INPUT_ASSEMBLY_STATE_CREATE_INFO,
                                                           nullptr, 0, VK_PRIMITIVE_TOPOLOGY_POINT_LIST, 0};
  const VkViewport whole = {0, 0, kWidth, kHeight, 0, 1};
  const VkRect2D scissor = {{0, 0}, {kWidth, kHeight}};
  const VkPipelineViewportStateCreateInfo viewport = {
      VK_STRUCTURE_TYPE_PIPELINE_VIEWPORT_STATE_CREATE_INFO, nullptr, 0, 1, &whole, 1, &scissor};
  auto raster =
      made<VkPipelineRasterizationStateCreateInfo>(VK_STRUCTURE_TYPE_PIPELINE_RASTERIZATION_STATE_CREATE_INFO);
  raster.lineWidth = 1;
  auto samples = made<VkPipelineMultisampleStateCreateInfo>(VK_STRUCTURE_TYPE_PIPELINE_MULTISAMPLE_STATE_CREATE_INFO);
  samples.rasterizationSamples = VK_SAMPLE_COUNT_1_BIT;
  VkPipelineColorBlendAttachmentState light = {};  // points add their light
  light.blendEnable = VK_TRUE;
  light.srcColorBlendFactor = light.dstColorBlendFactor = VK_BLEND_FACTOR_ONE;
  light.colorWriteMask = 0xf;
  auto blend = made<VkPipelineColorBlendStateCreateInfo>(VK_STRUCTURE_TYPE_PIPELINE_COLOR_BLEND_STATE_CREATE_INFO);
  blend.attachmentCount = 1;
  blend.pAttachments = &light;
  auto formats = made<VkPipelineRenderingCreateInfo>(VK_STRUCTURE_TYPE_PIPELINE_RENDERING_CREATE_INFO);
  formats.colorAttachmentCount = 1;
  formats.pColorAttachmentFormats = &kFormat;
  auto pipeline = made<VkGraphicsPipelineCreateInfo>(VK_STRUCTURE_TYPE_GRAPHICS_PIPELINE_CREATE_INFO);
  pipeline.pNext = &formats;
  pipeline.stageCount = 2;
  pipeline.pStages = stages;
  pipeline.pVertexInputState = &input;
  pipeline.pInputAssemblyState = &assembly;
  pipeline.pViewportState = &viewport;
  pipeline.pRasterizationState = &raster;
  pipeline.pMultisampleState = &samples;
  pipeline.pColorBlendState = &blend;
  pipeline.layout = layout_;
  VK(vkCreateGraphicsPipelines(device_, VK_NULL_HANDLE, 1, &pipeline, nullptr, &pipeline_));
  for (const auto &stage : stages) vkDestroyShaderModule(device_, stage.module, nullptr);
}

void renderer::set_palette(const view &palette) const {
  const VkDescriptorBufferInfo where = {palette.buffer, 0, 1024};
  const VkWriteDescriptorSet write = {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET, nullptr, set_,   0,      0, 1,
                                      VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,      nullptr, &where, nullptr};
  vkUpdateDescriptorSets(device_, 1, &write, 0, nullptr);
}

void renderer::barrier(VkImageLayout from, VkImageLayout to, VkAccessFlags before, VkAccessFlags after) const {
  auto image = made<VkImageMemoryBarrier>(VK_STRUCTURE_TYPE_IMAGE_MEMORY_BARRIER);
  image.srcAccessMask = before;
  image.dstAccessMask = after;
  image.oldLayout = from;
  image.newLayout = to;
  image.image = target_;  // of one queue: families are not looked at where both are equal
  image.subresourceRange = kWhole;
  vkCmdPipelineBarrier(commands_, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, 0, 0, nullptr,
                       0, nullptr, 1, &image);
}

void renderer::draw(const view &mesh, uint32_t mesh_points, const view &particles, uint32_t particle_count,
                    const view &pixels, uint64_t wait, uint64_t signal) {
  VK(vkResetCommandPool(device_, pool_, 0));
  const VkCommandBufferBeginInfo begin = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO, nullptr,
                                          VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT, nullptr};
  VK(vkBeginCommandBuffer(commands_, &begin));
  barrier(VK_IMAGE_LAYOUT_UNDEFINED, VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL, 0, VK_ACCESS_COLOR_ATTACHMENT_WRITE_BIT);
  auto target = made<VkRenderingAttachmentInfo>(VK_STRUCTURE_TYPE_RENDERING_ATTACHMENT_INFO);
  target.imageView = target_view_;
  target.imageLayout = VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL;
  target.loadOp = VK_ATTACHMENT_LOAD_OP_CLEAR;
  target.storeOp = VK_ATTACHMENT_STORE_OP_STORE;
  target.clearValue.color = {{3 / 255.0f, 3 / 255.0f, 8 / 255.0f, 1}};  // exact, so that all devices round alike
  auto rendering = made<VkRenderingInfo>(VK_STRUCTURE_TYPE_RENDERING_INFO);
  rendering.renderArea = {{0, 0}, {kWidth, kHeight}};
  rendering.layerCount = rendering.colorAttachmentCount = 1;
  rendering.pColorAttachments = &target;
  vkCmdBeginRendering(commands_, &rendering);
  vkCmdBindPipeline(commands_, VK_PIPELINE_BIND_POINT_GRAPHICS, pipeline_);
  vkCmdBindDescriptorSets(commands_, VK_PIPELINE_BIND_POINT_GRAPHICS, layout_, 0, 1, &set_, 0, nullptr);
  const VkDeviceSize start = 0;
  vkCmdBindVertexBuffers(commands_, 0, 1, &mesh.buffer, &start);
  vkCmdDraw(commands_, mesh_points, 1, 0, 0);
  vkCmdBindVertexBuffers(commands_, 0, 1, &particles.buffer, &start);
  vkCmdDraw(commands_, particle_count, 1, 0, 0);
  vkCmdEndRendering(commands_);
  barrier(VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL, VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL,
          VK_ACCESS_COLOR_ATTACHMENT_WRITE_BIT, VK_ACCESS_TRANSFER_READ_BIT);
  VkBufferImageCopy copy = {};
  copy.imageSubresource = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1};
  copy.imageExtent = {kWidth, kHeight, 1};
  vkCmdCopyImageToBuffer(commands_, target_, VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL, pixels.buffer, 1, &copy);
  VK(vkEndCommandBuffer(commands_));

  const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
  const VkTimelineSemaphoreSubmitInfo values = {
      VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO, nullptr, 1, &wait, 1, &signal};
  const VkSubmitInfo submit = {
      VK_STRUCTURE_TYPE_SUBMIT_INFO, &values, 1, &timeline_, &stage, 1, &commands_, 1, &timeline_};
  VK(vkQueueSubmit(queue_, 1, &submit, VK_NULL_HANDLE));
}
