/* SPDX-License-Identifier: Apache-2.0 */
#include <pthread.h>
#include <stddef.h>
#include <time.h>

#include "native.h"

/* For messages, and for _open(). */
static const char *const kind_names[] = {"handle",          "context", "heap",           "stream",   "event",
                                         "ticket",          "watcher", "lease",          "snapshot", "buffer",
                                         "imported buffer", "pin",     "external memory"};

/* --- Users ---------------------------------------------------------------------------------------------------- */

typedef enum { ENTERED, ENTER_CLOSED, ENTER_RESETTING } Entry;

/* The order of the entries: the context first, so that it cannot close between the two. */
static Entry enter_one(Handle *handle) {
  const State before = state_add(&handle->state, STATE_USER);
  if (__builtin_expect((before & (STATE_OPEN | STATE_RESETTING)) == STATE_OPEN, 1)) return ENTERED;
  state_add(&handle->state, (State)0 - STATE_USER);
  return before & STATE_OPEN ? ENTER_RESETTING : ENTER_CLOSED;
}

static void leave_one(Handle *handle) { state_add(&handle->state, (State)0 - STATE_USER); }

/* handle_enter() without a reference and an exception: for finalizers, whose object may be without references. */
static Entry try_enter(Handle *handle) {
  const Entry outer = handle->parent ? enter_one(handle->parent) : ENTERED;
  if (outer != ENTERED) return outer;
  const Entry inner = enter_one(handle);
  if (inner != ENTERED && handle->parent) leave_one(handle->parent);
  return inner;
}

