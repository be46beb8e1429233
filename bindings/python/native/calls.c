/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of every wrapper around a call of the library: the GIL, results as exceptions, the functions that are
 * written in Python, and with blocks. The module's initialiser. */
#include "native.h"

/* --- The GIL ------------------------------------------------------------------------------------------------------ */

static __thread int inside;

PyThreadState *gmm_python_leave_gil(void) {
  ++inside;
  return PyEval_SaveThread();
}

void gmm_python_take_gil(PyThreadState *state) {
  PyEval_RestoreThread(state);
  --inside;
  if (inside == 0) later_settle_owed();
}

int gmm_python_thread_is_inside(void) { return inside > 0; }

/* --- Results ------------------------------------------------------------------------------------------------------ */

static PyObject *raise_with(gmm_result result, const char *message, int closed) {
  PyObject *factory = helper_of(HELPER_EXCEPTION);
  /* The message may quote a file name in any encoding. */
  PyObject *text = factory ? PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace") : NULL;
  if (!text) return NULL;
  PyObject *exception = PyObject_CallFunction(factory, "isNii", (int)result, gmm_result_name(result), text,
                                              closed ? 0 : (int)gmm_last_native_code(), closed);
  if (!exception) return NULL;
  PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
  Py_DECREF(exception);
  return NULL;
}

PyObject *gmm_python_raise(gmm_result result) {
  if (PyErr_Occurred()) return NULL; /* a callback of this call raised: that says more */
  const char *message = gmm_last_error_message();
  return raise_with(result, message && *message ? message : gmm_result_text(result), 0);
}

PyObject *gmm_python_raise_closed(const char *what) {
  char message[128];
  snprintf(message, sizeof message, "the %s is closed; open or allocate another one", what);
  return raise_with(GMM_ERROR_INVALID_HANDLE, message, 1);
}

int text_read(PyObject *object, const char **text) {
  Py_ssize_t length = 0;
  *text = object == Py_None ? NULL : PyUnicode_AsUTF8AndSize(object, &length);
  if (*text && strlen(*text) != (size_t)length)
    PyErr_SetString(PyExc_ValueError, "a text cannot hold a null character");
  return PyErr_Occurred() ? -1 : 0;
}

int gmm_python_is_ending(void) {
#if PY_VERSION_HEX >= 0x030D0000
  return !Py_IsInitialized() || Py_IsFinalizing();
#else
  return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

/* --- Functions and classes that are written in Python --------------------------------------------------------- */

static PyObject *helpers[HELPER_COUNT];

PyObject *helper_of(int helper) {
  if (helpers[helper]) return helpers[helper];
  return PyErr_Format(PyExc_RuntimeError, "gmm._native is not to be used without the package gmm");
}

PyObject *helper_call(int helper, void *first, void *second) {
  PyObject *callable = helper_of(helper);
  return callable ? PyObject_CallFunctionObjArgs(callable, first, second, NULL) : NULL;
}

/* set_helpers(object, ...): all of them, in the order of their numbers */
static PyObject *set_helpers(PyObject *module, PyObject *given) {
  for (int i = 0; i < HELPER_COUNT; ++i) {
    Py_INCREF(PyTuple_GET_ITEM(given, i));
    Py_XSETREF(helpers[i], PyTuple_GET_ITEM(given, i));
  }
  Py_RETURN_NONE;
}

/* --- With blocks -------------------------------------------------------------------------------------------------- */

/* __enter__ and __exit__ in C, for what Python code begins and must end. After a call that Python code makes, a
 * signal's handler may raise an exception, so an __enter__ in Python may begin and never return. Between an __enter__
 * in C and its with block nothing comes.
 *
 * The object's _scope: (begin, arguments, end, arguments, value). The with block gets the value, the object for None,
 * or begin's result without a value. */
static PyObject *scope_enter(PyObject *self, PyObject *unused) {
  PyObject *scope = PyObject_GetAttrString(self, "_scope");
  if (!scope) return NULL;
  PyObject *begun = PyObject_CallObject(PyTuple_GET_ITEM(scope, 0), PyTuple_GET_ITEM(scope, 1));
  if (begun && PyTuple_GET_SIZE(scope) == 5) {
    PyObject *value = PyTuple_GET_ITEM(scope, 4);
    Py_INCREF(value == Py_None ? self : value);
    Py_SETREF(begun, value == Py_None ? self : value);
  }
  Py_DECREF(scope);
  return begun;
}

static PyObject *scope_exit(PyObject *self, PyObject *arguments) {
  PyObject *scope = PyObject_GetAttrString(self, "_scope");
  if (!scope) return NULL;
  PyObject *end = PyTuple_GET_ITEM(scope, 2);
  PyObject *ended = PyObject_CallObject(end, PyTuple_GET_ITEM(scope, 3));
  /* An end in Python may have been interrupted before it ended anything, and may be called again. */
  if (!ended && !PyCFunction_Check(end) && !PyErr_ExceptionMatches(PyExc_Exception)) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *again = PyObject_CallObject(end, PyTuple_GET_ITEM(scope, 3));
    if (!again) PyErr_WriteUnraisable(end);
    Py_XDECREF(again);
    PyErr_Restore(type, value, trace);
  }
  Py_DECREF(scope);
  if (!ended) return NULL;
  Py_DECREF(ended);
  Py_RETURN_NONE;
}

