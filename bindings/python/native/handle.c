/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "native.h"

static const char *const kind_names[] = {"handle", "context", "heap",  "stream",  "event",
                                         "ticket", "watcher", "lease", "snapshot"};

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

int handle_enter_anyway(Handle *handle) {
  if (state_add(&handle->state, STATE_USER) & STATE_OPEN) return 1;
  leave_one(handle);
  return 0;
}

void handle_leave_only(Handle *handle) {
  leave_one(handle);
  if (handle->parent) leave_one(handle->parent);
}

int handle_is_open(const Handle *handle) {
  return (LOAD(handle->state) & STATE_OPEN) && (!handle->parent || (LOAD(handle->parent->state) & STATE_OPEN));
}

PyObject *handle_raise_entry(const Handle *handle, Entry entry) {
  if (entry == ENTER_RESETTING) {
    PyErr_SetString(PyExc_RuntimeError, "the context is being reset by another thread, which no call may run beside");
    return NULL;
  }
  if (handle->parent && !(LOAD(handle->parent->state) & STATE_OPEN)) return gmm_python_raise_closed("context");
  return gmm_python_raise_closed(kind_names[handle->kind]);
}

Handle *handle_enter(PyObject *object, HandleKind kind) {
  if (!PyObject_TypeCheck(object, &Handle_Type)) {
    PyErr_Format(PyExc_TypeError, "expected a gmm %s, got %.100s", kind_names[kind], Py_TYPE(object)->tp_name);
    return NULL;
  }
  Handle *handle = (Handle *)object;
  if (handle->kind != kind && handle->kind != HANDLE_NONE) {
    PyErr_Format(PyExc_TypeError, "expected a gmm %s, got a %s", kind_names[kind], kind_names[handle->kind]);
    return NULL;
  }
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

/* The caller has closed the handle and holds its context, if that is open. */
static gmm_result give_back(Handle *handle) {
  void *const pointer = handle->pointer, *const context = handle->parent ? handle->parent->pointer : NULL;
  gmm_result result = GMM_OK;
  PyThreadState *state = gmm_python_leave_gil();
  switch (handle->kind) {
    case HANDLE_CONTEXT:
      result = gmm_context_release((gmm_context *)pointer);
      break;
    case HANDLE_HEAP:
      result = gmm_heap_destroy((gmm_heap *)pointer);
      break;
    case HANDLE_STREAM:
      result = gmm_stream_destroy((gmm_context *)context, (gmm_stream)pointer);
      break;
    case HANDLE_EVENT:
      result = gmm_event_destroy((gmm_event *)pointer);
      break;
    case HANDLE_TICKET: /* waits for the end of its operation */
      result = gmm_ticket_destroy((gmm_ticket *)pointer);
      if (result >= 0) later_changed();
      break;
    case HANDLE_WATCHER: /* waits for its callback */
      result = gmm_watcher_destroy((gmm_watcher *)pointer);
      break;
    case HANDLE_LEASE: /* waits for its callback */
      result = gmm_lease_destroy((gmm_lease *)pointer);
      break;
    case HANDLE_SNAPSHOT:
      result = gmm_snapshot_destroy((gmm_snapshot *)pointer);
      break;
    case HANDLE_NONE:
      break;
  }
  gmm_python_take_gil(state);
  return result;
}

typedef struct {
  enum { CLOSE_DONE, CLOSE_IN_USE, CLOSE_RESETTING } outcome;
  State state;       /**< CLOSE_IN_USE: who uses it */
  gmm_result result; /**< CLOSE_DONE */
} Closing;

/* Closes a handle for once: nobody uses it, and no other thread closes it too. */
static Closing close_handle(Handle *handle) {
  Closing closing = {CLOSE_DONE, STATE_OPEN, GMM_OK};
  const Entry outer = handle->parent ? enter_one(handle->parent) : ENTERED;
  if (outer == ENTER_RESETTING) {
    closing.outcome = CLOSE_RESETTING;
    return closing;
  }
  if (state_change(&handle->state, &closing.state, 0)) {
    /* The end of the context has ended it, except for those that hold the library's context. */
    if (outer == ENTERED || handle->kind == HANDLE_TICKET || handle->kind == HANDLE_LEASE ||
        handle->kind == HANDLE_SNAPSHOT)
      closing.result = give_back(handle);
    if (closing.result < 0 && closing.result != GMM_ERROR_FORKED) state_add(&handle->state, STATE_OPEN);
  } else if (closing.state & STATE_OPEN) {
    closing.outcome = CLOSE_IN_USE;
  }
  if (handle->parent && outer == ENTERED) leave_one(handle->parent);
  return closing;
}

/* The pointer that a function of this module made: its result, or the last of its results. */
static int made_pointer(PyObject *made, void **pointer) {
  PyObject *number = PyTuple_Check(made) ? PyTuple_GET_ITEM(made, PyTuple_GET_SIZE(made) - 1) : made;
  *pointer = PyLong_AsVoidPtr(number);
  if (*pointer || PyErr_Occurred()) return PyErr_Occurred() ? -1 : 0;
  PyErr_SetString(PyExc_ValueError, "the call has made nothing");
  return -1;
}

PyObject *native_make(PyObject *arguments, Py_ssize_t skipped, void **pointer) {
  PyObject *rest = PyTuple_GetSlice(arguments, skipped + 1, PyTuple_GET_SIZE(arguments));
  PyObject *made = rest ? PyObject_CallObject(PyTuple_GET_ITEM(arguments, skipped), rest) : NULL;
  Py_XDECREF(rest);
  if (!made || !pointer || made_pointer(made, pointer) == 0) return made;
  Py_DECREF(made);
  return NULL;
}

PyObject *native_hand_over(PyObject *module, PyObject *arguments) {
  (void)module;
  if (PyTuple_GET_SIZE(arguments) < 3)
    return PyErr_Format(PyExc_TypeError, "hand_over(take, give_back, function, ...)");
  void *pointer;
  PyObject *made = native_make(arguments, 2, &pointer);
  if (!made) return NULL;
  Py_DECREF(made);
  PyObject *address = PyLong_FromVoidPtr(pointer);
  if (!address) return NULL;
  PyObject *taken = PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(arguments, 0), address, NULL);
  if (!taken) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *given = PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(arguments, 1), address, NULL);
    if (!given) PyErr_WriteUnraisable(PyTuple_GET_ITEM(arguments, 1));
    Py_XDECREF(given);
    PyErr_Restore(type, value, trace);
  }
  Py_DECREF(address);
  return taken;
}

