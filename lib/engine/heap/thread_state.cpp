// SPDX-License-Identifier: Apache-2.0
#include "engine/heap/thread_state.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "engine/heap/heap_caches.h"
#include "engine/heap/heap_registry.h"

namespace gmm {

constinit thread_local ThreadState *t_state = nullptr;
constinit thread_local ThreadTableEntry t_last = {};

namespace {

constinit pthread_once_t g_key_once = PTHREAD_ONCE_INIT;
constinit pthread_key_t g_key = 0;
constinit bool g_key_made = false;
constinit std::atomic<uint64_t> g_thread_ids{0};

void end_caches_of(const ThreadState &state) {
  for (uint32_t slot = 0; slot < state.table_size; ++slot) {
    const ThreadTableEntry &entry = state.table[slot];
    if (entry.cache == nullptr) continue;
    LockGuard guard(HeapRegistry::mutex());
    Heap *heap = HeapRegistry::find(slot, entry.serial);
    // In a forked child the parent's memory is not ours to give back.
    if (heap == nullptr || !heap->core().alive()) continue;
    heap->caches.end_of_thread(*entry.cache);
  }
}

void end_thread(void *value) {
  ThreadState *state = static_cast<ThreadState *>(value);
  // Still set while the caches end: the frees of the per-thread stream are noted under this thread's number.
  t_state = state;
  end_caches_of(*state);
  if (state->end_traces != nullptr) state->end_traces(state->id);
  if (state->end_tags != nullptr) state->end_tags(*state);
  t_state = nullptr;
  t_last = ThreadTableEntry{};
  std::free(state->tags);
  std::free(state->table);
  std::free(state);
}

void make_key() { g_key_made = pthread_key_create(&g_key, end_thread) == 0; }

}  // namespace

bool ThreadState::reserve_slot(uint32_t slot) {
  if (slot < table_size) return true;
  const uint32_t size = (slot + 64) & ~63u;
  void *memory = std::realloc(table, size * sizeof(ThreadTableEntry));
  if (memory == nullptr) return false;
  table = static_cast<ThreadTableEntry *>(memory);
  for (uint32_t i = table_size; i < size; ++i) table[i] = ThreadTableEntry{};
  table_size = size;
  return true;
}

ThreadState *make_thread_state() {
  if (t_state != nullptr) return t_state;
  pthread_once(&g_key_once, make_key);
  if (!g_key_made) return nullptr;
  void *memory = std::malloc(sizeof(ThreadState));
  if (memory == nullptr) return nullptr;
  ThreadState *state = ::new (memory) ThreadState();
  if (pthread_setspecific(g_key, state) != 0) {
    std::free(state);
    return nullptr;
  }
  state->id = g_thread_ids.fetch_add(1, std::memory_order_relaxed) + 1;
  t_state = state;
  return state;
}

uint64_t current_thread_id() {
  const ThreadState *state = make_thread_state();
  return state == nullptr ? 0 : state->id;
}

}  // namespace gmm
