// SPDX-License-Identifier: Apache-2.0
// A thread of the stress test: its random numbers, its last operations, its counts.
#ifndef GMM_TESTS_STRESS_ACTOR_H
#define GMM_TESTS_STRESS_ACTOR_H

#include "model.h"

enum { KEPT_OPERATIONS = 24, MOST_ACTORS = 64 };

typedef struct operation {
  const char *name;
  uint32_t number;
  gmm_result result;
  uintptr_t address;
  uint64_t a, b;
} operation;

typedef struct actor {
  pthread_t thread;
  const char *role;
  uint32_t index, operations;
  uint64_t random;
  uint64_t allocations, frees, refused;  // calls that succeeded; allocations that were refused as expected
  operation last[KEPT_OPERATIONS];
} actor;

static actor actors[MOST_ACTORS];
static unsigned actor_count;
static uint64_t seed_of_run;
static _Thread_local actor *self;

// splitmix64: every seed gives a good stream.
static uint64_t next_random(void) {
  uint64_t z = self->random += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}
static uint64_t below(uint64_t bound) { return next_random() % bound; }
static bool one_in(uint64_t n) { return below(n) == 0; }

static void actor_init(actor *a, const char *role, uint32_t index, uint64_t stream) {
  memset(a, 0, sizeof *a);
  a->role = role;
  a->index = index;
  a->random = seed_of_run * 0x9e3779b97f4a7c15u + stream * 0xd1342543de82ef95u + 1;
}

static gmm_result note(const char *name, gmm_result result, const void *address, uint64_t a, uint64_t b) {
  self->last[self->operations % KEPT_OPERATIONS] =
      (operation){name, self->operations, result, (uintptr_t)address, a, b};
  ++self->operations;
  return result;
}

// May be called when the process dies, so it takes what it finds.
UNSEEN static void print_last_operations(void) {
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

#endif
