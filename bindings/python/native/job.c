/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs. The exchange is a callable of Python, which the job's handle holds. The library calls it on the thread that is
 * in the operation and has released the GIL. */
#include "native.h"

/* What the exchange has raised in an operation of this thread. */
typedef struct Operation {
  struct Operation *outer; /**< an exchange may run an operation of another job */
  PyObject *type, *value, *trace;
  int has_reported;
} Operation;
static __thread Operation *current;

/* An interrupt or an exit ends the operation as a failure of the exchange would, and native_job_run() raises it. Others
 * come every few milliseconds while they last, so the first one is reported. */
static void keep_or_report(PyObject *callable) {
  if (current && !PyErr_ExceptionMatches(PyExc_Exception)) {
    PyErr_Fetch(&current->type, &current->value, &current->trace);
  } else if (current && current->has_reported) {
    PyErr_Clear();
  } else {
    if (current) current->has_reported = 1;
    PyErr_WriteUnraisable(callable);
  }
}

/* exchange(operation, key, value, timeout_ms) -> the text that stands, or None */
static gmm_result call_exchange(void *user, const char *operation, const char *key, const char *value, char *out,
                                uint64_t timeout_ms) {
  PyGILState_STATE gil;
  gmm_result result = GMM_ERROR_NOT_READY;
  if (current && current->type) return GMM_ERROR_CANCELLED;
  if (!callback_enter(&gil)) return result;
  later_enter(0); /* the end of a heap may wait for the transition, which waits for this thread */
  PyObject *callable = handle_callable((Handle *)user, &((Handle *)user)->watch);
  if (callable) {
    PyObject *stands = PyObject_CallFunction(callable, "sszK", operation, key, value, (unsigned long long)timeout_ms);
    Py_ssize_t size = 0;
    const char *text = stands && stands != Py_None ? PyUnicode_AsUTF8AndSize(stands, &size) : NULL;
    if (text && size < GMM_EXCHANGE_VALUE && out) {
      memcpy(out, text, (size_t)size + 1);
      result = GMM_OK;
    }
    if (PyErr_Occurred()) {
      keep_or_report(callable);
      result = current && current->type ? GMM_ERROR_CANCELLED : GMM_ERROR_IO;
    }
    Py_XDECREF(stands);
    Py_DECREF(callable);
  }
  later_leave(0);
  callback_leave(gil);
  return result;
}
static gmm_result exchange_set(void *user, const char *key, const char *value, char *out, uint64_t timeout_ms) {
  return call_exchange(user, "set", key, value, out, timeout_ms);
}
static gmm_result exchange_get(void *user, const char *key, char *out, uint64_t timeout_ms) {
  return call_exchange(user, "get", key, NULL, out, timeout_ms);
}
static void exchange_erase(void *user, const char *key) { call_exchange(user, "erase", key, NULL, NULL, 0); }

/* job_create(job, context, name, rank, ranks, timeout_ms, erases) -> handle */
PyObject *native_job_create(PyObject *module, PyObject *arguments) {
  (void)module;
  gmm_job_desc desc = {.struct_size = sizeof desc};
  PyObject *job, *context;
  int erases;
  if (!PyArg_ParseTuple(arguments, "O!OsO&O&O&p", &Handle_Type, &job, &context, &desc.name, number_32, &desc.rank,
                        number_32, &desc.ranks, number_64, &desc.timeout_ms, &erases))
    return NULL;
  desc.exchange.set = exchange_set;
  desc.exchange.get = exchange_get;
  desc.exchange.erase = erases ? exchange_erase : NULL;
  desc.exchange.user = job;
  Handle *held = handle_enter(context, HANDLE_CONTEXT);
  if (!held) return NULL;
  gmm_job *made = NULL;
  const gmm_result result = gmm_job_create((gmm_context *)held->pointer, &desc, &made);
  handle_leave(held);
  return result < 0 ? gmm_python_raise(result) : PyLong_FromVoidPtr(made);
}

static PyObject *info_tuple(gmm_job *job) {
  gmm_job_info info = {.struct_size = sizeof info};
  const gmm_result result = gmm_job_query(job, &info);
  if (result < 0) return gmm_python_raise(result);
  return Py_BuildValue("IKiiKK", (unsigned)info.state, (unsigned long long)info.epoch, (int)info.failed_rank,
                       (int)info.cause, (unsigned long long)info.bytes, (unsigned long long)info.job_bytes);
}

/* A job counts for later.c until its operation is over. */
static void begin_job(Handle *job) {
  if (!__atomic_exchange_n(&job->is_in_operation, 1, __ATOMIC_SEQ_CST)) later_jobs(1);
}
void job_end(Handle *job) {
  if (__atomic_exchange_n(&job->is_in_operation, 0, __ATOMIC_SEQ_CST)) later_jobs(-1);
}
static int is_in_operation(gmm_job *job) {
  gmm_job_info info = {.struct_size = sizeof info};
  return gmm_job_query(job, &info) >= 0 && (info.state == GMM_JOB_IN_DOUBT || info.state == GMM_JOB_RUNNING);
}

/* job_run(job, pauses, flags, tags) -> (state, epoch, failed_rank, cause, bytes, job_bytes) */
PyObject *native_job_run(PyObject *module, PyObject *arguments) {
  (void)module;
  PyObject *job, *numbers;
  int pauses;
  uint32_t flags;
  if (!PyArg_ParseTuple(arguments, "O!pO&O!", &Handle_Type, &job, &pauses, number_32, &flags, &PyTuple_Type, &numbers))
    return NULL;
  const Py_ssize_t count = PyTuple_GET_SIZE(numbers);
  gmm_tag *tags = PyMem_Calloc((size_t)count + 1, sizeof *tags);
  if (!tags) return PyErr_NoMemory();
  for (Py_ssize_t i = 0; i < count && number_32(PyTuple_GET_ITEM(numbers, i), &tags[i]); ++i) {
  }
  const gmm_pause_desc desc = {.struct_size = sizeof desc, .flags = flags, .tags = tags, .tag_count = (uint32_t)count};
  PyObject *told = NULL;
  Handle *held = PyErr_Occurred() ? NULL : handle_enter(job, HANDLE_JOB);
  if (held) {
    Operation operation = {.outer = current};
    current = &operation;
    begin_job(held);
    PyThreadState *state = gmm_python_leave_gil();
    const gmm_result result = pauses ? gmm_job_pause((gmm_job *)held->pointer, &desc, NULL)
                                     : gmm_job_resume((gmm_job *)held->pointer, &desc, NULL);
    gmm_python_take_gil(state);
    current = operation.outer;
    if (operation.type)
      PyErr_Restore(operation.type, operation.value, operation.trace);
    else
      told = result < 0 ? gmm_python_raise(result) : info_tuple((gmm_job *)held->pointer);
    if (!is_in_operation((gmm_job *)held->pointer)) job_end(held);
    later_settle();
    handle_leave(held);
  }
  PyMem_Free(tags);
  return told;
}

/* job_query(job) -> as job_run() */
PyObject *native_job_query(PyObject *module, PyObject *job) {
  (void)module;
  Handle *held = handle_enter(job, HANDLE_JOB);
  if (!held) return NULL;
  PyObject *told = info_tuple((gmm_job *)held->pointer);
  handle_leave(held);
  return told;
}
