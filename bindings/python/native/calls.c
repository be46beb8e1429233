/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"

static __thread int inside;

PyThreadState *gmm_python_leave_gil(void) {
  ++inside;
  return PyEval_SaveThread();
}

void gmm_python_take_gil(PyThreadState *state) {
  PyEval_RestoreThread(state);
  --inside;
  if (inside == 0) later_settle_owed();
}

int gmm_python_thread_is_inside(void) { return inside > 0; }
