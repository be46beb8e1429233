// SPDX-License-Identifier: Apache-2.0
// gmm and OpenGL share memory and wait for each other. On CUDA OpenGL imports descriptors of gmm's memory, and
// semaphores that Vulkan makes, as neither OpenGL nor CUDA makes them. On the host backend Mesa's CPU device (llvmpipe)
// takes gmm's blocks by their addresses, Vulkan's memory by its descriptors, and EGL's syncs are the semaphores.
//
// Usage: GMM_BACKEND=host|cuda opengl_test
#include "../vulkan/vulkan_support.h"
#include "opengl_support.h"

static const char *without_vulkan;  // why Vulkan is not there, or NULL

// --- gmm's memory as buffers -----------------------------------------------------------------------------------------

static void write_view(const view *to, uint64_t size, uint32_t seed) { opengl_write(to->buffer, size, seed); }
static void check_view(int line, const view *from, uint64_t size, uint32_t seed) {
  opengl_check(line, from->buffer, size, seed);
}
#include "../vulkan/shared_cases.h"

// --- Memory that OpenGL takes by a descriptor on every backend -------------------------------------------------------

// Memory of gmm's block on CUDA. On the host backend it is Vulkan's, which gmm imports: llvmpipe takes descriptors of
// Mesa's own kind alone.
typedef struct region {
  uint8_t *bytes;  // gmm's address
  GLuint memory;   // OpenGL's memory object
  uint64_t offset;
  gmm_heap *heap;
  buffer of_vulkan;
} region;

// Llvmpipe wants some bytes more than a buffer has.
static region vulkan_region(uint64_t size) {
  if (without_vulkan != NULL) SKIP("%s", without_vulkan);
  if (!vk.has_memory_fd) SKIP("the Vulkan device has no VK_KHR_external_memory_fd");
  if (!gl.has_memory_fd) SKIP("the OpenGL device has no GL_EXT_memory_object_fd");
  region made = {.of_vulkan = exported_buffer(size + 65536)};
  uint64_t imported = 0;
  made.bytes = import_in_gmm(&made.of_vulkan, 3, &imported);
  REQUIRE(imported >= size);
  made.memory = import_descriptor(export_memory(&made.of_vulkan), made.of_vulkan.allocated);
  return made;
}

static region make_region(uint64_t size) {
  if (on_host_backend()) return vulkan_region(size);
  region made = {.heap = exportable_heap(0)};
  made.bytes = take_of(made.heap, size);
  gmm_ipc_fd_info out = {.struct_size = sizeof out};
  MUST(gmm_ipc_export_fd(context, made.bytes, GMM_FD_OPAQUE, &out));
  made.memory = import_descriptor(out.fd, out.size);
  made.offset = out.offset;
  return made;
}

static void end_region(region *of) {
  GL(glDeleteMemoryObjectsEXT(1, &of->memory));
  GL_FINISH();
  if (of->heap == NULL) {
    OK(gmm_ipc_close(context, of->bytes));
    end_buffer(&of->of_vulkan);
    return;
  }
  FREE(of->bytes);
  OK(gmm_heap_destroy(of->heap));
}

// One memory, which Vulkan made, under three APIs.
static void vulkans_memory_is_gmms_and_opengls(void) {
  region shared = vulkan_region(2 * MIB);
  view seen = {0};
  GL(glCreateBuffers(1, &seen.buffer));
  GL(glNamedBufferStorageMemEXT(seen.buffer, 2 * MIB, shared.memory, 0));
  check_view(__LINE__, &seen, 2 * MIB, 3);
  check_both_ways(shared.bytes, &seen, 2 * MIB, 7);
  VULKAN_CHECK(shared.of_vulkan.buffer, 2 * MIB, 107);
  GL(glDeleteBuffers(1, &seen.buffer));
  end_region(&shared);
}

// --- Textures --------------------------------------------------------------------------------------------------------

enum { WIDTH = 256, HEIGHT = 64, PIXELS = WIDTH * HEIGHT, PICTURE_BYTES = PIXELS * 4, REGION_BYTES = 1024 * 1024 };

