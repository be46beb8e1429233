// SPDX-License-Identifier: Apache-2.0
// The tour in C: each step of the interface on each kind of memory, as one table.
// The exit code is 0 if every step succeeds. GMM_BACKEND=host or cuda chooses the backend.
#define _GNU_SOURCE
#include <gmm/gmm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BLOCK ((uint64_t)64 << 20)

static gmm_context *context;
static gmm_stream stream;
static gmm_tag tag;
static gmm_kind kind;
static unsigned char *block, *bytes;

// Returns the failure of a call from the function around it. A step that a kind lacks ends with NOT_SUPPORTED.
#define TRY(call)                      \
  do {                                 \
    gmm_result tried = (call);         \
    if (tried != GMM_OK) return tried; \
  } while (0)
// Fails the step.
#define MUST(holds)                                                                          \
  do {                                                                                       \
    if (!(holds)) return fprintf(stderr, "tour: not true: %s\n", #holds), GMM_ERROR_CORRUPT; \
  } while (0)

// --- bytes in and out: copies are ordered on the stream -----------------------------------------------------------

static gmm_result write_bytes(void *memory, unsigned char first) {
  for (uint64_t i = 0; i < BLOCK; ++i) bytes[i] = (unsigned char)(first + i * 31 + i / 4096);
  TRY(gmm_copy(context, memory, bytes, BLOCK, stream));
  return gmm_stream_synchronize(context, stream);
}

static gmm_result check_bytes(const void *memory, unsigned char first) {
  memset(bytes, 0, BLOCK);
  TRY(gmm_copy(context, bytes, memory, BLOCK, stream));
  TRY(gmm_stream_synchronize(context, stream));
  for (uint64_t i = 0; i < BLOCK; ++i) MUST(bytes[i] == (unsigned char)(first + i * 31 + i / 4096));
  return GMM_OK;
}

// --- the steps ----------------------------------------------------------------------------------------------------

static gmm_result step_alloc(void) {
  gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = kind, .tag = tag, .stream = stream};
  if (kind == GMM_KIND_VMM) desc.flags = GMM_ALLOC_DEDICATED;  // so that it can move alone
  void *memory;
  TRY(gmm_alloc(context, BLOCK, &desc, &memory));
  block = memory;
  return GMM_OK;
}

static gmm_result step_copy(void) {
  TRY(write_bytes(block, 0));
  return check_bytes(block, 0);
}

// gmm_query() describes the block around any address inside it. For any other address it answers UNKNOWN.
static gmm_result step_query(void) {
  gmm_pointer_info info = {.struct_size = sizeof info};
  TRY(gmm_query(context, block + BLOCK / 2, &info));
  MUST(info.kind == kind && info.base == block && info.size == BLOCK && info.tag == tag);
  MUST(info.state == GMM_STATE_ACTIVE);
  TRY(gmm_query(context, &info, &info));
  MUST(info.state == GMM_STATE_UNKNOWN);
  return GMM_OK;
}

// The program's own memory is page-locked, so that devices read and write it directly. Without a GPU it counts against
// the process's limit of locked memory, which is 8 MiB after a login.
static gmm_result step_pin(void) {
  TRY(gmm_pin(context, bytes, 1 << 20, NULL, NULL));
  TRY(check_bytes(block, 0));
  return gmm_unpin(context, bytes);
}

static gmm_result step_advise(void) {
  TRY(gmm_advise(context, block, 0, GMM_ADVISE_SET_PREFERRED_LOCATION, 0));
  return gmm_prefetch(context, block, 0, GMM_DEVICE_HOST, stream);
}

// The address stays; the pages go to the host and come back.
static gmm_result step_move(void) {
  gmm_move_desc desc = {.struct_size = sizeof desc, .stream = stream};
  TRY(gmm_move(context, block, GMM_DEVICE_HOST, &desc));
  TRY(check_bytes(block, 0));
  TRY(gmm_move(context, block, 0, &desc));
  return check_bytes(block, 0);
}

// A second process imports the block from a handle of 256 bytes, checks it and writes other bytes.
static gmm_result step_share(void) {
  gmm_ipc_handle handle;
  TRY(gmm_ipc_export(context, block, &handle));
  FILE *second = popen("/proc/$PPID/exe --peer", "w");
  MUST(second && fwrite(&handle, sizeof handle, 1, second) == 1 && pclose(second) == 0);
  return check_bytes(block, 1);
}

static gmm_result peer(void) {
  gmm_ipc_handle handle;
  void *memory;
  MUST(fread(&handle, sizeof handle, 1, stdin) == 1);
  TRY(gmm_ipc_import(context, &handle, NULL, &memory));
  TRY(check_bytes(memory, 0));
  TRY(write_bytes(memory, 1));
  return gmm_ipc_close(context, memory);
}

// The physical memory of the tag's blocks goes back to the driver. The addresses stay, and the tag keeps the contents.
static gmm_result step_pause(void) {
  gmm_pause_desc desc = {.struct_size = sizeof desc, .tags = &tag, .tag_count = 1};
  uint64_t paused, resumed;
  TRY(write_bytes(block, 2));
  TRY(gmm_pause(context, &desc, &paused));
  gmm_pointer_info info = {.struct_size = sizeof info};
  TRY(gmm_query(context, block, &info));
  MUST(info.state == GMM_STATE_PAUSED && paused >= BLOCK);
  TRY(gmm_resume(context, &desc, &resumed));
  MUST(resumed == paused);
  return check_bytes(block, 2);
}

