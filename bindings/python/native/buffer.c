/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "native.h"

/* gmm.Buffer: memory that was allocated or imported. It is a C type of its own, so that making and freeing one costs no
 * Python frame. Dead objects wait here for their next use, which mostly saves an allocation. */
static Memory *free_buffers[FREE_LIST_SIZE + 1];
static int free_count;

static PyObject *buffer_tp_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
  if (PyTuple_GET_SIZE(arguments) != 0 || (keywords && PyDict_GET_SIZE(keywords) != 0)) {
    PyErr_SetString(PyExc_TypeError,
                    "buffers are made by gmm.alloc(), Context.alloc(), Heap.alloc() and Context.ipc_import()");
    return NULL;
  }
  return type->tp_alloc(type, 0);
}

Memory *buffer_new(void) {
  if (free_count == 0) return (Memory *)Buffer_Type.tp_alloc(&Buffer_Type, 0);
  Memory *memory = free_buffers[--free_count];
  PyObject_Init((PyObject *)memory, &Buffer_Type);
  memset((char *)memory + sizeof(PyObject), 0, sizeof *memory - sizeof(PyObject));
  PyObject_GC_Track(memory);
  return memory;
}

static void buffer_dealloc(PyObject *self) {
  Memory *memory = (Memory *)self;
  /* A finalizer runs once in the life of an object, and marks it. Only objects without the mark can be reused. */
  if ((memory->state & STATE_OPEN) && memory_end(memory) < 0) return;
  PyObject_GC_UnTrack(self);
  if (memory->weak_references) PyObject_ClearWeakRefs(self);
  Py_CLEAR(memory->source);
  Py_CLEAR(memory->stream);
  Py_CLEAR(memory->heap);
  Py_CLEAR(memory->context);
  if (Py_TYPE(self) == &Buffer_Type && free_count < FREE_LIST_SIZE && !PyObject_GC_IsFinalized(self))
    free_buffers[free_count++] = memory;
  else
    Py_TYPE(self)->tp_free(self);
}

/* None: the stream of the allocation. */
static PyObject *give_back(PyObject *self, PyObject *stream) {
  if (memory_give_back((Memory *)self, stream) < 0) return NULL;
  Py_RETURN_NONE;
}

static PyObject *buffer_free(PyObject *self, PyObject *const *arguments, Py_ssize_t count, PyObject *names) {
  PyObject *stream = Py_None;
  const Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
  if (count + named > 1 || (named == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "stream") != 0))
    return PyErr_Format(PyExc_TypeError, "free() takes one argument, stream");
  if (count + named == 1) stream = arguments[0];
  return give_back(self, stream);
}

static PyObject *buffer_close(PyObject *self, PyObject *unused) {
  (void)unused;
  return give_back(self, Py_None);
}

static PyObject *buffer_enter(PyObject *self, PyObject *unused) {
  (void)unused;
  Py_INCREF(self);
  return self;
}

static PyObject *buffer_exit(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  (void)arguments, (void)count;
  return give_back(self, Py_None);
}

PyDoc_STRVAR(
    free_doc,
    "free($self, /, stream=None)\n--\n\n"
    "Frees the block in the order of a stream: that of the allocation when None. Freeing twice does nothing.\n\n"
    "BufferError while a view of it lives.");
PyDoc_STRVAR(close_doc, "close($self, /)\n--\n\nfree() on the stream of the allocation.");
PyDoc_STRVAR(enter_doc, "__enter__($self, /)\n--\n\n");
PyDoc_STRVAR(exit_doc, "__exit__($self, /, *exception)\n--\n\n");

static PyMethodDef buffer_methods[] = {
    {"free", (PyCFunction)(void (*)(void))buffer_free, METH_FASTCALL | METH_KEYWORDS, free_doc},
    {"close", buffer_close, METH_NOARGS, close_doc},
    {"__enter__", buffer_enter, METH_NOARGS, enter_doc},
    {"__exit__", (PyCFunction)(void (*)(void))buffer_exit, METH_FASTCALL, exit_doc},
    {NULL, NULL, 0, NULL}};

/* The package adds the methods that are written in Python (helpers.c). */
PyTypeObject Buffer_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gmm.Buffer",
    .tp_base = &Memory_Type,
    .tp_basicsize = sizeof(Memory),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc =
        PyDoc_STR("A block of memory of a context.\n\n"
                  "close(), the end of a with block, or the end of the last reference frees it. While a memoryview, an "
                  "array of another\n"
                  "package or a DLPack tensor views it, a free raises BufferError.\n\n"
                  "Where the host reaches the memory (HOST and MANAGED memory, and every kind on the host backend) it "
                  "has the buffer protocol:\n"
                  "memoryview(buffer) and numpy.frombuffer(buffer) see the same bytes. They do not wait for streams."),
    .tp_new = buffer_tp_new,
    .tp_dealloc = buffer_dealloc,
    .tp_finalize = memory_finalize,
    .tp_traverse = memory_traverse,
    .tp_repr = native_describe,
    .tp_weaklistoffset = offsetof(Memory, weak_references),
    .tp_methods = buffer_methods,
};
