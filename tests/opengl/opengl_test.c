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
typedef struct room {
  uint8_t *bytes;  // gmm's address
  GLuint memory;   // OpenGL's memory object
  uint64_t offset;
  gmm_heap *heap;
  buffer of_vulkan;
} room;

// Llvmpipe wants some bytes more than a buffer has.
static room vulkan_room(uint64_t size) {
  if (without_vulkan != NULL) SKIP("%s", without_vulkan);
  if (!vk.has_memory_fd) SKIP("the Vulkan device has no VK_KHR_external_memory_fd");
  if (!gl.has_memory_fd) SKIP("the OpenGL device has no GL_EXT_memory_object_fd");
  room made = {.of_vulkan = exported_buffer(size + 65536)};
  uint64_t imported = 0;
  made.bytes = import_in_gmm(&made.of_vulkan, 3, &imported);
  REQUIRE(imported >= size);
  made.memory = import_descriptor(export_memory(&made.of_vulkan), made.of_vulkan.allocated);
  return made;
}

static room make_room(uint64_t size) {
  if (on_host_backend()) return vulkan_room(size);
  room made = {.heap = exportable_heap(0)};
  MUST(gmm_heap_alloc(made.heap, size, 0, 0, GMM_STREAM_DEFAULT, (void **)&made.bytes));
  gmm_ipc_fd_info out = {.struct_size = sizeof out};
  MUST(gmm_ipc_export_fd(context, made.bytes, GMM_FD_OPAQUE, &out));
  made.memory = import_descriptor(out.fd, out.size);
  made.offset = out.offset;
  return made;
}

static void end_room(room *of) {
  GL(glDeleteMemoryObjectsEXT(1, &of->memory));
  GL_FINISH();
  if (of->heap == NULL) {
    OK(gmm_ipc_close(context, of->bytes));
    end_buffer(&of->of_vulkan);
    return;
  }
  OK(gmm_free(context, of->bytes, GMM_STREAM_DEFAULT));
  OK(gmm_heap_destroy(of->heap));
}

// One memory, which Vulkan made, under three APIs.
static void vulkans_memory_is_gmms_and_opengls(void) {
  room shared = vulkan_room(2 * MIB);
  view seen = {0};
  GL(glCreateBuffers(1, &seen.buffer));
  GL(glNamedBufferStorageMemEXT(seen.buffer, 2 * MIB, shared.memory, 0));
  check_view(__LINE__, &seen, 2 * MIB, 3);
  check_both_ways(shared.bytes, &seen, 2 * MIB, 7);
  VULKAN_CHECK(shared.of_vulkan.buffer, 2 * MIB, 107);
  GL(glDeleteBuffers(1, &seen.buffer));
  end_room(&shared);
}

// --- Textures --------------------------------------------------------------------------------------------------------

enum { WIDTH = 256, HEIGHT = 64, PIXELS = WIDTH * HEIGHT, PICTURE_BYTES = PIXELS * 4, ROOM_BYTES = 1024 * 1024 };

typedef struct picture {
  room room;
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
  GL(glViewport(0, 0, WIDTH, HEIGHT));
}

// A texture of OpenGL's own memory.
static picture own_picture(void) {
  picture made = {0};
  GL(glCreateTextures(GL_TEXTURE_2D, 1, &made.texture));
  GL(glTextureStorage2D(made.texture, 1, GL_RGBA8, WIDTH, HEIGHT));
  draw_into(&made);
  return made;
}

// A texture in a room.
static picture make_picture(GLenum tiling) {
  if (!has_tiling(tiling)) SKIP("the OpenGL device has no tiling 0x%04x for GL_RGBA8", (unsigned)tiling);
  picture made = {.room = make_room(ROOM_BYTES)};
  GL(glCreateTextures(GL_TEXTURE_2D, 1, &made.texture));
  GL(glTextureParameteri(made.texture, GL_TEXTURE_TILING_EXT, (GLint)tiling));
  GL(glTextureStorageMem2DEXT(made.texture, 1, GL_RGBA8, WIDTH, HEIGHT, made.room.memory, made.room.offset));
  draw_into(&made);
  return made;
}

static void end_picture(picture *of) {
  GL(glBindFramebuffer(GL_FRAMEBUFFER, 0));
  GL(glDeleteFramebuffers(1, &of->framebuffer));
  GL(glDeleteTextures(1, &of->texture));
  if (of->room.memory != 0) end_room(&of->room);
}

// Draws triangles in one colour, with corners from a buffer.
typedef struct pen {
  GLuint vertex, fragment, pipeline, array;
} pen;