static void leave(Handle *handle) {
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

/* Raises that it is closed, or its context. Returns NULL. */
static PyObject *raise_closed(const Handle *handle) {
  const int is_orphan = handle->parent && !(LOAD(handle->parent->state) & STATE_OPEN);
  return gmm_python_raise_closed(is_orphan ? "context" : kind_names[handle->kind]);
}

static PyObject *raise_entry(const Handle *handle, Entry entry) {
  if (entry != ENTER_RESETTING) return raise_closed(handle);
  PyErr_SetString(PyExc_RuntimeError, "the context is being reset by another thread, which no call may run beside");
  return NULL;
}

Handle *handle_enter(PyObject *object, HandleKind kind) {
  Handle *handle = PyObject_TypeCheck(object, &Handle_Type) ? (Handle *)object : NULL;
  if (!handle || (handle->kind != kind && handle->kind != HANDLE_NONE))
    return (Handle *)PyErr_Format(PyExc_TypeError, "expected a gmm %s, got %.100s", kind_names[kind],
                                  handle ? kind_names[handle->kind] : Py_TYPE(object)->tp_name);
  if (handle->kind == HANDLE_NONE) return (Handle *)gmm_python_raise_closed(kind_names[kind]);
  const Entry entry = try_enter(handle);
  if (__builtin_expect(entry != ENTERED, 0)) return (Handle *)raise_entry(handle, entry);
  Py_INCREF(handle);
  return handle;
}

void handle_leave(Handle *handle) {
  if (!handle) return;
  leave(handle);
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
  /* A number, or a stream of another package. */
  PyObject *number = PyLong_Check(object) ? NULL : helper_call(HELPER_AS_STREAM, object, NULL);
  if (number || PyLong_Check(object)) *stream = (gmm_stream)PyLong_AsVoidPtr(number ? number : object);
  Py_XDECREF(number);
  return PyErr_Occurred() ? -1 : 0;
}

/* --- Memory -------------------------------------------------------------------------------------------------- */

int memory_check_open(const Handle *memory) {
  if (__builtin_expect(handle_is_open(memory), 1)) return 0;
  (void)raise_closed(memory);
  return -1;
}

int memory_check_host_access(const Handle *memory) {
  if (!memory->parent) { /* another package's: the protocol has told */
    if (!memory->is_out_of_reach) return 0;
    PyErr_SetString(PyExc_BufferError, "the host cannot reach this memory; copy it with numpy() or copy_to()");
    return -1;
  }
  gmm_pointer_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = (uint32_t)sizeof info;
  const gmm_result result = gmm_query((gmm_context *)memory->parent->pointer, memory->pointer, &info);
  if (result < 0)
    gmm_python_raise(result);
  else if (info.state == GMM_STATE_PAUSED || info.state == GMM_STATE_PARTLY_PAUSED)
    PyErr_SetString(PyExc_BufferError, "the memory is paused; resume its tag before reading or writing it");
  else if (!(info.flags & GMM_POINTER_HOST_ACCESSIBLE))
    PyErr_SetString(PyExc_BufferError,
                    "the host cannot reach this memory; copy it with copy_to(), or allocate HOST or MANAGED memory");
  else
    return (info.flags & GMM_POINTER_READ_ONLY) != 0;
  return -1;
}

int memory_add_export(Handle *memory) {
  const Entry entry = try_enter(memory); /* so that it is not closed between the two counts */
  if (entry != ENTERED) {
    raise_entry(memory, entry);
    return -1;
  }
  const int result = memory_check_open(memory);
  if (result == 0) {
    state_add(&memory->state, STATE_EXPORT);
    if (memory->parent) state_add(&memory->parent->state, STATE_EXPORT);
  }
  leave(memory);
  return result;
}

void memory_drop_export(Handle *memory) {
  state_add(&memory->state, (State)0 - STATE_EXPORT);
  if (memory->parent) state_add(&memory->parent->state, (State)0 - STATE_EXPORT);
}

int memory_address(PyObject *object, void **address) {
  if (object == Py_None) {
    *address = NULL;
    return 0;
  }
  if (PyObject_TypeCheck(object, &Memory_Type)) {
    *address = ((Handle *)object)->pointer;
    return memory_check_open((Handle *)object);
  }
  if (PyObject_TypeCheck(object, &View_Type)) return view_address(object, address);
  *address = PyLong_AsVoidPtr(object);
  return PyErr_Occurred() ? -1 : 0;
}

/* --- Late ends ----------------------------------------------------------------------------------------------- */

/* Frees and ends that must not happen inside a callback. A progress callback runs with locks of the library held, and a
 * call of a stream on the thread that the stream's end waits for. A log callback may run on a thread that the end of a
 * context or of a ticket joins. The garbage collector, or the last reference that goes, may still ask for a free there.
 * So a thread of the module carries it out, which lives as long as there is something to do. */

/* How a handle waits in the queue. */
enum {
  LATE = 1,
  LATE_RETRY = 2, /* It is tried again after a millisecond: a lease that a ticket keeps from ending, as both died in one
                   * cycle, or what dies while another thread resets its context. */
  LATE_CLOSED = 4 /* The program sees it closed already. */
};

/* Nobody takes the GIL, or calls Python or the library, with this mutex held. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Handle *queue;   /* the newest comes first */
static int running;     /* the thread lives */
static unsigned rounds; /* how often it has taken the whole queue and tried each handle */

static __thread int no_frees, no_ends; /* callbacks that this thread is in */
static __thread int is_owed;           /* this thread has left something, and its call has not returned */

void later_enter(int frees) {
  no_frees += frees;
  ++no_ends;
}

void later_leave(int frees) {
  no_frees -= frees;
  --no_ends;
}

static void end(Handle *handle);

static void work(void *unused) {
  pthread_mutex_lock(&mutex);
  while (queue) {
    Handle *next = queue;
    queue = NULL;
    pthread_mutex_unlock(&mutex);
    if (next->late & LATE_RETRY) nanosleep(&(struct timespec){0, 1000 * 1000}, NULL);
    PyGILState_STATE gil;
    if (callback_enter(&gil)) { /* else the interpreter ends: the process's end frees the rest */
      while (next) {
        Handle *handle = next;
        next = handle->next_late;
        if (__atomic_exchange_n(&handle->late, 0, __ATOMIC_SEQ_CST) & LATE_CLOSED)
          state_add(&handle->state, STATE_OPEN);
        end(handle);
        Py_DECREF(handle);
      }
      callback_leave(gil);
    }
    pthread_mutex_lock(&mutex);
    ++rounds;
    pthread_cond_broadcast(&changed);
  }
  running = 0;
  pthread_mutex_unlock(&mutex);
}

/* Ends this handle on the thread, which holds it until then. */
static void end_later(Handle *handle, int how) {
  if (__atomic_fetch_or(&handle->late, how, __ATOMIC_SEQ_CST)) return; /* it waits already */
  Py_INCREF(handle);
  is_owed |= !(how & LATE_RETRY);
  pthread_mutex_lock(&mutex);
  handle->next_late = queue;
  queue = handle;
  /* When the thread cannot start, the next handle starts it. */
  if (!running) running = PyThread_start_new_thread(work, NULL) != PYTHREAD_INVALID_THREAD_ID;
  pthread_mutex_unlock(&mutex);
}

/* Waits until all that was left so far has been tried, except inside a callback. */
static void settle(void) {
  if (no_ends) return;
  PyThreadState *state = PyEval_SaveThread();
  pthread_mutex_lock(&mutex);
  for (const unsigned before = rounds; running && rounds - before < 2;) pthread_cond_wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
  PyEval_RestoreThread(state);
}

void later_settle_owed(void) {
  if (__builtin_expect(!is_owed, 1) || no_ends) return;
  is_owed = 0;
  settle();
}

void later_after_fork(void) {
  pthread_mutex_init(&mutex, NULL);
  pthread_cond_init(&changed, NULL);
  queue = NULL;
  running = 0;
}

/* --- The end ------------------------------------------------------------------------------------------------- */

static int is_memory(const Handle *handle) { return handle->kind >= HANDLE_BLOCK; }

PyObject *handle_held(Handle *handle, PyObject **place) {
  PyObject *held;
  Py_BEGIN_CRITICAL_SECTION(handle);
  held = *place == Py_None ? NULL : *place;
  Py_XINCREF(held);
  Py_END_CRITICAL_SECTION();
  return held;
}

/* Puts another object into a place, or NULL. */
static void replace(Handle *handle, PyObject **place, PyObject *object) {
  PyObject *before;
  Py_XINCREF(object);
  Py_BEGIN_CRITICAL_SECTION(handle);
  before = *place;
  *place = object;
  Py_END_CRITICAL_SECTION();
  Py_XDECREF(before);
}

uint64_t handle_thread(void) { return PyThreadState_GetID(PyThreadState_Get()); }

/* Holds the stream on which memory goes: `given`, or its own for None. A destroyed stream has finished its work: the
 * default stream replaces it. Another thread cannot name a thread's own stream: the legacy stream, which is ordered
 * behind them all, replaces it. */
static int hold_stream(Handle *handle, PyObject *given, gmm_stream *stream, Handle **held) {
  *held = NULL;
  *stream = GMM_STREAM_DEFAULT;
  if (!is_memory(handle)) return 0;
  if (given != Py_None) return handle_stream(given, stream, held);
  Handle *own = (Handle *)handle->stream;
  if (own) {
    if (try_enter(own) != ENTERED) return 0;
    Py_INCREF(own);
    *held = own;
  }
  const int is_other = handle->raw_stream == GMM_STREAM_PER_THREAD && handle->thread != handle_thread();
  *stream = is_other ? GMM_STREAM_LEGACY : handle->raw_stream;
  return 0;
}

/* The library's end of a handle. A ticket's waits for its operation, a watcher's or lease's for its callback. */
static gmm_result call_end(const Handle *handle, gmm_context *context, gmm_stream stream) {
  const HandleKind kind = handle->kind;
  void *const pointer = handle->pointer;
  if (kind == HANDLE_CONTEXT) return gmm_context_release(pointer);
  if (kind == HANDLE_HEAP) return gmm_heap_destroy(pointer);
  if (kind == HANDLE_STREAM) return gmm_stream_destroy(context, pointer);
  if (kind == HANDLE_EVENT) return gmm_event_destroy(pointer);
  if (kind == HANDLE_TICKET) return gmm_ticket_destroy(pointer);
  if (kind == HANDLE_WATCHER) return gmm_watcher_destroy(pointer);
  if (kind == HANDLE_LEASE) return gmm_lease_destroy(pointer);
  if (kind == HANDLE_SNAPSHOT) return gmm_snapshot_destroy(pointer);
  if (kind == HANDLE_BLOCK) return gmm_free(context, pointer, stream);
  if (kind == HANDLE_IMPORT) return gmm_ipc_close(context, pointer);
  if (kind == HANDLE_PIN) return gmm_unpin(context, pointer);
  return GMM_OK; /* the owner of external memory goes with `held` */
}

/* The caller has closed the handle and holds its context, if that is open. A quick free keeps the GIL, as in
 * allocate.c. */
static gmm_result give_back(Handle *handle, gmm_stream stream) {
  gmm_context *const context = handle->parent ? handle->parent->pointer : NULL;
  if (handle->kind == HANDLE_BLOCK && gmm_try_free(context, handle->pointer, stream) == GMM_OK) return GMM_OK;
  PyThreadState *state = gmm_python_leave_gil();
  const gmm_result result = call_end(handle, context, stream);
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
      replace(handle, &handle->held, NULL);
  } else if (closing.state & STATE_OPEN) {
    closing.outcome = CLOSE_IN_USE;
  }
  if (handle->parent && outer == ENTERED) leave_one(handle->parent);
  return closing;
}

