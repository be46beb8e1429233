// SPDX-License-Identifier: Apache-2.0
// A block of the stress test: how a thread takes, stamps, checks and frees it. Every read and write goes through the
// block's stream. Memory that the library gives out too early thus shows as wrong contents.
#ifndef GMM_TESTS_STRESS_BLOCK_H
#define GMM_TESTS_STRESS_BLOCK_H

#include "actor.h"

enum { STREAMS = 4, EDGE = 64, MOST_EDGES = 8 };
enum { TAG_DEFAULT, TAG_HOST, TAG_FILE, TAG_DROP, TAG_LIMITED, TAGS };

typedef enum contents { NOTHING, PATTERN, ONE_BYTE } contents;

typedef struct block {
  char *memory;
  uint64_t size, generation;
  gmm_kind kind;
  unsigned tag;  // index into tags
  gmm_stream stream;
  bool own_heap, settled;  // settled: nothing that was asked for on its stream is open
  contents contents;
  uint32_t seed;
  unsigned born, drops;  // pauses of the tag when it was allocated; drops when it was written
} block;

extern gmm_stream streams[STREAMS];
extern gmm_tag tags[TAGS];
extern bool short_of_memory;  // the device is small: OUT_OF_MEMORY may come at any time
extern atomic_int faults;     // driver calls fail at random now
// While a thread touches the contents of a tag's blocks it holds the lock for reading; a pause holds it for writing. A
// resume holds nothing: who touches VMM memory meanwhile has asked gmm_resume_wait() first.
extern pthread_rwlock_t touching[TAGS];
// What the test has made of a tag. Written with its lock for writing, read with it.
extern struct tag_state {
  gmm_contents contents;
  uint32_t flags;
  unsigned pauses, drops;  // pauses that were asked for; how often contents went
} tag_states[TAGS];
// Addresses that were given out lately, for the thread that asks about them, live or not.
enum { SEEN = 256 };
extern _Atomic uintptr_t seen[SEEN];

// Whether a failure is one that the test has brought about itself.
bool expected(gmm_result result, unsigned tag);

// For calls that may only fail by an injected fault.
#define DO(call) did(__FILE__, __LINE__, #call, call)
bool did(const char *file, int line, const char *what, gmm_result result);
// The same, again and again until it is done: the faults pass.
#define SURELY(call)                                                                        \
  do {                                                                                      \
    int surely_tries = 0;                                                                   \
    while (!DO(call) && atomic_load(&faults) && ++surely_tries < 1000) sleep_ms(0);         \
    if (surely_tries >= 1000) check_failed(__FILE__, __LINE__, "%s never succeeds", #call); \
  } while (0)

void synchronize(gmm_stream stream);
void settle(block *b);
void write_block(block *b);

extern atomic_ullong parts_resumed, kept_checked;

void check_block(block *b);

uint64_t random_size(void);
gmm_stream random_stream(void);
void entered(block *b);

// Before the allocation: a pause right after it is then one that came later.
void remember_birth(block *b);
bool take(block *b, gmm_stream stream);
void give(block *b);

#endif
