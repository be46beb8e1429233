/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file guard.h
 * Guards of the fields of the module's objects: the GIL, or atomic words and critical sections in a Python without.
 *
 * A state is one word that holds whether an object is open, who uses it and which views it has. So closing is one
 * compare-and-swap, and nobody comes in between. With a GIL these functions are plain loads and stores.
 */
#ifndef GMM_PYTHON_GUARD_H
#define GMM_PYTHON_GUARD_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
/* Python.h comes first. */
#include <stdint.h>

typedef uint64_t State;
#define STATE_USER ((State)1)            /* bits 0 to 30: calls that use it */
#define STATE_EXPORT ((State)1 << 31)    /* bits 31 to 61: live views */
#define STATE_OPEN ((State)1 << 62)      /* 0 in a new object */
#define STATE_RESETTING ((State)1 << 63) /* a context during gmm_reset() */

static inline Py_ssize_t state_users(State state) { return (Py_ssize_t)(state & (STATE_EXPORT - 1)); }
static inline Py_ssize_t state_exports(State state) { return (Py_ssize_t)((state & (STATE_OPEN - 1)) >> 31); }

#ifdef Py_GIL_DISABLED

#define GUARD_BEGIN(object) Py_BEGIN_CRITICAL_SECTION(object);
#define GUARD_END() Py_END_CRITICAL_SECTION();
#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define STORE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELEASE)

/** Adds to a state and returns what it was. */
static inline State state_add(State *state, State change) {
  return __atomic_fetch_add(state, change, __ATOMIC_SEQ_CST);
}
/** Changes a state that is `*expected`; false, with the state in *expected, when it is another. */
static inline int state_change(State *state, State *expected, State wanted) {
  return __atomic_compare_exchange_n(state, expected, wanted, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

#else

#define GUARD_BEGIN(object) \
  {                         \
    (void)(object);
#define GUARD_END() }
#define LOAD(place) (place)
#define STORE(place, value) ((place) = (value))

static inline State state_add(State *state, State change) {
  const State before = *state;
  *state = before + change;
  return before;
}
static inline int state_change(State *state, State *expected, State wanted) {
  if (*state == *expected) {
    *state = wanted;
    return 1;
  }
  *expected = *state;
  return 0;
}

#endif

#endif