static PyObject *raise_in_use(const Handle *handle, const char *verb, State state) {
  const char *const what = kind_names[handle->kind];
  if (state_exports(state) == 0)
    return PyErr_Format(PyExc_RuntimeError, "cannot %s the %s: calls on other threads use it; let them end first", verb,
                        what);
  return PyErr_Format(PyExc_BufferError, "cannot %s the %s: %zd views of its memory live; release or delete them first",
                      verb, what, state_exports(state));
}

/* Closes a handle. on: the stream on which memory goes; None: its own. A second call does nothing. */
static PyObject *close_on(Handle *handle, PyObject *on) {
  if (handle->kind == HANDLE_CONTEXT) settle();
  if (!(LOAD(handle->state) & STATE_OPEN)) Py_RETURN_NONE;
  gmm_stream stream;
  Handle *held;
  if (hold_stream(handle, on, &stream, &held) < 0) return NULL;
  const int in_callback = is_memory(handle) && no_frees;
  Closing closing = {CLOSE_RESETTING, STATE_OPEN, GMM_OK};
  if (!in_callback) closing = close_handle(handle, stream);
  /* Another thread gives memory back, after the callback or the reset. The program sees it closed. */
  if (closing.outcome == CLOSE_RESETTING && (in_callback || handle->kind == HANDLE_BLOCK)) {
    closing.outcome = CLOSE_DONE;
    if (state_change(&handle->state, &closing.state, 0)) {
      replace(handle, &handle->stream, (PyObject *)held);
      handle->raw_stream = stream;
      handle->thread = handle_thread();
      end_later(handle, LATE | LATE_CLOSED | (in_callback ? 0 : LATE_RETRY));
    } else if (closing.state & STATE_OPEN) {
      closing.outcome = CLOSE_IN_USE;
    }
  }
  handle_leave(held);
  if (closing.outcome == CLOSE_RESETTING) return raise_entry(handle, ENTER_RESETTING);
  if (closing.outcome == CLOSE_IN_USE) return raise_in_use(handle, "close", closing.state);
  if (closing.result < 0 && (closing.result != GMM_ERROR_FORKED || is_memory(handle)))
    return gmm_python_raise(closing.result);
  Py_RETURN_NONE;
}

