/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/trace.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { MOST_STREAMS = 4096, MOST_TAGS = 65536, MOST_THREADS = 65536, HIGHEST_ID = 50 * 1000 * 1000, LINE = 128 };

static const char no_memory[] = "no memory for the trace";

/* A trace that is being read. */
struct reader {
  gzFile file;
  struct trace trace;
  uint64_t capacity; /* of trace.events */
  uint64_t *live;    /* of a text, by number of the block: its size while it lives */
  uint64_t live_capacity;
  uint32_t *threads; /* the system's numbers */
  uint32_t thread;   /* of the block of the file; 0: none so far */
  uint64_t time;     /* of the last record of the block of the file */
  uint32_t stream_slots[TRACE_STREAM_SLOTS];
  struct heap_slot {
    uint32_t tag;
    gmm_device device;
    uint16_t kind;
    uint8_t known;
  } heap_slots[TRACE_HEAP_SLOTS];
  uint64_t offset; /* of the record, or number of the line */
  uint64_t begin_time;
  double tick; /* nanoseconds of one */
};

/* Makes place for an item with this index; new items are zero. Returns NULL, or what is wrong, as do the others. */
static const char *grow(void **items, uint64_t *capacity, uint64_t index, size_t size) {
  if (index < *capacity) return NULL;
  uint64_t wanted = *capacity < 1024 ? 1024 : *capacity * 2;
  if (wanted <= index) wanted = index + 1;
  char *grown = realloc(*items, wanted * size);
  if (grown == NULL) return no_memory;
  memset(grown + *capacity * size, 0, (wanted - *capacity) * size);
  *items = grown;
  *capacity = wanted;
  return NULL;
}

/* The few items of a kind grow when their number is a power of two. */
static const char *grow_few(void **items, uint32_t count, size_t size, uint32_t most, const char *too_many) {
  if (count == most) return too_many;
  if ((count & (count - 1)) != 0) return NULL;
  void *grown = realloc(*items, (count == 0 ? 1 : (size_t)count * 2) * size);
  if (grown == NULL) return no_memory;
  *items = grown;
  return NULL;
}

static const char *stream_index(struct trace *trace, uint64_t number, uint32_t *out) {
  if (number == 1) number = 0; /* a default stream too */
  for (*out = 0; *out < trace->stream_count; ++*out)
    if (trace->streams[*out] == number) return NULL;
  const char *wrong = grow_few((void **)&trace->streams, trace->stream_count, sizeof number, MOST_STREAMS,
                               "the trace has more than 4,096 streams");
  if (wrong == NULL) trace->streams[trace->stream_count++] = number;
  return wrong;
}

/* A tag without a name so far is called by its number. */
static const char *tag_index(struct trace *trace, gmm_tag number, uint32_t *out) {
  for (*out = 0; *out < trace->tag_count; ++*out)
    if (trace->tags[*out].number == number) return NULL;
  const char *wrong = grow_few((void **)&trace->tags, trace->tag_count, sizeof *trace->tags, MOST_TAGS,
                               "the trace has more than 65,536 tags");
  if (wrong != NULL) return wrong;
  struct trace_tag *tag = &trace->tags[trace->tag_count++];
  tag->number = number;
  snprintf(tag->name, sizeof tag->name, number == GMM_TAG_DEFAULT ? "default" : "tag %" PRIu32, number);
  return NULL;
}

static const char *thread_index(struct reader *reader, uint32_t number, uint32_t *out) {
  for (*out = 0; *out < reader->trace.thread_count; ++*out)
    if (reader->threads[*out] == number) return NULL;
  const char *wrong = grow_few((void **)&reader->threads, reader->trace.thread_count, sizeof number, MOST_THREADS,
                               "the trace has more than 65,536 threads");
  if (wrong == NULL) reader->threads[reader->trace.thread_count++] = number;
  return wrong;
}

