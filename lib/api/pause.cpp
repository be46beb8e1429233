// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "api/arguments.h"

using namespace gmm;

namespace {

Status read_pause(const Context &context, const gmm_pause_desc *desc, uint32_t flags, gmm_pause_desc *out) {
  GMM_TRY(read_descriptor(desc, "gmm_pause_desc", out));
  GMM_TRY(check_flags(out->flags, flags, "gmm_pause_desc.flags"));
  GMM_TRY(check_zero(out->reserved, "gmm_pause_desc.reserved"));
  if (out->tag_count != 0) GMM_TRY(check_not_null(out->tags, "gmm_pause_desc", "tags"));
  for (uint32_t i = 0; i < out->tag_count; ++i) GMM_TRY(check_tag(context, out->tags[i]));
  return Status();
}

}  // namespace

gmm_result gmm_tag_create(gmm_context *context, const char *name, const gmm_tag_desc *desc, gmm_tag *out) noexcept {
  gmm_tag_desc copy;
  Status status = Context::check(context);
  if (status.ok()) status = check_not_null(name, "gmm_tag_create", "name");
  if (status.ok()) status = check_not_null(out, "gmm_tag_create", "out");
  if (status.ok()) status = read_descriptor(desc, "gmm_tag_desc", &copy);
  if (status.ok()) status = check_zero(copy.reserved, "gmm_tag_desc.reserved");
  if (status.ok()) status = context->tags.create(name, desc == nullptr ? nullptr : &copy, out);
  return result_of(status);
}

gmm_result gmm_tag_find(gmm_context *context, const char *name, gmm_tag *out) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = check_not_null(name, "gmm_tag_find", "name");
  if (status.ok()) status = check_not_null(out, "gmm_tag_find", "out");
  if (status.ok()) status = context->tags.find(name, out);
  return result_of(status);
}

gmm_result gmm_tag_push(gmm_context *context, gmm_tag tag) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = context->tags.push(tag);
  return result_of(status);
}

gmm_result gmm_tag_pop(gmm_context *context) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = context->tags.pop();
  return result_of(status);
}

gmm_result gmm_tag_set_process_default(gmm_context *context, gmm_tag tag) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = context->tags.set_process_default(tag);
  return result_of(status);
}

gmm_result gmm_pause(gmm_context *context, const gmm_pause_desc *desc, uint64_t *bytes) noexcept {
  gmm_pause_desc copy;
  uint64_t went = 0;
  Status status = Context::check(context);
  if (status.ok()) status = read_pause(*context, desc, GMM_PAUSE_FORCE, &copy);
  if (status.ok()) status = context->pauser.pause(copy.tags, copy.tag_count, copy.flags, &went);
  if (status.ok() && context->trace.running()) context->trace.paused(copy.tags, copy.tag_count, went);
  if (status.ok() && bytes != nullptr) *bytes = went;
  return result_of(status);
}

gmm_result gmm_resume(gmm_context *context, const gmm_pause_desc *desc, uint64_t *bytes) noexcept {
  gmm_pause_desc copy;
  uint64_t came = 0;
  Status status = Context::check(context);
  if (status.ok()) status = read_pause(*context, desc, 0, &copy);
  if (status.ok()) status = context->pauser.resume(copy.tags, copy.tag_count, &came);
  if (status.code() == GMM_ERROR_OUT_OF_MEMORY || status.code() == GMM_ERROR_LIMIT_EXCEEDED) {
    // What is free elsewhere may be enough.
    MessageGuard keep;
    gmm_scope everything = {};
    uint64_t released = 0;
    if (context->trim(everything, &released).ok() && released != 0) {
      const Status again = context->pauser.resume(copy.tags, copy.tag_count, &came);
      if (again.ok()) status = again;
    }
  }
  if (status.ok() && context->trace.running()) context->trace.resumed(copy.tags, copy.tag_count, came);
  if (status.ok() && bytes != nullptr) *bytes = came;
  return result_of(status);
}

gmm_result gmm_pause_query(gmm_context *context, gmm_tag tag, gmm_pause_info *out) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = check_output(out, "gmm_pause_info");
  if (status.ok()) status = check_tag(*context, tag);
  if (!status.ok()) return result_of(status);
  const Tag &known = *context->tags.get(tag);
  gmm_pause_info info = {};
  info.tag = tag;
  info.contents = known.contents;
  info.priority = known.priority;
  info.pauses = known.pauses.load(std::memory_order_relaxed);
  std::snprintf(info.name, sizeof info.name, "%s", known.name);
  context->pauser.query(tag, &info);
  write_output(info, out);
  return GMM_OK;
}
