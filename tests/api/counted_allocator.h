// SPDX-License-Identifier: Apache-2.0
// A host allocator that counts, that checks what gmm promises of each call, and that can fail.
#ifndef GMM_TESTS_COUNTED_ALLOCATOR_H
#define GMM_TESTS_COUNTED_ALLOCATOR_H

#include "../support/gmm_test.h"

static struct {
  _Atomic int64_t bytes, blocks, calls;
  _Atomic int64_t fail_at;  // this call fails; -1: none
  atomic_int wrong;
} counted;

// Lies before each block.
struct counted_head {
  uint64_t size, alignment;
  void *start;
};

// The memory has the alignment that was asked for and no larger one.
static void *counted_allocate(void *user, uint64_t size, uint64_t alignment) {
  if (user != &counted || alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > 64 || size == 0) {
    atomic_fetch_add(&counted.wrong, 1);
    printf("# allocate(%llu bytes, aligned to %llu)\n", (unsigned long long)size, (unsigned long long)alignment);
    if (alignment > 64) alignment = 64;
  }
  int64_t call = atomic_fetch_add(&counted.calls, 1);
  if (call == atomic_load(&counted.fail_at)) return NULL;
  uint8_t *start = aligned_alloc(128, (128 + alignment + size + 127) / 128 * 128);
  if (start == NULL) return NULL;
  uint8_t *memory = start + 128 + alignment;
  struct counted_head head = {size, alignment, start};
  memcpy(memory - sizeof head, &head, sizeof head);
  memset(memory, 0xa5, size);
  atomic_fetch_add(&counted.bytes, (int64_t)size);
  atomic_fetch_add(&counted.blocks, 1);
  return memory;
}

static void counted_deallocate(void *user, void *memory, uint64_t size) {
  struct counted_head head;
  memcpy(&head, (uint8_t *)memory - sizeof head, sizeof head);
  if (user != &counted || head.size != size) {
    atomic_fetch_add(&counted.wrong, 1);
    printf("# deallocate(%llu bytes) of %llu\n", (unsigned long long)size, (unsigned long long)head.size);
  }
  atomic_fetch_sub(&counted.bytes, (int64_t)head.size);
  atomic_fetch_sub(&counted.blocks, 1);
  memset(memory, 0x5a, head.size);
  free(head.start);
}

#define COUNTED \
  { counted_allocate, counted_deallocate, &counted }

// Gives the case another context, whose memory is counted. end_counted() ends it and checks that it left nothing.
static gmm_context *uncounted;
__attribute__((unused)) static void begin_counted(gmm_log_callback log) {
  memset((void *)&counted, 0, sizeof counted);
  counted.fail_at = -1;
  gmm_context *made = OPEN(.host_allocator = COUNTED, .host_devices = device_count(), .log = log);
  uncounted = context;
  context = made;
}
__attribute__((unused)) static void end_counted(void) {
  close_streams();
  OK(gmm_context_release(context));
  context = uncounted;
  CHECK_EQUAL(counted.bytes, 0);
  CHECK_EQUAL(counted.blocks, 0);
  CHECK_EQUAL(counted.wrong, 0);
}

#endif
