/* SPDX-License-Identifier: Apache-2.0 */
#include "array.h"

#include <stddef.h>

/* --- Making ------------------------------------------------------------------------------------------------- */

/* Arrays of up to four dimensions have one size, so that a new one can reuse a dead one's memory. */
enum { kUsualRoom = 8 };
static Array *free_arrays[FREE_LIST_SIZE + 1];
static int free_count;

Array *array_allocate(int ndim) {
  Array *array;
  if (2 * ndim <= kUsualRoom && free_count > 0) {
    array = free_arrays[--free_count];
    PyObject_Init((PyObject *)array, &Array_Type);
  } else {
    const Py_ssize_t room = 2 * ndim <= kUsualRoom ? kUsualRoom : 2 * ndim;
    array = PyObject_GC_NewVar(Array, &Array_Type, room);
    if (!array) return NULL;
  }
  memset((char *)array + offsetof(Array, data), 0, offsetof(Array, dims) - offsetof(Array, data));
  array->ndim = ndim;
  return array;
}

PyObject *array_finish(Array *array) {
  PyObject_GC_Track(array);
  return (PyObject *)array;
}

/* A new reference, or NULL: another thread may close the array. */
static PyObject *take_owner_reference(Array *array) {
  PyObject *owner;
  GUARD_BEGIN(array)
  owner = array->owner;
  Py_XINCREF(owner);
  GUARD_END()
  return owner;
}

Array *array_sibling(Array *array, int ndim) {
  Array *made = array_allocate(ndim);
  if (!made) return NULL;
  Py_XINCREF(array->memory);
  made->memory = array->memory;
  made->owner = take_owner_reference(array);
  Py_XINCREF(array->stream);
  made->stream = array->stream;
  Py_XINCREF(array->context);
  made->context = array->context;
  made->device = array->device;
  made->readonly = array->readonly;
  made->dtype = array->dtype;
  made->data = array->data;
  return made;
}

void array_set_order(Array *array, PyObject *stream, PyObject *context) {
  if (stream != Py_None) {
    Py_INCREF(stream);
    array->stream = stream;
  }
  if (context != Py_None) {
    Py_INCREF(context);
    array->context = context;
  }
}

static int array_traverse(PyObject *self, visitproc visit, void *arg) {
  Array *array = (Array *)self;
  Py_VISIT(array->memory);
  Py_VISIT(array->owner);
  Py_VISIT(array->stream);
  Py_VISIT(array->context);
  return 0;
}

static void array_dealloc(PyObject *self) {
  Array *array = (Array *)self;
  PyObject_GC_UnTrack(self);
  if (array->weak_references) PyObject_ClearWeakRefs(self);
  Py_CLEAR(array->memory);
  Py_CLEAR(array->owner);
  Py_CLEAR(array->stream);
  Py_CLEAR(array->context);
  if (Py_SIZE(self) == kUsualRoom && free_count < FREE_LIST_SIZE)
    free_arrays[free_count++] = array;
  else
    PyObject_GC_Del(self);
}

/* --- Layout ------------------------------------------------------------------------------------------------- */

int array_parse_shape(PyObject *object, Py_ssize_t *shape, int allow_unknown) {
  int ndim = 1;
  if (PyLong_CheckExact(object)) {
    shape[0] = PyLong_AsSsize_t(object);
  } else if (PyTuple_CheckExact(object)) { /* a list could change while its items are converted */
    const Py_ssize_t count = PyTuple_GET_SIZE(object);
    if (count > ARRAY_MAX_DIMENSIONS)
      return PyErr_Format(PyExc_ValueError, "a shape of %zd dimensions; there are at most %d", count,
                          ARRAY_MAX_DIMENSIONS),
             -1;
    ndim = (int)count;
    for (int i = 0; i < ndim; ++i) {
      shape[i] = PyNumber_AsSsize_t(PyTuple_GET_ITEM(object, i), PyExc_OverflowError);
      if (shape[i] == -1 && PyErr_Occurred()) return -1;
    }
  } else if (PyIndex_Check(object)) {
    shape[0] = PyNumber_AsSsize_t(object, PyExc_OverflowError);
  } else {
    PyObject *fast = PySequence_Tuple(object);
    if (!fast) return -1;
    ndim = array_parse_shape(fast, shape, allow_unknown);
    Py_DECREF(fast);
    return ndim;
  }
  for (int i = 0; i < ndim; ++i) {
    if (shape[i] >= 0 || (shape[i] == -1 && allow_unknown && !PyErr_Occurred())) continue;
    if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "a shape has no negative dimensions, such as %zd", shape[i]);
    return -1;
  }
  return ndim;
}

