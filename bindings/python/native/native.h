/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file native.h
 * The module beside the functions that SWIG wraps (native.i): handles and memory as Python objects. They count their
 * users, so that no call and no view outlives its memory. The GIL guards every field of every object, or guard.h in a
 * Python without one; fields that it does not guard are set before the object is open, and stay.
 */
#ifndef GMM_PYTHON_NATIVE_H
#define GMM_PYTHON_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
/* Python.h comes first. */
#include <gmm/gmm.h>
#include <structmember.h>

#include "guard.h"

/* calls.c */

/**
 * Raises the exception of a failed result, with this thread's message. An exception that a callback raised stays.
 * Returns NULL.
 */
PyObject *gmm_python_raise(gmm_result result);
/** Raises gmm.ClosedError. Returns NULL. */
PyObject *gmm_python_raise_closed(const char *what);
/** Joins a call's result and its outputs: (result, output, ...). Steals both. */
PyObject *gmm_python_append(PyObject *result, PyObject *output);
/** True from the interpreter's end on: then nothing may call the library or Python. */
int gmm_python_is_ending(void);

/** Around a call of the library: releases the GIL and notes that this thread comes from Python. */
PyThreadState *gmm_python_leave_gil(void);
void gmm_python_take_gil(PyThreadState *state);
/** True on a thread that calls the library from Python code: a callback's exception can reach that code. */
int gmm_python_thread_is_inside(void);

/* handle.c: contexts and what they own; begin, end, and the counts of users and views */

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
  PyObject
      *held; /**< the callable of a log, watcher or lease; what keeps pinned or external memory; an import's handle */
  PyObject *oom_handler;
  PyObject *weak_references;
} Handle;

extern PyTypeObject Handle_Type;

/** Holds an open handle of that kind until handle_leave(). NULL with an exception when `object` is none. */
Handle *handle_enter(PyObject *object, HandleKind kind);
void handle_leave(Handle *handle);

typedef enum { ENTERED, ENTER_CLOSED, ENTER_RESETTING } Entry;
/** handle_enter() without a reference and an exception: for finalizers, whose object may be without references. */
Entry handle_try_enter(Handle *handle);
void handle_leave_only(Handle *handle);
/** Raises what handle_try_enter() found. Returns NULL. */
PyObject *handle_raise_entry(const Handle *handle, Entry entry);
/** Raises that it is closed, or its context. Returns NULL. */
PyObject *handle_raise_closed(const Handle *handle);
/**
 * Closes a handle. on: the stream on which memory goes; None: its own. None, or NULL with an exception; a second call
 * does nothing.
 */
PyObject *handle_close_on(Handle *handle, PyObject *on);
/** Ends a handle that the program did not close, and reports a failure. is_late: on the thread of later.c. */
void handle_end(Handle *handle, PyObject *on, int is_late);
/** A new reference to a callable that a handle holds; NULL: none. Another thread may replace it. */
PyObject *handle_callable(Handle *handle, PyObject **place);
/** Whether a handle is open, and so is its context, and no reset has ended it. */
int handle_is_open(const Handle *handle);
/**
 * Reads a stream argument: None, a number, or an open stream. The caller passes `held` to handle_leave(). 0, or -1 with
 * an exception.
 */
int handle_stream(PyObject *object, gmm_stream *stream, Handle **held);

/* fields.c: options */

/** A field of options. kind: 'I', 'i' and 'Q' numbers, 'P' an address, 's' text, 'L' a list, 'C' a callback. */
typedef struct {
  const char *name;
  char kind;
  uint16_t at, count_at;
  const struct StructType *element; /**< of a list of structs */
  void (*callback)(void);
} StructField;
typedef struct StructType {
  uint32_t size;
  int has_size; /**< struct_size is its first field */
  const StructField *fields;
} StructType;
/**
 * Reads options, a dictionary or None. The texts live as long as it; the caller frees *list with PyMem_Free(), after a
 * failure too. 0, or -1 with an exception.
 */
int options_read(PyObject *given, const StructType *type, void *to, void **list);

/** Reads a text without null characters, which lives as long as its object. 0, or -1 with an exception. */
int text_read(PyObject *object, const char **text);

/* memory.c: a handle with a size and the buffer protocol, for gmm.Buffer and gmm.Pin */

typedef struct Memory {
  Handle base;
  Py_ssize_t nbytes;
  Handle *heap;   /**< the heap of the block, or NULL */
  Handle *stream; /**< the gmm.Stream that the block is freed on, or NULL */
  gmm_stream raw_stream;
  char is_out_of_reach; /**< external memory that the host does not reach */
} Memory;

