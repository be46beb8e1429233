/* SPDX-License-Identifier: Apache-2.0 */
/* A table of the live addresses: open addressing over powers of two. Address 0 is none. */
#ifndef GMM_CLI_TRACE_LIVE_H
#define GMM_CLI_TRACE_LIVE_H

#include <stdint.h>
#include <stdlib.h>

struct live_block {
  uint64_t address, size;
  uint32_t block;
};

struct live_table {
  struct live_block *items;
  uint64_t capacity, count;
};

static inline uint64_t live_home(const struct live_table *table, uint64_t address) {
  return ((address >> 8) * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (table->capacity - 1);
}

static inline struct live_block *live_find(struct live_table *table, uint64_t address) {
  if (table->capacity == 0) return NULL;
  uint64_t at = live_home(table, address);
  while (table->items[at].address != address) {
    if (table->items[at].address == 0) return NULL;
    at = (at + 1) & (table->capacity - 1);
  }
  return &table->items[at];
}

/* The caller has checked that the address is not in the table. 0: there is no memory. */
static inline int live_add(struct live_table *table, struct live_block block) {
  if ((table->count + 1) * 2 > table->capacity) {
    struct live_table grown = {.capacity = table->capacity == 0 ? 1024 : table->capacity * 2};
    grown.items = calloc(grown.capacity, sizeof *grown.items);
    if (grown.items == NULL) return 0;
    for (uint64_t i = 0; i < table->capacity; ++i)
      if (table->items[i].address != 0) live_add(&grown, table->items[i]);
    free(table->items);
    *table = grown;
  }
  uint64_t at = live_home(table, block.address);
  while (table->items[at].address != 0) at = (at + 1) & (table->capacity - 1);
  table->items[at] = block;
  ++table->count;
  return 1;
}

/* Removes a block and closes the gap (Knuth, vol. 3, 6.4 algorithm R). */
static inline void live_remove(struct live_table *table, struct live_block *block) {
  const uint64_t mask = table->capacity - 1;
  uint64_t hole = (uint64_t)(block - table->items);
  for (uint64_t next = (hole + 1) & mask; table->items[next].address != 0; next = (next + 1) & mask) {
    const uint64_t home = live_home(table, table->items[next].address);
    if (((next - home) & mask) < ((next - hole) & mask)) continue;
    table->items[hole] = table->items[next];
    hole = next;
  }
  table->items[hole].address = 0;
  --table->count;
}

#endif
