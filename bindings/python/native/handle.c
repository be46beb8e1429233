/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "native.h"

static const char *const kind_names[] = {"handle", "context", "heap", "stream", "event", "ticket"};

static PyObject *raise_resetting(void) {
  PyErr_SetString(PyExc_RuntimeError, "the context is being reset by another thread, which no call may run beside");
  return NULL;
}

Handle *handle_enter(PyObject *object, HandleKind kind) {
  if (!PyObject_TypeCheck(object, &Handle_Type)) {
    PyErr_Format(PyExc_TypeError, "expected a gmm %s, got %.100s", kind_names[kind], Py_TYPE(object)->tp_name);
    return NULL;
  }
  Handle *handle = (Handle *)object;
  if (handle->kind != kind && handle->kind != HANDLE_NONE) {
    PyErr_Format(PyExc_TypeError, "expected a gmm %s, got a %s", kind_names[kind], kind_names[handle->kind]);
    return NULL;
  }
  if (handle->parent && !handle->parent->pointer) {
    gmm_python_raise_closed("context");
    return NULL;
  }
  if (!handle->pointer) {
    gmm_python_raise_closed(kind_names[kind]);
    return NULL;
  }
  if (__builtin_expect((handle->parent ? handle->parent : handle)->resetting, 0)) {
    raise_resetting();
    return NULL;
  }
  Py_INCREF(handle);
  ++handle->users;
  if (handle->parent) ++handle->parent->users;
  return handle;
}

void handle_leave(Handle *handle) {
  if (!handle) return;
  --handle->users;
  if (handle->parent) --handle->parent->users;
  Py_DECREF(handle);
}

int handle_stream(PyObject *object, gmm_stream *stream, Handle **held) {
  *held = NULL;
  if (object == Py_None) {
    *stream = GMM_STREAM_DEFAULT;
    return 0;
  }
  if (PyObject_TypeCheck(object, &Handle_Type)) {
    *held = handle_enter(object, HANDLE_STREAM);
    if (!*held) return -1;
    *stream = (gmm_stream)(*held)->pointer;
    return 0;
  }
  if (PyLong_Check(object)) {
    *stream = (gmm_stream)PyLong_AsVoidPtr(object);
    return PyErr_Occurred() ? -1 : 0;
  }
  /* A stream of another package. */
  PyObject *number = helper_call(HELPER_AS_STREAM, object);
  if (!number) return -1;
  const int result = number == object ? -1 : handle_stream(number, stream, held);
  if (number == object) PyErr_Format(PyExc_TypeError, "%R is no stream", object);
  Py_DECREF(number);
  return result;
}

/* The caller has checked that no call uses the handle and has cleared its pointer. */
static gmm_result give_back(Handle *handle, void *pointer) {
  void *context = handle->parent ? handle->parent->pointer : NULL;
  gmm_result result = GMM_OK;
  /* The end of the context has ended it, except for a ticket, which holds the library's context. */
  if (handle->parent && !context && handle->kind != HANDLE_TICKET) return GMM_OK;
  if (handle->parent) ++handle->parent->users;
  PyThreadState *state = gmm_python_leave_gil();
  switch (handle->kind) {
    case HANDLE_CONTEXT:
      result = gmm_context_release((gmm_context *)pointer);
      break;
    case HANDLE_HEAP:
      result = gmm_heap_destroy((gmm_heap *)pointer);
      break;
    case HANDLE_STREAM:
      result = gmm_stream_destroy((gmm_context *)context, (gmm_stream)pointer);
      break;
    case HANDLE_EVENT:
      result = gmm_event_destroy((gmm_event *)pointer);
      break;
    case HANDLE_TICKET: /* waits for the end of its operation */
      result = gmm_ticket_destroy((gmm_ticket *)pointer);
      break;
    case HANDLE_NONE:
      break;
  }
  gmm_python_take_gil(state);
  if (handle->parent) --handle->parent->users;
  return result;
}

static PyObject *handle_adopt(PyObject *self, PyObject *arguments) {
  Handle *handle = (Handle *)self;
  int kind;
  PyObject *number, *parent;
  if (!PyArg_ParseTuple(arguments, "iOO", &kind, &number, &parent)) return NULL;
  void *pointer = PyLong_AsVoidPtr(number);
  if (PyErr_Occurred()) return NULL;
  if (handle->pointer || kind < HANDLE_CONTEXT || kind > HANDLE_TICKET || !pointer ||
      (parent != Py_None) != (kind != HANDLE_CONTEXT) ||
      (parent != Py_None && !PyObject_TypeCheck(parent, &Handle_Type))) {
    PyErr_SetString(PyExc_ValueError, "this handle cannot take that pointer");
    return NULL;
  }
  if (parent != Py_None) {
    Py_INCREF(parent);
    handle->parent = (Handle *)parent;
  }
  handle->kind = (HandleKind)kind;
  handle->pointer = pointer;
  Py_RETURN_NONE;
}

