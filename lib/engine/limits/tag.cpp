// SPDX-License-Identifier: Apache-2.0
#include "engine/limits/tag.h"

#include <cstdlib>
#include <cstring>

#include "base/thread_record.h"
#include "base/utf8.h"

namespace gmm {
namespace {

// The tables of all contexts, so that a thread knows which of its tags belong to a context that ended.
constinit Registry::Place g_places[TagTable::kMaxTables] = {};
constinit Registry g_tables{g_places, TagTable::kMaxTables};

// The tags that a thread pushed, the last one on top.
struct TagStack {
  struct Entry {
    RegistryKey table;
    gmm_tag tag;
  };
  uint32_t depth;
  Entry entries[TagTable::kMaxDepth];

  static TagStack *of(const ThreadRecord &record) { return record.part<TagStack>(ThreadPart::kTags); }
  // The topmost place of a table, from 1; 0: there is none.
  uint32_t find(const RegistryKey &table) const {
    uint32_t place = depth;
    while (place != 0 && entries[place - 1].table.serial != table.serial) --place;
    return place;
  }
  void drop_ended() {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < depth; ++i)
      if (g_tables.lives(entries[i].table)) entries[kept++] = entries[i];
    depth = kept;
  }
};

// NULL: there is no host memory.
TagStack *make_stack() {
  if (TagStack *stack = TagStack::of(own_thread_record())) return stack;
  ThreadRecord *record = make_thread_record();
  if (record == nullptr) return nullptr;
  TagStack *stack = static_cast<TagStack *>(std::malloc(sizeof(TagStack)));
  if (stack == nullptr) return nullptr;
  stack->depth = 0;
  record->set_part(ThreadPart::kTags, stack, std::free);
  return stack;
}

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

// Snapshots, traces and messages show the name as text, so it must be text. The message does not repeat other bytes.
Status check_text(const char *name, uint64_t length) {
  const uint64_t text = utf8_prefix(name, length);
  if (text == length) return Status();
  return fail(GMM_ERROR_INVALID_VALUE,
              "A tag's name is text in UTF-8, and byte %u of this one, 0x%02x, is not; encode the name as UTF-8.",
              static_cast<unsigned>(text), static_cast<unsigned>(static_cast<unsigned char>(name[text])));
}

void set(Tag &tag, const gmm_tag_desc &desc) {
  tag.contents.store(desc.contents, std::memory_order_relaxed);
  tag.priority.store(desc.priority, std::memory_order_relaxed);
  tag.flags.store(desc.flags, std::memory_order_relaxed);
}

}  // namespace

TagTable::TagTable(const HostAllocator &allocator) : allocator_(allocator) {}

TagTable::~TagTable() {
  g_tables.remove(key_);
  for (auto &tag : tags_) allocator_.destroy(tag.load(std::memory_order_relaxed));
}

Status TagTable::init() {
  if (!g_tables.add(this, &key_))
    return fail(GMM_ERROR_NOT_SUPPORTED, "A process can have %u contexts, and all are in use; release some.",
                kMaxTables);
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
  const uint64_t length = strnlen(name, sizeof(Tag::name) - 1);
  return fail(GMM_ERROR_INVALID_TAG, "There is no tag named \"%.*s\"; make it with gmm_tag_create().",
              static_cast<int>(utf8_prefix(name, length)), name);
}

Status TagTable::create(const char *name, const gmm_tag_desc *desc, gmm_tag *out) {
  const uint64_t length = strnlen(name, sizeof(Tag::name));
  if (length == 0 || length >= sizeof(Tag::name))
    return fail(GMM_ERROR_INVALID_VALUE, "A tag's name has 1 to 63 bytes; this one has %s.",
                length == 0 ? "none" : "more");
  GMM_TRY(check_text(name, length));
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

gmm_tag TagTable::current_of_thread() const {
  if (const TagStack *stack = TagStack::of(own_thread_record()))
    if (const uint32_t place = stack->find(key_); place != 0) return stack->entries[place - 1].tag;
  return process_default_.load(std::memory_order_relaxed);
}

Status TagTable::push(gmm_tag tag) {
  if (get(tag) == nullptr) return unknown_tag(tag);
  TagStack *stack = make_stack();
  if (stack == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for this thread's tags.");
  if (stack->depth == kMaxDepth) stack->drop_ended();
  if (stack->depth == kMaxDepth)
    return fail(GMM_ERROR_UNBALANCED, "This thread has pushed %u tags; pop some.", kMaxDepth);
  stack->entries[stack->depth++] = TagStack::Entry{key_, tag};
  if (common_.load(std::memory_order_relaxed) != 0) {
    LockGuard guard(mutex_);
    common_.store(0, std::memory_order_relaxed);
  }
  return Status();
}

Status TagTable::pop() {
  TagStack *stack = TagStack::of(own_thread_record());
  const uint32_t place = stack == nullptr ? 0 : stack->find(key_);
  if (place == 0) return fail(GMM_ERROR_UNBALANCED, "This thread has pushed no tag on this context.");
  for (uint32_t i = place; i < stack->depth; ++i) stack->entries[i - 1] = stack->entries[i];
  --stack->depth;
  return Status();
}

Status TagTable::set_process_default(gmm_tag tag) {
  if (get(tag) == nullptr) return unknown_tag(tag);
  LockGuard guard(mutex_);
  process_default_.store(tag, std::memory_order_relaxed);
  if (common_.load(std::memory_order_relaxed) != 0) common_.store(tag, std::memory_order_relaxed);
  return Status();
}

}  // namespace gmm
