// SPDX-License-Identifier: Apache-2.0
#include "actor.h"

actor actors[MOST_ACTORS];
unsigned actor_count;
uint64_t seed_of_run;
_Thread_local actor *self;

uint64_t next_random(void) {
  uint64_t z = self->random += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}
uint64_t below(uint64_t bound) { return next_random() % bound; }
bool one_in(uint64_t n) { return below(n) == 0; }

void actor_init(actor *a, const char *role, uint32_t index, uint64_t stream) {
  memset(a, 0, sizeof *a);
  a->role = role;
  a->index = index;
  a->random = seed_of_run * 0x9e3779b97f4a7c15u + stream * 0xd1342543de82ef95u + 1;
}

gmm_result note(const char *name, gmm_result result, const void *address, uint64_t a, uint64_t b) {
  self->last[self->operations % KEPT_OPERATIONS] =
      (operation){name, self->operations, result, (uintptr_t)address, a, b};
  ++self->operations;
  return result;
}

UNSEEN void print_last_operations(void) {
  printf("# seed %llu; the last operations of each thread (number, operation, result, address, numbers):\n",
         (unsigned long long)seed_of_run);
  for (unsigned i = 0; i < actor_count; ++i) {
    const actor *a = &actors[i];
    printf("# thread %u, %s\n", a->index, a->role);
    uint32_t from = a->operations < KEPT_OPERATIONS ? 0 : a->operations - KEPT_OPERATIONS;
    for (uint32_t n = from; n < a->operations; ++n) {
      const operation *o = &a->last[n % KEPT_OPERATIONS];
      if (o->name != NULL)
        printf("#   %u %s %d %p %llu %llu\n", o->number, o->name, o->result, (void *)o->address,
               (unsigned long long)o->a, (unsigned long long)o->b);
    }
  }
  fflush(stdout);
}
