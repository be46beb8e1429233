/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/trace.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "cli/trace_builder.h"

enum { MOST_STREAMS = 4096, MOST_PLACES = 65536 };

int trace_grow(void **items, uint64_t *capacity, uint64_t index, size_t size) {
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

const char *trace_stream_index(struct trace *trace, uint64_t number, uint32_t *out) {
  for (uint32_t i = 0; i < trace->stream_count; ++i) {
    if (trace->streams[i] == number) {
      *out = i;
      return NULL;
    }
  }
  if (trace->stream_count == MOST_STREAMS) return "the trace has more than 4,096 streams";
  uint64_t *grown = realloc(trace->streams, (trace->stream_count + 1) * sizeof *grown);
  if (grown == NULL) return "no memory for the trace";
  grown[trace->stream_count] = number;
  trace->streams = grown;
  *out = trace->stream_count++;
  return NULL;
}

const char *trace_place_index(struct trace *trace, struct trace_place place, uint16_t *out) {
  uint32_t i = trace->place_count;
  while (i > 0 && (trace->places[i - 1].kind != place.kind || trace->places[i - 1].device != place.device ||
                   trace->places[i - 1].tag != place.tag))
    --i;
  *out = (uint16_t)(i - 1);
  if (i > 0) return NULL;
  if (trace->place_count == MOST_PLACES) return "the trace has more than 65,536 kinds, devices and tags";
  struct trace_place *grown = realloc(trace->places, (trace->place_count + 1) * sizeof *grown);
  if (grown == NULL) return "no memory for the trace";
  grown[trace->place_count] = place;
  trace->places = grown;
  *out = (uint16_t)trace->place_count++;
  return NULL;
}

const char *trace_add_name(struct trace_name **names, uint32_t *count, gmm_tag tag, const char *text) {
  if (*count == UINT32_MAX) return "the trace has more names than this program can count";
  /* The array grows when its size is a power of two. */
  if ((*count & (*count - 1)) == 0) {
    struct trace_name *grown = realloc(*names, (*count == 0 ? 1 : (size_t)*count * 2) * sizeof *grown);
    if (grown == NULL) return "no memory for the trace";
    *names = grown;
  }
  struct trace_name *name = &(*names)[(*count)++];
  name->tag = tag;
  snprintf(name->text, sizeof name->text, "%s", text);
  return NULL;
}

const char *trace_add_tag(struct trace *trace, gmm_tag tag, const char *text) {
  for (uint32_t i = 0; i < trace->tag_count; ++i)
    if (trace->tags[i].tag == tag) return NULL;
  return trace_add_name(&trace->tags, &trace->tag_count, tag, text);
}

const char *trace_add(struct trace_builder *builder, const struct operation *operation, uint64_t freed) {
  struct trace *trace = &builder->trace;
  if (!trace_grow((void **)&trace->operations, &builder->capacity, trace->count, sizeof *trace->operations))
    return "no memory for the trace";
  if (operation->size > UINT64_MAX / 4 - builder->requested) return "the live blocks have more bytes than any machine";
  trace->operations[trace->count++] = *operation;
  if (trace->block_count <= operation->block) trace->block_count = operation->block + 1;
  if (trace->thread_count <= operation->thread) trace->thread_count = operation->thread + 1;
  builder->requested += operation->size;
  builder->requested -= freed;
  if (builder->requested > trace->peak_requested) trace->peak_requested = builder->requested;
  return NULL;
}

int trace_parse(const char *name, const unsigned char *bytes, size_t size, struct trace *out) {
  struct trace_builder builder = {.name = name};
  uint32_t ignored = 0;
  uint16_t unknown = 0;
  const char *wrong = trace_stream_index(&builder.trace, 0, &ignored);
  if (wrong == NULL) wrong = trace_place_index(&builder.trace, (struct trace_place){0}, &unknown);
  if (wrong == NULL && (trace_is_binary(bytes, size) ? trace_parse_binary(&builder, bytes, size)
                                                     : trace_parse_text(&builder, bytes, size))) {
    if (builder.trace.count != 0) {
      *out = builder.trace;
      return 1;
    }
    wrong = "the trace is empty";
  }
  if (wrong != NULL) fprintf(stderr, "gmm: %s: %s\n", name, wrong);
  trace_free(&builder.trace);
  return 0;
}

/* Reads everything that gzip, or the file itself, yields. */
static int read_whole(gzFile file, unsigned char **bytes, uint64_t *size, const char **wrong) {
  uint64_t capacity = 0;
  for (;;) {
    if (!trace_grow((void **)bytes, &capacity, *size + (1 << 16), 1)) return *wrong = "no memory for the trace", 0;
    const uint64_t room = capacity - *size;
    const int got = gzread(file, *bytes + *size, room < 1 << 30 ? (unsigned)room : 1u << 30);
    int code = Z_OK;
    gzerror(file, &code);
    if (got > 0) *size += (uint64_t)got;
    if (got < 0 || (got == 0 && code != Z_OK && code != Z_STREAM_END))
      return *wrong = "the file is damaged or cut off here", 0;
    if (got == 0) return 1;
  }
}

int trace_read(const char *path, struct trace *out) {
  gzFile file = gzopen(path, "rb");
  if (file == NULL) {
    fprintf(stderr, "gmm: %s cannot be opened: %s\n", path, strerror(errno));
    return 0;
  }
  unsigned char *bytes = NULL;
  uint64_t size = 0;
  const char *wrong = NULL;
  int good = read_whole(file, &bytes, &size, &wrong);
  if (!good) fprintf(stderr, "gmm: %s: byte %llu: %s\n", path, (unsigned long long)size, wrong);
  gzclose(file);
  good = good && trace_parse(path, bytes, size, out);
  free(bytes);
  return good;
}

int trace_each(const char *path, int (*fn)(void *user, const char *path), void *user) {
  struct dirent **entries = NULL;
  int count = scandir(path, &entries, NULL, alphasort);
  if (count < 0 && (errno == ENOTDIR || errno == ENOENT)) return fn(user, path);
  if (count < 0) fprintf(stderr, "gmm: %s cannot be read: %s\n", path, strerror(errno));
  int good = count >= 0;
  for (int i = 0; i < count; ++i) {
    char file[4096];
    const int length = snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
    if (entries[i]->d_name[0] != '.' && length < (int)sizeof file) good = fn(user, file) && good;
    free(entries[i]);
  }
  free(entries);
  return good;
}

void trace_free(struct trace *trace) {
  free(trace->operations);
  free(trace->streams);
  free(trace->places);
  free(trace->tags);
  free(trace->names);
  memset(trace, 0, sizeof *trace);
}
