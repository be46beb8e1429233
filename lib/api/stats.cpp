// SPDX-License-Identifier: Apache-2.0
#include "api/arguments.h"

using namespace gmm;

namespace gmm {

Status check_scope(const Context &context, const gmm_scope_desc *in, gmm_scope_desc *out) {
  GMM_TRY(read_descriptor(in, out));
  GMM_TRY(check_flags(out->flags, GMM_SCOPE_DEVICE | GMM_SCOPE_TAG | GMM_SCOPE_KIND, "gmm_scope_desc.flags"));
  GMM_TRY(check_zero(out->reserved, "gmm_scope_desc.reserved"));
  if ((out->flags & GMM_SCOPE_DEVICE) != 0) GMM_TRY(check_device(context, out->device));
  if ((out->flags & GMM_SCOPE_TAG) != 0) {
    if (out->tag == GMM_TAG_CURRENT) out->tag = context.tags.current();
    GMM_TRY(check_tag(context, out->tag));
  }
  if ((out->flags & GMM_SCOPE_KIND) != 0 && (out->kind == GMM_KIND_UNSPECIFIED || out->kind > GMM_KIND_MANAGED))
    return fail(GMM_ERROR_INVALID_KIND,
                "gmm_scope_desc.kind = %u is no kind of memory; pass a GMM_KIND_* value above 0.", out->kind);
  return Status();
}

}  // namespace gmm

gmm_result gmm_limit_set(gmm_context *context, const gmm_scope_desc *scope, uint64_t bytes) noexcept {
  gmm_scope_desc copy;
  Status status = Context::check(context);
  if (status.ok()) status = read_descriptor(scope, &copy);
  if (status.ok())
    status = check_flags(copy.flags, GMM_SCOPE_DEVICE | GMM_SCOPE_TAG | GMM_SCOPE_KIND, "gmm_scope_desc.flags");
  if (status.ok() && ((copy.flags & GMM_SCOPE_KIND) != 0 || copy.flags == 0))
    status = fail(GMM_ERROR_INVALID_FLAGS,
                  "gmm_limit_set: scope.flags = 0x%x: a limit applies to a device, a tag, or a tag on a device, not to "
                  "a kind; set those flags only.",
                  copy.flags);
  if (status.ok()) status = check_scope(*context, scope, &copy);
  if (status.ok())
    Limits::set((copy.flags & GMM_SCOPE_TAG) != 0 ? context->tags.get(copy.tag) : nullptr,
                (copy.flags & GMM_SCOPE_DEVICE) != 0 ? &context->held_on[copy.device] : nullptr, copy, bytes);
  return result_of(status);
}

gmm_result gmm_context_set_oom_handler(gmm_context *context, gmm_oom_fn fn, void *user) noexcept {
  const Status status = Context::check(context);
  if (status.ok()) context->limits.set_handler(fn, user);
  return result_of(status);
}

gmm_result gmm_stats_query(gmm_context *context, const gmm_scope_desc *scope, gmm_stats_info *out) noexcept {
  uint32_t size = 0;
  gmm_scope_desc copy;
  Status status = Context::check(context);
  if (status.ok()) status = check_output(out, &size);
  if (status.ok()) status = check_scope(*context, scope, &copy);
  gmm_stats_info statistics = {};
  if (status.ok()) context->collect_ended_captures();
  if (status.ok()) status = collect_statistics(context->heaps, copy, &statistics);
  if (!status.ok()) return result_of(status);
  // The quota of a device or tag knows its true peak. The peaks of its heaps may have been at different times.
  const bool kind = (copy.flags & GMM_SCOPE_KIND) != 0, device = (copy.flags & GMM_SCOPE_DEVICE) != 0,
             tag = (copy.flags & GMM_SCOPE_TAG) != 0;
  if (!kind)
    statistics.peak_reserved_bytes =
        (tag      ? device ? context->tags.get(copy.tag)->held_on[copy.device] : context->tags.get(copy.tag)->held
         : device ? context->held_on[copy.device]
                  : context->held)
            .peak();
  if (copy.flags == 0) {
    statistics.pinned_bytes = context->pins.bytes();
    statistics.imported_bytes = context->ipc.imports.bytes();
    statistics.backend_calls = context->core.backend->calls();
  }
  fill_output(statistics, size, out);
  return GMM_OK;
}

gmm_result gmm_snapshot(gmm_context *context, gmm_write_fn write, void *user) noexcept {
  Status status = Context::check(context);
  if (status.ok() && write == nullptr)
    status = fail(GMM_ERROR_NULL_ARGUMENT, "gmm_snapshot: write is NULL; pass a function.");
  if (status.ok()) context->collect_ended_captures();
  if (status.ok()) status = write_snapshot(context->core, context->heaps, context->tags, write, user);
  return result_of(status);
}

gmm_result gmm_trace_begin(gmm_context *context, const char *path) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = check_not_null(path, "gmm_trace_begin", "path");
  if (status.ok()) status = context->trace.begin(path);
  return result_of(status);
}

gmm_result gmm_trace_end(gmm_context *context) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = context->trace.end();
  return result_of(status);
}

gmm_result gmm_trim(gmm_context *context, const gmm_scope_desc *scope, uint64_t *bytes) noexcept {
  gmm_scope_desc copy;
  Status status = Context::check(context);
  if (status.ok()) status = check_scope(*context, scope, &copy);
  if (!status.ok()) return result_of(status);
  uint64_t released = 0;
  if (context->core.defer_depth.load(std::memory_order_acquire) != 0) {
    context->put_off_trim();
    status = remark(GMM_UNCHANGED, "gmm_trim: the trim is put off to the matching gmm_defer_end().");
  } else {
    status = context->trim_for_program(copy, &released);
    if (status.ok() && context->trace.running()) context->trace.trimmed(released);
  }
  if (status.ok() && bytes != nullptr) *bytes = released;
  return result_of(status);
}

gmm_result gmm_reset(gmm_context *context) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = context->reset();
  return result_of(status);
}

gmm_result gmm_defer_begin(gmm_context *context) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = context->defer_begin();
  return result_of(status);
}

gmm_result gmm_defer_end(gmm_context *context) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = context->defer_end();
  return result_of(status);
}
