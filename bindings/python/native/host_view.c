/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"

/* An object's memory through the buffer protocol. The object cannot move it before release() or the end of the view. */
typedef struct {
  PyObject ob_base; /* what PyObject_HEAD stands for */
  Py_buffer buffer;
  PyObject *object;
  int open;
} HostView;

static PyObject *view_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
  static char *names[] = {"object", "writable", NULL};
  PyObject *object;
  int writable = 0;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O|p", names, &object, &writable)) return NULL;
  HostView *view = (HostView *)type->tp_alloc(type, 0);
  if (!view) return NULL;
  /* C-contiguous, any element type. */
  if (PyObject_GetBuffer(object, &view->buffer, (writable ? PyBUF_WRITABLE : 0) | PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) <
      0) {
    view->buffer.obj = NULL;
    Py_DECREF(view);
    return NULL;
  }
  Py_INCREF(object);
  view->object = object;
  STORE(view->open, 1);
  return (PyObject *)view;
}

static void release(HostView *view) {
  int was_open;
  PyObject *object;
  GUARD_BEGIN(view)
  was_open = view->open;
  STORE(view->open, 0);
  object = view->object;
  view->object = NULL;
  GUARD_END()
  if (was_open) PyBuffer_Release(&view->buffer);
  Py_XDECREF(object);
}

static PyObject *view_release(PyObject *self, PyObject *unused) {
  (void)unused;
  release((HostView *)self);
  Py_RETURN_NONE;
}

static void view_dealloc(PyObject *self) {
  release((HostView *)self);
  Py_TYPE(self)->tp_free(self);
}

static PyObject *view_get_object(PyObject *self, void *unused) {
  (void)unused;
  HostView *view = (HostView *)self;
  PyObject *object;
  GUARD_BEGIN(view)
  object = view->object ? view->object : Py_None;
  Py_INCREF(object);
  GUARD_END()
  return object;
}

static PyObject *view_get_address(PyObject *self, void *unused) {
  (void)unused;
  HostView *view = (HostView *)self;
  if (!LOAD(view->open)) return gmm_python_raise_closed("view");
  return PyLong_FromVoidPtr(view->buffer.buf);
}

static PyObject *view_get_nbytes(PyObject *self, void *unused) {
  (void)unused;
  HostView *view = (HostView *)self;
  if (!LOAD(view->open)) return gmm_python_raise_closed("view");
  return PyLong_FromSsize_t(view->buffer.len);
}

PyObject *host_view_address(PyObject *module, PyObject *object) {
  (void)module;
  Py_buffer view;
  if (PyObject_GetBuffer(object, &view, PyBUF_FULL_RO) < 0) return NULL;
  PyObject *address = PyLong_FromVoidPtr(view.buf);
  PyBuffer_Release(&view);
  return address;
}

static PyMethodDef view_methods[] = {{"release", view_release, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};

static PyGetSetDef view_getters[] = {{"address", view_get_address, NULL, NULL, NULL},
                                     {"nbytes", view_get_nbytes, NULL, NULL, NULL},
                                     {"object", view_get_object, NULL, NULL, NULL},
                                     {NULL, NULL, NULL, NULL, NULL}};

PyTypeObject HostView_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gmm._native.HostView",
    .tp_basicsize = sizeof(HostView),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = view_new,
    .tp_dealloc = view_dealloc,
    .tp_methods = view_methods,
    .tp_getset = view_getters,
};
