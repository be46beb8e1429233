/* SPDX-License-Identifier: Apache-2.0 */
/* Traces of allocations, and their reader: the binary files of gmm (engine/trace/format.h), and text with the lines
   `a ID BYTES STREAM` and `f ID STREAM`, both through gzip too. */
#ifndef GMM_CLI_TRACE_H
#define GMM_CLI_TRACE_H

#include <gmm/gmm.h>
#include <stddef.h>

#include "engine/trace/format.h"

#define TRACE_NO_BLOCK UINT32_MAX

/* An event that happened. Frees stand for a reset too, and for the frees that a cut file lacks. "A place": the event
   has `kind`, `device` and `tag`. */
struct trace_event {
  uint64_t time;     /* nanoseconds since the trace began, at its end; 0 in a text */
  uint64_t began;    /* of a pause, resume, trim, compaction and move; of others: `time` */
  uint64_t size;     /* bytes: of an alloc, a pause or resume, a trim, moved ones, from the driver, asked for in vain */
  uint64_t value;    /* name: index into trace.names; failure: into trace.texts; compaction: bytes that were returned;
                        held: paused bytes; move: the new location; alloc: bytes that its stack stands for */
  uint64_t address;  /* of alloc, free, use, name and move; 0 in a text; held, heap created, destroyed: its number */
  uint32_t block;    /* number of their block, from 0; no other block of this number lives. Others: TRACE_NO_BLOCK */
  uint32_t stream;   /* index into trace.streams */
  uint32_t tag;      /* a place; of a pause and resume; index into trace.tags, or TRACE_NO_TAG: all tags */
  uint32_t thread;   /* from 0; trace.threads has the system's number */
  uint32_t stack;    /* of an alloc and a failure: index into trace.stacks, whose first is no stack */
  int32_t result;    /* of a failure: gmm_result */
  gmm_device device; /* a place: of an alloc, held bytes, a failure */
  uint16_t kind;     /* a place: gmm_kind; UNSPECIFIED in a text, and of a failure without a heap */
  uint8_t type;      /* enum trace_type */
  uint8_t log2_alignment : 7, was_live : 1; /* of an alloc; 1: from before the trace */
};
#define TRACE_NO_TAG UINT32_MAX

struct trace_tag {
  gmm_tag number;
  char name[TRACE_NAME_BYTES];
};

/* A file whose code the process had. */
struct trace_module {
  uint64_t base, begin, end; /* the file's addresses are less by `base` */
  char build_id[65];         /* in hexadecimal digits */
  char path[TRACE_TEXT_BYTES];
};

/* A call that had not returned. trace_symbolize() finds the names of machine code. */
struct trace_frame {
  uint64_t address; /* where it goes on; 0: of an interpreter */
  uint32_t module;  /* index into trace.modules, or TRACE_NO_FRAME */
  uint32_t outer;   /* index of the frame that this one is inlined into, or TRACE_NO_FRAME */
  uint32_t line;    /* 0: not known */
  char name[256];   /* "": not known yet */
  char file[TRACE_TEXT_BYTES];
};
#define TRACE_NO_FRAME UINT32_MAX

/* A part of trace.stack_frames, the innermost first. */
struct trace_stack {
  uint32_t first, count;
};

struct trace {
  char file[256];             /* its path, or the end of it */
  struct trace_event *events; /* in one order over all threads */
  uint64_t count;
  uint64_t blocks;  /* allocs, frees, uses and names among the events */
  uint64_t unknown; /* frees, uses and names of blocks from before the trace, which are left out */
  uint64_t lost;    /* events that the file lacks, as it says */
  uint32_t ended;   /* 1: the file has its end */
  uint32_t process; /* 0 in a text */
  uint64_t epoch;   /* nanoseconds since 1970 when it began; 0 in a text */
  uint32_t block_count;
  uint64_t *threads; /* the system's numbers; NULL in a text */
  uint32_t thread_count;
  uint64_t *streams; /* the numbers in the file; the first is 0, which is the default stream */
  uint32_t stream_count;
  struct trace_tag *tags; /* the first is the default tag */
  uint32_t tag_count;
  char (*names)[TRACE_NAME_BYTES];
  uint32_t name_count;
  char (*texts)[TRACE_TEXT_BYTES];
  uint32_t text_count;
  uint64_t stack_bytes; /* 0: the trace has no stacks; 1: of each alloc */
  struct trace_module *modules;
  uint32_t module_count;
  struct trace_frame *frames;
  uint32_t frame_count;
  struct trace_stack *stacks;
  uint32_t stack_count;
  uint32_t *stack_frames; /* indices into frames */
  uint32_t stack_frame_count;
  uint64_t peak_requested; /* bytes: the highest sum of live sizes */
};

/* It prints on stderr what is wrong and where. 0: the file is not a trace. */
int trace_read(const char *path, struct trace *out);
/* Gives each frame a name and, where the file tells, a line. The program addr2line reads the files, which must have the
   build-ids of the trace; otherwise a frame's name is its file and place, and stderr says why. */
void trace_symbolize(struct trace *trace);
void trace_free(struct trace *trace);
/* Calls fn for the path, or for each file in the folder that it names, by name. 0: fn returned 0, or the folder cannot
   be read, which is reported on stderr. */
int trace_each(const char *path, int (*fn)(void *user, const char *path), void *user);

#endif
