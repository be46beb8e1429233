/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/device_text.h"
#include "cli/cli.h"
#include "cli/player.h"

/* Prints the file's name without its folder and endings, cut to the column. */
static void print_name(const char *path) {
  const char *slash = strrchr(path, '/');
  const char *name = slash != NULL ? slash + 1 : path;
  const size_t length = strcspn(name, ".");
  printf("%-18.*s", (int)(length < 17 ? length : 17), name);
}

/* Once, by the context of the first trace. */
static int print_heading(gmm_context *context, const struct options *options) {
  static int is_printed;
  gmm_context_info info = {.struct_size = sizeof info};
  gmm_device_info device = {.struct_size = sizeof device};
  if (is_printed++) return 1;
  gmm_result result = gmm_context_query(context, &info);
  if (result >= 0) result = gmm_device_query(context, options->device, &device);
  if (result < 0) return report("info", result);
  printf("backend %s, device %d: %s, kind %s; first pass on empty caches, then again on warm ones\n\n",
         info.backend_name, options->device, device.name, kind_words[options->kind]);
  printf("%-18s%10s  %7s  %13s  %13s  %6s  %8s  %8s  %8s  %8s\n", "trace", "operations", "threads", "requested",
         "reserved", "ratio", "ns first", "ns again", "calls", "again");
  return 1;
}

/* Runs the trace once on empty caches and once on warm ones. */
static int replay(void *user, const char *path) {
  const struct options *options = user;
  struct trace trace;
  struct player player;
  if (!trace_read(path, &trace)) return 0;
  if (trace.blocks == 0) return fprintf(stderr, "gmm: %s: the trace has no block\n", path), trace_free(&trace), 0;
  const struct player_memory memory = {.kind = options->kind, .device = options->device};
  if (!player_open(&options->context, &memory, &trace, &player)) return trace_free(&trace), 0;

  const gmm_scope_desc scope = {.struct_size = sizeof scope, .flags = GMM_SCOPE_KIND, .kind = options->kind};
  gmm_stats_info first = {.struct_size = sizeof first}, whole = {.struct_size = sizeof whole}, again = whole;
  uint64_t cold = 0, warm = 0;
  int good = print_heading(player.context, options) && player_run(&player, UINT64_MAX, options->threads, &cold);
  gmm_result result = good ? gmm_stats_query(player.context, &scope, &first) : GMM_OK;
  if (result == GMM_OK && good) result = gmm_stats_query(player.context, NULL, &whole);
  if (result < 0) good = report("stats", result);
  good = good && player_clear(&player) && player_run(&player, UINT64_MAX, options->threads, &warm);
  result = good ? gmm_stats_query(player.context, NULL, &again) : GMM_OK;
  if (result < 0) good = report("stats", result);
  good = good && player_clear(&player);
  if (good) {
    const double mib = 1048576, count = (double)trace.blocks;
    print_name(path);
    printf("%10" PRIu64 "  %7u  %9.1f MiB  %9.1f MiB  %6.3f  %8.0f  %8.0f  %8" PRIu64 "  %8" PRIu64 "\n", trace.blocks,
           options->threads ? trace.thread_count : 1, (double)trace.peak_requested / mib,
           (double)first.peak_reserved_bytes / mib, (double)first.peak_reserved_bytes / (double)trace.peak_requested,
           (double)cold / count, (double)warm / count, whole.backend_calls, again.backend_calls - whole.backend_calls);
  }
  good = player_close(&player) && good;
  trace_free(&trace);
  return good;
}

int command_replay(const struct options *options) {
  struct options of_all = *options;
  if (of_all.kind == GMM_KIND_UNSPECIFIED) of_all.kind = GMM_KIND_VMM;
  if (of_all.device < 0) of_all.device = 0;
  int good = 1;
  for (int i = 0; i < options->file_count; ++i) good = trace_each(options->files[i], replay, &of_all) && good;
  return good ? EXIT_GOOD : EXIT_FAILED;
}

static int32_t write_text(void *user, const char *text, uint64_t size) {
  return fwrite(text, 1, size, user) == size ? 0 : 1;
}

int command_snapshot(const struct options *options) {
  if (options->process != 0 && options->view != NULL) {
    struct options moment = *options;
    moment.seconds = 0;
    return command_trace(&moment);
  }
  if (options->process != 0) return snapshot_process(options);
  if (options->view != NULL) {
    fprintf(stderr, "gmm: snapshot: --view is for a process, by --pid; `gmm trace` shows a trace\n");
    return EXIT_USAGE;
  }
  static uint64_t default_stream;
  static struct trace_tag default_tag = {GMM_TAG_DEFAULT, "default"};
  struct trace trace = {.streams = &default_stream, .stream_count = 1, .tags = &default_tag, .tag_count = 1};
  struct player player;
  if (options->file_count > 0 && !trace_read(options->files[0], &trace)) return EXIT_FAILED;
  const struct player_memory memory = {.kind = options->kind == GMM_KIND_UNSPECIFIED ? GMM_KIND_VMM : options->kind,
                                       .device = options->device < 0 ? 0 : options->device,
                                       .kind_of_trace = options->kind == GMM_KIND_UNSPECIFIED,
                                       .device_of_trace = options->device < 0,
                                       .tag_of_trace = 1};
  gmm_context_desc desc = options->context;
  desc.flags |= GMM_CONTEXT_NO_LEAK_REPORT; /* the snapshot shows them */
  for (uint64_t i = 0; i < trace.count && memory.device_of_trace; ++i)
    if (trace.events[i].device >= (gmm_device)desc.host_devices)
      desc.host_devices = (uint32_t)trace.events[i].device + 1;
  uint64_t nanoseconds = 0;
  int good = player_open(&desc, &memory, &trace, &player);
  if (good) {
    good = player_run(&player, options->operations, 0, &nanoseconds);
    gmm_snapshot *snapshot = NULL;
    gmm_result result = good ? gmm_snapshot_create(player.context, NULL, &snapshot) : GMM_OK;
    if (snapshot != NULL) result = gmm_snapshot_write(snapshot, write_text, stdout);
    if (result < 0) good = report("snapshot", result);
    if (gmm_snapshot_destroy(snapshot) < 0) good = report("snapshot", GMM_ERROR_INVALID_HANDLE);
    putchar('\n');
    good = player_close(&player) && good;
  }
  if (options->file_count > 0) trace_free(&trace);
  return good && fflush(stdout) == 0 ? EXIT_GOOD : EXIT_FAILED;
}
