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

/* The descriptor owns the text of the name. */
%ignore gmm_watch_desc::name;
%nodefaultctor gmm_watch_desc;
%nodefaultdtor gmm_watch_desc;
%extend gmm_watch_desc {
  gmm_watch_desc() {
    gmm_watch_desc *made = (gmm_watch_desc *)calloc(1, sizeof(gmm_watch_desc));
    if (made) made->struct_size = (uint32_t)sizeof(gmm_watch_desc);
    return made;
  }
  ~gmm_watch_desc() {
    free((void *)$self->name);
    free($self);
  }
  gmm_result set_name(const char *name) {
    char *copy = name ? strdup(name) : NULL;
    if (name && !copy) return GMM_ERROR_OUT_OF_HOST_MEMORY;
    free((void *)$self->name);
    $self->name = copy;
    return GMM_OK;
  }
  void set_callback(gmm_watch_fn fn, void *user) {
    $self->callback.fn = fn;
    $self->callback.user = user;
  }
}

%include <gmm/watch.h>
