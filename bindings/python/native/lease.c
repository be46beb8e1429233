/* SPDX-License-Identifier: Apache-2.0 */
/* Leases. The lease's thread calls `asked` with the lease's handle, which holds the callable. The end of the handle
 * waits for that thread, so nobody ends a lease inside the callback: later.c does it. */
#include "native.h"

/* asked(name, process, priority, bytes, waiting_ms) */
static int32_t callback_asked(void *user, const gmm_lease_ask *ask) {
  PyGILState_STATE gil;
  if (!callback_enter(&gil)) return 0;
  later_enter(0);
  PyObject *callable = handle_callable((Handle *)user, &((Handle *)user)->watch);
  if (callable) {
    PyObject *told = PyObject_CallFunction(callable, "siiKK", ask->name, (int)ask->process, (int)ask->priority,
                                           (unsigned long long)ask->bytes, (unsigned long long)ask->waiting_ms);
    if (!told) PyErr_WriteUnraisable(callable);
    Py_XDECREF(told);
    Py_DECREF(callable);
  }
  later_leave(0);
  callback_leave(gil);
  return 0;
}

/* lease_create(lease, context, name, priority, floor, residency_ms, hears) -> handle */
PyObject *native_lease_create(PyObject *module, PyObject *arguments) {
  (void)module;
  gmm_lease_desc desc = {.struct_size = sizeof desc};
  PyObject *lease, *context;
  int priority, hears;
  if (!PyArg_ParseTuple(arguments, "O!OsiO&O&p", &Handle_Type, &lease, &context, &desc.name, &priority, number_64,
                        &desc.floor_bytes, number_64, &desc.residency_ms, &hears))
    return NULL;
  desc.priority = priority;
  desc.asked.fn = hears ? callback_asked : NULL;
  desc.asked.user = lease;
  Handle *held = handle_enter(context, HANDLE_CONTEXT);
  if (!held) return NULL;
  gmm_lease *made = NULL;
  PyThreadState *state = gmm_python_leave_gil();
  const gmm_result result = gmm_lease_create((gmm_context *)held->pointer, &desc, &made);
  gmm_python_take_gil(state);
  handle_leave(held);
  return result < 0 ? gmm_python_raise(result) : PyLong_FromVoidPtr(made);
}

/* lease_offer(lease, tag, cost): cost None: withdraws it */
PyObject *native_lease_offer(PyObject *module, PyObject *arguments) {
  (void)module;
  PyObject *lease, *cost;
  gmm_tag tag;
  if (!PyArg_ParseTuple(arguments, "OO&O", &lease, number_32, &tag, &cost)) return NULL;
  const unsigned long number = cost == Py_None ? GMM_LEASE_WITHDRAW : PyLong_AsUnsignedLong(cost);
  if (PyErr_Occurred()) return NULL;
  if (cost != Py_None && number >= GMM_LEASE_WITHDRAW) {
    PyErr_Format(PyExc_ValueError, "a cost is 0 to %lu, not %lu", (unsigned long)GMM_LEASE_WITHDRAW - 1, number);
    return NULL;
  }
  Handle *held = handle_enter(lease, HANDLE_LEASE);
  if (!held) return NULL;
  PyThreadState *state = gmm_python_leave_gil();
  const gmm_result result = gmm_lease_offer((gmm_lease *)held->pointer, tag, (uint32_t)number);
  gmm_python_take_gil(state);
  handle_leave(held);
  if (result < 0) return gmm_python_raise(result);
  Py_RETURN_NONE;
}

