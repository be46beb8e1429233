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
  Handle *handle;           /**< to be closed, or NULL: a block */
  Handle *context, *stream; /**< of the block; stream NULL: raw_stream */
  gmm_stream raw_stream;
  void *address;
  MemoryOrigin origin;
  Py_ssize_t resets;
  PyObject *source; /**< the memory that a pin holds */
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

static void wait_for_change(Later *item, unsigned seen);

/* A reset that another thread carries out may be refused, so the block of its context waits for its end. */
static void free_block(Later *item) {
  const unsigned seen = later_changes();
  Entry entry = ENTER_CLOSED;
  if (item->origin == MEMORY_ALLOCATED)
    entry = handle_try_enter(item->context);
  else if (handle_enter_anyway(item->context))
    entry = ENTERED;
  if (entry == ENTER_RESETTING) {
    wait_for_change(item, seen);
    return;
  }
  if (entry == ENTERED && (item->origin != MEMORY_ALLOCATED || item->resets == LOAD(item->context->resets))) {
    /* A destroyed stream has finished its work. */
    Handle *stream = item->stream && handle_try_enter(item->stream) == ENTERED ? item->stream : NULL;
    gmm_stream on = stream ? (gmm_stream)stream->pointer : item->stream ? GMM_STREAM_DEFAULT : item->raw_stream;
    PyThreadState *state = gmm_python_leave_gil();
    const gmm_result result = memory_release((gmm_context *)item->context->pointer, item->origin, item->address, on);
    gmm_python_take_gil(state);
    if (result < 0 && result != GMM_ERROR_FORKED) {
      gmm_python_raise(result);
      PyErr_WriteUnraisable((PyObject *)item->context);
    }
    if (stream) handle_leave_only(stream);
  }
  if (entry == ENTERED) handle_leave_only(item->context);
  Py_DECREF(item->context);
  Py_XDECREF(item->stream);
  Py_XDECREF(item->source);
  free(item);
}

static void carry_out(Later *item) {
  if (!item->handle) {
    free_block(item);
    return;
  }
  handle_end(item->handle);
  Py_DECREF(item->handle);
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

static void wait_for_change(Later *item, unsigned seen) {
  pthread_mutex_lock(&mutex);
  if (later_changes() != seen) { /* it has come since the try */
    append(item);
  } else {
    item->next = waiting;
    waiting = item;
  }
  pthread_mutex_unlock(&mutex);
}

int later_free(Memory *memory, gmm_stream stream, Handle *held_stream) {
  Later *item = calloc(1, sizeof *item);
  if (!item) return 0;
  Py_INCREF(memory->context);
  Py_XINCREF(held_stream);
  item->context = memory->context;
  item->stream = held_stream;
  /* On another thread the per-thread stream is another one; the legacy stream is ordered behind them all. */
  item->raw_stream = stream == GMM_STREAM_PER_THREAD ? GMM_STREAM_LEGACY : stream;
  item->address = memory->address;
  item->origin = memory->origin;
  item->resets = memory->resets;
  item->source = memory_take_source(memory);
  add(item);
  return 1;
}

static Later *item_of(Handle *handle) {
  Later *item = calloc(1, sizeof *item);
  if (!item) return NULL;
  Py_INCREF(handle);
  item->handle = handle;
  return item;
}

int later_close(Handle *handle) {
  Later *item = item_of(handle);
  if (item) add(item);
  return item != NULL;
}

int later_wait(Handle *handle, unsigned seen) {
  Later *item = item_of(handle);
  if (item) wait_for_change(item, seen);
  return item != NULL;
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
