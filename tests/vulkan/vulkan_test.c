// SPDX-License-Identifier: Apache-2.0
// gmm and Vulkan share memory and wait for each other. On the host backend Vulkan's CPU device (lavapipe) takes gmm's
// memory by its address, and semaphores are functions. On CUDA both sides use descriptors.
//
// Usage: GMM_BACKEND=host|cuda vulkan_test
#include "vulkan_support.h"

#define HOST_POINTER VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT

static VkExternalMemoryHandleTypeFlagBits route(void) { return on_host_backend() ? HOST_POINTER : OPAQUE_FD; }

// --- gmm's memory in Vulkan ------------------------------------------------------------------------------------------

typedef buffer view;

// A buffer over a block: Vulkan imports the driver's allocation that the block lies in.
static view view_of(const void *block, uint64_t size) {
  const gmm_pointer_info where = query(block);
  const VkDeviceSize offset = (uintptr_t)block - (uintptr_t)where.allocation_base;
  view made = {.buffer = make_buffer(size, route())};
  VkMemoryRequirements needs;
  vkGetBufferMemoryRequirements(vk.device, made.buffer, &needs);
  CHECK_EQUAL(offset % needs.alignment, 0);
  VkMemoryAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                               .allocationSize = where.allocation_size};
  const VkImportMemoryHostPointerInfoEXT by_address = {.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
                                                       .handleType = HOST_POINTER,
                                                       .pHostPointer = where.allocation_base};
  VkImportMemoryFdInfoKHR by_fd = {.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR, .handleType = OPAQUE_FD};
  if (on_host_backend()) {
    VkMemoryHostPointerPropertiesEXT types = {.sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};
    VK(vkGetMemoryHostPointerPropertiesEXT(vk.device, HOST_POINTER, where.allocation_base, &types));
    info.pNext = &by_address;
    info.memoryTypeIndex = memory_type(needs.memoryTypeBits & types.memoryTypeBits, 0);
  } else {
    gmm_ipc_fd_info out = {.struct_size = sizeof out};
    MUST(gmm_ipc_export_fd(context, block, GMM_FD_OPAQUE, &out));
    CHECK_EQUAL(out.offset, offset);
    by_fd.fd = out.fd;  // Vulkan's now
    info.pNext = &by_fd;
    info.allocationSize = out.size;
    info.memoryTypeIndex = memory_type(needs.memoryTypeBits, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
  }
  VK(vkAllocateMemory(vk.device, &info, NULL, &made.memory));
  VK(vkBindBufferMemory(vk.device, made.buffer, made.memory, offset));
  return made;
}

static void end_view(view *of) { end_buffer(of); }
static void write_view(const view *to, uint64_t size, uint32_t seed) { vulkan_write(to->buffer, size, seed); }
static void check_view(int line, const view *from, uint64_t size, uint32_t seed) {
  vulkan_check(line, from->buffer, size, seed);
}
#include "shared_cases.h"

// --- Vulkan's memory in gmm ------------------------------------------------------------------------------------------

static void vulkans_memory_is_imported(void) {
  if (!vk.has_memory_fd) SKIP("the Vulkan device has no VK_KHR_external_memory_fd");
  buffer of_vulkan = exported_buffer(2 * MIB);
  uint64_t size = 0;
  uint8_t *memory = import_in_gmm(&of_vulkan, 3, &size);
  CHECK_PATTERN(memory, size, 3);
  write_pattern(memory, size, 4, GMM_STREAM_DEFAULT);
  VULKAN_CHECK(of_vulkan.buffer, size, 4);
  OK(gmm_ipc_close(context, memory));
  end_buffer(&of_vulkan);
}

// --- Semaphores ------------------------------------------------------------------------------------------------------

static uint64_t value_of(VkSemaphore semaphore) {
  uint64_t value = UINT64_MAX;
  VK(vkGetSemaphoreCounterValue(vk.device, semaphore, &value));
  return value;
}

