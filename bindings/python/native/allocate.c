/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"

/* --- Arguments ---------------------------------------------------------------------------------------------- */

/* Those of a heap's alloc() come first. */
enum {
  SIZE,
  STREAM,
  NAME,
  HEAP_ARGUMENTS,
  KIND = HEAP_ARGUMENTS,
  DEVICE,
  TAG,
  ALIGNMENT,
  DEDICATED,
  COMM,
  ZERO,
  PAUSED,
  ARGUMENTS
};
static const char *const argument_names[ARGUMENTS] = {"size",      "stream",    "name", "kind", "device", "tag",
                                                      "alignment", "dedicated", "comm", "zero", "paused"};
static PyObject *interned[ARGUMENTS];

static int argument_of(int taken, PyObject *name) {
  for (int i = 0; i < taken; ++i)
    if (name == interned[i]) return i;
  for (int i = 0; i < taken; ++i)
    if (PyUnicode_Compare(name, interned[i]) == 0) return i;
  PyErr_Format(PyExc_TypeError, "alloc() has no argument %R", name);
  return -1;
}

/* taken: HEAP_ARGUMENTS, or all. The size, and without a heap the kind, may come without their names. */
static int parse(int taken, PyObject *const *arguments, Py_ssize_t count, PyObject *names, PyObject **values) {
  const int positionals = taken == ARGUMENTS ? 2 : 1;
  if (count > positionals) {
    PyErr_Format(PyExc_TypeError, "alloc() takes %d positional arguments, not %zd", positionals, count);
    return -1;
  }
  for (Py_ssize_t i = 0; i < count; ++i) values[i == 0 ? SIZE : KIND] = arguments[i];
  const Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
  for (Py_ssize_t i = 0; i < named; ++i) {
    const int argument = argument_of(taken, PyTuple_GET_ITEM(names, i));
    if (argument < 0) return -1;
    if (values[argument]) {
      PyErr_Format(PyExc_TypeError, "alloc() got %R twice", PyTuple_GET_ITEM(names, i));
      return -1;
    }
    values[argument] = arguments[count + i];
  }
  if (values[SIZE]) return 0;
  PyErr_SetString(PyExc_TypeError, "alloc() needs size");
  return -1;
}

static int number_64(PyObject *object, uint64_t *to) {
  PyObject *index = PyNumber_Index(object);
  if (!index) return -1;
  *to = PyLong_AsUnsignedLongLong(index);
  Py_DECREF(index);
  return __builtin_expect(*to == UINT64_MAX, 0) && PyErr_Occurred() ? -1 : 0;
}

/* smallest: 0, or INT32_MIN for a number with a sign. */
static int number_32(PyObject *object, int64_t smallest, void *to) {
  const int64_t number = PyNumber_AsSsize_t(object, PyExc_OverflowError);
  if (number == -1 && PyErr_Occurred()) return -1;
  *(uint32_t *)to = (uint32_t)number;
  if (number >= smallest && number <= smallest + UINT32_MAX) return 0;
  PyErr_Format(PyExc_OverflowError, "%S is beyond 32 bits", object);
  return -1;
}

/* A number, or what a helper of the package makes one of, which gets the arguments behind its own number. */
static int to_number(PyObject *object, uint32_t *to, int helper, void *first, PyObject *second) {
  if (PyLong_Check(object)) return number_32(object, 0, to);
  PyObject *number = helper_call(helper, first, second);
  const int result = number ? number_32(number, 0, to) : -1;
  Py_XDECREF(number);
  return result;
}

static int to_flag(PyObject *object, uint32_t flag, uint32_t *flags) {
  const int truth = object ? PyObject_IsTrue(object) : 0;
  if (truth > 0) *flags |= flag;
  return truth < 0 ? -1 : 0;
}