// A tag has a limit. A failure says what was asked, what stood in the way, and what to do.
static gmm_result step_limit(void) {
  gmm_scope_desc scope = {.struct_size = sizeof scope, .flags = GMM_SCOPE_TAG, .tag = tag};
  TRY(gmm_limit_set(context, &scope, BLOCK));
  gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = kind, .tag = tag};
  void *memory;
  MUST(gmm_alloc(context, BLOCK, &desc, &memory) == GMM_ERROR_LIMIT_EXCEEDED);
  MUST(memory == NULL && strstr(gmm_last_error_message(), "tour"));
  return gmm_limit_set(context, &scope, GMM_NO_LIMIT);
}

static gmm_result step_free(void) {
  TRY(gmm_free(context, block, stream));
  gmm_scope_desc scope = {.struct_size = sizeof scope, .flags = GMM_SCOPE_TAG, .tag = tag};
  gmm_stats_info stats = {.struct_size = sizeof stats};
  TRY(gmm_stats_query(context, &scope, &stats));
  MUST(stats.live_blocks == 0);
  TRY(gmm_stream_synchronize(context, stream));
  return gmm_trim(context, NULL, NULL);
}

#define ON(one) (1u << GMM_KIND_##one)
static const struct {
  const char *name;
  gmm_result (*run)(void);
  unsigned kinds;  // those that have the step
} steps[] = {
    {"alloc", step_alloc, ~0u},
    {"copy in and out", step_copy, ~0u},
    {"query", step_query, ~0u},
    {"pin", step_pin, ~0u},
    {"advise, prefetch", step_advise, ON(MANAGED)},
    {"move", step_move, ON(VMM) | ON(MANAGED)},
    {"share", step_share, ON(DEVICE) | ON(VMM) | ON(HOST)},
    {"pause, resume", step_pause, ON(VMM)},
    {"limit", step_limit, ~0u},
    {"free", step_free, ~0u},
};
enum { STEPS = sizeof steps / sizeof *steps };

// Returns how many steps failed. A failed step ends the column of its kind.
static int table(unsigned kinds) {
  static const char *const names[] = {"", "DEVICE", "VMM", "HOST", "MANAGED"};
  const char *cells[STEPS][5];
  int failures = 0;
  for (kind = GMM_KIND_DEVICE; kind <= GMM_KIND_MANAGED; ++kind) {
    gmm_result result = GMM_OK;
    for (int i = 0; i < STEPS; ++i) {
      cells[i][kind] = "-";
      if (!(kinds & steps[i].kinds & (1u << kind)) || result != GMM_OK) continue;
      result = steps[i].run();
      if (result == GMM_ERROR_NOT_SUPPORTED) {  // this device lacks it
        result = GMM_OK;
        continue;
      }
      cells[i][kind] = result == GMM_OK ? "ok" : "FAILED";
      if (result == GMM_OK) continue;
      fprintf(stderr, "tour: %s, %s: %s: %s\n", names[kind], steps[i].name, gmm_result_name(result),
              gmm_last_error_message());
      ++failures;
    }
  }
  printf("\n%-18s%-10s%-10s%-10s%s\n", "step", names[1], names[2], names[3], names[4]);
  for (int i = 0; i < STEPS; ++i)
    printf("%-18s%-10s%-10s%-10s%s\n", steps[i].name, cells[i][1], cells[i][2], cells[i][3], cells[i][4]);
  return failures;
}

static gmm_result tour(int is_peer, int *failures) {
  gmm_context_info info = {.struct_size = sizeof info};
  gmm_device_info device = {.struct_size = sizeof device};
  gmm_tag_desc desc = {.struct_size = sizeof desc, .contents = GMM_CONTENTS_HOST};
  TRY(gmm_context_create(NULL, &context));
  TRY(gmm_context_query(context, &info));
  TRY(gmm_device_query(context, 0, &device));
  TRY(gmm_stream_create(context, NULL, &stream));
  TRY(gmm_tag_create(context, "tour", &desc, &tag));
  if (is_peer) {
    TRY(peer());
  } else {
    printf("gmm %s, backend %s (%s), device 0: %s\n", gmm_version_string(), info.backend_name, info.driver_version,
           device.name);
    if (device.capabilities & GMM_DEVICE_IS_CPU)
      printf("This is the host backend: it needs no GPU, and its figures say nothing about one.\n");
    *failures = table(device.kinds);
  }
  TRY(gmm_stream_destroy(context, stream));
  return gmm_context_release(context);
}

int main(int count, char **words) {
  int failures = 0;
  bytes = aligned_alloc(4096, BLOCK);
  if (!bytes) return 1;
  gmm_result result = tour(count == 2 && strcmp(words[1], "--peer") == 0, &failures);
  free(bytes);
  if (result != GMM_OK) fprintf(stderr, "tour: %s: %s\n", gmm_result_name(result), gmm_last_error_message());
  return result != GMM_OK || failures > 0;
}
