// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "api/arguments.h"
#include "api/pause_arguments.h"

using namespace gmm;

gmm_result gmm_tag_create(gmm_context *context, const char *name, const gmm_tag_desc *desc, gmm_tag *out) noexcept {
  gmm_tag_desc copy;
  Status status = Context::check(context);
  if (status.ok()) status = check_not_null(name, "gmm_tag_create", "name");
  if (status.ok()) status = check_not_null(out, "gmm_tag_create", "out");
  if (status.ok()) status = read_tag_desc(desc, &copy);
  if (status.ok()) status = context->tags().create(name, desc == nullptr ? nullptr : &copy, out);
  return result_of(status);
}

gmm_result gmm_tag_configure(gmm_context *context, gmm_tag tag, const gmm_tag_desc *desc) noexcept {
  gmm_tag_desc copy;
  Status status = Context::check(context);
  if (status.ok()) status = Watchers::check_no_operation("gmm_tag_configure");
  if (status.ok()) status = check_not_null(desc, "gmm_tag_configure", "desc");
  if (status.ok()) status = read_tag_desc(desc, &copy);
  if (status.ok()) status = context->configure_tag(tag, copy);
  return result_of(status);
}

gmm_result gmm_tag_destroy(gmm_context *context, gmm_tag tag) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = Watchers::check_no_operation("gmm_tag_destroy");
  if (status.ok()) status = context->destroy_tag(tag);
  return result_of(status);
}

gmm_result gmm_tag_list(gmm_context *context, gmm_tag *tags, uint32_t capacity, uint32_t *count) noexcept {
  Status status = Context::check(context);
  if (status.ok() && capacity != 0) status = check_not_null(tags, "gmm_tag_list", "tags");
  if (status.ok()) status = check_not_null(count, "gmm_tag_list", "count");
  if (status.ok()) context->tags().list(tags, capacity, count);
  return result_of(status);
}

gmm_result gmm_tag_find(gmm_context *context, const char *name, gmm_tag *out) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = check_not_null(name, "gmm_tag_find", "name");
  if (status.ok()) status = check_not_null(out, "gmm_tag_find", "out");
  if (status.ok()) status = context->tags().find(name, out);
  return result_of(status);
}

gmm_result gmm_tag_push(gmm_context *context, gmm_tag tag) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = context->tags().push(tag);
  return result_of(status);
}

gmm_result gmm_tag_pop(gmm_context *context) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = context->tags().pop();
  return result_of(status);
}

gmm_result gmm_tag_set_default(gmm_context *context, gmm_tag tag) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = context->tags().set_default(tag);
  return result_of(status);
}

gmm_result gmm_pause(gmm_context *context, const gmm_pause_desc *desc, uint64_t *bytes) noexcept {
  PauseRequest request;
  uint64_t went = 0;
  Status status = read_pause(context, desc, kPauseFlags, &request);
  if (status.ok()) status = Watchers::check_no_operation("gmm_pause");
  if (status.ok()) status = context->pause(request, &went);
  if (status.ok() && bytes != nullptr) *bytes = went;
  return result_of(status);
}

gmm_result gmm_resume(gmm_context *context, const gmm_pause_desc *desc, uint64_t *bytes) noexcept {
  PauseRequest request;
  uint64_t came = 0;
  Status status = read_pause(context, desc, GMM_RESUME_RETAIN, &request);
  if (status.ok()) status = Watchers::check_no_operation("gmm_resume");
  if (status.ok()) status = context->resume(request, &came);
  if (status.ok() && bytes != nullptr) *bytes = came;
  return result_of(status);
}

gmm_result gmm_resume_range(gmm_context *context, const void *address, uint64_t size, uint64_t *bytes) noexcept {
  uint64_t came = 0;
  Status status = check_range_of(context, address, size, "gmm_resume_range");
  if (status.ok()) status = Watchers::check_no_operation("gmm_resume_range");
  if (status.ok()) status = context->resume_range(ByteRange{reinterpret_cast<uintptr_t>(address), size}, &came);
  if (status.ok() && bytes != nullptr) *bytes = came;
  return result_of(status);
}

gmm_result gmm_resume_wait(gmm_context *context, const void *address, uint64_t size, uint64_t timeout_ms) noexcept {
  Status status = check_range_of(context, address, size, "gmm_resume_wait");
  if (status.ok()) status = context->pauser().wait_ready(address, size, timeout_ms);
  return result_of(status);
}

gmm_result gmm_tag_query(gmm_context *context, gmm_tag tag, gmm_tag_info *out) noexcept {
  return answer(Context::check(context), out, [&](gmm_tag_info *info) -> Status {
    const Tag *known = context->tags().get(tag);
    if (known == nullptr) return TagTable::unknown(tag);
    info->tag = tag;
    info->contents = known->contents.load(std::memory_order_relaxed);
    info->priority = known->priority.load(std::memory_order_relaxed);
    info->flags = known->flags.load(std::memory_order_relaxed);
    info->pauses = known->pauses.load(std::memory_order_relaxed);
    std::snprintf(info->name, sizeof info->name, "%s", known->name);
    context->pauser().query(tag, info);
    return Status();
  });
}
