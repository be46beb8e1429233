/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file native.h
 * What gmm._native has beside the functions that SWIG wraps: handles and memory as Python objects that count who uses them, so that
 * nothing is given back under somebody's hands.
 *
 * All fields are guarded by the GIL. It is left around every call of the library.
 */
#ifndef GMM_PYTHON_NATIVE_H
#define GMM_PYTHON_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
/* Python.h comes first. */
#include <gmm/gmm.h>
#include <structmember.h>

/* errors.c */

/** Raises the exception for a failed result, with this thread's message. Keeps an exception that a callback left. Returns NULL. */
PyObject *gmm_python_raise(gmm_result result);
/** Takes what makes exceptions: a function (code, name, message, native_code, closed) -> exception. */
PyObject *native_set_exception_factory(PyObject *module, PyObject *factory);
/** Raises gmm.ClosedError. Returns NULL. */
PyObject *gmm_python_raise_closed(const char *what);
/** Joins a call's result and its outputs: (result, output, ...). Steals both. */
PyObject *gmm_python_append(PyObject *result, PyObject *output);
/** True from the interpreter's end on: the library and Python are left alone then. */
int gmm_python_is_ending(void);

/* calls.c: leaving the GIL */

/** Around every call of the library: leaves the GIL and notes that this thread comes from Python. */
PyThreadState *gmm_python_leave_gil(void);
void gmm_python_take_gil(PyThreadState *state);
/** True on a thread that is in the library on behalf of Python code: a callback's exception may travel up then. */
int gmm_python_thread_is_inside(void);

/* handle.c */

typedef enum { HANDLE_NONE, HANDLE_CONTEXT, HANDLE_HEAP, HANDLE_STREAM, HANDLE_EVENT, HANDLE_TICKET } HandleKind;

typedef struct Handle {
  PyObject ob_base; /* what PyObject_HEAD stands for */
  HandleKind kind;
  void *pointer;         /**< NULL: closed, or never opened */
  struct Handle *parent; /**< the context of a heap, stream, event or ticket */
  Py_ssize_t users;      /**< calls that are using it now */
  Py_ssize_t exports;    /**< context: views of its memory that live */
  Py_ssize_t resets;     /**< context: what was allocated before the last reset is gone */
  int resetting;         /**< context: gmm_reset() is under way */
  struct FreedInReset *freed_in_reset;
  PyObject *log;
  PyObject *oom_handler;
  PyObject *weak_references;
} Handle;

extern PyTypeObject Handle_Type;

/** Checks that `object` is an open handle of that kind and holds it open until handle_leave(). NULL with an exception otherwise. */
Handle *handle_enter(PyObject *object, HandleKind kind);
void handle_leave(Handle *handle);
/** A stream argument: None, a number, or an open stream. `held` needs handle_leave(). Returns 0, or -1 with an exception. */
int handle_stream(PyObject *object, gmm_stream *stream, Handle **held);

/* memory.c: blocks */

typedef enum { MEMORY_ALLOCATED, MEMORY_IMPORTED, MEMORY_PINNED } MemoryOrigin;

typedef struct Memory {
  PyObject ob_base; /* what PyObject_HEAD stands for */
  MemoryOrigin origin;
  int open;
  void *address;
  Py_ssize_t nbytes;
  Handle *context;
  Handle *heap;   /**< the heap it came from, or NULL */
  Handle *stream; /**< the gmm.Stream it is freed on, or NULL */
  gmm_stream raw_stream;
  Py_ssize_t resets; /**< the context's count when it was made */
  Py_ssize_t exports;
  PyObject *source; /**< pinned: the view that keeps the caller's memory where it is */
  PyObject *weak_references;
} Memory;

extern PyTypeObject Memory_Type;

