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
  /** Not before a ticket or a reset has ended: a lease that a ticket keeps from ending, as both died in one cycle, or
   * what dies while another thread resets its context. `seen` is later_changes() before the first try. */
  int waits;
  unsigned seen;
} Later;

/* Nobody takes the GIL, or calls Python or the library, with this mutex held. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Later *items, **last = &items;
static int running;      /* the thread lives */
static int busy;         /* it carries out an item */
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

/* The place of the first item whose time has come, or NULL. The caller holds the mutex. */
static Later **find_due(void) {
  Later **place = &items;
  while (*place && (*place)->waits && (*place)->seen == later_changes()) place = &(*place)->next;
  return *place ? place : NULL;
}

static void *work(void *unused) {
  pthread_mutex_lock(&mutex);
  while (items) {
    Later **place = find_due(), *item = place ? *place : NULL;
    if (!item) {
      pthread_cond_wait(&changed, &mutex);
      continue;
    }
    *place = item->next;
    if (!item->next) last = place;
    busy = 1;
    pthread_mutex_unlock(&mutex);
    PyGILState_STATE gil;
    if (callback_enter(&gil)) { /* else the interpreter ends: the process's end frees the rest */
      carry_out(item);
      callback_leave(gil);
    }
    pthread_mutex_lock(&mutex);
    busy = 0;
    pthread_cond_broadcast(&changed);
  }
  running = 0;
  pthread_mutex_unlock(&mutex);
  return unused;
}

/* The caller holds the mutex. When the thread cannot start, the next item starts it. */
static void start(void) {
  pthread_attr_t attributes;
  pthread_t thread;
  if (running || pthread_attr_init(&attributes) != 0) return;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  running = pthread_create(&thread, &attributes, work, NULL) == 0;
  pthread_attr_destroy(&attributes);
}

int later_end(Handle *handle, PyObject *stream, const unsigned *seen) {
  Later *item = calloc(1, sizeof *item);
  if (!item) return 0;
  Py_INCREF(handle);
  Py_INCREF(stream);
  *item = (Later){NULL, handle, stream, seen != NULL, seen ? *seen : 0};
  is_owed |= seen == NULL;
  pthread_mutex_lock(&mutex);
  *last = item;
  last = &item->next;
  start();
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
  return 1;
}

unsigned later_changes(void) { return __atomic_load_n(&changes, __ATOMIC_SEQ_CST); }

void later_changed(void) {
  __atomic_add_fetch(&changes, 1, __ATOMIC_SEQ_CST);
  pthread_mutex_lock(&mutex);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

void later_settle(void) {
  if (later_ends()) return;
  PyThreadState *state = PyEval_SaveThread();
  pthread_mutex_lock(&mutex);
  while (running && (busy || find_due())) pthread_cond_wait(&changed, &mutex);
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
  items = NULL;
  last = &items;
  running = busy = 0;
}
