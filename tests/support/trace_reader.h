// SPDX-License-Identifier: Apache-2.0
// A second reader of binary traces, for C and C++. It is written from lib/engine/trace/FORMAT.md and shares no code
// with the library or the command.
#ifndef GMM_TESTS_TRACE_READER_H
#define GMM_TESTS_TRACE_READER_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  TRACE_ALLOC = 4,
  TRACE_FREE = 5,
  TRACE_USE = 6,
  TRACE_PAUSE = 7,
  TRACE_RESUME = 8,
  TRACE_TRIM = 9,
  TRACE_RESET = 10,
  TRACE_HEAP_CREATED = 11,
  TRACE_HEAP_DESTROYED = 12,
  TRACE_THREAD_ENDED = 13,
  TRACE_END = 14,
  TRACE_UNUSED = 15,
  TRACE_TAG_NAME = 16,
  TRACE_BLOCK_NAME = 17,
  TRACE_COMPACT = 18,
  TRACE_MOST_TAGS = 64  // that this reader keeps
};

typedef struct trace_event {
  uint64_t time, order;  // order: of the thread
  uint64_t address, size, stream;
  uint64_t words[2];               // of the other records
  uint64_t heap, heap_kind;        // number; kind, device and tag
  char name[97];                   // of a block; of an alloc: of its tag
  uint32_t thread, number, flags;  // number: TRACE_*
} trace_event;

typedef struct trace_file {
  trace_event *events;  // by time, then by thread and its order
  size_t count, chunks;
  size_t unfinished;  // chunks that the program was filling when it ended
  int ended;          // with the record of its end
  uint64_t lost;
  uint64_t cut;  // bytes behind the last whole chunk
  uint32_t process;
  char backend[17];
  char wrong[160];  // empty: all is well
} trace_file;

static inline uint64_t trace_number(const unsigned char *bytes, int count) {
  uint64_t value = 0;
  while (count-- > 0) value = value << 8 | bytes[count];
  return value;
}

static inline int trace_compare(const void *left, const void *right) {
  const trace_event *a = (const trace_event *)left, *b = (const trace_event *)right;
  if (a->time != b->time) return a->time < b->time ? -1 : 1;
  if (a->thread != b->thread) return a->thread < b->thread ? -1 : 1;
  return a->order < b->order ? -1 : 1;
}

static inline int trace_wrong(trace_file *file, const char *what, uint64_t offset) {
  snprintf(file->wrong, sizeof file->wrong, "byte %llu: %s", (unsigned long long)offset, what);
  return 0;
}

