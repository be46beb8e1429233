/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of a trace, version 1. C11 and C++: the library writes it (trace.h), and the command's reader reads it
 * (lib/cli/trace.h).
 *
 * All numbers are little-endian. The file is a sequence of blocks of 64 KiB. The first block has the header. Each other
 * block belongs to one thread, which fills it with records. A word of 0 in the place of a record ends the block. The
 * file is mapped, so it has each event as soon as it is recorded, however the program ends. A pipe cannot be mapped: it
 * gets each block as a whole when that is full.
 *
 * A record is a struct trace_record and values of 8 bytes. It says its size, so a reader skips types that it does not
 * know and values that it does not expect. New types, further values, flags and fields of the header may come without a
 * new version.
 *
 * The records of a thread stand in the order of its events. A reader sorts the threads' records by time. Then the
 * events on one address are in the order in which they happened, on whichever threads (trace.h says why). If two
 * threads' times differ by less than 10 us, take the event that is possible: an alloc where no block lives, another
 * where one does.
 * Calls that failed are not recorded. The frees of blocks from before the trace are.
 *
 * The record TRACE_END is the last one. Without it the program ended first. If it counts missing events, or is missing,
 * an alloc may come at an address where a block lives, because its free is among the missing events.
 */
#ifndef GMM_ENGINE_TRACE_FORMAT_H
#define GMM_ENGINE_TRACE_FORMAT_H

#include <stdint.h>

enum { TRACE_VERSION = 1, TRACE_BLOCK_BYTES = 1 << 16, TRACE_NAME_BYTES = 64 };

struct trace_header {
  char magic[8]; /* "gmmtrace" */
  uint32_t version;
  uint32_t block_bytes; /* TRACE_BLOCK_BYTES */
  uint64_t clock_hertz; /* ticks a second of all times in the file */
  uint64_t begin_time;  /* when the trace began, by that clock */
  uint64_t begin_epoch; /* the same moment in nanoseconds since 1970 */
  uint32_t process;
  uint32_t reserved;
  char backend[16]; /* padded with zeros */
};

struct trace_record {
  uint8_t type;    /* enum trace_type */
  uint8_t words;   /* the record with its values, in words of 8 bytes */
  uint16_t flags;  /* of an alloc: log2 of the requested alignment (0: none) and TRACE_* */
  uint32_t thread; /* the system's number of the thread */
  uint64_t time;
};

/* The values. A place is kind | device << 16 | tag << 32. A heap's number is never used again in the process. */
enum trace_type {
  TRACE_ALLOC = 1,        /* address, stream, size, place, heap's number */
  TRACE_FREE = 2,         /* address, stream */
  TRACE_USE = 3,          /* of gmm_record_use(): address of the block, stream */
  TRACE_PAUSE = 4,        /* tag or TRACE_EVERY_TAG, bytes of the whole call; further tags of the call have 0 bytes */
  TRACE_RESUME = 5,       /* the same; of a range: the tag of its first block */
  TRACE_TRIM = 6,         /* bytes */
  TRACE_COMPACT = 7,      /* bytes moved, bytes returned to the driver */
  TRACE_RESET = 8,        /* every block is freed */
  TRACE_HEAP_CREATED = 9, /* heap's number, place */
  TRACE_HEAP_DESTROYED = 10, /* heap's number */
  TRACE_TAG_NAME = 11,       /* tag, name; before the thread's first alloc with the tag */
  TRACE_BLOCK_NAME = 12,     /* address of the block, name; empty: it has none any more */
  TRACE_THREAD_ENDED = 13,
  TRACE_END = 14 /* number of events that the file lacks */
};

/* A name is UTF-8 in TRACE_NAME_BYTES, padded with zeros. */
enum { TRACE_ALIGNMENT_BITS = 0xff, TRACE_DEDICATED = 1 << 8, TRACE_ZEROED = 1 << 9 };
#define TRACE_EVERY_TAG UINT64_MAX

#endif
