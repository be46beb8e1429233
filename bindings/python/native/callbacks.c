/* SPDX-License-Identifier: Apache-2.0 */
#include <time.h>

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

PyObject *callbacks_end(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  __atomic_store_n(&is_ended, 1, __ATOMIC_SEQ_CST);
  Py_BEGIN_ALLOW_THREADS
      /* A callback that never returns must not block the process's end: the wait takes at most 10 s. */
      const struct timespec pause = {0, 1000 * 1000};
  for (int i = 0; i < 10000 && __atomic_load_n(&callbacks_inside, __ATOMIC_SEQ_CST) > 0; ++i) nanosleep(&pause, NULL);
  Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

PyObject *callbacks_after_fork(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  __atomic_store_n(&callbacks_inside, 0, __ATOMIC_SEQ_CST);
  later_after_fork();
  Py_RETURN_NONE;
}

PyObject *handle_callable(Handle *handle, PyObject **place) {
  PyObject *callable;
  GUARD_BEGIN(handle)
  callable = *place == Py_None ? NULL : *place;
  Py_XINCREF(callable);
  GUARD_END()
  return callable;
}

/* A callback's exception reaches the Python code that called the library, else sys.unraisablehook. */
static void raise_or_report(PyObject *callable) {
  if (!gmm_python_thread_is_inside()) PyErr_WriteUnraisable(callable);
}

void callback_log(void *user, gmm_log_level level, const char *message) {
  PyGILState_STATE gil;
  if (!callback_enter(&gil)) return;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace); /* another callback of this call may have raised */
  later_enter(0);
  PyObject *callable = handle_callable((Handle *)user, &((Handle *)user)->log);
  if (callable) {
    PyObject *text = PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace");
    PyObject *answer = text ? PyObject_CallFunction(callable, "IO", (unsigned)level, text) : NULL;
    if (!answer) PyErr_WriteUnraisable(callable);
    Py_XDECREF(answer);
    Py_XDECREF(text);
    Py_DECREF(callable);
  }
  later_leave(0);
  PyErr_Restore(type, value, trace);
  callback_leave(gil);
}

int32_t callback_oom(void *user, const gmm_oom_info *info) {
  PyGILState_STATE gil;
  if (!callback_enter(&gil)) return 0;
  int again = 0;
  PyObject *callable = PyErr_Occurred() ? NULL : handle_callable((Handle *)user, &((Handle *)user)->oom_handler);
  if (callable) {
    PyObject *answer = PyObject_CallFunction(callable, "y#", (const char *)info, (Py_ssize_t)info->struct_size);
    again = answer ? PyObject_IsTrue(answer) : -1;
    if (again < 0) {
      raise_or_report(callable);
      again = 0;
    }
    Py_XDECREF(answer);
    Py_DECREF(callable);
  }
  callback_leave(gil);
  return again;
}

int32_t callback_write(void *user, const char *text, uint64_t size) {
  PyGILState_STATE gil;
  if (!callback_enter(&gil)) return 1;
  PyObject *callable = (PyObject *)user;
  PyObject *answer = PyObject_CallFunction(callable, "y#", text, (Py_ssize_t)size);
  const int stop = answer == NULL;
  if (stop) raise_or_report(callable);
  Py_XDECREF(answer);
  callback_leave(gil);
  return stop;
}

/* Calls the callable of a watcher or lease with the bytes of a struct. The handle's end waits for this call. True: the
 * answer is False, or an exception, which is reported. */
static int refuses(Handle *handle, const void *bytes, uint32_t size) {
  PyGILState_STATE gil;
  if (!callback_enter(&gil)) return 0;
  int result = 0;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace); /* another callback of this call may have raised */
  later_enter(0);                     /* frees are allowed, but the end of a handle may wait for this thread */
  PyObject *callable = handle_callable(handle, &handle->watch);
  if (callable) {
    PyObject *answer = PyObject_CallFunction(callable, "y#", (const char *)bytes, (Py_ssize_t)size);
    result = !answer || answer == Py_False;
    if (!answer) PyErr_WriteUnraisable(callable);
    Py_XDECREF(answer);
    Py_DECREF(callable);
  }
  later_leave(0);
  PyErr_Restore(type, value, trace);
  callback_leave(gil);
  return result;
}

int32_t callback_watch(void *user, const gmm_watch_info *info) {
  return refuses((Handle *)user, info, info->struct_size);
}

int32_t callback_lease_ask(void *user, const gmm_lease_ask *ask) {
  (void)refuses((Handle *)user, ask, ask->struct_size);
  return 0;
}

/* A progress callback runs with the library's locks held, so what dies in it is freed later. */
int32_t callback_progress(void *user, uint64_t done, uint64_t total) {
  PyGILState_STATE gil;
  if (!callback_enter(&gil)) return 0;
  int stop = 1;
  PyObject *callable = (PyObject *)user;
  if (!PyErr_Occurred()) {
    later_enter(1);
    Py_INCREF(callable); /* a ticket that nobody holds any more may let it go */
    PyObject *answer = PyObject_CallFunction(callable, "KK", (unsigned long long)done, (unsigned long long)total);
    stop = answer == NULL || answer == Py_False;
    Py_XDECREF(answer);
    if (PyErr_Occurred()) raise_or_report(callable);
    Py_DECREF(callable);
    later_leave(1);
  }
  callback_leave(gil);
  return stop;
}

void callback_stream(void *user) {
  PyGILState_STATE gil;
  if (!callback_enter(&gil)) return;
  PyObject *callable = (PyObject *)user;
  later_enter(1);
  PyObject *answer = PyObject_CallNoArgs(callable);
  /* A backend without real streams may run this inside gmm_stream_call(), where the work counts as done too. */
  if (!answer) PyErr_WriteUnraisable(callable);
  Py_XDECREF(answer);
  Py_DECREF(callable);
  later_leave(1);
  callback_leave(gil);
}