// The records of one chunk. `room` events have place.
static inline int trace_read_chunk(trace_file *file, const unsigned char *bytes, uint64_t at, size_t *room) {
  const unsigned char *header = bytes + at, *record = header + 32, *end = record + trace_number(header + 4, 4);
  const uint64_t start = trace_number(header + 16, 8);
  uint64_t streams[32] = {0}, heaps[32] = {0}, heap_kinds[32] = {0}, time = start, records = 0;
  struct {
    uint64_t tag;
    char name[97];
  } tags[TRACE_MOST_TAGS];  // of the chunk
  uint32_t tag_count = 0;
  for (; record < end; ++records) {
    const uint64_t words = record[0] & 7, value = trace_number(record + 2, 6), offset = (uint64_t)(record - bytes);
    const uint32_t number = record[0] >> 3, place = record[1];
    if (record[0] == 0 && trace_number(header + 24, 4) == 0) {
      ++file->unfinished;
      return 1;
    }
    if (words == 0 || words * 8 > (uint64_t)(end - record)) return trace_wrong(file, "size of a record", offset);
    if (place > 31) return trace_wrong(file, "place", offset);
    const uint64_t first = words > 1 ? trace_number(record + 8, 8) : 0;
    const uint64_t second = words > 2 ? trace_number(record + 16, 8) : 0;
    const unsigned char *text = record + 8;
    record += words * 8;
    if (number == 1) {
      if (start + value <= time && value != 0) return trace_wrong(file, "time", offset);
      time = start + value;
    } else if (number == 2) {
      streams[place] = first;
    } else if (number == 3) {
      heaps[place] = first;
      heap_kinds[place] = second;
    } else if (number == TRACE_UNUSED) {
      if (words != 1) return trace_wrong(file, "size of unused words", offset);
    } else if (number == TRACE_TAG_NAME) {
      if (words != 7 || place > 1 || value == 0) return trace_wrong(file, "name of a tag", offset);
      uint32_t i = 0;
      while (i < tag_count && tags[i].tag != value) ++i;
      if (i == TRACE_MOST_TAGS || (place == 1 && i == tag_count))
        return trace_wrong(file, "name of one more tag", offset);
      if (place == 0) memset(&tags[i], 0, sizeof tags[i]);
      tags[i].tag = value;
      memcpy(tags[i].name + 48 * place, text, 48);
      tag_count += i == tag_count;
    } else if (number == TRACE_END) {
      file->ended = 1;
      file->lost = first;
    } else {
      if (*room == file->count) {
        *room = *room * 2 + 1024;
        file->events = (trace_event *)realloc(file->events, *room * sizeof *file->events);
        if (file->events == NULL) return trace_wrong(file, "no memory", offset);
      }
      trace_event *event = &file->events[file->count];
      if (number == TRACE_BLOCK_NAME && place == 1) {
        if (event == file->events || event[-1].number != number || event[-1].address != value * 256)
          return trace_wrong(file, "second part of a name", offset);
        memcpy(event[-1].name + 48, text, 48);
        continue;
      }
      memset(event, 0, sizeof *event);
      event->time = time;
      event->order = file->count++;
      event->thread = (uint32_t)trace_number(header + 8, 4);
      event->number = number;
      if (number == TRACE_BLOCK_NAME) {
        memcpy(event->name, text, 48);
        event->address = value * 256;
        continue;
      }
      event->words[0] = first;
      event->words[1] = second;
      if (number >= TRACE_ALLOC && number <= TRACE_USE) {
        event->address = value * 256;
        event->stream = streams[place];
      }
      if (number == TRACE_ALLOC) {
        event->size = first & 0xffffffffffff;
        event->heap = heaps[first >> 48 & 31];
        event->heap_kind = heap_kinds[first >> 48 & 31];
        event->flags = (uint32_t)(first >> 53);
        if (event->heap == 0) return trace_wrong(file, "no heap", offset);
        for (uint32_t i = 0; i < tag_count; ++i)
          if (tags[i].tag == event->heap_kind >> 32) memcpy(event->name, tags[i].name, sizeof event->name);
      }
    }
  }
  const uint64_t stated = trace_number(header + 24, 4);
  file->unfinished += stated == 0;
  if (stated != 0 && records != stated) return trace_wrong(file, "number of records", at);
  return 1;
}

// 0: not a trace, and `wrong` says why. free(events) in any case.
static inline int trace_file_read(const char *path, trace_file *file) {
  memset(file, 0, sizeof *file);
  FILE *from = fopen(path, "rb");
  if (from == NULL) return trace_wrong(file, "cannot be opened", 0);
  unsigned char *bytes = NULL;
  size_t size = 0, got = 1;
  while (got != 0) {
    bytes = (unsigned char *)realloc(bytes, size + 65536);
    got = bytes == NULL ? 0 : fread(bytes + size, 1, 65536, from);
    size += got;
  }
  fclose(from);
  int good = 1;
  size_t room = 0;
  if (size < 64 || memcmp(bytes, "gmmtrace", 8) != 0 || trace_number(bytes + 8, 4) != 1 ||
      trace_number(bytes + 16, 8) != 1000000000)
    good = trace_wrong(file, "not a trace of version 1", 0);
  uint64_t at = good ? trace_number(bytes + 12, 4) : 0;
  if (good) {
    file->process = (uint32_t)trace_number(bytes + 40, 4);
    memcpy(file->backend, bytes + 48, 16);
  }
  while (good && size - at >= 32 && trace_number(bytes + at + 4, 4) <= size - at - 32) {
    if (memcmp(bytes + at, "chnk", 4) != 0) good = trace_wrong(file, "no chunk", at);
    if (good && file->ended) good = trace_wrong(file, "something behind the end", at);
    good = good && trace_read_chunk(file, bytes, at, &room);
    ++file->chunks;
    if (good) at += 32 + trace_number(bytes + at + 4, 4);
  }
  file->cut = size - at;
  if (file->count != 0) qsort(file->events, file->count, sizeof *file->events, trace_compare);
  free(bytes);
  return good;
}

#endif
