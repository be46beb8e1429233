// SPDX-License-Identifier: Apache-2.0
// The model beside the library: which addresses are live, and who holds them.
//
// A thread enters a block right after its allocation and removes it right before its free, for each page of 2 MiB. The
// lock of a shard covers some pages. Two live blocks that overlap share a page, so the second one meets the first
// there.
//
// The thread sanitizer must not see these locks. They would order a free before the next allocation of the same memory,
// and the library must do that itself.
#ifndef GMM_TESTS_STRESS_MODEL_H
#define GMM_TESTS_STRESS_MODEL_H

#include "../support/gmm_test.h"

#if defined(__clang__)
#define UNSEEN __attribute__((no_sanitize("thread"), noinline))
#else
#define UNSEEN __attribute__((no_sanitize_thread, noinline))
#endif

enum { MODEL_SHARDS = 1024, MODEL_NODES = 1 << 17 };

// Who holds a range; says enough to name it in a report.
typedef struct owner {
  uint32_t thread, operation;  // that allocated it
  gmm_kind kind;
  unsigned tag;
  uint64_t size;
} owner;

typedef struct model_node {
  uint64_t page;
  uintptr_t start, end;
  owner who;
  int32_t next;
} model_node;

extern struct model {
  unsigned char locks[MODEL_SHARDS], pool_lock;
  int32_t first[MODEL_SHARDS], spare, used;
  model_node nodes[MODEL_NODES];
  uint64_t blocks, bytes;  // live, under pool_lock
} model;

void model_open(void);
void model_add(const void *memory, owner who);
void model_remove(const void *memory, uint64_t size);

#endif
