/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "native.h"

/* For messages, and for _open(). */
static const char *const kind_names[] = {"handle",          "context", "heap",           "stream",   "event",
                                         "ticket",          "watcher", "lease",          "snapshot", "buffer",
                                         "imported buffer", "pin",     "external memory"};

/* --- Users ---------------------------------------------------------------------------------------------------- */

/* The order of the entries: the context first, so that it cannot close between the two. */
static Entry enter_one(Handle *handle) {
  const State before = state_add(&handle->state, STATE_USER);
  if (__builtin_expect((before & (STATE_OPEN | STATE_RESETTING)) == STATE_OPEN, 1)) return ENTERED;
  state_add(&handle->state, (State)0 - STATE_USER);
  return before & STATE_OPEN ? ENTER_RESETTING : ENTER_CLOSED;
}

static void leave_one(Handle *handle) { state_add(&handle->state, (State)0 - STATE_USER); }

Entry handle_try_enter(Handle *handle) {
  const Entry outer = handle->parent ? enter_one(handle->parent) : ENTERED;
  if (outer != ENTERED) return outer;
  const Entry inner = enter_one(handle);
  if (inner != ENTERED && handle->parent) leave_one(handle->parent);
  return inner;
}

void handle_leave_only(Handle *handle) {
  leave_one(handle);
  if (handle->parent) leave_one(handle->parent);
}

/* Whether a reset of the context has ended a block. */
static int was_reset(const Handle *handle) {
  return handle->kind == HANDLE_BLOCK && handle->resets != LOAD(handle->parent->resets);
}

int handle_is_open(const Handle *handle) {
  return (LOAD(handle->state) & STATE_OPEN) &&
         (!handle->parent || ((LOAD(handle->parent->state) & STATE_OPEN) && !was_reset(handle)));
}

PyObject *handle_raise_closed(const Handle *handle) {
  const int is_orphan = handle->parent && !(LOAD(handle->parent->state) & STATE_OPEN);
  return gmm_python_raise_closed(is_orphan ? "context" : kind_names[handle->kind]);
}

PyObject *handle_raise_entry(const Handle *handle, Entry entry) {
  if (entry != ENTER_RESETTING) return handle_raise_closed(handle);
  PyErr_SetString(PyExc_RuntimeError, "the context is being reset by another thread, which no call may run beside");
  return NULL;
}

Handle *handle_enter(PyObject *object, HandleKind kind) {
  Handle *handle = PyObject_TypeCheck(object, &Handle_Type) ? (Handle *)object : NULL;
  if (!handle || (handle->kind != kind && handle->kind != HANDLE_NONE))
    return (Handle *)PyErr_Format(PyExc_TypeError, "expected a gmm %s, got %.100s", kind_names[kind],
                                  handle ? kind_names[handle->kind] : Py_TYPE(object)->tp_name);
  if (handle->kind == HANDLE_NONE) return (Handle *)gmm_python_raise_closed(kind_names[kind]);
  const Entry entry = handle_try_enter(handle);
  if (__builtin_expect(entry != ENTERED, 0)) return (Handle *)handle_raise_entry(handle, entry);
  Py_INCREF(handle);
  return handle;
}

void handle_leave(Handle *handle) {
  if (!handle) return;
  handle_leave_only(handle);
  Py_DECREF(handle);
}

int handle_stream(PyObject *object, gmm_stream *stream, Handle **held) {
  *held = NULL;
  if (object == Py_None) {
    *stream = GMM_STREAM_DEFAULT;
    return 0;
  }
  if (PyObject_TypeCheck(object, &Handle_Type)) {
    *held = handle_enter(object, HANDLE_STREAM);
    if (!*held) return -1;
    *stream = (gmm_stream)(*held)->pointer;
    return 0;
  }
  if (PyLong_Check(object)) {
    *stream = (gmm_stream)PyLong_AsVoidPtr(object);
    return PyErr_Occurred() ? -1 : 0;
  }
  /* A stream of another package. */
  PyObject *number = helper_call(HELPER_AS_STREAM, object);
  if (!number) return -1;
  const int result = number == object ? -1 : handle_stream(number, stream, held);
  if (number == object) PyErr_Format(PyExc_TypeError, "%R is no stream", object);
  Py_DECREF(number);
  return result;
}

