/* SPDX-License-Identifier: Apache-2.0
 *
 * Java's low layer. It is package-private in io.gmm, so that programs see the hand-written classes only. Outputs come
 * back in arrays of one element, handles and addresses are long, text and IPC handles are byte[].
 */
%module(jniclassname="NativeJNI") Native

%include <stdint.i>
%apply long long { uint64_t, uintptr_t };
%apply int { uint32_t };

%pragma(java) moduleclassmodifiers="final class"
%pragma(java) jniclassclassmodifiers="final class"
%pragma(java) jniclasscode=%{
  static {
    Library.load();
  }
%}

%{
#include "native.h"
#include "struct.h"
%}

/* The type of a pattern in JNI and in Java. Values pass as they are. */
%define GMM_JAVA_TYPE(Pattern, JniType, JavaType)
%typemap(jni) Pattern #JniType
%typemap(jtype) Pattern #JavaType
%typemap(jstype) Pattern #JavaType
%typemap(javain) Pattern "$javainput"
%typemap(javaout) Pattern { return $jnicall; }
%enddef

/* Results. The exception stays pending while the wrapper finishes, which then leaves the outputs alone. "Not yet" is
 * asked for in loops, and is no exception. */
GMM_JAVA_TYPE(gmm_result, jint, int)
%typemap(out) gmm_result %{
  $result = $1;
  if ($1 < 0 && $1 != GMM_ERROR_NOT_READY) gmm_java_throw(jenv, $1);
%}
/* Those that did not get an answer in time have failed. */
%apply gmm_result { gmm_result GMM_END };
%typemap(out) gmm_result GMM_END %{
  $result = $1;
  if ($1 < 0) gmm_java_throw(jenv, $1);
%}
GMM_JAVA_TYPE(gmm_result result, jint, int)
%typemap(in) gmm_result result "$1 = (gmm_result)$input;"

/* Addresses and handles. */
GMM_JAVA_TYPE(void *GMM_ADDRESS, jlong, long)
%typemap(in) void *GMM_ADDRESS %{ $1 = ($1_ltype)(uintptr_t)$input; %}
%typemap(out) void *GMM_ADDRESS %{ $result = (jlong)(uintptr_t)$1; %}
/* Without these, SWIG would take those of bytes.i for any pointer. */
%typemap(argout) void *GMM_ADDRESS ""
%typemap(freearg) void *GMM_ADDRESS, const gmm_ipc_handle *GMM_IN_BYTES ""

/* Outputs: arrays of at least one element, or null where the C interface takes NULL. */
%define GMM_JAVA_OUT(Pattern, CType, JniArray, JavaArray, JniType, Setter)
GMM_JAVA_TYPE(Pattern, JniArray, JavaArray)
%typemap(in) Pattern (CType value) %{
  value = 0;
  $1 = $input ? ($1_ltype)&value : NULL;
%}
%typemap(argout) Pattern %{
  if (result >= 0 && $input) {
    JniType out_$argnum = (JniType)(intptr_t)value$argnum;
    (*jenv)->Setter(jenv, $input, 0, 1, &out_$argnum);
  }
%}
%enddef
GMM_JAVA_OUT(void **GMM_OUT_ADDRESS, void *, jlongArray, long[], jlong, SetLongArrayRegion)
GMM_JAVA_OUT(SWIGTYPE **GMM_OUT_HANDLE, void *, jlongArray, long[], jlong, SetLongArrayRegion)
GMM_JAVA_OUT(uint64_t *GMM_OUT_UINT64, uint64_t, jlongArray, long[], jlong, SetLongArrayRegion)
GMM_JAVA_OUT(uint32_t *GMM_OUT_UINT32, uint32_t, jintArray, int[], jint, SetIntArrayRegion)

/* Bytes. */
GMM_JAVA_TYPE(gmm_ipc_handle *GMM_OUT_BYTES, jbyteArray, byte[])
%typemap(in) gmm_ipc_handle *GMM_OUT_BYTES (gmm_ipc_handle value) %{
  if (!gmm_java_check_length(jenv, $input, sizeof value)) return $null;
  $1 = &value;
%}
%typemap(argout) gmm_ipc_handle *GMM_OUT_BYTES %{
  if (result >= 0) (*jenv)->SetByteArrayRegion(jenv, $input, 0, (jsize)sizeof value$argnum, (jbyte *)&value$argnum);
%}
GMM_JAVA_TYPE(const gmm_ipc_handle *GMM_IN_BYTES, jbyteArray, byte[])
%typemap(in) const gmm_ipc_handle *GMM_IN_BYTES (gmm_ipc_handle value) %{
  if (!gmm_java_check_length(jenv, $input, sizeof(gmm_ipc_handle))) return $null;
  (*jenv)->GetByteArrayRegion(jenv, $input, 0, (jsize)sizeof(gmm_ipc_handle), (jbyte *)value.bytes);
  $1 = &value;
%}

