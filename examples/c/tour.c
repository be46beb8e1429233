// SPDX-License-Identifier: Apache-2.0
// The tour in C: every step of the interface on every kind of memory, as one table, then a replay of real traces.
// ../README.md says what each step must hold; the same program stands in four more languages beside it.
#define _GNU_SOURCE
#include <gmm/gmm.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "replay.h"

#define MIB ((uint64_t)1024 * 1024)
#define BLOCK (64 * MIB)

enum { ALLOC, WRITE, QUERY, INTERIOR, FOREIGN, PIN, ADVISE, PREFETCH, MOVE, SHARE, PAUSE, RESUME, FREE, STEPS };
static const char *const step_names[STEPS] = {"alloc", "write and read", "query",    "query interior", "query foreign",
                                              "pin",   "advise",         "prefetch", "move",           "share",
                                              "pause", "resume",         "free"};
static const char *const kind_names[] = {"", "DEVICE", "VMM", "HOST", "MANAGED"};

static gmm_context *context;
static gmm_device_info device;
static gmm_tag tag;
static gmm_stream stream;
static gmm_kind kind;
static uint8_t *block, *buffer;
static char message[600];  // why the step that runs failed

// --- outcomes -------------------------------------------------------------------------------------------------
typedef enum { OK, NOT_THERE, FAILED } outcome;
static char cells[STEPS][5][32], figure[32];
static char footnotes[32][640], failures[64][700];
static unsigned footnote_count, failure_count;

static outcome failed(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return FAILED;
}

static outcome not_there(const char *why) {
  snprintf(message, sizeof message, "%s", why);
  return NOT_THERE;
}

// The outcome of a step by the result of a call that failed.
static outcome came_to(const char *call, gmm_result result) {
  if (result == GMM_ERROR_NOT_SUPPORTED) return not_there(gmm_last_error_message());
  return failed("%s: %s: %s", call, gmm_result_name(result), gmm_last_error_message());
}
#define TRY(call)                                      \
  do {                                                 \
    gmm_result tried = (call);                         \
    if (tried != GMM_OK) return came_to(#call, tried); \
  } while (0)

// --- bytes in and out -------------------------------------------------------------------------------------------
static uint8_t pattern(uint64_t i, unsigned complement) { return (uint8_t)(((i * 31 + i / 4096) ^ complement) & 255); }

static outcome write_bytes(void *memory, unsigned complement) {
  for (uint64_t i = 0; i < BLOCK; ++i) buffer[i] = pattern(i, complement);
  TRY(gmm_copy(context, memory, buffer, BLOCK, stream));
  TRY(gmm_stream_synchronize(context, stream));
  return OK;
}

static outcome check_bytes(const void *memory, unsigned complement) {
  memset(buffer, 0, BLOCK);
  TRY(gmm_copy(context, buffer, memory, BLOCK, stream));
  TRY(gmm_stream_synchronize(context, stream));
  for (uint64_t i = 0; i < BLOCK; ++i)
    if (buffer[i] != pattern(i, complement))
      return failed("byte %" PRIu64 " is %u, expected %u", i, buffer[i], pattern(i, complement));
  return OK;
}

// The bytes that came back since `before`: no longer resident in the process, or free on a GPU.
static uint64_t memory_gone(uint64_t before) {
  uint64_t now = 0;
  if (device.capabilities & GMM_DEVICE_IS_CPU) {
    unsigned long long total = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL || fscanf(file, "%llu %llu", &total, &resident) != 2) resident = 0;
    if (file != NULL) fclose(file);
    now = UINT64_MAX / 2 - resident * (uint64_t)sysconf(_SC_PAGESIZE);
  } else {
    gmm_device_info info = {.struct_size = sizeof info};
    if (gmm_device_query(context, 0, &info) == GMM_OK) now = info.free_memory;
  }
  return now > before ? now - before : 0;
}

// --- the steps ----------------------------------------------------------------------------------------------------
static outcome step_alloc(void) {
  gmm_alloc_desc desc = {.struct_size = sizeof desc,
                         .kind = kind,
                         .tag = tag,
                         .stream = stream,
                         .flags = kind == GMM_KIND_VMM ? GMM_ALLOC_DEDICATED : 0};
  void *memory = NULL;
  TRY(gmm_alloc(context, BLOCK, &desc, &memory));
  block = memory;
  return (uintptr_t)block % 256 == 0 ? OK : failed("%p is not a multiple of 256", memory);
}

