/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/trace_chunks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/trace_builder.h"

enum {
  FILE_HEADER = 64,
  CHUNK_HEADER = 32,
  CHUNK_MAGIC = 0x6b6e6863,
  VERSION = 1,
  LONGEST_CHUNK = 1 << 24,
  PLACES = 32,
  NAME_BYTES = 48 /* of a record */
};

/* The first byte of a record: its number, and its number of 8-byte words. */
enum {
  RECORD_TIME = 1 << 3 | 1,
  RECORD_STREAM = 2 << 3 | 2,
  RECORD_HEAP = 3 << 3 | 3,
  RECORD_ALLOC = 4 << 3 | 2,
  RECORD_FREE = 5 << 3 | 1,
  RECORD_USE = 6 << 3 | 1,
  RECORD_RESET = 10 << 3 | 1,
  RECORD_END = 14 << 3 | 2,
  RECORD_TAG_NAME = 16 << 3 | 7,
  RECORD_BLOCK_NAME = 17 << 3 | 7
};

static uint64_t little(const unsigned char *bytes, int count) {
  uint64_t value = 0;
  for (int i = count - 1; i >= 0; --i) value = value << 8 | bytes[i];
  return value;
}

int chunks_bad(const struct chunks *chunks, uint64_t offset, const char *what) {
  fprintf(stderr, "gmm: %s: byte %llu: %s\n", chunks->name, (unsigned long long)offset, what);
  return 0;
}

static int compare(const void *a, const void *b) {
  const struct chunk *left = a, *right = b;
  if (left->thread != right->thread) return left->thread < right->thread ? -1 : 1;
  return left->offset < right->offset ? -1 : left->offset > right->offset;
}

/* The chunk without a thread is the last one. It has the number of missing events. */
static int read_end(struct chunks *chunks, const struct chunk *chunk) {
  const unsigned char *record = chunks->bytes + chunk->offset;
  if (chunk->size < 16 || record[0] != RECORD_END)
    return chunks_bad(chunks, chunk->offset, "the last chunk has no record of the trace's end");
  chunks->ended = 1;
  chunks->lost = little(record + 8, 8);
  return 1;
}

int chunks_read(const char *name, const unsigned char *bytes, size_t size, struct chunks *out) {
  memset(out, 0, sizeof *out);
  out->name = name;
  out->bytes = bytes;
  out->size = size;
  if (size < FILE_HEADER) return chunks_bad(out, size, "the file ends in its header");
  if (little(bytes + 8, 4) != VERSION) {
    fprintf(stderr, "gmm: %s: byte 8: version %llu of the format; this program reads version %d\n", name,
            (unsigned long long)little(bytes + 8, 4), VERSION);
    return 0;
  }
  uint64_t at = little(bytes + 12, 4);
  if (at < FILE_HEADER || at > size || at % 8 != 0) return chunks_bad(out, 12, "the size of the header is impossible");
  while (size - at >= CHUNK_HEADER && !out->ended) {
    const unsigned char *header = bytes + at;
    if (little(header, 4) != CHUNK_MAGIC) return chunks_bad(out, at, "no chunk begins here; the file is damaged");
    struct chunk chunk = {.offset = at + CHUNK_HEADER,
                          .size = (uint32_t)little(header + 4, 4),
                          .thread = (uint32_t)little(header + 8, 4),
                          .sequence = (uint32_t)little(header + 12, 4),
                          .time = little(header + 16, 8),
                          .records = (uint32_t)little(header + 24, 4)};
    if (chunk.size > LONGEST_CHUNK || chunk.size % 8 != 0)
      return chunks_bad(out, at + 4, "the size of the chunk is impossible");
    if (chunk.time > INT64_MAX) return chunks_bad(out, at + 16, "the time of the chunk is impossible");
    if (chunk.size > size - chunk.offset) break;
    at = chunk.offset + chunk.size;
    if (chunk.thread == 0) {
      if (!read_end(out, &chunk)) return 0;
      continue;
    }
    if (!trace_grow((void **)&out->items, &out->capacity, out->count, sizeof chunk))
      return chunks_bad(out, at, "no memory for the trace");
    out->items[out->count++] = chunk;
  }
  if (out->ended && at != size) return chunks_bad(out, at, "the file goes on behind the end of the trace");
  out->useless = size - at;
  if (out->count != 0) qsort(out->items, out->count, sizeof *out->items, compare);
  uint32_t expected = 0;
  for (uint64_t i = 0; i < out->count; ++i) {
    const struct chunk *chunk = &out->items[i];
    if (i == 0 || chunk->thread != chunk[-1].thread) expected = 0;
    if (chunk->sequence < expected)
      return chunks_bad(out, chunk->offset - 20, "the chunks of a thread are out of order");
    if (chunk->sequence > expected) out->gaps = 1;
    if (chunk->sequence == UINT32_MAX)
      return chunks_bad(out, chunk->offset - 20, "the number of the chunk is impossible");
    expected = chunk->sequence + 1;
  }
  return 1;
}