static PyMethodDef scope_enter_def = {"__enter__", scope_enter, METH_NOARGS, NULL};
static PyMethodDef scope_exit_def = {"__exit__", scope_exit, METH_VARARGS, NULL};

/* --- The module --------------------------------------------------------------------------------------------------- */

/* The types and callbacks are the process's. A second interpreter would give the first one its own objects. */
static int in_main_interpreter(void) {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return 1;
  PyErr_SetString(PyExc_ImportError,
                  "gmm works in the main interpreter only, and this is a subinterpreter; import it there, or in a "
                  "process of its own (multiprocessing).");
  return 0;
}

/* Python hands a copy of a module that another interpreter has loaded to the next, without its initialiser. So the
 * package asks first of all. */
static PyObject *require_main_interpreter(PyObject *module, PyObject *ignored) {
  if (!in_main_interpreter()) return NULL;
  Py_RETURN_NONE;
}

static PyMethodDef functions[] = {{"require_main_interpreter", require_main_interpreter, METH_NOARGS, NULL},
                                  {"set_helpers", set_helpers, METH_VARARGS, NULL},
                                  {NULL, NULL, 0, NULL}};

int native_add_method(PyObject *module, const char *name, PyTypeObject *type, PyMethodDef *def) {
  PyObject *method = PyDescr_NewMethod(type, def);
  if (method && PyModule_AddObject(module, name, method) == 0) return 0;
  Py_XDECREF(method);
  return -1;
}

PyMODINIT_FUNC native_swig_init(void);
PyMODINIT_FUNC PyInit__native(void);
PyMODINIT_FUNC PyInit__native(void) { return in_main_interpreter() ? native_swig_init() : NULL; }

int native_init(PyObject *module) {
  if (PyModule_AddType(module, &Handle_Type) < 0 || PyModule_AddType(module, &Memory_Type) < 0 ||
      PyModule_AddType(module, &View_Type) < 0 || PyModule_AddFunctions(module, functions) < 0 ||
      PyModule_AddFunctions(module, view_functions) < 0 || PyModule_AddFunctions(module, callback_functions) < 0 ||
      native_add_method(module, "scope_enter", &PyBaseObject_Type, &scope_enter_def) < 0 ||
      native_add_method(module, "scope_exit", &PyBaseObject_Type, &scope_exit_def) < 0 ||
      /* Options hold these as numbers. */
      PyModule_AddIntConstant(module, "callback_log", (long)callback_log) < 0 ||
      PyModule_AddIntConstant(module, "callback_progress", (long)callback_progress) < 0 ||
      PyModule_AddIntConstant(module, "callback_watch", (long)callback_watch) < 0 ||
      PyModule_AddIntConstant(module, "callback_lease_ask", (long)callback_lease_ask) < 0)
    return -1;
#ifdef Py_GIL_DISABLED
  /* Every field is guarded without it. */
  if (PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED) < 0) return -1;
#endif
  gmm_trace_set_frames(callback_frames);
  return allocate_init(module);
}
