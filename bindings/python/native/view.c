/* SPDX-License-Identifier: Apache-2.0 */
/* gmm._native.View, the base of gmm.Array: memory with a layout, which other packages take by the buffer protocol and
 * by DLPack. gmm/_core/array.py computes the layouts and knows the element types.
 *
 * A view is no export of its Memory: the memory may be freed below it, and every use checks that. Exports of a view
 * (memoryview, NumPy, DLPack) are exports of the Memory, which counts them. */
#include <stddef.h>

#include "native.h"

/* --- DLPack's structs, as https://dmlc.github.io/dlpack/latest/c_api.html lays them out -------------------------- */

enum { DL_FLAG_READ_ONLY = 1 };
/* The names of capsules, before and after an import. */
#define LEGACY "dltensor"
#define VERSIONED "dltensor_versioned"
#define USED_LEGACY "used_" LEGACY
#define USED_VERSIONED "used_" VERSIONED

typedef struct {
  void *data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape;
  int64_t *strides; /**< in elements; NULL: C-contiguous */
  uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;

typedef struct DLManagedTensorVersioned {
  uint32_t major, minor;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;

_Static_assert(sizeof(DLTensor) == 48 && sizeof(DLManagedTensorVersioned) == 80,
               "DLPack 1.0 fixes these sizes on 64-bit machines");

/* --- The view ----------------------------------------------------------------------------------------------------- */

typedef struct View {
  PyVarObject ob_base; /* PyObject_VAR_HEAD; its size is that of dims */
  Handle *memory;
  Py_buffer layout; /**< without an object; a format of NULL: the struct module cannot spell it */
  PyObject *shape, *strides, *dtype;
  PyObject *weak_references;
  Py_ssize_t dims[]; /**< shape, then strides in bytes */
} View;

static PyObject *reference(void *object) {
  PyObject *result = object ? (PyObject *)object : Py_None;
  Py_INCREF(result);
  return result;
}

static int read_numbers(PyObject *tuple, Py_ssize_t *numbers) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    numbers[i] = PyNumber_AsSsize_t(PyTuple_GET_ITEM(tuple, i), PyExc_OverflowError);
    if (numbers[i] == -1 && PyErr_Occurred()) return -1;
  }
  return 0;
}

/* View(memory, address, shape, strides, dtype, readonly)
 *
 * dtype: (name, typestr, format or None, itemsize, code, minor version of DLPack 1). The package has checked that the
 * layout lies inside of the memory. */
static PyObject *view_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
  PyObject *memory, *address, *shape, *strides, *name, *typestr;
  Py_buffer layout = {0};
  int code, minor;
  if (!PyArg_ParseTuple(arguments, "O!OO!O!(OOznii)p:View", &Memory_Type, &memory, &address, &PyTuple_Type, &shape,
                        &PyTuple_Type, &strides, &name, &typestr, &layout.format, &layout.itemsize, &code, &minor,
                        &layout.readonly))
    return NULL;
  if (PyTuple_GET_SIZE(strides) != PyTuple_GET_SIZE(shape))
    return PyErr_Format(PyExc_ValueError, "a view has as many strides as dimensions");
  layout.buf = PyLong_AsVoidPtr(address);
  layout.ndim = (int)PyTuple_GET_SIZE(shape);
  View *view = PyErr_Occurred() ? NULL : (View *)type->tp_alloc(type, 2 * layout.ndim);
  if (!view) return NULL;
  layout.shape = view->dims;
  layout.strides = view->dims + layout.ndim;
  view->memory = (Handle *)reference(memory);
  view->shape = reference(shape);
  view->strides = reference(strides);
  view->dtype = reference(PyTuple_GET_ITEM(arguments, 4)); /* its texts live as long as it */
  const int is_good = read_numbers(shape, layout.shape) == 0 && read_numbers(strides, layout.strides) == 0;
  layout.len = layout.itemsize;
  for (int i = 0; i < layout.ndim; ++i) layout.len *= layout.shape[i];
  view->layout = layout;
  if (is_good) return (PyObject *)view;
  Py_DECREF(view);
  return NULL;
}

static int view_traverse(PyObject *self, visitproc visit, void *arg) {
  Py_VISIT(((View *)self)->memory);
  return 0;
}

static void view_dealloc(PyObject *self) {
  View *view = (View *)self;
  PyObject_GC_UnTrack(self);
  if (view->weak_references) PyObject_ClearWeakRefs(self);
  Py_CLEAR(view->memory);
  Py_CLEAR(view->shape);
  Py_CLEAR(view->strides);
  Py_CLEAR(view->dtype);
  Py_TYPE(self)->tp_free(self);
}

