/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"

/* --- Arguments ---------------------------------------------------------------------------------------------- */

/* The arguments of all functions here. A Signature names those of one. */
enum { SIZE, KIND, DEVICE, TAG, STREAM, ALIGNMENT, DEDICATED, COMM, ZERO, NAME, ARGUMENTS };
static const char *const argument_names[ARGUMENTS] = {"size",      "kind",      "device", "tag",  "stream",
                                                      "alignment", "dedicated", "comm",   "zero", "name"};
static PyObject *interned[ARGUMENTS];

typedef struct {
  int positionals; /**< so many arguments, from size on, may come without their names */
  unsigned taken;  /**< a bit for each argument of the function */
} Signature;

static const Signature alloc_signature = {2, (1u << ARGUMENTS) - 1};
static const Signature heap_signature = {1, 1u << SIZE | 1u << STREAM | 1u << NAME};

static int argument_of(const Signature *signature, PyObject *name) {
  for (int i = 0; i < ARGUMENTS; ++i)
    if ((signature->taken >> i & 1) && name == interned[i]) return i;
  for (int i = 0; i < ARGUMENTS; ++i)
    if ((signature->taken >> i & 1) && PyUnicode_Compare(name, interned[i]) == 0) return i;
  PyErr_Format(PyExc_TypeError, "alloc() has no argument %R", name);
  return -1;
}