typedef struct picture {
  region region;
  GLuint texture, framebuffer;
} picture;

static bool has_tiling(GLenum tiling) {
  GLint count = 0, types[8] = {0};
  glGetInternalformativ(GL_TEXTURE_2D, GL_RGBA8, GL_NUM_TILING_TYPES_EXT, 1, &count);
  glGetInternalformativ(GL_TEXTURE_2D, GL_RGBA8, GL_TILING_TYPES_EXT, 8, types);
  bool found = false;
  for (GLint i = 0; i < count && i < 8; ++i) found = found || (GLenum)types[i] == tiling;
  return found && glGetError() == GL_NO_ERROR;
}

static void draw_into(picture *of) {
  GL(glGenFramebuffers(1, &of->framebuffer));
  GL(glBindFramebuffer(GL_FRAMEBUFFER, of->framebuffer));
  GL(glFramebufferTexture2D(GL_FRAMEBUFFER, GL_COLOR_ATTACHMENT0, GL_TEXTURE_2D, of->texture, 0));
  const GLenum status = glCheckFramebufferStatus(GL_FRAMEBUFFER);
  CHECK_MESSAGE(status == GL_FRAMEBUFFER_COMPLETE, "the framebuffer's status is 0x%04x", (unsigned)status);
}

// A texture of OpenGL's own memory.
static picture own_picture(void) {
  picture made = {0};
  GL(glCreateTextures(GL_TEXTURE_2D, 1, &made.texture));
  GL(glTextureStorage2D(made.texture, 1, GL_RGBA8, WIDTH, HEIGHT));
  draw_into(&made);
  return made;
}

// A texture in a region.
static picture make_picture(GLenum tiling) {
  if (!has_tiling(tiling)) SKIP("the OpenGL device has no tiling 0x%04x for GL_RGBA8", (unsigned)tiling);
  picture made = {.region = make_region(REGION_BYTES)};
  GL(glCreateTextures(GL_TEXTURE_2D, 1, &made.texture));
  GL(glTextureParameteri(made.texture, GL_TEXTURE_TILING_EXT, (GLint)tiling));
  GL(glTextureStorageMem2DEXT(made.texture, 1, GL_RGBA8, WIDTH, HEIGHT, made.region.memory, made.region.offset));
  draw_into(&made);
  return made;
}

static void end_picture(picture *of) {
  GL(glBindFramebuffer(GL_FRAMEBUFFER, 0));
  GL(glDeleteFramebuffers(1, &of->framebuffer));
  GL(glDeleteTextures(1, &of->texture));
  if (of->region.memory != 0) end_region(&of->region);
}

// Fills the columns left of `width` with one grey, by work that llvmpipe puts off: it clears a part as it draws.
static void draw(GLsizei width, uint8_t grey) {
  GL(glEnable(GL_SCISSOR_TEST));
  GL(glScissor(0, 0, width, HEIGHT));
  GL(glClearColor(grey / 255.0f, grey / 255.0f, grey / 255.0f, 1));
  GL(glClear(GL_COLOR_BUFFER_BIT));
}

// The left half has one grey, the right half another.
static void check_halves(int line, const uint8_t *bytes, uint8_t left, uint8_t right) {
  size_t wrong = 0, first = 0;
  for (size_t i = PIXELS; i-- > 0;) {
    const uint8_t grey = i % WIDTH < WIDTH / 2 ? left : right;
    const uint8_t wanted[4] = {grey, grey, grey, 255};
    if (memcmp(bytes + 4 * i, wanted, 4) != 0) ++wrong, first = i;
  }
  CHECK_MESSAGE(wrong == 0, "line %d: %zu of %d pixels are not as drawn; pixel %zu is %02x%02x%02x%02x", line, wrong,
                PIXELS, first, bytes[4 * first], bytes[4 * first + 1], bytes[4 * first + 2], bytes[4 * first + 3]);
}
#define CHECK_HALVES(bytes, left, right) check_halves(__LINE__, bytes, left, right)

