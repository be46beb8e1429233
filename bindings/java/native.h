/* SPDX-License-Identifier: Apache-2.0 */
/** @file native.h  What the generated JNI code calls: exceptions, text, trampolines. */
#ifndef GMM_JAVA_NATIVE_H
#define GMM_JAVA_NATIVE_H

#include <gmm/gmm.h>
#include <jni.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/** Memory to be seen as a direct ByteBuffer. */
typedef struct gmm_java_view {
  void *memory;
  jlong size;
} gmm_java_view;

/** Makes the failure of this thread's last call a pending GmmException, unless a callback left one of its own. */
void gmm_java_throw(JNIEnv *jenv, gmm_result result);

/** False, with an IllegalArgumentException pending, unless `array` has exactly `length` bytes. */
int gmm_java_check_length(JNIEnv *jenv, jbyteArray array, size_t length);

/** A new array with these bytes; NULL with an exception pending. */
jbyteArray gmm_java_bytes(JNIEnv *jenv, const void *bytes, size_t length);

/** The descriptor in these bytes (struct.h), for free(); NULL with an exception pending. */
void *gmm_java_options(JNIEnv *jenv, jbyteArray array);

/** The trampoline of a callback type of the headers, for a field of options. */
uint64_t gmm_java_callback(const char *type);

/** A copy with a NUL at its end, for free(); NULL with an exception pending (no memory, or a NUL inside). */
char *gmm_java_text(JNIEnv *jenv, jbyteArray array);

gmm_java_view gmm_java_make_view(void *memory, int32_t size);

/** Where a direct buffer's bytes stand; 0 for any other buffer. */
uint64_t gmm_java_address(JNIEnv *jenv, jobject buffer);

/** Closes a file descriptor, for which Java has no call. */
void gmm_java_close(int32_t fd);

/** Keeps an io.gmm.Call for the trampolines; 0 with an exception pending. */
uint64_t gmm_java_callbacks_new(JNIEnv *jenv, jobject callbacks);
void gmm_java_callbacks_delete(JNIEnv *jenv, uint64_t callbacks);

int32_t gmm_java_oom(void *user, const gmm_oom_info *info);
int32_t gmm_java_write(void *user, const char *text, uint64_t size);
void gmm_java_run(void *user);

#endif
