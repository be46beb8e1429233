/* SPDX-License-Identifier: Apache-2.0 */
/* Managed memory: RFC-0023's hints, notes about blocks that were moved between devices, and the memory of CPU tensors.
 *
 * CPU tensors have a heap of their own. A block of the CUDA tensors' heap is ready in the order of a stream, but the
 * host is on no stream. Here a block is free only when it is idle. For gmm all blocks are on one stream. A block that
 * has notes of streams waits in a list until their events have passed. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gmm_torch.h"

/* Notes about blocks, by address. Only blocks of tensors that were moved between devices have one. */

#define BLOCK_STREAMS 8
typedef struct Block {
  struct Block *next;
  void *memory;
  uint64_t size;
  uint32_t stream_count; /* of streams that use a CPU tensor's memory */
  uint32_t moved;        /* its pages were */
  gmm_stream streams[BLOCK_STREAMS];
  gmm_device devices[BLOCK_STREAMS];
} Block;

#define BUCKETS 1024

static pthread_mutex_t notes_mutex = PTHREAD_MUTEX_INITIALIZER;
static Block *buckets[BUCKETS];
static _Atomic(uint64_t) notes;

static Block **bucket(const void *memory) {
  const uint64_t number = (uintptr_t)memory >> 8;
  return &buckets[(number ^ (number >> 10) ^ (number >> 20)) % BUCKETS];
}

/* The caller holds the mutex. NULL: out of memory. */
static Block *note_of(void *memory, uint64_t size) {
  Block **head = bucket(memory);
  Block *note = *head;
  while (note != NULL && note->memory != memory) note = note->next;
  if (note != NULL) return note;
  note = calloc(1, sizeof *note);
  if (note == NULL) return NULL;
  note->memory = memory;
  note->size = size;
  note->next = *head;
  *head = note;
  atomic_fetch_add_explicit(&notes, 1, memory_order_release);
  return note;
}

static gmm_result note_stream(void *memory, uint64_t size, gmm_device device, gmm_stream stream) {
  gmm_result result = GMM_OK;
  pthread_mutex_lock(&notes_mutex);
  Block *note = note_of(memory, size);
  uint32_t at = 0;
  if (note == NULL) {
    result = GMM_ERROR_OUT_OF_HOST_MEMORY;
  } else {
    while (at < note->stream_count && (note->streams[at] != stream || note->devices[at] != device)) ++at;
    if (at == BLOCK_STREAMS) {
      result = GMM_ERROR_NOT_READY; /* the caller waits for the stream instead */
    } else if (at == note->stream_count) {
      note->streams[at] = stream;
      note->devices[at] = device;
      ++note->stream_count;
    }
  }
  pthread_mutex_unlock(&notes_mutex);
  return result;
}

static gmm_result note_move(void *memory, uint64_t size) {
  pthread_mutex_lock(&notes_mutex);
  Block *note = note_of(memory, size);
  if (note != NULL) note->moved = 1;
  pthread_mutex_unlock(&notes_mutex);
  return note != NULL ? GMM_OK : GMM_ERROR_OUT_OF_HOST_MEMORY;
}

/* Removes the note of a block and returns it for free(); NULL: it has none. One load when there are no notes. */
static Block *take_note(void *memory) {
  if (__builtin_expect(atomic_load_explicit(&notes, memory_order_acquire) == 0, 1)) return NULL;
  pthread_mutex_lock(&notes_mutex);
  Block **at = bucket(memory);
  while (*at != NULL && (*at)->memory != memory) at = &(*at)->next;
  Block *note = *at;
  if (note != NULL) {
    *at = note->next;
    atomic_fetch_sub_explicit(&notes, 1, memory_order_relaxed);
  }
  pthread_mutex_unlock(&notes_mutex);
  return note;
}

/* RFC-0023's hints. The preferred location of a CUDA tensor's new memory is its device. That of a CPU tensor's is the
 * host, and the device has a mapping of it. A block whose pages were moved gets these hints again before another tensor
 * gets it. */

#define KNOWN 4096

/* The pages that have their hints. A lost entry only repeats a hint. */
static _Atomic(uint64_t) known[KNOWN];

/* A device that cannot share pages has no hints. The memory works without. */
static gmm_result hint(gmm_result result) { return result == GMM_ERROR_NOT_SUPPORTED ? GMM_UNCHANGED : result; }

static gmm_result advise(gmm_context *context, void *memory, uint64_t size, gmm_device device, int host) {
  gmm_result result =
      hint(gmm_advise(context, memory, size, GMM_ADVISE_SET_PREFERRED_LOCATION, host ? GMM_DEVICE_HOST : device));
  if (result < 0) return result;
  return hint(
      gmm_advise(context, memory, size, host ? GMM_ADVISE_SET_ACCESSED_BY : GMM_ADVISE_UNSET_ACCESSED_BY, device));
}

static void advise_again(gmm_context *context, void *memory, uint64_t size, gmm_device device, int host) {
  torch_complain(advise(context, memory, size, device, host), "advice", memory);
}