static GLuint make_program(GLenum stage, const char *source) {
  const GLuint made = glCreateShaderProgramv(stage, 1, &source);
  GLint linked = 0;
  char log[256] = "";
  GL(glGetProgramiv(made, GL_LINK_STATUS, &linked));
  if (!linked) glGetProgramInfoLog(made, sizeof log, NULL, log);
  CHECK_MESSAGE(linked, "a shader does not compile: %s", log);
  return made;
}

static pen make_pen(GLuint corners) {
  pen made = {.vertex = make_program(GL_VERTEX_SHADER,
                                     "#version 450 core\n"
                                     "layout(location = 0) in vec2 corner;\n"
                                     "out gl_PerVertex { vec4 gl_Position; };\n"
                                     "void main() { gl_Position = vec4(corner, 0, 1); }\n"),
              .fragment = make_program(GL_FRAGMENT_SHADER,
                                       "#version 450 core\n"
                                       "layout(location = 0) uniform vec4 colour;\n"
                                       "layout(location = 0) out vec4 pixel;\n"
                                       "void main() { pixel = colour; }\n")};
  GL(glGenProgramPipelines(1, &made.pipeline));
  GL(glUseProgramStages(made.pipeline, GL_VERTEX_SHADER_BIT, made.vertex));
  GL(glUseProgramStages(made.pipeline, GL_FRAGMENT_SHADER_BIT, made.fragment));
  GL(glBindProgramPipeline(made.pipeline));
  GL(glCreateVertexArrays(1, &made.array));
  GL(glVertexArrayVertexBuffer(made.array, 0, corners, 0, 2 * sizeof(float)));
  GL(glVertexArrayAttribFormat(made.array, 0, 2, GL_FLOAT, GL_FALSE, 0));
  GL(glEnableVertexArrayAttrib(made.array, 0));
  GL(glBindVertexArray(made.array));
  return made;
}

static void draw(const pen *with, uint8_t grey) {
  GL(glProgramUniform4f(with->fragment, 0, grey / 255.0f, grey / 255.0f, grey / 255.0f, 1));
  GL(glDrawArrays(GL_TRIANGLES, 0, 6));
}

static void end_pen(pen *of) {
  GL(glBindVertexArray(0));
  GL(glBindProgramPipeline(0));
  GL(glDeleteVertexArrays(1, &of->array));
  GL(glDeleteProgramPipelines(1, &of->pipeline));
  glDeleteProgram(of->vertex);
  glDeleteProgram(of->fragment);
}

