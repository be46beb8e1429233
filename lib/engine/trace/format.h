/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of a trace, version 1. C11 and C++: the library writes it (trace.h), and the command's reader reads it
 * (lib/cli/trace.h).
 *
 * All numbers are little-endian. The file is a sequence of blocks of 64 KiB. The first block has the header. Each other
 * block belongs to one thread, which fills it with records of 64-bit words. A word of 0 in the place of a record ends
 * the block. The file is mapped, so it has each event as soon as it is recorded, however the program ends. A pipe
 * cannot be mapped: it gets each block as a whole when that is full.
 *
 * A short record is an event of a block of memory. Its first word has, from bit 0: 4 bits of the type, the stream's
 * slot (4), the time since the record before (16), the address without its lowest 8 bits, which are 0 (40). An alloc
 * has a second word: the size (48), the heap's slot (8), log2 of the requested alignment (6; 0: none;
 * TRACE_BORN_PAUSED: GMM_ALLOC_PAUSED), GMM_ALLOC_DEDICATED (1), GMM_ALLOC_ZERO (1).
 *
 * A long record has in its first word, from bit 0: TRACE_LONG (8), the type (8), the size of the record in words (8).
 * The second word is the whole time; values follow. It says its size, so a reader skips types that it does not know and
 * values that it does not expect. New types, further values and fields of the header may come without a new version.
 *
 * A slot means what the last TRACE_STREAM or TRACE_HEAP of the same block of the file said; at first each stream's slot
 * means the default stream.
 *
 * The records of a thread stand in the order of their ends. A reader sorts the threads' records by time. Then the
 * events on one address are in the order in which they happened, on whichever threads (trace.h says why). If two
 * threads' times differ by less than 10 us, take the event that is possible: an alloc where no block lives, another
 * where one does.
 *
 * A trace may hold stacks. TRACE_STACK has one, TRACE_FRAME the frame of an interpreter, and TRACE_MODULE a file whose
 * code the process has. Each has a number that the file gives once, and stands in the file before the records that name
 * it were written, but maybe in a later block. TRACE_AT says the stack of the next alloc or failure of the same block.
 * With stacks of some allocations only, an alloc's stack stands for more bytes than its own, so that the sum over all
 * that have one estimates the bytes of all.
 *
 * A trace begins with the blocks that are live then. TRACE_LIVE stands before the alloc of each, which has the time of
 * the beginning. The alloc of another thread at that time may stand there twice: another alloc at the address of such a
 * block takes its place. The free of a block at that time may stand there without its alloc.
 *
 * Of the calls that fail, those are recorded that ask for memory or change many blocks (TRACE_FAILED).
 *
 * The record TRACE_END is the last one. Without it the program ended first. If it counts missing events, or is missing,
 * an alloc may come at an address where a block lives, because its free is among the missing events.
 */
#ifndef GMM_ENGINE_TRACE_FORMAT_H
#define GMM_ENGINE_TRACE_FORMAT_H

#include <stdint.h>

enum {
  TRACE_VERSION = 1,
  TRACE_BLOCK_BYTES = 1 << 16,
  TRACE_NAME_BYTES = 64,
  TRACE_TEXT_BYTES = 512,
  TRACE_STREAM_SLOTS = 16,
  TRACE_BORN_PAUSED = 32,
  TRACE_HEAP_SLOTS = 256,
  TRACE_LONG = 15
};

struct trace_header {
  char magic[8]; /* "gmmtrace" */
  uint32_t version;
  uint32_t block_bytes; /* TRACE_BLOCK_BYTES */
  uint64_t clock_hertz; /* units a second of all times in the file */
  uint64_t begin_time;  /* when the trace began, by that clock */
  uint64_t begin_epoch; /* the same moment in nanoseconds since 1970 */
  uint32_t process;
  uint32_t reserved;
  char backend[16];     /* padded with zeros */
  uint64_t stack_bytes; /* gmm_trace_desc.stack_bytes */
};

/* The types of short records, then of long ones with their values. A place is kind | device << 16 | tag << 32. A heap's
   number is never used again in the process. A name is UTF-8 in TRACE_NAME_BYTES, and a text in TRACE_TEXT_BYTES,
   padded with zeros. "Began" is the time when the operation began; the record's own is that of its end. */
enum trace_type {
  TRACE_ALLOC = 1,
  TRACE_FREE = 2,
  TRACE_USE = 3,             /* gmm_record_use() */
  TRACE_PAUSE = 4,           /* tag or TRACE_EVERY_TAG, bytes of the whole call, began; further tags have 0 bytes */
  TRACE_RESUME = 5,          /* tag and bytes as for a pause; of a range: the tag of its first block */
  TRACE_TRIM = 6,            /* 0, bytes, began */
  TRACE_COMPACT = 7,         /* bytes moved, bytes returned to the driver, began */
  TRACE_RESET = 8,           /* every block is freed */
  TRACE_HEAP_CREATED = 9,    /* heap's number, place */
  TRACE_HEAP_DESTROYED = 10, /* heap's number */
  TRACE_BLOCK_NAME = 11,     /* address of the block, name; empty: it has none any more */
  TRACE_THREAD_ENDED = 12,
  TRACE_END = 13,    /* number of events that the file lacks */
  TRACE_THREAD = 14, /* the system's number of the thread whose records follow */
  TRACE_STREAM = 15, /* slot, stream */
  TRACE_HEAP = 16,   /* slot, heap's number, place, name of the tag */
  TRACE_TIME = 17,   /* the next record comes later than a short one can say, or has an earlier time than the last */
  TRACE_MOVE = 18,   /* address of the block, bytes, began, new location */
  TRACE_HELD = 19,   /* heap's number, bytes from the driver, bytes of paused addresses: from now on */
  TRACE_FAILED = 20, /* gmm_result, bytes that were asked for or 0, place, the message as a text */
  TRACE_FRAME = 21,  /* number, line, name, file: to the end of the record */
  TRACE_STACK = 22,  /* number; the rest of the record: return addresses, or TRACE_INTERPRETED and a frame's number */
  TRACE_AT = 23,     /* number of the stack, bytes that it stands for */
  TRACE_MODULE = 24, /* number, the file's shift, begin, end, bytes of the build-id, it in 4 words, path as a text */
  TRACE_LIVE = 25    /* the next alloc of the same block was before the trace began */
};
#define TRACE_EVERY_TAG UINT64_MAX
#define TRACE_INTERPRETED (UINT64_C(1) << 63)

#endif
