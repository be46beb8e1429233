/* SPDX-License-Identifier: Apache-2.0
 *
 * Watchers, for the languages whose layer is made by SWIG. A language's own file includes this behind gmm.i. It
 * supplies a trampoline and a typemap for
 *   (gmm_watch_fn fn, void *user)
 * and applies its typemaps of handles to gmm_watcher *.
 */
%apply SWIGTYPE **GMM_OUT_HANDLE { gmm_watcher **out }
%ignore gmm_watcher;
/* The trampoline passes its fields. */
%ignore gmm_watch_info;
%ignore gmm_watch_info::event; /* a word of C# */
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