// The corners of two triangles from x = -1 to `right`, in a block of gmm that gmm writes.
static void *make_corners(float right, view *seen) {
  const float corners[] = {-1, -1, right, -1, right, 1, -1, -1, right, 1, -1, 1};
  void *block = NULL;
  gmm_alloc_desc desc = alloc_desc();
  desc.kind = GMM_KIND_VMM;
  desc.flags = GMM_ALLOC_DEDICATED;
  MUST(gmm_alloc(context, 65536, &desc, &block));
  OK(gmm_copy(context, block, corners, sizeof corners, GMM_STREAM_DEFAULT));
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  *seen = view_of(block, 65536);
  return block;
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

// OpenGL draws triangles whose corners are gmm's into a texture in gmm's memory, and both read the picture.
static void a_texture_in_shared_memory(GLenum tiling) {
  static uint8_t bytes[PICTURE_BYTES], whole[ROOM_BYTES];
  picture frame = make_picture(tiling);
  view corners;
  void *block = make_corners(0, &corners);
  pen black = make_pen(corners.buffer);
  GL(glClearColor(0.2f, 0.2f, 0.2f, 1));
  GL(glClear(GL_COLOR_BUFFER_BIT));
  draw(&black, 102);
  GL_FINISH();
  GL(glGetTextureImage(frame.texture, 0, GL_RGBA, GL_UNSIGNED_BYTE, sizeof bytes, bytes));
  CHECK_HALVES(bytes, 102, 51);
  memset(whole, 0, sizeof whole);
  OK(gmm_copy(context, whole, frame.room.bytes, sizeof whole, GMM_STREAM_DEFAULT));
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  if (tiling == GL_LINEAR_TILING_EXT) {
    CHECK_HALVES(whole, 102, 51);
    // gmm's pixels in OpenGL
    write_pattern(frame.room.bytes, sizeof bytes, 8, GMM_STREAM_DEFAULT);
    OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
    GL(glGetTextureImage(frame.texture, 0, GL_RGBA, GL_UNSIGNED_BYTE, sizeof bytes, bytes));
    const uint64_t same = pattern_length(bytes, sizeof bytes, 8);
    CHECK_MESSAGE(same == sizeof bytes, "OpenGL reads gmm's pixels in %llu of %u bytes", (unsigned long long)same,
                  (unsigned)sizeof bytes);
  } else {  // the driver has an order of its own, and may clear more than the pixels
    unsigned left = 0, right = 0;
    for (size_t i = 0; i < ROOM_BYTES / 4; ++i) {
      if (memcmp(whole + 4 * i, "\x66\x66\x66\xff", 4) == 0) ++left;
      if (memcmp(whole + 4 * i, "\x33\x33\x33\xff", 4) == 0) ++right;
    }
    CHECK_EQUAL(left, PIXELS / 2);
    CHECK_MESSAGE(right >= PIXELS / 2, "%u pixels of the background are in gmm's memory", right);
  }
  end_pen(&black);
  end_view(&corners);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
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
  void *copy = NULL, *packed = NULL;
  MUST(gmm_heap_alloc(heap, PICTURE_BYTES, 0, 0, GMM_STREAM_DEFAULT, &copy));
  MUST(gmm_heap_alloc(heap, PICTURE_BYTES, 0, 0, GMM_STREAM_DEFAULT, &packed));
  const void *source = is_direct ? frame.room.bytes : packed;
  view seen = view_of(copy, PICTURE_BYTES), pixels = view_of(packed, PICTURE_BYTES), corners;
  void *block = make_corners(1, &corners);
  GLuint taken = own_buffer(PICTURE_BYTES, NULL);
  pen grey = make_pen(corners.buffer);
  order drawn, copied;
  make_order(&drawn, is_timeline, true);
  make_order(&copied, is_timeline, false);
  gmm_stream stream = NULL;
  MUST(gmm_stream_create(context, STREAM_ON(device), &stream));
  for (unsigned round = 0; round < ROUNDS; ++round) {
    const uint8_t last = (uint8_t)(10 + 50 * round);
    const uint64_t value = is_timeline ? round + 1 : 0;
    for (unsigned i = 0; i < DRAWS; ++i) draw(&grey, (uint8_t)(last + DRAWS - 1 - i));
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
  OK(gmm_stream_destroy(context, stream));
  end_pen(&grey);
  GL(glDeleteBuffers(1, &taken));
  end_view(&corners);
  end_view(&seen);
  end_view(&pixels);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_free(context, packed, GMM_STREAM_DEFAULT));
  OK(gmm_free(context, copy, GMM_STREAM_DEFAULT));
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

// --- dma-buf ---------------------------------------------------------------------------------------------------------

// An image of EGL over a dma-buf. The second attempt names no modifier.
static EGLImageKHR image_over(const gmm_ipc_fd_info *from, unsigned errors[2]) {
  EGLint attributes[] = {EGL_WIDTH,
                         WIDTH,
                         EGL_HEIGHT,
                         HEIGHT,
                         EGL_LINUX_DRM_FOURCC_EXT,
                         0x34324241,  // DRM_FORMAT_ABGR8888: the bytes R, G, B, A
                         EGL_DMA_BUF_PLANE0_FD_EXT,
                         from->fd,
                         EGL_DMA_BUF_PLANE0_OFFSET_EXT,
                         (EGLint)from->offset,
                         EGL_DMA_BUF_PLANE0_PITCH_EXT,
                         WIDTH * 4,
                         EGL_NONE,
                         0,
                         EGL_NONE,
                         0,
                         EGL_NONE};
  enum { MODIFIER = 12 };
  EGLImageKHR made = EGL_NO_IMAGE_KHR;
  errors[0] = errors[1] = 0;
  if (gl.has_modifiers) {  // DRM_FORMAT_MOD_LINEAR is 0
    attributes[MODIFIER] = EGL_DMA_BUF_PLANE0_MODIFIER_LO_EXT;
    attributes[MODIFIER + 2] = EGL_DMA_BUF_PLANE0_MODIFIER_HI_EXT;
    made = eglCreateImageKHR(gl.display, EGL_NO_CONTEXT, EGL_LINUX_DMA_BUF_EXT, NULL, attributes);
    if (made == EGL_NO_IMAGE_KHR) errors[0] = (unsigned)eglGetError();
  }
  if (made == EGL_NO_IMAGE_KHR) {
    attributes[MODIFIER] = EGL_NONE;
    made = eglCreateImageKHR(gl.display, EGL_NO_CONTEXT, EGL_LINUX_DMA_BUF_EXT, NULL, attributes);
    if (made == EGL_NO_IMAGE_KHR) errors[1] = (unsigned)eglGetError();
  }
  return made;
}

// A context of OpenGL ES, current: OpenGL's own need not take images.
static EGLContext begin_es(void) {
  static const EGLint wanted[] = {EGL_CONTEXT_MAJOR_VERSION, 3, EGL_NONE};
  EGLContext made = EGL_NO_CONTEXT;
  if (eglBindAPI(EGL_OPENGL_ES_API)) made = eglCreateContext(gl.display, EGL_NO_CONFIG_KHR, EGL_NO_CONTEXT, wanted);
  if (made == EGL_NO_CONTEXT) {
    printf("# a context of OpenGL ES 3: 0x%04x\n", (unsigned)eglGetError());
    eglBindAPI(EGL_OPENGL_API);
    return made;
  }
  opengl_make_current(made);
  return made;
}
static void end_es(EGLContext of) {
  eglBindAPI(EGL_OPENGL_API);
  opengl_make_current(gl.context);
  eglDestroyContext(gl.display, of);
}

// The picture has gmm's bytes, and gmm's block has the colour to which OpenGL ES clears it.
static void check_image(EGLImageKHR image, uint8_t *block, const char **why) {
  static uint8_t bytes[PICTURE_BYTES];
  GLuint texture = 0, framebuffer = 0;
  glGenTextures(1, &texture);
  glBindTexture(GL_TEXTURE_2D, texture);
  glEGLImageTargetTexture2DOES(GL_TEXTURE_2D, image);
  glGenFramebuffers(1, &framebuffer);
  glBindFramebuffer(GL_FRAMEBUFFER, framebuffer);
  glFramebufferTexture2D(GL_FRAMEBUFFER, GL_COLOR_ATTACHMENT0, GL_TEXTURE_2D, texture, 0);
  const GLenum error = glGetError(), status = glCheckFramebufferStatus(GL_FRAMEBUFFER);
  if (error != GL_NO_ERROR || status != GL_FRAMEBUFFER_COMPLETE) {
    static char words[128];
    snprintf(words, sizeof words, "OpenGL ES draws into no texture of the image: error 0x%04x, framebuffer 0x%04x",
             (unsigned)error, (unsigned)status);
    *why = words;
  } else {
    glReadPixels(0, 0, WIDTH, HEIGHT, GL_RGBA, GL_UNSIGNED_BYTE, bytes);
    CHECK_EQUAL(pattern_length(bytes, sizeof bytes, 12), sizeof bytes);
    glClearColor(0.2f, 0.2f, 0.2f, 1);
    glClear(GL_COLOR_BUFFER_BIT);
    GL_FINISH();
    OK(gmm_copy(context, bytes, block, sizeof bytes, GMM_STREAM_DEFAULT));
    OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
    CHECK_HALVES(bytes, 51, 51);
  }
  glDeleteFramebuffers(1, &framebuffer);
  glDeleteTextures(1, &texture);
}

static void a_dma_buf_is_an_image(void) {
  if ((device_info.capabilities & GMM_DEVICE_CAN_DMA_BUF) == 0)
    SKIP("the device has no dma-buf: %s",
         on_host_backend() ? "the host backend's memory is files" : "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED is 0");
  if (!gl.has_dma_buf || eglCreateImageKHR == NULL || glEGLImageTargetTexture2DOES == NULL)
    SKIP("EGL has no EGL_EXT_image_dma_buf_import");
  gmm_heap *heap = exportable_heap(0);
  uint8_t *block = NULL;
  MUST(gmm_heap_alloc(heap, MIB, 0, 0, GMM_STREAM_DEFAULT, (void **)&block));
  write_pattern(block, PICTURE_BYTES, 12, GMM_STREAM_DEFAULT);
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  gmm_ipc_fd_info out = {.struct_size = sizeof out};
  MUST(gmm_ipc_export_fd(context, block, GMM_FD_DMA_BUF, &out));
  unsigned errors[2];
  static char words[128];
  const char *why = NULL;
  EGLImageKHR image = image_over(&out, errors);
  if (image == EGL_NO_IMAGE_KHR) {
    snprintf(words, sizeof words, "EGL makes no image of the device's dma-buf: 0x%04x, without a modifier 0x%04x",
             errors[0], errors[1]);
    why = words;
  } else {
    EGLContext es = begin_es();
    if (es == EGL_NO_CONTEXT)
      why = "there is no OpenGL ES 3, which takes images";
    else
      check_image(image, block, &why), end_es(es);
    CHECK(eglDestroyImageKHR(gl.display, image));
  }
  CHECK(close(out.fd) == 0);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_heap_destroy(heap));
  if (why != NULL) SKIP("%s", why);
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
  PLAIN(a_dma_buf_is_an_image);
  vulkan_close();
  opengl_close();
  return check_finish();
}
