/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { HIGHEST_ID = 50 * 1000 * 1000 };

struct reader {
  const char *path;
  uint64_t line;
  uint64_t *live; /* by id: the block's size while it lives */
  uint64_t live_capacity;
  uint64_t requested;
  uint64_t capacity; /* of trace.operations */
};

static int bad(const struct reader *reader, const char *what) {
  fprintf(stderr, "gmm: %s:%llu: %s\n", reader->path, (unsigned long long)reader->line, what);
  return 0;
}

/* Grows an array to hold `index`; new items are zero. */
static int grow(void **items, uint64_t *capacity, uint64_t index, size_t size) {
  if (index < *capacity) return 1;
  uint64_t wanted = *capacity < 1024 ? 1024 : *capacity * 2;
  if (wanted <= index) wanted = index + 1;
  char *grown = realloc(*items, wanted * size);
  if (grown == NULL) return 0;
  memset(grown + *capacity * size, 0, (wanted - *capacity) * size);
  *items = grown;
  *capacity = wanted;
  return 1;
}

/* Reads ` NUMBER` and moves on. */
static int number(const char **text, uint64_t *out) {
  if (**text != ' ') return 0;
  const char *start = *text + 1;
  if (*start < '0' || *start > '9') return 0;
  char *end = NULL;
  errno = 0;
  *out = strtoull(start, &end, 10);
  *text = end;
  return errno == 0;
}

static int stream_index(struct trace *trace, uint64_t name, uint32_t *out) {
  for (uint32_t i = 0; i < trace->stream_count; ++i) {
    if (trace->streams[i] == name) {
      *out = i;
      return 1;
    }
  }
  uint64_t *grown = realloc(trace->streams, (trace->stream_count + 1) * sizeof *grown);
  if (grown == NULL) return 0;
  grown[trace->stream_count] = name;
  trace->streams = grown;
  *out = trace->stream_count++;
  return 1;
}

static int read_line(struct reader *reader, struct trace *trace, const char *text) {
  const char verb = text[0];
  if (verb != 'a' && verb != 'f') return bad(reader, "neither 'a ID BYTES STREAM' nor 'f ID STREAM'");
  ++text;
  uint64_t id = 0, size = 0, stream = 0;
  if (!number(&text, &id) || (verb == 'a' && !number(&text, &size)) || !number(&text, &stream) || *text != '\0')
    return bad(reader, "neither 'a ID BYTES STREAM' nor 'f ID STREAM'");
  if (id > HIGHEST_ID) return bad(reader, "the number of the block is above 50,000,000");
  if (!grow((void **)&reader->live, &reader->live_capacity, id, sizeof *reader->live) ||
      !grow((void **)&trace->operations, &reader->capacity, trace->count, sizeof *trace->operations))
    return bad(reader, "no memory for the trace");
  if (verb == 'a' && size == 0) return bad(reader, "an allocation of 0 bytes");
  if (verb == 'a' && reader->live[id] != 0) return bad(reader, "the block is allocated already");
  if (verb == 'f' && reader->live[id] == 0) return bad(reader, "the block is not allocated");
  if (size > UINT64_MAX / 4 - reader->requested) return bad(reader, "more bytes than any machine has");

  struct operation *operation = &trace->operations[trace->count++];
  if (!stream_index(trace, stream, &operation->stream)) return bad(reader, "no memory for the trace");
  operation->size = size;
  operation->block = (uint32_t)id;
  if (trace->block_count <= id) trace->block_count = (uint32_t)id + 1;
  reader->requested += verb == 'a' ? size : 0;
  reader->requested -= verb == 'f' ? reader->live[id] : 0;
  reader->live[id] = size;
  if (reader->requested > trace->peak_requested) trace->peak_requested = reader->requested;
  return 1;
}

static int damaged(gzFile file) {
  int code = Z_OK;
  gzerror(file, &code);
  return code != Z_OK && code != Z_STREAM_END;
}

int trace_read(const char *path, struct trace *out) {
  struct trace trace = {0};
  struct reader reader = {.path = path};
  uint32_t ignored = 0;
  int good = stream_index(&trace, 0, &ignored);
  gzFile file = gzopen(path, "rb");
  if (file == NULL) {
    fprintf(stderr, "gmm: %s cannot be opened: %s\n", path, strerror(errno));
    good = 0;
  }
  char text[128];
  while (good && gzgets(file, text, sizeof text) != NULL) {
    ++reader.line;
    const size_t length = strlen(text);
    if (length > 0 && text[length - 1] != '\n') {
      if (length == sizeof text - 1) good = bad(&reader, "the line is too long");
      if (good && damaged(file)) break;  // what stands in the line is not all of it
    }
    text[strcspn(text, "\r\n")] = '\0';
    if (good) good = read_line(&reader, &trace, text);
  }
  if (file != NULL) {
    if (good && damaged(file)) good = bad(&reader, "the file is damaged or cut off here");
    if (good && trace.count == 0) good = bad(&reader, "the trace is empty");
    gzclose(file);
  }
  free(reader.live);
  if (!good) {
    trace_free(&trace);
    return 0;
  }
  *out = trace;
  return 1;
}

void trace_free(struct trace *trace) {
  free(trace->operations);
  free(trace->streams);
  memset(trace, 0, sizeof *trace);
}
