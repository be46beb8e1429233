// SPDX-License-Identifier: Apache-2.0
// How the functions of pause.h read their arguments.
#ifndef GMM_API_PAUSE_ARGUMENTS_H
#define GMM_API_PAUSE_ARGUMENTS_H

#include "api/arguments.h"
#include "engine/context/ticket.h"

namespace gmm {

inline constexpr uint32_t kPauseFlags = GMM_PAUSE_FORCE | GMM_PAUSE_DROP | GMM_PAUSE_KEEP_HOST | GMM_PAUSE_KEEP_FILE;

inline Status read_tag_desc(const gmm_tag_desc *desc, gmm_tag_desc *out) {
  GMM_TRY(read_descriptor(desc, out));
  if ((out->flags & GMM_TAG_CHECKSUM) != 0 && !BackupStore::can_checksum())
    return fail(
        GMM_ERROR_NOT_SUPPORTED,
        "GMM_TAG_CHECKSUM: this library was built without xxhash; install xxhash and build again, or clear the flag.");
  return Status();
}

inline Status read_hold(gmm_pause_desc *desc) {
  constexpr uint64_t kDefaultHold = 60'000, kMaxHold = 86'400'000;
  const bool holds = (desc->flags & GMM_PAUSE_HOLD) != 0;
  if (!holds && (desc->flags & GMM_PAUSE_NO_WRITES) != 0)
    return fail(GMM_ERROR_INVALID_FLAGS, "gmm_pause_desc.flags: GMM_PAUSE_NO_WRITES goes with GMM_PAUSE_HOLD; add it.");
  if (desc->hold_ms > (holds ? kMaxHold : 0))
    return fail(GMM_ERROR_INVALID_VALUE,
                "gmm_pause_desc.hold_ms = %llu; pass at most %llu with GMM_PAUSE_HOLD, else 0.",
                static_cast<unsigned long long>(desc->hold_ms), static_cast<unsigned long long>(kMaxHold));
  if (holds && desc->hold_ms == 0) desc->hold_ms = kDefaultHold;
  return Status();
}

// Checks the context too. The request points to the caller's tags.
inline Status read_pause(gmm_context *context, const gmm_pause_desc *desc, uint32_t flags, PauseRequest *out) {
  gmm_pause_desc copy;
  GMM_TRY(Context::check(context));
  GMM_TRY(read_descriptor(desc, &copy));
  GMM_TRY(check_flags(copy.flags, flags, "gmm_pause_desc.flags"));
  constexpr uint32_t kContents = GMM_PAUSE_DROP | GMM_PAUSE_KEEP_HOST | GMM_PAUSE_KEEP_FILE;
  if (const uint32_t asked = copy.flags & kContents; (asked & (asked - 1)) != 0)
    return fail(GMM_ERROR_INVALID_FLAGS,
                "gmm_pause_desc.flags = 0x%x: the flags exclude each other; pass one of GMM_PAUSE_DROP, _KEEP_HOST and "
                "_KEEP_FILE.",
                copy.flags);
  GMM_TRY(check_zero(copy.reserved, "gmm_pause_desc.reserved"));
  if (copy.tag_count != 0) GMM_TRY(check_not_null(copy.tags, "gmm_pause_desc", "tags"));
  for (uint32_t i = 0; i < copy.tag_count; ++i) GMM_TRY(check_tag(*context, copy.tags[i]));
  GMM_TRY(read_hold(&copy));
  *out = PauseRequest{copy.tags, copy.tag_count, copy.flags, copy.progress, nullptr, copy.hold_ms};
  return Status();
}

inline Status check_range_of(gmm_context *context, const void *address, uint64_t size, const char *function) {
  GMM_TRY(Context::check(context));
  GMM_TRY(check_not_null(address, function, "address"));
  if (size != 0 && size <= UINTPTR_MAX - reinterpret_cast<uintptr_t>(address)) return Status();
  return fail(GMM_ERROR_INVALID_SIZE, "%s(%p): size = %llu; pass at least 1 byte, and no more than the memory has.",
              function, address, static_cast<unsigned long long>(size));
}

}  // namespace gmm
#endif
