/* SPDX-License-Identifier: Apache-2.0 */
/* Traces of allocations, and their reader. */
#ifndef GMM_CLI_TRACE_H
#define GMM_CLI_TRACE_H

#include <gmm/gmm.h>
#include <stddef.h>

enum { OPERATION_ALLOC, OPERATION_FREE, OPERATION_USE, OPERATION_NAME };

struct operation {
  uint64_t size;          /* bytes to allocate; 0: not an alloc */
  uint32_t block;         /* from 0; no other block of this number lives at the time of an alloc */
  uint32_t stream;        /* index into trace.streams; of a name: into trace.names */
  uint32_t thread;        /* from 0 */
  uint8_t what;           /* OPERATION_* */
  uint8_t log2_alignment; /* of an alloc; 0: the library's default */
  uint16_t place;         /* of an alloc: index into trace.places */
};

/* The memory that the program asked for. */
struct trace_place {
  gmm_kind kind; /* UNSPECIFIED: the trace does not tell, as a text does not */
  gmm_device device;
  gmm_tag tag;
};

/* A name of a block, or of a tag. */
struct trace_name {
  gmm_tag tag;
  char text[64];
};

struct trace {
  struct operation *operations; /* in one order over all threads */
  uint64_t count;
  uint32_t block_count;
  uint32_t thread_count;
  uint64_t *streams; /* the numbers in the file; the first is 0, which is the default stream */
  uint32_t stream_count;
  struct trace_place *places; /* the first is that of a trace that does not tell */
  uint32_t place_count;
  struct trace_name *tags, *names;
  uint32_t tag_count, name_count;
  uint32_t cut;            /* 1: the file lacks its end or some events, which was reported on stderr */
  uint64_t peak_requested; /* bytes: the highest sum of live sizes */
};

/* Reads a trace, text or binary, through gzip too. It prints on stderr what is wrong and where. 0: the file is not a
   trace. */
int trace_read(const char *path, struct trace *out);
/* As trace_read(), from memory. Messages use `name`. */
int trace_parse(const char *name, const unsigned char *bytes, size_t size, struct trace *out);
void trace_free(struct trace *trace);
/* Calls fn for the path, or for each file in the folder that it names, by name. 0: fn returned 0, or the folder cannot
   be read, which is reported on stderr. */
int trace_each(const char *path, int (*fn)(void *user, const char *path), void *user);

#endif
