// SPDX-License-Identifier: Apache-2.0
#include "engine/limits/tag.h"

#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/name.h"
#include "base/thread_record.h"

namespace gmm {
namespace {

// The tables of all contexts, so that a thread knows which of its tags belong to a context that ended.
constinit Registry::Place g_table_places[TagTable::kMaxTables] = {};
constinit Registry g_tables{g_table_places, TagTable::kMaxTables};

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
  // Each push is given back to the table that still lives: with the thread's end, or that of the last context.
  static void end(void *state) {
    TagStack *stack = static_cast<TagStack *>(state);
    for (uint32_t i = 0; i < stack->depth; ++i) {
      const Entry &entry = stack->entries[i];
      TagTable *table = static_cast<TagTable *>(g_tables.visit(entry.table));
      if (table == nullptr) continue;
      table->get(entry.tag)->pushes.fetch_sub(1, std::memory_order_release);
      g_tables.leave(entry.table);
    }
    std::free(stack);
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
  record->set_part(ThreadPart::kTags, stack, TagStack::end);
  return stack;
}

void set(Tag &tag, const gmm_tag_desc &desc) {
  tag.contents.store(desc.contents, std::memory_order_relaxed);
  tag.priority.store(desc.priority, std::memory_order_relaxed);
  tag.flags.store(desc.flags, std::memory_order_relaxed);
}

}  // namespace

// --- Numbers ---------------------------------------------------------------------------------------------------------

constinit TagNumbers::Slot TagNumbers::near_[kNear] = {};
constinit std::atomic<TagNumbers::Slot *> TagNumbers::far_[kFarSegments] = {};
constinit std::atomic<uint32_t> TagNumbers::last_{GMM_TAG_DEFAULT};

TagNumbers::Slot *TagNumbers::find_far(gmm_tag number) {
  const uint32_t segment = static_cast<uint32_t>(std::bit_width(number / kNear)) - 1;
  Slot *slots = far_[segment].load(std::memory_order_acquire);
  return slots == nullptr ? nullptr : &slots[number - (kNear << segment)];
}

TagNumbers::Slot *TagNumbers::take(gmm_tag *number) {
  uint32_t last = last_.load(std::memory_order_relaxed);
  do {
    if (last == UINT32_MAX) return nullptr;
  } while (!last_.compare_exchange_weak(last, last + 1, std::memory_order_relaxed));
  *number = last + 1;
  if (*number < kNear) return &near_[*number];
  const uint32_t segment = static_cast<uint32_t>(std::bit_width(*number / kNear)) - 1;
  Slot *none = nullptr;
  if (far_[segment].load(std::memory_order_acquire) == nullptr) {
    Slot *made = static_cast<Slot *>(std::calloc(uint64_t{kNear} << segment, sizeof(Slot)));
    if (made == nullptr) return nullptr;
    if (!far_[segment].compare_exchange_strong(none, made, std::memory_order_acq_rel)) std::free(made);
  }
  return find_far(*number);
}

TagTable::TagTable(const HostAllocator &allocator)
    : allocator_(allocator), names_(allocator), memory_(allocator, sizeof(Tag), alignof(Tag)) {}

TagTable::~TagTable() {
  g_tables.remove(key_);
  while (Tag *tag = list_.pop_front()) {
    if (tag->slot != nullptr) tag->slot->owner.store(0, std::memory_order_release);
    allocator_.destroy(tag);
  }
}

Status TagTable::init() {
  if (!g_tables.add(this, &key_))
    return fail(GMM_ERROR_NOT_SUPPORTED, "A process can have %u contexts, and all are in use; release some.",
                kMaxTables);
  owner_ = key_.serial * kMaxTables + key_.slot;
  gmm_tag tag = 0;
  return create("default", nullptr, &tag);
}

Status TagTable::unknown(gmm_tag tag) {
  const TagNumbers::Slot *slot = TagNumbers::find(tag);
  const uint64_t owner = slot == nullptr ? 0 : slot->owner.load(std::memory_order_acquire);
  const RegistryKey key{static_cast<uint32_t>(owner % kMaxTables), owner / kMaxTables};
  if (g_tables.visit(key) != nullptr) {
    const Status status =
        fail(GMM_ERROR_INVALID_TAG, "The tag \"%s\" belongs to another context; use a tag of the call's context.",
             slot->tag->name);
    g_tables.leave(key);
    return status;
  }
  return fail(GMM_ERROR_INVALID_TAG, "Tag %u does not exist; make it with gmm_tag_create().", tag);
}

const Tag *TagTable::find_named(const char *name) const {
  Tag *const *known =
      names_.find(hash_of_text(name), [name](const Tag *tag) { return std::strcmp(tag->name, name) == 0; });
  return known == nullptr ? nullptr : *known;
}

Status TagTable::find(const char *name, gmm_tag *out) {
  LockGuard guard(mutex_);
  const Tag *known = find_named(name);
  if (known != nullptr) {
    *out = known->number;
    return Status();
  }
  const uint64_t length = strnlen(name, sizeof(Tag::name) - 1);
  return fail(GMM_ERROR_INVALID_TAG, "There is no tag named \"%.*s\"; make it with gmm_tag_create().",
              static_cast<int>(utf8_prefix(name, length)), name);
}

Status TagTable::create(const char *name, const gmm_tag_desc *desc, gmm_tag *out) {
  GMM_TRY(check_name("A tag's name", name, sizeof(Tag::name)));
  LockGuard guard(mutex_);
  if (const Tag *known = find_named(name)) {
    if (desc != nullptr &&
        (desc->contents != known->contents || desc->priority != known->priority || desc->flags != known->flags))
      return fail(GMM_ERROR_INVALID_VALUE,
                  "The tag \"%s\" exists with contents %u, priority %d and flags 0x%x, not %u, %d and 0x%x; use the "
                  "same, another name, or gmm_tag_configure().",
                  name, known->contents.load(), known->priority.load(), known->flags.load(), desc->contents,
                  desc->priority, desc->flags);
    *out = known->number;
    return Status();
  }
  // The first tag is the default one, which has a number in every context.
  gmm_tag number = GMM_TAG_DEFAULT;
  TagNumbers::Slot *slot = nullptr;
  void *memory = names_.reserve() ? memory_.take() : nullptr;
  if (memory != nullptr && default_tag_ != nullptr && (slot = TagNumbers::take(&number)) == nullptr) {
    memory_.retire(memory);
    memory = nullptr;
  }
  if (memory == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the tag \"%s\".", name);
  Tag *made = ::new (memory) Tag();
  std::strncpy(made->name, name, sizeof made->name - 1);
  made->number = number;
  if (desc != nullptr) set(*made, *desc);
  names_.add(hash_of_text(name), made);
  ++count_;
  list_.push_back(made);
  if (default_tag_ == nullptr) default_tag_ = made;
  if (slot != nullptr) {
    slot->tag = made;
    slot->owner.store(owner_, std::memory_order_release);
  }
  made->slot = slot;
  *out = number;
  return Status();
}

Status TagTable::update(gmm_tag tag, const gmm_tag_desc &desc) {
  LockGuard guard(mutex_);
  Tag *known = get(tag);
  if (known == nullptr) return unknown(tag);
  set(*known, desc);
  return Status();
}

void TagTable::list(gmm_tag *tags, uint32_t capacity, uint32_t *count) {
  LockGuard guard(mutex_);
  uint32_t written = 0;
  for (Tag *tag = list_.front(); tag != nullptr && written < capacity; tag = list_.next(tag))
    tags[written++] = tag->number;
  *count = count_;
}

Status TagTable::begin_end(Tag &tag) {
  LockGuard guard(mutex_);
  if (tag.number == GMM_TAG_DEFAULT || tag.number == default_.load(std::memory_order_relaxed))
    return fail(GMM_ERROR_BUSY,
                "gmm_tag_destroy: the tag \"%s\" is the default; set another default, and keep GMM_TAG_DEFAULT.",
                tag.name);
  // push() counts first and looks then, so one of the two sees the other.
  tag.ending.store(1, std::memory_order_seq_cst);
  const uint32_t pushes = tag.pushes.load(std::memory_order_seq_cst);
  if (pushes == 0) return Status();
  tag.ending.store(0, std::memory_order_seq_cst);
  return fail(GMM_ERROR_BUSY, "gmm_tag_destroy: the tag \"%s\" was pushed %u times and not popped; pop it.", tag.name,
              pushes);
}

void TagTable::end(Tag &tag) {
  LockGuard guard(mutex_);
  names_.remove(hash_of_text(tag.name), [&](const Tag *each) { return each == &tag; });
  --count_;
  tag.slot->owner.store(0, std::memory_order_release);
  List<Tag, TagTable>::remove(&tag);
  memory_.retire(&tag);
}

// --- The current tag ------------------------------------------------------------------------------------------------

gmm_tag TagTable::current_of_thread() const {
  if (const TagStack *stack = TagStack::of(own_thread_record()))
    if (const uint32_t place = stack->find(key_); place != 0) return stack->entries[place - 1].tag;
  return default_.load(std::memory_order_relaxed);
}

Status TagTable::push(gmm_tag tag) {
  Tag *known = get(tag);
  if (known == nullptr) return unknown(tag);
  TagStack *stack = make_stack();
  if (stack == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for this thread's tags.");
  if (stack->depth == kMaxDepth) stack->drop_ended();
  if (stack->depth == kMaxDepth)
    return fail(GMM_ERROR_UNBALANCED, "This thread has pushed %u tags; pop some.", kMaxDepth);
  known->pushes.fetch_add(1, std::memory_order_seq_cst);
  if (known->ending.load(std::memory_order_seq_cst) != 0) {
    known->pushes.fetch_sub(1, std::memory_order_relaxed);
    return unknown(tag);
  }
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
  get(stack->entries[place - 1].tag)->pushes.fetch_sub(1, std::memory_order_release);
  for (uint32_t i = place; i < stack->depth; ++i) stack->entries[i - 1] = stack->entries[i];
  --stack->depth;
  return Status();
}

Status TagTable::set_default(gmm_tag tag) {
  LockGuard guard(mutex_);
  const Tag *known = get(tag);
  if (known == nullptr || known->ending.load(std::memory_order_relaxed) != 0) return unknown(tag);
  default_.store(tag, std::memory_order_relaxed);
  if (common_.load(std::memory_order_relaxed) != 0) common_.store(tag, std::memory_order_relaxed);
  return Status();
}

}  // namespace gmm
