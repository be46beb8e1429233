/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "array.h"

int memory_is_open(const Memory *memory) {
  return memory->open && memory->context && memory->context->pointer &&
         (memory->resets == memory->context->resets || memory->origin != MEMORY_ALLOCATED);
}

static void closed_error(const Memory *memory) {
  if (memory->open && memory->context && !memory->context->pointer)
    gmm_python_raise_closed("context of this memory");
  else
    gmm_python_raise_closed(memory->origin == MEMORY_PINNED ? "pin" : "buffer");
}

int memory_check_open(const Memory *memory) {
  if (__builtin_expect(memory_is_open(memory), 1)) return 0;
  closed_error(memory);
  return -1;
}

int memory_check_host_access(const Memory *memory) {
  gmm_pointer_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = (uint32_t)sizeof info;
  const gmm_result result = gmm_query((gmm_context *)memory->context->pointer, memory->address, &info);
  if (result < 0) {
    gmm_python_raise(result);
  } else if (info.state == GMM_STATE_PAUSED || info.state == GMM_STATE_PARTLY_PAUSED) {
    PyErr_SetString(PyExc_BufferError, "the memory is paused; resume its tag before reading or writing it");
  } else if (!(info.flags & GMM_POINTER_HOST_ACCESSIBLE)) {
    PyErr_SetString(PyExc_BufferError,
                    "the host cannot reach this memory; copy it with copy_to(), or allocate HOST or MANAGED memory");
  } else {
    return 0;
  }
  return -1;
}

int memory_add_export(Memory *memory) {
  if (memory_check_open(memory) < 0) return -1;
  ++memory->exports;
  ++memory->context->exports;
  return 0;
}

void memory_drop_export(Memory *memory) {
  --memory->exports;
  --memory->context->exports;
}

int memory_address(PyObject *object, void **address) {
  if (object == Py_None) {
    *address = NULL;
    return 0;
  }
  if (PyObject_TypeCheck(object, &Memory_Type)) {
    Memory *memory = (Memory *)object;
    if (memory_check_open(memory) < 0) return -1;
    *address = memory->address;
    return 0;
  }
  if (Py_TYPE(object) == &Array_Type) {
    if (array_check_open((Array *)object) < 0) return -1;
    *address = ((Array *)object)->data;
    return 0;
  }
  *address = PyLong_AsVoidPtr(object);
  return PyErr_Occurred() ? -1 : 0;
}

/* _adopt(origin, address, nbytes, context, heap, stream, source) */
static PyObject *memory_adopt(PyObject *self, PyObject *arguments) {
  Memory *memory = (Memory *)self;
  int origin;
  Py_ssize_t nbytes;
  PyObject *number, *context, *heap, *stream, *source;
  if (!PyArg_ParseTuple(arguments, "iOnO!OOO", &origin, &number, &nbytes, &Handle_Type, &context, &heap, &stream,
                        &source))
    return NULL;
  void *address = PyLong_AsVoidPtr(number);
  if (PyErr_Occurred()) return NULL;
  if (memory->context || !address || nbytes < 0 || (heap != Py_None && !PyObject_TypeCheck(heap, &Handle_Type))) {
    PyErr_SetString(PyExc_ValueError, "this memory object cannot take that block");
    return NULL;
  }
  if (PyObject_TypeCheck(stream, &Handle_Type)) {
    Py_INCREF(stream);
    memory->stream = (Handle *)stream;
    memory->raw_stream = (gmm_stream)memory->stream->pointer;
  } else if (stream != Py_None) {
    memory->raw_stream = (gmm_stream)PyLong_AsVoidPtr(stream);
    if (PyErr_Occurred()) return NULL;
  }
  if (heap != Py_None) {
    Py_INCREF(heap);
    memory->heap = (Handle *)heap;
  }
  if (source != Py_None) {
    Py_INCREF(source);
    memory->source = source;
  }
  Py_INCREF(context);
  memory->context = (Handle *)context;
  memory->resets = memory->context->resets;
  memory->origin = (MemoryOrigin)origin;
  memory->address = address;
  memory->nbytes = nbytes;
  memory->open = 1;
  Py_RETURN_NONE;
}

