// SPDX-License-Identifier: Apache-2.0
// What a thread has: made at its first call, ended with the thread.
#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

#include "engine/heap/cache_state.h"
#include "engine/heap/heap_registry.h"

namespace gmm {

constinit thread_local ThreadState *t_state = nullptr;
constinit thread_local ThreadTableEntry t_last = {};

namespace {

constinit pthread_once_t g_key_once = PTHREAD_ONCE_INIT;
constinit pthread_key_t g_key = 0;
constinit bool g_key_made = false;
constinit std::atomic<uint64_t> g_thread_ids{0};
constinit std::atomic<bool> g_expedited{false};

void end_thread(void *value) {
  ThreadState *state = static_cast<ThreadState *>(value);
  // Still set while the caches are returned: the frees of the per-thread stream are noted under this thread's number.
  t_state = state;
  for (uint32_t slot = 0; slot < state->table_size; ++slot) {
    ThreadTableEntry &entry = state->table[slot];
    if (entry.cache == nullptr) continue;
    LockGuard guard(HeapRegistry::mutex());
    Heap *heap = HeapRegistry::find(slot, entry.serial);
    // In a forked child the parent's memory is not ours to give back.
    if (heap == nullptr || !heap->core().alive()) continue;
    LockGuard caches_guard(heap->caches_mutex);
    empty_cache(*entry.cache, true, nullptr);
    end_cache(*entry.cache);
    heap->end_thread(state->id);
  }
  if (state->end_traces != nullptr) state->end_traces(state->id);
  t_state = nullptr;
  t_last = ThreadTableEntry{};
  std::free(state->tags);
  std::free(state->table);
  std::free(state);
}

void make_key() { g_key_made = pthread_key_create(&g_key, end_thread) == 0; }

}  // namespace

ThreadState *make_thread_state() {
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
  ThreadState *state = t_state != nullptr ? t_state : make_thread_state();
  return state == nullptr ? 0 : state->id;
}

ThreadState *current_thread(bool make) { return t_state != nullptr || !make ? t_state : make_thread_state(); }

void prepare_barriers() {
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0)
    g_expedited.store(true, std::memory_order_relaxed);
}

bool expedited_barriers() { return g_expedited.load(std::memory_order_relaxed); }

}  // namespace gmm
