/* SPDX-License-Identifier: Apache-2.0 */
/* The text format: lines of `a ID BYTES STREAM` and `f ID STREAM`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/trace_builder.h"

enum { HIGHEST_ID = 50 * 1000 * 1000, LONGEST_LINE = 127 };

struct reader {
  struct trace_builder *builder;
  uint64_t line;
  uint64_t *live; /* by id: the size of the block while it lives */
  uint64_t live_capacity;
};

static int bad(const struct reader *reader, const char *what) {
  fprintf(stderr, "gmm: %s:%llu: %s\n", reader->builder->name, (unsigned long long)reader->line, what);
  return 0;
}

/* Reads ` NUMBER` and moves behind it. */
static int number(const unsigned char **text, const unsigned char *end, uint64_t *out) {
  const unsigned char *at = *text;
  if (end - at < 2 || *at++ != ' ' || *at < '0' || *at > '9') return 0;
  *out = 0;
  for (; at < end && *at >= '0' && *at <= '9'; ++at)
    if (__builtin_mul_overflow(*out, 10, out) || __builtin_add_overflow(*out, *at - '0', out)) return 0;
  *text = at;
  return 1;
}

static int read_line(struct reader *reader, const unsigned char *text, const unsigned char *end) {
  const unsigned char verb = text < end ? *text : '\0';
  if (end - text > LONGEST_LINE) return bad(reader, "the line is too long");
  if (verb != 'a' && verb != 'f') return bad(reader, "the line is neither 'a ID BYTES STREAM' nor 'f ID STREAM'");
  ++text;
  uint64_t id = 0, size = 0, stream = 0;
  if (!number(&text, end, &id) || (verb == 'a' && !number(&text, end, &size)) || !number(&text, end, &stream) ||
      text != end)
    return bad(reader, "the line is neither 'a ID BYTES STREAM' nor 'f ID STREAM'");
  if (id > HIGHEST_ID) return bad(reader, "the number of the block is above 50,000,000");
  if (!trace_grow((void **)&reader->live, &reader->live_capacity, id, sizeof *reader->live))
    return bad(reader, "no memory for the trace");
  if (verb == 'a' && size == 0) return bad(reader, "the allocation has 0 bytes");
  if (verb == 'a' && reader->live[id] != 0) return bad(reader, "the block is allocated already");
  if (verb == 'f' && reader->live[id] == 0) return bad(reader, "the block is not allocated");
  struct operation operation = {
      .size = size, .block = (uint32_t)id, .what = verb == 'a' ? OPERATION_ALLOC : OPERATION_FREE};
  const char *wrong = trace_stream_index(&reader->builder->trace, stream, &operation.stream);
  if (wrong == NULL) wrong = trace_add(reader->builder, &operation, verb == 'f' ? reader->live[id] : 0);
  if (wrong != NULL) return bad(reader, wrong);
  reader->live[id] = size;
  return 1;
}

int trace_parse_text(struct trace_builder *builder, const unsigned char *bytes, size_t size) {
  struct reader reader = {.builder = builder};
  const unsigned char *at = bytes, *all = bytes + size;
  int good = 1;
  while (good && at < all) {
    const unsigned char *newline = memchr(at, '\n', (size_t)(all - at));
    const unsigned char *end = newline == NULL ? all : newline;
    const unsigned char *next = newline == NULL ? all : newline + 1;
    if (end > at && end[-1] == '\r') --end;
    ++reader.line;
    good = read_line(&reader, at, end);
    at = next;
  }
  free(reader.live);
  return good;
}