/* lease_request(lease, ((device, bytes), ...), timeout_ms) -> handle of a ticket */
PyObject *native_lease_request(PyObject *module, PyObject *arguments) {
  (void)module;
  PyObject *lease, *pairs;
  uint64_t timeout;
  if (!PyArg_ParseTuple(arguments, "OO!O&", &lease, &PyTuple_Type, &pairs, number_64, &timeout)) return NULL;
  const Py_ssize_t count = PyTuple_GET_SIZE(pairs);
  gmm_lease_amount *amounts = PyMem_Calloc((size_t)count + 1, sizeof *amounts);
  if (!amounts) return PyErr_NoMemory();
  gmm_ticket *ticket = NULL;
  gmm_result result = GMM_OK;
  Handle *held = NULL;
  for (Py_ssize_t i = 0; i < count; ++i) {
    int device;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(pairs, i), "iO&", &device, number_64, &amounts[i].bytes)) goto end;
    amounts[i].device = device;
  }
  held = handle_enter(lease, HANDLE_LEASE);
  if (held) {
    const gmm_lease_request_desc desc = {
        .struct_size = sizeof desc, .amounts = amounts, .amount_count = (uint32_t)count, .timeout_ms = timeout};
    PyThreadState *state = gmm_python_leave_gil();
    result = gmm_lease_request((gmm_lease *)held->pointer, &desc, &ticket);
    gmm_python_take_gil(state);
    handle_leave(held);
  }
end:
  PyMem_Free(amounts);
  if (result < 0) return gmm_python_raise(result);
  return PyErr_Occurred() ? NULL : PyLong_FromVoidPtr(ticket);
}

/* lease_return(lease) -> whether it was in use */
PyObject *native_lease_return(PyObject *module, PyObject *lease) {
  (void)module;
  Handle *held = handle_enter(lease, HANDLE_LEASE);
  if (!held) return NULL;
  PyThreadState *state = gmm_python_leave_gil();
  const gmm_result result = gmm_lease_return((gmm_lease *)held->pointer);
  gmm_python_take_gil(state);
  handle_leave(held);
  return result < 0 ? gmm_python_raise(result) : PyBool_FromLong(result == GMM_OK);
}

/* lease_query(lease) -> the fields of gmm_lease_info after its size */
PyObject *native_lease_query(PyObject *module, PyObject *lease) {
  (void)module;
  Handle *held = handle_enter(lease, HANDLE_LEASE);
  if (!held) return NULL;
  gmm_lease_info info = {.struct_size = sizeof info};
  PyThreadState *state = gmm_python_leave_gil();
  const gmm_result result = gmm_lease_query((gmm_lease *)held->pointer, &info);
  gmm_python_take_gil(state);
  handle_leave(held);
  if (result < 0) return gmm_python_raise(result);
  return Py_BuildValue("IKiKKKKKKK", (unsigned)info.state, (unsigned long long)info.server, (int)info.server_process,
                       (unsigned long long)info.grants, (unsigned long long)info.shorts, (unsigned long long)info.asked,
                       (unsigned long long)info.evictions, (unsigned long long)info.evicted_bytes,
                       (unsigned long long)info.active_bytes, (unsigned long long)info.paused_bytes);
}

/* lease_list(context, index, timeout_ms) -> the fields of gmm_lease_entry_info after its size, without its numbers of
 * entries; None: there is no such entry */
PyObject *native_lease_list(PyObject *module, PyObject *arguments) {
  (void)module;
  PyObject *context;
  uint64_t index, timeout;
  if (!PyArg_ParseTuple(arguments, "OO&O&", &context, number_64, &index, number_64, &timeout)) return NULL;
  Handle *held = handle_enter(context, HANDLE_CONTEXT);
  if (!held) return NULL;
  gmm_lease_entry_info entry = {.struct_size = sizeof entry};
  PyThreadState *state = gmm_python_leave_gil();
  const gmm_result result = gmm_lease_list((gmm_context *)held->pointer, index, timeout, &entry);
  gmm_python_take_gil(state);
  handle_leave(held);
  if (result < 0) return gmm_python_raise(result);
  if (result == GMM_UNCHANGED) Py_RETURN_NONE;
  return Py_BuildValue("sIiiKy#KKKKKKKi", entry.name, (unsigned)entry.state, (int)entry.process, (int)entry.priority,
                       (unsigned long long)entry.since_ms, (const char *)entry.uuid, (Py_ssize_t)sizeof entry.uuid,
                       (unsigned long long)entry.free_bytes, (unsigned long long)entry.held_bytes,
                       (unsigned long long)entry.floor_bytes, (unsigned long long)entry.offered_bytes,
                       (unsigned long long)entry.wanted_bytes, (unsigned long long)entry.granted_bytes,
                       (unsigned long long)entry.server, (int)entry.server_process);
}
