/* SPDX-License-Identifier: Apache-2.0 */
#include "array.h"

/* One allocation: the tensor in either form, and what it points to. */
typedef struct {
  union {
    DLManagedTensor legacy;
    DLManagedTensorVersioned versioned;
  } tensor;
  PyObject *holder; /**< the Memory or Array */
  int64_t dims[];   /**< shape, then strides in elements */
} Export;

static int add_export(PyObject *holder) {
  return Py_TYPE(holder) == &Array_Type ? array_add_export((Array *)holder) : memory_add_export((Memory *)holder);
}

static void drop_export(PyObject *holder) {
  if (Py_TYPE(holder) == &Array_Type)
    array_drop_export((Array *)holder);
  else
    memory_drop_export((Memory *)holder);
}

/* Consumers call this on any thread, also after the interpreter has ended: the process's end frees the export then. */
static void export_end(Export *ended) {
  if (gmm_python_is_ending()) return;
  const PyGILState_STATE gil = PyGILState_Ensure();
  drop_export(ended->holder);
  Py_DECREF(ended->holder);
  PyGILState_Release(gil);
  PyMem_RawFree(ended);
}

static void delete_legacy(DLManagedTensor *tensor) { export_end((Export *)tensor->manager_ctx); }
static void delete_versioned(DLManagedTensorVersioned *tensor) { export_end((Export *)tensor->manager_ctx); }

/* A capsule still has its first name when no consumer has taken it. */
static void capsule_destructor(PyObject *capsule) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  if (PyCapsule_IsValid(capsule, "dltensor")) {
    DLManagedTensor *tensor = (DLManagedTensor *)PyCapsule_GetPointer(capsule, "dltensor");
    tensor->deleter(tensor);
  } else if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    DLManagedTensorVersioned *tensor = (DLManagedTensorVersioned *)PyCapsule_GetPointer(capsule, "dltensor_versioned");
    tensor->deleter(tensor);
  }
  PyErr_Restore(type, value, trace);
}

static int describe(DLTensor *tensor, Export *made, PyObject *holder) {
  const Dtype *dtype = dtype_bytes();
  if (Py_TYPE(holder) == &Array_Type) {
    Array *array = (Array *)holder;
    dtype = array->dtype;
    tensor->data = array->size != 0 ? array->data : NULL; /* as DLPack requires */
    tensor->ndim = array->ndim;
    for (int i = 0; i < array->ndim; ++i) {
      made->dims[i] = array_shape(array)[i];
      made->dims[array->ndim + i] = array_strides(array)[i] / dtype->itemsize;
      if (array_strides(array)[i] % dtype->itemsize == 0) continue;
      PyErr_Format(PyExc_BufferError, "DLPack has strides in elements; %zd bytes are no whole number of %s",
                   array_strides(array)[i], dtype->name);
      return -1;
    }
  } else {
    tensor->data = ((Memory *)holder)->address;
    tensor->ndim = 1;
    made->dims[0] = ((Memory *)holder)->nbytes;
    made->dims[1] = 1;
  }
  tensor->dtype.code = dtype->code;
  tensor->dtype.bits = (uint8_t)(dtype->itemsize * 8);
  tensor->dtype.lanes = 1;
  tensor->shape = made->dims;
  tensor->strides = made->dims + tensor->ndim;
  tensor->byte_offset = 0;
  return 0;
}

/* dlpack_capsule(memory, device_type, device_id, major, minor, flags), for a consumer of DLPack major.minor. */
PyObject *dlpack_capsule(PyObject *module, PyObject *arguments) {
  (void)module;
  PyObject *holder;
  int device_type, device_id, major, minor;
  unsigned long long flags;
  if (!PyArg_ParseTuple(arguments, "OiiiiK", &holder, &device_type, &device_id, &major, &minor, &flags)) return NULL;
  const Array *array = Py_TYPE(holder) == &Array_Type ? (const Array *)holder : NULL;
  if (!array && !PyObject_TypeCheck(holder, &Memory_Type))
    return PyErr_Format(PyExc_TypeError, "expected a buffer or an array, got %.100s", Py_TYPE(holder)->tp_name);
  const int versioned = major >= 1;
  const int needed = array ? array->dtype->minor_version : 0;
  if (needed > 0 && (!versioned || (major == 1 && minor < needed)))
    return PyErr_Format(PyExc_BufferError, "%s needs DLPack 1.%d; the consumer understands %d.%d", array->dtype->name,
                        needed, major, minor);
  if ((flags & DL_FLAG_READ_ONLY) && !versioned)
    return PyErr_Format(PyExc_BufferError,
                        "the array is read-only, which only DLPack 1.0 and newer can say; the consumer asks for an "
                        "older form (no max_version)");
  Export *made = (Export *)PyMem_RawCalloc(1, sizeof *made + 2 * sizeof(int64_t) * (size_t)(array ? array->ndim : 1));
  if (!made) return PyErr_NoMemory();
  DLTensor *tensor = versioned ? &made->tensor.versioned.dl_tensor : &made->tensor.legacy.dl_tensor;
  tensor->device.device_type = device_type;
  tensor->device.device_id = device_id;
  if (describe(tensor, made, holder) < 0 || add_export(holder) < 0) {
    PyMem_RawFree(made);
    return NULL;
  }
  PyObject *capsule;
  if (versioned) {
    made->tensor.versioned.version.major = 1;
    made->tensor.versioned.version.minor = (uint32_t)needed;
    made->tensor.versioned.manager_ctx = made;
    made->tensor.versioned.deleter = delete_versioned;
    made->tensor.versioned.flags = flags;
    capsule = PyCapsule_New(&made->tensor.versioned, "dltensor_versioned", capsule_destructor);
  } else {
    made->tensor.legacy.manager_ctx = made;
    made->tensor.legacy.deleter = delete_legacy;
    capsule = PyCapsule_New(&made->tensor.legacy, "dltensor", capsule_destructor);
  }
  if (!capsule) {
    drop_export(holder);
    PyMem_RawFree(made);
    return NULL;
  }
  Py_INCREF(holder);
  made->holder = holder;
  return capsule;
}
