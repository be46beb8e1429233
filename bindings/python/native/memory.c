/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "native.h"

int memory_is_open(const Memory *memory) {
  return (LOAD(memory->state) & STATE_OPEN) && (LOAD(memory->context->state) & STATE_OPEN) &&
         (memory->resets == LOAD(memory->context->resets) || memory->origin != MEMORY_ALLOCATED);
}

static void closed_error(const Memory *memory) {
  if ((LOAD(memory->state) & STATE_OPEN) && !(LOAD(memory->context->state) & STATE_OPEN))
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
  Handle *context = memory->context;
  const Entry entry = handle_try_enter(context); /* so that it is not closed between the two counts */
  if (entry != ENTERED) {
    handle_raise_entry(context, entry);
    return -1;
  }
  state_add(&context->state, STATE_EXPORT);
  state_add(&memory->state, STATE_EXPORT);
  handle_leave_only(context);
  if (__builtin_expect(memory_is_open(memory), 1)) return 0;
  memory_drop_export(memory); /* another thread has freed it */
  closed_error(memory);
  return -1;
}

void memory_drop_export(Memory *memory) {
  state_add(&memory->state, (State)0 - STATE_EXPORT);
  state_add(&memory->context->state, (State)0 - STATE_EXPORT);
}

PyObject *memory_take_source(Memory *memory) {
  PyObject *source;
  GUARD_BEGIN(memory)
  source = memory->source;
  memory->source = NULL;
  GUARD_END()
  return source;
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
  if (PyObject_TypeCheck(object, &View_Type)) return view_address(object, address);
  *address = PyLong_AsVoidPtr(object);
  return PyErr_Occurred() ? -1 : 0;
}

/* _open(origin, address, nbytes, context, source, function, *arguments) -> the function's result
 *
 * Opens the object with the memory that a function of this module imports or pins. address None: the function gives it.
 * nbytes None: all of the block from the address on. */
static PyObject *memory_open_method(PyObject *self, PyObject *arguments) {
  Memory *memory = (Memory *)self;
  int origin;
  PyObject *number, *size, *context, *source;
  PyObject *head = PyTuple_GetSlice(arguments, 0, 5);
  if (!head) return NULL;
  const int is_parsed = PyArg_ParseTuple(head, "iOOO!O", &origin, &number, &size, &Handle_Type, &context, &source) &&
                        PyTuple_GET_SIZE(arguments) > 5;
  Py_DECREF(head); /* the arguments hold all of it */
  if (!is_parsed || LOAD(memory->context) || origin == MEMORY_ALLOCATED) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "this memory object cannot be opened so");
    return NULL;
  }
  void *address = number == Py_None ? NULL : PyLong_AsVoidPtr(number);
  Py_ssize_t nbytes = size == Py_None ? 0 : PyLong_AsSsize_t(size);
  if (nbytes < 0) PyErr_SetString(PyExc_ValueError, "memory has no size below 0");
  if (PyErr_Occurred()) return NULL;
  /* Until the object has what is made: without a GIL another thread may close the context after the function's call. */
  Handle *held = handle_enter(context, HANDLE_CONTEXT);
  PyObject *made = held ? native_make(arguments, 5, number == Py_None ? &address : NULL) : NULL;
  if (!made) {
    handle_leave(held);
    return NULL;
  }
  gmm_result result = GMM_OK;
  if (size == Py_None) {
    gmm_pointer_info info = {.struct_size = sizeof info};
    result = gmm_query((gmm_context *)held->pointer, address, &info);
    if (result >= 0) nbytes = (Py_ssize_t)((uintptr_t)info.base + info.size - (uintptr_t)address);
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
  memory_open(memory);
  handle_leave(held);
  if (result >= 0) return made;
  Py_DECREF(made);
  return gmm_python_raise(result); /* the end of the object closes the import */
}

