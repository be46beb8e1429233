/* SPDX-License-Identifier: Apache-2.0 */
/* Managed memory: RFC-0023's hints, and the memory of CPU tensors.
 *
 * CPU tensors have a heap of their own. A block of the CUDA tensors' heap is ready in the order of a stream, but the
 * host is on no stream. Here a block is free only when it is idle. For gmm all blocks are on one stream. A block with
 * notes of streams waits in a list until their events have passed. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gmm_torch.h"

/* RFC-0023's hints. The preferred location of a CUDA tensor's new memory is its device. That of a CPU tensor's is the
 * host, and the device has a mapping of it. */

#define KNOWN 4096

/* The pages that have their hints. A small block shares its pages, of at most 64 KiB, and needs no others. A move takes
 * the marks away, so that the next block there gets its hints again. A lost entry only repeats a hint. */
static _Atomic(uint64_t) known[KNOWN];

static _Atomic(uint64_t) *mark_of(uint64_t page) { return &known[(page ^ (page >> 12)) % KNOWN]; }

static uint64_t page_of(const void *memory) { return (uint64_t)(uintptr_t)memory >> 16; }

void torch_advise_forget(void) {
  for (uint32_t i = 0; i < KNOWN; ++i) atomic_store_explicit(&known[i], 0, memory_order_relaxed);
}

/* A device that cannot share pages has no hints. The memory works without. */
static gmm_result hint(gmm_result result) { return result == GMM_ERROR_NOT_SUPPORTED ? GMM_UNCHANGED : result; }

static gmm_result advise(gmm_context *context, void *memory, uint64_t size, gmm_device device, int host) {
  gmm_result result =
      hint(gmm_advise(context, memory, size, GMM_ADVISE_SET_PREFERRED_LOCATION, host ? GMM_DEVICE_HOST : device));
  if (result < 0) return result;
  return hint(
      gmm_advise(context, memory, size, host ? GMM_ADVISE_SET_ACCESSED_BY : GMM_ADVISE_UNSET_ACCESSED_BY, device));
}

void torch_advise_new(gmm_context *context, void *memory, gmm_device device, int host) {
  gmm_pointer_info info = {.struct_size = sizeof info};
  if (gmm_query(context, memory, &info) < 0) return;
  const uint64_t page = page_of(memory), mark = page << 2 | (host ? 2 : 0) | 1;
  if (info.size < 1u << 16 && atomic_load_explicit(mark_of(page), memory_order_relaxed) == mark) return;
  torch_complain(advise(context, memory, info.size, device, host), "advice", memory);
  atomic_store_explicit(mark_of(page), mark, memory_order_relaxed);
}

gmm_result gmm_torch_move(void *memory, uint64_t size, gmm_device location, gmm_device device, gmm_stream stream) {
  gmm_context *context = torch_context();
  gmm_pointer_info info = {.struct_size = sizeof info};
  gmm_result result = gmm_query(context, memory, &info);
  if (result < 0) return result;
  if (info.state == GMM_STATE_UNKNOWN || info.kind != GMM_KIND_MANAGED) return GMM_UNCHANGED; /* another library's */
  const uint64_t pages = (info.size >> 16) + 2;
  for (uint64_t i = 0; i < pages && i < KNOWN; ++i)
    atomic_store_explicit(mark_of(page_of(info.base) + i), 0, memory_order_relaxed);
  result = advise(context, memory, size, device, location == GMM_DEVICE_HOST);
  if (result < 0) return result;
  return hint(gmm_prefetch(context, memory, size, location, stream));
}

/* CPU tensors. */

/* A block that streams use. It is in a bucket by its address while it is live, then in the list of those that wait. */
#define BLOCK_STREAMS 8
typedef struct Block {
  struct Block *next;
  void *memory;
  uint32_t stream_count;
  gmm_stream streams[BLOCK_STREAMS];
  gmm_device devices[BLOCK_STREAMS];
  gmm_event *events[BLOCK_STREAMS]; /* NULL: passed, or not recorded yet */
  uint32_t recorded;                /* bit i: events[i] is recorded */
} Block;

#define BUCKETS 1024

static pthread_mutex_t blocks_mutex = PTHREAD_MUTEX_INITIALIZER;
static Block *buckets[BUCKETS];
static Block *waiting;
static _Atomic(uint64_t) noted, waiting_count;

static pthread_mutex_t start_mutex = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(gmm_heap *) heap;
static _Atomic(gmm_tag) tag;
static _Atomic(gmm_device) accessed_by;

