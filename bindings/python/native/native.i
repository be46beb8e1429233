/* SPDX-License-Identifier: Apache-2.0
 *
 * gmm._native: the C functions under their C names, for the package's own use. A call returns its result and then its
 * outputs: code, address = gmm_alloc(context, size, desc).
 */
%module(package="gmm") native

%{
#include "native.h"
%}

%include <stdint.i>
%include "catalogue.i"

/* Every call releases the GIL, ... */
%exception {
  PyThreadState *thread_state = gmm_python_leave_gil();
  $action
  gmm_python_take_gil(thread_state);
}

/* ... except where releasing it costs more than the call. */
%define GMM_QUICK(Function)
%exception Function "$action"
%enddef
GMM_QUICK(gmm_result_name)
GMM_QUICK(gmm_result_text)
GMM_QUICK(gmm_last_error_message)
GMM_QUICK(gmm_last_native_code)
GMM_QUICK(gmm_version)
GMM_QUICK(gmm_version_string)
GMM_QUICK(gmm_tag_push)
GMM_QUICK(gmm_tag_pop)
GMM_QUICK(gmm_ticket_query)
GMM_QUICK(gmm_ticket_cancel)

%include "values.i"
%include "gmm.i"
%include "lease.i"

/* SWIG's initialiser returns a module or a number, by its version. In both an exception fails the import. */
%init %{
  (void)native_init(m);
%}
