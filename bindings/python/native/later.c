/* SPDX-License-Identifier: Apache-2.0 */
/* Frees and ends that must not happen inside a callback. A progress callback runs with locks of the library held, and a
 * call of a stream on the thread that the stream's end waits for. A log callback may run on a thread that the end of a
 * context or of a ticket joins. The garbage collector, or the last reference that goes, may still ask for a free there.
 * So a thread of the module carries it out, which lives as long as there is something to do. */
#include <pthread.h>
#include <stdlib.h>

#include "native.h"

typedef struct Later {
  struct Later *next;
  Handle *handle;
  PyObject *stream; /**< of handle_end() */
} Later;

/* Nobody takes the GIL, or calls Python or the library, with this mutex held. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Later *first, **last = &first;
static Py_ssize_t pending; /* those under way too */
static int running;        /* the thread lives */
/* Tried again when a ticket or a reset has ended: leases that a ticket keeps from ending, as both died in one cycle,
 * and handles and blocks of a context that another thread resets. */
static Later *waiting;
static unsigned changes; /* tickets and resets that have ended */

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
  if (!(LOAD(item->handle->state) & STATE_OPEN)) state_add(&item->handle->state, STATE_OPEN); /* closed beforehand */
  handle_end(item->handle, item->stream, 1);
  Py_DECREF(item->handle);
  Py_DECREF(item->stream);
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

int later_end(Handle *handle, PyObject *stream, const unsigned *seen) {
  Later *item = calloc(1, sizeof *item);
  if (!item) return 0;
  Py_INCREF(handle);
  Py_INCREF(stream);
  item->handle = handle;
  item->stream = stream;
  is_owed |= seen == NULL;
  pthread_mutex_lock(&mutex);
  if (!seen || later_changes() != *seen) { /* it has come since the try */
    append(item);
  } else {
    item->next = waiting;
    waiting = item;
  }
  pthread_mutex_unlock(&mutex);
  return 1;
}

unsigned later_changes(void) { return __atomic_load_n(&changes, __ATOMIC_SEQ_CST); }

void later_changed(void) {
  __atomic_add_fetch(&changes, 1, __ATOMIC_SEQ_CST);
  pthread_mutex_lock(&mutex);
  while (waiting) {
    Later *item = waiting;
    waiting = item->next;
    append(item);
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
  waiting = NULL;
}