/* The caller has marked the memory closed and holds the context open. */
static gmm_result give_back(Memory *memory, gmm_stream stream) {
  gmm_context *context = (gmm_context *)memory->context->pointer;
  gmm_result result = GMM_OK;
  /* Without releasing the GIL, as in allocate.c. */
  if (memory->origin == MEMORY_ALLOCATED && gmm_try_free(context, memory->address, stream) == GMM_OK) return GMM_OK;
  PyThreadState *state = gmm_python_leave_gil();
  switch (memory->origin) {
    case MEMORY_ALLOCATED:
      result = gmm_free(context, memory->address, stream);
      break;
    case MEMORY_IMPORTED:
      result = gmm_ipc_close(context, memory->address);
      break;
    case MEMORY_PINNED:
      result = gmm_unpin(context, memory->address);
      break;
  }
  gmm_python_take_gil(state);
  return result;
}

/* The stream that the block is freed on. A destroyed stream has finished its work: the default stream replaces it. */
static gmm_stream own_stream(const Memory *memory) {
  if (memory->stream) return (gmm_stream)memory->stream->pointer;
  return memory->raw_stream;
}

/* 1: the memory can be freed, 0: it was freed before, -1 with an exception. */
static int check_unused(Memory *memory) {
  if (!memory_is_open(memory)) {
    if (reset_note_free(memory) < 0) return -1;
    memory->open = 0;
    Py_CLEAR(memory->source);
    return 0;
  }
  if (memory->exports == 0) return 1;
  PyErr_Format(PyExc_BufferError, "cannot free the memory at %p: %zd views of it live; release or delete them first",
               memory->address, memory->exports);
  return -1;
}

int memory_give_back(Memory *memory, PyObject *stream_object) {
  int unused = check_unused(memory);
  if (unused <= 0) return unused;
  gmm_stream stream = memory->raw_stream;
  Handle *held_stream = NULL;
  if (stream_object == Py_None) {
    if (memory->stream && memory->stream->pointer) {
      held_stream = handle_enter((PyObject *)memory->stream, HANDLE_STREAM);
      if (!held_stream) return -1;
    }
    stream = own_stream(memory);
  } else {
    if (handle_stream(stream_object, &stream, &held_stream) < 0) return -1;
    /* Python code reads another package's stream: meanwhile the memory may have been freed, or have got a view. */
    unused = check_unused(memory);
    if (unused <= 0) {
      handle_leave(held_stream);
      return unused;
    }
  }
  Handle *context = handle_enter((PyObject *)memory->context, HANDLE_CONTEXT);
  if (!context) {
    handle_leave(held_stream);
    return -1;
  }
  memory->open = 0; /* before the GIL is released: a second free sees it closed */
  const gmm_result result = give_back(memory, stream);
  handle_leave(context);
  handle_leave(held_stream);
  if (result < 0) {
    memory->open = 1;
    gmm_python_raise(result);
    return -1;
  }
  Py_CLEAR(memory->source);
  return 1;
}

/* _give_back(stream): True when this call freed it, False when it was freed before. None: the stream of the block. */
static PyObject *memory_give_back_method(PyObject *self, PyObject *stream) {
  const int result = memory_give_back((Memory *)self, stream);
  return result < 0 ? NULL : PyBool_FromLong(result);
}

/* Frees memory that the program did not free, on the thread that drops the last reference. At the interpreter's end it
 * does nothing. */
static void let_go(Memory *memory, PyObject *reported) {
  if (!memory->open || gmm_python_is_ending()) return;
  const int is_open = memory_is_open(memory);
  if (is_open && memory->exports > 0) return;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  if (is_open) {
    memory->open = 0;
    /* As handle_enter(), but without new references: this object may be without references itself. */
    Handle *stream = memory->stream;
    ++memory->context->users;
    if (stream) ++stream->users;
    const gmm_result result = give_back(memory, own_stream(memory));
    if (stream) --stream->users;
    --memory->context->users;
    if (result < 0 && result != GMM_ERROR_FORKED) {
      gmm_python_raise(result);
      PyErr_WriteUnraisable(reported);
    }
  } else {
    if (reset_note_free(memory) < 0) PyErr_WriteUnraisable(reported);
    memory->open = 0;
  }
  PyErr_Restore(type, value, trace);
}

void memory_finalize(PyObject *self) { let_go((Memory *)self, self); }

int memory_end(Memory *memory) {
  if (PyObject_CallFinalizerFromDealloc((PyObject *)memory) < 0) return -1;
  /* The collector finalizes once, and views that prevented the free may have gone since. It must not visit an object
   * without references. */
  PyObject_GC_UnTrack(memory);
  let_go(memory, (PyObject *)Py_TYPE(memory));
  return 0;
}