/* --- The end ------------------------------------------------------------------------------------------------- */

static int is_memory(const Handle *handle) { return handle->kind >= HANDLE_BLOCK; }

static PyObject *take_held(Handle *handle) {
  PyObject *held;
  GUARD_BEGIN(handle)
  held = handle->held;
  handle->held = NULL;
  GUARD_END()
  return held;
}

/* Holds the stream on which memory goes: `given`, or its own for None. A destroyed stream has finished its work: the
 * default stream replaces it. */
static int hold_stream(Handle *handle, PyObject *given, gmm_stream *stream, Handle **held) {
  *held = NULL;
  *stream = GMM_STREAM_DEFAULT;
  if (!is_memory(handle)) return 0;
  if (given != Py_None) return handle_stream(given, stream, held);
  Memory *memory = (Memory *)handle;
  if (memory->stream) {
    if (handle_try_enter(memory->stream) != ENTERED) return 0;
    Py_INCREF(memory->stream);
    *held = memory->stream;
  }
  *stream = memory->raw_stream;
  return 0;
}

/* The library's end of a handle. A ticket's waits for its operation, a watcher's or lease's for its callback. */
static gmm_result call_end(HandleKind kind, void *pointer, gmm_context *context, gmm_stream stream) {
  switch (kind) {
    case HANDLE_CONTEXT:
      return gmm_context_release((gmm_context *)pointer);
    case HANDLE_HEAP:
      return gmm_heap_destroy((gmm_heap *)pointer);
    case HANDLE_STREAM:
      return gmm_stream_destroy(context, (gmm_stream)pointer);
    case HANDLE_EVENT:
      return gmm_event_destroy((gmm_event *)pointer);
    case HANDLE_TICKET:
      return gmm_ticket_destroy((gmm_ticket *)pointer);
    case HANDLE_WATCHER:
      return gmm_watcher_destroy((gmm_watcher *)pointer);
    case HANDLE_LEASE:
      return gmm_lease_destroy((gmm_lease *)pointer);
    case HANDLE_SNAPSHOT:
      return gmm_snapshot_destroy((gmm_snapshot *)pointer);
    case HANDLE_BLOCK:
      return gmm_free(context, pointer, stream);
    case HANDLE_IMPORT:
      return gmm_ipc_close(context, pointer);
    case HANDLE_PIN:
      return gmm_unpin(context, pointer);
    default: /* the owner of external memory goes with `held` */
      return GMM_OK;
  }
}

/* The caller has closed the handle and holds its context, if that is open. A quick free keeps the GIL, as in
 * allocate.c. */
static gmm_result give_back(Handle *handle, gmm_stream stream) {
  gmm_context *const context = handle->parent ? (gmm_context *)handle->parent->pointer : NULL;
  if (handle->kind == HANDLE_BLOCK && gmm_try_free(context, handle->pointer, stream) == GMM_OK) return GMM_OK;
  PyThreadState *state = gmm_python_leave_gil();
  const gmm_result result = call_end(handle->kind, handle->pointer, context, stream);
  if (handle->kind == HANDLE_TICKET && result >= 0) later_changed();
  gmm_python_take_gil(state);
  return result;
}

typedef struct {
  enum { CLOSE_DONE, CLOSE_IN_USE, CLOSE_RESETTING } outcome;
  State state;       /**< CLOSE_IN_USE: who uses it */
  gmm_result result; /**< CLOSE_DONE */
} Closing;