/* Ends a handle that the program did not close, and reports a failure. */
static void end(Handle *handle) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  gmm_stream stream;
  Handle *held;
  (void)hold_stream(handle, Py_None, &stream, &held);
  const Closing closing = close_handle(handle, stream);
  handle_leave(held);
  const int failed = closing.outcome == CLOSE_DONE && closing.result < 0 && closing.result != GMM_ERROR_FORKED;
  const int is_lease = handle->kind == HANDLE_LEASE;
  /* A reset is under way, or a ticket of the lease lives: it ends afterwards. */
  const int waits = closing.outcome == CLOSE_RESETTING || (failed && is_lease && closing.result == GMM_ERROR_BUSY);
  const int is_dead = Py_REFCNT(handle) == 0; /* the deallocator's second try */
  if (waits && !is_dead) {
    end_later(handle, LATE | LATE_RETRY);
  } else if (failed) {
    if (is_lease) Py_INCREF(handle); /* the library may still call it */
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
  if (is_memory(handle) ? no_frees : no_ends)
    end_later(handle, LATE);
  else
    end(handle);
}

/* --- The begin ------------------------------------------------------------------------------------------------ */

/* _open(kind, context, function, *arguments) -> the function's result, the last part of which is a pointer
 *
 * Opens the handle with what the function makes. A signal's handler may raise an exception after each call that Python
 * code makes, and nobody would have the result of the call. So the call, and taking what it made, are one step in C. A
 * pin has the address that the function is given. */
