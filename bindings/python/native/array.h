/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file array.h
 * gmm.Array: memory with a shape, an element type and strides. It computes nothing.
 *
 * An array is no view of its gmm.Buffer: the buffer may be freed below it, and every use of the array checks that.
 * Exports of an array (memoryview, NumPy, DLPack) are views, which the buffer counts.
 */
#ifndef GMM_PYTHON_ARRAY_H
#define GMM_PYTHON_ARRAY_H

#include "dlpack.h"
#include "native.h"

/* dtype.c */

typedef struct Dtype {
  const char *typestr; /**< as NumPy's array interface spells it; the name where NumPy has none */
  const char *name;
  const char *format; /**< as the struct module spells it; NULL: it cannot */
  char kind;          /**< b, i, u, f, c, or V for what NumPy does not know */
  uint8_t itemsize;
  uint8_t code;          /**< of DLPack */
  uint8_t minor_version; /**< of the DLPack 1 that brought the code */
  PyObject *typestr_object;
  PyObject *name_object;
} Dtype;

/** Reads an element type: a typestr, a name, or a type of NumPy, PyTorch or Python by the package's helper. */
const Dtype *dtype_from(PyObject *object);
const Dtype *dtype_from_dlpack(DLDataType type);
const Dtype *dtype_bytes(void);
int dtype_init(void);

/* array.c */

enum { ARRAY_MAX_DIMENSIONS = 64 };

typedef struct Array {
  PyVarObject ob_base; /* PyObject_VAR_HEAD; its size is that of dims */
  char *data;          /**< the first element */
  const Dtype *dtype;
  Memory *memory;     /**< gmm's, or NULL */
  PyObject *owner;    /**< foreign memory: the object that holds it; NULL: closed */
  PyObject *context;  /**< foreign memory: the gmm.Context that imported it; NULL: none in particular */
  PyObject *stream;   /**< foreign memory: the stream that orders its contents; NULL: none */
  Py_ssize_t size;    /**< elements */
  Py_ssize_t exports; /**< foreign memory: live views */
  DLDevice device;    /**< foreign memory: where it is */
  int32_t ndim;
  uint8_t readonly;
  uint8_t contiguous; /**< in C's order */
  PyObject *weak_references;
  Py_ssize_t dims[]; /**< shape, then strides in bytes */
} Array;

extern PyTypeObject Array_Type;

static inline Py_ssize_t *array_shape(Array *array) { return array->dims; }
static inline Py_ssize_t *array_strides(Array *array) { return array->dims + array->ndim; }

/** An empty array, which the caller fills. The collector does not track it yet. */
Array *array_allocate(int ndim);
/** Fills size, contiguous, and the strides of C's order where `strides` is NULL. 0, or -1 with an exception. */
int array_set_layout(Array *array, const Dtype *dtype, const Py_ssize_t *shape, const Py_ssize_t *strides);
/** Another array over the same memory. The caller sets its layout and its first element. */
Array *array_sibling(Array *array, int ndim);
/** The stream and the context of foreign memory; None: none. */
void array_set_order(Array *array, PyObject *stream, PyObject *context);
PyObject *array_finish(Array *array);
/** 0 while the memory may be used, or -1 with an exception. */
int array_check_open(const Array *array);
int array_add_export(Array *array);
void array_drop_export(Array *array);
/** A shape argument: a number or a sequence of numbers. Returns the number of dimensions, or -1 with an exception. */
int array_parse_shape(PyObject *object, Py_ssize_t *shape, int allow_unknown);
/** The bytes of an array of that shape; -1 with an exception when they overflow. */
Py_ssize_t array_bytes(const Dtype *dtype, const Py_ssize_t *shape, int ndim);
/** array_foreign(owner, address, shape, strides, dtype, readonly, device_type, device_id, stream, context) */
PyObject *array_foreign(PyObject *module, PyObject *arguments);

/* array_views.c */

PyObject *array_subscript(PyObject *self, PyObject *key);
PyObject *array_item(PyObject *self, Py_ssize_t index);
PyObject *array_reshape(PyObject *self, PyObject *const *arguments, Py_ssize_t count);
PyObject *array_transpose(PyObject *self, PyObject *const *arguments, Py_ssize_t count);
PyObject *array_view(PyObject *self, PyObject *dtype);

/* array_buffer.c: the buffer protocol */

/** _host_reaches(): whether the host may use the address now. */
PyObject *array_host_reaches(PyObject *self, PyObject *unused);
int array_getbuffer(PyObject *self, Py_buffer *view, int flags);
void array_releasebuffer(PyObject *self, Py_buffer *view);

/* dlpack_import.c */

extern PyTypeObject Import_Type;
/** dlpack_import(capsule, stream, context): an array over the tensor of the capsule, which it consumes. */
PyObject *dlpack_import(PyObject *module, PyObject *arguments);

#endif
