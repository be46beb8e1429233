/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <time.h>

#include "collect.h"
#include "native.h"

/* When the interpreter ends, Python ends a thread that waits for the GIL at any point. So callbacks count themselves,
 * and the interpreter's end first refuses further ones and then waits for those inside. */
static int is_ended;
static int callbacks_inside;

int callback_enter(PyGILState_STATE *gil) {
  __atomic_add_fetch(&callbacks_inside, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&is_ended, __ATOMIC_SEQ_CST) || gmm_python_is_ending()) {
    __atomic_sub_fetch(&callbacks_inside, 1, __ATOMIC_SEQ_CST);
    return 0;
  }
  *gil = PyGILState_Ensure();
  return 1;
}

void callback_leave(PyGILState_STATE gil) {
  PyGILState_Release(gil);
  __atomic_sub_fetch(&callbacks_inside, 1, __ATOMIC_SEQ_CST);
}

/* Adds Python's frames to the stack of an allocation. A thread that is inside a call of this module will wait for the
 * GIL in any case. Another one may hold a lock for which the GIL's holder waits, so it adds nothing without the GIL. */
void callback_frames(gmm_frame_fn add, void *to) {
  PyGILState_STATE gil;
  if ((!gmm_python_thread_is_inside() && !PyGILState_Check()) || !callback_enter(&gil)) return;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyFrameObject *frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  for (int depth = 0; frame && depth < 64; ++depth) {
    PyCodeObject *code = PyFrame_GetCode(frame);
#if PY_VERSION_HEX >= 0x030B0000
    const char *name = PyUnicode_AsUTF8(code->co_qualname);
#else
    const char *name = PyUnicode_AsUTF8(code->co_name);
#endif
    const char *file = PyUnicode_AsUTF8(code->co_filename);
    add(to, name ? name : "?", file ? file : "?", (uint32_t)PyFrame_GetLineNumber(frame));
    PyErr_Clear(); /* a name without UTF-8 */
    Py_DECREF(code);
    Py_SETREF(frame, PyFrame_GetBack(frame));
  }
  Py_XDECREF(frame);
  PyErr_Restore(type, value, trace);
  callback_leave(gil);
}

/* Makes later callbacks do nothing and waits for those under way. For atexit. */
static PyObject *callbacks_end(PyObject *module, PyObject *unused) {
  __atomic_store_n(&is_ended, 1, __ATOMIC_SEQ_CST);
  Py_BEGIN_ALLOW_THREADS
      /* A callback that never returns must not block the process's end: the wait takes at most 10 s. */
      const struct timespec pause = {0, 1000 * 1000};
  for (int i = 0; i < 10000 && __atomic_load_n(&callbacks_inside, __ATOMIC_SEQ_CST) > 0; ++i) nanosleep(&pause, NULL);
  Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

/* For the child of a fork, which has none of the threads that were inside. */
static PyObject *callbacks_after_fork(PyObject *module, PyObject *unused) {
  __atomic_store_n(&callbacks_inside, 0, __ATOMIC_SEQ_CST);
  later_after_fork();
  Py_RETURN_NONE;
}

PyMethodDef callback_functions[] = {{"callbacks_end", callbacks_end, METH_NOARGS, NULL},
                                    {"callbacks_after_fork", callbacks_after_fork, METH_NOARGS, NULL},
                                    {NULL, NULL, 0, NULL}};

/* Objects that may not end during a call; see handle.c. */
enum { ALL_MAY_END, MEMORY_MAY_END, NOTHING_MAY_END };

/* Calls Python with arguments of Py_BuildValue(), which it takes. `reaches`: an exception comes out of the call of the
 * library that Python code made; otherwise, and on threads without such a call, sys.unraisablehook gets it. False: the
 * answer is False, or there is an exception. */
static int call(PyObject *callable, PyObject *arguments, int may_end, int reaches) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace); /* another callback of this call may have raised */
  if (may_end != ALL_MAY_END) later_enter(may_end == NOTHING_MAY_END);
  PyObject *answer = arguments ? PyObject_CallObject(callable, arguments) : NULL;
  const int is_true = answer && answer != Py_False;
  if (!answer && (!reaches || !gmm_python_thread_is_inside())) PyErr_WriteUnraisable(callable);
  Py_XDECREF(answer);
  Py_XDECREF(arguments);
  if (may_end != ALL_MAY_END) later_leave(may_end == NOTHING_MAY_END);
  if (type) PyErr_Restore(type, value, trace);
  return is_true;
}

