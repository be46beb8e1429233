/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/device_text.h"
#include "cli/cli.h"

static void print_names(const char *title, uint32_t bits, const char *const *names, uint32_t count) {
  printf("  %-12s", title);
  if (bits == 0) printf(" none");
  for (uint32_t i = 0; i < count; ++i)
    if ((bits & (1u << i)) != 0 && names[i] != NULL) printf(" %s", names[i]);
  printf("\n");
}

static int print_device(gmm_context *context, gmm_device device) {
  static const char *const capabilities[] = {"pause",   "export-fd", "legacy-ipc", "concurrent-managed",
                                             "pin",     "pageable",  "fabric",     NULL,
                                             "dma-buf", "rdma",      "host-numa",  "host-page-tables"};
  gmm_device_info info = {.struct_size = sizeof info};
  const gmm_result result = gmm_device_query(context, device, &info);
  if (result < 0) return report("device", result);
  printf("device %d: %s\n", device, info.name);
  if ((info.capabilities & GMM_DEVICE_IS_CPU) != 0)
    printf("  not a GPU: figures measured here say nothing about a GPU\n");
  char uuid[UUID_TEXT_SIZE];
  uuid_text(info.uuid, uuid);
  printf("  uuid         %s\n  memory       %.1f MiB, %.1f MiB free\n", uuid, (double)info.total_memory / 1048576,
         (double)info.free_memory / 1048576);
  printf("  granularity  %.1f KiB\n", (double)info.granularity / 1024);
  print_names("kinds", info.kinds, kind_words, KIND_COUNT);
  print_names("can", info.capabilities & ~(uint32_t)GMM_DEVICE_IS_CPU, capabilities,
              sizeof capabilities / sizeof *capabilities);
  return 1;
}

/* Without a context: what keeps one from opening may be set here. */
static int print_environment(void) {
  static const struct {
    const char *name, *values, *fallback, *text;
  } rows[] = {
#define GMM_VARIABLE(id, name, reader, form, values, fallback, text) {name, values, fallback, text},
#include "base/environment.def"
#undef GMM_VARIABLE
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
    printf("%-26s %s\n    %s Default: %s.", rows[i].name, rows[i].values, rows[i].text, rows[i].fallback);
    const char *set = getenv(rows[i].name);
    if (set != NULL) printf(" Set: %s", set);
    printf("\n");
  }
  return fflush(stdout) == 0 ? EXIT_GOOD : EXIT_FAILED;
}

int command_info(const struct options *options) {
  if (options->environment) return print_environment();
  if (options->process != 0) return command_process(options);
  gmm_context *context = NULL;
  gmm_result result = gmm_context_create(&options->context, &context);
  if (result < 0) return report("context", result), EXIT_FAILED;
  gmm_context_info info = {.struct_size = sizeof info};
  result = gmm_context_query(context, &info);
  int good = result < 0 ? report("context", result) : 1;
  if (good) {
    printf("gmm %s, backend %s (%s), %u device%s\n", gmm_version_string(), info.backend_name, info.driver_version,
           info.device_count, info.device_count == 1 ? "" : "s");
    for (uint32_t i = 0; i < info.device_count && good; ++i) good = print_device(context, (gmm_device)i);
  }
  result = gmm_context_release(context);
  if (result < 0) good = report("release", result);
  return good ? EXIT_GOOD : EXIT_FAILED;
}
