/* SPDX-License-Identifier: Apache-2.0 */
/* Managed memory of CPU tensors, in a heap of its own. A block of the CUDA tensors' heap is ready in the order of a
 * stream, but the host is on no stream. Here a block is free only when it is idle. For gmm all blocks are on one
 * stream. A block that has notes of streams waits in a list until their events have passed. */
#include <pthread.h>
#include <stdlib.h>

#include "gmm_torch.h"

typedef struct Waiting {
  struct Waiting *next;
  TorchBlock *block;
  gmm_event *events[TORCH_BLOCK_STREAMS]; /* NULL: passed, or not recorded yet */
  uint32_t recorded;                      /* bit i: events[i] is recorded */
} Waiting;

static _Atomic(gmm_heap *) heap;
static _Atomic(gmm_tag) tag;
static _Atomic(gmm_device) accessed_by;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Waiting *waiting;
static _Atomic(uint64_t) waiting_count;

gmm_tag torch_host_tag(void) { return atomic_load_explicit(&tag, memory_order_relaxed); }

void torch_host_forget(void) {
  atomic_store_explicit(&heap, NULL, memory_order_relaxed);
  atomic_store_explicit(&tag, 0, memory_order_relaxed);
  atomic_store_explicit(&waiting_count, 0, memory_order_relaxed);
  waiting = NULL;
  pthread_mutex_init(&mutex, NULL);
}

gmm_result gmm_torch_host_start(gmm_device device) {
  gmm_context *context = torch_context();
  if (context == NULL) return GMM_ERROR_FORKED;
  atomic_store_explicit(&accessed_by, device, memory_order_relaxed);
  if (atomic_load_explicit(&heap, memory_order_acquire) != NULL) return GMM_UNCHANGED;
  gmm_tag made = 0;
  gmm_heap *opened = NULL;
  gmm_result result = gmm_tag_create(context, "torch-cpu", NULL, &made);
  if (result < 0) return result;
  const gmm_heap_desc desc = {.struct_size = sizeof desc, .kind = GMM_KIND_MANAGED, .device = device, .tag = made};
  result = gmm_heap_create(context, &desc, &opened);
  if (result < 0) return result;
  atomic_store_explicit(&tag, made, memory_order_relaxed); /* the name finds one tag for all threads */
  gmm_heap *other = NULL;
  if (atomic_compare_exchange_strong_explicit(&heap, &other, opened, memory_order_acq_rel, memory_order_acquire))
    return GMM_OK;
  result = gmm_heap_destroy(opened); /* another thread came first */
  return result < 0 ? result : GMM_UNCHANGED;
}

void *gmm_torch_host_alloc(uint64_t size) {
  gmm_context *context = torch_context();
  gmm_heap *from = atomic_load_explicit(&heap, memory_order_acquire);
  if (context == NULL || from == NULL) return NULL;
  if (atomic_load_explicit(&waiting_count, memory_order_relaxed) != 0) gmm_torch_host_collect(0);
  void *memory = NULL;
  gmm_result result = gmm_heap_alloc(from, size, 0, 0, GMM_STREAM_DEFAULT, &memory);
  if (result < 0 && result != GMM_ERROR_FORKED && atomic_load_explicit(&waiting_count, memory_order_relaxed) != 0) {
    gmm_torch_host_collect(1);
    result = gmm_heap_alloc(from, size, 0, 0, GMM_STREAM_DEFAULT, &memory);
  }
  if (result < 0) return NULL;
  torch_advise_new(context, memory, atomic_load_explicit(&accessed_by, memory_order_relaxed), 1);
  return memory;
}

static void give_back(gmm_context *context, TorchBlock *block) {
  if (block->moved)
    torch_advise_again(context, block->memory, block->size, atomic_load_explicit(&accessed_by, memory_order_relaxed),
                       1);
  torch_complain(gmm_free(context, block->memory, GMM_STREAM_DEFAULT), "free", block->memory);
  free(block);
}

/* True when no stream uses the block any more. A stream in capture cannot record its event now; a later call records
 * it. */
