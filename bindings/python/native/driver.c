// SPDX-License-Identifier: Apache-2.0
// gmm._driver: the CUDA driver's checkpoint of processes, for gmm/_checkpoint.py. It needs nothing else of gmm.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <string.h>

#include "../../../lib/backend/cuda/driver_api.h"

#define CALLS(X)                   \
  X(cuCheckpointProcessGetState)   \
  X(cuCheckpointProcessLock)       \
  X(cuCheckpointProcessCheckpoint) \
  X(cuCheckpointProcessRestore)    \
  X(cuCheckpointProcessUnlock)

enum { CHECKPOINT_VERSION = 12080 };

static struct {
#define X(name) name##_fn *name;
  CALLS(X)
#undef X
  cuGetErrorName_fn *cuGetErrorName;
} driver;

// open(path): OSError, LookupError with what the driver lacks, or the CUresult of cuInit().
static PyObject *open_driver(PyObject *module, PyObject *path) {
  const char *text = PyUnicode_AsUTF8AndSize(path, NULL);
  if (text == NULL) return NULL;
  void *library = dlopen(text, RTLD_NOW);
  if (library == NULL) return PyErr_SetString(PyExc_OSError, dlerror()), NULL;
  cuGetProcAddress_v2_fn *look_up = (cuGetProcAddress_v2_fn *)dlsym(library, "cuGetProcAddress_v2");
  cuInit_fn *init = (cuInit_fn *)dlsym(library, "cuInit");
  driver.cuGetErrorName = (cuGetErrorName_fn *)dlsym(library, "cuGetErrorName");
  if (look_up == NULL || init == NULL || driver.cuGetErrorName == NULL)
    return PyErr_SetString(PyExc_LookupError, "cuGetProcAddress_v2"), NULL;
#define X(name)                                                                                                  \
  if (look_up(#name, (void **)&driver.name, CHECKPOINT_VERSION, 0, NULL) != CUDA_SUCCESS || driver.name == NULL) \
    return PyErr_SetString(PyExc_LookupError, #name), NULL;
  CALLS(X)
#undef X
  return PyLong_FromLong(init(0));
}

// state(pid): the CUprocessState, or minus the CUresult of the failure.
static PyObject *state(PyObject *module, PyObject *pid) {
  CUprocessState found = CU_PROCESS_STATE_RUNNING;
  const int number = (int)PyLong_AsLong(pid);
  if (PyErr_Occurred() != NULL) return NULL;
  const CUresult result = driver.cuCheckpointProcessGetState(number, &found);
  return PyLong_FromLong(result != CUDA_SUCCESS ? -(long)result : (long)found);
}

// step(name, pid, milliseconds): a CUresult. The milliseconds are for a lock.
static PyObject *step(PyObject *module, PyObject *arguments) {
  const char *name = NULL;
  int pid = 0;
  CUcheckpointLockArgs lock = {0};
  if (!PyArg_ParseTuple(arguments, "siI", &name, &pid, &lock.timeoutMs)) return NULL;
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  Py_BEGIN_ALLOW_THREADS if (strcmp(name, "lock") == 0) result = driver.cuCheckpointProcessLock(pid, &lock);
  if (strcmp(name, "checkpoint") == 0) result = driver.cuCheckpointProcessCheckpoint(pid, NULL);
  if (strcmp(name, "restore") == 0) result = driver.cuCheckpointProcessRestore(pid, NULL);
  if (strcmp(name, "unlock") == 0) result = driver.cuCheckpointProcessUnlock(pid, NULL);
  Py_END_ALLOW_THREADS return PyLong_FromLong(result);
}

// name(code): the driver's name of a CUresult.
static PyObject *name(PyObject *module, PyObject *code) {
  const char *text = NULL;
  const long number = PyLong_AsLong(code);
  if (PyErr_Occurred() != NULL) return NULL;
  if (driver.cuGetErrorName((CUresult)number, &text) != CUDA_SUCCESS || text == NULL) text = "an unknown code";
  return PyUnicode_FromString(text);
}

static PyMethodDef functions[] = {{"open", open_driver, METH_O, NULL},
                                  {"state", state, METH_O, NULL},
                                  {"step", step, METH_VARARGS, NULL},
                                  {"name", name, METH_O, NULL},
                                  {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_driver", .m_methods = functions};

PyMODINIT_FUNC PyInit__driver(void);
PyMODINIT_FUNC PyInit__driver(void) { return PyModule_Create(&definition); }