static int parse(const Signature *signature, PyObject *const *arguments, Py_ssize_t count, PyObject *names,
                 PyObject **values) {
  if (count > signature->positionals) {
    PyErr_Format(PyExc_TypeError, "alloc() takes %d positional arguments, not %zd", signature->positionals, count);
    return -1;
  }
  for (Py_ssize_t i = 0; i < count; ++i) values[i] = arguments[i];
  const Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
  for (Py_ssize_t i = 0; i < named; ++i) {
    const int argument = argument_of(signature, PyTuple_GET_ITEM(names, i));
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

/* Takes the number that a helper has made. */
static int take_number(PyObject *number, uint32_t *to) {
  const int is_read = number && number_32(number, to);
  Py_XDECREF(number);
  return is_read ? 0 : -1;
}

/* A number, or a name such as "vmm". */
static int to_kind(PyObject *object, gmm_kind *kind) {
  if (!PyUnicode_Check(object)) return number_32(object, kind) ? 0 : -1;
  return take_number(helper_call(HELPER_KIND, object), kind);
}

static int to_tag(Handle *context, PyObject *object, gmm_tag *tag) {
  if (PyLong_CheckExact(object)) return number_32(object, tag) ? 0 : -1;
  PyObject *find = helper_of(HELPER_TAG_NUMBER);
  return find ? take_number(PyObject_CallFunctionObjArgs(find, context, object, NULL), tag) : -1;
}

static int to_flag(PyObject *object, uint32_t flag, uint32_t *flags) {
  const int truth = object ? PyObject_IsTrue(object) : 0;
  if (truth > 0) *flags |= flag;
  return truth < 0 ? -1 : 0;
}

static int describe(Handle *context, PyObject *const *values, gmm_alloc_desc *desc) {
  if (values[KIND] && to_kind(values[KIND], &desc->kind) < 0) return -1;
  if (values[DEVICE] && !number_i32(values[DEVICE], &desc->device)) return -1;
  if (values[TAG] && to_tag(context, values[TAG], &desc->tag) < 0) return -1;
  if (values[ALIGNMENT] && !number_64(values[ALIGNMENT], &desc->alignment)) return -1;
  if (to_flag(values[DEDICATED], GMM_ALLOC_DEDICATED, &desc->flags) < 0) return -1;
  if (to_flag(values[COMM], GMM_ALLOC_COMM, &desc->flags) < 0) return -1;
  if ((desc->flags & GMM_ALLOC_COMM) && !values[KIND]) desc->kind = GMM_KIND_VMM;
  return to_flag(values[ZERO], GMM_ALLOC_ZERO, &desc->flags);
}

/* --- Allocation --------------------------------------------------------------------------------------------- */

/* The caller holds both open; heap may be NULL. */
static Memory *allocate(Handle *context, Handle *heap, uint64_t size, gmm_alloc_desc *desc, PyObject *const *values) {
  PyObject *const stream_object = values[STREAM];
  Handle *stream = NULL;
  const char *name = NULL;
  if (values[NAME] && values[NAME] != Py_None && text_read(values[NAME], &name) < 0) return NULL;
  if (stream_object && handle_stream(stream_object, &desc->stream, &stream) < 0) return NULL;
  Memory *memory = buffer_new(); /* before the block, so that nothing can fail after it */
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
  /* A callback of the call may have raised an exception: then the object frees the block. */
  if (result >= 0) {
    Py_INCREF(context);
    memory->base.parent = context;
    Py_XINCREF(heap);
    memory->heap = heap;
    if (stream) {
      Py_INCREF(stream);
      memory->stream = stream;
    }
    memory->raw_stream = desc->stream;
    memory->base.resets = LOAD(context->resets);
    memory->base.kind = HANDLE_BLOCK;
    memory->base.pointer = address;
    memory->nbytes = (Py_ssize_t)size;
    STORE(memory->base.state, STATE_OPEN);
    if (name) {
      PyThreadState *state = gmm_python_leave_gil();
      result = gmm_name((gmm_context *)context->pointer, address, name);
      gmm_python_take_gil(state);
      if (result < 0) gmm_python_raise(result); /* the object frees the block */
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

PyObject *native_set_default_context(PyObject *module, PyObject *context) {
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

PyObject *native_default_context(PyObject *module, PyObject *unused) {
  Handle *context = LOAD(default_context);
  if (__builtin_expect(!context || !handle_is_open(context), 0)) return helper_call(HELPER_DEFAULT_CONTEXT, NULL);
  Py_INCREF(context);
  return (PyObject *)context;
}

/* Held open until handle_leave(). */
static Handle *enter_default_context(void) {
  PyObject *context = native_default_context(NULL, NULL);
  if (!context) return NULL;
  Handle *entered = handle_enter(context, HANDLE_CONTEXT);
  Py_DECREF(context);
  return entered;
}

/* `owner`: a context or a heap, which the caller has entered. */
static PyObject *run(Handle *owner, PyObject *const *arguments, Py_ssize_t count, PyObject *names) {
  if (!owner) return NULL;
  Handle *heap = owner->kind == HANDLE_HEAP ? owner : NULL, *context = heap ? owner->parent : owner;
  PyObject *values[ARGUMENTS] = {NULL};
  gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = GMM_KIND_DEVICE};
  uint64_t size;
  Memory *made = NULL;
  if (parse(heap ? &heap_signature : &alloc_signature, arguments, count, names, values) == 0 &&
      number_64(values[SIZE], &size) && (heap || describe(context, values, &desc) == 0))
    made = allocate(context, heap, size, &desc, values);
  handle_leave(owner);
  return (PyObject *)made;
}

PyObject *native_alloc(PyObject *module, PyObject *const *arguments, Py_ssize_t count, PyObject *names) {
  return run(enter_default_context(), arguments, count, names);
}

static PyObject *context_alloc(PyObject *self, PyObject *const *arguments, Py_ssize_t count, PyObject *names) {
  return run(handle_enter(self, HANDLE_CONTEXT), arguments, count, names);
}

static PyObject *heap_alloc(PyObject *self, PyObject *const *arguments, Py_ssize_t count, PyObject *names) {
  return run(handle_enter(self, HANDLE_HEAP), arguments, count, names);
}

/* A function's text names $module where a method's names $self. */
#define ALLOC_ARGUMENTS                                                                                   \
  "size, kind=1, *, device=0, tag=0, stream=None, alignment=0, dedicated=False, comm=False, zero=False, " \
  "name=None)\n--\n\n"
#define ALLOC_TEXT                                                                                               \
  "Allocates a Buffer of size bytes for first use on a stream.\n\n"                                              \
  "kind: a Kind or its name, such as \"vmm\". tag: a Tag, its number or its name; 0: the thread's current tag. " \
  "dedicated: a driver allocation of its own. comm: VMM memory for network libraries. zero: "                    \
  "the bytes read as zero. name: snapshots and the report of leaks show it."
const char native_alloc_doc[] = "alloc($module, /, " ALLOC_ARGUMENTS ALLOC_TEXT;
PyDoc_STRVAR(alloc_doc, "alloc($self, /, " ALLOC_ARGUMENTS ALLOC_TEXT);
PyDoc_STRVAR(heap_alloc_doc,
             "alloc($self, /, size, *, stream=None, name=None)\n--\n\nAllocates a Buffer for first use on a stream.");
#define METHOD(Name, Function, Doc) \
  { Name, (PyCFunction)(void (*)(void))Function, METH_FASTCALL | METH_KEYWORDS, Doc }
static PyMethodDef context_alloc_def = METHOD("alloc", context_alloc, alloc_doc);
static PyMethodDef heap_alloc_def = METHOD("alloc", heap_alloc, heap_alloc_doc);

int allocate_init(PyObject *module) {
  for (int i = 0; i < ARGUMENTS; ++i)
    if (!(interned[i] = PyUnicode_InternFromString(argument_names[i]))) return -1;
  if (native_add_method(module, "context_alloc", &Handle_Type, &context_alloc_def) < 0) return -1;
  return native_add_method(module, "heap_alloc", &Handle_Type, &heap_alloc_def);
}
