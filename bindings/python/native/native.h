/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file native.h
 * The module beside the functions that SWIG wraps (native.i): handles and memory as Python objects. They count their
 * users, so that no call and no view outlives its memory. The GIL guards every field of every object, or the functions
 * below in a Python without one; fields that these do not guard are set before the object is open, and stay.
 */
#ifndef GMM_PYTHON_NATIVE_H
#define GMM_PYTHON_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
/* Python.h comes first. */
#include <gmm/gmm.h>
#include <structmember.h>

/* Guards of the fields of the module's objects: the GIL, or atomic words and critical sections in a Python without.
 *
 * A state is one word that holds whether an object is open, who uses it and which views it has. So closing is one
 * compare-and-swap, and nobody comes in between. With a GIL these functions are plain loads and stores. */

typedef uint64_t State;
#define STATE_USER ((State)1)            /* bits 0 to 30: calls that use it */
#define STATE_EXPORT ((State)1 << 31)    /* bits 31 to 61: live views */
#define STATE_OPEN ((State)1 << 62)      /* 0 in a new object */
#define STATE_RESETTING ((State)1 << 63) /* a context during gmm_reset() */

static inline Py_ssize_t state_users(State state) { return (Py_ssize_t)(state & (STATE_EXPORT - 1)); }
static inline Py_ssize_t state_exports(State state) { return (Py_ssize_t)((state & (STATE_OPEN - 1)) >> 31); }

#ifdef Py_GIL_DISABLED
#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define STORE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELEASE)
#else
#define LOAD(place) (place)
#define STORE(place, value) ((place) = (value))
#endif
#ifndef Py_BEGIN_CRITICAL_SECTION /* before Python 3.13 */
#define Py_BEGIN_CRITICAL_SECTION(object) {
#define Py_END_CRITICAL_SECTION() }
#endif

