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
/* A method of the context makes this call, and refuses calls of other threads meanwhile. */
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
GMM_QUICK(gmm_pause_desc::add_tag)
GMM_QUICK(gmm_pause_desc::set_progress)
GMM_QUICK(gmm_ticket_query)
GMM_QUICK(gmm_ticket_cancel)
GMM_QUICK(gmm_backup_desc::set_directory)
GMM_QUICK(gmm_tags::at)
GMM_QUICK(gmm_context_desc::set_log)

%include "gmm.i"

/* Watchers. The callback passes the fields of gmm_watch_info. */
%ignore gmm_watcher;
%ignore gmm_watch_info;
%ignore gmm_watch_callback;
%ignore gmm_watch_desc::callback;
GMM_OWNER(gmm_watch_desc, free((void *)$self->name);)
GMM_OWNED_TEXT(gmm_watch_desc, name)
%extend gmm_watch_desc {
  void set_callback(gmm_watch_fn fn, void *user) {
    $self->callback.fn = fn;
    $self->callback.user = user;
  }
}
%include <gmm/watch.h>

/* SWIG's initialiser returns a module or a number, by its version. In both an exception fails the import. */
%init %{
  /* SWIG makes these at their first use, without a lock. Its table of types does not change later, as no class has a
   * base. */
#if SWIG_VERSION < 0x040400
  (void)SWIG_This();
  (void)SWIG_Python_TypeCache();
  (void)SwigPyObject_type();
  (void)SwigPyPacked_type();
#endif
  (void)native_init(m);
%}
