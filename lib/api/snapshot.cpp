// SPDX-License-Identifier: Apache-2.0
#include "api/arguments.h"

using namespace gmm;

namespace {

Status check_snapshot(const gmm_snapshot *snapshot) {
  GMM_TRY(check_handle(snapshot, "gmm_snapshot", "snapshot"));
  return Context::check(&snapshot->context);
}

Status create(gmm_context *context, const gmm_scope_desc *scope, gmm_snapshot **out) {
  gmm_scope_desc copy;
  GMM_TRY(Context::check(context));
  GMM_TRY(check_not_null(out, "gmm_snapshot_create", "out"));
  GMM_TRY(check_scope(*context, scope, &copy));
  return context->take_snapshot(copy, out);
}

// One of the blocks or extents of a snapshot, by index.
template <typename Info>
gmm_result query_of(gmm_snapshot *snapshot, uint64_t index, uint64_t (Snapshot::*count)() const,
                    void (Snapshot::*query)(uint64_t, Info *, Heap **) const, const char *plural, Info *out) {
  return answer(check_snapshot(snapshot), out, [&](Info *info) -> Status {
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

gmm_result gmm_snapshot_create(gmm_context *context, const gmm_scope_desc *scope, gmm_snapshot **out) noexcept {
  return result_of(create(context, scope, out), out);
}

gmm_result gmm_snapshot_query(gmm_snapshot *snapshot, gmm_snapshot_info *out) noexcept {
  return answer(check_snapshot(snapshot), out, [&](gmm_snapshot_info *info) {
    snapshot->copy.query(info);
    return Status();
  });
}

gmm_result gmm_snapshot_query_block(gmm_snapshot *snapshot, uint64_t index, gmm_block_info *out) noexcept {
  return query_of(snapshot, index, &Snapshot::block_count, &Snapshot::query_block, "blocks", out);
}

gmm_result gmm_snapshot_query_extent(gmm_snapshot *snapshot, uint64_t index, gmm_extent_info *out) noexcept {
  return query_of(snapshot, index, &Snapshot::extent_count, &Snapshot::query_extent, "extents", out);
}

gmm_result gmm_snapshot_write(gmm_snapshot *snapshot, gmm_write_fn fn, void *user) noexcept {
  Status status = check_snapshot(snapshot);
  if (status.ok() && fn == nullptr)
    status = fail(GMM_ERROR_NULL_ARGUMENT, "gmm_snapshot_write: fn is NULL; pass a function.");
  if (status.ok()) status = snapshot->copy.write(fn, user);
  return result_of(status);
}

gmm_result gmm_snapshot_destroy(gmm_snapshot *snapshot) noexcept {
  if (snapshot == nullptr) return GMM_OK;
  const Status status = check_snapshot(snapshot);
  if (!status.ok()) return result_of(status);
  Context &context = snapshot->context;
  snapshot->magic = 0;
  context.core().allocator.destroy(snapshot);
  context.release();
  return GMM_OK;
}
