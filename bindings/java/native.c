/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"

#include <pthread.h>
#include <unistd.h>

#include "oom.h"
#include "struct.h"

static JavaVM *machine;
static pthread_key_t attached;

/* JNI_OnLoad looks these up: a thread that C made has no class loader that knows io.gmm. */
static jclass exception_class;
static jmethodID exception_make;
static jmethodID call_call;

static void detach(void *unused) {
  (void)unused;
  (*machine)->DetachCurrentThread(machine);
}

/* Attaches a thread of the backend at its first callback, until the thread ends. It is a daemon, so that it never keeps
 * the virtual machine alive. Returns NULL when the machine has ended. */
static JNIEnv *environment(void) {
  void *env = NULL;
  jint state = (*machine)->GetEnv(machine, &env, JNI_VERSION_1_8);
  if (state == JNI_OK) return (JNIEnv *)env;
  if (state != JNI_EDETACHED) return NULL;
  JavaVMAttachArgs arguments = {JNI_VERSION_1_8, (char *)"gmm", NULL};
  if ((*machine)->AttachCurrentThreadAsDaemon(machine, &env, &arguments) != JNI_OK) return NULL;
  pthread_setspecific(attached, env);
  return (JNIEnv *)env;
}

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM *vm, void *reserved) {
  (void)reserved;
  void *found = NULL;
  machine = vm;
  if ((*vm)->GetEnv(vm, &found, JNI_VERSION_1_8) != JNI_OK) return JNI_ERR;
  JNIEnv *env = (JNIEnv *)found;
  if (pthread_key_create(&attached, detach) != 0) return JNI_ERR;
  jclass exception = (*env)->FindClass(env, "io/gmm/GmmException");
  jclass call = exception ? (*env)->FindClass(env, "io/gmm/Call") : NULL;
  if (!call || !(exception_class = (jclass)(*env)->NewGlobalRef(env, exception))) return JNI_ERR;
  exception_make = (*env)->GetStaticMethodID(env, exception, "fromNative", "(II[B[B)Lio/gmm/GmmException;");
  call_call = exception_make ? (*env)->GetMethodID(env, call, "call", "(JJ[B)Z") : NULL;
  return call_call ? JNI_VERSION_1_8 : JNI_ERR;
}

static void throw_by_name(JNIEnv *env, const char *name, const char *message) {
  jclass found = (*env)->FindClass(env, name);
  if (found) (*env)->ThrowNew(env, found, message);
}

void gmm_java_throw(JNIEnv *jenv, gmm_result result) {
  if ((*jenv)->ExceptionCheck(jenv)) return;
  int32_t native_code = gmm_last_native_code();
  const char *name = gmm_result_name(result);
  const char *message = gmm_last_error_message();
  jbyteArray name_bytes = gmm_java_bytes(jenv, name, strlen(name));
  if (!name_bytes) return;
  jbyteArray message_bytes = gmm_java_bytes(jenv, message, strlen(message));
  if (!message_bytes) return;
  jobject made = (*jenv)->CallStaticObjectMethod(jenv, exception_class, exception_make, (jint)result, (jint)native_code,
                                                 name_bytes, message_bytes);
  if (!(*jenv)->ExceptionCheck(jenv) && made) (*jenv)->Throw(jenv, (jthrowable)made);
}

int gmm_java_check_length(JNIEnv *jenv, jbyteArray array, size_t length) {
  if (array && (size_t)(*jenv)->GetArrayLength(jenv, array) == length) return 1;
  throw_by_name(jenv, "java/lang/IllegalArgumentException", "an IPC handle is exactly 256 bytes");
  return 0;
}

jbyteArray gmm_java_bytes(JNIEnv *jenv, const void *bytes, size_t length) {
  jbyteArray array = (*jenv)->NewByteArray(jenv, (jsize)length);
  if (array) (*jenv)->SetByteArrayRegion(jenv, array, 0, (jsize)length, (const jbyte *)bytes);
  return array;
}

/* A copy of an array with a NUL behind it, for free(); NULL with an exception pending. */
static char *copy_of(JNIEnv *jenv, jbyteArray array, jsize length) {
  char *copy = (char *)malloc((size_t)length + 1);
  if (!copy) {
    throw_by_name(jenv, "java/lang/OutOfMemoryError", "no host memory for an argument");
    return NULL;
  }
  (*jenv)->GetByteArrayRegion(jenv, array, 0, length, (jbyte *)copy);
  copy[length] = 0;
  return copy;
}