static outcome step_write(void) {
  outcome wrote = write_bytes(block, 0);
  return wrote == OK ? check_bytes(block, 0) : wrote;
}

static outcome look_at(const void *address) {
  gmm_pointer_info info = {.struct_size = sizeof info};
  TRY(gmm_query(context, address, &info));
  if (info.kind != kind || info.base != block || info.size != BLOCK || info.device != 0 || info.tag != tag ||
      info.state != GMM_STATE_ACTIVE)
    return failed("kind %u, base %p, size %" PRIu64 ", device %d, tag %u, state %u", info.kind, info.base, info.size,
                  info.device, info.tag, info.state);
  return OK;
}
static outcome step_query(void) { return look_at(block); }
static outcome step_interior(void) { return look_at(block + BLOCK / 2); }

static outcome step_foreign(void) {
  gmm_pointer_info info = {.struct_size = sizeof info};
  TRY(gmm_query(context, &info, &info));
  return info.state == GMM_STATE_UNKNOWN ? OK : failed("a variable of the program has state %u", info.state);
}

static outcome step_pin(void) {
  if ((device.capabilities & GMM_DEVICE_CAN_PIN) == 0) return not_there("the device cannot pin");
  TRY(gmm_pin(context, buffer, MIB, NULL, NULL));
  for (uint64_t i = 0; i < MIB; ++i) buffer[i] = pattern(i, 0xff);
  TRY(gmm_copy(context, block, buffer, MIB, stream));
  TRY(gmm_stream_synchronize(context, stream));
  memset(buffer, 0, MIB);
  TRY(gmm_copy(context, buffer, block, MIB, stream));
  TRY(gmm_stream_synchronize(context, stream));
  TRY(gmm_unpin(context, buffer));
  for (uint64_t i = 0; i < MIB; ++i)
    if (buffer[i] != pattern(i, 0xff)) return failed("byte %" PRIu64 " is %u", i, buffer[i]);
  return write_bytes(block, 0);
}

static const char only_managed[] = "a hint about pages is for MANAGED memory";

static outcome step_advise(void) {
  if (kind != GMM_KIND_MANAGED) return not_there(only_managed);
  TRY(gmm_advise(context, block, 0, GMM_ADVISE_SET_PREFERRED_LOCATION, 0));
  TRY(gmm_advise(context, block, 0, GMM_ADVISE_UNSET_PREFERRED_LOCATION, 0));
  return check_bytes(block, 0);
}

static outcome step_prefetch(void) {
  if (kind != GMM_KIND_MANAGED) return not_there(only_managed);
  TRY(gmm_prefetch(context, block, 0, GMM_DEVICE_HOST, stream));
  TRY(gmm_prefetch(context, block, 0, 0, stream));
  TRY(gmm_stream_synchronize(context, stream));
  return check_bytes(block, 0);
}

static outcome step_move(void) {
  if (kind == GMM_KIND_DEVICE || kind == GMM_KIND_HOST)
    return not_there("the driver cannot move DEVICE and HOST memory: use VMM or MANAGED");
  gmm_move_desc desc = {.struct_size = sizeof desc, .stream = stream};
  TRY(gmm_move(context, block, GMM_DEVICE_HOST, &desc));
  outcome there = check_bytes(block, 0);
  if (there != OK) return there;
  TRY(gmm_move(context, block, 0, &desc));
  there = check_bytes(block, 0);
  return there == OK ? look_at(block) : there;
}

static outcome step_share(void) {
  if (kind == GMM_KIND_MANAGED)
    return not_there("the driver has no way to share MANAGED memory: use DEVICE, VMM or HOST");
  gmm_ipc_handle handle;
  TRY(gmm_ipc_export(context, block, &handle));
  int ends[2];
  if (pipe(ends) != 0) return failed("no pipe");
  fflush(stdout);
  pid_t second = fork();
  if (second == 0) {
    char size[32];
    snprintf(size, sizeof size, "%" PRIu64, (uint64_t)BLOCK);
    dup2(ends[0], 0);
    close(ends[0]);
    close(ends[1]);
    execl("/proc/self/exe", "tour", "--peer", size, (char *)NULL);
    _exit(127);
  }
  close(ends[0]);
  bool sent = write(ends[1], &handle, sizeof handle) == (ssize_t)sizeof handle;
  close(ends[1]);
  int status = 0;
  if (second < 0 || waitpid(second, &status, 0) != second || !sent) return failed("the second process did not start");
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return failed("the second process ended with status 0x%x; its message stands above", status);
  outcome changed = check_bytes(block, 0xff);
  return changed == OK ? write_bytes(block, 0) : changed;
}

