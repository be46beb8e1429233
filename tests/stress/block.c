// SPDX-License-Identifier: Apache-2.0
#include "block.h"

gmm_stream streams[STREAMS];
gmm_tag tags[TAGS];
bool short_of_memory;
atomic_int faults;
pthread_rwlock_t touching[TAGS];
struct tag_state tag_states[TAGS];
_Atomic uintptr_t seen[SEEN];

bool expected(gmm_result result, unsigned tag) {
  if (result == GMM_ERROR_LIMIT_EXCEEDED) return tag == TAG_LIMITED;
  if (result == GMM_ERROR_OUT_OF_MEMORY && short_of_memory) return true;
  if (!atomic_load_explicit(&faults, memory_order_relaxed)) return false;
  return result == GMM_ERROR_DRIVER || result == GMM_ERROR_SYSTEM || result == GMM_ERROR_OUT_OF_MEMORY ||
         result == GMM_ERROR_OUT_OF_HOST_MEMORY;
}

bool did(const char *file, int line, const char *what, gmm_result result) {
  if (result == GMM_OK) return true;
  if (!expected(result, TAG_DEFAULT) || result == GMM_ERROR_LIMIT_EXCEEDED)
    check_failed(file, line, "thread %u, operation %u: %s gave %s: %s", self->index, self->operations, what,
                 gmm_result_name(result), gmm_last_error_message());
  return false;
}

void synchronize(gmm_stream stream) { SURELY(gmm_stream_synchronize(context, stream)); }
void settle(block *b) {
  if (b->settled) return;
  synchronize(b->stream);
  b->settled = true;
}

// --- contents ----------------------------------------------------------------------------------------------------
static unsigned edges_of(const block *b) { return b->size <= EDGE ? 1 : b->size <= MOST_EDGES * EDGE ? MOST_EDGES : 3; }
static uint64_t edge_at(const block *b, unsigned i) {
  unsigned count = edges_of(b);
  return count == 1 ? 0 : (b->size - EDGE) * i / (count - 1);
}
static uint64_t edge_length(const block *b) { return b->size < EDGE ? b->size : EDGE; }
static uint8_t byte_at(const block *b, uint64_t i) {
  return b->contents == ONE_BYTE ? (uint8_t)b->seed : pattern_at(i, b->seed);
}

// What gmm says of the block; true when its contents may be used. With the tag's lock.
static bool look_at(const block *b, gmm_pointer_info *info) {
  uint64_t inside = below(b->size);
  *info = (gmm_pointer_info){.struct_size = sizeof *info};
  if (!DO(gmm_query(context, b->memory + inside, info))) return false;
  bool right =
      info->base == b->memory && info->size == b->size && info->kind == b->kind && info->tag == tags[b->tag] &&
      info->device == 0 && info->reserved_size >= b->size &&
      (info->state == GMM_STATE_ACTIVE ||
       (b->kind == GMM_KIND_VMM && (info->state == GMM_STATE_PAUSED || info->state == GMM_STATE_PARTLY_PAUSED)));
  if (!right)
    check_failed(__FILE__, __LINE__,
                 "%p of %llu bytes, %s, tag %u: query says base %p, size %llu of %llu, kind %u, tag %u, state %u",
                 (void *)b->memory, (unsigned long long)b->size, kind_name(b->kind), tags[b->tag], info->base,
                 (unsigned long long)info->size, (unsigned long long)info->reserved_size, info->kind, info->tag,
                 info->state);
  if (!right || info->state != GMM_STATE_ACTIVE) return false;
  if (b->kind != GMM_KIND_VMM) return true;
  // A resume under way may still fail: from here on it leaves this block as it is.
  gmm_result ready = gmm_resume_wait(context, b->memory, b->size, 0);
  if (ready != GMM_ERROR_NOT_READY) DO(ready);
  return ready == GMM_OK;
}

// A tag that is read-only promises that nothing is written after it was paused first. With the tag's lock.
static bool may_write(const block *b) {
  return b->kind != GMM_KIND_VMM || (tag_states[b->tag].flags & GMM_TAG_READ_ONLY) == 0 ||
         b->born == tag_states[b->tag].pauses;
}

// Bytes of a block that the test writes as a whole; of large ones a part will do.
static uint64_t filled(const block *b) { return b->size < MIB ? b->size : MIB; }

