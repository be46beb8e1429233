/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"

static PyMethodDef functions[] = {{"set_exception_factory", native_set_exception_factory, METH_O, NULL},
                                  {"dlpack_capsule", dlpack_capsule, METH_VARARGS, NULL},
                                  {"callbacks_end", callbacks_end, METH_NOARGS, NULL},
                                  {NULL, NULL, 0, NULL}};

static int add_type(PyObject *module, const char *name, PyTypeObject *type) {
  if (PyType_Ready(type) < 0) return -1;
  Py_INCREF(type);
  if (PyModule_AddObject(module, name, (PyObject *)type) < 0) {
    Py_DECREF(type);
    return -1;
  }
  return 0;
}

int native_init(PyObject *module) {
  if (add_type(module, "Handle", &Handle_Type) < 0 || add_type(module, "Memory", &Memory_Type) < 0 ||
      add_type(module, "HostView", &HostView_Type) < 0)
    return -1;
  return PyModule_AddFunctions(module, functions);
}