gmm_result memory_release(gmm_context *context, MemoryOrigin origin, void *address, gmm_stream stream) {
  switch (origin) {
    case MEMORY_ALLOCATED:
      return gmm_free(context, address, stream);
    case MEMORY_IMPORTED:
      return gmm_ipc_close(context, address);
    case MEMORY_PINNED:
      return gmm_unpin(context, address);
  }
  return GMM_OK;
}

/* The caller has closed the memory and holds its context and the stream open. */
static gmm_result give_back(Memory *memory, gmm_stream stream, Handle *held_stream) {
  gmm_context *context = (gmm_context *)memory->context->pointer;
  if (later_frees() && later_free(memory, stream, held_stream)) return GMM_OK;
  /* Without releasing the GIL, as in allocate.c. */
  if (memory->origin == MEMORY_ALLOCATED && gmm_try_free(context, memory->address, stream) == GMM_OK) return GMM_OK;
  PyThreadState *state = gmm_python_leave_gil();
  const gmm_result result = memory_release(context, memory->origin, memory->address, stream);
  gmm_python_take_gil(state);
  return result;
}

/* Holds the stream that the block is freed on. A destroyed stream has finished its work: the default stream replaces
 * it. */
static gmm_stream enter_own_stream(Memory *memory, Handle **held) {
  *held = NULL;
  if (!memory->stream) return memory->raw_stream;
  if (handle_try_enter(memory->stream) != ENTERED) return GMM_STREAM_DEFAULT;
  *held = memory->stream;
  return (gmm_stream)memory->stream->pointer;
}

/* Another thread resets its context, which has closed it and may still be refused. */
static int is_in_reset(const Memory *memory) {
  return memory->origin == MEMORY_ALLOCATED && (LOAD(memory->context->state) & STATE_RESETTING);
}

/* 1: the memory can be freed, 0: it was freed before, or will be after a reset, -1 with an exception. */
static int check_unused(Memory *memory) {
  while (!memory_is_open(memory)) {
    State state = LOAD(memory->state);
    const int in_reset = is_in_reset(memory);
    if (!in_reset && memory_is_open(memory)) continue; /* the reset was refused */
    /* A thread that gives the memory back still needs its source: only the one that closed it lets the source go. */
    while (state & STATE_OPEN)
      if (state_change(&memory->state, &state, state & ~STATE_OPEN)) {
        if (in_reset && !later_free(memory, memory->raw_stream, memory->stream)) PyErr_NoMemory();
        Py_XDECREF(memory_take_source(memory));
        break;
      }
    return PyErr_Occurred() ? -1 : 0;
  }
  const State state = LOAD(memory->state);
  if (state_exports(state) == 0) return 1;
  PyErr_Format(PyExc_BufferError, "cannot free the memory at %p: %zd views of it live; release or delete them first",
               memory->address, state_exports(state));
  return -1;
}

/* The caller holds the context and the stream open. */
static int give_back_unused(Memory *memory, gmm_stream stream, Handle *held_stream) {
  State state = STATE_OPEN;
  /* One thread closes it, and only when it has no views. */
  while (!state_change(&memory->state, &state, 0)) {
    const int unused = check_unused(memory);
    if (unused <= 0) return unused;
    state = STATE_OPEN;
  }
  const gmm_result result = give_back(memory, stream, held_stream);
  if (result < 0) {
    state_add(&memory->state, STATE_OPEN);
    gmm_python_raise(result);
    return -1;
  }
  Py_XDECREF(memory_take_source(memory));
  return 1;
}

int memory_give_back(Memory *memory, PyObject *stream_object) {
  const int unused = check_unused(memory);
  if (unused <= 0) return unused;
  gmm_stream stream;
  Handle *held_stream;
  if (stream_object == Py_None) {
    stream = enter_own_stream(memory, &held_stream);
    Py_XINCREF(held_stream);
  } else if (handle_stream(stream_object, &stream, &held_stream) < 0) {
    return -1;
  }
  /* Python code has read another package's stream, and may have freed the memory or made a view of it. */
  int result = check_unused(memory);
  Handle *context = result > 0 ? handle_enter((PyObject *)memory->context, HANDLE_CONTEXT) : NULL;
  if (context)
    result = give_back_unused(memory, stream, held_stream);
  else if (result > 0)
    result = -1;
  handle_leave(context);
  handle_leave(held_stream);
  return result;
}

