/* SPDX-License-Identifier: Apache-2.0 */
/* Memory resources that other libraries call from C++, without Python: rmm/resource.h has their interface. */
#include "native.h"
/* Python.h comes first. */
#include "../rmm/resource.h"

typedef struct Resource {
  gmm_python_resource functions;
  Py_ssize_t owners; /**< atomic: copies of a C++ library end on any thread */
  gmm_context *context;
  gmm_alloc_desc desc;
} Resource;

/* The exception of a failed call, as a call from Python would raise it. The caller has the GIL, and perhaps a pending
 * exception. */
static PyObject *exception_of(gmm_result result) {
  PyObject *pending[3], *type, *value, *trace;
  PyErr_Fetch(&pending[0], &pending[1], &pending[2]);
  gmm_python_raise(result);
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  PyErr_Restore(pending[0], pending[1], pending[2]);
  return value;
}

/* The reason has Python's names of functions. */
static gmm_python_outcome describe(gmm_result result, char reason[GMM_PYTHON_RESOURCE_REASON]) {
  const int memory = result == GMM_ERROR_OUT_OF_MEMORY || result == GMM_ERROR_LIMIT_EXCEEDED ||
                     result == GMM_ERROR_OUT_OF_HOST_MEMORY || result == GMM_ERROR_SIZE_OVERFLOW;
  snprintf(reason, GMM_PYTHON_RESOURCE_REASON, "%s", gmm_last_error_message());
  if (!gmm_python_is_ending()) {
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject *exception = exception_of(result);
    PyObject *text = exception ? PyObject_Str(exception) : NULL;
    const char *words = text ? PyUnicode_AsUTF8(text) : NULL;
    if (words) snprintf(reason, GMM_PYTHON_RESOURCE_REASON, "%s", words);
    Py_XDECREF(text);
    Py_XDECREF(exception);
    PyGILState_Release(state);
  }
  return memory ? GMM_RESOURCE_NO_MEMORY : GMM_RESOURCE_FAILED;
}

static gmm_python_outcome resource_allocate(gmm_python_resource *self, size_t size, void *stream, void **memory,
                                            char reason[GMM_PYTHON_RESOURCE_REASON]) {
  Resource *resource = (Resource *)self;
  gmm_alloc_desc desc = resource->desc;
  desc.stream = (gmm_stream)stream;
  const gmm_result result = gmm_alloc(resource->context, size, &desc, memory);
  return __builtin_expect(result >= 0, 1) ? GMM_RESOURCE_OK : describe(result, reason);
}

/* The caller's C++ takes no error. In a forked child the memory is the parent's. */
static void report_unfreed(gmm_result result, void *memory) {
  if (result == GMM_ERROR_FORKED || gmm_python_is_ending()) return;
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject *exception = exception_of(result), *address = PyLong_FromVoidPtr(memory);
  PyObject *pair = exception && address ? PyTuple_Pack(2, exception, address) : NULL;
  PyObject *done = pair ? helper_call(HELPER_UNFREED, pair) : NULL;
  if (!done) PyErr_WriteUnraisable(exception);
  Py_XDECREF(done);
  Py_XDECREF(pair);
  Py_XDECREF(address);
  Py_XDECREF(exception);
  PyGILState_Release(state);
}

static void resource_deallocate(gmm_python_resource *self, void *memory, void *stream) {
  const gmm_result result = gmm_free(((Resource *)self)->context, memory, (gmm_stream)stream);
  if (__builtin_expect(result < 0, 0)) report_unfreed(result, memory);
}

static void resource_retain(gmm_python_resource *self) {
  __atomic_fetch_add(&((Resource *)self)->owners, 1, __ATOMIC_RELAXED);
}

/* The end of the context may wait for a thread that wants the GIL. At the interpreter's end, and where a thread of the
 * library may run this, the context stays: the process's end frees it. */
static void resource_release(gmm_python_resource *self) {
  Resource *resource = (Resource *)self;
  if (__atomic_sub_fetch(&resource->owners, 1, __ATOMIC_ACQ_REL) > 0) return;
  if (!gmm_python_is_ending() && !later_ends()) {
    PyThreadState *state = PyGILState_Check() ? gmm_python_leave_gil() : NULL;
    gmm_context_release(resource->context);
    if (state) gmm_python_take_gil(state);
  }
  free(resource);
}

static void capsule_end(PyObject *capsule) {
  gmm_python_resource *resource = PyCapsule_GetPointer(capsule, GMM_PYTHON_RESOURCE_NAME);
  if (resource) resource->release(resource);
}

PyObject *native_memory_resource(PyObject *module, PyObject *arguments) {
  (void)module;
  PyObject *object;
  gmm_kind kind;
  gmm_tag tag;
  int device;
  if (!PyArg_ParseTuple(arguments, "OO&iO&", &object, number_32, &kind, &device, number_32, &tag)) return NULL;
  Handle *handle = handle_enter(object, HANDLE_CONTEXT);
  if (!handle) return NULL;
  gmm_context *const context = (gmm_context *)handle->pointer;
  const gmm_result result = gmm_context_retain(context);
  handle_leave(handle);
  if (result < 0) return gmm_python_raise(result);
  Resource *resource = malloc(sizeof *resource);
  PyObject *capsule = NULL;
  if (resource) {
    *resource = (Resource){{resource_allocate, resource_deallocate, resource_retain, resource_release},
                           1,
                           context,
                           {.struct_size = sizeof(gmm_alloc_desc), .kind = kind, .device = device, .tag = tag}};
    capsule = PyCapsule_New(resource, GMM_PYTHON_RESOURCE_NAME, capsule_end);
  }
  if (capsule) return capsule;
  free(resource);
  gmm_context_release(context); /* the handle still owns it: this ends nothing */
  return resource ? NULL : PyErr_NoMemory();
}