extern PyTypeObject Memory_Type;

/** Raises where the memory may not be used: 0, or -1. */
int memory_check_open(const Memory *memory);
/** 0 when the host may use the address now, or -1 with BufferError. */
int memory_check_host_access(const Memory *memory);
/** Counts views. Memory with views cannot be freed. */
int memory_add_export(Memory *memory);
void memory_drop_export(Memory *memory);
/** Reads an address argument: None, a number, or open memory. 0, or -1 with an exception. */
int memory_address(PyObject *object, void **address);

/** An empty gmm.Buffer, which the caller fills. */
Memory *buffer_new(void);
/** Adds memory_free, a method that the package puts into gmm.Buffer. 0, or -1 with an exception. */
int memory_init(PyObject *module);

/* view.c: memory with a layout */

enum { VIEW_MAX_DIMENSIONS = 64 };
extern PyTypeObject View_Type;
/** The address of a view's first element, while its memory is open. 0, or -1 with an exception. */
int view_address(PyObject *view, void **address);
PyObject *native_dlpack_import(PyObject *module, PyObject *capsule);

/** view_address(memoryview): the address of its first element, which the memoryview holds. */
PyObject *native_view_address(PyObject *module, PyObject *object);

/* later.c: what may not be given back inside a callback */

/** True on a thread inside a callback that must not free: progress, and a call of a stream. */
int later_frees(void);
/** True there and inside a callback of a log or a watcher: nothing must end that may wait for it. */
int later_ends(void);
/**
 * Ends this handle on another thread, which holds it until then. stream: of handle_end(). seen: NULL: soon; else after
 * the next later_changed(): later_changes() before the try. False when there is no memory for the request.
 */
int later_end(Handle *handle, PyObject *stream, const unsigned *seen);
unsigned later_changes(void);
/** A ticket or a reset has ended. */
void later_changed(void);
/** Waits until all of it is done, except inside a callback. */
void later_settle(void);
/** later_settle() on a thread that has left something to do since it called the library. */
void later_settle_owed(void);
/** Around a callback. */
void later_enter(int frees);
void later_leave(int frees);
/** In a forked child, which has one thread: forgets what others were to do. */
void later_after_fork(void);

/* allocate.c: the shortest way from Python to memory */

/** alloc() in the default context; native_alloc_doc has the arguments. */
PyObject *native_alloc(PyObject *module, PyObject *const *arguments, Py_ssize_t count, PyObject *names);
extern const char native_alloc_doc[];
/** Adds the same functions as methods, which the package puts into its classes. 0, or -1 with an exception. */
int allocate_init(PyObject *module);
/** set_default_context(context): the context of the functions above. None: they ask the package for it. */
PyObject *native_set_default_context(PyObject *module, PyObject *context);
/** default_context(): the default context, which the package opens when there is none. */
PyObject *native_default_context(PyObject *module, PyObject *unused);

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
/** Calls the package's function of that number. */
PyObject *helper_call(int helper, PyObject *argument);
/** set_helpers(object, ...): all of them, in the order of their numbers */
PyObject *native_set_helpers(PyObject *module, PyObject *given);
/** Adds a method of a type as a name of the module, which the package puts into its class. 0, or -1. */
int native_add_method(PyObject *module, const char *name, PyTypeObject *type, PyMethodDef *def);

/* calls.c: numbers */

/** Converter: a uint64_t. OverflowError: the number is below 0 or beyond 64 bits. */
int number_64(PyObject *object, void *place);
/** Converter: a uint32_t. OverflowError: the number is below 0 or beyond 32 bits. */
int number_32(PyObject *object, void *place);
/** Converter: an int32_t. OverflowError: the number is beyond 32 bits. */
int number_i32(PyObject *object, void *place);

/* scope.c */

/** Adds scope_enter and scope_exit, which the package puts into its classes. 0, or -1 with an exception. */
int native_scope_init(PyObject *module);

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
int32_t callback_progress(void *user, uint64_t done, uint64_t total);
/** Makes later callbacks do nothing and waits for those under way. For atexit. */
PyObject *callbacks_end(PyObject *module, PyObject *unused);
/** For the child of a fork, which has none of the threads that were inside. */
PyObject *callbacks_after_fork(PyObject *module, PyObject *unused);

/** Adds the types and functions above to the module. Returns 0, or -1 with an exception. */
int native_init(PyObject *module);

#endif
