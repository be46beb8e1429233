/* SPDX-License-Identifier: Apache-2.0 */
/* __enter__ and __exit__ in C, for what Python code begins and must end. After a call that Python code makes, a
 * signal's handler may raise an exception, so an __enter__ in Python may begin and never return. Between an __enter__
 * in C and its with block nothing comes. */
#include "native.h"

/* The object's _scope: (begin, arguments, end, arguments, value). The with block gets the value, the object for None,
 * or begin's result without a value. */
static int read_scope(PyObject *self, PyObject **scope) {
  *scope = PyObject_GetAttrString(self, "_scope");
  if (!*scope) return -1;
  if (PyTuple_Check(*scope) && PyTuple_GET_SIZE(*scope) >= 4) return 0;
  PyErr_SetString(PyExc_TypeError, "this object has no scope");
  Py_CLEAR(*scope);
  return -1;
}

static PyObject *scope_enter(PyObject *self, PyObject *unused) {
  PyObject *scope;
  if (read_scope(self, &scope) < 0) return NULL;
  PyObject *begun = PyObject_CallObject(PyTuple_GET_ITEM(scope, 0), PyTuple_GET_ITEM(scope, 1));
  if (begun && PyTuple_GET_SIZE(scope) == 5) {
    PyObject *value = PyTuple_GET_ITEM(scope, 4);
    Py_INCREF(value == Py_None ? self : value);
    Py_SETREF(begun, value == Py_None ? self : value);
  }
  Py_DECREF(scope);
  return begun;
}

static PyObject *scope_exit(PyObject *self, PyObject *arguments) {
  PyObject *scope;
  if (read_scope(self, &scope) < 0) return NULL;
  PyObject *end = PyTuple_GET_ITEM(scope, 2);
  PyObject *ended = PyObject_CallObject(end, PyTuple_GET_ITEM(scope, 3));
  /* An end in Python may have been interrupted before it ended anything, and may be called again. */
  if (!ended && !PyCFunction_Check(end) && !PyErr_ExceptionMatches(PyExc_Exception)) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *again = PyObject_CallObject(end, PyTuple_GET_ITEM(scope, 3));
    if (!again) PyErr_WriteUnraisable(end);
    Py_XDECREF(again);
    PyErr_Restore(type, value, trace);
  }
  Py_DECREF(scope);
  if (!ended) return NULL;
  Py_DECREF(ended);
  Py_RETURN_NONE;
}

static PyMethodDef scope_enter_def = {"__enter__", scope_enter, METH_NOARGS, NULL};
static PyMethodDef scope_exit_def = {"__exit__", scope_exit, METH_VARARGS, NULL};

/* Methods of every object: the classes that take them are Python's. */
int native_scope_init(PyObject *module) {
  if (native_add_method(module, "scope_enter", &PyBaseObject_Type, &scope_enter_def) < 0) return -1;
  return native_add_method(module, "scope_exit", &PyBaseObject_Type, &scope_exit_def);
}