Py_ssize_t array_bytes(const Dtype *dtype, const Py_ssize_t *shape, int ndim) {
  Py_ssize_t bytes = dtype->itemsize;
  int empty = 0;
  /* As NumPy does, this refuses a shape whose bytes overflow although another dimension is 0: its strides would
   * overflow. */
  for (int i = 0; i < ndim; ++i) {
    empty |= shape[i] == 0;
    if (shape[i] != 0 && __builtin_mul_overflow(bytes, shape[i], &bytes)) {
      PyErr_SetString(PyExc_ValueError, "an array of that shape is beyond any address space");
      return -1;
    }
  }
  return empty ? 0 : bytes;
}

int array_set_layout(Array *array, const Dtype *dtype, const Py_ssize_t *shape, const Py_ssize_t *strides) {
  const Py_ssize_t bytes = array_bytes(dtype, shape, array->ndim);
  if (bytes < 0) return -1;
  array->dtype = dtype;
  array->size = bytes / dtype->itemsize;
  array->contiguous = 1;
  Py_ssize_t expected = dtype->itemsize;
  for (int i = array->ndim; i-- > 0;) {
    array_shape(array)[i] = shape[i];
    array_strides(array)[i] = strides ? strides[i] : expected;
    /* The stride of a dimension of one element does not matter, nor any stride of an array without elements. */
    if (strides && shape[i] != 1 && strides[i] != expected && array->size != 0) array->contiguous = 0;
    if (shape[i] > 1) expected *= shape[i];
  }
  return 0;
}

/* Whether an element lies outside of `nbytes` bytes when the first one is at the offset. */
static int reaches_past(const Array *array, Py_ssize_t offset, Py_ssize_t nbytes) {
  if (offset < 0 || offset > nbytes) return 1;
  if (array->size == 0) return 0;
  Py_ssize_t low = offset, high = offset;
  for (int i = 0; i < array->ndim; ++i) {
    Py_ssize_t reach;
    if (__builtin_mul_overflow(array->dims[i] - 1, array->dims[array->ndim + i], &reach)) return 1;
    if (__builtin_add_overflow(reach < 0 ? low : high, reach, reach < 0 ? &low : &high)) return 1;
  }
  return low < 0 || high > nbytes - array->dtype->itemsize;
}

static int parse_strides(PyObject *object, Py_ssize_t *strides, int ndim) {
  PyObject *tuple = PySequence_Tuple(object);
  if (!tuple) return -1;
  int result = 0;
  if (PyTuple_GET_SIZE(tuple) != ndim) {
    PyErr_Format(PyExc_ValueError, "%zd strides for %d dimensions", PyTuple_GET_SIZE(tuple), ndim);
    result = -1;
  }
  for (int i = 0; result == 0 && i < ndim; ++i) {
    strides[i] = PyNumber_AsSsize_t(PyTuple_GET_ITEM(tuple, i), PyExc_OverflowError);
    if (strides[i] == -1 && PyErr_Occurred()) result = -1;
  }
  Py_DECREF(tuple);
  return result;
}

