/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"

#define KEYWORDS(Function) (PyCFunction)(void (*)(void)) Function

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
                                  {"callbacks_end", callbacks_end, METH_NOARGS, NULL},
                                  {"callbacks_after_fork", callbacks_after_fork, METH_NOARGS, NULL},
                                  {"dlpack_import", native_dlpack_import, METH_O, NULL},
                                  {"view_address", native_view_address, METH_O, NULL},
                                  {"set_helpers", native_set_helpers, METH_VARARGS, NULL},
                                  {"set_default_context", native_set_default_context, METH_O, NULL},
                                  {"default_context", native_default_context, METH_NOARGS, NULL},
                                  {"alloc", KEYWORDS(native_alloc), METH_FASTCALL | METH_KEYWORDS, native_alloc_doc},
                                  {NULL, NULL, 0, NULL}};

int native_add_method(PyObject *module, const char *name, PyTypeObject *type, PyMethodDef *def) {
  PyObject *method = PyDescr_NewMethod(type, def);
  if (!method) return -1;
  if (PyModule_AddObject(module, name, method) == 0) return 0;
  Py_DECREF(method);
  return -1;
}

PyMODINIT_FUNC native_swig_init(void);
PyMODINIT_FUNC PyInit__native(void);
PyMODINIT_FUNC PyInit__native(void) { return in_main_interpreter() ? native_swig_init() : NULL; }

int native_init(PyObject *module) {
  if (PyModule_AddType(module, &Handle_Type) < 0 || PyModule_AddType(module, &Memory_Type) < 0 ||
      PyModule_AddType(module, &View_Type) < 0)
    return -1;
  if (memory_init(module) < 0 || allocate_init(module) < 0 || native_scope_init(module) < 0) return -1;
#ifdef Py_GIL_DISABLED
  /* guard.h: every field is guarded without it. */
  if (PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED) < 0) return -1;
#endif
  return PyModule_AddFunctions(module, functions);
}
