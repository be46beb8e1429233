/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"

/* DLPack 1.0's structs, as its header lays them out (https://dmlc.github.io/dlpack/latest/c_api.html). */
typedef struct {
  int32_t device_type;
  int32_t device_id;
} DLDevice;

typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;

typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides;
  uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

typedef struct DLManagedTensorVersioned {
  struct {
    uint32_t major, minor;
  } version;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;

_Static_assert(sizeof(DLTensor) == 48 && sizeof(DLManagedTensorVersioned) == 80,
               "DLPack 1.0 fixes these sizes on 64-bit machines");

enum { DL_UINT = 1 };

/* One allocation: the tensor in its two forms, and what it points to. */
typedef struct {
  union {
    DLManagedTensor legacy;
    DLManagedTensorVersioned versioned;
  } tensor;
  int64_t shape[1];
  int64_t strides[1];
  Memory *memory;
} Export;

/* Consumers call this from any thread, also after the interpreter has ended: then the export is left to the process's end. */
static void export_end(Export *ended) {
  if (gmm_python_is_ending()) return;
  const PyGILState_STATE gil = PyGILState_Ensure();
  memory_drop_export(ended->memory);
  Py_DECREF(ended->memory);
  PyGILState_Release(gil);
  PyMem_RawFree(ended);
}

static void delete_legacy(DLManagedTensor *tensor) { export_end((Export *)tensor->manager_ctx); }
static void delete_versioned(DLManagedTensorVersioned *tensor) { export_end((Export *)tensor->manager_ctx); }

/* A capsule that nobody consumed still has its first name. */
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

static void describe(DLTensor *tensor, Export *made, const Memory *memory, void *data, int device_type, int device_id) {
  made->shape[0] = memory->nbytes;
  made->strides[0] = 1;
  tensor->data = data;
  tensor->device.device_type = device_type;
  tensor->device.device_id = device_id;
  tensor->ndim = 1;
  tensor->dtype.code = DL_UINT;
  tensor->dtype.bits = 8;
  tensor->dtype.lanes = 1;
  tensor->shape = made->shape;
  tensor->strides = made->strides;
  tensor->byte_offset = 0;
}

/* dlpack_capsule(memory, device_type, device_id, versioned, flags): the memory as a vector of bytes. */
PyObject *dlpack_capsule(PyObject *module, PyObject *arguments) {
  (void)module;
  PyObject *object;
  int device_type, device_id, versioned;
  unsigned long long flags;
  if (!PyArg_ParseTuple(arguments, "O!iipK", &Memory_Type, &object, &device_type, &device_id, &versioned, &flags))
    return NULL;
  Memory *memory = (Memory *)object;
  if (memory_add_export(memory) < 0) return NULL;
  Export *made = (Export *)PyMem_RawCalloc(1, sizeof *made);
  if (!made) {
    memory_drop_export(memory);
    return PyErr_NoMemory();
  }
  PyObject *capsule;
  if (versioned) {
    DLManagedTensorVersioned *tensor = &made->tensor.versioned;
    tensor->version.major = 1;
    tensor->version.minor = 0;
    tensor->manager_ctx = made;
    tensor->deleter = delete_versioned;
    tensor->flags = flags;
    describe(&tensor->dl_tensor, made, memory, memory->address, device_type, device_id);
    capsule = PyCapsule_New(tensor, "dltensor_versioned", capsule_destructor);
  } else {
    DLManagedTensor *tensor = &made->tensor.legacy;
    tensor->manager_ctx = made;
    tensor->deleter = delete_legacy;
    describe(&tensor->dl_tensor, made, memory, memory->address, device_type, device_id);
    capsule = PyCapsule_New(tensor, "dltensor", capsule_destructor);
  }
  if (!capsule) {
    memory_drop_export(memory);
    PyMem_RawFree(made);
    return NULL;
  }
  Py_INCREF(memory);
  made->memory = memory;
  return capsule;
}