static const char only_vmm[] = "only VMM memory can give its pages back and keep its address";

static outcome step_pause(void) {
  if (kind != GMM_KIND_VMM) return not_there(only_vmm);
  if ((device.capabilities & GMM_DEVICE_CAN_PAUSE) == 0) return not_there("the device cannot pause");
  gmm_pause_desc desc = {.struct_size = sizeof desc, .tags = &tag, .tag_count = 1};
  TRY(gmm_trim(context, NULL, NULL));
  uint64_t before = memory_gone(0);
  TRY(gmm_pause(context, &desc, NULL));
  TRY(gmm_trim(context, NULL, NULL)); /* what the copies went through stays for the next pause otherwise */
  uint64_t gone = memory_gone(before);
  gmm_pointer_info info = {.struct_size = sizeof info};
  TRY(gmm_query(context, block, &info));
  if (info.state != GMM_STATE_PAUSED) return failed("after the pause the state is %u", info.state);
  if (gone < BLOCK / 4 * 3) return failed("only %.1f MiB came back to the system", (double)gone / MIB);
  snprintf(figure, sizeof figure, "%.1f MiB", (double)gone / MIB);
  return OK;
}

static outcome step_resume(void) {
  if (kind != GMM_KIND_VMM) return not_there(only_vmm);
  if ((device.capabilities & GMM_DEVICE_CAN_PAUSE) == 0) return not_there("the device cannot pause");
  gmm_pause_desc desc = {.struct_size = sizeof desc, .tags = &tag, .tag_count = 1};
  uint64_t bytes = 0;
  TRY(gmm_resume(context, &desc, &bytes));
  outcome same = look_at(block);
  if (same == OK) same = check_bytes(block, 0);
  snprintf(figure, sizeof figure, "%.1f MiB", (double)bytes / MIB);
  return same;
}

static outcome step_free(void) {
  TRY(gmm_free(context, block, stream));
  gmm_pointer_info info = {.struct_size = sizeof info};
  TRY(gmm_query(context, block, &info));
  if (info.state != GMM_STATE_FREE && info.state != GMM_STATE_UNKNOWN)
    return failed("after the free the state is %u", info.state);
  gmm_scope_desc scope = {.struct_size = sizeof scope, .flags = GMM_SCOPE_TAG, .tag = tag};
  gmm_stats_info statistics = {.struct_size = sizeof statistics};
  TRY(gmm_stats_query(context, &scope, &statistics));
  if (statistics.live_blocks != 0) return failed("%" PRIu64 " blocks are live still", statistics.live_blocks);
  TRY(gmm_stream_synchronize(context, stream));
  TRY(gmm_trim(context, NULL, NULL));
  return OK;
}

static outcome (*const steps[STEPS])(void) = {step_alloc, step_write,  step_query,    step_interior, step_foreign,
                                              step_pin,   step_advise, step_prefetch, step_move,     step_share,
                                              step_pause, step_resume, step_free};
// What a step needs: bytes for those that compare them, a pause for a resume, a block for all.
static int needs(int step) {
  return step == ALLOC                                                                                         ? -1
         : step == RESUME                                                                                      ? PAUSE
         : step == MOVE || step == SHARE || step == PAUSE || step == ADVISE || step == PREFETCH || step == PIN ? WRITE
                                                                                                               : ALLOC;
}

// --- the second process ---------------------------------------------------------------------------------------------
static outcome peer(void) {
  gmm_ipc_handle handle;
  if (fread(&handle, 1, sizeof handle, stdin) != sizeof handle) return failed("no handle on stdin");
  void *memory = NULL;
  TRY(gmm_ipc_import(context, &handle, NULL, &memory));
  outcome same = check_bytes(memory, 0);
  if (same == OK) same = write_bytes(memory, 0xff);
  TRY(gmm_ipc_close(context, memory));
  return same;
}