void torch_advise_forget(void) {
  for (uint32_t i = 0; i < KNOWN; ++i) atomic_store_explicit(&known[i], 0, memory_order_relaxed);
}

void torch_advise_freed(gmm_context *context, void *memory, uint64_t size, gmm_device device) {
  Block *note = take_note(memory);
  if (note != NULL && note->moved) advise_again(context, memory, size, device, 0);
  free(note);
}

void torch_advise_new(gmm_context *context, void *memory, gmm_device device, int host) {
  gmm_pointer_info info = {.struct_size = sizeof info};
  if (gmm_query(context, memory, &info) < 0) return;
  /* A small block shares its pages, of at most 64 KiB. Pages that have their hints need no others. */
  const uint64_t page = (uint64_t)(uintptr_t)memory >> 16;
  const uint64_t mark = (page << 2 | (host ? 2 : 0) | 1);
  _Atomic(uint64_t) *entry = &known[(page ^ (page >> 12)) % KNOWN];
  if (info.size < 1u << 16 && atomic_load_explicit(entry, memory_order_relaxed) == mark) return;
  torch_complain(advise(context, memory, info.size, device, host), "advice", memory);
  atomic_store_explicit(entry, mark, memory_order_relaxed);
}

gmm_result gmm_torch_move(void *memory, uint64_t size, gmm_device location, gmm_device device, gmm_stream stream) {
  gmm_context *context = torch_context();
  gmm_pointer_info info = {.struct_size = sizeof info};
  if (context == NULL) return GMM_ERROR_FORKED;
  gmm_result result = gmm_query(context, memory, &info);
  if (result < 0) return result;
  if (info.state == GMM_STATE_UNKNOWN || info.kind != GMM_KIND_MANAGED) return GMM_UNCHANGED; /* another library's */
  result = note_move(info.base, info.size);
  if (result < 0) return result;
  result = advise(context, memory, size, device, location == GMM_DEVICE_HOST);
  if (result < 0) return result;
  return hint(gmm_prefetch(context, memory, size, location, stream));
}

/* CPU tensors. */

typedef struct Waiting {
  struct Waiting *next;
  Block *block;
  gmm_event *events[BLOCK_STREAMS]; /* NULL: passed, or not recorded yet */
  uint32_t recorded;                /* bit i: events[i] is recorded */
} Waiting;

static _Atomic(gmm_heap *) heap;
static _Atomic(gmm_tag) tag;
static _Atomic(gmm_device) accessed_by;
static pthread_mutex_t waiting_mutex = PTHREAD_MUTEX_INITIALIZER;
static Waiting *waiting;
static _Atomic(uint64_t) waiting_count;

gmm_tag torch_host_tag(void) { return atomic_load_explicit(&tag, memory_order_relaxed); }

void torch_managed_forget(void) {
  atomic_store_explicit(&heap, NULL, memory_order_relaxed);
  atomic_store_explicit(&tag, 0, memory_order_relaxed);
  atomic_store_explicit(&waiting_count, 0, memory_order_relaxed);
  waiting = NULL;
  pthread_mutex_init(&waiting_mutex, NULL);
  memset(buckets, 0, sizeof buckets);
  atomic_store_explicit(&notes, 0, memory_order_relaxed);
  pthread_mutex_init(&notes_mutex, NULL);
  torch_advise_forget();
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

static void give_back(gmm_context *context, Block *block) {
  if (block->moved)
    advise_again(context, block->memory, block->size, atomic_load_explicit(&accessed_by, memory_order_relaxed), 1);
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
  pthread_mutex_lock(&waiting_mutex);
  Waiting *taken = waiting, *busy = NULL;
  waiting = NULL;
  pthread_mutex_unlock(&waiting_mutex);
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
  pthread_mutex_lock(&waiting_mutex);
  Waiting **end = &busy;
  while (*end != NULL) end = &(*end)->next;
  *end = waiting;
  waiting = busy;
  pthread_mutex_unlock(&waiting_mutex);
  return freed;
}

void gmm_torch_host_free(void *memory) {
  gmm_context *context = torch_context_for_free();
  if (memory == NULL || context == NULL) return; /* in a child after fork() the memory is the parent's */
  Block *block = take_note(memory);
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
  pthread_mutex_lock(&waiting_mutex);
  entry->next = waiting;
  waiting = entry;
  atomic_fetch_add_explicit(&waiting_count, 1, memory_order_relaxed);
  pthread_mutex_unlock(&waiting_mutex);
}

gmm_result gmm_torch_record(void *memory, gmm_device device, gmm_stream stream) {
  gmm_context *context = torch_context();
  gmm_pointer_info info = {.struct_size = sizeof info};
  if (context == NULL) return GMM_ERROR_FORKED;
  gmm_result result = gmm_query(context, memory, &info);
  if (result < 0) return result;
  if (info.state == GMM_STATE_UNKNOWN) return GMM_UNCHANGED;
  if (torch_host_tag() == 0 || info.tag != torch_host_tag()) return gmm_record_use(context, memory, stream);
  result = note_stream(info.base, info.size, device, stream);
  return result == GMM_ERROR_NOT_READY ? gmm_stream_synchronize(context, stream) : result;
}
