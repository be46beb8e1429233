/* SPDX-License-Identifier: Apache-2.0
 *
 * gmm._native: the C functions under their C names, for the package's own use. A call returns its result and then its
 * outputs: code, address = gmm_alloc(context, size, desc).
 */
%module(package="gmm") native

%{
#include "native.h"
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

/* Streams: numbers, None, or an open gmm.Stream, which stays open during the call. */
%typemap(in) gmm_stream stream (Handle *held = NULL) {
  if (handle_stream($input, &$1, &held) < 0) SWIG_fail;
}
%typemap(freearg) gmm_stream stream { handle_leave(held$argnum); }

/* Handles stay open during the call; calls on a closed one raise. */
%define GMM_HANDLE(Type, Kind)
%ignore Type;
%typemap(in) Type * (Handle *held = NULL) {
  held = handle_enter($input, Kind);
  if (!held) SWIG_fail;
  $1 = (Type *)held->pointer;
}
%typemap(freearg) Type * { handle_leave(held$argnum); }
%apply SWIGTYPE **GMM_OUT_HANDLE { Type ** }
%enddef

/* Options are dictionaries, or None. A callback in one gets the object that stands there. The caller holds it: the
 * Handle of a context, watcher or lease, which has the callable, or the progress of a pause. */
%define GMM_OPTIONS(Type)
%ignore Type;
%typemap(in) const Type * (Type options, void *list = NULL) {
  if (options_read($input, &Type##_struct, &options, &list) < 0) SWIG_fail;
  $1 = $input == Py_None ? NULL : &options;
}
%typemap(freearg) const Type * { PyMem_Free(list$argnum); }
%enddef

/* Answers are bytes, which the package unpacks. */
%define GMM_ANSWER(Type)
%ignore Type;
%typemap(in, numinputs=0) Type * (Type answer) {
  memset(&answer, 0, sizeof answer);
  answer.struct_size = (uint32_t)sizeof answer;
  $1 = &answer;
}
%typemap(argout) Type * {
  %append_output(PyBytes_FromStringAndSize((const char *)$1, sizeof *$1));
}
%enddef

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

/* tags: how many the caller takes; the result has so many, whose rest is 0. */
%typemap(in) (gmm_tag *tags, uint32_t capacity) {
  if (number_32($input, &$2) < 0) SWIG_fail;
  $1 = PyMem_Calloc((size_t)$2 + 1, sizeof *$1);
}
%typemap(argout) (gmm_tag *tags, uint32_t capacity) {
  PyObject *found = PyTuple_New($2);
  for (uint32_t i = 0; found && i < $2; ++i) PyTuple_SET_ITEM(found, i, PyLong_FromUnsignedLong($1[i]));
  %append_output(found);
}
%typemap(freearg) (gmm_tag *tags, uint32_t capacity) { PyMem_Free($1); }

/* Bytes. */
%typemap(in, numinputs=0) gmm_ipc_handle *GMM_OUT_BYTES (gmm_ipc_handle temp) { $1 = &temp; }
%typemap(argout) gmm_ipc_handle *GMM_OUT_BYTES {
  %append_output(PyBytes_FromStringAndSize((const char *)$1->bytes, sizeof $1->bytes));
}
%typemap(in) const gmm_ipc_handle *GMM_IN_BYTES (gmm_ipc_handle temp) {
  Py_buffer given;
  if (PyObject_GetBuffer($input, &given, PyBUF_SIMPLE) < 0) SWIG_fail;
  if (given.len != (Py_ssize_t)sizeof temp.bytes) {
    PyErr_Format(PyExc_ValueError, "an IPC handle has %zu bytes, not %zd", sizeof temp.bytes, given.len);
    PyBuffer_Release(&given);
    SWIG_fail;
  }
  memcpy(temp.bytes, given.buf, sizeof temp.bytes);
  PyBuffer_Release(&given);
  $1 = &temp;
}

/* Callbacks. The context's Handle holds those that the library calls later. */
%typemap(in) (gmm_oom_fn fn, void *user) {
  if ($input != Py_None && !PyObject_TypeCheck($input, &Handle_Type)) {
    PyErr_SetString(PyExc_TypeError, "expected the gmm._native.Handle that holds the callable, or None");
    SWIG_fail;
  }
  $1 = $input == Py_None ? NULL : callback_oom;
  $2 = $input == Py_None ? NULL : (void *)$input;
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
%define GMM_QUICK(Function)
%exception Function "$action"
%enddef
GMM_QUICK(gmm_result_name)
GMM_QUICK(gmm_result_text)
GMM_QUICK(gmm_last_error_message)
GMM_QUICK(gmm_last_native_code)
GMM_QUICK(gmm_version)
GMM_QUICK(gmm_version_string)
GMM_QUICK(gmm_tag_push)
GMM_QUICK(gmm_tag_pop)
GMM_QUICK(gmm_ticket_query)
GMM_QUICK(gmm_ticket_cancel)

%include "values.i"
%include "gmm.i"
%include "lease.i"

/* SWIG's initialiser returns a module or a number, by its version. In both an exception fails the import. */
%init %{
  (void)native_init(m);
%}
