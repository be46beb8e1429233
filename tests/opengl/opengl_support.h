// SPDX-License-Identifier: Apache-2.0
// OpenGL for the tests: one device without a window, found through EGL, and buffers over gmm's memory.
//
// libEGL is opened at run time, so that a machine without it skips the tests. GMM_TEST_EGL names another library than
// libEGL.so.1.
#ifndef GMM_TESTS_OPENGL_SUPPORT_H
#define GMM_TESTS_OPENGL_SUPPORT_H

#define EGL_NO_PLATFORM_SPECIFIC_TYPES
#define EGL_EGL_PROTOTYPES 0
#include <EGL/egl.h>
#include <EGL/eglext.h>
#include <GL/glcorearb.h>
// after the core's
#include <GL/glext.h>

#include "../support/gmm_test.h"

// Of OpenGL ES, whose headers do not go with those above.
typedef void(APIENTRYP PFNGLEGLIMAGETARGETTEXTURE2DOESPROC)(GLenum target, GLeglImageOES image);

#define EGL_FUNCTION(type, name) extern type name;
#define GL_FUNCTION(type, name) extern type name;
#define OPTIONAL(type, name) extern type name;
#include "gl_functions.def"
#undef EGL_FUNCTION
#undef GL_FUNCTION
#undef OPTIONAL

// Makes a call, checks that OpenGL noted no error, and ends the case when it did.
#define GL(call)                         \
  do {                                   \
    call;                                \
    gl_check(__FILE__, __LINE__, #call); \
  } while (0)
void gl_check(const char *file, int line, const char *call);

typedef struct opengl {
  EGLDisplay display;
  EGLContext context;
  bool has_memory_fd, has_pinned, has_semaphore_fd, has_timeline, has_syncs, has_dma_buf, has_modifiers;
  char name[128];
} opengl;
extern opengl gl;

// Opens Mesa's CPU device for the host backend, else the device with the uuid. Returns NULL, or why there is none.
const char *opengl_open(bool is_cpu, const uint8_t uuid[16]);
void opengl_close(void);
void opengl_make_current(EGLContext context);
bool opengl_has(const char *extension);  // of the current context

// Waits until OpenGL has done its work; fails after WAIT_S.
enum { WAIT_S = 20 };
void gl_finish(int line);
#define GL_FINISH() gl_finish(__LINE__)

// A memory object of a descriptor, which is OpenGL's afterwards.
GLuint import_descriptor(int fd, uint64_t size);

// A buffer of OpenGL over a block of gmm: by a descriptor of its allocation, or on the host backend by its address.
typedef struct view {
  GLuint buffer, memory;
} view;
view view_of(void *block, uint64_t size);
void end_view(view *of);
// A buffer of OpenGL's own memory.
GLuint own_buffer(uint64_t size, const void *contents);

// A pattern through OpenGL: written to a buffer, and compared with its contents.
void opengl_write(GLuint to, uint64_t size, uint32_t seed);
void opengl_check(int line, GLuint from, uint64_t size, uint32_t seed);

#endif
