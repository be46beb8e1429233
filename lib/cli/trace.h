/* SPDX-License-Identifier: Apache-2.0 */
/* Traces of allocations, and their reader: the binary files of gmm (engine/trace/format.h), and text with the lines
   `a ID BYTES STREAM` and `f ID STREAM`, both through gzip too. */
#ifndef GMM_CLI_TRACE_H
#define GMM_CLI_TRACE_H

#include <gmm/gmm.h>
#include <stddef.h>

#include "engine/trace/format.h"

#define TRACE_NO_BLOCK UINT32_MAX

/* An event that happened. Frees stand for a reset too, and for the frees that a cut file lacks. */
struct trace_event {
  uint64_t time;     /* nanoseconds since the trace began; 0 in a text */
  uint64_t size;     /* bytes of an alloc; of others: the first value of the record */
  uint64_t value;    /* of a block's name: index into trace.names; of others: the second value */
  uint64_t address;  /* of alloc, free, use and name; 0 in a text */
  uint32_t block;    /* number of their block, from 0; no other block of this number lives. Others: TRACE_NO_BLOCK */
  uint32_t stream;   /* index into trace.streams */
  uint32_t tag;      /* of an alloc: index into trace.tags */
  uint32_t thread;   /* from 0 */
  gmm_device device; /* of an alloc */
  uint16_t kind;     /* of an alloc: gmm_kind; UNSPECIFIED in a text */
  uint8_t type;      /* enum trace_type */
  uint8_t log2_alignment;
};

struct trace_tag {
  gmm_tag number;
  char name[TRACE_NAME_BYTES];
};

struct trace {
  struct trace_event *events; /* in one order over all threads */
  uint64_t count;
  uint64_t blocks;  /* allocs, frees, uses and names among the events */
  uint64_t unknown; /* frees, uses and names of blocks from before the trace, which are left out */
  uint64_t lost;    /* events that the file lacks, as it says */
  uint32_t ended;   /* 1: the file has its end */
  uint32_t process; /* 0 in a text */
  uint32_t block_count;
  uint32_t thread_count;
  uint64_t *streams; /* the numbers in the file; the first is 0, which is the default stream */
  uint32_t stream_count;
  struct trace_tag *tags; /* the first is the default tag */
  uint32_t tag_count;
  char (*names)[TRACE_NAME_BYTES];
  uint32_t name_count;
  uint64_t peak_requested; /* bytes: the highest sum of live sizes */
};

/* It prints on stderr what is wrong and where. 0: the file is not a trace. */
int trace_read(const char *path, struct trace *out);
void trace_free(struct trace *trace);
/* Calls fn for the path, or for each file in the folder that it names, by name. 0: fn returned 0, or the folder cannot
   be read, which is reported on stderr. */
int trace_each(const char *path, int (*fn)(void *user, const char *path), void *user);

#endif