/** Adds to a state and returns what it was. */
static inline State state_add(State *state, State change) {
#ifdef Py_GIL_DISABLED
  return __atomic_fetch_add(state, change, __ATOMIC_SEQ_CST);
#else
  *state += change;
  return *state - change;
#endif
}
/** Changes a state that is `*expected`; false, with the state in *expected, when it is another. */
static inline int state_change(State *state, State *expected, State wanted) {
#ifdef Py_GIL_DISABLED
  return __atomic_compare_exchange_n(state, expected, wanted, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
#else
  if (*state == *expected) {
    *state = wanted;
    return 1;
  }
  *expected = *state;
  return 0;
#endif
}

/* calls.c */

/**
 * Raises the exception of a failed result, with this thread's message. An exception that a callback raised stays.
 * Returns NULL.
 */
PyObject *gmm_python_raise(gmm_result result);
/** Raises gmm.ClosedError. Returns NULL. */
PyObject *gmm_python_raise_closed(const char *what);
/** Reads a text, which lives as long as its object, or None. 0, or -1 with an exception. */
int text_read(PyObject *object, const char **text);
/** True from the interpreter's end on: then nothing may call the library or Python. */
int gmm_python_is_ending(void);

/** Around a call of the library: releases the GIL and notes that this thread comes from Python. */
PyThreadState *gmm_python_leave_gil(void);
void gmm_python_take_gil(PyThreadState *state);
/** True on a thread that calls the library from Python code: a callback's exception can reach that code. */
int gmm_python_thread_is_inside(void);

/* handle.c: contexts and what they own, memory too; begin, end, and the counts of users and views */

/** The kinds of objects behind a handle. From HANDLE_BLOCK on it is a Memory. */
typedef enum {
  HANDLE_NONE,
  HANDLE_CONTEXT,
  HANDLE_HEAP,
  HANDLE_STREAM,
  HANDLE_EVENT,
  HANDLE_TICKET,
  HANDLE_WATCHER,
  HANDLE_LEASE,
  HANDLE_SNAPSHOT,
  HANDLE_BLOCK,
  HANDLE_IMPORT,
  HANDLE_PIN,
  HANDLE_EXTERNAL /**< another package's memory, of no context */
} HandleKind;

typedef struct Handle {
  PyObject ob_base; /* PyObject_HEAD */
  HandleKind kind;
  State state;   /**< open; users; of memory and contexts: live views; of a context: whether it is being reset */
  void *pointer; /**< of memory: its address; stays when the handle is closed */
  struct Handle *parent; /**< the context; NULL: it is one, or external memory */
  Py_ssize_t resets; /**< context: how many resets have ended earlier blocks; block: the context's, when it was made */
  /** The callable of a log, watcher or lease; a block's heap; what keeps pinned or external memory; an import's
   * handle. */
  PyObject *held;
  PyObject *oom_handler;
  PyObject *weak_references;
  struct Handle *next_late; /**< in the queue of handles that another thread ends */
  int late;                 /**< how it waits there; 0: it does not */
  /* Of memory alone: */
  Py_ssize_t nbytes;
  PyObject *stream; /**< the gmm.Stream that the block is freed on, or NULL */
  gmm_stream raw_stream;
  uint64_t thread;      /**< that named the stream */
  char is_out_of_reach; /**< external memory that the host does not reach */
} Handle;

extern PyTypeObject Handle_Type;

/** Holds an open handle of that kind until handle_leave(). NULL with an exception when `object` is none. */
Handle *handle_enter(PyObject *object, HandleKind kind);
void handle_leave(Handle *handle);
/** The number of this thread, which no other has. */
uint64_t handle_thread(void);

/** A new reference to what a handle holds at a place; NULL: nothing, or None. Another thread may replace it. */
PyObject *handle_held(Handle *handle, PyObject **place);
/** Whether a handle is open, and so is its context, and no reset has ended it. */
int handle_is_open(const Handle *handle);
/**
 * Reads a stream argument: None, a number, or an open stream. The caller passes `held` to handle_leave(). 0, or -1 with
 * an exception.
 */
int handle_stream(PyObject *object, gmm_stream *stream, Handle **held);

/* Memory: a handle with a size and the buffer protocol, for gmm.Buffer, gmm.Pin and other packages' memory. */

extern PyTypeObject Memory_Type;

/** Raises where the memory may not be used: 0, or -1. */
int memory_check_open(const Handle *memory);
/** 0 when the host may use the address now, 1 when it may only read, or -1 with BufferError. */
int memory_check_host_access(const Handle *memory);
/** Counts views. Memory with views cannot be freed. */
int memory_add_export(Handle *memory);
void memory_drop_export(Handle *memory);
/** Reads an address argument: None, a number, or open memory. 0, or -1 with an exception. */
int memory_address(PyObject *object, void **address);

/* view.c: memory with a layout */

enum { VIEW_MAX_DIMENSIONS = 64 };
extern PyTypeObject View_Type;
/** The address of a view's first element, while its memory is open. 0, or -1 with an exception. */
int view_address(PyObject *view, void **address);
extern PyMethodDef view_functions[];

/* handle.c: the ends that may not happen inside a callback */

/** Around a callback, in which nothing may end that waits for it. frees: memory may not be freed either. */
void later_enter(int frees);
void later_leave(int frees);
/** Waits for the ends that callbacks of this thread's call have left to another thread. */
void later_settle_owed(void);
/** In a forked child, which has one thread: forgets what others were to do. */
void later_after_fork(void);

/* allocate.c: the shortest way from Python to memory */

/** Adds alloc(), and the same as methods, which the package puts into its classes. 0, or -1 with an exception. */
int allocate_init(PyObject *module);

/* calls.c: functions and classes that are written in Python */

enum {
  HELPER_AS_STREAM,
  HELPER_TAG_NUMBER,
  HELPER_DEFAULT_CONTEXT,
  HELPER_KIND,
  HELPER_EXCEPTION, /**< (code, name, message, native_code, closed) -> exception */
  HELPER_BUFFER,    /**< the class gmm.Buffer */
  HELPER_COUNT
};
/** The package's object of that number, a borrowed reference. NULL with an exception: the package is not there. */
PyObject *helper_of(int helper);
PyObject *helper_call(int helper, void *first, void *second);
/** Adds a method of a type as a name of the module, which the package puts into its class. 0, or -1. */
int native_add_method(PyObject *module, const char *name, PyTypeObject *type, PyMethodDef *def);

/* callbacks.c: what the library calls; `user` is the context's Handle, or the callable itself */
void callback_log(void *user, gmm_log_level level, const char *message);
int32_t callback_oom(void *user, const gmm_oom_info *info);
int32_t callback_watch(void *user, const gmm_watch_info *info);
int32_t callback_lease_ask(void *user, const gmm_lease_ask *ask);
int32_t callback_write(void *user, const char *text, uint64_t size);
void callback_stream(void *user);
/** Takes the GIL on a thread of the library; false at the interpreter's end. */
int callback_enter(PyGILState_STATE *gil);
void callback_leave(PyGILState_STATE gil);
void callback_frames(gmm_frame_fn add, void *to);
int32_t callback_progress(void *user, uint64_t done, uint64_t total);
extern PyMethodDef callback_functions[];

int native_init(PyObject *module);

#endif