void write_block(block *b) {
  uint8_t bytes[MOST_EDGES][EDGE];
  gmm_pointer_info info;
  pthread_rwlock_rdlock(&touching[b->tag]);
  if (look_at(b, &info) && may_write(b)) {
    b->generation = info.generation;
    b->drops = tag_states[b->tag].drops;
    b->seed = (uint32_t)next_random() | 1;
    b->contents = NOTHING;
    bool done = true;
    if (one_in(3)) {
      // Not waited for: the check that follows on the same stream must see it.
      if (DO(gmm_fill(context, b->memory, b->seed & 255, b->size < 2 * MIB ? b->size : EDGE, b->stream)))
        b->contents = ONE_BYTE;
      if (b->size >= 2 * MIB) b->contents = NOTHING;
      b->settled = false;
    } else {
      for (unsigned i = 0; i < edges_of(b); ++i) {
        for (unsigned j = 0; j < EDGE; ++j) bytes[i][j] = pattern_at(edge_at(b, i) + j, b->seed);
        done = DO(gmm_copy(context, b->memory + edge_at(b, i), bytes[i], edge_length(b), b->stream)) && done;
      }
      if (done) b->contents = PATTERN;
      b->settled = false;
      settle(b);
    }
  }
  note("write", 0, b->memory, b->size, b->seed);
  pthread_rwlock_unlock(&touching[b->tag]);
}

static bool compare_edges(const block *b, uint8_t bytes[MOST_EDGES][EDGE], const char *where,
                          const gmm_pointer_info *info) {
  for (unsigned i = 0; i < edges_of(b); ++i)
    for (unsigned j = 0; j < edge_length(b); ++j) {
      if (bytes[i][j] == byte_at(b, edge_at(b, i) + j)) continue;
      check_failed(
          __FILE__, __LINE__,
          "thread %u, operation %u: %s %p of %llu bytes, %s, tag %u, generation %llu then, %llu now: byte %llu is "
          "%u, expected %u",
          self->index, self->operations, where, (void *)b->memory, (unsigned long long)b->size, kind_name(b->kind),
          b->tag, (unsigned long long)b->generation, (unsigned long long)info->generation,
          (unsigned long long)(edge_at(b, i) + j), bytes[i][j], byte_at(b, edge_at(b, i) + j));
      return false;
    }
  return true;
}

// What is kept of a paused block is what it had. A resume may be quicker than the read: then it is refused.
static void check_kept(const block *b, const gmm_pointer_info *info) {
  uint8_t bytes[MOST_EDGES][EDGE];
  for (unsigned i = 0; i < edges_of(b); ++i) {
    gmm_result result = gmm_backup_read(context, b->memory + edge_at(b, i), edge_length(b), bytes[i]);
    if (result == GMM_ERROR_INVALID_VALUE || !DO(result)) return;
  }
  compare_edges(b, bytes, "kept of", info);
}

atomic_ullong parts_resumed, kept_checked;

void check_block(block *b) {
  uint8_t bytes[MOST_EDGES][EDGE];
  gmm_pointer_info info;
  pthread_rwlock_rdlock(&touching[b->tag]);
  bool readable = look_at(b, &info);
  if (b->kind == GMM_KIND_VMM && tag_states[b->tag].drops != b->drops) b->contents = NOTHING;
  if (!readable && b->kind == GMM_KIND_VMM && info.state == GMM_STATE_PAUSED) {
    if (b->contents != NOTHING && one_in(3)) {
      check_kept(b, &info);
      atomic_fetch_add(&kept_checked, 1);
    }
    if (one_in(3)) {
      uint64_t came = 0;
      gmm_result result = gmm_resume_range(context, b->memory, b->size, &came);
      note("resume range", result, b->memory, b->size, came);
      // The block's heap may have a limit of its own that was reached meanwhile.
      if (result != GMM_UNCHANGED && result != GMM_OK && result != GMM_ERROR_LIMIT_EXCEEDED &&
          !expected(result, b->tag))
        DO(result);
      atomic_fetch_add(&parts_resumed, came != 0);
      // Nobody can pause it meanwhile: it is there now.
      readable = look_at(b, &info);
      if ((result == GMM_OK || result == GMM_UNCHANGED) && !readable && !atomic_load(&faults))
        check_failed(__FILE__, __LINE__, "%p is not usable after its own resume", (void *)b->memory);
    }
  }
  if (readable && b->contents != NOTHING) {
    bool done = true;
    for (unsigned i = 0; i < edges_of(b); ++i)
      done = DO(gmm_copy(context, bytes[i], b->memory + edge_at(b, i), edge_length(b), b->stream)) && done;
    b->settled = false;
    settle(b);
    if (done) compare_edges(b, bytes, "in", &info);
  }
  note("check", 0, b->memory, b->size, b->seed);
  pthread_rwlock_unlock(&touching[b->tag]);
}

uint64_t random_size(void) {
  static const struct {
    unsigned weight;
    uint64_t most;
  } classes[] = {{300, 256}, {330, 4096}, {200, 65536}, {120, MIB}, {40, 6 * MIB}, {8, 32 * MIB}, {2, 96 * MIB}};
  uint64_t pick = below(1000);
  unsigned i = 0;
  while (pick >= classes[i].weight) pick -= classes[i++].weight;
  return 1 + below(classes[i].most);
}
gmm_stream random_stream(void) {
  uint64_t pick = below(STREAMS + 3);
  return pick < STREAMS        ? streams[pick]
         : pick == STREAMS     ? GMM_STREAM_DEFAULT
         : pick == STREAMS + 1 ? GMM_STREAM_LEGACY
                               : GMM_STREAM_PER_THREAD;
}

