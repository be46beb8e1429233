// SPDX-License-Identifier: Apache-2.0
#include "engine/limits/tag.h"

#include <cstdlib>
#include <cstring>

#include "engine/heap/thread_state.h"

namespace gmm {
namespace {

constinit std::atomic<uint64_t> g_serials{0};

Status unknown_tag(gmm_tag tag) {
  return fail(GMM_ERROR_INVALID_TAG, "Tag %u does not exist; make it with gmm_tag_create().", tag);
}

Status check_desc(const gmm_tag_desc &desc) {
  if (desc.contents > GMM_CONTENTS_FILE)
    return fail(GMM_ERROR_INVALID_VALUE, "contents = %u is none of GMM_CONTENTS_DROP, _HOST and _FILE.", desc.contents);
  constexpr uint32_t kKnown = GMM_TAG_READ_ONLY | GMM_TAG_CHECKSUM;
  if ((desc.flags & ~kKnown) != 0)
    return fail(GMM_ERROR_INVALID_FLAGS, "gmm_tag_desc.flags = 0x%x has unknown bits; pass GMM_TAG_* only.",
                desc.flags);
  return Status();
}

void set(Tag &tag, const gmm_tag_desc &desc) {
  tag.contents.store(desc.contents, std::memory_order_relaxed);
  tag.priority.store(desc.priority, std::memory_order_relaxed);
  tag.flags.store(desc.flags, std::memory_order_relaxed);
}

}  // namespace

TagTable::TagTable(const HostAllocator &allocator)
    : allocator_(allocator), serial_(g_serials.fetch_add(1, std::memory_order_relaxed) + 1) {}

TagTable::~TagTable() {
  for (auto &tag : tags_) allocator_.destroy(tag.load(std::memory_order_relaxed));
}

Status TagTable::init() {
  gmm_tag tag = 0;
  return create("default", nullptr, &tag);
}

Status TagTable::find(const char *name, gmm_tag *out) {
  const uint32_t tags = count();
  for (gmm_tag tag = 1; tag <= tags; ++tag)
    if (std::strcmp(get(tag)->name, name) == 0) {
      *out = tag;
      return Status();
    }
  return fail(GMM_ERROR_INVALID_TAG, "There is no tag named \"%.63s\"; make it with gmm_tag_create().", name);
}

Status TagTable::create(const char *name, const gmm_tag_desc *desc, gmm_tag *out) {
  const uint64_t length = strnlen(name, sizeof(Tag::name));
  if (length == 0 || length >= sizeof(Tag::name))
    return fail(GMM_ERROR_INVALID_VALUE, "A tag's name has 1 to 63 bytes; this one has %s.",
                length == 0 ? "none" : "more");
  if (desc != nullptr) GMM_TRY(check_desc(*desc));
  LockGuard guard(mutex_);
  const uint32_t tags = count();
  for (gmm_tag tag = 1; tag <= tags; ++tag) {
    Tag *known = get(tag);
    if (std::strcmp(known->name, name) != 0) continue;
    if (desc != nullptr &&
        (desc->contents != known->contents || desc->priority != known->priority || desc->flags != known->flags))
      return fail(GMM_ERROR_INVALID_VALUE,
                  "The tag \"%s\" exists with contents %u, priority %d and flags 0x%x, not %u, %d and 0x%x; use the "
                  "same, another name, or gmm_tag_configure().",
                  name, known->contents.load(), known->priority.load(), known->flags.load(), desc->contents,
                  desc->priority, desc->flags);
    *out = tag;
    return Status();
  }
  if (tags + 1 >= kMaxTags)
    return fail(GMM_ERROR_NOT_SUPPORTED, "All %u tags of this context are in use.", kMaxTags - 1);
  Tag *made = allocator_.create<Tag>();
  if (made == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the tag \"%s\".", name);
  std::memcpy(made->name, name, length);
  if (desc != nullptr) set(*made, *desc);
  tags_[tags + 1].store(made, std::memory_order_release);
  count_.store(tags + 1, std::memory_order_release);
  *out = tags + 1;
  return Status();
}

Status TagTable::update(gmm_tag tag, const gmm_tag_desc &desc) {
  Tag *known = get(tag);
  if (known == nullptr) return unknown_tag(tag);
  GMM_TRY(check_desc(desc));
  LockGuard guard(mutex_);
  set(*known, desc);
  return Status();
}

gmm_tag TagTable::pushed(const ThreadState &state) const {
  for (uint32_t i = state.tag_depth; i-- > 0;)
    if (state.tags[i].context == serial_) return state.tags[i].tag;
  return process_default_.load(std::memory_order_relaxed);
}

Status TagTable::push(gmm_tag tag) {
  if (get(tag) == nullptr) return unknown_tag(tag);
  ThreadState *state = make_thread_state();
  if (state != nullptr && state->tags == nullptr)
    state->tags = static_cast<TagEntry *>(std::malloc(kMaxTagDepth * sizeof(TagEntry)));
  if (state == nullptr || state->tags == nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for this thread's tags.");
  if (state->tag_depth == kMaxTagDepth)
    return fail(GMM_ERROR_UNBALANCED, "This thread has pushed %u tags; pop some.", kMaxTagDepth);
  state->tags[state->tag_depth++] = TagEntry{serial_, tag};
  return Status();
}

Status TagTable::pop() {
  ThreadState *state = t_state;
  if (state != nullptr)
    for (uint32_t i = state->tag_depth; i-- > 0;)
      if (state->tags[i].context == serial_) {
        for (uint32_t j = i + 1; j < state->tag_depth; ++j) state->tags[j - 1] = state->tags[j];
        --state->tag_depth;
        return Status();
      }
  return fail(GMM_ERROR_UNBALANCED, "This thread has pushed no tag on this context.");
}

Status TagTable::set_process_default(gmm_tag tag) {
  if (get(tag) == nullptr) return unknown_tag(tag);
  process_default_.store(tag, std::memory_order_relaxed);
  return Status();
}

}  // namespace gmm