/* Moves to the thread's next chunk that has records. *end is set if there is none. */
static int open_chunk(const struct chunks *chunks, struct cursor *cursor, int *end) {
  *end = 0;
  while (cursor->chunk < cursor->last && cursor->position == cursor->chunk->size) {
    if (cursor->chunk->records != 0 && cursor->records != cursor->chunk->records)
      return chunks_bad(chunks, cursor->chunk->offset - 8, "the number of records differs from the chunk's header");
    ++cursor->chunk;
    cursor->position = 0;
    cursor->records = 0;
  }
  if (cursor->chunk == cursor->last) {
    cursor->what = EVENT_NONE;
    *end = 1;
    return 1;
  }
  if (cursor->position != 0) return 1;
  if (cursor->chunk->time < cursor->time) return chunks_bad(chunks, cursor->chunk->offset - 16, "the time decreases");
  cursor->time = cursor->chunk->time;
  cursor->heaps = 0;
  memset(cursor->streams, 0, sizeof cursor->streams);
  return 1;
}

/* The first part of a name. Its second part, if there is one, is the next record of the chunk. */
static const char *read_name(struct cursor *cursor, const unsigned char *record) {
  const uint64_t value = little(record + 2, 6);
  const uint64_t left = cursor->chunk->size - cursor->position;
  if (record[1] != 0) return "a name has no first part";
  if (value == 0) return "a name is that of nothing";
  memset(cursor->name, 0, sizeof cursor->name);
  memcpy(cursor->name, record + 8, NAME_BYTES);
  const unsigned char *second = record + 8 + NAME_BYTES;
  if (left >= 8 + NAME_BYTES && second[0] == record[0] && second[1] == 1 && little(second + 2, 6) == value) {
    memcpy(cursor->name + NAME_BYTES, second + 8, sizeof cursor->name - NAME_BYTES - 1);
    cursor->position += 8 + NAME_BYTES;
    ++cursor->records;
  }
  cursor->what = record[0] == RECORD_TAG_NAME ? EVENT_TAG : EVENT_NAME;
  if (cursor->what == EVENT_TAG && cursor->name[0] == '\0') return "the name of a tag is empty";
  if (cursor->what == EVENT_TAG) cursor->tag = (uint32_t)value;
  cursor->address = value << 8;
  cursor->stream = 0;
  return NULL;
}

/* Returns NULL if the record is right, and what is wrong otherwise. */
static const char *read_record(struct cursor *cursor, const unsigned char *record) {
  const uint64_t value = little(record + 2, 6);
  const unsigned place = record[1];
  cursor->what = EVENT_NONE;
  switch (record[0]) {
    case RECORD_TIME:
      if (cursor->chunk->time + value < cursor->time) return "the time decreases";
      cursor->time = cursor->chunk->time + value;
      return NULL;
    case RECORD_STREAM:
      if (place >= PLACES) return "the place is above 31";
      cursor->streams[place] = little(record + 8, 8);
      return NULL;
    case RECORD_HEAP:
      if (place >= PLACES) return "the place is above 31";
      cursor->heaps |= 1u << place;
      cursor->heap_words[place] = little(record + 16, 8);
      return NULL;
    case RECORD_RESET:
      cursor->what = EVENT_RESET;
      return NULL;
    case RECORD_TAG_NAME:
    case RECORD_BLOCK_NAME:
      return read_name(cursor, record);
    case RECORD_ALLOC:
    case RECORD_FREE:
    case RECORD_USE:
      break;
    default:
      return NULL; /* a record of a later release, or one that a replay does not need */
  }
  if (place >= PLACES) return "the place is above 31";
  if (value == 0) return "the block is at address 0";
  cursor->address = value << 8;
  cursor->stream = cursor->streams[place];
  cursor->size = 0;
  cursor->what = record[0] == RECORD_ALLOC ? EVENT_ALLOC : record[0] == RECORD_FREE ? EVENT_FREE : EVENT_USE;
  if (cursor->what != EVENT_ALLOC) return NULL;
  const uint64_t word = little(record + 8, 8);
  cursor->size = word & ((UINT64_C(1) << 48) - 1);
  cursor->log2_alignment = word >> 53 & 31;
  if (cursor->size == 0) return "the allocation has 0 bytes";
  if ((cursor->heaps >> (word >> 48 & 31) & 1) == 0) return "the chunk does not name the heap of the allocation";
  cursor->heap_word = cursor->heap_words[word >> 48 & 31];
  return NULL;
}

int cursor_next(const struct chunks *chunks, struct cursor *cursor) {
  for (;;) {
    int end = 0;
    if (!open_chunk(chunks, cursor, &end)) return 0;
    if (end) return 1;
    const uint64_t offset = cursor->chunk->offset + cursor->position;
    const unsigned char *record = chunks->bytes + offset;
    const uint32_t size = (record[0] & 7u) * 8;
    if (cursor->chunk->records == 0 && record[0] == 0) { /* the program ended here, in a chunk not finished */
      cursor->position = cursor->chunk->size;
      continue;
    }
    if (size == 0 || size > cursor->chunk->size - cursor->position)
      return chunks_bad(chunks, offset, "the record has no size, or is longer than its chunk");
    cursor->position += size;
    ++cursor->records;
    cursor->offset = offset;
    const char *wrong = read_record(cursor, record);
    if (wrong != NULL) return chunks_bad(chunks, offset, wrong);
    if (cursor->what != EVENT_NONE) return 1;
  }
}
