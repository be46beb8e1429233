/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"

#include <pthread.h>
#include <unistd.h>

#include "struct.h"

static JavaVM *machine;
static pthread_key_t attached;

/* JNI_OnLoad looks these up: a thread that C made has no class loader that knows io.gmm. */
static jclass exception_class;
static jclass callbacks_class;
static jmethodID exception_make;
static jmethodID callbacks_log;
static jmethodID callbacks_oom;
static jmethodID callbacks_run;
static jmethodID writer_write;
static jmethodID progress_call;
static jmethodID watch_call;
static jmethodID lease_call;

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

static jclass global_class(JNIEnv *env, const char *name) {
  jclass local = (*env)->FindClass(env, name);
  if (!local) return NULL;
  jclass global = (jclass)(*env)->NewGlobalRef(env, local);
  (*env)->DeleteLocalRef(env, local);
  return global;
}

/* NULL with an exception pending. */
static jmethodID method(JNIEnv *env, const char *class_name, const char *name, const char *signature) {
  jclass found = (*env)->FindClass(env, class_name);
  return found ? (*env)->GetMethodID(env, found, name, signature) : NULL;
}

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM *vm, void *reserved) {
  (void)reserved;
  void *found = NULL;
  machine = vm;
  if ((*vm)->GetEnv(vm, &found, JNI_VERSION_1_8) != JNI_OK) return JNI_ERR;
  JNIEnv *env = (JNIEnv *)found;
  if (pthread_key_create(&attached, detach) != 0) return JNI_ERR;
  if (!(exception_class = global_class(env, "io/gmm/GmmException"))) return JNI_ERR;
  if (!(callbacks_class = global_class(env, "io/gmm/Callbacks"))) return JNI_ERR;
  return (exception_make =
              (*env)->GetStaticMethodID(env, exception_class, "fromNative", "(II[B[B)Lio/gmm/GmmException;")) &&
                 (callbacks_log = (*env)->GetMethodID(env, callbacks_class, "log", "(I[B)V")) &&
                 (callbacks_oom = (*env)->GetMethodID(env, callbacks_class, "outOfMemory", "([B)Z")) &&
                 (callbacks_run = (*env)->GetStaticMethodID(env, callbacks_class, "run", "(Ljava/lang/Runnable;)V")) &&
                 (writer_write = method(env, "io/gmm/SnapshotWriter", "write", "([B)Z")) &&
                 (progress_call = method(env, "io/gmm/ProgressCall", "call", "(JJ)Z")) &&
                 (watch_call = method(env, "io/gmm/WatchCall", "call", "([B)Z")) &&
                 (lease_call = method(env, "io/gmm/LeaseCall", "call", "([B)Z"))
             ? JNI_VERSION_1_8
             : JNI_ERR;
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

void *gmm_java_options(JNIEnv *jenv, jbyteArray array) {
  const jsize length = (*jenv)->GetArrayLength(jenv, array);
  void *bytes = malloc((size_t)length);
  if (!bytes) {
    throw_by_name(jenv, "java/lang/OutOfMemoryError", "no host memory for options");
    return NULL;
  }
  (*jenv)->GetByteArrayRegion(jenv, array, 0, length, (jbyte *)bytes);
  return gmm_bind_struct(bytes);
}

char *gmm_java_text(JNIEnv *jenv, jbyteArray array) {
  jsize length = (*jenv)->GetArrayLength(jenv, array);
  char *text = (char *)malloc((size_t)length + 1);
  if (!text) {
    throw_by_name(jenv, "java/lang/OutOfMemoryError", "no host memory for text");
    return NULL;
  }
  (*jenv)->GetByteArrayRegion(jenv, array, 0, length, (jbyte *)text);
  text[length] = 0;
  if (strlen(text) != (size_t)length) {
    free(text);
    throw_by_name(jenv, "java/lang/IllegalArgumentException", "text holds a NUL character");
    return NULL;
  }
  return text;
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

/* A message or an event may come while an earlier callback's exception is on its way out of the same call. Java is not
 * called with it: it is set aside until put_back(). */
static jthrowable set_aside(JNIEnv *env) {
  jthrowable pending = (*env)->ExceptionOccurred(env);
  if (pending) (*env)->ExceptionClear(env);
  return pending;
}

/* Describes an exception of the callback itself, for which there is no caller. Whether there was one. */
static jboolean put_back(JNIEnv *env, jthrowable pending) {
  const jboolean threw = (*env)->ExceptionCheck(env);
  if (threw) {
    (*env)->ExceptionDescribe(env);
    (*env)->ExceptionClear(env);
  }
  if (pending) (*env)->Throw(env, pending);
  return threw;
}

static void gmm_java_log(void *user, gmm_log_level level, const char *message) {
  JNIEnv *env = environment();
  if (!env) return;
  jthrowable pending = set_aside(env);
  jbyteArray text = gmm_java_bytes(env, message, strlen(message));
  if (text) {
    (*env)->CallVoidMethod(env, (jobject)user, callbacks_log, (jint)level, text);
    (*env)->DeleteLocalRef(env, text);
  }
  put_back(env, pending);
}

/* Calls a method that gets the bytes of a struct, which the library lends. No local reference is left. */
static jboolean call_with(JNIEnv *env, void *user, jmethodID called, const void *info) {
  jbyteArray bytes = gmm_java_bytes(env, info, *(const uint32_t *)info);
  if (!bytes) return JNI_FALSE;
  const jboolean answer = (*env)->CallBooleanMethod(env, (jobject)user, called, bytes);
  (*env)->DeleteLocalRef(env, bytes);
  return answer;
}

/* An exception stays pending: gmm_java_throw() lets it out of the allocation. */
int32_t gmm_java_oom(void *user, const gmm_oom_info *info) {
  JNIEnv *env = environment();
  if (!env || (*env)->ExceptionCheck(env)) return 0;
  const jboolean again = call_with(env, user, callbacks_oom, info);
  return !(*env)->ExceptionCheck(env) && again;
}

int32_t gmm_java_write(void *user, const char *text, uint64_t size) {
  JNIEnv *env = environment();
  if (!env || (*env)->ExceptionCheck(env)) return 1;
  jbyteArray piece = gmm_java_bytes(env, text, (size_t)size);
  if (!piece) return 1;
  jboolean more = (*env)->CallBooleanMethod(env, (jobject)user, writer_write, piece);
  if ((*env)->ExceptionCheck(env)) return 1;
  (*env)->DeleteLocalRef(env, piece);
  return more ? 0 : 1;
}

/* Runs on the caller's thread, or on one of the library. ProgressCall keeps the exception of the program. */
static int32_t gmm_java_progress(void *user, uint64_t done, uint64_t total) {
  JNIEnv *env = environment();
  if (!env) return 0;
  if ((*env)->ExceptionCheck(env)) return 1;
  jboolean more = (*env)->CallBooleanMethod(env, (jobject)user, progress_call, (jlong)done, (jlong)total);
  return (*env)->ExceptionCheck(env) || !more;
}

/* Runs on a thread of the program or of the library. WatchCall and LeaseCall report an exception of the program, which
 * refuses. At the end of the machine nobody is left to ask. */
static int32_t hear(void *user, jmethodID called, const void *info) {
  JNIEnv *env = environment();
  if (!env) return 0;
  jthrowable pending = set_aside(env);
  const jboolean agrees = call_with(env, user, called, info);
  return put_back(env, pending) || !agrees;
}

static int32_t gmm_java_watch(void *user, const gmm_watch_info *info) { return hear(user, watch_call, info); }

static int32_t gmm_java_asked(void *user, const gmm_lease_ask *ask) {
  (void)hear(user, lease_call, ask); /* a lease takes no answer */
  return 0;
}

uint64_t gmm_java_callback(const char *type) {
  if (strcmp(type, "gmm_log_callback") == 0) return (uint64_t)(uintptr_t)gmm_java_log;
  if (strcmp(type, "gmm_progress_callback") == 0) return (uint64_t)(uintptr_t)gmm_java_progress;
  if (strcmp(type, "gmm_watch_callback") == 0) return (uint64_t)(uintptr_t)gmm_java_watch;
  if (strcmp(type, "gmm_lease_ask_callback") == 0) return (uint64_t)(uintptr_t)gmm_java_asked;
  return 0;
}

void gmm_java_run(void *user) {
  JNIEnv *env = environment();
  if (!env) return;
  (*env)->CallStaticVoidMethod(env, callbacks_class, callbacks_run, (jobject)user);
  if ((*env)->ExceptionCheck(env)) {
    (*env)->ExceptionDescribe(env);
    (*env)->ExceptionClear(env);
  }
  (*env)->DeleteGlobalRef(env, (jobject)user);
}
