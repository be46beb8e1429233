// SPDX-License-Identifier: Apache-2.0
#include "engine/context/transition.h"

#include "engine/heap/block.h"

namespace gmm {
namespace {

// The second failure's cause is the first one's, so the first message stays.
template <typename Fn>
Status trim_and_retry(Context &context, Fn operation) {
  const Status status = operation();
  if (status.code() != GMM_ERROR_OUT_OF_MEMORY && status.code() != GMM_ERROR_LIMIT_EXCEEDED) return status;
  MessageGuard message_guard;
  gmm_scope_desc everything = {};
  uint64_t released = 0;
  if (!context.trim(everything, &released).ok() || released == 0) return status;
  const Status again = operation();
  return again.ok() ? again : status;
}

}  // namespace

Status pause(Context &context, const PauseRequest &request, uint64_t *bytes) {
  const Status status = context.pauser.pause(request, bytes);
  if (status.ok() && (request.flags & GMM_PAUSE_FORCE) != 0) context.ipc.exports.revoke_paused();
  if (status.ok() && context.trace.running()) context.trace.paused(request.tags, request.count, *bytes);
  return status;
}

Status resume(Context &context, const PauseRequest &request, uint64_t *bytes) {
  const Status status = trim_and_retry(context, [&] { return context.pauser.resume(request, bytes); });
  if (status.ok() && context.trace.running()) context.trace.resumed(request.tags, request.count, *bytes);
  return status;
}

Status resume_range(Context &context, ByteRange range, uint64_t *bytes) {
  const void *address = reinterpret_cast<void *>(range.base);
  const Status status =
      trim_and_retry(context, [&] { return context.pauser.resume_range(address, range.size, bytes); });
  Block block;
  if (status.ok() && context.trace.running() && find_block(context.core, address, &block)) {
    const gmm_tag tag = block.heap->options().tag;
    context.trace.resumed(&tag, 1, *bytes);
  }
  return status;
}

}  // namespace gmm