// Everything is queued first, on both sides; then the program lets the first link go:
//   1 the program   2 Vulkan fills gmm's block   3 gmm copies it to another block   4 Vulkan copies that to a buffer
static void queues_and_streams_wait_for_each_other(void) {
  enum { SIZE = 1024 * 1024, ROUNDS = 3 };
  const bool is_exported = !on_host_backend();
  if (is_exported && !vk.has_semaphore_fd) SKIP("the Vulkan device has no VK_KHR_external_semaphore_fd");
  gmm_heap *heap = exportable_heap(0);
  void *first = take_of(heap, SIZE), *second = take_of(heap, SIZE);
  buffer view_of_first = view_of(first, SIZE), view_of_second = view_of(second, SIZE);
  buffer seen = host_visible(SIZE);
  const VkSemaphore semaphore = make_semaphore(true, is_exported);
  gmm_event *event = import_semaphore(semaphore, true), *copied = NULL;
  const gmm_stream stream = open_stream();
  MUST(gmm_event_create(context, EVENT_ON(device), &copied));
  for (uint64_t round = 0; round < ROUNDS; ++round) {
    const uint64_t base = 4 * round;
    const uint32_t word = 0x01010101u * (uint32_t)(7 + round);
    OK(gmm_stream_wait_event(context, stream, event, base + 2));
    OK(gmm_copy(context, second, first, SIZE, stream));
    OK(gmm_event_record(event, base + 3, stream));
    OK(gmm_event_record(copied, 0, stream));
    const VkCommandBuffer fill = begin_commands(), copy = begin_commands();
    vkCmdFillBuffer(fill, view_of_first.buffer, 0, SIZE, word);
    copy_buffer(copy, view_of_second.buffer, seen.buffer, SIZE);
    submit(fill, semaphore, base + 1, semaphore, base + 2);
    submit(copy, semaphore, base + 3, semaphore, base + 4);
    uint64_t passed = 1;
    OK(gmm_event_query(copied, &passed));
    CHECK_EQUAL(passed, 0);
    CHECK_EQUAL(value_of(semaphore), base);
    CHECK_EQUAL(signal_in_vulkan(semaphore, base + 1), VK_SUCCESS);
    CHECK_EQUAL(wait_in_vulkan(semaphore, base + 4), VK_SUCCESS);
    OK(gmm_event_synchronize(copied, 0, GMM_FOREVER));
    const uint32_t *words = seen.mapped;
    CHECK(words[0] == word && words[SIZE / 4 - 1] == word);
    VK(vkQueueWaitIdle(vk.queue));
    VK(vkResetCommandPool(vk.device, vk.pool, 0));
  }
  OK(gmm_event_destroy(event));
  vkDestroySemaphore(vk.device, semaphore, NULL);
  OK(gmm_event_destroy(copied));
  end_buffer(&seen);
  end_buffer(&view_of_first);
  end_buffer(&view_of_second);
  FREE(first, second);
  OK(gmm_heap_destroy(heap));
}

// Vulkan's device stays open over the cases.
static const char *open_vulkan(void) {
  context = open_context(1);
  read_device(0);
  const char *why = vulkan_open(on_host_backend(), device_info.uuid);
  if (why == NULL && on_host_backend() && vk.host_alignment == 0)
    why = "the Vulkan device has no VK_EXT_external_memory_host";
  if (why == NULL && !on_host_backend() && !vk.has_memory_fd)
    why = "the Vulkan device has no VK_KHR_external_memory_fd";
  if (gmm_context_release(context) != GMM_OK) printf("# release: %s\n", gmm_last_error_message());
  return why;
}

int main(void) {
  const char *why = open_vulkan();
  if (why != NULL) {
    printf("1..0 # SKIP %s\n", why);
    vulkan_close();
    return 0;
  }
  printf("# %s\n", vk.name);
  KINDS(a_block_of_each_kind_is_a_buffer, ALL_KINDS & ~(1u << GMM_KIND_MANAGED));
  PLAIN(pooled_blocks_are_buffers);
  PLAIN(a_pause_of_exported_memory);
  PLAIN(vulkans_memory_is_imported);
  PLAIN(queues_and_streams_wait_for_each_other);
  vulkan_close();
  return check_finish();
}