static int is_idle(gmm_context *context, Waiting *entry, int32_t wait) {
  int idle = 1;
  for (uint32_t i = 0; i < entry->block->stream_count; ++i) {
    const gmm_device device = entry->block->devices[i];
    if ((entry->recorded >> i & 1) == 0) {
      const gmm_stream stream = entry->block->streams[i];
      gmm_result result = GMM_OK;
      const gmm_event_desc desc = {.struct_size = sizeof desc, .device = device};
      if (entry->events[i] == NULL) result = gmm_event_create(context, &desc, &entry->events[i]);
      if (result >= 0) result = gmm_event_record(entry->events[i], 0, stream);
      /* Where the event fails, for a stream of another device say, only a wait helps. A stream in capture refuses that
       * too. */
      if (result < 0 && gmm_stream_synchronize(context, stream) < 0) {
        idle = 0;
        continue;
      }
      if (result < 0) {
        torch_complain(gmm_event_destroy(entry->events[i]), "event", entry->block->memory);
        entry->events[i] = NULL;
      }
      entry->recorded |= 1u << i;
    }
    if (entry->events[i] == NULL) continue; /* passed */
    uint64_t passed = 0;
    gmm_result result = wait ? gmm_event_synchronize(entry->events[i], 0, GMM_FOREVER) : GMM_OK;
    if (result >= 0) result = gmm_event_query(entry->events[i], &passed);
    if (result >= 0 && !passed) {
      idle = 0;
      continue;
    }
    if (result < 0) { /* an event of a capture has no answer until it is recorded again */
      entry->recorded &= ~(1u << i);
      idle = 0;
      continue;
    }
    torch_complain(gmm_event_destroy(entry->events[i]), "event", entry->block->memory);
    entry->events[i] = NULL;
  }
  return idle;
}

/* Calls of gmm are made without the mutex: a callback could wait for a lock of the language whose holder waits for the
 * mutex. */
uint64_t gmm_torch_host_collect(int32_t wait) {
  gmm_context *context = torch_context();
  if (context == NULL || atomic_load_explicit(&waiting_count, memory_order_relaxed) == 0) return 0;
  pthread_mutex_lock(&mutex);
  Waiting *taken = waiting, *busy = NULL;
  waiting = NULL;
  pthread_mutex_unlock(&mutex);
  uint64_t freed = 0;
  while (taken != NULL) {
    Waiting *entry = taken;
    taken = entry->next;
    if (!is_idle(context, entry, wait)) {
      entry->next = busy;
      busy = entry;
      continue;
    }
    give_back(context, entry->block);
    free(entry);
    ++freed;
    atomic_fetch_sub_explicit(&waiting_count, 1, memory_order_relaxed);
  }
  if (busy == NULL) return freed;
  pthread_mutex_lock(&mutex);
  Waiting **end = &busy;
  while (*end != NULL) end = &(*end)->next;
  *end = waiting;
  waiting = busy;
  pthread_mutex_unlock(&mutex);
  return freed;
}

void gmm_torch_host_free(void *memory) {
  gmm_context *context = torch_context_for_free();
  if (memory == NULL || context == NULL) return; /* in a child after fork() the memory is the parent's */
  TorchBlock *block = torch_block_take(memory);
  if (__builtin_expect(block == NULL, 1)) {
    torch_complain(gmm_free(context, memory, GMM_STREAM_DEFAULT), "free", memory);
    return;
  }
  Waiting *entry = block->stream_count != 0 ? calloc(1, sizeof *entry) : NULL;
  if (entry == NULL) {
    for (uint32_t i = 0; i < block->stream_count; ++i)
      torch_complain(gmm_stream_synchronize(context, block->streams[i]), "free", memory);
    give_back(context, block);
    return;
  }
  entry->block = block;
  (void)is_idle(context, entry, 0); /* records the events now */
  pthread_mutex_lock(&mutex);
  entry->next = waiting;
  waiting = entry;
  atomic_fetch_add_explicit(&waiting_count, 1, memory_order_relaxed);
  pthread_mutex_unlock(&mutex);
}

gmm_result gmm_torch_record(void *memory, gmm_device device, gmm_stream stream) {
  gmm_context *context = torch_context();
  gmm_pointer_info info = {.struct_size = sizeof info};
  if (context == NULL) return GMM_ERROR_FORKED;
  gmm_result result = gmm_query(context, memory, &info);
  if (result < 0) return result;
  if (info.state == GMM_STATE_UNKNOWN) return GMM_UNCHANGED;
  if (torch_host_tag() == 0 || info.tag != torch_host_tag()) return gmm_record_use(context, memory, stream);
  result = torch_block_note_stream(info.base, info.size, device, stream);
  return result == GMM_ERROR_NOT_READY ? gmm_stream_synchronize(context, stream) : result;
}
