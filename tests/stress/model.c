// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <sched.h>

struct model model;

UNSEEN static void model_lock(unsigned char *lock) {
  for (unsigned tries = 0; __atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE) != 0; ++tries)
    if (tries % 64 == 63) sched_yield();
}
UNSEEN static void model_unlock(unsigned char *lock) { __atomic_store_n(lock, 0, __ATOMIC_RELEASE); }

UNSEEN void model_open(void) {
  for (unsigned i = 0; i < MODEL_SHARDS; ++i) model.first[i] = -1;
  model.spare = -1;
}

UNSEEN static int32_t model_take_node(void) {
  model_lock(&model.pool_lock);
  int32_t node = model.spare;
  if (node >= 0)
    model.spare = model.nodes[node].next;
  else if (model.used < MODEL_NODES)
    node = model.used++;
  model_unlock(&model.pool_lock);
  return node;
}
UNSEEN static void model_put_node(int32_t node) {
  model_lock(&model.pool_lock);
  model.nodes[node].next = model.spare;
  model.spare = node;
  model_unlock(&model.pool_lock);
}
UNSEEN static void model_count(int64_t blocks, int64_t bytes) {
  model_lock(&model.pool_lock);
  model.blocks += (uint64_t)blocks;
  model.bytes += (uint64_t)bytes;
  model_unlock(&model.pool_lock);
}

#define OWNER_FORMAT "[%p, %p) of %llu bytes, %s, tag %u, by thread %u at its operation %u"
#define OWNER(start, end, who)                                                                                    \
  (void *)(start), (void *)(end), (unsigned long long)(who).size, kind_name((who).kind), (who).tag, (who).thread, \
      (who).operation

UNSEEN void model_add(const void *memory, owner who) {
  uintptr_t start = (uintptr_t)memory, end = start + who.size;
  for (uint64_t page = start >> 21; page <= (end - 1) >> 21; ++page) {
    unsigned shard = (unsigned)(page * 0x9e3779b1u >> 7) % MODEL_SHARDS;
    int32_t made = model_take_node(), clash = -1;
    if (made < 0) {
      check_failed(__FILE__, __LINE__, "the model is full");
      return;
    }
    model_node *node = &model.nodes[made];
    node->page = page, node->start = start, node->end = end, node->who = who;
    model_node other;
    model_lock(&model.locks[shard]);
    for (int32_t i = model.first[shard]; i >= 0; i = model.nodes[i].next)
      if (model.nodes[i].page == page && model.nodes[i].start < end && start < model.nodes[i].end) {
        clash = i;
        other = model.nodes[i];
      }
    node->next = model.first[shard];
    model.first[shard] = made;
    model_unlock(&model.locks[shard]);
    if (clash >= 0)
      check_failed(__FILE__, __LINE__, "two live blocks overlap: " OWNER_FORMAT " and " OWNER_FORMAT,
                   OWNER(start, end, who), OWNER(other.start, other.end, other.who));
  }
  model_count(1, (int64_t)who.size);
}

UNSEEN void model_remove(const void *memory, uint64_t size) {
  uintptr_t start = (uintptr_t)memory, end = start + size;
  for (uint64_t page = start >> 21; page <= (end - 1) >> 21; ++page) {
    unsigned shard = (unsigned)(page * 0x9e3779b1u >> 7) % MODEL_SHARDS;
    model_lock(&model.locks[shard]);
    int32_t *place = &model.first[shard];
    while (*place >= 0 &&
           (model.nodes[*place].page != page || model.nodes[*place].start != start || model.nodes[*place].end != end))
      place = &model.nodes[*place].next;
    int32_t found = *place;
    if (found >= 0) *place = model.nodes[found].next;
    model_unlock(&model.locks[shard]);
    if (found < 0)
      check_failed(__FILE__, __LINE__, "%p of %llu bytes is not in the model", memory, (unsigned long long)size);
    else
      model_put_node(found);
  }
  model_count(-1, -(int64_t)size);
}