// OpenGL draws into a texture in gmm's memory, and both read the picture.
static void a_texture_in_shared_memory(GLenum tiling) {
  static uint8_t bytes[PICTURE_BYTES], whole[REGION_BYTES];
  picture frame = make_picture(tiling);
  draw(WIDTH, 51);
  draw(WIDTH / 2, 102);
  GL_FINISH();
  GL(glGetTextureImage(frame.texture, 0, GL_RGBA, GL_UNSIGNED_BYTE, sizeof bytes, bytes));
  CHECK_HALVES(bytes, 102, 51);
  memset(whole, 0, sizeof whole);
  OK(gmm_copy(context, whole, frame.region.bytes, sizeof whole, GMM_STREAM_DEFAULT));
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  if (tiling == GL_LINEAR_TILING_EXT) {
    CHECK_HALVES(whole, 102, 51);
    // gmm's pixels in OpenGL
    write_pattern(frame.region.bytes, sizeof bytes, 8, GMM_STREAM_DEFAULT);
    OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
    GL(glGetTextureImage(frame.texture, 0, GL_RGBA, GL_UNSIGNED_BYTE, sizeof bytes, bytes));
    const uint64_t same = pattern_length(bytes, sizeof bytes, 8);
    CHECK_MESSAGE(same == sizeof bytes, "OpenGL reads gmm's pixels in %llu of %u bytes", (unsigned long long)same,
                  (unsigned)sizeof bytes);
  } else {  // the driver has an order of its own, and may clear more than the pixels
    unsigned left = 0, right = 0;
    for (size_t i = 0; i < REGION_BYTES / 4; ++i) {
      if (memcmp(whole + 4 * i, "\x66\x66\x66\xff", 4) == 0) ++left;
      if (memcmp(whole + 4 * i, "\x33\x33\x33\xff", 4) == 0) ++right;
    }
    CHECK_EQUAL(left, PIXELS / 2);
    CHECK_MESSAGE(right >= PIXELS / 2, "%u pixels of the background are in gmm's memory", right);
  }
  end_picture(&frame);
}
static void a_linear_texture_in_shared_memory(void) { a_texture_in_shared_memory(GL_LINEAR_TILING_EXT); }
static void an_optimal_texture_in_shared_memory(void) { a_texture_in_shared_memory(GL_OPTIMAL_TILING_EXT); }

// --- Semaphores ------------------------------------------------------------------------------------------------------

// One direction of order between OpenGL and a stream of gmm. On CUDA a semaphore of Vulkan. On the host backend a sync
// of EGL, for which a stream's thread waits, and back a plain event, for which OpenGL's thread waits.
typedef struct order {
  gmm_event *event;
  VkSemaphore of_vulkan;
  GLuint semaphore;
  EGLSyncKHR sync;
  bool is_timeline;
} order;

static int32_t wait_for_sync(void *user, uint64_t value) {
  (void)value;
  const order *of = user;
  return eglClientWaitSyncKHR(gl.display, of->sync, 0, WAIT_S * (EGLTimeKHR)1000000000) == EGL_CONDITION_SATISFIED_KHR
             ? 0
             : -1;
}
static void make_order(order *made, bool is_timeline, bool is_of_opengl) {
  *made = (order){.is_timeline = is_timeline};
  if (on_host_backend() && !is_of_opengl) {
    MUST(gmm_event_create(context, EVENT_ON(device), &made->event));
    return;
  }
  if (on_host_backend()) {
    const gmm_semaphore_desc desc = {.struct_size = sizeof desc,
                                     .type = GMM_SEMAPHORE_CALLS,
                                     .device = device,
                                     .calls = {.wait = wait_for_sync, .user = made}};
    MUST(gmm_event_import_semaphore(context, &desc, &made->event));
    return;
  }
  made->of_vulkan = make_semaphore(is_timeline, true);
  made->event = import_semaphore(made->of_vulkan, is_timeline);
  const int fd = export_semaphore(made->of_vulkan);
  if (is_timeline) {
    const GLint type = GL_SEMAPHORE_TYPE_TIMELINE_NV;
    GL(glCreateSemaphoresNV(1, &made->semaphore));
    GL(glSemaphoreParameterivNV(made->semaphore, GL_SEMAPHORE_TYPE_NV, &type));
  } else {
    GL(glGenSemaphoresEXT(1, &made->semaphore));
  }
  GL(glImportSemaphoreFdEXT(made->semaphore, GL_HANDLE_TYPE_OPAQUE_FD_EXT, fd));
}

