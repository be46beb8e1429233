/* SPDX-License-Identifier: Apache-2.0 */
#include "array.h"

/* Strides of an empty array, and those of another package, may overflow. Unsigned arithmetic wraps around. */
static void move_by(Py_ssize_t *shift, Py_ssize_t index, Py_ssize_t stride) {
  *shift = (Py_ssize_t)((size_t)*shift + (size_t)index * (size_t)stride);
}

/* Applies an index to one dimension. 1: the dimension stays, 0: a number removed it, -1 with an exception. */
static int take(PyObject *key, int axis, Py_ssize_t length, Py_ssize_t stride, Py_ssize_t *shift,
                Py_ssize_t *new_length, Py_ssize_t *new_stride) {
  if (PySlice_Check(key)) {
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(key, &start, &stop, &step) < 0) return -1;
    *new_length = PySlice_AdjustIndices(length, &start, &stop, step);
    /* With at most one element the step does not matter, and its product could overflow. */
    *new_stride = *new_length > 1 ? (Py_ssize_t)((size_t)stride * (size_t)step) : stride;
    if (*new_length > 0) move_by(shift, start, stride);
    return 1;
  }
  if (!PyIndex_Check(key) || PyBool_Check(key)) {
    PyErr_Format(PyExc_TypeError, "an array takes numbers, slices, Ellipsis and None as indices, not %.100s",
                 Py_TYPE(key)->tp_name);
    return -1;
  }
  Py_ssize_t index = PyNumber_AsSsize_t(key, PyExc_IndexError);
  if (index == -1 && PyErr_Occurred()) return -1;
  if (index < -length || index >= length) {
    PyErr_Format(PyExc_IndexError, "index %zd is out of bounds for axis %d with size %zd", index, axis, length);
    return -1;
  }
  move_by(shift, index < 0 ? index + length : index, stride);
  return 0;
}

PyObject *array_subscript(PyObject *self, PyObject *key) {
  Array *array = (Array *)self;
  PyObject *single[1] = {key};
  PyObject **keys = PyTuple_Check(key) ? &PyTuple_GET_ITEM(key, 0) : single;
  const Py_ssize_t count = PyTuple_Check(key) ? PyTuple_GET_SIZE(key) : 1;
  Py_ssize_t used = 0, added = 0, ellipses = 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    added += keys[i] == Py_None;
    ellipses += keys[i] == Py_Ellipsis;
    used += keys[i] != Py_None && keys[i] != Py_Ellipsis;
  }
  if (used > array->ndim)
    return PyErr_Format(PyExc_IndexError, "%zd indices for an array of %d dimensions", used, array->ndim);
  if (ellipses > 1) return PyErr_Format(PyExc_IndexError, "there can be one Ellipsis only");
  if (array->ndim + added > ARRAY_MAX_DIMENSIONS)
    return PyErr_Format(PyExc_IndexError, "more than %d dimensions", ARRAY_MAX_DIMENSIONS);
  Py_ssize_t shape[ARRAY_MAX_DIMENSIONS], strides[ARRAY_MAX_DIMENSIONS], shift = 0;
  int axis = 0, ndim = 0;
  for (Py_ssize_t i = 0; i <= count; ++i) {
    if (i < count && keys[i] == Py_None) {
      shape[ndim] = 1;
      strides[ndim++] = 0;
    } else if (i < count && keys[i] != Py_Ellipsis) {
      const int stays = take(keys[i], axis, array_shape(array)[axis], array_strides(array)[axis], &shift, &shape[ndim],
                             &strides[ndim]);
      if (stays < 0) return NULL;
      ndim += stays;
      ++axis;
    } else if (i < count || ellipses == 0) { /* the dimensions without an index */
      Py_ssize_t rest = array->ndim - used;
      while (rest-- > 0) {
        shape[ndim] = array_shape(array)[axis];
        strides[ndim++] = array_strides(array)[axis++];
      }
    }
  }
  Array *made = array_sibling(array, ndim);
  if (!made) return NULL;
  made->data = (char *)((uintptr_t)array->data + (uintptr_t)shift);
  if (array_set_layout(made, array->dtype, shape, strides) == 0) return array_finish(made);
  Py_DECREF(array_finish(made));
  return NULL;
}

/* Python has added the length to a negative index: one that is still negative is out of bounds. */
PyObject *array_item(PyObject *self, Py_ssize_t index) {
  if (index < 0) return PyErr_Format(PyExc_IndexError, "index is out of bounds");
  PyObject *number = PyLong_FromSsize_t(index);
  PyObject *result = number ? array_subscript(self, number) : NULL;
  Py_XDECREF(number);
  return result;
}

