// SPDX-License-Identifier: Apache-2.0
#include "api/arguments.h"
#include "engine/context/transition.h"

using namespace gmm;

// The quota of a checked scope without a kind.
static Quota &quota_of(Context &context, const gmm_scope_desc &scope) {
  const bool device = (scope.flags & GMM_SCOPE_DEVICE) != 0;
  if ((scope.flags & GMM_SCOPE_TAG) == 0) return device ? context.held_on[scope.device] : context.held;
  Tag &tag = *context.tags.get(scope.tag);
  return device ? tag.held_on[scope.device] : tag.held;
}

// A field without its flag is a flag that was forgotten.
static Status check_unused(uint32_t flag, uint32_t value, const char *field, const char *name) {
  if (flag != 0 || value == 0) return Status();
  return fail(GMM_ERROR_INVALID_DESCRIPTOR,
              "gmm_scope_desc.%s = %d, but flags lack GMM_SCOPE_%s; set the flag, or clear the field.", field,
              static_cast<int32_t>(value), name);
}

namespace gmm {

Status check_scope(const Context &context, const gmm_scope_desc *in, gmm_scope_desc *out) {
  GMM_TRY(read_descriptor(in, out));
  GMM_TRY(check_flags(out->flags, GMM_SCOPE_DEVICE | GMM_SCOPE_TAG | GMM_SCOPE_KIND, "gmm_scope_desc.flags"));
  GMM_TRY(check_zero(out->reserved, "gmm_scope_desc.reserved"));
  GMM_TRY(check_unused(out->flags & GMM_SCOPE_DEVICE, static_cast<uint32_t>(out->device), "device", "DEVICE"));
  GMM_TRY(check_unused(out->flags & GMM_SCOPE_TAG, out->tag, "tag", "TAG"));
  GMM_TRY(check_unused(out->flags & GMM_SCOPE_KIND, out->kind, "kind", "KIND"));
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
  if (status.ok()) status = check_scope(*context, scope, &copy);
  if (status.ok() && (copy.flags & GMM_SCOPE_KIND) != 0)
    status = fail(GMM_ERROR_INVALID_FLAGS,
                  "gmm_limit_set: scope.flags = 0x%x: a limit applies to the context, a device, a tag, or a tag on a "
                  "device, not to a kind; clear GMM_SCOPE_KIND.",
                  copy.flags);
  if (status.ok()) quota_of(*context, copy).set_limit(bytes);
  return result_of(status);
}

gmm_result gmm_context_set_oom_handler(gmm_context *context, gmm_oom_fn fn, void *user) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = context->limits.set_handler(fn, user);
  return result_of(status);
}

gmm_result gmm_stats_query(gmm_context *context, const gmm_scope_desc *scope, gmm_stats_info *out) noexcept {
  uint32_t size = 0;
  gmm_scope_desc copy;
  Status status = Context::check(context);
  if (status.ok()) status = check_output(out, &size);
  if (status.ok()) status = check_scope(*context, scope, &copy);
  gmm_stats_info statistics = {};
  if (status.ok()) context->collect_ended_captures(false);
  if (status.ok()) status = collect_statistics(context->heaps, context->tags, copy, &statistics);
  if (!status.ok()) return result_of(status);
  // The quota of a device or tag knows its true peak. The peaks of its heaps may have been at different times.
  statistics.limit_bytes = GMM_NO_LIMIT;
  if ((copy.flags & GMM_SCOPE_KIND) == 0) {
    const Quota &quota = quota_of(*context, copy);
    statistics.peak_reserved_bytes = quota.peak();
    statistics.limit_bytes = quota.limit();
  }
  if (copy.flags == 0) {
    statistics.pinned_bytes = context->pins.bytes();
    statistics.imported_bytes = context->ipc.imports.bytes();
    statistics.backend_calls = context->core.backend->calls();
  }
  fill_output(statistics, size, out);
  return GMM_OK;
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

gmm_result gmm_compact(gmm_context *context, const gmm_scope_desc *scope, const gmm_compact_desc *desc,
                       gmm_compact_info *out) noexcept {
  uint32_t size = 0;
  gmm_scope_desc of = {};
  gmm_compact_desc copy = {};
  gmm_compact_info info = {};
  const auto check_and_compact = [&]() -> Status {
    GMM_TRY(Context::check(context));
    GMM_TRY(Watchers::check_no_operation("gmm_compact"));
    GMM_TRY(check_output(out, &size));
    GMM_TRY(check_scope(*context, scope, &of));
    GMM_TRY(read_descriptor(desc, &copy));
    GMM_TRY(check_flags(copy.flags, GMM_COMPACT_LIVE, "gmm_compact_desc.flags"));
    if (copy.heap != nullptr) {
      GMM_TRY(check_handle(copy.heap, "gmm_compact_desc", "heap"));
      if (copy.heap->context != context)
        return fail(GMM_ERROR_INVALID_HANDLE, "gmm_compact_desc.heap = %p belongs to another context.",
                    static_cast<void *>(copy.heap));
      if (copy.heap->options().kind != Kind::kVmm)
        return fail(GMM_ERROR_INVALID_KIND,
                    "gmm_compact_desc.heap: memory of kind %s cannot be moved; name a heap of kind VMM, or none.",
                    kind_name(copy.heap->options().kind));
    }
    // Inside gmm_defer_begin() nothing goes back to the driver, not even for a moment.
    if (context->core.defer_depth.load(std::memory_order_acquire) == 0) GMM_TRY(compact(*context, of, copy, &info));
    if (info.moved_bytes + info.released_bytes != 0 && context->trace.running())
      context->trace.compacted(info.moved_bytes, info.released_bytes);
    fill_output(info, size, out);
    return info.moved_bytes + info.released_bytes != 0
               ? Status()
               : remark(GMM_UNCHANGED, "gmm_compact: there was nothing to move or to give back.");
  };
  return result_of(check_and_compact());
}

gmm_result gmm_reset(gmm_context *context) noexcept {
  Status status = Context::check(context);
  if (status.ok()) status = Watchers::check_no_operation("gmm_reset");
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
