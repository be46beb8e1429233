// SPDX-License-Identifier: Apache-2.0
#include "api/arguments.h"

using namespace gmm;

namespace {

// A field without its flag is a flag that was forgotten.
Status check_unused(uint32_t flag, uint32_t value, const char *field, const char *name) {
  if (flag != 0 || value == 0) return Status();
  return fail(GMM_ERROR_INVALID_DESCRIPTOR,
              "gmm_scope_desc.%s = %d, but flags lack GMM_SCOPE_%s; set the flag, or clear the field.", field,
              static_cast<int32_t>(value), name);
}

// One of the blocks or extents of a snapshot, by index.
template <typename Info>
gmm_result query_of(gmm_snapshot *snapshot, uint64_t index, uint64_t (Snapshot::*count)() const,
                    void (Snapshot::*query)(uint64_t, Info *, Heap **) const, const char *plural, Info *out) {
  return answer(snapshot, out, [&](Info *info) -> Status {
    if (index >= (snapshot->copy.*count)())
      return fail(GMM_ERROR_INVALID_VALUE, "index = %" PRIu64 ", but the snapshot has %" PRIu64 " %s; count from 0.",
                  index, (snapshot->copy.*count)(), plural);
    Heap *heap = nullptr;
    (snapshot->copy.*query)(index, info, &heap);
    info->heap = static_cast<gmm_heap *>(heap);
    return Status();
  });
}

}  // namespace

namespace gmm {

Status check_scope(const Context &context, const gmm_scope_desc *in, gmm_scope_desc *out) {
  GMM_TRY(read_checked(in, GMM_SCOPE_DEVICE | GMM_SCOPE_TAG | GMM_SCOPE_KIND, out));
  GMM_TRY(check_unused(out->flags & GMM_SCOPE_DEVICE, static_cast<uint32_t>(out->device), "device", "DEVICE"));
  GMM_TRY(check_unused(out->flags & GMM_SCOPE_TAG, out->tag, "tag", "TAG"));
  GMM_TRY(check_unused(out->flags & GMM_SCOPE_KIND, out->kind, "kind", "KIND"));
  if ((out->flags & GMM_SCOPE_DEVICE) != 0) GMM_TRY(check_device(context, out->device));
  if ((out->flags & GMM_SCOPE_TAG) != 0) {
    if (out->tag == GMM_TAG_CURRENT) out->tag = context.tags().current();
    GMM_TRY(check_tag(context, out->tag));
  }
  if ((out->flags & GMM_SCOPE_KIND) != 0 && (out->kind == GMM_KIND_UNSPECIFIED || out->kind > GMM_KIND_MANAGED))
    return fail(GMM_ERROR_INVALID_KIND,
                "gmm_scope_desc.kind = %u is no kind of memory; pass a GMM_KIND_* value above 0.", out->kind);
  return Status();
}

}  // namespace gmm

gmm_result gmm_limit_set(gmm_context *context, const gmm_scope_desc *scope, uint64_t bytes) noexcept {
  return call(context, [&]() -> Status {
    gmm_scope_desc copy;
    GMM_TRY(check_scope(*context, scope, &copy));
    if ((copy.flags & GMM_SCOPE_KIND) != 0)
      return fail(GMM_ERROR_INVALID_FLAGS,
                  "gmm_limit_set: scope.flags = 0x%x: a limit applies to the context, a device, a tag, or a tag on a "
                  "device, not to a kind; clear GMM_SCOPE_KIND.",
                  copy.flags);
    context->set_limit(copy, bytes);
    return Status();
  });
}

gmm_result gmm_context_set_oom_handler(gmm_context *context, gmm_oom_fn fn, void *user) noexcept {
  return call(context, [&] { return context->set_oom_handler(fn, user); });
}

gmm_result gmm_stats_query(gmm_context *context, const gmm_scope_desc *scope, gmm_stats_info *out) noexcept {
  return answer(context, out, [&](gmm_stats_info *info) -> Status {
    gmm_scope_desc copy;
    GMM_TRY(check_scope(*context, scope, &copy));
    return context->collect_statistics(copy, info);
  });
}

gmm_result gmm_metrics_write(gmm_context *context, gmm_write_fn fn, void *user) noexcept {
  return call(context, [&]() -> Status {
    GMM_TRY(check_function(fn, "gmm_metrics_write"));
    return context->metrics().write(fn, user);
  });
}

