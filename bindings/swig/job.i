/* SPDX-License-Identifier: Apache-2.0
 *
 * Jobs, for the languages whose layer is made by SWIG. A language's own file includes this behind gmm.i. It supplies
 * trampolines, a typemap of `gmm_exchange` as an argument, which makes them of a pointer of the language, and a typemap
 * that lets NOT_READY of these functions out as an exception. It applies its typemaps of handles to gmm_job *.
 */
%apply SWIGTYPE **GMM_OUT_HANDLE { gmm_job **out }
%ignore gmm_job;
%ignore gmm_exchange;

GMM_STRUCT(gmm_job_info)
/* A field that holds a result is a number: reading it fails for no result. */
%apply int32_t { gmm_result gmm_job_info::cause };

/* The descriptor owns the text of the name. */
%ignore gmm_job_desc::name;
%ignore gmm_job_desc::exchange;
%nodefaultctor gmm_job_desc;
%nodefaultdtor gmm_job_desc;
%extend gmm_job_desc {
  gmm_job_desc() {
    gmm_job_desc *made = (gmm_job_desc *)calloc(1, sizeof(gmm_job_desc));
    if (made) made->struct_size = (uint32_t)sizeof(gmm_job_desc);
    return made;
  }
  ~gmm_job_desc() {
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
  void set_exchange(gmm_exchange exchange) { $self->exchange = exchange; }
}

%include <gmm/job.h>