static void set_value(const order *of, GLuint64 value) {
  if (of->is_timeline) GL(glSemaphoreParameterui64vEXT(of->semaphore, GL_TIMELINE_SEMAPHORE_VALUE_NV, &value));
}

// OpenGL's work so far, that with the buffer above all, comes before the waits for the value.
static void opengl_signals(order *of, GLuint pixels, uint64_t value) {
  if (on_host_backend()) {
    of->sync = eglCreateSyncKHR(gl.display, EGL_SYNC_FENCE_KHR, NULL);
    CHECK_MESSAGE(of->sync != EGL_NO_SYNC_KHR, "eglCreateSyncKHR() gave 0x%04x", (unsigned)eglGetError());
  } else {
    set_value(of, value);
    GL(glSignalSemaphoreEXT(of->semaphore, 1, &pixels, 0, NULL, NULL));
  }
  GL(glFlush());
}

// OpenGL's further work, with the buffer above all, comes after the value.
static void opengl_waits(order *of, GLuint seen, uint64_t value) {
  if (on_host_backend()) {
    OK(gmm_event_synchronize(of->event, 0, WAIT_S * UINT64_C(1000)));
    return;
  }
  set_value(of, value);
  GL(glWaitSemaphoreEXT(of->semaphore, 1, &seen, 0, NULL, NULL));
}

static void end_order(order *of) {
  OK(gmm_event_destroy(of->event));
  if (of->semaphore != 0) GL(glDeleteSemaphoresEXT(1, &of->semaphore));
  if (of->of_vulkan != VK_NULL_HANDLE) vkDestroySemaphore(vk.device, of->of_vulkan, NULL);
}

// Each round: OpenGL draws many pictures and signals. gmm waits, copies the last picture to a block and signals.
// OpenGL waits and copies the block to a buffer of its own. The CPU waits at the end of a round alone. On CUDA OpenGL
// draws into a texture of its own and packs the picture into a block of gmm. Llvmpipe packs on the CPU at once, which
// would order the work without a sync, so there it draws into the shared texture.
static void opengl_and_streams_wait_for_each_other(bool is_timeline) {
  enum { ROUNDS = 3, DRAWS = 100 };
  static uint8_t bytes[PICTURE_BYTES];
  const bool is_direct = on_host_backend();
  picture frame = is_direct ? make_picture(GL_LINEAR_TILING_EXT) : own_picture();
  gmm_heap *heap = exportable_heap(0);
  void *copy = take_of(heap, PICTURE_BYTES), *packed = take_of(heap, PICTURE_BYTES);
  const void *source = is_direct ? frame.region.bytes : packed;
  view seen = view_of(copy, PICTURE_BYTES), pixels = view_of(packed, PICTURE_BYTES);
  GLuint taken = own_buffer(PICTURE_BYTES, NULL);
  order drawn, copied;
  make_order(&drawn, is_timeline, true);
  make_order(&copied, is_timeline, false);
  const gmm_stream stream = open_stream();
  for (unsigned round = 0; round < ROUNDS; ++round) {
    const uint8_t last = (uint8_t)(10 + 50 * round);
    const uint64_t value = is_timeline ? round + 1 : 0;
    for (unsigned i = 0; i < DRAWS; ++i) draw(WIDTH - 1 + i % 2, (uint8_t)(last + DRAWS - 1 - i));
    if (!is_direct) {
      GL(glBindBuffer(GL_PIXEL_PACK_BUFFER, pixels.buffer));
      GL(glReadPixels(0, 0, WIDTH, HEIGHT, GL_RGBA, GL_UNSIGNED_BYTE, NULL));
      GL(glBindBuffer(GL_PIXEL_PACK_BUFFER, 0));
    }
    opengl_signals(&drawn, pixels.buffer, value);
    OK(gmm_stream_wait_event(context, stream, drawn.event, value));
    OK(gmm_copy(context, copy, source, PICTURE_BYTES, stream));
    OK(gmm_event_record(copied.event, value, stream));
    opengl_waits(&copied, seen.buffer, value);
    GL(glCopyNamedBufferSubData(seen.buffer, taken, 0, 0, PICTURE_BYTES));
    GL_FINISH();
    GL(glGetNamedBufferSubData(taken, 0, PICTURE_BYTES, bytes));
    CHECK_HALVES(bytes, last, last);
    OK(gmm_stream_synchronize(context, stream));
    if (drawn.sync != EGL_NO_SYNC_KHR) CHECK(eglDestroySyncKHR(gl.display, drawn.sync));
  }
  end_order(&drawn);
  end_order(&copied);
  GL(glDeleteBuffers(1, &taken));
  end_view(&seen);
  end_view(&pixels);
  FREE(packed, copy);
  OK(gmm_heap_destroy(heap));
  end_picture(&frame);
}