/* Closes a handle for once: nobody uses or views it, and no other thread closes it too. */
static Closing close_handle(Handle *handle, gmm_stream stream) {
  Closing closing = {CLOSE_DONE, STATE_OPEN, GMM_OK};
  const Entry outer = handle->parent ? enter_one(handle->parent) : ENTERED;
  if (outer == ENTER_RESETTING) {
    closing.outcome = CLOSE_RESETTING;
    return closing;
  }
  if (state_change(&handle->state, &closing.state, 0)) {
    /* The end or the reset of the context has ended it, except for those that hold the library's context. */
    if (outer == ENTERED
            ? !was_reset(handle)
            : handle->kind == HANDLE_TICKET || handle->kind == HANDLE_LEASE || handle->kind == HANDLE_SNAPSHOT)
      closing.result = give_back(handle, stream);
    if (closing.result < 0 && closing.result != GMM_ERROR_FORKED)
      state_add(&handle->state, STATE_OPEN);
    else if (is_memory(handle))
      Py_XDECREF(take_held(handle));
  } else if (closing.state & STATE_OPEN) {
    closing.outcome = CLOSE_IN_USE;
  }
  if (handle->parent && outer == ENTERED) leave_one(handle->parent);
  return closing;
}

static PyObject *raise_in_use(const Handle *handle, const char *verb, State state) {
  if (state_exports(state) == 0)
    return PyErr_Format(PyExc_RuntimeError, "cannot %s the %s: calls on other threads use it; let them end first", verb,
                        kind_names[handle->kind]);
  if (handle->kind == HANDLE_CONTEXT)
    return PyErr_Format(PyExc_BufferError,
                        "cannot %s the context: %zd views of its memory live; release or delete them first", verb,
                        state_exports(state));
  return PyErr_Format(PyExc_BufferError,
                      "cannot free the memory at %p: %zd views of it live; release or delete them first",
                      handle->pointer, state_exports(state));
}

PyObject *handle_close_on(Handle *handle, PyObject *on) {
  if (handle->kind == HANDLE_CONTEXT) later_settle();
  if (!(LOAD(handle->state) & STATE_OPEN)) Py_RETURN_NONE;
  gmm_stream stream;
  Handle *held;
  if (hold_stream(handle, on, &stream, &held) < 0) return NULL;
  const unsigned seen = later_changes();
  const int in_callback = is_memory(handle) && later_frees();
  Closing closing = {CLOSE_RESETTING, STATE_OPEN, GMM_OK};
  if (!in_callback) closing = close_handle(handle, stream);
  /* Another thread gives memory back, after the callback or the reset. The program sees it closed. */
  const int is_later = closing.outcome == CLOSE_RESETTING && (in_callback || handle->kind == HANDLE_BLOCK);
  if (is_later) {
    closing.outcome = CLOSE_DONE;
    if (state_change(&handle->state, &closing.state, 0)) {
      PyObject *number = PyLong_FromVoidPtr((void *)stream);
      PyObject *where = on == Py_None ? on : held ? (PyObject *)held : number;
      if (!number || !later_end(handle, where, in_callback ? NULL : &seen)) {
        state_add(&handle->state, STATE_OPEN);
        PyErr_NoMemory();
      }
      Py_XDECREF(number);
    } else if (closing.state & STATE_OPEN) {
      closing.outcome = CLOSE_IN_USE;
    }
  }
  handle_leave(held);
  if (PyErr_Occurred()) return NULL;
  if (closing.outcome == CLOSE_RESETTING) return handle_raise_entry(handle, ENTER_RESETTING);
  if (closing.outcome == CLOSE_IN_USE) return raise_in_use(handle, "close", closing.state);
  if (closing.result < 0 && (closing.result != GMM_ERROR_FORKED || is_memory(handle)))
    return gmm_python_raise(closing.result);
  Py_RETURN_NONE;
}