/* Calls what a handle holds, or another callable, with arguments of Py_BuildValue(). True: the answer is False, or
 * there is an exception. */
static int refuses(void *user, int may_end, int reaches, const char *format, ...) {
  PyGILState_STATE gil;
  if (!callback_enter(&gil)) return 0;
  PyObject *callable = user;
  if (PyObject_TypeCheck(callable, &Handle_Type))
    callable = handle_held(user, &((Handle *)user)->held);
  else
    Py_INCREF(callable); /* nobody else may hold it any more */
  va_list values;
  va_start(values, format);
  const int result =
      (reaches && PyErr_Occurred()) || (callable && !call(callable, Py_VaBuildValue(format, values), may_end, reaches));
  va_end(values);
  Py_XDECREF(callable);
  callback_leave(gil);
  return result;
}

static PyObject *decode(void *text) { return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace"); }

void callback_log(void *user, gmm_log_level level, const char *message) {
  (void)refuses(user, MEMORY_MAY_END, 0, "IO&", (unsigned)level, decode, message);
}

int32_t callback_watch(void *user, const gmm_watch_info *info) {
  return refuses(user, MEMORY_MAY_END, 0, "(y#)", info, (Py_ssize_t)info->struct_size);
}

int32_t callback_lease_ask(void *user, const gmm_lease_ask *ask) {
  (void)refuses(user, MEMORY_MAY_END, 0, "(y#)", ask, (Py_ssize_t)ask->struct_size);
  return 0;
}

/* PyGC_Collect() does nothing in a program that calls the collector at moments of its own. Only in a call that Python
 * made: another thread may hold a lock that somebody with the GIL waits for. */
static int collect_garbage(void *unused, uint32_t before) {
  if (!gmm_python_thread_is_inside()) return 0;
  PyObject *collector = PyImport_ImportModule("gc");
  PyObject *count = collector ? PyObject_CallMethod(collector, "collect", NULL) : NULL;
  const int has_found = count && PyObject_IsTrue(count) == 1;
  PyErr_Clear();
  Py_XDECREF(count);
  Py_XDECREF(collector);
  return has_found;
}

int32_t callback_oom(void *user, const gmm_oom_info *info) {
  PyGILState_STATE gil;
  gmm_oom_info own = {0};
  if (!callback_enter(&gil)) return 0;
  int again = !PyErr_Occurred() && gmm_bind_collects(info, collect_garbage, NULL, &own);
  PyObject *callable = again || PyErr_Occurred() ? NULL : handle_held(user, &((Handle *)user)->oom_handler);
  if (callable) again = call(callable, Py_BuildValue("(y#)", &own, (Py_ssize_t)sizeof own), ALL_MAY_END, 1);
  Py_XDECREF(callable);
  callback_leave(gil);
  return again;
}

int32_t callback_write(void *user, const char *text, uint64_t size) {
  return refuses(user, ALL_MAY_END, 1, "(y#)", text, (Py_ssize_t)size);
}

/* A progress callback runs with the library's locks held, so what dies in it is freed later. */
int32_t callback_progress(void *user, uint64_t done, uint64_t total) {
  return refuses(user, NOTHING_MAY_END, 1, "KK", (unsigned long long)done, (unsigned long long)total);
}

/* A backend without real streams may run this inside gmm_stream_call(), where the work counts as done too. */
void callback_stream(void *user) {
  PyGILState_STATE gil;
  if (!callback_enter(&gil)) return;
  (void)call((PyObject *)user, PyTuple_New(0), NOTHING_MAY_END, 0);
  Py_DECREF((PyObject *)user);
  callback_leave(gil);
}
