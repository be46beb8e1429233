// SPDX-License-Identifier: Apache-2.0
// What the model needs in C: a host allocator that counts and that can refuse, work that holds a stream, and the search
// for a byte that differs.
#include "../api/counted_allocator.h"

#define EXPORTED __attribute__((visibility("default")))

EXPORTED void model_host_allocator(gmm_host_allocator *out);
EXPORTED void model_refuse(uint64_t kth);
EXPORTED uint64_t model_refused(void);
EXPORTED int64_t model_allocated_blocks(void);
EXPORTED int64_t model_allocator_mistakes(void);
EXPORTED void model_hold(void *milliseconds);
EXPORTED uint64_t model_differs(const uint8_t *a, const uint8_t *b, uint64_t size);
EXPORTED uint64_t model_differs_from_value(const uint8_t *a, uint32_t value, uint64_t size);

void model_host_allocator(gmm_host_allocator *out) { *out = counted_desc().host_allocator; }

// The kth request from now on is refused; 0: none.
static _Atomic int64_t armed_at;
void model_refuse(uint64_t kth) {
  atomic_store(&armed_at, kth == 0 ? -1 : atomic_load(&counted.calls) + (int64_t)kth - 1);
  atomic_store(&counted.fail_at, atomic_load(&armed_at));
}
// Whether that request has come.
uint64_t model_refused(void) {
  const int64_t at = atomic_load(&armed_at);
  return at >= 0 && atomic_load(&counted.calls) > at;
}
int64_t model_allocated_blocks(void) { return atomic_load(&counted.blocks); }
int64_t model_allocator_mistakes(void) { return atomic_load(&counted.wrong); }

void model_hold(void *milliseconds) {
  const long ms = (long)(intptr_t)milliseconds;
  nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

uint64_t model_differs(const uint8_t *a, const uint8_t *b, uint64_t size) {
  uint64_t at = 0;
  for (; at + 4096 <= size && memcmp(a + at, b + at, 4096) == 0;) at += 4096;
  while (at < size && a[at] == b[at]) ++at;
  return at;
}
uint64_t model_differs_from_value(const uint8_t *a, uint32_t value, uint64_t size) {
  if (size == 0 || a[0] != (uint8_t)value) return 0;
  uint64_t at = model_differs(a, a + 1, size - 1);
  return at == size - 1 ? size : at + 1;
}