PyObject *array_reshape(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  Array *array = (Array *)self;
  Py_ssize_t shape[ARRAY_MAX_DIMENSIONS];
  PyObject *given = NULL;
  if (count != 1) {
    given = PyTuple_New(count);
    for (Py_ssize_t i = 0; given && i < count; ++i) {
      Py_INCREF(arguments[i]);
      PyTuple_SET_ITEM(given, i, arguments[i]);
    }
    if (!given) return NULL;
  }
  const int ndim = array_parse_shape(given ? given : arguments[0], shape, 1);
  Py_XDECREF(given);
  if (ndim < 0) return NULL;
  if (!array->contiguous)
    return PyErr_Format(PyExc_ValueError, "only a contiguous array is reshaped without a copy; make one with copy()");
  int unknown = -1;
  Py_ssize_t known = 1;
  for (int i = 0; i < ndim; ++i) {
    if (shape[i] == -1 && unknown >= 0) return PyErr_Format(PyExc_ValueError, "one dimension only can be -1");
    if (shape[i] == -1)
      unknown = i;
    else if (__builtin_mul_overflow(known, shape[i], &known))
      known = -1;
  }
  if (unknown >= 0 && known > 0 && array->size % known == 0) {
    shape[unknown] = array->size / known;
    known *= shape[unknown];
    unknown = -1;
  }
  if (unknown >= 0 || known != array->size)
    return PyErr_Format(PyExc_ValueError, "%zd elements do not make that shape", array->size);
  Array *made = array_sibling(array, ndim);
  if (!made) return NULL;
  if (array_set_layout(made, array->dtype, shape, NULL) == 0) return array_finish(made);
  Py_DECREF(array_finish(made));
  return NULL;
}

PyObject *array_transpose(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  Array *array = (Array *)self;
  const int ndim = array->ndim;
  Py_ssize_t axes[ARRAY_MAX_DIMENSIONS], shape[ARRAY_MAX_DIMENSIONS], strides[ARRAY_MAX_DIMENSIONS];
  char seen[ARRAY_MAX_DIMENSIONS] = {0};
  PyObject *tuple = NULL;
  if (count == 1 && !PyIndex_Check(arguments[0]) && arguments[0] != Py_None) {
    tuple = PySequence_Tuple(arguments[0]);
    if (!tuple) return NULL;
    arguments = &PyTuple_GET_ITEM(tuple, 0);
    count = PyTuple_GET_SIZE(tuple);
  } else if (count == 1 && arguments[0] == Py_None) {
    count = 0;
  }
  const int reversed = count == 0 && !tuple;
  int good = reversed || count == ndim;
  for (int i = 0; good && i < ndim; ++i) {
    axes[i] = reversed ? ndim - 1 - i : PyNumber_AsSsize_t(arguments[i], PyExc_IndexError);
    if (axes[i] == -1 && PyErr_Occurred()) break;
    if (axes[i] < 0) axes[i] += ndim;
    good = axes[i] >= 0 && axes[i] < ndim && !seen[axes[i]];
    if (!good) break;
    seen[axes[i]] = 1;
    shape[i] = array_shape(array)[axes[i]];
    strides[i] = array_strides(array)[axes[i]];
  }
  Py_XDECREF(tuple);
  if (PyErr_Occurred()) return NULL;
  if (!good) return PyErr_Format(PyExc_ValueError, "the axes must be the numbers from 0 to %d, each once", ndim - 1);
  Array *made = array_sibling(array, ndim);
  if (!made) return NULL;
  if (array_set_layout(made, array->dtype, shape, strides) == 0) return array_finish(made);
  Py_DECREF(array_finish(made));
  return NULL;
}

PyObject *array_view(PyObject *self, PyObject *dtype_object) {
  Array *array = (Array *)self;
  const Dtype *dtype = dtype_from(dtype_object);
  if (!dtype) return NULL;
  const int ndim = array->ndim;
  Py_ssize_t shape[ARRAY_MAX_DIMENSIONS], strides[ARRAY_MAX_DIMENSIONS];
  for (int i = 0; i < ndim; ++i) {
    shape[i] = array_shape(array)[i];
    strides[i] = array_strides(array)[i];
  }
  if (dtype->itemsize != array->dtype->itemsize) {
    if (ndim == 0 || strides[ndim - 1] != array->dtype->itemsize)
      return PyErr_Format(PyExc_ValueError,
                          "elements of another size need a last dimension whose elements lie one after another");
    const Py_ssize_t row = shape[ndim - 1] * array->dtype->itemsize;
    if (row % dtype->itemsize != 0)
      return PyErr_Format(PyExc_ValueError, "a last dimension of %zd bytes is no whole number of elements of %s", row,
                          dtype->name);
    shape[ndim - 1] = row / dtype->itemsize;
    strides[ndim - 1] = dtype->itemsize;
  }
  Array *made = array_sibling(array, ndim);
  if (!made) return NULL;
  if (array_set_layout(made, dtype, shape, strides) == 0) return array_finish(made);
  Py_DECREF(array_finish(made));
  return NULL;
}
