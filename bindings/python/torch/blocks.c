/* SPDX-License-Identifier: Apache-2.0 */
/* Notes about blocks, by address. Only blocks of tensors that were moved between devices have one. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gmm_torch.h"

#define BUCKETS 1024

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static TorchBlock *buckets[BUCKETS];
static _Atomic(uint64_t) notes;

void torch_blocks_forget(void) {
  memset(buckets, 0, sizeof buckets);
  atomic_store_explicit(&notes, 0, memory_order_relaxed);
  pthread_mutex_init(&mutex, NULL);
}

static TorchBlock **bucket(const void *memory) {
  const uint64_t number = (uintptr_t)memory >> 8;
  return &buckets[(number ^ (number >> 10) ^ (number >> 20)) % BUCKETS];
}

/* The caller holds the mutex. NULL: out of memory. */
static TorchBlock *note_of(void *memory, uint64_t size) {
  TorchBlock **head = bucket(memory);
  TorchBlock *note = *head;
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

gmm_result torch_block_note_stream(void *memory, uint64_t size, gmm_device device, gmm_stream stream) {
  gmm_result result = GMM_OK;
  pthread_mutex_lock(&mutex);
  TorchBlock *note = note_of(memory, size);
  uint32_t at = 0;
  if (note == NULL) {
    result = GMM_ERROR_OUT_OF_HOST_MEMORY;
  } else {
    while (at < note->stream_count && (note->streams[at] != stream || note->devices[at] != device)) ++at;
    if (at == TORCH_BLOCK_STREAMS) {
      result = GMM_ERROR_NOT_READY; /* the caller waits for the stream instead */
    } else if (at == note->stream_count) {
      note->streams[at] = stream;
      note->devices[at] = device;
      ++note->stream_count;
    }
  }
  pthread_mutex_unlock(&mutex);
  return result;
}

gmm_result torch_block_note_move(void *memory, uint64_t size) {
  pthread_mutex_lock(&mutex);
  TorchBlock *note = note_of(memory, size);
  if (note != NULL) note->moved = 1;
  pthread_mutex_unlock(&mutex);
  return note != NULL ? GMM_OK : GMM_ERROR_OUT_OF_HOST_MEMORY;
}

TorchBlock *torch_block_take(void *memory) {
  if (__builtin_expect(atomic_load_explicit(&notes, memory_order_acquire) == 0, 1)) return NULL;
  pthread_mutex_lock(&mutex);
  TorchBlock **at = bucket(memory);
  while (*at != NULL && (*at)->memory != memory) at = &(*at)->next;
  TorchBlock *note = *at;
  if (note != NULL) {
    *at = note->next;
    atomic_fetch_sub_explicit(&notes, 1, memory_order_relaxed);
  }
  pthread_mutex_unlock(&mutex);
  return note;
}