static const char *add_event(struct trace *trace, uint64_t *capacity, const struct trace_event *event) {
  const char *wrong = grow((void **)&trace->events, capacity, trace->count, sizeof *event);
  if (wrong == NULL) trace->events[trace->count++] = *event;
  return wrong;
}

/* --- Text -------------------------------------------------------------------------------------------------------- */

/* Reads ` NUMBER` and moves behind it. */
static int number(const char **text, uint64_t *out) {
  const char *at = *text;
  if (*at++ != ' ' || *at < '0' || *at > '9') return 0;
  for (*out = 0; *at >= '0' && *at <= '9'; ++at)
    if (__builtin_mul_overflow(*out, 10, out) || __builtin_add_overflow(*out, *at - '0', out)) return 0;
  *text = at;
  return 1;
}

static const char *read_line(struct reader *reader, const char *text) {
  static const char neither[] = "the line is neither 'a ID BYTES STREAM' nor 'f ID STREAM'";
  struct trace *trace = &reader->trace;
  const char verb = *text;
  uint64_t id = 0, size = 0, stream = 0;
  if ((verb != 'a' && verb != 'f') || (++text, !number(&text, &id)) || (verb == 'a' && !number(&text, &size)) ||
      !number(&text, &stream) || *text != '\0')
    return neither;
  if (id > HIGHEST_ID) return "the number of the block is above 50,000,000";
  const char *wrong = grow((void **)&reader->live, &reader->live_capacity, id, sizeof *reader->live);
  if (wrong != NULL) return wrong;
  if (verb == 'a' && size == 0) return "the allocation has 0 bytes";
  if (verb == 'a' && reader->live[id] != 0) return "the block is allocated already";
  if (verb == 'f' && reader->live[id] == 0) return "the block is not allocated";
  struct trace_event event = {.size = size, .block = (uint32_t)id, .type = verb == 'a' ? TRACE_ALLOC : TRACE_FREE};
  reader->live[id] = size;
  if (trace->block_count <= id) trace->block_count = (uint32_t)id + 1;
  wrong = stream_index(trace, stream, &event.stream);
  return wrong != NULL ? wrong : add_event(trace, &reader->capacity, &event);
}

static const char *read_text(struct reader *reader) {
  char line[LINE + 2];
  int code = Z_OK;
  const char *wrong = NULL;
  for (reader->offset = 1; wrong == NULL && gzgets(reader->file, line, sizeof line) != NULL; ++reader->offset) {
    size_t length = strlen(line);
    if (length > 0 && line[length - 1] == '\n')
      line[--length] = '\0';
    else if (length == LINE + 1)
      return "the line is too long";
    else if (gzerror(reader->file, &code), code != Z_OK && code != Z_STREAM_END)
      return NULL; /* the line is cut, which the caller reports */
    if (length > 0 && line[length - 1] == '\r') line[length - 1] = '\0';
    wrong = read_line(reader, line);
    if (wrong != NULL) return wrong;
  }
  reader->trace.ended = 1;
  reader->trace.thread_count = 1;
  return NULL;
}

/* --- Binary: the records ----------------------------------------------------------------------------------------- */

static const char *add_name(struct trace *trace, const char *text, uint64_t *out) {
  const char *wrong = grow_few((void **)&trace->names, trace->name_count, sizeof *trace->names, UINT32_MAX,
                               "the trace has too many names");
  if (wrong != NULL) return wrong;
  memcpy(trace->names[trace->name_count], text, TRACE_NAME_BYTES);
  trace->names[trace->name_count][TRACE_NAME_BYTES - 1] = '\0';
  *out = trace->name_count++;
  return NULL;
}

static struct trace_event event_at(const struct reader *reader, uint8_t type) {
  const uint64_t ticks = reader->time < reader->begin_time ? 0 : reader->time - reader->begin_time;
  return (struct trace_event){.time = (uint64_t)((double)ticks * reader->tick), .type = type, .block = TRACE_NO_BLOCK};
}