void handle_end(Handle *handle, PyObject *on, int is_late) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  gmm_stream stream;
  Handle *held;
  if (hold_stream(handle, on, &stream, &held) < 0) PyErr_Clear(); /* it was destroyed */
  /* On another thread the per-thread stream is another one; the legacy stream is ordered behind them all. */
  if (is_late && stream == GMM_STREAM_PER_THREAD) stream = GMM_STREAM_LEGACY;
  const unsigned seen = later_changes();
  const Closing closing = close_handle(handle, stream);
  handle_leave(held);
  const int failed = closing.outcome == CLOSE_DONE && closing.result < 0 && closing.result != GMM_ERROR_FORKED;
  const int is_lease = handle->kind == HANDLE_LEASE;
  /* A reset is under way, or a ticket of the lease lives: it ends afterwards. */
  const int waits = closing.outcome == CLOSE_RESETTING || (failed && is_lease && closing.result == GMM_ERROR_BUSY);
  const int is_dead = Py_REFCNT(handle) == 0; /* the deallocator's second try */
  const int is_kept = waits && !is_dead && later_end(handle, on, &seen);
  if (!is_kept && !is_dead && (waits || (failed && is_lease))) Py_INCREF(handle); /* the library may still call it */
  if (failed && !is_kept) {
    gmm_python_raise(closing.result);
    PyErr_WriteUnraisable(is_dead ? (PyObject *)Py_TYPE(handle) : (PyObject *)handle);
    if (is_memory(handle)) state_add(&handle->state, (State)0 - STATE_OPEN); /* it is not tried again */
  }
  PyErr_Restore(type, value, trace);
}

/* Ends a handle that the program did not close. Inside a callback it may be the library's own thread that runs this:
 * then another thread does it, and the handle lives on until that. At the interpreter's end it does nothing: the
 * process's end frees memory. */
static void handle_finalize(PyObject *self) {
  Handle *handle = (Handle *)self;
  if (!(LOAD(handle->state) & STATE_OPEN) || gmm_python_is_ending()) return;
  const int must_wait = is_memory(handle) ? later_frees() : later_ends();
  if (!must_wait || !later_end(handle, Py_None, NULL)) handle_end(handle, Py_None, 0);
}

/* --- The begin ------------------------------------------------------------------------------------------------ */

/* Calls arguments[2] with the arguments behind it: a function that makes something. Returns its result, the last part
 * of which is the pointer to what it made. */
static PyObject *make(PyObject *arguments, void **pointer) {
  PyObject *rest = PyTuple_GetSlice(arguments, 3, PyTuple_GET_SIZE(arguments));
  PyObject *made = rest ? PyObject_CallObject(PyTuple_GET_ITEM(arguments, 2), rest) : NULL;
  Py_XDECREF(rest);
  if (!made) return NULL;
  *pointer = PyLong_AsVoidPtr(PyTuple_Check(made) ? PyTuple_GET_ITEM(made, PyTuple_GET_SIZE(made) - 1) : made);
  if (PyErr_Occurred()) Py_CLEAR(made);
  return made;
}

/* _open(kind, context, function, *arguments) -> the function's result
 *
 * Opens the handle with what the function makes. A signal's handler may raise an exception after each call that Python
 * code makes, and nobody would have the result of the call. So the call, and taking what it made, are one step in C. A
 * pin has the address that the function is given. */
static PyObject *handle_open(PyObject *self, PyObject *arguments) {
  Handle *handle = (Handle *)self;
  const Py_ssize_t count = PyTuple_GET_SIZE(arguments);
  PyObject *name = count < 3 ? NULL : PyTuple_GET_ITEM(arguments, 0),
           *parent = count < 3 ? NULL : PyTuple_GET_ITEM(arguments, 1);
  HandleKind kind = HANDLE_NONE;
  for (int i = HANDLE_CONTEXT; name && PyUnicode_Check(name) && i <= HANDLE_EXTERNAL; ++i)
    if (i != HANDLE_BLOCK && PyUnicode_CompareWithASCIIString(name, kind_names[i]) == 0) kind = (HandleKind)i;
  const int is_root = kind == HANDLE_CONTEXT || kind == HANDLE_EXTERNAL;
  if (handle->kind != HANDLE_NONE || kind == HANDLE_NONE || (parent == Py_None) != is_root ||
      (kind > HANDLE_BLOCK && !PyObject_TypeCheck(self, &Memory_Type)) || (kind == HANDLE_PIN && count < 5)) {
    PyErr_SetString(PyExc_ValueError, "this handle cannot be opened so");
    return NULL;
  }
  /* Until the object has what is made: without a GIL another thread may close the context after the function's call. */
  Handle *context = is_root ? NULL : handle_enter(parent, HANDLE_CONTEXT);
  if (!context && !is_root) return NULL;
  void *pointer;
  PyObject *made = make(arguments, &pointer);
  if (made) {
    Py_XINCREF(context);
    handle->parent = context;
    handle->kind = kind;
    handle->pointer = kind == HANDLE_PIN ? PyLong_AsVoidPtr(PyTuple_GET_ITEM(arguments, 4)) : pointer;
    STORE(handle->state, STATE_OPEN); /* from here on others may use it */
  }
  handle_leave(context);
  return made;
}

