/* SPDX-License-Identifier: Apache-2.0
 *
 * gmm._native: the C functions under their C names, for the package's own use. A call returns its result and then its
 * outputs: code, address = gmm_alloc(context, size, desc).
 */
%module(package="gmm") native

%{
#include "native.h"
#include "struct.h"
%}

%include <stdint.i>
/* The typemaps of the catalogue in bindings/README.md. */

/* Results: failures become exceptions. "Not yet" is asked for in loops, and is no exception. */
%define GMM_RESULT(Type, Fails)
%typemap(out) Type {
  if (Fails || PyErr_Occurred()) {
    gmm_python_raise($1);
    SWIG_fail;
  }
  $result = PyLong_FromLong($1);
}
%enddef
GMM_RESULT(gmm_result, ($1 < 0 && $1 != GMM_ERROR_NOT_READY))
GMM_RESULT(gmm_result GMM_END, $1 < 0)

/* Addresses: numbers, None, or gmm._native.Memory, which is checked to be open. */
%typemap(in) void *GMM_ADDRESS {
  void *address = NULL;
  if (memory_address($input, &address) < 0) SWIG_fail;
  $1 = ($1_ltype)address;
}
%typemap(out) void *GMM_ADDRESS { $result = PyLong_FromVoidPtr((void *)$1); }

%typemap(in) const char * {
  if (text_read($input, (const char **)&$1) < 0) SWIG_fail;
}
%typemap(freearg) const char * "";

/* Streams: numbers, None, or an open gmm.Stream, which stays open during the call. */
%typemap(in) gmm_stream stream (Handle *held = NULL) {
  if (handle_stream($input, &$1, &held) < 0) SWIG_fail;
}
%typemap(freearg) gmm_stream stream { handle_leave(held$argnum); }

/* Handles stay open during the call; calls on a closed one raise. */
%define GMM_HANDLE(Type, Kind)
%typemap(in) Type * (Handle *held = NULL) {
  held = handle_enter($input, Kind);
  if (!held) SWIG_fail;
  $1 = (Type *)held->pointer;
}
%typemap(freearg) Type * { handle_leave(held$argnum); }
%enddef

/* Options are the bytes that values.py makes for one call, or None. A callback in them gets the object that was given
 * for it. The caller holds it: the Handle of a context, watcher or lease, which has the callable, or the progress of a
 * pause. */
%typemap(in) const void *GMM_OPTIONS {
  if ($input != Py_None && !PyByteArray_CheckExact($input)) {
    PyErr_SetString(PyExc_TypeError, "expected options of gmm._core.values, or None");
    SWIG_fail;
  }
  $1 = $input == Py_None ? NULL : ($1_ltype)gmm_bind_struct(PyByteArray_AS_STRING($input));
}

/* Answers are bytes, which the package unpacks. */
%typemap(in, numinputs=0) void *GMM_ANSWER ($*1_ltype answer) {
  memset(&answer, 0, sizeof answer);
  answer.struct_size = (uint32_t)sizeof answer;
  $1 = &answer;
}
%typemap(argout) void *GMM_ANSWER {
  %append_output(PyBytes_FromStringAndSize((const char *)$1, sizeof *$1));
}

/* Outputs. Handles are numbers, which Handle._open() takes. */
%typemap(in, numinputs=0) void **GMM_OUT_ADDRESS ($*1_ltype temp = NULL), SWIGTYPE **GMM_OUT_HANDLE
    ($*1_ltype temp = NULL) { $1 = &temp; }
%typemap(argout) void **GMM_OUT_ADDRESS, SWIGTYPE **GMM_OUT_HANDLE {
  %append_output(PyLong_FromVoidPtr((void *)*$1));
}
%typemap(in, numinputs=0) uint64_t *GMM_OUT_UINT64 (uint64_t temp = 0) { $1 = &temp; }
%typemap(argout) uint64_t *GMM_OUT_UINT64 { %append_output(PyLong_FromUnsignedLongLong(*$1)); }
%typemap(in, numinputs=0) uint32_t *GMM_OUT_UINT32 (uint32_t temp = 0) { $1 = &temp; }
%typemap(argout) uint32_t *GMM_OUT_UINT32 { %append_output(PyLong_FromUnsignedLong(*$1)); }

/* Bytes. */
%typemap(in, numinputs=0) gmm_ipc_handle *GMM_OUT_BYTES (gmm_ipc_handle temp) { $1 = &temp; }
%typemap(argout) gmm_ipc_handle *GMM_OUT_BYTES {
  %append_output(PyBytes_FromStringAndSize((const char *)$1->bytes, sizeof $1->bytes));
}
%typemap(in) const gmm_ipc_handle *GMM_IN_BYTES {
  char *given;
  Py_ssize_t size;
  if (PyBytes_AsStringAndSize($input, &given, &size) < 0) SWIG_fail;
  if (size != (Py_ssize_t)sizeof *$1) {
    PyErr_Format(PyExc_ValueError, "an IPC handle has %zu bytes, not %zd", sizeof *$1, size);
    SWIG_fail;
  }
  $1 = ($1_ltype)given;
}

/* Callbacks. The context's Handle holds those that the library calls later. */
%typemap(in) (gmm_oom_fn fn, void *user) {
  $1 = callback_oom;
  $2 = (void *)$input;
}
%typemap(in) (gmm_write_fn fn, void *user) {
  $1 = callback_write;
  $2 = (void *)$input;
}
/* Runs once, later. The queued call owns a reference; a call that is not queued drops it. */
%typemap(in) (void (*fn)(void *user), void *user) (PyObject *lent = NULL) {
  if (!PyCallable_Check($input)) {
    PyErr_SetString(PyExc_TypeError, "expected a callable without arguments");
    SWIG_fail;
  }
  Py_INCREF($input);
  lent = $input;
  $1 = callback_stream;
  $2 = (void *)$input;
}
%typemap(argout) (void (*fn)(void *user), void *user) { lent$argnum = NULL; }
%typemap(freearg) (void (*fn)(void *user), void *user) { Py_XDECREF(lent$argnum); }

/* Every call releases the GIL, ... */
%exception {
  PyThreadState *thread_state = gmm_python_leave_gil();
  $action
  gmm_python_take_gil(thread_state);
}

/* ... except where releasing it costs more than the call. */
%exception gmm_tag_push "$action"
%exception gmm_tag_pop "$action"

%include "bytes.i"
%include "values.i"
%include "gmm.i"
%include "lease.i"

/* SWIG's initialiser returns a module or a number, by its version. In both an exception fails the import. */
%init %{
  (void)native_init(m);
%}