/* Structs are bytes: options with their text and lists behind them (struct.h), answers for C to fill. */
GMM_JAVA_TYPE(const void *GMM_OPTIONS, jbyteArray, byte[])
GMM_JAVA_TYPE(void *GMM_ANSWER, jbyteArray, byte[])
%typemap(in) const void *GMM_OPTIONS %{
  $1 = NULL;
  if ($input && !($1 = ($1_ltype)gmm_java_options(jenv, $input))) return $null;
%}
%typemap(freearg) const void *GMM_OPTIONS %{ free((void *)$1); %}
%typemap(in) void *GMM_ANSWER ($*1_ltype answer) %{
  (*jenv)->GetByteArrayRegion(jenv, $input, 0, (jsize)sizeof answer, (jbyte *)&answer);
  if ((*jenv)->ExceptionCheck(jenv)) return $null;
  $1 = &answer;
%}
%typemap(argout) void *GMM_ANSWER %{
  if (result >= 0) (*jenv)->SetByteArrayRegion(jenv, $input, 0, (jsize)sizeof answer$argnum, (jbyte *)&answer$argnum);
%}

/* The array that gmm_tag_list() fills. */
GMM_JAVA_TYPE(gmm_tag *tags, jintArray, int[])
%typemap(in) gmm_tag *tags %{ $1 = (gmm_tag *)(*jenv)->GetIntArrayElements(jenv, $input, NULL); %}
%typemap(freearg) gmm_tag *tags %{ if ($1) (*jenv)->ReleaseIntArrayElements(jenv, $input, (jint *)$1, 0); %}

/* Text: UTF-8, where JNI's own strings are modified UTF-8. */
%typemap(jni) const char * "jbyteArray"
%typemap(jtype) const char * "byte[]"
%typemap(jstype) const char * "String"
%typemap(javain) const char * "Text.encode($javainput)"
%typemap(javaout) const char * { return Text.decode($jnicall); }
%typemap(in) const char * %{
  $1 = NULL;
  if ($input && !($1 = gmm_java_text(jenv, $input))) return $null;
%}
%typemap(freearg) const char * %{ free((void *)$1); %}
%typemap(out) const char * %{ $result = $1 ? gmm_java_bytes(jenv, $1, strlen($1)) : NULL; %}

/* Callbacks: the user pointer is that of newCallbacks(), which deleteCallbacks() ends. */
%define GMM_JAVA_CALLBACK(Pattern, Trampoline)
GMM_JAVA_TYPE(Pattern, jlong, long)
%typemap(in) Pattern %{
  $1 = $input ? Trampoline : NULL;
  $2 = (void *)(uintptr_t)$input;
%}
%enddef
GMM_JAVA_CALLBACK((gmm_oom_fn fn, void *user), gmm_java_oom)
GMM_JAVA_CALLBACK((gmm_write_fn fn, void *user), gmm_java_write)
GMM_JAVA_CALLBACK((void (*fn)(void *user), void *user), gmm_java_run)

/* A direct buffer over memory of gmm, in JNI's byte order: Buffer.java sets the native one. */
GMM_JAVA_TYPE(gmm_java_view, jobject, java.nio.ByteBuffer)
%typemap(out) gmm_java_view %{ $result = (*jenv)->NewDirectByteBuffer(jenv, $1.memory, $1.size); %}
GMM_JAVA_TYPE(jobject, jobject, Object)
%typemap(in) jobject "$1 = $input;"
%typemap(in, numinputs=0) JNIEnv *jenv "$1 = jenv;"

%rename(view) gmm_java_make_view;
%rename(addressOf) gmm_java_address;
%rename(closeDescriptor) gmm_java_close;
%rename(callback) gmm_java_callback;
%rename(newCallbacks) gmm_java_callbacks_new;
%rename(deleteCallbacks) gmm_java_callbacks_delete;
gmm_java_view gmm_java_make_view(void *GMM_ADDRESS, int32_t size);
uint64_t gmm_java_address(JNIEnv *jenv, jobject buffer);
void gmm_java_close(int32_t fd);
uint64_t gmm_java_callback(const char *type);
uint64_t gmm_java_callbacks_new(JNIEnv *jenv, jobject callbacks);
void gmm_java_callbacks_delete(JNIEnv *jenv, uint64_t callbacks);

%include "bytes.i"
%include "gmm.i"
%include "lease.i"