static PyObject *handle_close(PyObject *self, PyObject *unused) { return handle_close_on((Handle *)self, Py_None); }

static PyObject *handle_enter_block(PyObject *self, PyObject *unused) {
  Py_INCREF(self);
  return self;
}

/* Some classes have a close() of their own, for what is not memory. */
static PyObject *handle_exit_block(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  return is_memory((Handle *)self) ? handle_close_on((Handle *)self, Py_None)
                                   : PyObject_CallMethod(self, "close", NULL);
}

/* gmm_reset(). Calls of other threads that use the context refuse it, and it refuses calls that come during it. */
static PyObject *handle_reset(PyObject *self, PyObject *unused) {
  later_settle();
  Handle *context = handle_enter(self, HANDLE_CONTEXT);
  if (!context) return NULL;
  State state = STATE_OPEN + STATE_USER; /* this call is its only user, and there is no view */
  if (!state_change(&context->state, &state, state + STATE_RESETTING)) {
    raise_in_use(context, "reset", state);
  } else {
    /* Before the GIL is released: no thread uses memory that the reset may have freed. */
    STORE(context->resets, context->resets + 1);
    PyThreadState *thread = gmm_python_leave_gil();
    const gmm_result result = gmm_reset((gmm_context *)context->pointer);
    gmm_python_take_gil(thread);
    /* These results come before anything is freed. After any other failure some memory may be gone, so all of it stays
     * closed. */
    const int refused = result == GMM_ERROR_BUSY || result == GMM_ERROR_CAPTURING || result == GMM_ERROR_FORKED;
    if (refused) STORE(context->resets, context->resets - 1);
    state_add(&context->state, (State)0 - STATE_RESETTING);
    later_changed();
    if (result < 0) gmm_python_raise(result);
  }
  handle_leave(context);
  if (PyErr_Occurred()) return NULL;
  Py_RETURN_NONE;
}

/* --- The type ------------------------------------------------------------------------------------------------- */

/* Classes with an __init__() of their own check its arguments. */
static PyObject *handle_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords) {
  const int is_plain = type->tp_init == PyBaseObject_Type.tp_init;
  if (is_plain && (PyTuple_GET_SIZE(arguments) != 0 || (keywords && PyDict_GET_SIZE(keywords) != 0)))
    return PyErr_Format(PyExc_TypeError, "a %s is made by a method of gmm.Context, such as alloc(), heap() or stream()",
                        type->tp_name);
  return type->tp_alloc(type, 0);
}

static int handle_traverse(PyObject *self, visitproc visit, void *arg) {
  Handle *handle = (Handle *)self;
  Py_VISIT(handle->parent);
  Py_VISIT(handle->held);
  Py_VISIT(handle->oom_handler);
  return 0;
}

static int handle_clear(PyObject *self) {
  Handle *handle = (Handle *)self;
  PyObject *oom_handler;
  GUARD_BEGIN(self)
  oom_handler = handle->oom_handler;
  handle->oom_handler = NULL;
  GUARD_END()
  Py_XDECREF(oom_handler);
  Py_XDECREF(take_held(handle));
  return 0;
}

