// SPDX-License-Identifier: Apache-2.0
#include "engine/limits/tag.h"

#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>

#include "engine/heap/thread_state.h"

namespace gmm {
namespace {

constinit std::atomic<uint64_t> g_serials{0};
// All tables of the process, for the end of a thread.
constinit Mutex g_tables_mutex;
constinit TagTable *g_tables = nullptr;

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

// --- Names -----------------------------------------------------------------------------------------------------------

// FNV-1a.
uint32_t TagNames::hash_of(const char *name) {
  uint32_t hash = 2166136261u;
  for (; *name != '\0'; ++name) hash = (hash ^ static_cast<unsigned char>(*name)) * 16777619u;
  return hash;
}

Tag *TagNames::find(const char *name, uint32_t hash) const {
  const uint64_t mask = slots_.size() - 1;
  if (used_ == 0) return nullptr;
  for (uint64_t i = hash & mask; slots_[i] != nullptr; i = (i + 1) & mask)
    if (slots_[i]->hash == hash && std::strcmp(slots_[i]->name, name) == 0) return slots_[i];
  return nullptr;
}

void TagNames::put(Tag *tag) {
  const uint64_t mask = slots_.size() - 1;
  uint64_t i = tag->hash & mask;
  while (slots_[i] != nullptr) i = (i + 1) & mask;
  slots_[i] = tag;
}

bool TagNames::reserve() {
  if ((used_ + 1) * 2 <= slots_.size()) return true;
  const uint64_t size = slots_.empty() ? 16 : slots_.size() * 2;
  Vector<Tag *> grown(allocator_);
  if (!grown.reserve(size)) return false;
  for (uint64_t i = 0; i < size; ++i) grown.push_back_reserved(nullptr);
  grown.swap(slots_);
  for (Tag *tag : grown)
    if (tag != nullptr) put(tag);
  return true;
}

void TagNames::add(Tag *tag) {
  put(tag);
  ++used_;
}

uint64_t TagNames::place_of(const Tag *tag) const {
  const uint64_t mask = slots_.size() - 1;
  uint64_t i = tag->hash & mask;
  while (slots_[i] != tag) i = (i + 1) & mask;
  return i;
}

// The names behind the gap move up where a search would stop at it otherwise.
void TagNames::remove(const Tag *tag) {
  const uint64_t mask = slots_.size() - 1;
  uint64_t gap = place_of(tag);
  for (uint64_t i = (gap + 1) & mask; slots_[i] != nullptr; i = (i + 1) & mask) {
    const uint64_t home = slots_[i]->hash & mask;
    if (((i - home) & mask) < ((i - gap) & mask)) continue;
    slots_[gap] = slots_[i];
    gap = i;
  }
  slots_[gap] = nullptr;
  --used_;
}

// --- Numbers ---------------------------------------------------------------------------------------------------------

TagTable::TagTable(const HostAllocator &allocator)
    : allocator_(allocator),
      serial_(g_serials.fetch_add(1, std::memory_order_relaxed) + 1),
      names_(allocator),
      memory_(allocator, sizeof(Tag), alignof(Tag)) {
  LockGuard guard(g_tables_mutex);
  next_ = g_tables;
  if (g_tables != nullptr) g_tables->previous_ = this;
  g_tables = this;
}

TagTable::~TagTable() {
  {
    LockGuard guard(g_tables_mutex);
    (previous_ != nullptr ? previous_->next_ : g_tables) = next_;
    if (next_ != nullptr) next_->previous_ = previous_;
  }
  for (gmm_tag tag = 1; tag <= last(); ++tag) allocator_.destroy(get(tag));
  for (uint32_t i = 0; i < kFarSegments; ++i)
    allocator_.deallocate(far_[i].load(std::memory_order_relaxed), (uint64_t{kNear} << i) * sizeof(Slot));
}

Status TagTable::init() {
  gmm_tag tag = 0;
  return create("default", nullptr, &tag);
}

Status TagTable::unknown(gmm_tag tag) {
  return fail(GMM_ERROR_INVALID_TAG, "Tag %u does not exist; make it with gmm_tag_create().", tag);
}

Tag *TagTable::get_far(gmm_tag tag) const {
  const uint32_t segment = static_cast<uint32_t>(std::bit_width(tag / kNear)) - 1;
  const Slot *slots = far_[segment].load(std::memory_order_acquire);
  return slots == nullptr ? nullptr : slots[tag - (kNear << segment)].load(std::memory_order_acquire);
}

TagTable::Slot *TagTable::make_slot(gmm_tag tag) {
  if (tag < kNear) return &near_[tag];
  const uint32_t segment = static_cast<uint32_t>(std::bit_width(tag / kNear)) - 1;
  Slot *slots = far_[segment].load(std::memory_order_relaxed);
  if (slots == nullptr) {
    const uint64_t size = (uint64_t{kNear} << segment) * sizeof(Slot);
    void *memory = allocator_.allocate(size, alignof(Slot));
    if (memory == nullptr) return nullptr;
    std::memset(memory, 0, size);
    slots = static_cast<Slot *>(memory);
    far_[segment].store(slots, std::memory_order_release);
  }
  return &slots[tag - (kNear << segment)];
}

Status TagTable::find(const char *name, gmm_tag *out) {
  LockGuard guard(mutex_);
  const Tag *known = names_.find(name, TagNames::hash_of(name));
  if (known == nullptr)
    return fail(GMM_ERROR_INVALID_TAG, "There is no tag named \"%.63s\"; make it with gmm_tag_create().", name);
  *out = known->number;
  return Status();
}

Status TagTable::create(const char *name, const gmm_tag_desc *desc, gmm_tag *out) {
  const uint64_t length = strnlen(name, sizeof(Tag::name));
  if (length == 0 || length >= sizeof(Tag::name))
    return fail(GMM_ERROR_INVALID_VALUE, "A tag's name has 1 to 63 bytes; this one has %s.",
                length == 0 ? "none" : "more");
  if (desc != nullptr) GMM_TRY(check_desc(*desc));
  const uint32_t hash = TagNames::hash_of(name);
  LockGuard guard(mutex_);
  if (const Tag *known = names_.find(name, hash)) {
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
  const uint32_t number = last() + 1;
  if (number == UINT32_MAX) return fail(GMM_ERROR_NOT_SUPPORTED, "A context numbers at most 4,294,967,294 tags.");
  Slot *slot = names_.reserve() ? make_slot(number) : nullptr;
  void *memory = slot == nullptr ? nullptr : memory_.take();
  if (memory == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for the tag \"%s\".", name);
  Tag *made = ::new (memory) Tag();
  std::memcpy(made->name, name, length);
  made->number = number;
  made->hash = hash;
  if (desc != nullptr) set(*made, *desc);
  names_.add(made);
  ++count_;
  slot->store(made, std::memory_order_release);
  last_.store(number, std::memory_order_release);
  *out = number;
  return Status();
}

Status TagTable::update(gmm_tag tag, const gmm_tag_desc &desc) {
  GMM_TRY(check_desc(desc));
  LockGuard guard(mutex_);
  Tag *known = get(tag);
  if (known == nullptr) return unknown(tag);
  set(*known, desc);
  return Status();
}

void TagTable::list(gmm_tag *tags, uint32_t capacity, uint32_t *count) {
  LockGuard guard(mutex_);
  uint32_t written = 0;
  for (gmm_tag tag = 1; written < capacity && tag <= last(); ++tag)
    if (get(tag) != nullptr) tags[written++] = tag;
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
  names_.remove(&tag);
  --count_;
  make_slot(tag.number)->store(nullptr, std::memory_order_release);
  memory_.retire(&tag);
}

// --- The current tag ------------------------------------------------------------------------------------------------

gmm_tag TagTable::pushed(const ThreadState &state) const {
  for (uint32_t i = state.tag_depth; i-- > 0;)
    if (state.tags[i].context == serial_) return state.tags[i].tag;
  return default_.load(std::memory_order_relaxed);
}

Status TagTable::push(gmm_tag tag) {
  Tag *known = get(tag);
  if (known == nullptr) return unknown(tag);
  ThreadState *state = make_thread_state();
  if (state != nullptr && state->tags == nullptr)
    state->tags = static_cast<TagEntry *>(std::malloc(kMaxTagDepth * sizeof(TagEntry)));
  if (state == nullptr || state->tags == nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory for this thread's tags.");
  if (state->tag_depth == kMaxTagDepth)
    return fail(GMM_ERROR_UNBALANCED, "This thread has pushed %u tags; pop some.", kMaxTagDepth);
  known->pushes.fetch_add(1, std::memory_order_seq_cst);
  if (known->ending.load(std::memory_order_seq_cst) != 0) {
    known->pushes.fetch_sub(1, std::memory_order_relaxed);
    return unknown(tag);
  }
  state->end_tags = end_pushes;
  state->tags[state->tag_depth++] = TagEntry{serial_, tag};
  return Status();
}

Status TagTable::pop() {
  ThreadState *state = t_state;
  if (state != nullptr)
    for (uint32_t i = state->tag_depth; i-- > 0;)
      if (state->tags[i].context == serial_) {
        get(state->tags[i].tag)->pushes.fetch_sub(1, std::memory_order_release);
        for (uint32_t j = i + 1; j < state->tag_depth; ++j) state->tags[j - 1] = state->tags[j];
        --state->tag_depth;
        return Status();
      }
  return fail(GMM_ERROR_UNBALANCED, "This thread has pushed no tag on this context.");
}

void TagTable::end_pushes(const ThreadState &state) {
  if (state.tag_depth == 0) return;
  LockGuard guard(g_tables_mutex);
  for (uint32_t i = 0; i < state.tag_depth; ++i)
    for (TagTable *table = g_tables; table != nullptr; table = table->next_)
      if (table->serial_ == state.tags[i].context)
        table->get(state.tags[i].tag)->pushes.fetch_sub(1, std::memory_order_release);
}

Status TagTable::set_default(gmm_tag tag) {
  LockGuard guard(mutex_);
  const Tag *known = get(tag);
  if (known == nullptr || known->ending.load(std::memory_order_relaxed) != 0) return unknown(tag);
  default_.store(tag, std::memory_order_relaxed);
  return Status();
}

}  // namespace gmm
