// SPDX-License-Identifier: Apache-2.0
// What must be true beside the library: which addresses are live, and who holds them.
//
// A block is entered right after its allocation and removed right before its free, page of 2 MiB by page; a shard's
// lock covers some pages. Two live blocks that overlap share a page, so the second to be entered there meets the first.
//
// The thread sanitizer does not see the locks here: they would order a free before the next allocation of the same
// memory, which the library must do itself.
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