/* An event goes to the thread of its block of the file. */
static const char *add_read(struct reader *reader, struct trace_event *event) {
  const char *wrong = reader->thread == 0 ? "the block of the file has no thread" : NULL;
  if (wrong == NULL) wrong = thread_index(reader, reader->thread, &event->thread);
  if (wrong != NULL) return wrong;
  if (reader->trace.count == UINT32_MAX) return "the trace has more events than this program can count";
  return add_event(&reader->trace, &reader->capacity, event);
}

static const char *read_short(struct reader *reader, uint64_t first, uint64_t second) {
  reader->time += first >> 8 & 0xffff;
  struct trace_event event = event_at(reader, first & 0xf);
  event.address = first >> 24 << 8;
  event.stream = reader->stream_slots[first >> 4 & 0xf];
  if (event.type == TRACE_ALLOC) {
    const struct heap_slot *heap = &reader->heap_slots[second >> 48 & 0xff];
    event.size = second & ((UINT64_C(1) << 48) - 1);
    event.log2_alignment = second >> 56 & 0x3f;
    event.kind = heap->kind;
    event.device = heap->device;
    event.tag = heap->tag;
    if (event.size == 0) return "the size of the allocation is impossible";
    if (!heap->known) return "the allocation is of an unknown heap";
  }
  return add_read(reader, &event);
}

/* `values` has all those that this release knows, and zeros where the record has fewer. */
static const char *read_long(struct reader *reader, uint8_t type, const uint64_t *values) {
  struct trace *trace = &reader->trace;
  struct trace_event event = event_at(reader, type);
  const char *wrong = NULL;
  event.size = values[0];
  event.value = values[1];
  switch (type) {
    case TRACE_TIME:
      return NULL;
    case TRACE_THREAD:
      reader->thread = (uint32_t)values[0];
      return NULL;
    case TRACE_STREAM:
      if (values[0] >= TRACE_STREAM_SLOTS) return "the slot of the stream is impossible";
      return stream_index(trace, values[1], &reader->stream_slots[values[0]]);
    case TRACE_HEAP:
      if (values[0] >= TRACE_HEAP_SLOTS) return "the slot of the heap is impossible";
      struct heap_slot *heap = &reader->heap_slots[values[0]];
      heap->known = 1;
      heap->kind = (uint16_t)values[2];
      heap->device = (gmm_device)(values[2] >> 16 & 0xffff);
      wrong = tag_index(trace, (gmm_tag)(values[2] >> 32), &heap->tag);
      if (wrong == NULL && values[3] != 0)
        snprintf(trace->tags[heap->tag].name, TRACE_NAME_BYTES, "%s", (const char *)&values[3]);
      return wrong;
    case TRACE_BLOCK_NAME:
      event.address = values[0];
      wrong = add_name(trace, (const char *)&values[1], &event.value);
      return wrong != NULL ? wrong : add_read(reader, &event);
    case TRACE_END:
      trace->ended = 1;
      trace->lost = values[0];
      return NULL;
    default:
      return add_read(reader, &event);
  }
}

static const char *read_block(struct reader *reader, const unsigned char *block, uint32_t size) {
  enum { VALUES = 3 + TRACE_NAME_BYTES / 8 };
  const uint64_t begin = reader->offset;
  reader->thread = 0;
  memset(reader->stream_slots, 0, sizeof reader->stream_slots);
  memset(reader->heap_slots, 0, sizeof reader->heap_slots);
  for (uint32_t at = 0; size - at >= 8 && block[at] != 0;) {
    uint64_t words[2 + VALUES + 1] = {0}; /* a name ends in any case */
    const int is_long = block[at] == TRACE_LONG, form = block[at] & 0xf;
    reader->offset = begin + at;
    const uint32_t bytes = is_long ? block[at + 2] * 8u : form == TRACE_ALLOC ? 16 : 8;
    if (!is_long && (form < TRACE_ALLOC || form > TRACE_USE)) return "the record has an unknown form";
    if (is_long && bytes < 16) return "the record has no size";
    if (bytes > size - at) return size == TRACE_BLOCK_BYTES ? "the record is longer than its block" : NULL;
    memcpy(words, block + at, bytes < (2 + VALUES) * 8 ? bytes : (2 + VALUES) * 8);
    if (is_long) reader->time = words[1];
    const char *wrong = is_long ? read_long(reader, block[at + 1], &words[2]) : read_short(reader, words[0], words[1]);
    if (wrong != NULL) return wrong;
    at += bytes;
  }
  reader->offset = begin + size;
  return NULL;
}

