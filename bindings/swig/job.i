/* SPDX-License-Identifier: Apache-2.0
 *
 * Jobs, for the languages whose layer is made by SWIG. A language's own file includes this behind gmm.i. It supplies
 * trampolines, and a typemap of `gmm_exchange` as an argument, which makes them of a pointer of the language. It
 * applies its typemaps of handles to gmm_job *.
 */
%apply SWIGTYPE **GMM_OUT_HANDLE { gmm_job **out }
%ignore gmm_job;
%ignore gmm_exchange;

GMM_STRUCT(gmm_job_info)
/* A field that holds a result is a number: reading it fails for no result. */
%apply int32_t { gmm_result gmm_job_info::cause };

%apply gmm_result GMM_END { gmm_result gmm_job_pause, gmm_result gmm_job_resume }

GMM_OWNER(gmm_job_desc, free((void *)$self->name);)
GMM_OWNED_TEXT(gmm_job_desc, name)
%ignore gmm_job_desc::exchange;
%extend gmm_job_desc {
  void set_exchange(gmm_exchange exchange) { $self->exchange = exchange; }
}

%include <gmm/job.h>