static int describe(Handle *context, PyObject *const *values, gmm_alloc_desc *desc) {
  PyObject *const kind = values[KIND], *const tag = values[TAG];
  if (kind && to_number(kind, &desc->kind, HELPER_KIND, kind, NULL) < 0) return -1;
  if (values[DEVICE] && number_32(values[DEVICE], INT32_MIN, &desc->device) < 0) return -1;
  if (tag && to_number(tag, &desc->tag, HELPER_TAG_NUMBER, context, tag) < 0) return -1;
  if (values[ALIGNMENT] && number_64(values[ALIGNMENT], &desc->alignment) < 0) return -1;
  if (to_flag(values[DEDICATED], GMM_ALLOC_DEDICATED, &desc->flags) < 0) return -1;
  if (to_flag(values[COMM], GMM_ALLOC_COMM, &desc->flags) < 0) return -1;
  if (to_flag(values[PAUSED], GMM_ALLOC_PAUSED, &desc->flags) < 0) return -1;
  if ((desc->flags & (GMM_ALLOC_COMM | GMM_ALLOC_PAUSED)) && !kind) desc->kind = GMM_KIND_VMM;
  return to_flag(values[ZERO], GMM_ALLOC_ZERO, &desc->flags);
}

/* --- Allocation --------------------------------------------------------------------------------------------- */

/* The caller holds both open; heap may be NULL. */
static Handle *allocate(Handle *context, Handle *heap, uint64_t size, gmm_alloc_desc *desc, PyObject *const *values) {
  PyObject *const stream_object = values[STREAM];
  Handle *stream = NULL;
  const char *name = NULL;
  if (values[NAME] && text_read(values[NAME], &name) < 0) return NULL;
  if (stream_object && handle_stream(stream_object, &desc->stream, &stream) < 0) return NULL;
  /* Before the block, so that nothing can fail after it. */
  PyTypeObject *type = (PyTypeObject *)helper_of(HELPER_BUFFER);
  Handle *memory = type ? (Handle *)type->tp_alloc(type, 0) : NULL;
  if (!memory) {
    handle_leave(stream);
    return NULL;
  }
  void *address = NULL;
  /* A block of the thread's cache comes without a wait, so that this call holds the GIL. Releasing it would let another
   * thread run for a whole switch interval, which is 100,000 times as long. */
  gmm_result result = heap ? gmm_heap_try_alloc((gmm_heap *)heap->pointer, size, 0, 0, desc->stream, &address)
                           : gmm_try_alloc((gmm_context *)context->pointer, size, desc, &address);
  if (result == GMM_ERROR_NOT_READY) {
    PyThreadState *state = gmm_python_leave_gil();
    if (heap)
      result = gmm_heap_alloc((gmm_heap *)heap->pointer, size, 0, 0, desc->stream, &address);
    else
      result = gmm_alloc((gmm_context *)context->pointer, size, desc, &address);
    gmm_python_take_gil(state);
  }
  /* A callback of the call, or the name, may have raised an exception: then the object frees the block. */
  if (result >= 0) {
    Py_INCREF(context);
    memory->parent = context;
    Py_XINCREF(heap);
    memory->held = (PyObject *)heap;
    Py_XINCREF(stream);
    memory->stream = (PyObject *)stream;
    memory->raw_stream = desc->stream;
    if (desc->stream == GMM_STREAM_PER_THREAD) memory->thread = handle_thread();
    memory->resets = LOAD(context->resets);
    memory->kind = HANDLE_BLOCK;
    memory->pointer = address;
    memory->nbytes = (Py_ssize_t)size;
    STORE(memory->state, STATE_OPEN);
    if (name) {
      PyThreadState *state = gmm_python_leave_gil();
      result = gmm_name((gmm_context *)context->pointer, address, name);
      gmm_python_take_gil(state);
      if (result < 0) gmm_python_raise(result);
    }
  } else {
    gmm_python_raise(result);
  }
  handle_leave(stream);
  if (__builtin_expect(!PyErr_Occurred(), 1)) return memory;
  Py_DECREF(memory);
  return NULL;
}

/* --- The default context ------------------------------------------------------------------------------------ */

static Handle *default_context;