gmm_tag torch_host_tag(void) { return atomic_load_explicit(&tag, memory_order_relaxed); }

void torch_managed_forget(void) {
  atomic_store_explicit(&heap, NULL, memory_order_relaxed);
  atomic_store_explicit(&tag, 0, memory_order_relaxed);
  atomic_store_explicit(&noted, 0, memory_order_relaxed);
  atomic_store_explicit(&waiting_count, 0, memory_order_relaxed);
  waiting = NULL;
  memset(buckets, 0, sizeof buckets);
  pthread_mutex_init(&blocks_mutex, NULL);
  pthread_mutex_init(&start_mutex, NULL);
  torch_advise_forget();
}

/* Where a block with this address is or belongs. The caller holds the mutex. */
static Block **find(const void *memory) {
  const uint64_t number = (uintptr_t)memory >> 8;
  Block **at = &buckets[(number ^ (number >> 10) ^ (number >> 20)) % BUCKETS];
  while (*at != NULL && (*at)->memory != memory) at = &(*at)->next;
  return at;
}

static gmm_result note_stream(void *memory, gmm_device device, gmm_stream stream) {
  gmm_result result = GMM_OK;
  pthread_mutex_lock(&blocks_mutex);
  Block **at = find(memory);
  if (*at == NULL && (*at = calloc(1, sizeof **at)) != NULL) {
    (*at)->memory = memory;
    atomic_fetch_add_explicit(&noted, 1, memory_order_release);
  }
  Block *block = *at;
  uint32_t i = 0;
  while (block != NULL && i < block->stream_count && (block->streams[i] != stream || block->devices[i] != device)) ++i;
  if (block == NULL) {
    result = GMM_ERROR_OUT_OF_HOST_MEMORY;
  } else if (i == BLOCK_STREAMS) {
    result = GMM_ERROR_NOT_READY; /* the caller waits for the stream instead */
  } else if (i == block->stream_count) {
    block->streams[i] = stream;
    block->devices[i] = device;
    ++block->stream_count;
  }
  pthread_mutex_unlock(&blocks_mutex);
  return result;
}

gmm_result gmm_torch_host_start(gmm_device device) {
  gmm_context *context = torch_context();
  atomic_store_explicit(&accessed_by, device, memory_order_relaxed);
  if (atomic_load_explicit(&heap, memory_order_acquire) != NULL) return GMM_UNCHANGED;
  gmm_tag made = 0;
  gmm_heap *opened = NULL;
  pthread_mutex_lock(&start_mutex);  /* no callback of gmm takes it */
  gmm_result result = GMM_UNCHANGED; /* another thread came first */
  if (atomic_load_explicit(&heap, memory_order_acquire) == NULL) {
    result = gmm_tag_create(context, "torch-cpu", NULL, &made);
    const gmm_heap_desc desc = {.struct_size = sizeof desc, .kind = GMM_KIND_MANAGED, .device = device, .tag = made};
    if (result >= 0) result = gmm_heap_create(context, &desc, &opened);
    if (result >= 0) {
      atomic_store_explicit(&tag, made, memory_order_relaxed);
      atomic_store_explicit(&heap, opened, memory_order_release);
    }
  }
  pthread_mutex_unlock(&start_mutex);
  return result;
}

void *gmm_torch_host_alloc(uint64_t size) {
  gmm_context *context = torch_context();
  gmm_heap *from = atomic_load_explicit(&heap, memory_order_acquire);
  if (context == NULL || from == NULL) return NULL;
  gmm_torch_host_collect(0);
  void *memory = NULL;
  gmm_result result = gmm_heap_alloc(from, size, 0, 0, GMM_STREAM_DEFAULT, &memory);
  if (result < 0 && result != GMM_ERROR_FORKED && gmm_torch_host_collect(1) != 0)
    result = gmm_heap_alloc(from, size, 0, 0, GMM_STREAM_DEFAULT, &memory);
  if (result < 0) return NULL;
  torch_advise_new(context, memory, atomic_load_explicit(&accessed_by, memory_order_relaxed), 1);
  return memory;
}

static void end_event(Block *block, uint32_t i) {
  torch_complain(gmm_event_destroy(block->events[i]), "event", block->memory);
  block->events[i] = NULL;
}

/* Whether what a stream had queued at the free is done. A stream in capture cannot record its event now, nor be waited
 * for; a later call tries again. */