int view_address(PyObject *object, void **address) {
  View *view = (View *)object;
  *address = view->layout.buf;
  return memory_check_open(view->memory);
}

/* --- The buffer protocol ------------------------------------------------------------------------------------------ */

/* _host_reaches(): whether the host may use the address now. */
static PyObject *view_host_reaches(PyObject *self, PyObject *unused) {
  Handle *memory = ((View *)self)->memory;
  if (memory_check_open(memory) < 0) return NULL;
  if (memory_check_host_access(memory) >= 0) Py_RETURN_TRUE;
  if (!PyErr_ExceptionMatches(PyExc_BufferError)) return NULL;
  PyErr_Clear();
  Py_RETURN_FALSE;
}

static int fill_buffer(View *view, Py_buffer *buffer, int flags) {
  const int access = memory_check_host_access(view->memory);
  if (access < 0) return -1;
  if (access && (flags & PyBUF_WRITABLE)) {
    PyErr_SetString(PyExc_BufferError, "the memory is attached to be read only");
    return -1;
  }
  if ((flags & PyBUF_FORMAT) && !view->layout.format) {
    PyErr_Format(PyExc_BufferError, "the buffer protocol has no format for %S; use view(\"uint%zd\")",
                 PyTuple_GET_ITEM(view->dtype, 0), 8 * view->layout.itemsize);
    return -1;
  }
  /* Python's memoryview knows which requests the layout meets, and which fields they get. */
  PyObject *checked = PyMemoryView_FromBuffer(&view->layout);
  const int result = checked ? PyObject_GetBuffer(checked, buffer, flags) : -1;
  if (result == 0) {
    PyBuffer_Release(buffer);
    if (access) buffer->readonly = 1;
    if (buffer->shape) buffer->shape = view->layout.shape;
    if (buffer->strides) buffer->strides = view->layout.strides;
  }
  Py_XDECREF(checked);
  return result;
}

static int view_getbuffer(PyObject *self, Py_buffer *buffer, int flags) {
  buffer->obj = NULL;
  if (memory_add_export(((View *)self)->memory) < 0) return -1;
  if (fill_buffer((View *)self, buffer, flags) < 0) {
    memory_drop_export(((View *)self)->memory);
    return -1;
  }
  Py_INCREF(self);
  buffer->obj = self;
  return 0;
}

static void view_releasebuffer(PyObject *self, Py_buffer *buffer) { memory_drop_export(((View *)self)->memory); }

/* --- DLPack, out -------------------------------------------------------------------------------------------------- */

/* One allocation: the tensor in either form, and what it points to. */
typedef struct {
  union {
    DLManagedTensor legacy;
    DLManagedTensorVersioned versioned;
  } tensor;
  View *view;
  int64_t strides[]; /**< in elements */
} Export;

/* Consumers call this on any thread, also after the interpreter has ended: the process's end frees the export then. */
static void export_end(Export *ended) {
  if (gmm_python_is_ending()) return;
  const PyGILState_STATE gil = PyGILState_Ensure();
  memory_drop_export(ended->view->memory);
  Py_DECREF(ended->view);
  PyGILState_Release(gil);
  PyMem_RawFree(ended);
}

static void delete_legacy(DLManagedTensor *tensor) { export_end((Export *)tensor->manager_ctx); }
static void delete_versioned(DLManagedTensorVersioned *tensor) { export_end((Export *)tensor->manager_ctx); }

/* Deletes the tensor of a capsule of either name. */
static void delete_tensor(PyObject *capsule, const char *legacy_name, const char *versioned_name) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  DLManagedTensor *legacy = PyCapsule_GetPointer(capsule, legacy_name);
  DLManagedTensorVersioned *versioned = PyCapsule_GetPointer(capsule, versioned_name);
  PyErr_Clear();
  if (legacy && legacy->deleter) legacy->deleter(legacy);
  if (versioned && versioned->deleter) versioned->deleter(versioned);
  if (PyErr_Occurred()) PyErr_WriteUnraisable(NULL);
  PyErr_Restore(type, value, trace);
}

/* A capsule still has its first name when no consumer has taken it. */
static void capsule_end(PyObject *capsule) { delete_tensor(capsule, LEGACY, VERSIONED); }