void *gmm_java_options(JNIEnv *jenv, jbyteArray array) {
  char *bytes = copy_of(jenv, array, (*jenv)->GetArrayLength(jenv, array));
  return bytes ? gmm_bind_struct(bytes) : NULL;
}

char *gmm_java_text(JNIEnv *jenv, jbyteArray array) {
  const jsize length = (*jenv)->GetArrayLength(jenv, array);
  char *text = copy_of(jenv, array, length);
  if (!text || strlen(text) == (size_t)length) return text;
  free(text);
  throw_by_name(jenv, "java/lang/IllegalArgumentException", "text holds a NUL character");
  return NULL;
}

gmm_java_view gmm_java_make_view(void *memory, int32_t size) {
  gmm_java_view view = {memory, size};
  return view;
}

uint64_t gmm_java_address(JNIEnv *jenv, jobject buffer) {
  return buffer ? (uint64_t)(uintptr_t)(*jenv)->GetDirectBufferAddress(jenv, buffer) : 0;
}

void gmm_java_close(int32_t fd) { close(fd); }

uint64_t gmm_java_callbacks_new(JNIEnv *jenv, jobject callbacks) {
  jobject global = (*jenv)->NewGlobalRef(jenv, callbacks);
  if (!global) throw_by_name(jenv, "java/lang/OutOfMemoryError", "no memory for a global reference");
  return (uint64_t)(uintptr_t)global;
}

void gmm_java_callbacks_delete(JNIEnv *jenv, uint64_t callbacks) {
  (*jenv)->DeleteGlobalRef(jenv, (jobject)(uintptr_t)callbacks);
}

/* Calls an io.gmm.Call with two numbers and a copy of bytes. Returns its answer, 0 for an exception, and -1 when the
 * machine has ended and nobody is left to ask.
 *
 * A message or an event may come while the exception of an earlier callback is on its way out of the same call: it is
 * set aside. The exception of an out-of-memory handler or a writer stays pending: gmm_java_throw() lets it out
 * of the call. All others end in Java, but for a lack of memory; a thread of the library has no caller for that. */
static int call(void *user, uint64_t first, uint64_t second, const void *bytes, size_t size) {
  JNIEnv *env = environment();
  if (!env) return -1;
  jthrowable pending = (*env)->ExceptionOccurred(env);
  if (pending) (*env)->ExceptionClear(env);
  jbyteArray array = bytes ? gmm_java_bytes(env, bytes, size) : NULL;
  int answer = 0;
  if (array || !bytes)
    answer = (*env)->CallBooleanMethod(env, (jobject)user, call_call, (jlong)first, (jlong)second, array);
  if (array) (*env)->DeleteLocalRef(env, array);
  if ((*env)->ExceptionCheck(env)) {
    answer = 0;
    if (pthread_getspecific(attached)) (*env)->ExceptionDescribe(env);
    if (pending || pthread_getspecific(attached)) (*env)->ExceptionClear(env);
  }
  if (pending) (*env)->Throw(env, pending);
  return answer;
}

static void on_log(void *user, gmm_log_level level, const char *message) {
  (void)call(user, level, 0, message, strlen(message));
}
static int32_t on_progress(void *user, uint64_t done, uint64_t total) { return call(user, done, total, NULL, 0) == 0; }
static int32_t on_watch(void *user, const gmm_watch_info *info) {
  return call(user, 0, 0, info, info->struct_size) == 0;
}
static int32_t on_asked(void *user, const gmm_lease_ask *ask) {
  (void)call(user, 0, 0, ask, ask->struct_size); /* a lease takes no answer */
  return 0;
}

static int32_t ask_oom(void *user, const gmm_oom_info *info) {
  return call(user, UINT64_MAX, 0, info, sizeof *info) == 1;
}
int32_t gmm_java_oom(void *user, const gmm_oom_info *info) { return gmm_oom_answer(user, info, ask_oom); }
int32_t gmm_java_write(void *user, const char *text, uint64_t size) { return call(user, 0, 0, text, size) != 1; }
void gmm_java_run(void *user) { (void)call(user, 0, 0, NULL, 0); }

uint64_t gmm_java_callback(const char *type) {
  if (strcmp(type, "gmm_log_callback") == 0) return (uint64_t)(uintptr_t)on_log;
  if (strcmp(type, "gmm_progress_callback") == 0) return (uint64_t)(uintptr_t)on_progress;
  if (strcmp(type, "gmm_watch_callback") == 0) return (uint64_t)(uintptr_t)on_watch;
  return (uint64_t)(uintptr_t)on_asked; /* gmm_lease_ask_callback */
}