/* Array(buffer, shape=None, dtype="uint8", *, strides=None, offset=0, readonly=False) */
static PyObject *array_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
  (void)type;
  static char *names[] = {"buffer", "shape", "dtype", "strides", "offset", "readonly", NULL};
  PyObject *buffer, *shape_object = Py_None, *dtype_object = NULL, *strides_object = Py_None;
  Py_ssize_t offset = 0, shape[ARRAY_MAX_DIMENSIONS], strides[ARRAY_MAX_DIMENSIONS];
  int readonly = 0, ndim = 1;
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "O!|OO$Onp:Array", names, &Memory_Type, &buffer, &shape_object,
                                   &dtype_object, &strides_object, &offset, &readonly))
    return NULL;
  Memory *memory = (Memory *)buffer;
  const Dtype *dtype = dtype_object ? dtype_from(dtype_object) : dtype_bytes();
  if (!dtype || memory_check_open(memory) < 0) return NULL;
  if (shape_object == Py_None) {
    if (offset < 0 || offset > memory->nbytes || (memory->nbytes - offset) % dtype->itemsize != 0)
      return PyErr_Format(PyExc_ValueError, "the %zd bytes after offset %zd are no whole number of elements of %s",
                          memory->nbytes - offset, offset, dtype->name);
    shape[0] = (memory->nbytes - offset) / dtype->itemsize;
  } else if ((ndim = array_parse_shape(shape_object, shape, 0)) < 0) {
    return NULL;
  }
  if (strides_object != Py_None && parse_strides(strides_object, strides, ndim) < 0) return NULL;
  Array *array = array_allocate(ndim);
  if (!array) return NULL;
  if (array_set_layout(array, dtype, shape, strides_object == Py_None ? NULL : strides) < 0) {
    Py_DECREF(array_finish(array));
    return NULL;
  }
  if (reaches_past(array, offset, memory->nbytes)) {
    Py_DECREF(array_finish(array));
    return PyErr_Format(PyExc_ValueError, "an array of that shape at offset %zd reaches past the buffer's %zd bytes",
                        offset, memory->nbytes);
  }
  Py_INCREF(memory);
  array->memory = memory;
  array->data = (char *)memory->address + offset;
  array->readonly = (uint8_t)readonly;
  return array_finish(array);
}

PyObject *array_foreign(PyObject *module, PyObject *arguments) {
  (void)module;
  PyObject *owner, *address, *shape_object, *strides_object, *dtype_object, *stream, *context;
  int readonly, ndim, device_type, device_id;
  Py_ssize_t shape[ARRAY_MAX_DIMENSIONS], strides[ARRAY_MAX_DIMENSIONS];
  if (!PyArg_ParseTuple(arguments, "OOOOOpiiOO", &owner, &address, &shape_object, &strides_object, &dtype_object,
                        &readonly, &device_type, &device_id, &stream, &context))
    return NULL;
  const Dtype *dtype = dtype_from(dtype_object);
  if (!dtype || (ndim = array_parse_shape(shape_object, shape, 0)) < 0) return NULL;
  if (strides_object != Py_None && parse_strides(strides_object, strides, ndim) < 0) return NULL;
  void *data = PyLong_AsVoidPtr(address);
  if (PyErr_Occurred()) return NULL;
  Array *array = array_allocate(ndim);
  if (!array) return NULL;
  if (array_set_layout(array, dtype, shape, strides_object == Py_None ? NULL : strides) < 0) {
    Py_DECREF(array_finish(array));
    return NULL;
  }
  Py_INCREF(owner);
  array->owner = owner;
  array_set_order(array, stream, context);
  array->data = (char *)data;
  array->readonly = (uint8_t)readonly;
  array->device.device_type = device_type;
  array->device.device_id = device_id;
  return array_finish(array);
}

/* --- Life --------------------------------------------------------------------------------------------------- */

int array_check_open(const Array *array) {
  if (array->memory) return memory_check_open(array->memory);
  if (LOAD(array->owner)) return 0;
  gmm_python_raise_closed("array");
  return -1;
}

int array_add_export(Array *array) {
  if (array->memory) return memory_add_export(array->memory);
  int is_open;
  GUARD_BEGIN(array)
  is_open = array->owner != NULL;
  array->exports += is_open;
  GUARD_END()
  return is_open ? 0 : array_check_open(array);
}