static void handle_dealloc(PyObject *self) {
  Handle *handle = (Handle *)self;
  if (PyObject_CallFinalizerFromDealloc(self) < 0) return;
  /* The collector must not visit an object without references. */
  PyObject_GC_UnTrack(self);
  if (is_memory(handle)) {
    Memory *memory = (Memory *)self;
    /* The collector finalizes once, and views that prevented the free may have gone since. */
    if ((LOAD(handle->state) & STATE_OPEN) && !gmm_python_is_ending()) handle_end(handle, Py_None, 0);
    Py_CLEAR(memory->stream);
    Py_CLEAR(memory->heap);
  }
  if (handle->weak_references) PyObject_ClearWeakRefs(self);
  handle_clear(self);
  Py_CLEAR(handle->parent);
  Py_TYPE(self)->tp_free(self);
}

static PyObject *get_closed(PyObject *self, void *unused) { return PyBool_FromLong(!handle_is_open((Handle *)self)); }

static PyObject *get_users(PyObject *self, void *unused) {
  return PyLong_FromSsize_t(state_users(LOAD(((Handle *)self)->state)));
}

static PyObject *get_exports(PyObject *self, void *unused) {
  return PyLong_FromSsize_t(state_exports(LOAD(((Handle *)self)->state)));
}

static PyObject *get_pointer(PyObject *self, void *unused) {
  Handle *handle = (Handle *)self;
  return handle_is_open(handle) ? PyLong_FromVoidPtr(handle->pointer) : handle_raise_closed(handle);
}

/* Another thread may close the handle. */
static PyObject *get_held(PyObject *self, void *unused) {
  Handle *handle = (Handle *)self;
  PyObject *held = handle_callable(handle, &handle->held);
  if (held) return held;
  Py_RETURN_NONE;
}

static int set_held(PyObject *self, PyObject *held, void *unused) {
  PyObject *before = take_held((Handle *)self);
  Py_XINCREF(held);
  ((Handle *)self)->held = held;
  Py_XDECREF(before);
  return 0;
}

PyDoc_STRVAR(close_doc,
             "close($self, /)\n--\n\nCloses it; memory goes on the stream of its allocation. A second call does "
             "nothing.");
PyDoc_STRVAR(enter_doc, "__enter__($self, /)\n--\n\n");
PyDoc_STRVAR(exit_doc, "__exit__($self, /, *exception)\n--\n\n");
static PyMethodDef handle_methods[] = {
    {"_open", handle_open, METH_VARARGS, NULL},
    {"_reset", handle_reset, METH_NOARGS, NULL},
    {"close", handle_close, METH_NOARGS, close_doc},
    {"__enter__", handle_enter_block, METH_NOARGS, enter_doc},
    {"__exit__", (PyCFunction)(void (*)(void))handle_exit_block, METH_FASTCALL, exit_doc},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef handle_getters[] = {
    {"closed", get_closed, NULL, "True once it was closed, alone or with its context.", NULL},
    {"handle", get_pointer, NULL, "The library's handle, as a number.", NULL},
    {"_held", get_held, set_held, NULL, NULL},
    {"_users", get_users, NULL, NULL, NULL},
    {"_exports", get_exports, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMemberDef handle_members[] = {
    {"context", T_OBJECT, offsetof(Handle, parent), READONLY, "The gmm.Context that it belongs to."},
    {"_oom_handler", T_OBJECT, offsetof(Handle, oom_handler), 0, NULL},
    {NULL, 0, 0, 0, NULL}};

PyTypeObject Handle_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gmm._native.Handle",
    .tp_basicsize = sizeof(Handle),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "A context, heap, stream, event, ticket, watcher, lease or snapshot of the library; the base of Memory.",
    .tp_new = handle_new,
    .tp_dealloc = handle_dealloc,
    .tp_finalize = handle_finalize,
    .tp_traverse = handle_traverse,
    .tp_clear = handle_clear,
    .tp_weaklistoffset = offsetof(Handle, weak_references),
    .tp_methods = handle_methods,
    .tp_getset = handle_getters,
    .tp_members = handle_members,
};