static PyObject *handle_close(PyObject *self, PyObject *unused) {
  (void)unused;
  Handle *handle = (Handle *)self;
  void *pointer = handle->pointer;
  if (!pointer) Py_RETURN_NONE;
  if (handle->parent && handle->parent->pointer && handle->parent->resetting) return raise_resetting();
  if (handle->exports > 0)
    return PyErr_Format(PyExc_BufferError,
                        "cannot close the context: %zd views of its memory live; release or delete them first",
                        handle->exports);
  if (handle->users > 0)
    return PyErr_Format(PyExc_RuntimeError,
                        "cannot close the %s: %zd calls on other threads use it; let them end first",
                        kind_names[handle->kind], handle->users);
  handle->pointer = NULL; /* before the GIL is released: a second close sees it closed */
  const gmm_result result = give_back(handle, pointer);
  if (result < 0 && result != GMM_ERROR_FORKED) {
    handle->pointer = pointer;
    return gmm_python_raise(result);
  }
  Py_RETURN_NONE;
}

/* Frees a handle that the program did not close. At the interpreter's end it does nothing: the process's end frees
 * memory. */
static void handle_finalize(PyObject *self) {
  Handle *handle = (Handle *)self;
  void *pointer = handle->pointer;
  if (!pointer || gmm_python_is_ending()) return;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  handle->pointer = NULL;
  const gmm_result result = give_back(handle, pointer);
  if (result < 0 && result != GMM_ERROR_FORKED) {
    gmm_python_raise(result);
    PyErr_WriteUnraisable(self);
  }
  PyErr_Restore(type, value, trace);
}

static int handle_traverse(PyObject *self, visitproc visit, void *arg) {
  Handle *handle = (Handle *)self;
  Py_VISIT(handle->parent);
  Py_VISIT(handle->log);
  Py_VISIT(handle->oom_handler);
  return 0;
}

static int handle_clear(PyObject *self) {
  Handle *handle = (Handle *)self;
  Py_CLEAR(handle->log);
  Py_CLEAR(handle->oom_handler);
  return 0;
}

static void handle_dealloc(PyObject *self) {
  Handle *handle = (Handle *)self;
  if (PyObject_CallFinalizerFromDealloc(self) < 0) return;
  PyObject_GC_UnTrack(self);
  if (handle->weak_references) PyObject_ClearWeakRefs(self);
  handle_clear(self);
  Py_CLEAR(handle->parent);
  Py_TYPE(self)->tp_free(self);
}

static PyObject *handle_get_closed(PyObject *self, void *unused) {
  (void)unused;
  Handle *handle = (Handle *)self;
  return PyBool_FromLong(!handle->pointer || (handle->parent && !handle->parent->pointer));
}

static PyObject *handle_get_handle(PyObject *self, void *unused) {
  (void)unused;
  Handle *handle = (Handle *)self;
  if (!handle->pointer || (handle->parent && !handle->parent->pointer))
    return gmm_python_raise_closed(kind_names[handle->kind]);
  return PyLong_FromVoidPtr(handle->pointer);
}

static PyMethodDef handle_methods[] = {{"_adopt", handle_adopt, METH_VARARGS, NULL},
                                       {"_close", handle_close, METH_NOARGS, NULL},
                                       {"_reset", handle_reset, METH_NOARGS, NULL},
                                       {NULL, NULL, 0, NULL}};

static PyGetSetDef handle_getters[] = {{"closed", handle_get_closed, NULL, "True once it was closed.", NULL},
                                       {"handle", handle_get_handle, NULL, "The library's handle, as a number.", NULL},
                                       {NULL, NULL, NULL, NULL, NULL}};

static PyMemberDef handle_members[] = {{"_exports", T_PYSSIZET, offsetof(Handle, exports), READONLY, NULL},
                                       {"_users", T_PYSSIZET, offsetof(Handle, users), READONLY, NULL},
                                       {"_log", T_OBJECT, offsetof(Handle, log), 0, NULL},
                                       {"_oom_handler", T_OBJECT, offsetof(Handle, oom_handler), 0, NULL},
                                       {NULL, 0, 0, 0, NULL}};

PyTypeObject Handle_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gmm._native.Handle",
    .tp_basicsize = sizeof(Handle),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "A context, heap, stream, event or ticket of the library.",
    .tp_new = PyType_GenericNew,
    .tp_dealloc = handle_dealloc,
    .tp_finalize = handle_finalize,
    .tp_traverse = handle_traverse,
    .tp_clear = handle_clear,
    .tp_weaklistoffset = offsetof(Handle, weak_references),
    .tp_methods = handle_methods,
    .tp_getset = handle_getters,
    .tp_members = handle_members,
};