void entered(block *b) {
  ++self->allocations;
  model_add(b->memory, (owner){self->index, self->operations, b->kind, b->tag, b->size});
  atomic_store_explicit(&seen[below(SEEN)], (uintptr_t)b->memory + below(b->size), memory_order_relaxed);
}

void remember_birth(block *b) {
  pthread_rwlock_rdlock(&touching[b->tag]);
  b->born = tag_states[b->tag].pauses;
  b->drops = tag_states[b->tag].drops;
  pthread_rwlock_unlock(&touching[b->tag]);
}

bool take(block *b, gmm_stream stream) {
  memset(b, 0, sizeof *b);
  b->size = random_size();
  b->stream = stream;
  b->tag = (unsigned)below(TAGS);
  b->settled = false;
  gmm_alloc_desc desc = {.struct_size = sizeof desc, .tag = tags[b->tag], .stream = stream};
  do desc.kind = one_in(3) ? GMM_KIND_VMM : GMM_KIND_DEVICE + (gmm_kind)below(4);
  while (!has_kind(desc.kind));
  b->kind = desc.kind;
  uint64_t way = below(20);
  if (way == 0) desc.flags |= GMM_ALLOC_ZERO;
  if (way == 1 && b->size > 100000) desc.flags |= GMM_ALLOC_DEDICATED;
  if (way == 2) desc.alignment = (uint64_t)256 << below(14);
  bool by_push = one_in(10);
  if (by_push) {
    desc.tag = GMM_TAG_CURRENT;
    DO(gmm_tag_push(context, tags[b->tag]));
  }
  void *memory = NULL;
  remember_birth(b);
  gmm_result result = gmm_alloc(context, b->size, &desc, &memory);
  note("alloc", result, memory, b->size, desc.kind);
  if (by_push) DO(gmm_tag_pop(context));
  if (result != GMM_OK) {
    if (!expected(result, b->tag))
      check_failed(__FILE__, __LINE__, "thread %u: alloc of %llu bytes of %s under tag %u: %s: %s", self->index,
                   (unsigned long long)b->size, kind_name(b->kind), b->tag, gmm_result_name(result),
                   gmm_last_error_message());
    ++self->refused;
    return false;
  }
  b->memory = memory;
  entered(b);
  if ((uintptr_t)memory % (desc.alignment > 256 ? desc.alignment : 256) != 0)
    check_failed(__FILE__, __LINE__, "%p is not aligned to %llu", memory, (unsigned long long)desc.alignment);
  if ((desc.flags & GMM_ALLOC_ZERO) != 0) {
    b->contents = ONE_BYTE;
    check_block(b);
  }
  write_block(b);
  return true;
}

// --- freeing -----------------------------------------------------------------------------------------------------
static void be_slow(void *user) {
  struct timespec time = {.tv_nsec = (long)(uintptr_t)user};
  nanosleep(&time, NULL);
}

// Work that is still queued when the block is freed: whoever gets the memory next must not see it.
static void leave_work(block *b, gmm_stream stream) {
  gmm_pointer_info info;
  pthread_rwlock_rdlock(&touching[b->tag]);
  if (look_at(b, &info) && may_write(b)) {
    if (one_in(3))
      DO(gmm_stream_call(context, stream, be_slow, (void *)(uintptr_t)(20000 + below(one_in(8) ? 4000000 : 400000))));
    DO(gmm_fill(context, b->memory, 0xdd, filled(b), stream));
    if (b->size > MIB) DO(gmm_fill(context, b->memory + b->size - EDGE, 0xdd, EDGE, stream));
  }
  pthread_rwlock_unlock(&touching[b->tag]);
}

void give(block *b) {
  check_block(b);
  gmm_stream stream = b->stream;
  if (one_in(4)) {
    settle(b);
    stream = random_stream();
  }
  uint64_t way = below(8);
  if (way <= 1) leave_work(b, stream);
  if (way == 2) {
    gmm_stream other = random_stream();
    settle(b);
    bool recorded = DO(gmm_record_use(context, b->memory, other));
    if (recorded) leave_work(b, other);
  }
  if (way == 3) {
    gmm_result result = gmm_free(context, b->memory + 1, stream);
    if (result != GMM_ERROR_INTERIOR_POINTER && b->size > 1)
      check_failed(__FILE__, __LINE__, "free of an interior pointer gave %s", gmm_result_name(result));
  }
  model_remove(b->memory, b->size);
  note("free", 0, b->memory, b->size, b->kind);
  SURELY(gmm_free(context, b->memory, stream));
  ++self->frees;
  b->memory = NULL;
}
