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

static int is_in_reset(const Memory *memory) {
  return (LOAD(memory->context->state) & STATE_RESETTING) && memory->resets == LOAD(memory->context->resets) - 1;
}

int reset_note_free(Memory *memory) {
  Handle *context = memory->context;
  if (!(LOAD(memory->state) & STATE_OPEN) || memory->origin != MEMORY_ALLOCATED || !is_in_reset(memory)) return 1;
  struct FreedInReset *freed = malloc(sizeof *freed);
  if (!freed) {
    PyErr_NoMemory();
    return -1;
  }
  int noted;
  GUARD_BEGIN(context)
  noted = is_in_reset(memory); /* still */
  if (noted) {
    Py_XINCREF(memory->stream);
    *freed = (struct FreedInReset){context->freed_in_reset, memory->address, memory->stream, memory->raw_stream};
    context->freed_in_reset = freed;
  }
  GUARD_END()
  if (noted) return 0;
  free(freed);
  return 1;
}

/* Carries out the noted frees of a refused reset. Returns the result of the first free that failed. */
static gmm_result end_frees(Handle *context, int refused) {
  gmm_result result = GMM_OK;
  struct FreedInReset *freed;
  GUARD_BEGIN(context)
  freed = context->freed_in_reset;
  context->freed_in_reset = NULL;
  GUARD_END()
  while (freed) {
    struct FreedInReset *next = freed->next;
    if (refused) {
      const int is_open = freed->stream && handle_try_enter(freed->stream) == ENTERED;
      gmm_stream stream = is_open         ? (gmm_stream)freed->stream->pointer
                          : freed->stream ? GMM_STREAM_DEFAULT
                                          : freed->raw_stream;
      PyThreadState *state = gmm_python_leave_gil();
      const gmm_result failed = gmm_free((gmm_context *)context->pointer, freed->address, stream);
      gmm_python_take_gil(state);
      if (is_open) handle_leave_only(freed->stream);
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
  later_settle();
  Handle *context = handle_enter(self, HANDLE_CONTEXT);
  if (!context) return NULL;
  PyObject *done = NULL;
  State state = STATE_OPEN + STATE_USER; /* this call is its only user, and there is no view */
  if (!state_change(&context->state, &state, state + STATE_RESETTING)) {
    if (state_exports(state) > 0)
      PyErr_Format(PyExc_BufferError,
                   "cannot reset: %zd views of the context's memory live; release or delete them first",
                   state_exports(state));
    else
      PyErr_SetString(PyExc_RuntimeError, "cannot reset: calls on other threads use the context; let them end first");
  } else {
    /* Before the GIL is released: no thread uses memory that the reset may have freed. */
    STORE(context->resets, context->resets + 1);
    PyThreadState *state = gmm_python_leave_gil();
    const gmm_result result = gmm_reset((gmm_context *)context->pointer);
    gmm_python_take_gil(state);
    /* These results come before anything is freed. After any other failure some memory may be gone, so all of it stays
     * closed. */
    const int refused = result == GMM_ERROR_BUSY || result == GMM_ERROR_CAPTURING || result == GMM_ERROR_FORKED;
    if (refused) STORE(context->resets, context->resets - 1);
    state_add(&context->state, (State)0 - STATE_RESETTING);
    later_reset_ended();
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
