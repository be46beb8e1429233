/* SPDX-License-Identifier: Apache-2.0 */
/* Watchers. The library calls their thread's callback while an operation waits on another, which has released the GIL.
 * The gmm.Watcher is the callback's `user`: it holds the callable, and its end waits for the callback. */
#include "native.h"

/* The answer; an exception refuses. */
static int32_t callback_watch(void *user, const gmm_watch_info *info) {
  PyGILState_STATE gil;
  if (!callback_enter(&gil)) return 0;
  int32_t answer = 0;
  later_enter(0); /* frees are allowed, but the end of a handle may wait for this thread */
  PyObject *callable = handle_callable((Handle *)user, &((Handle *)user)->watch);
  if (callable) {
    PyObject *told = PyObject_CallFunction(
        callable, "IIiNKKKKi", (unsigned)info->event, (unsigned)info->tag, (int)info->device,
        PyLong_FromVoidPtr(info->address), (unsigned long long)info->size, (unsigned long long)info->generation,
        (unsigned long long)info->budget_bytes, (unsigned long long)info->remaining_ms, (int)info->cause);
    answer = !told || told == Py_False;
    if (!told) PyErr_WriteUnraisable(callable);
    Py_XDECREF(told);
    Py_DECREF(callable);
  }
  later_leave(0);
  callback_leave(gil);
  return answer;
}

/* watch(watcher, context, events, tag, device, address, size, budget_bytes, timeout_ms, order, name) -> handle */
PyObject *native_watch(PyObject *module, PyObject *arguments) {
  (void)module;
  gmm_watch_desc desc = {.struct_size = sizeof desc};
  PyObject *watcher, *context, *address;
  int device, order;
  if (!PyArg_ParseTuple(arguments, "O!OO&O&iOO&O&O&iz", &Handle_Type, &watcher, &context, number_32, &desc.events,
                        number_32, &desc.tag, &device, &address, number_64, &desc.size, number_64, &desc.budget_bytes,
                        number_64, &desc.timeout_ms, &order, &desc.name))
    return NULL;
  void *begin = NULL;
  if (memory_address(address, &begin) < 0) return NULL;
  desc.device = device;
  desc.address = begin;
  desc.order = order;
  desc.callback.fn = callback_watch;
  desc.callback.user = watcher;
  Handle *held = handle_enter(context, HANDLE_CONTEXT);
  if (!held) return NULL;
  gmm_watcher *made = NULL;
  PyThreadState *state = gmm_python_leave_gil();
  const gmm_result result = gmm_watch((gmm_context *)held->pointer, &desc, &made);
  gmm_python_take_gil(state);
  handle_leave(held);
  return result < 0 ? gmm_python_raise(result) : PyLong_FromVoidPtr(made);
}

int native_watch_init(PyObject *module) {
  return PyModule_AddIntMacro(module, GMM_WATCH_PREPARE) < 0 || PyModule_AddIntMacro(module, GMM_WATCH_LOSING) < 0 ||
                 PyModule_AddIntMacro(module, GMM_WATCH_RESTORED) < 0 ||
                 PyModule_AddIntMacro(module, GMM_WATCH_FAILED) < 0 ||
                 PyModule_AddIntMacro(module, GMM_WATCH_BUDGET) < 0
             ? -1
             : 0;
}