/* A block at a time: zeros that gzip has packed take no memory here. The last block of a cut file is shorter. */
static const char *read_blocks(struct reader *reader) {
  unsigned char *block = malloc(TRACE_BLOCK_BYTES);
  const char *wrong = block == NULL ? no_memory : NULL;
  struct trace_header header;
  for (int first = 1, got = TRACE_BLOCK_BYTES; wrong == NULL && got == TRACE_BLOCK_BYTES; first = 0) {
    got = gzread(reader->file, block, TRACE_BLOCK_BYTES);
    if (got <= 0) break; /* the caller looks at the cause */
    if (!first) {
      wrong = reader->trace.ended ? "the file goes on behind the end of the trace"
                                  : read_block(reader, block, (uint32_t)got);
      continue;
    }
    memset(&header, 0, sizeof header);
    memcpy(&header, block, (size_t)got < sizeof header ? (size_t)got : sizeof header);
    if (got < (int)sizeof header) wrong = "the file ends in its header";
    if (wrong == NULL && header.version != TRACE_VERSION) wrong = "the trace has another version than 1";
    if (wrong == NULL && header.block_bytes != TRACE_BLOCK_BYTES) wrong = "the blocks of the trace have another size";
    reader->trace.process = header.process;
    reader->begin_time = header.begin_time;
    reader->tick = header.clock_hertz == 0 ? 1 : 1e9 / (double)header.clock_hertz;
    reader->offset = (uint64_t)got;
  }
  free(block);
  return wrong;
}

/* --- Binary: the order and the blocks ---------------------------------------------------------------------------- */

/* A table of the live addresses: open addressing over powers of two. Address 0 is none. */
struct live_block {
  uint64_t address, size;
  uint32_t block;
};
struct live_table {
  struct live_block *items;
  uint64_t capacity, count;
};

