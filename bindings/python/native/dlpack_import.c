/* SPDX-License-Identifier: Apache-2.0 */
#include "array.h"

/* A tensor of another package, which comes out of its capsule. The thread that drops the last array over it calls the
 * deleter, once, with the GIL held: DLPack lets deleters take it, and those of some producers expect it. */
typedef struct {
  PyObject ob_base; /* what PyObject_HEAD stands for */
  DLManagedTensor *legacy;
  DLManagedTensorVersioned *versioned;
} Import;

static void import_dealloc(PyObject *self) {
  Import *import = (Import *)self;
  DLManagedTensor *legacy = import->legacy;
  DLManagedTensorVersioned *versioned = import->versioned;
  import->legacy = NULL;
  import->versioned = NULL;
  /* At the interpreter's end the producer may be torn down already: the process's end frees its memory. */
  if (!gmm_python_is_ending()) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (legacy && legacy->deleter) legacy->deleter(legacy);
    if (versioned && versioned->deleter) versioned->deleter(versioned);
    if (PyErr_Occurred()) PyErr_WriteUnraisable((PyObject *)&Import_Type);
    PyErr_Restore(type, value, trace);
  }
  Py_TYPE(self)->tp_free(self);
}

PyTypeObject Import_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gmm._native.Import",
    .tp_basicsize = sizeof(Import),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = PyDoc_STR("A tensor that came by DLPack; it is given back to its producer with this object."),
    .tp_dealloc = import_dealloc,
};

/* An array over a tensor. The caller sets its owner. */
static Array *describe(const DLTensor *tensor, int readonly) {
  if (tensor->ndim < 0 || tensor->ndim > ARRAY_MAX_DIMENSIONS) {
    PyErr_Format(PyExc_BufferError, "a DLPack tensor of %d dimensions; gmm takes at most %d", (int)tensor->ndim,
                 ARRAY_MAX_DIMENSIONS);
    return NULL;
  }
  const Dtype *dtype = dtype_from_dlpack(tensor->dtype);
  if (!dtype) return NULL;
  Py_ssize_t shape[ARRAY_MAX_DIMENSIONS], strides[ARRAY_MAX_DIMENSIONS];
  for (int i = 0; i < tensor->ndim; ++i) {
    shape[i] = (Py_ssize_t)tensor->shape[i];
    if (shape[i] < 0) {
      PyErr_Format(PyExc_BufferError, "a DLPack tensor with a dimension of %zd elements", shape[i]);
      return NULL;
    }
    if (tensor->strides &&
        __builtin_mul_overflow((Py_ssize_t)tensor->strides[i], (Py_ssize_t)dtype->itemsize, &strides[i])) {
      PyErr_SetString(PyExc_BufferError, "a DLPack tensor whose stride is beyond any address space");
      return NULL;
    }
  }
  Array *array = array_allocate(tensor->ndim);
  if (!array) return NULL;
  if (array_set_layout(array, dtype, shape, tensor->strides ? strides : NULL) < 0) {
    Py_DECREF(array_finish(array));
    return NULL;
  }
  array->data = tensor->data ? (char *)tensor->data + tensor->byte_offset : NULL;
  array->readonly = (uint8_t)readonly;
  array->device = tensor->device;
  return array;
}

/* The capsule's tensor, which is the caller's from then on, and no other thread's. NULL: it has none of that name. */
static void *take(PyObject *capsule, const char *name, const char *used_name) {
  void *tensor = NULL;
  GUARD_BEGIN(capsule)
  if (PyCapsule_IsValid(capsule, name)) {
    tensor = PyCapsule_GetPointer(capsule, name);
    PyCapsule_SetName(capsule, used_name);
  }
  GUARD_END()
  return tensor;
}

PyObject *dlpack_import(PyObject *module, PyObject *arguments) {
  (void)module;
  PyObject *capsule, *stream, *context;
  if (!PyArg_ParseTuple(arguments, "OOO", &capsule, &stream, &context)) return NULL;
  DLManagedTensorVersioned *versioned = take(capsule, "dltensor_versioned", "used_dltensor_versioned");
  DLManagedTensor *legacy = versioned ? NULL : take(capsule, "dltensor", "used_dltensor");
  if (!versioned && !legacy) {
    const char *name = PyCapsule_CheckExact(capsule) ? PyCapsule_GetName(capsule) : NULL;
    PyErr_Clear();
    if (name && strncmp(name, "used_dltensor", 13) == 0)
      return PyErr_Format(PyExc_ValueError, "the DLPack capsule was consumed before; each is good for one import");
    return PyErr_Format(PyExc_TypeError, "expected a DLPack capsule from __dlpack__(), got %R", capsule);
  }
  Array *array = NULL;
  if (versioned && versioned->version.major != 1)
    PyErr_Format(PyExc_BufferError, "the tensor is of DLPack %u.%u; gmm understands 1.x and the form without a version",
                 (unsigned)versioned->version.major, (unsigned)versioned->version.minor);
  else
    array = describe(versioned ? &versioned->dl_tensor : &legacy->dl_tensor,
                     versioned ? (versioned->flags & DL_FLAG_READ_ONLY) != 0 : 0);
  Import *import = array ? PyObject_New(Import, &Import_Type) : NULL;
  if (!import) { /* the capsule owns the tensor again */
    PyCapsule_SetName(capsule, versioned ? "dltensor_versioned" : "dltensor");
    if (array) Py_DECREF(array_finish(array));
    return NULL;
  }
  import->legacy = legacy;
  import->versioned = versioned;
  array->owner = (PyObject *)import;
  array_set_order(array, stream, context);
  return array_finish(array);
}
