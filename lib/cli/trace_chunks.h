/* SPDX-License-Identifier: Apache-2.0 */
/* The lower layer of the binary format: the file's chunks, and the records of one thread. lib/engine/trace/FORMAT.md
   describes it. */
#ifndef GMM_CLI_TRACE_CHUNKS_H
#define GMM_CLI_TRACE_CHUNKS_H

#include <stddef.h>
#include <stdint.h>

struct chunk {
  uint64_t offset; /* offset of its first record in the file */
  uint64_t time;
  uint32_t size;
  uint32_t thread;
  uint32_t sequence;
  uint32_t records;
};

struct chunks {
  const char *name;
  const unsigned char *bytes;
  uint64_t size;
  struct chunk *items; /* sorted by thread, and in each thread's order */
  uint64_t count, capacity;
  uint64_t lost;    /* events that the writer reports as missing */
  uint64_t useless; /* bytes of a cut chunk at the end */
  int ended;        /* the file has its end record */
  int gaps;         /* chunks are missing */
};

/* 0: it failed and has printed the cause on stderr. The caller frees `items` in any case. */
int chunks_read(const char *name, const unsigned char *bytes, size_t size, struct chunks *out);

enum { EVENT_NONE, EVENT_ALLOC, EVENT_FREE, EVENT_USE, EVENT_RESET, EVENT_NAME, EVENT_TAG };

/* A position in the events of one thread. */
struct cursor {
  const struct chunk *chunk, *last; /* last: one past the thread's last */
  uint64_t position;                /* in the chunk */
  uint64_t time;
  uint32_t records;
  uint32_t heaps;       /* bits: the places that are defined */
  uint64_t streams[32]; /* handles */
  uint64_t heap_words[32];
  /* The current event. */
  int what;
  uint64_t offset; /* in the file */
  uint64_t address, size, stream;
  uint64_t heap_word; /* of an alloc: bits 0-15 kind, 16-31 device, 32-63 tag */
  uint32_t tag;       /* of a tag's name */
  char name[64];      /* of a block or tag */
  uint8_t log2_alignment;
};

/* Moves to the thread's next event; `what` is EVENT_NONE at the end. 0: it failed and has printed the cause on
   stderr. */
int cursor_next(const struct chunks *chunks, struct cursor *cursor);

/* Prints on stderr what is wrong at a byte. Returns 0. */
int chunks_bad(const struct chunks *chunks, uint64_t offset, const char *what);

#endif