/** True while the memory is there to be used. */
int memory_is_open(const Memory *memory);
/** The same with an exception: 0, or -1. */
int memory_check_open(const Memory *memory);
/** 0 when the host may look through its address now, or -1 with BufferError. */
int memory_check_host_access(const Memory *memory);
/** Gives it back on a stream, or on its own (None). 1: done, 0: that had been done before, -1 with an exception. */
int memory_give_back(Memory *memory, PyObject *stream);
void memory_finalize(PyObject *self);
/** For deallocators: finalizes it, and gives back what is still open then. Below 0: the object lives on. */
int memory_end(Memory *memory);
int memory_traverse(PyObject *self, visitproc visit, void *arg);
/** Counts a view in and out: memory with views is not given back. */
int memory_add_export(Memory *memory);
void memory_drop_export(Memory *memory);
/** An address argument: None, a number, or open memory. Returns 0, or -1 with an exception. */
int memory_address(PyObject *object, void **address);

/* reset.c */

/** _reset(): ends what was allocated; with an exception when that is not possible. */
PyObject *handle_reset(PyObject *self, PyObject *unused);
/** Before memory that is not open is let go: a reset that is under way may turn out to leave it. 0, or -1 with an exception. */
int reset_note_free(Memory *memory);

/* buffer.c */

extern PyTypeObject Buffer_Type;
/** A Buffer of nothing, to be filled. */
Memory *buffer_new(void);

/* allocate.c: the shortest way from Python to memory */

/** alloc(size, kind=DEVICE, *, device=0, tag=0, stream=None, alignment=0, dedicated=False, zero=False), in the default context. */
PyObject *native_alloc(PyObject *module, PyObject *const *arguments, Py_ssize_t count, PyObject *names);
/** empty(shape, dtype="float64", kind=DEVICE, *, the same), and zeros(). */
PyObject *native_empty(PyObject *module, PyObject *const *arguments, Py_ssize_t count, PyObject *names);
PyObject *native_zeros(PyObject *module, PyObject *const *arguments, Py_ssize_t count, PyObject *names);
extern const char native_alloc_doc[], native_empty_doc[], native_zeros_doc[];
/** The same as methods of contexts and heaps, for the package to put into its classes. Returns 0, or -1 with an exception. */
int allocate_init(PyObject *module);
/** set_default_context(context): what the functions above allocate from. None: the package is asked for it. */
PyObject *native_set_default_context(PyObject *module, PyObject *context);
/** default_context(): the default context, which the package opens when there is none. */
PyObject *native_default_context(PyObject *module, PyObject *unused);

/* helpers.c: what is written in Python */

enum { HELPER_AS_STREAM, HELPER_TAG_NUMBER, HELPER_DEFAULT_CONTEXT, HELPER_DTYPE_NAME, HELPER_COUNT };
/** Calls the package's function of that number. */
PyObject *helper_call(int helper, PyObject *argument);
PyObject *native_set_helper(PyObject *module, PyObject *arguments);
/** extend(type, namespace): puts methods written in Python into a type of this module. */
PyObject *native_extend(PyObject *module, PyObject *arguments);
/** repr() by the method _describe() that the package has put in. */
PyObject *native_describe(PyObject *self);

/* host_view.c: the caller's own objects as addresses */
extern PyTypeObject HostView_Type;
/** view_address(memoryview): where its first element is; the memoryview is what holds it there. */
PyObject *host_view_address(PyObject *module, PyObject *object);

/* dlpack.c */
PyObject *dlpack_capsule(PyObject *module, PyObject *arguments);

/* callbacks.c: what the library calls; `user` is the context's Handle, or the callable itself */
void callback_log(void *user, gmm_log_level level, const char *message);
int32_t callback_oom(void *user, const gmm_oom_info *info);
int32_t callback_write(void *user, const char *text, uint64_t size);
void callback_stream(void *user);
int32_t callback_progress(void *user, uint64_t done, uint64_t total);
/** From here on callbacks do nothing; waits for those under way. For atexit. */
PyObject *callbacks_end(PyObject *module, PyObject *unused);

/** Adds the types and functions above to the module. Returns 0, or -1 with an exception. */
int native_init(PyObject *module);

#endif
