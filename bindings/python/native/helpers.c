/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"

static PyObject *helpers[HELPER_COUNT];

PyObject *helper_call(int helper, PyObject *argument) {
  if (!helpers[helper])
    return PyErr_Format(PyExc_RuntimeError, "gmm._native is not to be used without the package gmm");
  return PyObject_CallFunctionObjArgs(helpers[helper], argument, NULL);
}

PyObject *native_set_helper(PyObject *module, PyObject *arguments) {
  (void)module;
  static const char *const names[HELPER_COUNT] = {"as_stream",  "tag_number",  "default_context",
                                                  "dtype_name", "kind_number", "unfreed"};
  const char *name;
  PyObject *callable;
  if (!PyArg_ParseTuple(arguments, "sO", &name, &callable)) return NULL;
  for (int i = 0; i < HELPER_COUNT; ++i)
    if (strcmp(name, names[i]) == 0) {
      Py_INCREF(callable);
      Py_XSETREF(helpers[i], callable);
      Py_RETURN_NONE;
    }
  return PyErr_Format(PyExc_ValueError, "there is no helper %s", name);
}

PyObject *native_extend(PyObject *module, PyObject *arguments) {
  (void)module;
  PyTypeObject *type;
  PyObject *namespace, *name, *value;
  if (!PyArg_ParseTuple(arguments, "O!O!", &PyType_Type, &type, &PyDict_Type, &namespace)) return NULL;
  Py_ssize_t at = 0;
  while (PyDict_Next(namespace, &at, &name, &value))
    if (PyDict_SetItem(type->tp_dict, name, value) < 0) return NULL;
  PyType_Modified(type);
  Py_RETURN_NONE;
}

PyObject *native_describe(PyObject *self) { return PyObject_CallMethod(self, "_describe", NULL); }
PyObject *native_show(PyObject *self) { return PyObject_CallMethod(self, "_show", NULL); }