static void need_semaphores(void) {
  if (!gl.has_semaphore_fd) SKIP("the OpenGL device has no GL_EXT_semaphore_fd");
  if (without_vulkan != NULL) SKIP("no semaphore is made: %s", without_vulkan);
}
static void binary_semaphores_order_both_ways(void) {
  need_semaphores();
  opengl_and_streams_wait_for_each_other(false);
}
static void timeline_semaphores_order_both_ways(void) {
  need_semaphores();
  if (!gl.has_timeline) SKIP("the OpenGL device has no GL_NV_timeline_semaphore");
  opengl_and_streams_wait_for_each_other(true);
}
static void syncs_and_events_order_both_ways(void) {
  if (!on_host_backend()) SKIP("functions are semaphores on the host backend alone");
  if (!gl.has_syncs) SKIP("EGL has no EGL_KHR_fence_sync");
  opengl_and_streams_wait_for_each_other(false);
}

// The devices stay open over the cases.
static const char *open_devices(void) {
  context = open_context(1);
  read_device(0);
  const char *why = opengl_open(on_host_backend(), device_info.uuid);
  if (why == NULL && on_host_backend() && !gl.has_pinned && !gl.has_memory_fd)
    why = "the OpenGL device has neither GL_AMD_pinned_memory nor GL_EXT_memory_object_fd";
  if (why == NULL && !on_host_backend() && !gl.has_memory_fd) why = "the OpenGL device has no GL_EXT_memory_object_fd";
  if (why == NULL) without_vulkan = vulkan_open(on_host_backend(), device_info.uuid);
  if (gmm_context_release(context) != GMM_OK) printf("# release: %s\n", gmm_last_error_message());
  return why;
}

int main(void) {
  const char *why = open_devices();
  if (why != NULL) {
    printf("1..0 # SKIP %s\n", why);
    opengl_close();
    return 0;
  }
  printf("# %s\n", gl.name);
  if (without_vulkan != NULL) printf("# without Vulkan: %s\n", without_vulkan);
  KINDS(a_block_of_each_kind_is_a_buffer, ALL_KINDS & ~(1u << GMM_KIND_MANAGED));
  PLAIN(pooled_blocks_are_buffers);
  PLAIN(a_pause_of_exported_memory);
  PLAIN(vulkans_memory_is_gmms_and_opengls);
  PLAIN(a_linear_texture_in_shared_memory);
  PLAIN(an_optimal_texture_in_shared_memory);
  PLAIN(binary_semaphores_order_both_ways);
  PLAIN(timeline_semaphores_order_both_ways);
  PLAIN(syncs_and_events_order_both_ways);
  vulkan_close();
  opengl_close();
  return check_finish();
}