void array_drop_export(Array *array) {
  if (array->memory) {
    memory_drop_export(array->memory);
    return;
  }
  GUARD_BEGIN(array)
  --array->exports;
  GUARD_END()
}

/* _release(): drops this array's reference to foreign memory. */
static PyObject *array_release(PyObject *self, PyObject *unused) {
  (void)unused;
  Array *array = (Array *)self;
  PyObject *owner = NULL;
  Py_ssize_t exports;
  GUARD_BEGIN(array)
  exports = array->exports;
  if (exports == 0) {
    owner = array->owner;
    STORE(array->owner, NULL);
  }
  GUARD_END()
  Py_XDECREF(owner);
  if (exports > 0)
    return PyErr_Format(PyExc_BufferError,
                        "cannot close the array at %p: %zd views of it live; release or delete them first",
                        (void *)array->data, exports);
  Py_RETURN_NONE;
}

/* --- What it says about itself ------------------------------------------------------------------------------ */

static PyObject *numbers(const Py_ssize_t *values, int count) {
  PyObject *tuple = PyTuple_New(count);
  for (int i = 0; tuple && i < count; ++i) {
    PyObject *value = PyLong_FromSsize_t(values[i]);
    if (!value) {
      Py_DECREF(tuple);
      return NULL;
    }
    PyTuple_SET_ITEM(tuple, i, value);
  }
  return tuple;
}

static PyObject *reference(void *object) {
  PyObject *result = object ? (PyObject *)object : Py_None;
  Py_INCREF(result);
  return result;
}

static PyObject *owner_or_none(Array *array) {
  PyObject *owner = take_owner_reference(array);
  return owner ? owner : reference(NULL);
}

#define GETTER(Name, Value)                               \
  static PyObject *get_##Name(PyObject *self, void *no) { \
    (void)no;                                             \
    Array *array = (Array *)self;                         \
    (void)array;                                          \
    return Value;                                         \
  }
GETTER(shape, numbers(array_shape(array), array->ndim))
GETTER(strides, numbers(array_strides(array), array->ndim))
GETTER(ndim, PyLong_FromLong(array->ndim))
GETTER(size, PyLong_FromSsize_t(array->size))
GETTER(itemsize, PyLong_FromLong(array->dtype->itemsize))
GETTER(nbytes, PyLong_FromSsize_t(array->size * array->dtype->itemsize))
GETTER(dtype, reference(array->dtype->typestr_object))
GETTER(dtype_name, reference(array->dtype->name_object))
GETTER(readonly, PyBool_FromLong(array->readonly))
GETTER(contiguous, PyBool_FromLong(array->contiguous))
GETTER(buffer, reference(array->memory))
GETTER(owner, array->memory ? reference(array->memory) : owner_or_none(array))
GETTER(address, array_check_open(array) < 0 ? NULL : PyLong_FromVoidPtr(array->data))
GETTER(offset, PyLong_FromSsize_t(array->memory ? array->data - (char *)array->memory->address : 0))
GETTER(closed, PyBool_FromLong(array->memory ? !memory_is_open(array->memory) : !LOAD(array->owner)))
GETTER(foreign_device, Py_BuildValue("ii", (int)array->device.device_type, (int)array->device.device_id))
GETTER(foreign_context, reference(array->context))
GETTER(foreign_stream, reference(array->stream))
GETTER(T, array_transpose(self, NULL, 0))