/* Frees memory that the program did not free, on the thread that drops the last reference. At the interpreter's end it
 * does nothing. */
static void let_go(Memory *memory, PyObject *reported) {
  const State state = LOAD(memory->state);
  if (!(state & STATE_OPEN) || gmm_python_is_ending()) return;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  for (;;) {
    const int is_open = memory_is_open(memory);
    if (is_open && state_exports(state) > 0) break;
    /* Without new references: this object may be without references itself. */
    if (is_open && (memory->origin == MEMORY_ALLOCATED ? handle_try_enter(memory->context) == ENTERED
                                                       : handle_enter_anyway(memory->context))) {
      Handle *stream;
      gmm_stream own = enter_own_stream(memory, &stream);
      state_add(&memory->state, (State)0 - STATE_OPEN);
      const gmm_result result = give_back(memory, own, stream);
      if (stream) handle_leave_only(stream);
      handle_leave_only(memory->context);
      if (result < 0 && result != GMM_ERROR_FORKED) {
        gmm_python_raise(result);
        PyErr_WriteUnraisable(reported);
      }
      break;
    }
    const int in_reset = is_in_reset(memory);
    if (!in_reset && memory_is_open(memory)) continue; /* a reset was refused, so the memory lives on */
    if (in_reset && !later_free(memory, memory->raw_stream, memory->stream)) {
      PyErr_NoMemory();
      PyErr_WriteUnraisable(reported);
    }
    state_add(&memory->state, (State)0 - STATE_OPEN);
    break;
  }
  PyErr_Restore(type, value, trace);
}

static void memory_finalize(PyObject *self) { let_go((Memory *)self, self); }

/* For the deallocator: runs the finalizer, then frees what is still open. Below 0: the object lives on. */
static int memory_end(Memory *memory) {
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

static int memory_traverse(PyObject *self, visitproc visit, void *arg) {
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
  if (!memory->stream) return PyLong_FromVoidPtr((void *)memory->raw_stream);
  if (!handle_is_open(memory->stream)) return PyLong_FromVoidPtr((void *)GMM_STREAM_DEFAULT);
  Py_INCREF(memory->stream);
  return (PyObject *)memory->stream;
}

static PyObject *memory_get_source(PyObject *self, void *unused) {
  (void)unused;
  Memory *memory = (Memory *)self;
  PyObject *source;
  GUARD_BEGIN(memory)
  source = memory->source ? memory->source : Py_None;
  Py_INCREF(source);
  GUARD_END()
  return source;
}

static PyObject *memory_get_exports(PyObject *self, void *unused) {
  (void)unused;
  return PyLong_FromSsize_t(state_exports(LOAD(((Memory *)self)->state)));
}

/* --- gmm.Buffer: memory that was allocated or imported ------------------------------------------------------------ */

static PyTypeObject *buffer_class;

PyObject *native_set_buffer_class(PyObject *module, PyObject *type) {
  (void)module;
  if (!PyType_Check(type) || !PyType_IsSubtype((PyTypeObject *)type, &Memory_Type))
    return PyErr_Format(PyExc_TypeError, "expected a class of gmm._native.Memory");
  Py_INCREF(type);
  Py_XSETREF(buffer_class, (PyTypeObject *)type);
  Py_RETURN_NONE;
}

Memory *buffer_new(void) {
  if (buffer_class) return (Memory *)buffer_class->tp_alloc(buffer_class, 0);
  return (Memory *)PyErr_Format(PyExc_RuntimeError, "gmm._native is not to be used without the package gmm");
}

static PyObject *memory_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
  if (PyTuple_GET_SIZE(arguments) != 0 || (keywords && PyDict_GET_SIZE(keywords) != 0))
    return PyErr_Format(PyExc_TypeError,
                        "buffers are made by gmm.alloc(), Context.alloc(), Heap.alloc() and Context.ipc_import()");
  return type->tp_alloc(type, 0);
}

