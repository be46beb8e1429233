/* SPDX-License-Identifier: Apache-2.0 */
/* gmm_reset() beside other threads. Calls of other threads that use the context refuse the reset, and the reset refuses
 * calls that come meanwhile. An object may die at any time, so its free is noted: when the library refuses the reset,
 * its memory still lives. */
#include <stdlib.h>

#include "native.h"

struct FreedInReset {
  struct FreedInReset *next;
  void *address;
  Handle *stream;
  gmm_stream raw_stream;
};

int reset_note_free(Memory *memory) {
  Handle *context = memory->context;
  if (!memory->open || memory->origin != MEMORY_ALLOCATED || !context || !context->resetting ||
      memory->resets != context->resets - 1)
    return 0;
  struct FreedInReset *freed = malloc(sizeof *freed);
  if (!freed) {
    PyErr_NoMemory();
    return -1;
  }
  Py_XINCREF(memory->stream);
  *freed = (struct FreedInReset){context->freed_in_reset, memory->address, memory->stream, memory->raw_stream};
  context->freed_in_reset = freed;
  return 0;
}

/* Carries out the noted frees of a refused reset. Returns the result of the first free that failed. */
static gmm_result end_frees(Handle *context, int refused) {
  gmm_result result = GMM_OK;
  struct FreedInReset *freed = context->freed_in_reset;
  context->freed_in_reset = NULL;
  while (freed) {
    struct FreedInReset *next = freed->next;
    if (refused) {
      const gmm_stream stream = freed->stream ? (gmm_stream)freed->stream->pointer : freed->raw_stream;
      if (freed->stream) ++freed->stream->users;
      PyThreadState *state = gmm_python_leave_gil();
      const gmm_result failed = gmm_free((gmm_context *)context->pointer, freed->address, stream);
      gmm_python_take_gil(state);
      if (freed->stream) --freed->stream->users;
      if (failed < 0 && result >= 0) result = failed;
    }
    Py_XDECREF(freed->stream);
    free(freed);
    freed = next;
  }
  return result;
}

PyObject *handle_reset(PyObject *self, PyObject *unused) {
  (void)unused;
  Handle *context = handle_enter(self, HANDLE_CONTEXT);
  if (!context) return NULL;
  PyObject *done = NULL;
  if (context->exports > 0) {
    PyErr_Format(PyExc_BufferError,
                 "cannot reset: %zd views of the context's memory live; release or delete them first",
                 context->exports);
  } else if (context->users > 1) {
    PyErr_SetString(PyExc_RuntimeError, "cannot reset: calls on other threads use the context; let them end first");
  } else {
    context->resetting = 1;
    ++context->resets; /* before the GIL is released: no thread uses memory that the reset may have freed */
    PyThreadState *state = gmm_python_leave_gil();
    const gmm_result result = gmm_reset((gmm_context *)context->pointer);
    gmm_python_take_gil(state);
    context->resetting = 0;
    /* These results come before anything is freed. After any other failure some memory may be gone, so all of it stays
     * closed. */
    const int refused = result == GMM_ERROR_BUSY || result == GMM_ERROR_CAPTURING || result == GMM_ERROR_FORKED;
    if (refused) --context->resets;
    if (result < 0) gmm_python_raise(result);
    const gmm_result freed = end_frees(context, refused);
    if (freed < 0 && freed != GMM_ERROR_FORKED && !PyErr_Occurred()) gmm_python_raise(freed);
    if (!PyErr_Occurred()) {
      Py_INCREF(Py_None);
      done = Py_None;
    }
  }
  handle_leave(context);
  return done;
}