/* _open(kind, parent, function, *arguments): opens the handle with what the function of this module makes */
static PyObject *handle_open(PyObject *self, PyObject *arguments) {
  Handle *handle = (Handle *)self;
  const Py_ssize_t count = PyTuple_GET_SIZE(arguments);
  const long kind = count < 3 ? HANDLE_NONE : PyLong_AsLong(PyTuple_GET_ITEM(arguments, 0));
  PyObject *parent = count < 3 ? Py_None : PyTuple_GET_ITEM(arguments, 1);
  if (PyErr_Occurred()) return NULL;
  if (handle->kind != HANDLE_NONE || kind < HANDLE_CONTEXT || kind > HANDLE_SNAPSHOT ||
      (parent != Py_None) != (kind != HANDLE_CONTEXT) ||
      (parent != Py_None && !PyObject_TypeCheck(parent, &Handle_Type))) {
    PyErr_SetString(PyExc_ValueError, "this handle cannot be opened so");
    return NULL;
  }
  void *pointer;
  PyObject *made = native_make(arguments, 2, &pointer);
  if (!made) return NULL;
  Py_DECREF(made);
  if (parent != Py_None) {
    Py_INCREF(parent);
    handle->parent = (Handle *)parent;
  }
  handle->kind = (HandleKind)kind;
  handle->pointer = pointer;
  STORE(handle->state, STATE_OPEN); /* from here on others may use it */
  Py_RETURN_NONE;
}