static uint64_t live_home(const struct live_table *table, uint64_t address) {
  return (address * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (table->capacity - 1);
}
static struct live_block *live_find(struct live_table *table, uint64_t address) {
  for (uint64_t at = table->capacity == 0 ? 0 : live_home(table, address);
       table->capacity != 0 && table->items[at].address != 0; at = (at + 1) & (table->capacity - 1))
    if (table->items[at].address == address) return &table->items[at];
  return NULL;
}
static const char *live_add(struct live_table *table, struct live_block block) {
  if ((table->count + 1) * 2 > table->capacity) {
    struct live_table grown = {.capacity = table->capacity == 0 ? 1024 : table->capacity * 2};
    grown.items = calloc(grown.capacity, sizeof *grown.items);
    if (grown.items == NULL) return no_memory;
    for (uint64_t i = 0; i < table->capacity; ++i)
      if (table->items[i].address != 0) live_add(&grown, table->items[i]);
    free(table->items);
    *table = grown;
  }
  uint64_t at = live_home(table, block.address);
  while (table->items[at].address != 0) at = (at + 1) & (table->capacity - 1);
  table->items[at] = block;
  ++table->count;
  return NULL;
}
/* Removes a block and closes the gap (Knuth, vol. 3, 6.4 algorithm R). */
static void live_remove(struct live_table *table, struct live_block *block) {
  const uint64_t mask = table->capacity - 1;
  uint64_t hole = (uint64_t)(block - table->items);
  for (uint64_t next = (hole + 1) & mask; table->items[next].address != 0; next = (next + 1) & mask) {
    const uint64_t home = live_home(table, table->items[next].address);
    if (((next - home) & mask) < ((next - hole) & mask)) continue;
    table->items[hole] = table->items[next];
    hole = next;
  }
  table->items[hole].address = 0;
  --table->count;
}

static int names_block(const struct trace_event *event) {
  return event->type == TRACE_ALLOC || event->type == TRACE_FREE || event->type == TRACE_USE ||
         event->type == TRACE_BLOCK_NAME;
}
static int possible(struct live_table *live, const struct trace_event *event) {
  return !names_block(event) || (live_find(live, event->address) != NULL) == (event->type != TRACE_ALLOC);
}

/* The block field has the event's place in the file. */
static int compare(const void *a, const void *b) {
  const struct trace_event *left = a, *right = b;
  if (left->time != right->time) return left->time < right->time ? -1 : 1;
  return left->block < right->block ? -1 : left->block > right->block;
}

/* Of several threads' events at about one time, takes one that is possible to `at`. */
static void choose(struct trace_event *events, uint64_t count, uint64_t at, struct live_table *live) {
  if (possible(live, &events[at])) return;
  for (uint64_t i = at + 1; i < count && events[i].time <= events[at].time + 10000; ++i) {
    if (events[i].address != events[at].address || events[i].thread == events[at].thread || !possible(live, &events[i]))
      continue;
    const struct trace_event found = events[i];
    memmove(&events[at + 1], &events[at], (i - at) * sizeof *events);
    events[at] = found;
    return;
  }
}

struct orderer {
  struct trace *trace;
  uint64_t capacity;
  struct live_table live;
  uint64_t presumed; /* frees that must be missing */
};

static const char *add_free(struct orderer *orderer, struct live_block *live, struct trace_event free_of) {
  free_of.type = TRACE_FREE;
  free_of.address = live->address;
  free_of.size = 0;
  free_of.block = live->block;
  live_remove(&orderer->live, live);
  return add_event(orderer->trace, &orderer->capacity, &free_of);
}

static const char *order_event(struct orderer *orderer, struct trace_event event) {
  struct trace *trace = orderer->trace;
  const char *wrong = NULL;
  event.block = TRACE_NO_BLOCK;
  if (event.type == TRACE_RESET)
    for (uint64_t i = 0; i < orderer->live.capacity && wrong == NULL;) {
      if (orderer->live.items[i].address == 0)
        ++i;
      else /* another block may move to this place */
        wrong = add_free(orderer, &orderer->live.items[i], event);
    }
  if (wrong != NULL || !names_block(&event))
    return wrong != NULL ? wrong : add_event(trace, &orderer->capacity, &event);
  struct live_block *live = live_find(&orderer->live, event.address);
  if (event.type == TRACE_ALLOC) {
    if (live != NULL && trace->ended && trace->lost == 0) return "an allocation is at the address of a live block";
    if (live != NULL) {
      ++orderer->presumed;
      wrong = add_free(orderer, live, event);
    }
    if (event.address == 0) wrong = "a block is at address 0";
    event.block = trace->block_count++;
    const struct live_block block = {event.address, event.size, event.block};
    if (wrong == NULL) wrong = live_add(&orderer->live, block);
    return wrong != NULL ? wrong : add_event(trace, &orderer->capacity, &event);
  }
  if (live == NULL) {
    ++trace->unknown;
    return NULL;
  }
  if (event.type == TRACE_FREE) return add_free(orderer, live, event);
  event.block = live->block;
  return add_event(trace, &orderer->capacity, &event);
}

/* Puts the events of all threads into one order, and numbers the blocks. */
static const char *order(struct trace *trace, const char *path) {
  struct trace_event *events = trace->events;
  const uint64_t count = trace->count;
  struct orderer orderer = {.trace = trace};
  trace->events = NULL;
  trace->count = 0;
  for (uint64_t i = 0; i < count; ++i) events[i].block = (uint32_t)i;
  if (count != 0) qsort(events, count, sizeof *events, compare);
  const char *wrong = NULL;
  for (uint64_t i = 0; i < count && wrong == NULL; ++i) {
    choose(events, count, i, &orderer.live);
    wrong = order_event(&orderer, events[i]);
  }
  if (wrong == NULL && (!trace->ended || trace->lost != 0)) {
    fprintf(stderr, "gmm: %s: the trace is incomplete: ", path);
    if (trace->ended)
      fprintf(stderr, "its end says that %" PRIu64 " events are missing", trace->lost);
    else
      fprintf(stderr, "its end is missing, as after a kill of the program");
    fprintf(stderr, "; gmm presumes %" PRIu64 " frees\n", orderer.presumed);
  }
  free(orderer.live.items);
  free(events);
  return wrong;
}

/* --- The whole --------------------------------------------------------------------------------------------------- */

static const char *count_requested(struct trace *trace) {
  uint64_t *sizes = calloc(trace->block_count + 1u, sizeof *sizes), requested = 0;
  const char *wrong = sizes == NULL ? no_memory : NULL;
  for (uint64_t i = 0; i < trace->count && wrong == NULL; ++i) {
    const struct trace_event *event = &trace->events[i];
    trace->blocks += names_block(event);
    if (event->type != TRACE_ALLOC && event->type != TRACE_FREE) continue;
    if (event->size > UINT64_MAX / 4 - requested) wrong = "the live blocks have more bytes than any machine";
    requested += event->size - sizes[event->block];
    sizes[event->block] = event->size;
    if (requested > trace->peak_requested) trace->peak_requested = requested;
  }
  free(sizes);
  return wrong;
}

int trace_read(const char *path, struct trace *out) {
  struct reader reader = {.file = gzopen(path, "rb")};
  struct trace *trace = &reader.trace;
  if (reader.file == NULL) {
    fprintf(stderr, "gmm: %s cannot be opened: %s\n", path, strerror(errno));
    return 0;
  }
  char magic[8] = {0};
  uint32_t ignored = 0;
  const int begun = gzread(reader.file, magic, sizeof magic);
  for (int i = begun; i-- > 0;) gzungetc((unsigned char)magic[i], reader.file);
  const int binary = memcmp(magic, "gmmtrace", sizeof magic) == 0;
  const char *wrong = stream_index(trace, 0, &ignored);
  if (wrong == NULL) wrong = tag_index(trace, GMM_TAG_DEFAULT, &ignored);
  if (wrong == NULL) wrong = binary ? read_blocks(&reader) : read_text(&reader);
  int code = Z_OK;
  gzerror(reader.file, &code);
  if (wrong == NULL && code != Z_OK && code != Z_STREAM_END) wrong = "the file is damaged or cut off here";
  if (wrong != NULL)
    fprintf(stderr, binary ? "gmm: %s: byte %" PRIu64 ": %s\n" : "gmm: %s:%" PRIu64 ": %s\n", path, reader.offset,
            wrong);
  int good = wrong == NULL;
  if (good) wrong = binary ? order(trace, path) : NULL;
  if (good && wrong == NULL) wrong = count_requested(trace);
  if (good && wrong == NULL && trace->blocks == 0) wrong = "the trace is empty";
  if (good && wrong != NULL) fprintf(stderr, "gmm: %s: %s\n", path, wrong);
  good = good && wrong == NULL;
  gzclose(reader.file);
  free(reader.live);
  free(reader.threads);
  *out = *trace;
  if (!good) trace_free(out);
  return good;
}

int trace_each(const char *path, int (*fn)(void *user, const char *path), void *user) {
  struct dirent **entries = NULL;
  const int count = scandir(path, &entries, NULL, alphasort);
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
  free(trace->events);
  free(trace->streams);
  free(trace->tags);
  free(trace->names);
  memset(trace, 0, sizeof *trace);
}
