// SPDX-License-Identifier: Apache-2.0
#include <gmm/watch.h>

#include "api/arguments.h"
#include "base/name.h"
#include "engine/heap/block.h"

using namespace gmm;

namespace {

constexpr uint32_t kWatchEvents =
    GMM_WATCH_PREPARE | GMM_WATCH_LOSING | GMM_WATCH_RESTORED | GMM_WATCH_FAILED | GMM_WATCH_BUDGET;

Status check_memory(const Context &context, gmm_watch_desc *desc) {
  if (desc->size == 0) {
    if (desc->address != nullptr)
      return fail(GMM_ERROR_INVALID_SIZE, "gmm_watch_desc.size = 0 with address %p; give the bytes of the range.",
                  desc->address);
    if (desc->tag == GMM_TAG_CURRENT) desc->tag = context.tags().current();
    return check_tag(context, desc->tag);
  }
  GMM_TRY(check_not_null(desc->address, "gmm_watch", "desc->address"));
  Block block;
  GMM_TRY(find_block(context.core(), desc->address, "gmm_watch", &block));
  if (block.heap->options().kind != Kind::kVmm)
    return fail(GMM_ERROR_INVALID_KIND, "gmm_watch(%p): %s memory keeps its pages; watch VMM memory.", desc->address,
                kind_name(block.heap->options().kind));
  desc->tag = block.heap->options().tag;
  return check_range(block, desc->address, "gmm_watch", &desc->size);
}

Status check_budget(const Context &context, const gmm_watch_desc &desc) {
  if ((desc.events & GMM_WATCH_BUDGET) != 0) GMM_TRY(check_device(context, desc.device));
  if (((desc.events & GMM_WATCH_BUDGET) != 0) == (desc.budget_bytes != 0)) return Status();
  return fail(GMM_ERROR_INVALID_VALUE,
              desc.budget_bytes == 0
                  ? "gmm_watch_desc.budget_bytes = 0 with GMM_WATCH_BUDGET; say below how many bytes."
                  : "gmm_watch_desc.budget_bytes is set without GMM_WATCH_BUDGET in events; add it.");
}

}  // namespace

gmm_result gmm_watch(gmm_context *context, const gmm_watch_desc *desc, gmm_watcher **out) noexcept {
  return make(context, "gmm_watch", out, [&]() -> Status {
    gmm_watch_desc copy;
    GMM_TRY(check_not_null(desc, "gmm_watch", "desc"));
    GMM_TRY(read_checked(desc, 0, &copy));
    GMM_TRY(check_flags(copy.events, kWatchEvents, "gmm_watch_desc", ".events"));
    if (copy.events == 0)
      return fail(GMM_ERROR_INVALID_FLAGS, "gmm_watch_desc.events = 0: the watcher would hear nothing; set a bit.");
    GMM_TRY(check_not_null(reinterpret_cast<const void *>(copy.callback.fn), "gmm_watch", "desc->callback.fn"));
    if (copy.name != nullptr) GMM_TRY(check_name("A watcher's name", copy.name, gmm_watcher::kNameSize));
    GMM_TRY(check_budget(*context, copy));
    if (copy.events != GMM_WATCH_BUDGET) GMM_TRY(check_memory(*context, &copy));
    return context->watch(copy, out);
  });
}

gmm_result gmm_watcher_destroy(gmm_watcher *watcher) noexcept {
  return destroy(watcher, [&] { return watcher->owner->destroy(watcher); });
}