static PyObject *handle_close(PyObject *self, PyObject *unused) {
  (void)unused;
  Handle *handle = (Handle *)self;
  if (handle->kind == HANDLE_CONTEXT) later_settle();
  const Closing closing = close_handle(handle);
  if (closing.outcome == CLOSE_RESETTING) return handle_raise_entry(handle, ENTER_RESETTING);
  if (closing.outcome == CLOSE_IN_USE && state_exports(closing.state) > 0)
    return PyErr_Format(PyExc_BufferError,
                        "cannot close the context: %zd views of its memory live; release or delete them first",
                        state_exports(closing.state));
  if (closing.outcome == CLOSE_IN_USE)
    return PyErr_Format(PyExc_RuntimeError,
                        "cannot close the %s: %zd calls on other threads use it; let them end first",
                        kind_names[handle->kind], state_users(closing.state));
  if (closing.result < 0 && closing.result != GMM_ERROR_FORKED) return gmm_python_raise(closing.result);
  Py_RETURN_NONE;
}

/* Ends a handle that the program did not close. Inside a callback it may be the library's own thread that runs this:
 * then another thread does it, and the handle lives on until that. At the interpreter's end it does nothing: the
 * process's end frees memory. */
static void handle_finalize(PyObject *self) {
  Handle *handle = (Handle *)self;
  if (!(LOAD(handle->state) & STATE_OPEN) || gmm_python_is_ending()) return;
  if (!later_ends() || !later_close(handle)) handle_end(handle);
}

void handle_end(Handle *handle) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  const unsigned seen = later_changes();
  const Closing closing = close_handle(handle);
  const int failed = closing.outcome == CLOSE_DONE && closing.result < 0 && closing.result != GMM_ERROR_FORKED;
  const int is_lease = handle->kind == HANDLE_LEASE;
  /* A reset is under way, or a ticket of the lease lives: it ends afterwards. */
  const int waits = closing.outcome == CLOSE_RESETTING || (failed && is_lease && closing.result == GMM_ERROR_BUSY);
  const int is_kept = waits && later_wait(handle, seen);
  if (!is_kept && (waits || (failed && is_lease))) Py_INCREF(handle); /* the library goes on and may call it */
  if (failed && !is_kept) {
    gmm_python_raise(closing.result);
    PyErr_WriteUnraisable((PyObject *)handle);
  }
  PyErr_Restore(type, value, trace);
}

/* gmm_reset(). Calls of other threads that use the context refuse it, and it refuses calls that come during it. */
static PyObject *handle_reset(PyObject *self, PyObject *unused) {
  (void)unused;
  later_settle();
  Handle *context = handle_enter(self, HANDLE_CONTEXT);
  if (!context) return NULL;
  PyObject *done = NULL;
  State state = STATE_OPEN + STATE_USER; /* this call is its only user, and there is no view */
  if (!state_change(&context->state, &state, state + STATE_RESETTING)) {
    if (state_exports(state) > 0)
      PyErr_Format(PyExc_BufferError,
                   "cannot reset: %zd views of the context's memory live; release or delete them first",
                   state_exports(state));
    else
      PyErr_SetString(PyExc_RuntimeError, "cannot reset: calls on other threads use the context; let them end first");
  } else {
    /* Before the GIL is released: no thread uses memory that the reset may have freed. */
    STORE(context->resets, context->resets + 1);
    PyThreadState *state = gmm_python_leave_gil();
    const gmm_result result = gmm_reset((gmm_context *)context->pointer);
    gmm_python_take_gil(state);
    /* These results come before anything is freed. After any other failure some memory may be gone, so all of it stays
     * closed. */
    const int refused = result == GMM_ERROR_BUSY || result == GMM_ERROR_CAPTURING || result == GMM_ERROR_FORKED;
    if (refused) STORE(context->resets, context->resets - 1);
    state_add(&context->state, (State)0 - STATE_RESETTING);
    later_changed();
    if (result < 0) gmm_python_raise(result);
    if (!PyErr_Occurred()) {
      Py_INCREF(Py_None);
      done = Py_None;
    }
  }
  handle_leave(context);
  return done;
}

