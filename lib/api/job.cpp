// SPDX-License-Identifier: Apache-2.0
#include "engine/context/job.h"

#include <gmm/job.h>

#include "api/arguments.h"
#include "api/pause_arguments.h"

using namespace gmm;

namespace {

Status read_job(const gmm_job_desc *desc, gmm_job_desc *out) {
  GMM_TRY(check_not_null(desc, "gmm_job_create", "desc"));
  GMM_TRY(read_descriptor(desc, out));
  GMM_TRY(check_flags(out->flags, 0, "gmm_job_desc.flags"));
  GMM_TRY(check_not_null(out->name, "gmm_job_create", "desc->name"));
  GMM_TRY(check_plain_name(out->name, "gmm_job_desc.name", "a job's"));
  GMM_TRY(check_not_null(reinterpret_cast<const void *>(out->exchange.set), "gmm_job_create", "desc->exchange.set"));
  GMM_TRY(check_not_null(reinterpret_cast<const void *>(out->exchange.get), "gmm_job_create", "desc->exchange.get"));
  if (out->rank >= out->ranks)
    return fail(GMM_ERROR_INVALID_VALUE, "gmm_job_desc.rank = %u of %u ranks; ranks count from 0.", out->rank,
                out->ranks);
  if (out->timeout_ms > gmm_job::kMaxTimeout)
    return fail(GMM_ERROR_INVALID_VALUE, "gmm_job_desc.timeout_ms = %" PRIu64 "; pass at most %" PRIu64 ".",
                out->timeout_ms, gmm_job::kMaxTimeout);
  if (out->timeout_ms == 0) out->timeout_ms = gmm_job::kDefaultTimeout;
  return Status();
}

Status check_job(const gmm_job *job) {
  GMM_TRY(check_handle(job, "gmm_job", "job"));
  return Context::check(&job->context);
}

Status run(gmm_job *job, bool is_pause, const gmm_pause_desc *desc, gmm_job_info *info) {
  uint32_t size = 0;
  PauseRequest request;
  GMM_TRY(check_job(job));
  // The other ranks are told what is wrong with this call.
  Status wrong = info != nullptr ? check_output(info, &size) : Status();
  if (wrong.ok()) wrong = Watchers::check_other_thread(is_pause ? "gmm_job_pause" : "gmm_job_resume");
  if (wrong.ok())
    wrong = read_pause(static_cast<gmm_context *>(&job->context), desc,
                       is_pause ? kPauseFlags : uint32_t{GMM_RESUME_RETAIN}, &request);
  GMM_TRY(job->run(is_pause, request, wrong));
  if (info != nullptr) fill_output(job->query(), size, info);
  return Status();
}

}  // namespace

gmm_result gmm_job_create(gmm_context *context, const gmm_job_desc *desc, gmm_job **out) noexcept {
  gmm_job_desc copy;
  Status status = Context::check(context);
  if (status.ok()) status = check_not_null(out, "gmm_job_create", "out");
  if (status.ok()) status = read_job(desc, &copy);
  if (status.ok()) status = gmm_job::create(*context, copy, out);
  return result_of(status, out);
}

gmm_result gmm_job_pause(gmm_job *job, const gmm_pause_desc *desc, gmm_job_info *info) noexcept {
  return result_of(run(job, true, desc, info));
}

gmm_result gmm_job_resume(gmm_job *job, const gmm_pause_desc *desc, gmm_job_info *info) noexcept {
  return result_of(run(job, false, desc, info));
}

gmm_result gmm_job_query(gmm_job *job, gmm_job_info *info) noexcept {
  uint32_t size = 0;
  Status status = check_job(job);
  if (status.ok()) status = check_output(info, &size);
  if (status.ok()) fill_output(job->query(), size, info);
  return result_of(status);
}

gmm_result gmm_job_destroy(gmm_job *job) noexcept {
  if (job == nullptr) return GMM_OK;
  Status status = check_job(job);
  if (status.ok()) status = Watchers::check_other_thread("gmm_job_destroy");
  if (status.ok()) status = gmm_job::destroy(job);
  return result_of(status);
}
