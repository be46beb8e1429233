/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/player.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cli/cli.h"

uint64_t player_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* The tag of a number in the trace: of the name that it tells, or of the number where it tells none. */
static gmm_result find_tag(gmm_context *context, const struct trace *trace, gmm_tag number, gmm_tag *out) {
  char name[64];
  snprintf(name, sizeof name, number == GMM_TAG_DEFAULT ? "default" : "tag %u", number);
  for (uint32_t i = 0; i < trace->tag_count; ++i)
    if (trace->tags[i].tag == number) snprintf(name, sizeof name, "%s", trace->tags[i].text);
  return gmm_tag_create(context, name, NULL, out);
}

static int make_places(struct player *player, const struct player_memory *memory, const struct trace *trace) {
  for (uint32_t i = 0; i < trace->place_count; ++i) {
    struct trace_place *place = &player->places[i];
    *place = trace->places[i];
    const int told = place->kind != GMM_KIND_UNSPECIFIED;
    if (!told || !memory->kind_of_trace) place->kind = memory->kind;
    if (!told || !memory->device_of_trace) place->device = memory->device;
    if (!told || !memory->tag_of_trace) {
      place->tag = GMM_TAG_DEFAULT;
      continue;
    }
    const gmm_result result = find_tag(player->context, trace, place->tag, &place->tag);
    if (result < 0) return report("tag", result);
  }
  return 1;
}

/* A stream belongs to a device, which the trace does not tell: that of the first block which is allocated on it. */
static int make_streams(struct player *player, const struct player_memory *memory, const struct trace *trace) {
  gmm_device *devices = malloc(trace->stream_count * sizeof *devices);
  if (devices == NULL) return fprintf(stderr, "gmm: there is no memory for the table of streams\n"), 0;
  for (uint32_t i = 0; i < trace->stream_count; ++i) devices[i] = memory->device;
  for (uint64_t i = trace->count; i-- > 0 && memory->device_of_trace;)
    if (trace->operations[i].what == OPERATION_ALLOC)
      devices[trace->operations[i].stream] = player->places[trace->operations[i].place].device;
  int good = 1;
  for (uint32_t i = 1; i < trace->stream_count && good; ++i) {
    const gmm_stream_desc stream = {.struct_size = sizeof stream, .device = devices[i]};
    const gmm_result result = gmm_stream_create(player->context, &stream, &player->streams[i]);
    if (result < 0) good = report("stream", result);
  }
  free(devices);
  return good;
}

int player_open(const gmm_context_desc *desc, const struct player_memory *memory, const struct trace *trace,
                struct player *out) {
  struct player player = {.desc = {.struct_size = sizeof player.desc}, .names = trace->names};
  const gmm_result result = gmm_context_create(desc, &player.context);
  if (result < 0) return report("context", result);
  player.blocks = calloc(trace->block_count, sizeof *player.blocks);
  player.streams = calloc(trace->stream_count, sizeof *player.streams);
  player.places = calloc(trace->place_count, sizeof *player.places);
  int good = player.blocks != NULL && player.streams != NULL && player.places != NULL;
  if (!good) fprintf(stderr, "gmm: there is no memory for the table of %u blocks\n", trace->block_count);
  good = good && make_places(&player, memory, trace) && make_streams(&player, memory, trace);
  *out = player;
  return good || (player_close(out, trace), 0);
}

gmm_result player_step(struct player *player, gmm_alloc_desc *desc, const struct operation *operation) {
  void **block = &player->blocks[operation->block];
  if (operation->what == OPERATION_NAME) {
    const char *name = player->names[operation->stream].text;
    return gmm_name(player->context, *block, name[0] == '\0' ? NULL : name);
  }
  gmm_stream stream = player->streams[operation->stream];
  if (operation->what == OPERATION_USE) return gmm_record_use(player->context, *block, stream);
  if (operation->what == OPERATION_FREE) {
    void *memory = *block;
    *block = NULL;
    return gmm_free(player->context, memory, stream);
  }
  const struct trace_place *place = &player->places[operation->place];
  desc->kind = place->kind;
  desc->device = place->device;
  desc->tag = place->tag;
  desc->stream = stream;
  /* The trace may have an alignment that this kind does not offer. */
  desc->alignment =
      operation->log2_alignment <= 21 ? (uint64_t)(operation->log2_alignment != 0) << operation->log2_alignment : 0;
  return gmm_alloc(player->context, operation->size, desc, block);
}

int player_report(const struct trace *trace, const struct operation *operation, gmm_result result) {
  static const char *const names[] = {"alloc", "free", "use", "name"};
  fprintf(stderr, "gmm: operation %llu of the trace:\n", (unsigned long long)(operation - trace->operations) + 1);
  return report(names[operation->what], result);
}

int player_run(struct player *player, const struct trace *trace, uint64_t count, uint64_t *nanoseconds) {
  gmm_alloc_desc desc = player->desc;
  const uint64_t start = player_now();
  for (uint64_t i = 0; i < count && i < trace->count; ++i) {
    const gmm_result result = player_step(player, &desc, &trace->operations[i]);
    if (result < 0) return player_report(trace, &trace->operations[i], result);
  }
  *nanoseconds += player_now() - start;
  return 1;
}

int player_clear(struct player *player, const struct trace *trace) {
  for (uint32_t i = 0; i < trace->block_count; ++i) {
    const gmm_result result = gmm_free(player->context, player->blocks[i], GMM_STREAM_DEFAULT);
    if (result < 0) return report("free", result);
    player->blocks[i] = NULL;
  }
  return 1;
}

int player_close(struct player *player, const struct trace *trace) {
  int good = 1;
  for (uint32_t i = 1; i < trace->stream_count && player->streams != NULL; ++i) {
    if (player->streams[i] == NULL) continue;
    const gmm_result result = gmm_stream_destroy(player->context, player->streams[i]);
    if (result < 0) good = report("stream", result);
  }
  free(player->streams);
  free(player->blocks);
  free(player->places);
  const gmm_result result = gmm_context_release(player->context);
  return result < 0 ? report("release", result) : good;
}