gmm_result gmm_snapshot_create(gmm_context *context, const gmm_scope_desc *scope, gmm_snapshot **out) noexcept {
  return make(context, "gmm_snapshot_create", out, [&]() -> Status {
    gmm_scope_desc copy;
    GMM_TRY(check_scope(*context, scope, &copy));
    return context->take_snapshot(copy, out);
  });
}

gmm_result gmm_snapshot_query(gmm_snapshot *snapshot, gmm_snapshot_info *out) noexcept {
  return answer(snapshot, out, [&](gmm_snapshot_info *info) { snapshot->copy.query(info); });
}

gmm_result gmm_snapshot_query_block(gmm_snapshot *snapshot, uint64_t index, gmm_block_info *out) noexcept {
  return query_of(snapshot, index, &Snapshot::block_count, &Snapshot::query_block, "blocks", out);
}

gmm_result gmm_snapshot_query_extent(gmm_snapshot *snapshot, uint64_t index, gmm_extent_info *out) noexcept {
  return query_of(snapshot, index, &Snapshot::extent_count, &Snapshot::query_extent, "extents", out);
}

gmm_result gmm_snapshot_write(gmm_snapshot *snapshot, gmm_write_fn fn, void *user) noexcept {
  return call(snapshot, [&]() -> Status {
    GMM_TRY(check_function(fn, "gmm_snapshot_write"));
    return snapshot->copy.write(fn, user);
  });
}

gmm_result gmm_snapshot_destroy(gmm_snapshot *snapshot) noexcept {
  return destroy(snapshot, [&] {
    Context &context = snapshot->context;
    snapshot->magic = 0;
    context.core().allocator.destroy(snapshot);
    context.release();
  });
}

gmm_result gmm_trace_begin(gmm_context *context, const char *path, const gmm_trace_desc *desc) noexcept {
  return call(context, [&]() -> Status {
    gmm_trace_desc copy;
    GMM_TRY(read_checked(desc, 0, &copy));
    if (copy.stack_bytes == 0 && copy.blocks.allocated == nullptr && copy.blocks.freed == nullptr)
      GMM_TRY(check_not_null(path, "gmm_trace_begin", "path"));
    return context->begin_trace(path, copy);
  });
}

gmm_result gmm_trace_set_frames(gmm_frames_fn fn) noexcept {
  StackTable::set_frames(fn);
  return GMM_OK;
}

gmm_result gmm_trace_end(gmm_context *context) noexcept {
  return call(context, [&] { return context->trace().end(); });
}

gmm_result gmm_trim(gmm_context *context, const gmm_scope_desc *scope, uint64_t *bytes) noexcept {
  return count(context, bytes, [&](uint64_t *released) -> Status {
    gmm_scope_desc copy;
    GMM_TRY(check_scope(*context, scope, &copy));
    return context->trim_for_program(copy, released);
  });
}

gmm_result gmm_compact(gmm_context *context, const gmm_scope_desc *scope, const gmm_compact_desc *desc,
                       gmm_compact_info *out) noexcept {
  return answer(context, out, [&](gmm_compact_info *info) -> Status {
    gmm_scope_desc of = {};
    gmm_compact_desc copy = {};
    GMM_TRY(Watchers::check_no_operation("gmm_compact"));
    GMM_TRY(check_scope(*context, scope, &of));
    GMM_TRY(read_checked(desc, GMM_COMPACT_LIVE, &copy));
    if (copy.heap != nullptr) {
      GMM_TRY(check_handle(copy.heap));
      if (copy.heap->context != context)
        return fail(GMM_ERROR_INVALID_HANDLE, "gmm_compact_desc.heap = %p belongs to another context.",
                    static_cast<void *>(copy.heap));
      if (copy.heap->options().kind != Kind::kVmm)
        return fail(GMM_ERROR_INVALID_KIND,
                    "gmm_compact_desc.heap: memory of kind %s cannot be moved; name a heap of kind VMM, or none.",
                    kind_name(copy.heap->options().kind));
    }
    return context->compact(of, copy, info);
  });
}

gmm_result gmm_reset(gmm_context *context) noexcept {
  return call(context, [&]() -> Status {
    GMM_TRY(Watchers::check_no_operation("gmm_reset"));
    return context->reset();
  });
}

gmm_result gmm_defer_begin(gmm_context *context) noexcept {
  return call(context, [&] { return context->defer_begin(); });
}

gmm_result gmm_defer_end(gmm_context *context) noexcept {
  return call(context, [&] { return context->defer_end(); });
}
