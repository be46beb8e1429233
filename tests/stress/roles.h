// SPDX-License-Identifier: Apache-2.0
// What the threads of the stress test do in a round. A worker makes a fixed number of operations. The other threads go
// on until all workers are done.
#ifndef GMM_TESTS_STRESS_ROLES_H
#define GMM_TESTS_STRESS_ROLES_H

#include "block.h"
#include "driver_view.h"
#include "sleep.h"

enum { SLOTS = 40, EXCHANGE = 128, MOST_WORKERS = 16 };

extern atomic_ullong snapshots, forks, threads_ended, heaps_ended, shared, quota_checks, faults_seen, moved_on;
extern block held[MOST_WORKERS][SLOTS];

extern struct exchange {
  pthread_mutex_t lock;
  block blocks[EXCHANGE];
  unsigned count;
} exchange;

void worker_round(block *blocks, unsigned operations);
void reader_round(void);

// Once a limit is set, what the tag holds grows past neither it nor what was held then.
void limiter_round(void);

// Asks about addresses that others free at the same moment: any answer but a failure is right.
void asker_round(void);
void spawner_round(void);
void thread_storm(unsigned threads);
void forker_round(void);

// Lets a driver call fail, again and again: any entry, some calls from now.
void faulter_round(void);

#endif
