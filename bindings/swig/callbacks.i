/* SPDX-License-Identifier: Apache-2.0
 *
 * Callbacks. Each language has C trampolines, and a typemap for each of these pairs of arguments:
 *   (gmm_log_fn fn, void *user)  (gmm_oom_fn fn, void *user)  (gmm_write_fn write, void *user)
 *   (gmm_progress_fn progress, void *user)  (void (*fn)(void *user), void *user)
 * Callbacks that replace the host allocator stay in C, since the library calls them with locks held.
 */
%{
typedef void (*gmm_log_fn)(void *user, gmm_log_level level, const char *message);
%}
typedef void (*gmm_log_fn)(void *user, gmm_log_level level, const char *message);

%ignore gmm_log_callback;
%ignore gmm_host_allocator;
%ignore gmm_context_desc::log;
%ignore gmm_context_desc::host_allocator;

%ignore gmm_pause_desc::progress;
%ignore gmm_pause_desc::progress_user;

%extend gmm_pause_desc {
  void set_progress(gmm_progress_fn progress, void *user) {
    $self->progress = progress;
    $self->progress_user = user;
  }
}

%extend gmm_context_desc {
  void set_log(gmm_log_fn fn, void *user) {
    $self->log.fn = fn;
    $self->log.user = user;
  }
}