/* set_default_context(context): the context of alloc(). None: it asks the package for one. */
static PyObject *set_default_context(PyObject *module, PyObject *context) {
  Handle *old = default_context, *now = context == Py_None ? NULL : (Handle *)context;
  Py_XINCREF(now);
  STORE(default_context, now);
#ifndef Py_GIL_DISABLED
  Py_XDECREF(old);
#else
  (void)old; /* another thread may be about to count a reference: these few objects stay */
#endif
  Py_RETURN_NONE;
}

/* default_context(): the default context, which the package opens when there is none. */
static PyObject *get_default_context(PyObject *module, PyObject *unused) {
  Handle *context = LOAD(default_context);
  if (__builtin_expect(!context || !handle_is_open(context), 0)) return helper_call(HELPER_DEFAULT_CONTEXT, NULL, NULL);
  Py_INCREF(context);
  return (PyObject *)context;
}

/* Of a context or a heap. */
static PyObject *alloc_method(PyObject *self, PyObject *const *arguments, Py_ssize_t count, PyObject *names) {
  Handle *heap = ((Handle *)self)->kind == HANDLE_HEAP ? (Handle *)self : NULL;
  Handle *owner = handle_enter(self, heap ? HANDLE_HEAP : HANDLE_CONTEXT), *context = heap ? heap->parent : owner;
  if (!owner) return NULL;
  PyObject *values[ARGUMENTS] = {NULL};
  gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = GMM_KIND_DEVICE};
  uint64_t size;
  Handle *made = NULL;
  if (parse(heap ? HEAP_ARGUMENTS : ARGUMENTS, arguments, count, names, values) == 0 &&
      number_64(values[SIZE], &size) == 0 && (heap || describe(context, values, &desc) == 0))
    made = allocate(context, heap, size, &desc, values);
  handle_leave(owner);
  return (PyObject *)made;
}

static PyObject *alloc(PyObject *module, PyObject *const *arguments, Py_ssize_t count, PyObject *names) {
  PyObject *context = get_default_context(NULL, NULL);
  PyObject *made = context ? alloc_method(context, arguments, count, names) : NULL;
  Py_XDECREF(context);
  return made;
}

PyDoc_STRVAR(
    alloc_doc,
    "alloc($self, /, size, kind=1, *, device=0, tag=0, stream=None, alignment=0, dedicated=False, comm=False, "
    "zero=False, paused=False, name=None)\n--\n\n"
    "Allocates a Buffer of size bytes for first use on a stream.\n\n"
    "kind: a Kind or its name, such as \"vmm\". tag: a Tag, its number or its name; 0: the thread's current tag. "
    "dedicated: a driver allocation of its own. comm: VMM memory for network libraries. zero: "
    "the bytes read as zero. paused: VMM addresses alone, of which resume_ranges() takes parts. name: snapshots and "
    "the report of leaks show it.");
PyDoc_STRVAR(heap_alloc_doc,
             "alloc($self, /, size, *, stream=None, name=None)\n--\n\nAllocates a Buffer for first use on a stream.");
#define ALLOC(Function, Doc) \
  { "alloc", (PyCFunction)(void (*)(void))Function, METH_FASTCALL | METH_KEYWORDS, Doc }
static PyMethodDef context_alloc_def = ALLOC(alloc_method, alloc_doc),
                   heap_alloc_def = ALLOC(alloc_method, heap_alloc_doc);
static PyMethodDef functions[] = {ALLOC(alloc, alloc_doc),
                                  {"set_default_context", set_default_context, METH_O, NULL},
                                  {"default_context", get_default_context, METH_NOARGS, NULL},
                                  {NULL, NULL, 0, NULL}};

int allocate_init(PyObject *module) {
  for (int i = 0; i < ARGUMENTS; ++i)
    if (!(interned[i] = PyUnicode_InternFromString(argument_names[i]))) return -1;
  if (native_add_method(module, "context_alloc", &Handle_Type, &context_alloc_def) < 0) return -1;
  if (native_add_method(module, "heap_alloc", &Handle_Type, &heap_alloc_def) < 0) return -1;
  return PyModule_AddFunctions(module, functions);
}