static PyObject *handle_open(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  Handle *handle = (Handle *)self;
  PyObject *const name = arguments[0], *const parent = arguments[1];
  HandleKind kind = HANDLE_CONTEXT;
  while (kind < HANDLE_EXTERNAL && PyUnicode_CompareWithASCIIString(name, kind_names[kind]) != 0) ++kind;
  if (handle->kind != HANDLE_NONE)
    return PyErr_Format(PyExc_ValueError, "the %s was opened before", kind_names[handle->kind]);
  /* Until the object has what is made: without a GIL another thread may close the context after the function's call. */
  Handle *context = parent == Py_None ? NULL : handle_enter(parent, HANDLE_CONTEXT);
  if (!context && parent != Py_None) return NULL;
  PyObject *made = PyObject_Vectorcall(arguments[2], arguments + 3, (size_t)count - 3, NULL);
  PyObject *what = made && PyList_Check(made) ? PyList_GET_ITEM(made, PyList_GET_SIZE(made) - 1) : made;
  void *pointer = made ? PyLong_AsVoidPtr(kind == HANDLE_PIN ? arguments[4] : what) : NULL;
  if (PyErr_Occurred()) {
    Py_CLEAR(made);
  } else if (pointer || kind != HANDLE_IMPORT) { /* a claim in place of an import leaves it unopened */
    Py_XINCREF(context);
    handle->parent = context;
    handle->kind = kind;
    handle->pointer = pointer;
    STORE(handle->state, STATE_OPEN); /* from here on others may use it */
  }
  handle_leave(context);
  return made;
}

static PyObject *handle_close(PyObject *self, PyObject *unused) { return close_on((Handle *)self, Py_None); }

static PyObject *handle_enter_block(PyObject *self, PyObject *unused) {
  Py_INCREF(self);
  return self;
}

/* Some classes have a close() of their own, for what is not memory. */
static PyObject *handle_exit_block(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
  return is_memory((Handle *)self) ? close_on((Handle *)self, Py_None) : PyObject_CallMethod(self, "close", NULL);
}

/* gmm_reset(). Calls of other threads that use the context refuse it, and it refuses calls that come during it. */
static PyObject *handle_reset(PyObject *self, PyObject *unused) {
  settle();
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
  Py_VISIT(handle->stream);
  return 0;
}

/* The reference to the context stays, because views that go later are counted there. Memory keeps `held` until it is
 * given back. The callbacks break cycles. */
static int handle_clear(PyObject *self) {
  Handle *handle = (Handle *)self;
  if (is_memory(handle)) return 0;
  replace(handle, &handle->oom_handler, NULL);
  replace(handle, &handle->held, NULL);
  return 0;
}

static void handle_dealloc(PyObject *self) {
  Handle *handle = (Handle *)self;
  if (PyObject_CallFinalizerFromDealloc(self) < 0) return;
  /* The collector must not visit an object without references. */
  PyObject_GC_UnTrack(self);
  /* The collector finalizes once, and views that prevented the free may have gone since. */
  if (is_memory(handle) && (LOAD(handle->state) & STATE_OPEN) && !gmm_python_is_ending()) end(handle);
  if (handle->weak_references) PyObject_ClearWeakRefs(self);
  Py_CLEAR(handle->oom_handler);
  Py_CLEAR(handle->held);
  Py_CLEAR(handle->stream);
  Py_CLEAR(handle->parent);
  Py_TYPE(self)->tp_free(self);
}

static PyObject *get_closed(PyObject *self, void *unused) { return PyBool_FromLong(!handle_is_open((Handle *)self)); }

static PyObject *get_count(PyObject *self, void *of_exports) {
  const State state = LOAD(((Handle *)self)->state);
  return PyLong_FromSsize_t(of_exports ? state_exports(state) : state_users(state));
}

static PyObject *get_pointer(PyObject *self, void *unused) {
  Handle *handle = (Handle *)self;
  return handle_is_open(handle) ? PyLong_FromVoidPtr(handle->pointer) : raise_closed(handle);
}

static PyObject *get_held(PyObject *self, void *unused) {
  PyObject *held = handle_held((Handle *)self, &((Handle *)self)->held);
  if (held) return held;
  Py_RETURN_NONE;
}

static int set_held(PyObject *self, PyObject *held, void *unused) {
  replace((Handle *)self, &((Handle *)self)->held, held);
  return 0;
}

