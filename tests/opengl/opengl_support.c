// SPDX-License-Identifier: Apache-2.0
#include "opengl_support.h"

#include <dlfcn.h>

#define OPENGL(need, type, name) type name;
#include "gl_functions.def"

opengl gl;

static void *library;
static PFNEGLGETPROCADDRESSPROC get_address;
static char why_not[256];

// --- The device ------------------------------------------------------------------------------------------------------

static void *look_up(const char *name) {
  void *found = dlsym(library, name);
  if (found == NULL) *(__eglMustCastToProperFunctionPointerType *)&found = get_address(name);
  return found;
}

enum { NEEDED, OPTIONAL };
// Returns the name of a function that is missing, or NULL.
static const char *load(void) {
  const char *missing = NULL;
#define OPENGL(need, type, name)    \
  *(void **)&name = look_up(#name); \
  if (need == NEEDED && name == NULL) missing = #name;
#include "gl_functions.def"
  return missing;
}

// Whether the word is in a list of words by blanks.
static bool has_word(const char *list, const char *word) {
  const size_t length = strlen(word);
  for (const char *at = list; at != NULL && (at = strstr(at, word)) != NULL; at += length)
    if ((at == list || at[-1] == ' ') && (at[length] == ' ' || at[length] == 0)) return true;
  return false;
}

static bool opengl_has(const char *extension) {
  GLint count = 0;
  glGetIntegerv(GL_NUM_EXTENSIONS, &count);
  for (GLint i = 0; i < count; ++i)
    if (strcmp((const char *)glGetStringi(GL_EXTENSIONS, (GLuint)i), extension) == 0) return true;
  return false;
}

static void APIENTRY show_error(GLenum source, GLenum type, GLuint id, GLenum severity, GLsizei length,
                                const GLchar *message, const void *user) {
  (void)source, (void)id, (void)severity, (void)length, (void)user;
  if (type == GL_DEBUG_TYPE_ERROR) printf("# OpenGL says: %s\n", message);
}

// Whether the current context is of the device.
static bool has_uuid(const uint8_t uuid[16]) {
  GLint count = 0;
  bool found = false;
  if (glGetUnsignedBytei_vEXT == NULL || !opengl_has("GL_EXT_memory_object")) return false;
  glGetIntegerv(GL_NUM_DEVICE_UUIDS_EXT, &count);
  for (GLint i = 0; i < count; ++i) {
    GLubyte shown[GL_UUID_SIZE_EXT] = {0};
    glGetUnsignedBytei_vEXT(GL_DEVICE_UUID_EXT, (GLuint)i, shown);
    found = found || memcmp(shown, uuid, sizeof shown) == 0;
  }
  return found;
}

static void end_device(void) {
  if (gl.display == EGL_NO_DISPLAY) return;
  eglMakeCurrent(gl.display, EGL_NO_SURFACE, EGL_NO_SURFACE, EGL_NO_CONTEXT);
  if (gl.context != EGL_NO_CONTEXT) eglDestroyContext(gl.display, gl.context);
  eglTerminate(gl.display);
  gl.context = EGL_NO_CONTEXT;
  gl.display = EGL_NO_DISPLAY;
}

// Makes a context of the device current. Returns NULL, or why not.
static const char *open_device(EGLDeviceEXT egl_device) {
  static const EGLint wanted[] = {EGL_CONTEXT_MAJOR_VERSION,
                                  4,
                                  EGL_CONTEXT_MINOR_VERSION,
                                  5,
                                  EGL_CONTEXT_OPENGL_PROFILE_MASK,
                                  EGL_CONTEXT_OPENGL_CORE_PROFILE_BIT,
                                  EGL_CONTEXT_OPENGL_DEBUG,
                                  EGL_TRUE,
                                  EGL_NONE};
  const char *call = "eglGetPlatformDisplayEXT";
  gl.display = eglGetPlatformDisplayEXT(EGL_PLATFORM_DEVICE_EXT, egl_device, NULL);
  bool done = gl.display != EGL_NO_DISPLAY;
  if (done) call = "eglInitialize", done = eglInitialize(gl.display, NULL, NULL);
  if (done) call = "eglBindAPI", done = eglBindAPI(EGL_OPENGL_API);
  if (done) {
    call = "eglCreateContext for OpenGL 4.5";
    gl.context = eglCreateContext(gl.display, EGL_NO_CONFIG_KHR, EGL_NO_CONTEXT, wanted);
    done = gl.context != EGL_NO_CONTEXT;
  }
  if (done) {
    call = "eglMakeCurrent without a surface";
    done = eglMakeCurrent(gl.display, EGL_NO_SURFACE, EGL_NO_SURFACE, gl.context);
  }
  if (done) return NULL;
  snprintf(why_not, sizeof why_not, "%s gave the error 0x%04x of EGL", call, (unsigned)eglGetError());
  return why_not;
}

// Reads which extensions the device has.
static void read_offers(void) {
  const char *egl = eglQueryString(gl.display, EGL_EXTENSIONS);
  snprintf(gl.name, sizeof gl.name, "%s, %s", (const char *)glGetString(GL_RENDERER),
           (const char *)glGetString(GL_VERSION));
  gl.has_memory_fd = opengl_has("GL_EXT_memory_object") && opengl_has("GL_EXT_memory_object_fd");
  gl.has_pinned = opengl_has("GL_AMD_pinned_memory");
  gl.has_semaphore_fd = opengl_has("GL_EXT_semaphore") && opengl_has("GL_EXT_semaphore_fd");
  gl.has_timeline = opengl_has("GL_NV_timeline_semaphore");
  gl.has_syncs = has_word(egl, "EGL_KHR_fence_sync");
  glEnable(GL_DEBUG_OUTPUT);
  glEnable(GL_DEBUG_OUTPUT_SYNCHRONOUS);
  glDebugMessageCallback(show_error, NULL);
}

const char *opengl_open(bool is_cpu, const uint8_t uuid[16]) {
  const char *path = getenv("GMM_TEST_EGL");
  library = dlopen(path != NULL ? path : "libEGL.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return "there is no libEGL.so.1 (Debian: libegl1)";
  *(void **)&get_address = dlsym(library, "eglGetProcAddress");
  if (get_address == NULL) return "libEGL has no eglGetProcAddress()";
  const char *missing = load();
  if (missing != NULL) {
    snprintf(why_not, sizeof why_not, "libEGL gives no %s()", missing);
    return why_not;
  }
  const char *extensions = eglQueryString(EGL_NO_DISPLAY, EGL_EXTENSIONS);
  if (!has_word(extensions, "EGL_EXT_platform_device") || eglQueryDevicesEXT == NULL ||
      eglQueryDeviceStringEXT == NULL || eglGetPlatformDisplayEXT == NULL)
    return "EGL has no EGL_EXT_platform_device, by which a device is found without a window";
  EGLDeviceEXT devices[16];
  EGLint count = 0;
  if (!eglQueryDevicesEXT(16, devices, &count) || count == 0) return "EGL shows no device";
  for (EGLint i = 0; i < count; ++i) {
    const char *offers = eglQueryDeviceStringEXT(devices[i], EGL_EXTENSIONS);
    if (has_word(offers, "EGL_MESA_device_software") != is_cpu) continue;
    const char *why = open_device(devices[i]);
    if (why != NULL)
      printf("# EGL's device %d: %s\n", (int)i, why);
    else if (has_uuid(uuid) || is_cpu) {
      read_offers();
      return NULL;
    }
    end_device();
  }
  return is_cpu ? "EGL has no CPU device with OpenGL 4.5 (Debian: libegl-mesa0 libgl1-mesa-dri)"
                : "OpenGL does not show the context's device, which it would show by its UUID";
}

void opengl_close(void) { end_device(); }

// --- Calls -----------------------------------------------------------------------------------------------------------

void gl_check(const char *file, int line, const char *call) {
  const GLenum error = glGetError();
  if (error == GL_NO_ERROR) return;
  for (int i = 0; i < 8 && glGetError() != GL_NO_ERROR; ++i) {
  }
  check_failed(file, line, "%s gave the error 0x%04x of OpenGL", call, (unsigned)error);
  longjmp(check_state.leave, 1);
}

void gl_finish(int line) {
  GLsync sync = glFenceSync(GL_SYNC_GPU_COMMANDS_COMPLETE, 0);
  const GLenum answer = glClientWaitSync(sync, GL_SYNC_FLUSH_COMMANDS_BIT, WAIT_S * (GLuint64)1000000000);
  glDeleteSync(sync);
  CHECK_MESSAGE(answer == GL_ALREADY_SIGNALED || answer == GL_CONDITION_SATISFIED,
                "line %d: OpenGL has not done its work within %d s: 0x%04x", line, WAIT_S, (unsigned)answer);
  gl_check(__FILE__, line, "work before");
}

GLuint import_descriptor(int fd, uint64_t size) {
  GLuint made = 0;
  GL(glCreateMemoryObjectsEXT(1, &made));
  glImportMemoryFdEXT(made, size, GL_HANDLE_TYPE_OPAQUE_FD_EXT, fd);
  const GLenum error = glGetError();
  if (error == GL_NO_ERROR) return made;
  close(fd);  // OpenGL owns it after a success alone
  if (on_host_backend()) SKIP("OpenGL's CPU device takes no memory of Vulkan's: 0x%04x", (unsigned)error);
  check_failed(__FILE__, __LINE__, "glImportMemoryFdEXT() of %llu bytes gave the error 0x%04x of OpenGL",
               (unsigned long long)size, (unsigned)error);
  longjmp(check_state.leave, 1);
}

view view_of(void *block, uint64_t size) {
  view made = {0};
  GL(glCreateBuffers(1, &made.buffer));
  if (on_host_backend()) {
    if (!gl.has_pinned) SKIP("the OpenGL device has no GL_AMD_pinned_memory, which takes memory by its address");
    GL(glBindBuffer(GL_EXTERNAL_VIRTUAL_MEMORY_BUFFER_AMD, made.buffer));
    GL(glBufferData(GL_EXTERNAL_VIRTUAL_MEMORY_BUFFER_AMD, (GLsizeiptr)size, block, GL_STREAM_COPY));
    GL(glBindBuffer(GL_EXTERNAL_VIRTUAL_MEMORY_BUFFER_AMD, 0));
    return made;
  }
  gmm_ipc_fd_info out = {.struct_size = sizeof out};
  MUST(gmm_ipc_export_fd(context, block, GMM_FD_OPAQUE, &out));
  made.memory = import_descriptor(out.fd, out.size);
  GL(glNamedBufferStorageMemEXT(made.buffer, (GLsizeiptr)size, made.memory, out.offset));
  return made;
}

void end_view(view *of) {
  GL(glDeleteBuffers(1, &of->buffer));
  if (of->memory != 0) GL(glDeleteMemoryObjectsEXT(1, &of->memory));
  GL_FINISH();
  *of = (view){0};
}

GLuint own_buffer(uint64_t size, const void *contents) {
  GLuint made = 0;
  GL(glCreateBuffers(1, &made));
  GL(glNamedBufferData(made, (GLsizeiptr)size, contents, GL_STREAM_COPY));
  return made;
}

void opengl_write(GLuint to, uint64_t size, uint32_t seed) {
  uint8_t *bytes = malloc(size);
  REQUIRE(bytes != NULL);
  fill_pattern(bytes, size, seed);
  GLuint staging = own_buffer(size, bytes);
  free(bytes);
  GL(glCopyNamedBufferSubData(staging, to, 0, 0, (GLsizeiptr)size));
  GL_FINISH();
  GL(glDeleteBuffers(1, &staging));
}

void opengl_check(int line, GLuint from, uint64_t size, uint32_t seed) {
  GLuint staging = own_buffer(size, NULL);
  GL(glCopyNamedBufferSubData(from, staging, 0, 0, (GLsizeiptr)size));
  GL_FINISH();
  uint8_t *bytes = calloc(1, size);
  REQUIRE(bytes != NULL);
  glGetNamedBufferSubData(staging, 0, (GLsizeiptr)size, bytes);
  const uint64_t same = pattern_length(bytes, size, seed);
  free(bytes);
  CHECK_MESSAGE(same == size, "line %d: OpenGL reads the pattern %u in %llu of %llu bytes", line, seed,
                (unsigned long long)same, (unsigned long long)size);
  GL(glDeleteBuffers(1, &staging));
}