/* _capsule((device type, device id), type's code, minor version or -1 for the form without a version, flags)
 *
 * The package has checked that the consumer understands it, and that the strides are whole elements. */
static PyObject *view_capsule(PyObject *self, PyObject *arguments) {
  View *view = (View *)self;
  const Py_buffer *layout = &view->layout;
  int device_type, device_id, code, minor;
  unsigned long long flags;
  if (!PyArg_ParseTuple(arguments, "(ii)iiK", &device_type, &device_id, &code, &minor, &flags)) return NULL;
  Export *made = (Export *)PyMem_RawCalloc(1, sizeof *made + sizeof(int64_t) * (size_t)layout->ndim);
  if (!made) return PyErr_NoMemory();
  if (memory_add_export(view->memory) < 0) {
    PyMem_RawFree(made);
    return NULL;
  }
  made->view = (View *)reference(view);
  for (int i = 0; i < layout->ndim; ++i) made->strides[i] = layout->strides[i] / layout->itemsize;
  const DLTensor tensor = {.data = layout->len == 0 ? NULL : layout->buf, /* as DLPack requires */
                           .device_type = device_type,
                           .device_id = device_id,
                           .ndim = layout->ndim,
                           .code = (uint8_t)code,
                           .bits = (uint8_t)(layout->itemsize * 8),
                           .lanes = 1,
                           .shape = (int64_t *)layout->shape,
                           .strides = made->strides};
  if (minor >= 0)
    made->tensor.versioned = (DLManagedTensorVersioned){1, (uint32_t)minor, made, delete_versioned, flags, tensor};
  else
    made->tensor.legacy = (DLManagedTensor){tensor, made, delete_legacy};
  PyObject *capsule = PyCapsule_New(&made->tensor, minor >= 0 ? VERSIONED : LEGACY, capsule_end);
  if (!capsule) export_end(made);
  return capsule;
}

/* --- DLPack, in --------------------------------------------------------------------------------------------------- */

/* A consumed capsule holds its tensor until the last view over it is gone. It calls the deleter once, with the GIL:
 * DLPack lets deleters take it, and those of some producers expect it. */
static void consumed_end(PyObject *capsule) {
  /* At the interpreter's end the producer may be torn down: the process's end frees its memory. */
  if (!gmm_python_is_ending()) delete_tensor(capsule, USED_LEGACY, USED_VERSIONED);
}

/* The capsule's tensor, which is the caller's from then on, and no other thread's. NULL: it has none of that name. */
static void *take(PyObject *capsule, const char *name, const char *used_name) {
  void *tensor = NULL;
  Py_BEGIN_CRITICAL_SECTION(capsule);
  if (PyCapsule_IsValid(capsule, name)) {
    tensor = PyCapsule_GetPointer(capsule, name);
    PyCapsule_SetName(capsule, used_name);
    PyCapsule_SetDestructor(capsule, consumed_end);
  }
  Py_END_CRITICAL_SECTION();
  return tensor;
}

/* dlpack_import(capsule) -> (address, shape, strides in elements or None, (code, bits, lanes), readonly, device)
 *
 * shape and strides are the bytes of numbers of 64 bits. From then on the capsule holds its tensor. */
static PyObject *dlpack_import(PyObject *module, PyObject *capsule) {
  const DLManagedTensorVersioned *versioned = take(capsule, VERSIONED, USED_VERSIONED);
  const DLManagedTensor *legacy = versioned ? NULL : take(capsule, LEGACY, USED_LEGACY);
  if (!versioned && !legacy) {
    const char *name = PyCapsule_CheckExact(capsule) ? PyCapsule_GetName(capsule) : NULL;
    PyErr_Clear();
    if (name && strncmp(name, USED_LEGACY, strlen(USED_LEGACY)) == 0)
      return PyErr_Format(PyExc_ValueError, "the DLPack capsule was consumed before; each is good for one import");
    return PyErr_Format(PyExc_TypeError, "expected a DLPack capsule from __dlpack__(), got %R", capsule);
  }
  const DLTensor *tensor = versioned ? &versioned->dl_tensor : &legacy->dl_tensor;
  if (versioned && versioned->major != 1)
    return PyErr_Format(PyExc_BufferError,
                        "the tensor is of DLPack %u.%u; gmm understands 1.x and the form without a version",
                        (unsigned)versioned->major, (unsigned)versioned->minor);
  if (tensor->ndim < 0 || tensor->ndim > VIEW_MAX_DIMENSIONS)
    return PyErr_Format(PyExc_BufferError, "a DLPack tensor of %d dimensions; gmm takes at most %d", (int)tensor->ndim,
                        VIEW_MAX_DIMENSIONS);
  const uintptr_t address = tensor->data ? (uintptr_t)tensor->data + tensor->byte_offset : 0;
  const int readonly = versioned && (versioned->flags & DL_FLAG_READ_ONLY);
  const Py_ssize_t bytes = tensor->ndim * (Py_ssize_t)sizeof(int64_t);
  return Py_BuildValue("Ky#y#(iii)N(ii)", (unsigned long long)address, tensor->shape, bytes, tensor->strides, bytes,
                       (int)tensor->code, (int)tensor->bits, (int)tensor->lanes, PyBool_FromLong(readonly),
                       (int)tensor->device_type, (int)tensor->device_id);
}

