// SPDX-License-Identifier: Apache-2.0
// Tags, their pauses and resumes, tickets, and kept contents.
#include <algorithm>
#include <cstdio>

#include "api/arguments.h"
#include "engine/backup/checksum.h"
#include "engine/context/ticket.h"

using namespace gmm;

namespace {

constexpr uint32_t kPauseFlags = GMM_PAUSE_FORCE | GMM_PAUSE_DROP | GMM_PAUSE_KEEP_HOST | GMM_PAUSE_KEEP_FILE;
constexpr uint32_t kResumeFlags = GMM_RESUME_RETAIN | GMM_RESUME_ZERO | GMM_RESUME_PREPARE;

Status read_tag_desc(const gmm_tag_desc *desc, gmm_tag_desc *out) {
  GMM_TRY(read_checked(desc, GMM_TAG_READ_ONLY | GMM_TAG_CHECKSUM | GMM_TAG_PAGEABLE, out));
  if (out->contents > GMM_CONTENTS_FILE)
    return fail(GMM_ERROR_INVALID_VALUE, "contents = %u is none of GMM_CONTENTS_DROP, _HOST and _FILE.", out->contents);
  if ((out->flags & GMM_TAG_CHECKSUM) != 0 && !has_chunk_checksum())
    return fail(
        GMM_ERROR_NOT_SUPPORTED,
        "GMM_TAG_CHECKSUM: this library was built without xxhash; install xxhash and build again, or clear the flag.");
  return Status();
}

Status read_hold(gmm_pause_desc *desc) {
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

Status check_contents(uint32_t flags) {
  const uint32_t asked = flags & (GMM_PAUSE_DROP | GMM_PAUSE_KEEP_HOST | GMM_PAUSE_KEEP_FILE);
  if ((asked & (asked - 1)) == 0) return Status();
  return fail(GMM_ERROR_INVALID_FLAGS,
              "gmm_pause_desc.flags = 0x%x: the flags exclude each other; pass one of GMM_PAUSE_DROP, _KEEP_HOST and "
              "_KEEP_FILE.",
              flags);
}

Status check_range_of(const void *address, uint64_t size, const char *function) {
  GMM_TRY(check_not_null(address, function, "address"));
  if (size != 0 && size <= UINTPTR_MAX - reinterpret_cast<uintptr_t>(address)) return Status();
  return fail(GMM_ERROR_INVALID_SIZE, "%s(%p): size = %llu; pass at least 1 byte, and no more than the memory has.",
              function, address, static_cast<unsigned long long>(size));
}

// *out: the ranges of a descriptor, by address.
Status read_ranges(const gmm_pause_desc &desc, Vector<ByteRange> *out) {
  GMM_TRY(check_not_null(desc.ranges, "gmm_pause_desc", "ranges"));
  if (desc.tag_count != 0 || (desc.flags & GMM_PAUSE_HOLD) != 0)
    return fail(GMM_ERROR_INVALID_VALUE,
                "gmm_pause_desc.ranges: they exclude tags and GMM_PAUSE_HOLD; pass one of the "
                "three.");
  if (!out->reserve(desc.range_count))
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for a list of %u ranges.", desc.range_count);
  for (uint32_t i = 0; i < desc.range_count; ++i) {
    const gmm_range &range = desc.ranges[i];
    GMM_TRY(check_range_of(range.address, range.size, "gmm_range"));
    out->push_back_reserved(ByteRange{reinterpret_cast<uintptr_t>(range.address), range.size});
  }
  std::sort(out->begin(), out->end(), [](const ByteRange &a, const ByteRange &b) { return a.base < b.base; });
  for (uint32_t i = 1; i < desc.range_count; ++i)
    if ((*out)[i].base < (*out)[i - 1].end())
      return fail(GMM_ERROR_INVALID_VALUE,
                  "gmm_pause_desc.ranges: those at 0x%" PRIxPTR " and 0x%" PRIxPTR
                  " overlap; pass each part of the memory once.",
                  (*out)[i - 1].base, (*out)[i].base);
  return Status();
}

// The request points to the caller's tags, and to `ranges`. NULL: they are not taken.
Status read_pause(const Context &context, const gmm_pause_desc *desc, uint32_t flags, Vector<ByteRange> *ranges,
                  PauseRequest *out) {
  gmm_pause_desc copy;
  GMM_TRY(read_checked(desc, flags, &copy));
  GMM_TRY(check_contents(copy.flags));
  if (copy.range_count != 0 && ranges == nullptr)
    return fail(GMM_ERROR_INVALID_VALUE, "gmm_pause_desc.range_count = %u: this call takes tags alone; set it to 0.",
                copy.range_count);
  if (copy.range_count != 0) GMM_TRY(read_ranges(copy, ranges));
  if (const uint32_t of_ranges = copy.flags & (GMM_PAUSE_ORDERED | GMM_RESUME_PREPARE);
      copy.range_count == 0 && of_ranges != 0)
    return fail(GMM_ERROR_INVALID_FLAGS,
                "gmm_pause_desc.flags = 0x%x: GMM_PAUSE_ORDERED and GMM_RESUME_PREPARE go with ranges; pass some.",
                copy.flags);
  if (copy.tag_count != 0) GMM_TRY(check_not_null(copy.tags, "gmm_pause_desc", "tags"));
  for (uint32_t i = 0; i < copy.tag_count; ++i) GMM_TRY(check_tag(context, copy.tags[i]));
  GMM_TRY(read_hold(&copy));
  *out = PauseRequest{copy.tags, copy.tag_count, copy.flags, copy.progress, nullptr, copy.hold_ms};
  if (copy.range_count != 0) {
    out->ranges = ranges->data();
    out->range_count = copy.range_count;
    out->stream = copy.stream;
  }
  return Status();
}

PauseRequest request_of(const ByteRange &range, uint32_t flags) {
  PauseRequest request;
  request.flags = flags;
  request.ranges = &range;
  request.range_count = 1;
  return request;
}

Status start(gmm_context &context, const gmm_pause_desc *desc, bool is_pause, gmm_ticket **out) {
  PauseRequest request;
  Vector<ByteRange> ranges(context.core().allocator);
  constexpr uint32_t kHoldFlags = GMM_PAUSE_HOLD | GMM_PAUSE_NO_WRITES;
  const uint32_t flags = is_pause ? kPauseFlags | kHoldFlags : kResumeFlags | GMM_PAUSE_HOLD;
  GMM_TRY(read_pause(context, desc, flags, &ranges, &request));
  return gmm_ticket::start(context, request, is_pause, out);
}

}  // namespace

gmm_result gmm_tag_create(gmm_context *context, const char *name, const gmm_tag_desc *desc, gmm_tag *out) noexcept {
  return call(context, [&]() -> Status {
    gmm_tag_desc copy;
    GMM_TRY(check_not_null(name, "gmm_tag_create", "name"));
    GMM_TRY(check_not_null(out, "gmm_tag_create", "out"));
    GMM_TRY(read_tag_desc(desc, &copy));
    return context->tags().create(name, desc == nullptr ? nullptr : &copy, out);
  });
}

gmm_result gmm_tag_configure(gmm_context *context, gmm_tag tag, const gmm_tag_desc *desc) noexcept {
  return call(context, [&]() -> Status {
    gmm_tag_desc copy;
    GMM_TRY(Watchers::check_no_operation("gmm_tag_configure"));
    GMM_TRY(check_not_null(desc, "gmm_tag_configure", "desc"));
    GMM_TRY(read_tag_desc(desc, &copy));
    return context->configure_tag(tag, copy);
  });
}

gmm_result gmm_tag_destroy(gmm_context *context, gmm_tag tag) noexcept {
  return call(context, [&]() -> Status {
    GMM_TRY(Watchers::check_no_operation("gmm_tag_destroy"));
    return context->destroy_tag(tag);
  });
}

gmm_result gmm_tag_list(gmm_context *context, gmm_tag *tags, uint32_t capacity, uint32_t *count) noexcept {
  return call(context, [&]() -> Status {
    if (capacity != 0) GMM_TRY(check_not_null(tags, "gmm_tag_list", "tags"));
    GMM_TRY(check_not_null(count, "gmm_tag_list", "count"));
    context->tags().list(tags, capacity, count);
    return Status();
  });
}

gmm_result gmm_tag_find(gmm_context *context, const char *name, gmm_tag *out) noexcept {
  return call(context, [&]() -> Status {
    GMM_TRY(check_not_null(name, "gmm_tag_find", "name"));
    GMM_TRY(check_not_null(out, "gmm_tag_find", "out"));
    return context->tags().find(name, out);
  });
}

gmm_result gmm_tag_push(gmm_context *context, gmm_tag tag) noexcept {
  return call(context, [&] { return context->tags().push(tag); });
}

gmm_result gmm_tag_pop(gmm_context *context) noexcept {
  return call(context, [&] { return context->tags().pop(); });
}

gmm_result gmm_tag_set_default(gmm_context *context, gmm_tag tag) noexcept {
  return call(context, [&] { return context->tags().set_default(tag); });
}

gmm_result gmm_tag_query(gmm_context *context, gmm_tag tag, gmm_tag_info *out) noexcept {
  return answer(context, out, [&](gmm_tag_info *info) -> Status {
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

gmm_result gmm_pause(gmm_context *context, const gmm_pause_desc *desc, uint64_t *bytes) noexcept {
  return count(context, bytes, [&](uint64_t *went) -> Status {
    PauseRequest request;
    Vector<ByteRange> ranges(context->core().allocator);
    GMM_TRY(read_pause(*context, desc, kPauseFlags | GMM_PAUSE_ORDERED, &ranges, &request));
    GMM_TRY(Watchers::check_no_operation("gmm_pause"));
    return context->pause(request, went);
  });
}

gmm_result gmm_resume(gmm_context *context, const gmm_pause_desc *desc, uint64_t *bytes) noexcept {
  return count(context, bytes, [&](uint64_t *came) -> Status {
    PauseRequest request;
    Vector<ByteRange> ranges(context->core().allocator);
    GMM_TRY(read_pause(*context, desc, kResumeFlags | GMM_PAUSE_ORDERED, &ranges, &request));
    GMM_TRY(Watchers::check_no_operation("gmm_resume"));
    return context->resume(request, came);
  });
}

gmm_result gmm_pause_range(gmm_context *context, const void *address, uint64_t size, uint32_t flags,
                           uint64_t *bytes) noexcept {
  return count(context, bytes, [&](uint64_t *went) -> Status {
    GMM_TRY(check_range_of(address, size, "gmm_pause_range"));
    GMM_TRY(check_flags(flags, kPauseFlags, "gmm_pause_range", ": flags"));
    GMM_TRY(check_contents(flags));
    GMM_TRY(Watchers::check_no_operation("gmm_pause_range"));
    const ByteRange range{reinterpret_cast<uintptr_t>(address), size};
    return context->pause(request_of(range, flags), went);
  });
}

gmm_result gmm_resume_range(gmm_context *context, const void *address, uint64_t size, uint64_t *bytes) noexcept {
  return count(context, bytes, [&](uint64_t *came) -> Status {
    GMM_TRY(check_range_of(address, size, "gmm_resume_range"));
    GMM_TRY(Watchers::check_no_operation("gmm_resume_range"));
    const ByteRange range{reinterpret_cast<uintptr_t>(address), size};
    return context->resume(request_of(range, 0), came);
  });
}

gmm_result gmm_resume_wait(gmm_context *context, const void *address, uint64_t size, uint64_t timeout_ms) noexcept {
  return call(context, [&]() -> Status {
    GMM_TRY(check_range_of(address, size, "gmm_resume_wait"));
    return context->pauser().wait_ready(address, size, timeout_ms);
  });
}

gmm_result gmm_pause_async(gmm_context *context, const gmm_pause_desc *desc, gmm_ticket **out) noexcept {
  return make(context, "gmm_pause_async", out, [&] { return start(*context, desc, true, out); });
}

gmm_result gmm_resume_async(gmm_context *context, const gmm_pause_desc *desc, gmm_ticket **out) noexcept {
  return make(context, "gmm_resume_async", out, [&] { return start(*context, desc, false, out); });
}

gmm_result gmm_ticket_query(gmm_ticket *ticket, gmm_ticket_info *out) noexcept {
  return answer(ticket, out, [&](gmm_ticket_info *info) {
    info->state = ticket->state.now();
    const bool has_ended = info->state == GMM_TICKET_DONE;
    info->result = has_ended ? ticket->code : GMM_ERROR_NOT_READY;
    info->bytes = has_ended ? ticket->bytes : 0;
    info->copied_bytes = ticket->state.copied.load(std::memory_order_relaxed);
    info->total_bytes = ticket->state.total.load(std::memory_order_relaxed);
  });
}

gmm_result gmm_ticket_wait(gmm_ticket *ticket, uint64_t timeout_ms, uint64_t *bytes) noexcept {
  return count(ticket, bytes, [&](uint64_t *moved) -> Status {
    const Status status = ticket->wait(GMM_TICKET_DONE, timeout_ms, "gmm_ticket_wait");
    if (status.ok()) *moved = ticket->bytes;
    return status;
  });
}

gmm_result gmm_ticket_wait_held(gmm_ticket *ticket, uint64_t timeout_ms) noexcept {
  return call(ticket, [&] { return ticket->wait(GMM_TICKET_HELD, timeout_ms, "gmm_ticket_wait_held"); });
}

gmm_result gmm_ticket_commit(gmm_ticket *ticket) noexcept {
  return call(ticket, [&] { return ticket->commit(); });
}

gmm_result gmm_ticket_cancel(gmm_ticket *ticket) noexcept {
  return call(ticket, [&] { ticket->state.cancel(); });
}

gmm_result gmm_ticket_destroy(gmm_ticket *ticket) noexcept {
  return destroy(ticket, [&]() -> Status {
    GMM_TRY(Watchers::check_outside("gmm_ticket_destroy"));
    if (ticket->is_of_lease()) GMM_TRY(gmm_lease::check_other_thread("gmm_ticket_destroy"));
    gmm_ticket::destroy(ticket);
    return Status();
  });
}

gmm_result gmm_backup_configure(gmm_context *context, const gmm_backup_desc *desc) noexcept {
  return call(context, [&]() -> Status {
    constexpr uint32_t kFlags = GMM_BACKUP_NO_ARENA | GMM_BACKUP_NO_PAGEABLE | GMM_BACKUP_NAMED_FILES;
    gmm_backup_desc copy;
    GMM_TRY(read_checked(desc, kFlags, &copy));
    return context->backups().configure(copy);
  });
}

gmm_result gmm_backup_reserve(gmm_context *context, gmm_device device, uint64_t bytes) noexcept {
  return call(context, [&]() -> Status {
    GMM_TRY(check_device(*context, device));
    return context->backups().prepare(Device{device}, bytes);
  });
}

gmm_result gmm_backup_query(gmm_context *context, gmm_backup_info *out) noexcept {
  return answer(context, out, [&](gmm_backup_info *info) { context->backups().query(info); });
}

gmm_result gmm_backup_read(gmm_context *context, const void *address, uint64_t size, void *out) noexcept {
  return call(context, [&]() -> Status {
    GMM_TRY(check_range_of(address, size, "gmm_backup_read"));
    GMM_TRY(check_not_null(out, "gmm_backup_read", "out"));
    return context->pauser().read(address, size, out);
  });
}

gmm_result gmm_backup_map(gmm_context *context, const void *address, uint64_t size, const void **out) noexcept {
  return make(context, "gmm_backup_map", out, [&]() -> Status {
    GMM_TRY(check_range_of(address, size, "gmm_backup_map"));
    return context->pauser().map(address, size, out);
  });
}

gmm_result gmm_backup_discard(gmm_context *context, const gmm_pause_desc *desc, uint64_t *bytes) noexcept {
  return count(context, bytes, [&](uint64_t *discarded) -> Status {
    PauseRequest request;
    GMM_TRY(read_pause(*context, desc, 0, nullptr, &request));
    GMM_TRY(Watchers::check_no_operation("gmm_backup_discard"));
    return context->pauser().discard(request, discarded);
  });
}
