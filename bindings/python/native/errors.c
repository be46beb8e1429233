/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"

static PyObject *exception_factory;

PyObject *native_set_exception_factory(PyObject *module, PyObject *factory) {
  (void)module;
  Py_INCREF(factory);
  Py_XSETREF(exception_factory, factory);
  Py_RETURN_NONE;
}

static PyObject *raise_with(gmm_result result, const char *message, int32_t native_code, int closed) {
  if (!exception_factory) return PyErr_Format(PyExc_RuntimeError, "%s: %s", gmm_result_name(result), message);
  /* The message may quote a file name in any encoding. */
  PyObject *text = PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace");
  if (!text) return NULL;
  PyObject *exception = PyObject_CallFunction(exception_factory, "isNii", (int)result, gmm_result_name(result), text,
                                              (int)native_code, closed);
  if (!exception) return NULL;
  PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
  Py_DECREF(exception);
  return NULL;
}

PyObject *gmm_python_raise(gmm_result result) {
  if (PyErr_Occurred()) return NULL; /* a callback of this call raised: that says more */
  const int32_t native_code = gmm_last_native_code();
  const char *message = gmm_last_error_message();
  if (!message || !*message) message = gmm_result_text(result);
  return raise_with(result, message, native_code, 0);
}

PyObject *gmm_python_raise_closed(const char *what) {
  char message[128];
  snprintf(message, sizeof message, "the %s is closed; open or allocate another one", what);
  return raise_with(GMM_ERROR_INVALID_HANDLE, message, 0, 1);
}

PyObject *gmm_python_append(PyObject *result, PyObject *output) {
  if (!result || !output) {
    Py_XDECREF(result);
    Py_XDECREF(output);
    return NULL;
  }
  PyObject *joined;
  if (!PyTuple_Check(result)) {
    joined = PyTuple_Pack(2, result, output);
  } else {
    const Py_ssize_t count = PyTuple_GET_SIZE(result);
    joined = PyTuple_New(count + 1);
    for (Py_ssize_t i = 0; joined && i < count; ++i) {
      PyObject *item = PyTuple_GET_ITEM(result, i);
      Py_INCREF(item);
      PyTuple_SET_ITEM(joined, i, item);
    }
    if (joined) {
      Py_INCREF(output);
      PyTuple_SET_ITEM(joined, count, output);
    }
  }
  Py_DECREF(result);
  Py_DECREF(output);
  return joined;
}

int gmm_python_is_ending(void) {
#if PY_VERSION_HEX >= 0x030D0000
  return !Py_IsInitialized() || Py_IsFinalizing();
#else
  return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}