static int memory_getbuffer(PyObject *self, Py_buffer *view, int flags) {
  Memory *memory = (Memory *)self;
  view->obj = NULL;
  if (memory_add_export(memory) < 0) return -1;
  if (memory_check_host_access(memory) == 0 &&
      PyBuffer_FillInfo(view, self, memory->address, memory->nbytes, 0, flags) == 0)
    return 0;
  memory_drop_export(memory);
  return -1;
}

static void memory_releasebuffer(PyObject *self, Py_buffer *view) {
  (void)view;
  memory_drop_export((Memory *)self);
}

int memory_traverse(PyObject *self, visitproc visit, void *arg) {
  Memory *memory = (Memory *)self;
  Py_VISIT(memory->context);
  Py_VISIT(memory->heap);
  Py_VISIT(memory->stream);
  Py_VISIT(memory->source);
  return 0;
}

/* The reference to the context stays, because views that go later are counted there. The context's callbacks break
 * cycles. */
static void memory_dealloc(PyObject *self) {
  Memory *memory = (Memory *)self;
  if (memory_end(memory) < 0) return;
  PyObject_GC_UnTrack(self);
  if (memory->weak_references) PyObject_ClearWeakRefs(self);
  Py_CLEAR(memory->source);
  Py_CLEAR(memory->stream);
  Py_CLEAR(memory->heap);
  Py_CLEAR(memory->context);
  Py_TYPE(self)->tp_free(self);
}

static Py_ssize_t memory_length(PyObject *self) { return ((Memory *)self)->nbytes; }

static PyObject *memory_get_address(PyObject *self, void *unused) {
  (void)unused;
  Memory *memory = (Memory *)self;
  if (memory_check_open(memory) < 0) return NULL;
  return PyLong_FromVoidPtr(memory->address);
}

static PyObject *memory_get_closed(PyObject *self, void *unused) {
  (void)unused;
  return PyBool_FromLong(!memory_is_open((Memory *)self));
}

static PyObject *memory_get_stream(PyObject *self, void *unused) {
  (void)unused;
  Memory *memory = (Memory *)self;
  if (memory->stream && memory->stream->pointer) {
    Py_INCREF(memory->stream);
    return (PyObject *)memory->stream;
  }
  return PyLong_FromVoidPtr((void *)own_stream(memory));
}

static PyMethodDef memory_methods[] = {{"_adopt", memory_adopt, METH_VARARGS, NULL},
                                       {"_give_back", memory_give_back_method, METH_O, NULL},
                                       {NULL, NULL, 0, NULL}};

static PyGetSetDef memory_getters[] = {
    {"address", memory_get_address, NULL, "The address of the memory, as a number.", NULL},
    {"closed", memory_get_closed, NULL, "True once the memory is freed, alone or with its context.", NULL},
    {"stream", memory_get_stream, NULL, "The stream that the memory is freed on: a gmm.Stream, or a number.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMemberDef memory_members[] = {
    {"nbytes", T_PYSSIZET, offsetof(Memory, nbytes), READONLY, "The requested size in bytes."},
    {"context", T_OBJECT, offsetof(Memory, context), READONLY, "The gmm.Context of the memory."},
    {"_source", T_OBJECT, offsetof(Memory, source), READONLY, NULL},
    {"_exports", T_PYSSIZET, offsetof(Memory, exports), READONLY, NULL},
    {NULL, 0, 0, 0, NULL}};

static PyBufferProcs memory_buffer = {memory_getbuffer, memory_releasebuffer};
static PySequenceMethods memory_sequence = {.sq_length = memory_length};

PyTypeObject Memory_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gmm._native.Memory",
    .tp_basicsize = sizeof(Memory),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "A block of memory of the library.",
    .tp_new = PyType_GenericNew,
    .tp_dealloc = memory_dealloc,
    .tp_finalize = memory_finalize,
    .tp_traverse = memory_traverse,
    .tp_weaklistoffset = offsetof(Memory, weak_references),
    .tp_methods = memory_methods,
    .tp_getset = memory_getters,
    .tp_members = memory_members,
    .tp_as_buffer = &memory_buffer,
    .tp_as_sequence = &memory_sequence,
};
