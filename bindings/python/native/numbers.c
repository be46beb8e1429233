/* SPDX-License-Identifier: Apache-2.0 */
/* Converters of PyArg_ParseTuple() for numbers without a sign. Its own "I" and "K" take -1 for the greatest number, and
 * drop the bits that are too many. */
#include "native.h"

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
