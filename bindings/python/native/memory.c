/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "native.h"

int memory_check_open(const Memory *memory) {
  if (__builtin_expect(handle_is_open(&memory->base), 1)) return 0;
  (void)handle_raise_closed(&memory->base);
  return -1;
}

int memory_check_host_access(const Memory *memory) {
  if (!memory->base.parent) { /* another package's: the protocol has told */
    if (!memory->is_out_of_reach) return 0;
    PyErr_SetString(PyExc_BufferError, "the host cannot reach this memory; copy it with numpy() or copy_to()");
    return -1;
  }
  gmm_pointer_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = (uint32_t)sizeof info;
  const gmm_result result = gmm_query((gmm_context *)memory->base.parent->pointer, memory->base.pointer, &info);
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
  Handle *context = memory->base.parent;
  if (memory_check_open(memory) < 0) return -1;
  if (context) { /* so that it is not closed between the two counts */
    const Entry entry = handle_try_enter(context);
    if (entry != ENTERED) {
      handle_raise_entry(context, entry);
      return -1;
    }
    state_add(&context->state, STATE_EXPORT);
  }
  state_add(&memory->base.state, STATE_EXPORT);
  if (context) handle_leave_only(context);
  if (__builtin_expect(handle_is_open(&memory->base), 1)) return 0;
  memory_drop_export(memory); /* another thread has freed it */
  return memory_check_open(memory);
}

void memory_drop_export(Memory *memory) {
  state_add(&memory->base.state, (State)0 - STATE_EXPORT);
  if (memory->base.parent) state_add(&memory->base.parent->state, (State)0 - STATE_EXPORT);
}

int memory_address(PyObject *object, void **address) {
  if (object == Py_None) {
    *address = NULL;
    return 0;
  }
  if (PyObject_TypeCheck(object, &Memory_Type)) {
    *address = ((Memory *)object)->base.pointer;
    return memory_check_open((Memory *)object);
  }
  if (PyObject_TypeCheck(object, &View_Type)) return view_address(object, address);
  *address = PyLong_AsVoidPtr(object);
  return PyErr_Occurred() ? -1 : 0;
}

/* --- The type, and gmm.Buffer, which alloc() makes ------------------------------------------------------------ */

Memory *buffer_new(void) {
  PyTypeObject *type = (PyTypeObject *)helper_of(HELPER_BUFFER);
  return type ? (Memory *)type->tp_alloc(type, 0) : NULL;
}

static int memory_traverse(PyObject *self, visitproc visit, void *arg) {
  Memory *memory = (Memory *)self;
  /* The reference to the context stays, because views that go later are counted there, and so does `held` until the
   * memory is given back. The context's callbacks break cycles. */
  Py_VISIT(memory->base.parent);
  Py_VISIT(memory->base.held);
  Py_VISIT(memory->heap);
  Py_VISIT(memory->stream);
  return 0;
}

static int memory_getbuffer(PyObject *self, Py_buffer *view, int flags) {
  Memory *memory = (Memory *)self;
  view->obj = NULL;
  if (memory_add_export(memory) < 0) return -1;
  if (memory_check_host_access(memory) == 0 &&
      PyBuffer_FillInfo(view, self, memory->base.pointer, memory->nbytes, 0, flags) == 0)
    return 0;
  memory_drop_export(memory);
  return -1;
}

static void memory_releasebuffer(PyObject *self, Py_buffer *view) { memory_drop_export((Memory *)self); }

static Py_ssize_t memory_length(PyObject *self) { return ((Memory *)self)->nbytes; }

static PyObject *memory_get_address(PyObject *self, void *unused) {
  void *address;
  return memory_address(self, &address) < 0 ? NULL : PyLong_FromVoidPtr(address);
}

static PyObject *memory_get_stream(PyObject *self, void *unused) {
  Memory *memory = (Memory *)self;
  if (!memory->stream) return PyLong_FromVoidPtr((void *)memory->raw_stream);
  if (!handle_is_open(memory->stream)) return PyLong_FromVoidPtr((void *)GMM_STREAM_DEFAULT);
  Py_INCREF(memory->stream);
  return (PyObject *)memory->stream;
}

static PyObject *memory_free(PyObject *self, PyObject *const *arguments, Py_ssize_t count, PyObject *names) {
  const Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
  if (count + named > 1 || (named == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "stream") != 0))
    return PyErr_Format(PyExc_TypeError, "free() takes one argument, stream");
  return handle_close_on((Handle *)self, count + named == 1 ? arguments[0] : Py_None);
}

PyDoc_STRVAR(
    free_doc,
    "free($self, /, stream=None)\n--\n\n"
    "Frees the block in the order of a stream: that of the allocation when None. Freeing twice does nothing.\n\n"
    "BufferError while a view of it lives.");

/* Pins lack it: the package puts it into gmm.Buffer. */
static PyMethodDef memory_free_def = {"free", (PyCFunction)(void (*)(void))memory_free, METH_FASTCALL | METH_KEYWORDS,
                                      free_doc};

int memory_init(PyObject *module) { return native_add_method(module, "memory_free", &Memory_Type, &memory_free_def); }

static PyGetSetDef memory_getters[] = {
    {"address", memory_get_address, NULL, "The address of the memory, as a number.", NULL},
    {"stream", memory_get_stream, NULL, "The stream that the memory is freed on: a gmm.Stream, or a number.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMemberDef memory_members[] = {
    {"nbytes", T_PYSSIZET, offsetof(Memory, nbytes), READONLY, "The requested size in bytes."},
    {"_nbytes", T_PYSSIZET, offsetof(Memory, nbytes), 0, NULL},
    {"_is_out_of_reach", T_BOOL, offsetof(Memory, is_out_of_reach), 0, NULL},
    {NULL, 0, 0, 0, NULL}};

static PyBufferProcs memory_buffer = {memory_getbuffer, memory_releasebuffer};
static PySequenceMethods memory_sequence = {.sq_length = memory_length};

PyTypeObject Memory_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gmm._native.Memory",
    .tp_base = &Handle_Type,
    .tp_basicsize = sizeof(Memory),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "A block of memory of the library.",
    .tp_traverse = memory_traverse,
    .tp_getset = memory_getters,
    .tp_members = memory_members,
    .tp_as_buffer = &memory_buffer,
    .tp_as_sequence = &memory_sequence,
};