static int has_passed(gmm_context *context, Block *block, uint32_t i, int32_t wait) {
  if ((block->recorded >> i & 1) == 0) {
    const gmm_event_desc desc = {.struct_size = sizeof desc, .device = block->devices[i]};
    gmm_result result = block->events[i] != NULL ? GMM_OK : gmm_event_create(context, &desc, &block->events[i]);
    if (result >= 0) result = gmm_event_record(block->events[i], 0, block->streams[i]);
    if (result < 0) { /* of a stream of another device, say: only a wait helps */
      if (gmm_stream_synchronize(context, block->streams[i]) < 0) return 0;
      end_event(block, i);
    }
    block->recorded |= 1u << i;
  }
  if (block->events[i] == NULL) return 1;
  uint64_t passed = 0;
  gmm_result result = wait ? gmm_event_synchronize(block->events[i], 0, GMM_FOREVER) : GMM_OK;
  if (result >= 0) result = gmm_event_query(block->events[i], &passed);
  if (result < 0) block->recorded &= ~(1u << i); /* an event of a capture has no answer until it is recorded again */
  if (result < 0 || !passed) return 0;
  end_event(block, i);
  return 1;
}

static int is_idle(gmm_context *context, Block *block, int32_t wait) {
  int idle = 1;
  for (uint32_t i = 0; i < block->stream_count; ++i) idle &= has_passed(context, block, i, wait);
  return idle;
}

/* Calls of gmm are made without the mutex: a callback could wait for a lock of the language whose holder waits for the
 * mutex. */
static void wait_in_list(Block *blocks) {
  Block **end = &blocks;
  while (*end != NULL) end = &(*end)->next;
  pthread_mutex_lock(&blocks_mutex);
  *end = waiting;
  waiting = blocks;
  pthread_mutex_unlock(&blocks_mutex);
}

uint64_t gmm_torch_host_collect(int32_t wait) {
  gmm_context *context = torch_context();
  if (context == NULL || atomic_load_explicit(&waiting_count, memory_order_relaxed) == 0) return 0;
  pthread_mutex_lock(&blocks_mutex);
  Block *taken = waiting, *busy = NULL;
  waiting = NULL;
  pthread_mutex_unlock(&blocks_mutex);
  uint64_t freed = 0;
  while (taken != NULL) {
    Block *block = taken;
    taken = block->next;
    if (!is_idle(context, block, wait)) {
      block->next = busy;
      busy = block;
      continue;
    }
    torch_complain(gmm_free(context, block->memory, GMM_STREAM_DEFAULT), "free", block->memory);
    free(block);
    ++freed;
    atomic_fetch_sub_explicit(&waiting_count, 1, memory_order_relaxed);
  }
  wait_in_list(busy);
  return freed;
}

void gmm_torch_host_free(void *memory) {
  gmm_context *context = torch_context_for_free();
  if (memory == NULL || context == NULL) return; /* in a child after fork() the memory is the parent's */
  Block *block = NULL;
  if (__builtin_expect(atomic_load_explicit(&noted, memory_order_acquire) != 0, 0)) {
    pthread_mutex_lock(&blocks_mutex);
    Block **at = find(memory);
    block = *at;
    if (block != NULL) *at = block->next;
    pthread_mutex_unlock(&blocks_mutex);
  }
  if (__builtin_expect(block == NULL, 1)) {
    torch_complain(gmm_free(context, memory, GMM_STREAM_DEFAULT), "free", memory);
    return;
  }
  atomic_fetch_sub_explicit(&noted, 1, memory_order_relaxed);
  block->next = NULL;
  (void)is_idle(context, block, 0); /* records the events now */
  atomic_fetch_add_explicit(&waiting_count, 1, memory_order_relaxed);
  wait_in_list(block);
}

gmm_result gmm_torch_record(void *memory, gmm_device device, gmm_stream stream) {
  gmm_context *context = torch_context();
  gmm_pointer_info info = {.struct_size = sizeof info};
  gmm_result result = gmm_query(context, memory, &info);
  if (result < 0) return result;
  if (info.state == GMM_STATE_UNKNOWN) return GMM_UNCHANGED;
  if (torch_host_tag() == 0 || info.tag != torch_host_tag()) return gmm_record_use(context, memory, stream);
  result = note_stream(info.base, device, stream);
  return result == GMM_ERROR_NOT_READY ? gmm_stream_synchronize(context, stream) : result;
}