PyDoc_STRVAR(close_doc,
             "close($self, /)\n--\n\nCloses it; memory goes on the stream of its allocation. A second call does "
             "nothing.");
static PyMethodDef handle_methods[] = {
    {"_open", (PyCFunction)(void (*)(void))handle_open, METH_FASTCALL, NULL},
    {"_reset", handle_reset, METH_NOARGS, NULL},
    {"close", handle_close, METH_NOARGS, close_doc},
    {"__enter__", handle_enter_block, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))handle_exit_block, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL}};

static PyGetSetDef handle_getters[] = {
    {"closed", get_closed, NULL, "True once it was closed, alone or with its context.", NULL},
    {"handle", get_pointer, NULL, "The library's handle, as a number.", NULL},
    {"_held", get_held, set_held, NULL, NULL},
    {"_users", get_count, NULL, NULL, NULL},
    {"_exports", get_count, NULL, NULL, (void *)1},
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

/* --- The type of memory -------------------------------------------------------------------------------------- */

static int memory_getbuffer(PyObject *self, Py_buffer *view, int flags) {
  Handle *memory = (Handle *)self;
  view->obj = NULL;
  if (memory_add_export(memory) < 0) return -1;
  const int access = memory_check_host_access(memory);
  if (access >= 0 && PyBuffer_FillInfo(view, self, memory->pointer, memory->nbytes, access, flags) == 0) return 0;
  memory_drop_export(memory);
  return -1;
}

static void memory_releasebuffer(PyObject *self, Py_buffer *view) { memory_drop_export((Handle *)self); }

static Py_ssize_t memory_length(PyObject *self) { return ((Handle *)self)->nbytes; }

static PyObject *memory_get_stream(PyObject *self, void *unused) {
  Handle *memory = (Handle *)self;
  PyObject *stream = handle_held(memory, &memory->stream);
  if (stream && handle_is_open((Handle *)stream)) return stream;
  Py_XDECREF(stream);
  return PyLong_FromVoidPtr((void *)(stream ? GMM_STREAM_DEFAULT : memory->raw_stream));
}

static PyObject *memory_free(PyObject *self, PyObject *const *arguments, Py_ssize_t count, PyObject *names) {
  const Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
  if (count + named > 1 || (named == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, 0), "stream") != 0))
    return PyErr_Format(PyExc_TypeError, "free() takes one argument, stream");
  return close_on((Handle *)self, count + named == 1 ? arguments[0] : Py_None);
}

PyDoc_STRVAR(
    free_doc,
    "free($self, /, stream=None)\n--\n\n"
    "Gives the memory back in the order of a stream: that of the allocation when None. Freeing twice does nothing.\n\n"
    "BufferError while a view of it lives.");

static PyMethodDef memory_methods[] = {
    {"free", (PyCFunction)(void (*)(void))memory_free, METH_FASTCALL | METH_KEYWORDS, free_doc}, {NULL, NULL, 0, NULL}};

static PyGetSetDef memory_getters[] = {
    {"address", get_pointer, NULL, "The address of the memory, as a number.", NULL},
    {"stream", memory_get_stream, NULL, "The stream that the memory is freed on: a gmm.Stream, or a number.", NULL},
    {NULL, NULL, NULL, NULL, NULL}};

static PyMemberDef memory_members[] = {
    {"nbytes", T_PYSSIZET, offsetof(Handle, nbytes), READONLY, "The requested size in bytes."},
    {"_nbytes", T_PYSSIZET, offsetof(Handle, nbytes), 0, NULL},
    {"_is_out_of_reach", T_BOOL, offsetof(Handle, is_out_of_reach), 0, NULL},
    {NULL, 0, 0, 0, NULL}};

static PyBufferProcs memory_buffer = {memory_getbuffer, memory_releasebuffer};
static PySequenceMethods memory_sequence = {.sq_length = memory_length};

PyTypeObject Memory_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "gmm._native.Memory",
    .tp_base = &Handle_Type,
    .tp_basicsize = sizeof(Handle),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, /* it inherits the collector's functions */
    .tp_doc = "A block of memory of the library.",
    .tp_methods = memory_methods,
    .tp_getset = memory_getters,
    .tp_members = memory_members,
    .tp_as_buffer = &memory_buffer,
    .tp_as_sequence = &memory_sequence,
};