// --- the whole ---------------------------------------------------------------------------------------------------
static void run_step(int step) {
  char *cell = cells[step][kind];
  int before = needs(step);
  outcome result = OK;
  figure[0] = 0;
  if (before >= 0 && strcmp(cells[before][kind], "FAILED") == 0)
    result = failed("not reached");
  else
    result = steps[step]();
  if (result == OK) {
    snprintf(cell, 32, "%s", figure[0] ? figure : "ok");
  } else if (result == NOT_THERE) {
    unsigned note = 0;
    while (note < footnote_count && strcmp(footnotes[note], message) != 0) ++note;
    if (note == footnote_count && footnote_count < 31)
      snprintf(footnotes[footnote_count++], sizeof footnotes[0], "%s", message);
    snprintf(cell, 32, "- [%u]", note + 1);
  } else {
    snprintf(cell, 32, "FAILED");
    if (failure_count < 64)
      snprintf(failures[failure_count], sizeof failures[0], "FAILED %s %s: %s", kind_names[kind], step_names[step],
               message);
    ++failure_count;
  }
}

static void tour(void) {
  for (kind = GMM_KIND_DEVICE; kind <= GMM_KIND_MANAGED; ++kind) {
    if ((device.kinds & (1u << kind)) == 0) continue;
    for (int step = 0; step < STEPS; ++step) run_step(step);
  }
  printf("\n%-17s ", "step");
  for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_MANAGED; ++k)
    if (device.kinds & (1u << k)) printf("%-13s ", kind_names[k]);
  printf("\n");
  for (int step = 0; step < STEPS; ++step) {
    printf("%-17s ", step_names[step]);
    for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_MANAGED; ++k)
      if (device.kinds & (1u << k)) printf("%-13s ", cells[step][k]);
    printf("\n");
  }
  printf("\n");
  for (unsigned i = 0; i < footnote_count; ++i) printf("[%u] %s\n", i + 1, footnotes[i]);
  for (unsigned i = 0; i < failure_count && i < 64; ++i) printf("%s\n", failures[i]);
}

static bool open_all(void) {
  gmm_result result = gmm_context_create(NULL, &context);
  device.struct_size = sizeof device;
  if (result == GMM_OK) result = gmm_device_query(context, 0, &device);
  if (result == GMM_OK) result = gmm_stream_create(context, NULL, &stream);
  // On the host backend the contents go to a file: a copy in host memory would be as large as what goes back.
  gmm_tag_desc desc = {.struct_size = sizeof desc,
                       .contents = device.capabilities & GMM_DEVICE_IS_CPU ? GMM_CONTENTS_FILE : GMM_CONTENTS_HOST};
  if (result == GMM_OK) result = gmm_tag_create(context, "tour", &desc, &tag);
  buffer = aligned_alloc(4096, BLOCK);
  if (result != GMM_OK) fprintf(stderr, "tour: %s: %s\n", gmm_result_name(result), gmm_last_error_message());
  return result == GMM_OK && buffer != NULL;
}

int main(int count, char **words) {
  bool second = count == 3 && strcmp(words[1], "--peer") == 0 && strtoull(words[2], NULL, 10) == BLOCK;
  if (!second && count > 1 && words[1][0] == '-') {
    fprintf(stderr, "use: tour [TRACE.gz ...]\n");
    return 2;
  }
  if (!open_all()) return 1;
  if (second) {
    if (peer() != OK) {
      fprintf(stderr, "second process: %s\n", message);
      return 1;
    }
  } else {
    gmm_context_info info = {.struct_size = sizeof info};
    gmm_result result = gmm_context_query(context, &info);
    if (result != GMM_OK) return 1;
    printf("gmm %s, C11, backend %s (%s), device 0: %s\n", gmm_version_string(), info.backend_name, info.driver_version,
           device.name);
    if (device.capabilities & GMM_DEVICE_IS_CPU)
      printf("This is the host backend: it needs no GPU, and its figures say nothing about one.\n");
    tour();
  }
  gmm_result result = gmm_stream_destroy(context, stream);
  if (result == GMM_OK) result = gmm_context_release(context);
  if (result != GMM_OK) {
    fprintf(stderr, "tour: %s: %s\n", gmm_result_name(result), gmm_last_error_message());
    return 1;
  }
  free(buffer);
  if (second) return 0;
  if (count > 1)
    printf("\nReplay of real PyTorch traces, kind VMM\n%-17s %-13s %-13s %-13s %-7s %-13s %s\n", "trace", "operations",
           "requested", "reserved", "ratio", "ns/op first", "ns/op again");
  for (int i = 1; i < count; ++i) {
    if (replay_trace(words[i], message, sizeof message)) continue;
    printf("FAILED replay: %s\n", message);
    ++failure_count;
  }
  if (failure_count == 0)
    printf("\ntour: ok\n");
  else
    printf("\ntour: %u steps failed\n", failure_count);
  return failure_count > 0 ? 1 : 0;
}
