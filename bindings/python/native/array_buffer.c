/* SPDX-License-Identifier: Apache-2.0 */
#include "array.h"

/* The device of foreign memory tells whether the host reaches it. The library answers for gmm's memory. */
static int host_reaches(const Array *array) {
  if (array->memory) return memory_check_host_access(array->memory);
  const int type = array->device.device_type;
  if (type == DL_CPU || type == DL_CUDA_HOST || type == DL_CUDA_MANAGED) return 0;
  PyErr_Format(PyExc_BufferError,
               "the host cannot reach this memory of DLPack device (%d, %d); copy it with numpy() or copy_to()", type,
               (int)array->device.device_id);
  return -1;
}

PyObject *array_host_reaches(PyObject *self, PyObject *unused) {
  (void)unused;
  if (array_check_open((Array *)self) < 0) return NULL;
  if (host_reaches((Array *)self) == 0) Py_RETURN_TRUE;
  if (!PyErr_ExceptionMatches(PyExc_BufferError)) return NULL;
  PyErr_Clear();
  Py_RETURN_FALSE;
}

static int fortran_contiguous(Array *array) {
  Py_ssize_t expected = array->dtype->itemsize;
  for (int i = 0; i < array->ndim && array->size != 0; ++i) {
    if (array_shape(array)[i] != 1 && array_strides(array)[i] != expected) return 0;
    expected *= array_shape(array)[i];
  }
  return 1;
}

static int fill(Array *array, Py_buffer *view, int flags) {
  if (host_reaches(array) < 0) return -1;
  if ((flags & PyBUF_WRITABLE) && array->readonly) {
    PyErr_SetString(PyExc_BufferError, "the array is read-only");
    return -1;
  }
  const int in_c_order = array->contiguous, in_fortran_order = fortran_contiguous(array);
  if (((flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS && !in_c_order) ||
      ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && !in_fortran_order) ||
      ((flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS && !in_c_order && !in_fortran_order) ||
      ((flags & PyBUF_STRIDES) != PyBUF_STRIDES && !in_c_order)) {
    PyErr_SetString(PyExc_BufferError, "the array's elements do not lie in the requested order");
    return -1;
  }
  if ((flags & PyBUF_FORMAT) && !array->dtype->format) {
    PyErr_Format(PyExc_BufferError, "the buffer protocol has no format for %s; use view(\"uint%d\")",
                 array->dtype->name, 8 * array->dtype->itemsize);
    return -1;
  }
  view->buf = array->data;
  view->len = array->size * array->dtype->itemsize;
  view->itemsize = array->dtype->itemsize;
  view->readonly = array->readonly;
  view->ndim = array->ndim;
  view->format = (flags & PyBUF_FORMAT) ? (char *)array->dtype->format : NULL;
  /* By the protocol an array without dimensions has neither. */
  view->shape = (flags & PyBUF_ND) && array->ndim > 0 ? array_shape(array) : NULL;
  view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES && array->ndim > 0 ? array_strides(array) : NULL;
  view->suboffsets = NULL;
  view->internal = NULL;
  return 0;
}

int array_getbuffer(PyObject *self, Py_buffer *view, int flags) {
  view->obj = NULL;
  if (array_add_export((Array *)self) < 0) return -1;
  if (fill((Array *)self, view, flags) < 0) {
    array_drop_export((Array *)self);
    return -1;
  }
  Py_INCREF(self);
  view->obj = self;
  return 0;
}

void array_releasebuffer(PyObject *self, Py_buffer *view) {
  (void)view;
  array_drop_export((Array *)self);
}
