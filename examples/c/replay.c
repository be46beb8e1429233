// SPDX-License-Identifier: Apache-2.0
// Replays an allocation trace and prints one line of the tour's second table.
#define _GNU_SOURCE
#include "replay.h"

#include <gmm/gmm.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB ((uint64_t)1024 * 1024)

static bool failed(char *message, size_t room, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, room, format, arguments);
  va_end(arguments);
  return false;
}

#define TRY(call)                                                                                     \
  do {                                                                                                \
    gmm_result tried = (call);                                                                        \
    if (tried != GMM_OK)                                                                              \
      return failed(message, room_for_message, "%s: %s: %s: %s", path, #call, gmm_result_name(tried), \
                    gmm_last_error_message());                                                        \
  } while (0)

typedef struct operation {
  uint64_t id, size;
  unsigned stream;
  bool allocates;
} operation;

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static gmm_result run_trace(gmm_context *with, const operation *operations, uint64_t count, void **live, uint64_t ids,
                            gmm_stream *streams) {
  gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = GMM_KIND_VMM};
  for (uint64_t i = 0; i < count; ++i) {
    const operation *o = &operations[i];
    gmm_result result = GMM_OK;
    if (o->allocates) {
      desc.stream = streams[o->stream];
      result = gmm_alloc(with, o->size, &desc, &live[o->id]);
    } else {
      result = gmm_free(with, live[o->id], streams[o->stream]);
      live[o->id] = NULL;
    }
    if (result != GMM_OK) return result;
  }
  for (uint64_t id = 0; id < ids; ++id)
    if (live[id] != NULL && gmm_free(with, live[id], GMM_STREAM_DEFAULT) != GMM_OK) return GMM_ERROR_UNKNOWN_POINTER;
  return GMM_OK;
}

bool replay_trace(const char *path, char *message, size_t room_for_message) {
  const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
  char command[1024];
  if (strchr(path, '\'') != NULL || access(path, R_OK) != 0)
    return failed(message, room_for_message, "%s: cannot be read", path);
  snprintf(command, sizeof command, "gzip -dcf < '%s'", path);
  FILE *file = popen(command, "r");
  if (file == NULL) return failed(message, room_for_message, "%s: gzip cannot be started", path);
  uint64_t count = 0, room = 0, ids = 0, requested = 0, peak = 0, numbers[64] = {0};
  unsigned stream_count = 1;
  operation *operations = NULL;
  char line[256];
  while (fgets(line, sizeof line, file) != NULL) {
    operation o = {0};
    uint64_t number = 0;
    if (sscanf(line, "a %" SCNu64 " %" SCNu64 " %" SCNu64, &o.id, &o.size, &number) == 3)
      o.allocates = true;
    else if (sscanf(line, "f %" SCNu64 " %" SCNu64, &o.id, &number) != 2)
      return failed(message, room_for_message, "%s: line %" PRIu64 " is not of a trace: %.60s", path, count + 1, line);
    while (o.stream < stream_count && numbers[o.stream] != number) ++o.stream;
    if (o.stream == stream_count) {
      if (stream_count == 64) return failed(message, room_for_message, "%s: more than 64 streams", path);
      numbers[stream_count++] = number;
    }
    if (o.id >= ids) ids = o.id + 1;
    if (count == room) {
      room = room ? room * 2 : 4096;
      operations = realloc(operations, room * sizeof *operations);
      if (operations == NULL) return failed(message, room_for_message, "%s: out of memory", path);
    }
    operations[count++] = o;
  }
  if (pclose(file) != 0 || count == 0) return failed(message, room_for_message, "%s: cannot be unpacked", path);
  uint64_t *sizes = calloc(ids, sizeof *sizes);
  void **live = calloc(ids, sizeof *live);
  if (sizes == NULL || live == NULL) return failed(message, room_for_message, "%s: out of memory", path);
  for (uint64_t i = 0; i < count; ++i) {
    if (operations[i].allocates)
      requested += sizes[operations[i].id] = operations[i].size;
    else
      requested -= sizes[operations[i].id];
    if (requested > peak) peak = requested;
  }
  gmm_context_desc desc = {.struct_size = sizeof desc, .host_memory = 16 * 1024 * MIB};
  gmm_context *own = NULL;
  TRY(gmm_context_create(&desc, &own));
  gmm_stream streams[64] = {0};
  for (unsigned i = 1; i < stream_count; ++i) TRY(gmm_stream_create(own, NULL, &streams[i]));
  double start = now();
  TRY(run_trace(own, operations, count, live, ids, streams));
  double first = now() - start;
  gmm_scope_desc scope = {.struct_size = sizeof scope, .flags = GMM_SCOPE_KIND, .kind = GMM_KIND_VMM};
  gmm_stats_info statistics = {.struct_size = sizeof statistics};
  TRY(gmm_stats_query(own, &scope, &statistics));
  start = now();
  TRY(run_trace(own, operations, count, live, ids, streams));
  double again = now() - start;
  for (unsigned i = 1; i < stream_count; ++i) TRY(gmm_stream_destroy(own, streams[i]));
  TRY(gmm_context_release(own));
  char left[32], right[32], short_name[32];
  snprintf(short_name, sizeof short_name, "%.*s", (int)strcspn(name, "."), name);
  snprintf(left, sizeof left, "%.1f MiB", (double)peak / MIB);
  snprintf(right, sizeof right, "%.1f MiB", (double)statistics.peak_reserved_bytes / MIB);
  printf("%-17s %-13" PRIu64 " %-13s %-13s %-7.3f %-13.0f %.0f\n", short_name, count, left, right,
         (double)statistics.peak_reserved_bytes / (double)peak, first / (double)count * 1e9,
         again / (double)count * 1e9);
  free(operations);
  free(sizes);
  free(live);
  return true;
}
