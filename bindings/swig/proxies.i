/* SPDX-License-Identifier: Apache-2.0
 *
 * For a language without the values that generate.py writes: its structs, handles and lists are classes of SWIG's own.
 */
%include "handles.i"
%apply uint8_t GMM_BYTES[ANY] { uint8_t uuid[16], uint8_t luid[8], uint8_t bytes[64] }
%include "structs.i"

%{
typedef void (*gmm_log_fn)(void *user, gmm_log_level level, const char *message);
%}
typedef void (*gmm_log_fn)(void *user, gmm_log_level level, const char *message);

/* A snapshot as JSON, in one call: no language needs an object for the copy. */
%{
static gmm_result gmm_snapshot_json(gmm_context *context, gmm_write_fn write, void *user) {
  gmm_snapshot *snapshot = NULL;
  gmm_result result = gmm_snapshot_create(context, NULL, &snapshot);
  if (result < 0) return result;
  result = gmm_snapshot_write(snapshot, write, user);
  gmm_snapshot_destroy(snapshot);
  return result;
}
%}
gmm_result gmm_snapshot_json(gmm_context *context, gmm_write_fn write, void *user);
%ignore gmm_snapshot;
%ignore gmm_snapshot_create;
%ignore gmm_snapshot_query;
%ignore gmm_snapshot_query_block;
%ignore gmm_snapshot_query_extent;
%ignore gmm_extent_info;
%ignore gmm_snapshot_write;
%ignore gmm_snapshot_destroy;
%ignore gmm_snapshot_info;
/* An array that the caller lends: see lists.i. */
%ignore gmm_tag_list;

%ignore gmm_log_callback;
%ignore gmm_host_allocator;
%ignore gmm_context_desc::log;
%ignore gmm_context_desc::host_allocator;

%ignore gmm_pause_desc::progress;
%ignore gmm_progress_callback;

%extend gmm_pause_desc {
  void set_progress(gmm_progress_fn progress, void *user) {
    $self->progress.fn = progress;
    $self->progress.user = user;
  }
}

%extend gmm_context_desc {
  void set_log(gmm_log_fn fn, void *user) {
    $self->log.fn = fn;
    $self->log.user = user;
  }
}