static int handle_traverse(PyObject *self, visitproc visit, void *arg) {
  Handle *handle = (Handle *)self;
  Py_VISIT(handle->parent);
  Py_VISIT(handle->log);
  Py_VISIT(handle->oom_handler);
  Py_VISIT(handle->watch);
  return 0;
}

static int handle_clear(PyObject *self) {
  Handle *handle = (Handle *)self;
  PyObject *log, *oom_handler, *watch;
  GUARD_BEGIN(self)
  log = handle->log;
  oom_handler = handle->oom_handler;
  watch = handle->watch;
  handle->log = NULL;
  handle->oom_handler = NULL;
  handle->watch = NULL;
  GUARD_END()
  Py_XDECREF(log);
  Py_XDECREF(oom_handler);
  Py_XDECREF(watch);
  return 0;
}

static void handle_dealloc(PyObject *self) {
  Handle *handle = (Handle *)self;
  if (PyObject_CallFinalizerFromDealloc(self) < 0) return;
  PyObject_GC_UnTrack(self);
  if (handle->weak_references) PyObject_ClearWeakRefs(self);
  handle_clear(self);
  Py_CLEAR(handle->parent);
  Py_TYPE(self)->tp_free(self);
}

static PyObject *handle_get_closed(PyObject *self, void *unused) {
  (void)unused;
  return PyBool_FromLong(!handle_is_open((Handle *)self));
}

static PyObject *handle_get_users(PyObject *self, void *unused) {
  (void)unused;
  return PyLong_FromSsize_t(state_users(LOAD(((Handle *)self)->state)));
}

static PyObject *handle_get_exports(PyObject *self, void *unused) {
  (void)unused;
  return PyLong_FromSsize_t(state_exports(LOAD(((Handle *)self)->state)));
}

static PyObject *handle_get_handle(PyObject *self, void *unused) {
  (void)unused;
  Handle *handle = (Handle *)self;
  if (!handle_is_open(handle)) return gmm_python_raise_closed(kind_names[handle->kind]);
  return PyLong_FromVoidPtr(handle->pointer);
}

static PyMethodDef handle_methods[] = {{"_open", handle_open, METH_VARARGS, NULL},
                                       {"_close", handle_close, METH_NOARGS, NULL},
                                       {"_reset", handle_reset, METH_NOARGS, NULL},
                                       {NULL, NULL, 0, NULL}};

static PyGetSetDef handle_getters[] = {{"closed", handle_get_closed, NULL, "True once it was closed.", NULL},
                                       {"handle", handle_get_handle, NULL, "The library's handle, as a number.", NULL},
                                       {"_users", handle_get_users, NULL, NULL, NULL},
                                       {"_exports", handle_get_exports, NULL, NULL, NULL},
                                       {NULL, NULL, NULL, NULL, NULL}};

static PyMemberDef handle_members[] = {{"_log", T_OBJECT, offsetof(Handle, log), 0, NULL},
                                       {"_oom_handler", T_OBJECT, offsetof(Handle, oom_handler), 0, NULL},
                                       {"_watch", T_OBJECT, offsetof(Handle, watch), 0, NULL},
                                       {NULL, 0, 0, 0, NULL}};

PyTypeObject Handle_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gmm._native.Handle",
    .tp_basicsize = sizeof(Handle),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "A context, heap, stream, event, ticket, watcher, lease or snapshot of the library.",
    .tp_new = PyType_GenericNew,
    .tp_dealloc = handle_dealloc,
    .tp_finalize = handle_finalize,
    .tp_traverse = handle_traverse,
    .tp_clear = handle_clear,
    .tp_weaklistoffset = offsetof(Handle, weak_references),
    .tp_methods = handle_methods,
    .tp_getset = handle_getters,
    .tp_members = handle_members,
};
