/* SPDX-License-Identifier: Apache-2.0 */
/* Pools with a tag. A pluggable allocator's functions get no argument of their own, so each tag has its own functions:
 * a slot. */
#include <pthread.h>

#include "gmm_torch.h"

#define ROUTES 256
#define DEPTH 16

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static TorchRoute slots[GMM_TORCH_SLOTS];
static int32_t slot_count;

/* Written under the mutex, read without it: `slot` is stored last, with release, and loaded first, with acquire. */
static struct {
  _Atomic(uint64_t) first, second;
  _Atomic(int32_t) slot; /* + 1; 0: free */
} routes[ROUTES];

/* The pools that this thread allocates from, innermost last. Ids without a route count too, because each one ends. */
static _Thread_local struct {
  uint32_t depth;
  gmm_torch_pool_id ids[DEPTH];
  const TorchRoute *routes[DEPTH];
} current;

void torch_pools_forget(void) {
  slot_count = 0;
  for (uint32_t i = 0; i < ROUTES; ++i) atomic_store_explicit(&routes[i].slot, 0, memory_order_relaxed);
  current.depth = 0;
  pthread_mutex_init(&mutex, NULL);
}

static void *slot_alloc(uint32_t slot, ssize_t size, int device, gmm_stream stream) {
  gmm_context *context = torch_context();
  if (context == NULL || size <= 0) return NULL;
  const gmm_alloc_desc desc = {
      .struct_size = sizeof desc, .kind = slots[slot].kind, .device = device, .tag = slots[slot].tag, .stream = stream};
  void *memory = NULL;
  if (gmm_alloc(context, (uint64_t)size, &desc, &memory) < 0)
    return NULL; /* PyTorch empties its cache and tries again */
  if (desc.kind == GMM_KIND_MANAGED) torch_advise_new(context, memory, device, 0);
  return memory;
}

#define SLOT(n)                                                              \
  static void *slot_alloc_##n(ssize_t size, int device, gmm_stream stream) { \
    return slot_alloc(n, size, device, stream);                              \
  }
#define NAME(n) slot_alloc_##n,
#define EIGHT(X, d) X(d##0) X(d##1) X(d##2) X(d##3) X(d##4) X(d##5) X(d##6) X(d##7)
/* Octal: 64 numbers. */
#define ALL(X) EIGHT(X, 0) EIGHT(X, 01) EIGHT(X, 02) EIGHT(X, 03) EIGHT(X, 04) EIGHT(X, 05) EIGHT(X, 06) EIGHT(X, 07)
ALL(SLOT)
static void *(*const slot_functions[])(ssize_t, int, gmm_stream) = {ALL(NAME)};
_Static_assert(sizeof slot_functions / sizeof slot_functions[0] == GMM_TORCH_SLOTS, "a function for each slot");

int32_t gmm_torch_slot(gmm_tag tag, gmm_kind kind, void **allocate, void **deallocate) {
  int32_t slot = 0;
  pthread_mutex_lock(&mutex);
  while (slot < slot_count && (slots[slot].tag != tag || slots[slot].kind != kind)) ++slot;
  if (slot == GMM_TORCH_SLOTS) {
    slot = -1;
  } else if (slot == slot_count) {
    slots[slot].tag = tag;
    slots[slot].kind = kind;
    ++slot_count;
  }
  pthread_mutex_unlock(&mutex);
  if (slot >= 0) {
    *allocate = (void *)slot_functions[slot];
    *deallocate = (void *)gmm_torch_dealloc;
  }
  return slot;
}

gmm_result gmm_torch_route(uint64_t first, uint64_t second, int32_t slot) {
  if (slot < 0 || slot >= slot_count) return GMM_ERROR_INVALID_VALUE;
  gmm_result result = GMM_ERROR_OUT_OF_HOST_MEMORY;
  pthread_mutex_lock(&mutex);
  for (uint32_t i = 0; i < ROUTES; ++i) {
    if (atomic_load_explicit(&routes[i].slot, memory_order_relaxed) != 0) continue;
    atomic_store_explicit(&routes[i].first, first, memory_order_relaxed);
    atomic_store_explicit(&routes[i].second, second, memory_order_relaxed);
    atomic_store_explicit(&routes[i].slot, slot + 1, memory_order_release);
    result = GMM_OK;
    break;
  }
  pthread_mutex_unlock(&mutex);
  return result;
}

static int32_t find(gmm_torch_pool_id id, uint32_t *at) {
  for (uint32_t i = 0; i < ROUTES; ++i) {
    const int32_t slot = atomic_load_explicit(&routes[i].slot, memory_order_acquire);
    if (slot == 0 || atomic_load_explicit(&routes[i].first, memory_order_relaxed) != id.first ||
        atomic_load_explicit(&routes[i].second, memory_order_relaxed) != id.second)
      continue;
    *at = i;
    return slot;
  }
  return 0;
}

void gmm_torch_unroute(uint64_t first, uint64_t second) {
  uint32_t at;
  pthread_mutex_lock(&mutex);
  if (find((gmm_torch_pool_id){first, second}, &at) != 0)
    atomic_store_explicit(&routes[at].slot, 0, memory_order_release);
  pthread_mutex_unlock(&mutex);
}

int32_t torch_is_routed(gmm_torch_pool_id id) {
  uint32_t at;
  return find(id, &at) != 0;
}

void torch_route_begin(gmm_torch_pool_id id) {
  if (current.depth == DEPTH) return; /* the outer pools still count */
  uint32_t at;
  const int32_t slot = find(id, &at);
  current.ids[current.depth] = id;
  current.routes[current.depth] = slot != 0 ? &slots[slot - 1] : NULL;
  ++current.depth;
}

void torch_route_end(gmm_torch_pool_id id) {
  uint32_t at = current.depth;
  while (at > 0 && (current.ids[at - 1].first != id.first || current.ids[at - 1].second != id.second)) --at;
  if (at == 0) return; /* it began on another thread */
  for (; at < current.depth; ++at) {
    current.ids[at - 1] = current.ids[at];
    current.routes[at - 1] = current.routes[at];
  }
  --current.depth;
}

/* The innermost pool with a tag. So a graph that is captured inside a tagged pool has the tag. */
const TorchRoute *torch_route(void) {
  for (uint32_t at = current.depth; at > 0; --at)
    if (current.routes[at - 1] != NULL) return current.routes[at - 1];
  return NULL;
}
