/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of every wrapper around a call of the library: the GIL, results as exceptions, numbers, and the functions
 * that are written in Python. */
#include "native.h"

/* --- The GIL ------------------------------------------------------------------------------------------------------ */

static __thread int inside;

PyThreadState *gmm_python_leave_gil(void) {
  ++inside;
  return PyEval_SaveThread();
}

void gmm_python_take_gil(PyThreadState *state) {
  PyEval_RestoreThread(state);
  --inside;
  if (inside == 0) later_settle_owed();
}

int gmm_python_thread_is_inside(void) { return inside > 0; }

/* --- Results ------------------------------------------------------------------------------------------------------ */

static PyObject *raise_with(gmm_result result, const char *message, int32_t native_code, int closed) {
  PyObject *factory = helper_of(HELPER_EXCEPTION);
  if (!factory) return NULL;
  /* The message may quote a file name in any encoding. */
  PyObject *text = PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace");
  if (!text) return NULL;
  PyObject *exception =
      PyObject_CallFunction(factory, "isNii", (int)result, gmm_result_name(result), text, (int)native_code, closed);
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
  if (!result || !PyTuple_Check(result)) return Py_BuildValue("(NN)", result, output);
  PyObject *last = Py_BuildValue("(N)", output), *joined = last ? PySequence_Concat(result, last) : NULL;
  Py_DECREF(result);
  Py_XDECREF(last);
  return joined;
}

int gmm_python_is_ending(void) {
#if PY_VERSION_HEX >= 0x030D0000
  return !Py_IsInitialized() || Py_IsFinalizing();
#else
  return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

/* --- Numbers without a sign --------------------------------------------------------------------------------------- */

/* Converters of PyArg_ParseTuple(): its own "I" and "K" take -1 for the greatest number, and drop further bits. */
int number_64(PyObject *object, void *place) {
  uint64_t number;
  if (PyLong_Check(object)) {
    number = PyLong_AsUnsignedLongLong(object);
  } else {
    PyObject *index = PyNumber_Index(object);
    if (!index) return 0;
    number = PyLong_AsUnsignedLongLong(index);
    Py_DECREF(index);
  }
  if (__builtin_expect(number == UINT64_MAX, 0) && PyErr_Occurred()) return 0;
  *(uint64_t *)place = number;
  return 1;
}

int number_32(PyObject *object, void *place) {
  uint64_t number;
  if (!number_64(object, &number)) return 0;
  if (number > UINT32_MAX) {
    PyErr_Format(PyExc_OverflowError, "%S is beyond 32 bits", object);
    return 0;
  }
  *(uint32_t *)place = (uint32_t)number;
  return 1;
}

int number_i32(PyObject *object, void *place) {
  const Py_ssize_t number = PyNumber_AsSsize_t(object, PyExc_OverflowError);
  if (number == -1 && PyErr_Occurred()) return 0;
  if (number < INT32_MIN || number > INT32_MAX) {
    PyErr_Format(PyExc_OverflowError, "%S is beyond 32 bits", object);
    return 0;
  }
  *(int32_t *)place = (int32_t)number;
  return 1;
}

/* --- Functions and classes that are written in Python --------------------------------------------------------- */

static PyObject *helpers[HELPER_COUNT];

PyObject *helper_of(int helper) {
  if (helpers[helper]) return helpers[helper];
  return PyErr_Format(PyExc_RuntimeError, "gmm._native is not to be used without the package gmm");
}

PyObject *helper_call(int helper, PyObject *argument) {
  PyObject *callable = helper_of(helper);
  return callable ? PyObject_CallFunctionObjArgs(callable, argument, NULL) : NULL;
}

PyObject *native_set_helpers(PyObject *module, PyObject *given) {
  if (PyTuple_GET_SIZE(given) != HELPER_COUNT)
    return PyErr_Format(PyExc_TypeError, "set_helpers() takes %d objects", HELPER_COUNT);
  for (int i = 0; i < HELPER_COUNT; ++i) {
    Py_INCREF(PyTuple_GET_ITEM(given, i));
    Py_XSETREF(helpers[i], PyTuple_GET_ITEM(given, i));
  }
  Py_RETURN_NONE;
}
