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

/* gmm._native.Handle objects make these calls. */
%ignore gmm_context_release;
%ignore gmm_heap_destroy;
%ignore gmm_stream_destroy;
%ignore gmm_event_destroy;
%ignore gmm_ticket_destroy;
%ignore gmm_watcher_destroy;
%ignore gmm_lease_destroy;
%ignore gmm_snapshot_destroy;
/* A method of the context makes this call, and refuses calls of other threads during it. */
%ignore gmm_reset;
/* gmm_free() stays: a plain address may be freed. */

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
