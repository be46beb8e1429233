/* SPDX-License-Identifier: Apache-2.0 */
/* What may not be given back inside a callback. A progress callback runs with locks of the library held, and a call of
 * a stream on the thread that the stream's end waits for. A log callback may run on a thread that the end of a context
 * or of a ticket joins. The garbage collector, or the last reference that goes, may still ask for a free there. So a
 * thread of the module carries it out, which lives as long as there is something to do. */
#include <pthread.h>
#include <stdlib.h>

#include "native.h"

typedef struct Later {
  struct Later *next;
  Handle *handle;  /**< to be closed, or NULL: a block */
  Handle *context; /**< entered, as is the stream */
  Handle *stream;
  gmm_stream raw_stream;
  void *address;
  MemoryOrigin origin;
  PyObject *source; /**< what a pin holds */
} Later;

/* Nobody takes the GIL, or calls Python or the library, with this mutex held. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Later *first, **last = &first;
static Py_ssize_t pending; /* those under way too */
static int running;        /* the thread lives */
static Later *leases;      /* those that a ticket keeps from ending: both died in one cycle, the lease first */
static unsigned ticket_ends;
static Later *resetting; /* those whose context is being reset */

static __thread int no_frees, no_ends; /* callbacks that this thread is in */
static __thread int is_owed;           /* this thread has left something, and its call has not returned */

int later_frees(void) { return no_frees > 0; }
int later_ends(void) { return no_ends > 0; }

void later_enter(int frees) {
  no_frees += frees;
  ++no_ends;
}

void later_leave(int frees) {
  no_frees -= frees;
  --no_ends;
}

static void carry_out(Later *item) {
  if (item->handle) {
    handle_end(item->handle);
    Py_DECREF(item->handle);
  } else {
    PyThreadState *state = gmm_python_leave_gil();
    const gmm_result result =
        memory_release((gmm_context *)item->context->pointer, item->origin, item->address, item->raw_stream);
    gmm_python_take_gil(state);
    if (result < 0 && result != GMM_ERROR_FORKED) {
      gmm_python_raise(result);
      PyErr_WriteUnraisable((PyObject *)item->context);
    }
    handle_leave(item->stream);
    handle_leave(item->context);
    Py_XDECREF(item->source);
  }
  free(item);
}

static void *work(void *unused) {
  for (;;) {
    PyGILState_STATE gil;
    const int is_alive = callback_enter(&gil);
    pthread_mutex_lock(&mutex);
    Later *item = is_alive ? first : NULL;
    if (item) {
      first = item->next;
      if (!first) last = &first;
    } else { /* nothing is left, or the interpreter ends: the process's end frees the rest */
      running = 0;
      pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&mutex);
    if (item) {
      carry_out(item);
      pthread_mutex_lock(&mutex);
      --pending;
      pthread_mutex_unlock(&mutex);
    }
    if (is_alive) callback_leave(gil);
    if (!item) return unused;
  }
}

/* The caller holds the mutex. */
static void append(Later *item) {
  item->next = NULL;
  *last = item;
  last = &item->next;
  ++pending;
  if (!running) { /* when it cannot start, the next item starts it */
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes) == 0) {
      pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
      running = pthread_create(&thread, &attributes, work, NULL) == 0;
      pthread_attr_destroy(&attributes);
    }
  }
}

static void add(Later *item) {
  is_owed = 1;
  pthread_mutex_lock(&mutex);
  append(item);
  pthread_mutex_unlock(&mutex);
}

int later_free(Memory *memory, gmm_stream stream, Handle *held_stream) {
  Later *item = calloc(1, sizeof *item);
  if (!item) return 0;
  Handle *context = memory->context;
  if (handle_try_enter(context) != ENTERED) { /* the caller is inside, so it is open */
    free(item);
    return 0;
  }
  Py_INCREF(context);
  item->context = context;
  if (held_stream && handle_try_enter(held_stream) == ENTERED) {
    Py_INCREF(held_stream);
    item->stream = held_stream;
  }
  /* On another thread the per-thread stream is another one; the legacy stream is ordered behind them all. */
  item->raw_stream = stream == GMM_STREAM_PER_THREAD ? GMM_STREAM_LEGACY : stream;
  item->address = memory->address;
  item->origin = memory->origin;
  item->source = memory_take_source(memory);
  add(item);
  return 1;
}

int later_close(Handle *handle) {
  Later *item = calloc(1, sizeof *item);
  if (!item) return 0;
  Py_INCREF(handle);
  item->handle = handle;
  add(item);
  return 1;
}

unsigned later_ticket_ends(void) { return __atomic_load_n(&ticket_ends, __ATOMIC_SEQ_CST); }

int later_wait_ticket(Handle *handle, unsigned seen) {
  Later *item = calloc(1, sizeof *item);
  if (!item) return 0;
  Py_INCREF(handle);
  item->handle = handle;
  pthread_mutex_lock(&mutex);
  if (later_ticket_ends() != seen) { /* it has ended meanwhile */
    append(item);
  } else {
    item->next = leases;
    leases = item;
  }
  pthread_mutex_unlock(&mutex);
  return 1;
}

void later_ticket_ended(void) {
  __atomic_add_fetch(&ticket_ends, 1, __ATOMIC_SEQ_CST);
  pthread_mutex_lock(&mutex);
  while (leases) {
    Later *item = leases;
    leases = item->next;
    append(item);
  }
  pthread_mutex_unlock(&mutex);
}

static int is_being_reset(const Handle *handle) { return (LOAD(handle->parent->state) & STATE_RESETTING) != 0; }

int later_wait_reset(Handle *handle) {
  Later *item = calloc(1, sizeof *item);
  if (!item) return 0;
  Py_INCREF(handle);
  item->handle = handle;
  pthread_mutex_lock(&mutex);
  if (is_being_reset(handle)) {
    item->next = resetting;
    resetting = item;
  } else { /* it is over meanwhile */
    append(item);
  }
  pthread_mutex_unlock(&mutex);
  return 1;
}

/* A context is no longer being reset; others may be. */
void later_reset_ended(void) {
  pthread_mutex_lock(&mutex);
  Later *each = resetting;
  resetting = NULL;
  while (each) {
    Later *const item = each;
    each = item->next;
    if (is_being_reset(item->handle)) {
      item->next = resetting;
      resetting = item;
    } else {
      append(item);
    }
  }
  pthread_mutex_unlock(&mutex);
}

void later_settle(void) {
  if (later_ends() || !LOAD(pending)) return;
  PyThreadState *state = PyEval_SaveThread();
  pthread_mutex_lock(&mutex);
  while (pending > 0 && running) pthread_cond_wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
  PyEval_RestoreThread(state);
}

void later_settle_owed(void) {
  if (__builtin_expect(!is_owed, 1) || later_ends()) return;
  is_owed = 0;
  later_settle();
}

void later_after_fork(void) {
  pthread_mutex_init(&mutex, NULL);
  pthread_cond_init(&changed, NULL);
  first = NULL;
  last = &first;
  pending = 0;
  running = 0;
  leases = NULL;
  resetting = NULL;
}