static PyGetSetDef array_getters[] = {
    {"shape", get_shape, NULL, "The number of elements along each dimension.", NULL},
    {"strides", get_strides, NULL, "The bytes from one element to the next along each dimension.", NULL},
    {"ndim", get_ndim, NULL, "The number of dimensions.", NULL},
    {"size", get_size, NULL, "The number of elements.", NULL},
    {"itemsize", get_itemsize, NULL, "Bytes of an element.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes of all elements.", NULL},
    {"dtype", get_dtype, NULL,
     "The element type as NumPy's typestr, such as '<f4'; a name where NumPy has no typestr, such as 'bfloat16'.",
     NULL},
    {"dtype_name", get_dtype_name, NULL, "The element type by name, such as 'float32'.", NULL},
    {"readonly", get_readonly, NULL, "True when the elements must not be written.", NULL},
    {"contiguous", get_contiguous, NULL, "True when the elements lie one after another in C's order.", NULL},
    {"buffer", get_buffer, NULL, "The gmm.Buffer that the elements lie in; None for memory of another package.", NULL},
    {"owner", get_owner, NULL, "The object that holds the memory: the gmm.Buffer, or an object of another package.",
     NULL},
    {"address", get_address, NULL, "The address of the first element, as a number.", NULL},
    {"offset", get_offset, NULL, "Bytes from the start of the buffer to the first element.", NULL},
    {"closed", get_closed, NULL, "True once the memory is freed.", NULL},
    {"T", get_T, NULL, "Another view with the dimensions in reverse order.", NULL},
    {"_foreign_device", get_foreign_device, NULL, NULL, NULL},
    {"_foreign_context", get_foreign_context, NULL, NULL, NULL},
    {"_foreign_stream", get_foreign_stream, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static Py_ssize_t array_length(PyObject *self) {
  Array *array = (Array *)self;
  if (array->ndim > 0) return array_shape(array)[0];
  PyErr_SetString(PyExc_TypeError, "an array without dimensions has no length");
  return -1;
}

PyDoc_STRVAR(
    reshape_doc,
    "reshape($self, /, *shape)\n--\n\n"
    "Another view of the same elements in another shape, one number of which may be -1. The array must be contiguous.");
PyDoc_STRVAR(transpose_doc,
             "transpose($self, /, *axes)\n--\n\n"
             "Another view with the dimensions in another order, by default the reverse one.");
PyDoc_STRVAR(view_doc,
             "view($self, dtype, /)\n--\n\n"
             "Another view of the same bytes as elements of another type.");

static PyMethodDef array_methods[] = {
    {"reshape", (PyCFunction)(void (*)(void))array_reshape, METH_FASTCALL, reshape_doc},
    {"transpose", (PyCFunction)(void (*)(void))array_transpose, METH_FASTCALL, transpose_doc},
    {"view", array_view, METH_O, view_doc},
    {"_host_reaches", array_host_reaches, METH_NOARGS, NULL},
    {"_release", array_release, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL}};

static PyBufferProcs array_buffer = {array_getbuffer, array_releasebuffer};
static PySequenceMethods array_sequence = {.sq_length = array_length, .sq_item = array_item};
static PyMappingMethods array_mapping = {.mp_length = array_length, .mp_subscript = array_subscript};

/* The package adds the methods that are written in Python (helpers.c). */
PyTypeObject Array_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gmm.Array",
    .tp_basicsize = offsetof(Array, dims),
    .tp_itemsize = sizeof(Py_ssize_t),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = PyDoc_STR(
        "Array(buffer, shape=None, dtype='uint8', *, strides=None, offset=0, readonly=False)\n--\n\n"
        "Memory with a shape, an element type and strides, which other packages take without a copy. It computes "
        "nothing.\n\n"
        "This constructor makes an array over a gmm.Buffer. gmm.empty(), gmm.zeros(), gmm.array(), "
        "gmm.from_dlpack() and\n"
        "gmm.asarray() make arrays too. shape: None: all of the buffer after the offset. strides and "
        "offset: bytes.\n"
        "The array holds a reference to the buffer, but the buffer can be freed: then every use of the "
        "array raises\n"
        "gmm.ClosedError."),
    .tp_new = array_new,
    .tp_dealloc = array_dealloc,
    .tp_repr = native_describe,
    .tp_str = native_show,
    .tp_traverse = array_traverse,
    .tp_weaklistoffset = offsetof(Array, weak_references),
    .tp_methods = array_methods,
    .tp_getset = array_getters,
    .tp_as_buffer = &array_buffer,
    .tp_as_sequence = &array_sequence,
    .tp_as_mapping = &array_mapping,
};