/* None: the stream of the allocation. */
static PyObject *free_on(PyObject *self, PyObject *stream) {
  if (memory_give_back((Memory *)self, stream) < 0) return NULL;
  Py_RETURN_NONE;
}

static PyObject *memory_free(PyObject *self, PyObject *const *arguments, Py_ssize_t count, PyObject *names) {
  PyObject *stream = Py_None;
  const Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
  if (count + named > 1 || (named == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "stream") != 0))
    return PyErr_Format(PyExc_TypeError, "free() takes one argument, stream");
  if (count + named == 1) stream = arguments[0];
  return free_on(self, stream);
}

static PyObject *memory_close(PyObject *self, PyObject *unused) {
  (void)unused;
  return free_on(self, Py_None);
}

static PyObject *memory_enter(PyObject *self, PyObject *unused) {
  (void)unused;
  Py_INCREF(self);
  return self;
}

static PyObject *memory_exit(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  (void)arguments, (void)count;
  return free_on(self, Py_None);
}

PyDoc_STRVAR(
    free_doc,
    "free($self, /, stream=None)\n--\n\n"
    "Frees the block in the order of a stream: that of the allocation when None. Freeing twice does nothing.\n\n"
    "BufferError while a view of it lives.");
PyDoc_STRVAR(close_doc,
             "close($self, /)\n--\n\nGives the memory back, on the stream of the allocation. A second call does "
             "nothing.");
PyDoc_STRVAR(enter_doc, "__enter__($self, /)\n--\n\n");
PyDoc_STRVAR(exit_doc, "__exit__($self, /, *exception)\n--\n\n");

/* A pin has all but this one: the package puts it into gmm.Buffer. */
static PyMethodDef memory_free_def = {"free", (PyCFunction)(void (*)(void))memory_free, METH_FASTCALL | METH_KEYWORDS,
                                      free_doc};

int memory_init(PyObject *module) { return native_add_method(module, "memory_free", &Memory_Type, &memory_free_def); }

static PyMethodDef memory_methods[] = {{"_open", memory_open_method, METH_VARARGS, NULL},
                                       {"close", memory_close, METH_NOARGS, close_doc},
                                       {"__enter__", memory_enter, METH_NOARGS, enter_doc},
                                       {"__exit__", (PyCFunction)(void (*)(void))memory_exit, METH_FASTCALL, exit_doc},
                                       {NULL, NULL, 0, NULL}};

static PyGetSetDef memory_getters[] = {
    {"address", memory_get_address, NULL, "The address of the memory, as a number.", NULL},
    {"closed", memory_get_closed, NULL, "True once the memory is freed, alone or with its context.", NULL},
    {"stream", memory_get_stream, NULL, "The stream that the memory is freed on: a gmm.Stream, or a number.", NULL},
    {"_source", memory_get_source, NULL, NULL, NULL},
    {"_exports", memory_get_exports, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMemberDef memory_members[] = {
    {"nbytes", T_PYSSIZET, offsetof(Memory, nbytes), READONLY, "The requested size in bytes."},
    {"context", T_OBJECT, offsetof(Memory, context), READONLY, "The gmm.Context of the memory."},
    {NULL, 0, 0, 0, NULL}};

static PyBufferProcs memory_buffer = {memory_getbuffer, memory_releasebuffer};
static PySequenceMethods memory_sequence = {.sq_length = memory_length};

PyTypeObject Memory_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gmm._native.Memory",
    .tp_basicsize = sizeof(Memory),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "A block of memory of the library.",
    .tp_new = memory_new,
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