/* view_address(memoryview): the address of its first element, which the memoryview holds. */
static PyObject *address_of_view(PyObject *module, PyObject *object) {
  Py_buffer view;
  if (PyObject_GetBuffer(object, &view, PyBUF_FULL_RO) < 0) return NULL;
  PyObject *address = PyLong_FromVoidPtr(view.buf);
  PyBuffer_Release(&view);
  return address;
}

PyMethodDef view_functions[] = {{"dlpack_import", dlpack_import, METH_O, NULL},
                                {"view_address", address_of_view, METH_O, NULL},
                                {NULL, NULL, 0, NULL}};

/* --- The type ----------------------------------------------------------------------------------------------------- */

static PyObject *get_buffer(PyObject *self, void *unused) {
  Handle *memory = ((View *)self)->memory;
  return reference(memory->kind == HANDLE_EXTERNAL ? NULL : memory);
}

static PyObject *get_address(PyObject *self, void *unused) {
  void *address;
  return view_address(self, &address) < 0 ? NULL : PyLong_FromVoidPtr(address);
}

static PyObject *get_closed(PyObject *self, void *unused) {
  return PyBool_FromLong(!handle_is_open(((View *)self)->memory));
}

static PyObject *get_contiguous(PyObject *self, void *unused) {
  return PyBool_FromLong(PyBuffer_IsContiguous(&((View *)self)->layout, 'C'));
}

static PyMethodDef view_methods[] = {{"_capsule", view_capsule, METH_VARARGS, NULL},
                                     {"_host_reaches", view_host_reaches, METH_NOARGS, NULL},
                                     {NULL, NULL, 0, NULL}};

static PyGetSetDef view_getters[] = {
    {"buffer", get_buffer, NULL, "The gmm.Buffer that the elements lie in; None for memory of another package.", NULL},
    {"address", get_address, NULL, "The address of the first element, as a number.", NULL},
    {"closed", get_closed, NULL, "True once the memory is freed.", NULL},
    {"contiguous", get_contiguous, NULL, "True when the elements lie one after another in C's order.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMemberDef view_members[] = {
    {"shape", T_OBJECT, offsetof(View, shape), READONLY, "The number of elements along each dimension."},
    {"strides", T_OBJECT, offsetof(View, strides), READONLY,
     "The bytes from one element to the next along each dimension."},
    {"ndim", T_INT, offsetof(View, layout.ndim), READONLY, "The number of dimensions."},
    {"itemsize", T_PYSSIZET, offsetof(View, layout.itemsize), READONLY, "Bytes of an element."},
    {"nbytes", T_PYSSIZET, offsetof(View, layout.len), READONLY, "Bytes of all elements."},
    {"_dtype", T_OBJECT, offsetof(View, dtype), READONLY, NULL},
    {"_readonly", T_INT, offsetof(View, layout.readonly), READONLY, NULL},
    {"_memory", T_OBJECT, offsetof(View, memory), READONLY, NULL},
    {NULL, 0, 0, 0, NULL}};

static PyBufferProcs view_buffer = {view_getbuffer, view_releasebuffer};

PyTypeObject View_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gmm._native.View",
    .tp_basicsize = offsetof(View, dims),
    .tp_itemsize = sizeof(Py_ssize_t),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = PyDoc_STR("Memory with a layout: the base of gmm.Array."),
    .tp_new = view_new,
    .tp_dealloc = view_dealloc,
    .tp_traverse = view_traverse,
    .tp_weaklistoffset = offsetof(View, weak_references),
    .tp_methods = view_methods,
    .tp_getset = view_getters,
    .tp_members = view_members,
    .tp_as_buffer = &view_buffer,
};
