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

extern actor actors[MOST_ACTORS];
extern unsigned actor_count;
extern uint64_t seed_of_run;
extern _Thread_local actor *self;

// splitmix64: every seed gives a good stream.
uint64_t next_random(void);
uint64_t below(uint64_t bound);
bool one_in(uint64_t n);
void actor_init(actor *a, const char *role, uint32_t index, uint64_t stream);
gmm_result note(const char *name, gmm_result result, const void *address, uint64_t a, uint64_t b);

// May be called when the process dies, so it takes what it finds.
void print_last_operations(void);

#endif
