// SPDX-License-Identifier: Apache-2.0
// Faults of pause and resume that a real device survives. PASS or FAIL a line; not 0 when one failed.
//   1. out of memory at a resume: a second process holds the device's memory; when it has ended a retry works, contents
//   intact
//   2. work in flight on non-blocking streams while memory goes
//   3. an importer is killed while the exporter pauses
//   4. host memory runs out: the arena and pageable memory may not grow
//
// Rehearsal on the fake driver of the tests: FAKE_CUDA_MEMORY is an account of each process, so the first is skipped
// there. Second processes are started before this one has opened a device, and wait.
#include <dlfcn.h>

#include "../support/gmm_test.h"
#include "../support/second_process.h"

#define BLOCK (256 * MIB)
static int failed;
static gmm_tag tag;

static void verdict(const char *name, double start) {
  const int wrong = atomic_load(&check_state.failures);
  printf("%s %s (%.1f s)\n", wrong == 0 ? "PASS" : "FAIL", name, now_s() - start);
  fflush(stdout);
  failed += wrong != 0;
  atomic_store(&check_state.failures, 0);
}

// --- the driver, without its headers ---------------------------------------------------------------------------------
static struct {
  int (*cuInit)(unsigned);
  int (*cuDeviceGet)(int *, int);
  int (*cuDevicePrimaryCtxRetain)(void **, int);
  int (*cuCtxSetCurrent)(void *);
  int (*cuMemGetInfo)(size_t *, size_t *);
  int (*cuMemAlloc)(uint64_t *, size_t);
  int (*cuStreamCreate)(void **, unsigned);
  int (*cuStreamDestroy)(void *);
  int (*cuStreamSynchronize)(void *);
  int (*cuMemsetD8Async)(uint64_t, unsigned char, size_t, void *);
} cu;
static bool open_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == NULL) return false;
  *(void **)&cu.cuInit = dlsym(library, "cuInit");
  *(void **)&cu.cuDeviceGet = dlsym(library, "cuDeviceGet");
  *(void **)&cu.cuDevicePrimaryCtxRetain = dlsym(library, "cuDevicePrimaryCtxRetain");
  *(void **)&cu.cuCtxSetCurrent = dlsym(library, "cuCtxSetCurrent");
  *(void **)&cu.cuMemGetInfo = dlsym(library, "cuMemGetInfo_v2");
  *(void **)&cu.cuMemAlloc = dlsym(library, "cuMemAlloc_v2");
  *(void **)&cu.cuStreamCreate = dlsym(library, "cuStreamCreate");
  *(void **)&cu.cuStreamDestroy = dlsym(library, "cuStreamDestroy_v2");
  *(void **)&cu.cuStreamSynchronize = dlsym(library, "cuStreamSynchronize");
  *(void **)&cu.cuMemsetD8Async = dlsym(library, "cuMemsetD8Async");
  void *primary = NULL;
  int handle = 0;
  return cu.cuMemGetInfo != NULL && cu.cuMemsetD8Async != NULL && cu.cuInit(0) == 0 &&
         cu.cuDeviceGet(&handle, 0) == 0 && cu.cuDevicePrimaryCtxRetain(&primary, handle) == 0 &&
         cu.cuCtxSetCurrent(primary) == 0;
}
static bool is_fake(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  return library != NULL && dlsym(library, "fake_cuda_live") != NULL;
}

// --- second processes ------------------------------------------------------------------------------------------------
// Takes plain device memory until less than 64 MiB are free; never asks for more than there is.
static int hold_memory(void) {
  char go;
  if (!receive_bytes(0, &go, 1) || !open_driver()) return 10;
  uint64_t held = 0;
  for (int i = 0; i < 4000; ++i) {
    size_t free_bytes = 0, total = 0;
    if (cu.cuMemGetInfo(&free_bytes, &total) != 0) return 11;
    if (free_bytes < 64 * MIB) break;
    size_t size = free_bytes > 2048 * MIB ? 1024 * MIB : 16 * MIB;
    uint64_t address = 0;
    if (cu.cuMemAlloc(&address, size) != 0) break;
    held += size;
  }
  if (!send_bytes(1, &held, sizeof held)) return 12;
  while (read(0, &go, 1) > 0) {
  }
  return 0;
}
// Imports what it is given, says so, and waits to be killed.
static int import_memory(void) {
  gmm_ipc_handle handle;
  if (!receive_bytes(0, &handle, sizeof handle)) return 10;
  if (gmm_context_create(NULL, &context) != GMM_OK) return 11;
  void *memory = NULL;
  gmm_ipc_import_desc desc = {.struct_size = sizeof desc, .timeout_ms = 60000};
  if (gmm_ipc_import(context, &handle, &desc, &memory) != GMM_OK) return 12;
  if (!send_bytes(1, "i", 1)) return 13;
  for (;;) sleep_ms(1000);
}

// --- the cases -------------------------------------------------------------------------------------------------------
static char *new_block(uint64_t size, uint32_t seed) {
  gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = GMM_KIND_VMM, .device = 0, .tag = tag};
  void *memory = NULL;
  OK(gmm_alloc(context, size, &desc, &memory));
  if (memory != NULL) write_pattern(memory, size, seed, GMM_STREAM_DEFAULT);
  return memory;
}

static void out_of_memory_at_the_resume(second_process *holder) {
  char *blocks[4];
  for (int i = 0; i < 4; ++i) blocks[i] = new_block(BLOCK, 10 + i);
  uint64_t went = 0, held = 0, bytes = 5;
  OK(gmm_pause(context, NULL, &went));
  CHECK(went >= 4 * BLOCK);
  OK(gmm_trim(context, NULL, NULL));
  CHECK(send_bytes(holder->to, "g", 1) && receive_bytes(holder->from, &held, sizeof held));
  printf("# the other process holds %llu MiB\n", (unsigned long long)(held / MIB));
  for (int attempt = 0; attempt < 3; ++attempt) {
    double start = now_s();
    RESULT(gmm_resume(context, NULL, &bytes), GMM_ERROR_OUT_OF_MEMORY);
    printf("# refused after %.3f s: %s\n", now_s() - start, gmm_last_error_message());
    CHECK_EQUAL(bytes, 5);
    for (int i = 0; i < 4; ++i) CHECK_EQUAL(query(blocks[i]).state, GMM_STATE_PAUSED);
  }
  uint8_t kept[4096];  // still there
  OK(gmm_backup_read(context, blocks[2] + 12345, sizeof kept, kept));
  for (uint64_t i = 0; i < sizeof kept; ++i)
    if (kept[i] != pattern_at(12345 + i, 12)) {
      CHECK_MESSAGE(false, "what is kept is wrong");
      break;
    }
  CHECK_EQUAL(second_wait(holder), 0);
  gmm_result result = GMM_ERROR_OUT_OF_MEMORY;  // the driver gives memory of an ended process back a moment later
  for (int i = 0; i < 100 && result == GMM_ERROR_OUT_OF_MEMORY; ++i) {
    result = gmm_resume(context, NULL, &bytes);
    if (result == GMM_ERROR_OUT_OF_MEMORY) sleep_ms(50);
  }
  CHECK_MESSAGE(result == GMM_OK, "the retry: %s: %s", gmm_result_name(result), gmm_last_error_message());
  CHECK_EQUAL(bytes, went);
  for (int i = 0; i < 4; ++i) {
    CHECK_PATTERN(blocks[i], BLOCK, 10 + i);
    OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  }
}

static void work_in_flight(void) {
  char *block = new_block(BLOCK, 1);
  void *streams[3] = {NULL};
  for (int i = 0; i < 3; ++i) CHECK_EQUAL(cu.cuStreamCreate(&streams[i], 1 /* CU_STREAM_NON_BLOCKING */), 0);
  // Long chains of fills on a third each; the last byte that each writes tells that all of it was done.
  const uint64_t part = BLOCK / 4;
  const int chain = is_fake() ? 20 : 400;
  for (int i = 0; i < 3; ++i)
    for (int n = 0; n < chain; ++n)
      CHECK_EQUAL(cu.cuMemsetD8Async((uint64_t)(uintptr_t)block + i * part,
                                     (unsigned char)(n == chain - 1 ? 0x40 + i : n), part, streams[i]),
                  0);
  double start = now_s();
  OK(gmm_pause(context, NULL, NULL));
  printf("# paused %.3f s after the work was queued\n", now_s() - start);
  for (int i = 0; i < 3; ++i) CHECK_EQUAL(cu.cuStreamSynchronize(streams[i]), 0);  // no illegal access
  OK(gmm_resume(context, NULL, NULL));
  uint8_t *bytes = malloc(part);
  for (int i = 0; i < 3 && bytes != NULL; ++i) {
    OK(gmm_copy(context, bytes, block + i * part, part, GMM_STREAM_DEFAULT));
    OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
    uint64_t wrong = 0;
    for (uint64_t k = 0; k < part; ++k) wrong += bytes[k] != 0x40 + i;
    CHECK_EQUAL(wrong, 0);
  }
  free(bytes);
  for (int i = 0; i < 3; ++i) CHECK_EQUAL(cu.cuStreamDestroy(streams[i]), 0);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void the_importer_is_killed(second_process *importer) {
  char *block = new_block(64 * MIB, 5);
  gmm_ipc_handle handle;
  gmm_result exported = gmm_ipc_export(context, block, &handle);
  if (exported == GMM_ERROR_NOT_SUPPORTED) {
    printf("# not shareable here: %s\n", gmm_last_error_message());
    second_kill(importer);
    OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
    return;
  }
  CHECK_EQUAL(exported, GMM_OK);
  char told = 0;
  CHECK(send_bytes(importer->to, &handle, sizeof handle) && receive_bytes(importer->from, &told, 1));
  uint64_t bytes = 5, generation = query(block).generation;
  RESULT(gmm_pause(context, NULL, &bytes), GMM_ERROR_BUSY);
  CHECK_EQUAL(bytes, 5);
  CHECK_PATTERN(block, 64 * MIB, 5);
  kill(importer->pid, SIGKILL);  // while the exporter tries again and again
  gmm_result result = GMM_ERROR_BUSY;
  int tries = 0;
  for (double end = now_s() + SOON_S; result == GMM_ERROR_BUSY && now_s() < end; ++tries) {
    result = gmm_pause(context, NULL, &bytes);
    if (result == GMM_ERROR_BUSY) sleep_ms(1);
  }
  CHECK_MESSAGE(result == GMM_OK, "after %d tries: %s: %s", tries, gmm_result_name(result), gmm_last_error_message());
  CHECK_EQUAL(second_wait(importer), 1000 + SIGKILL);
  OK(gmm_resume(context, NULL, NULL));
  CHECK(query(block).generation > generation);
  CHECK_PATTERN(block, 64 * MIB, 5);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void host_memory_runs_out(void) {
  char *block = new_block(BLOCK, 9);
  gmm_tag_info info = {.struct_size = sizeof info};
  OK(gmm_trim(context, NULL, NULL));
  for (int way = 0; way < 3; ++way) {
    gmm_backup_desc room = {.struct_size = sizeof room, .arena_limit = 64 * MIB};
    if (way == 1) room.flags = GMM_BACKUP_NO_ARENA;
    if (way == 2) room.flags = GMM_BACKUP_NO_ARENA | GMM_BACKUP_NO_PAGEABLE;
    OK(gmm_backup_configure(context, &room));
    OK(gmm_pause(context, NULL, NULL));
    OK(gmm_tag_query(context, tag, &info));
    printf("# page-locked %llu, pageable %llu, file %llu MiB\n", (unsigned long long)(info.backup_pinned_bytes / MIB),
           (unsigned long long)((info.backup_host_bytes - info.backup_pinned_bytes) / MIB),
           (unsigned long long)(info.backup_file_bytes / MIB));
    CHECK(info.backup_host_bytes + info.backup_file_bytes >= BLOCK);
    CHECK(info.backup_pinned_bytes <= (way == 0 ? 64 * MIB : 0));
    if (way == 2) CHECK(info.backup_file_bytes >= BLOCK);
    OK(gmm_resume(context, NULL, NULL));
    CHECK_PATTERN(block, BLOCK, 9);
    OK(gmm_trim(context, NULL, NULL));
  }
  OK(gmm_backup_configure(context, NULL));
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

int main(int count, char **words) {
  if (count == 3 && strcmp(words[1], "--second") == 0)
    return strcmp(words[2], "hold") == 0 ? hold_memory() : import_memory();
  setenv("GMM_BACKEND", "cuda", 1);
  signal(SIGPIPE, SIG_IGN);
  second_process holder, importer;
  if (!second_start(&holder, (const char *const[]){"hold"}, 1) ||
      !second_start(&importer, (const char *const[]){"import"}, 1)) {
    printf("FAIL no second process\n");
    return 1;
  }
  if (!open_driver() || gmm_context_create(NULL, &context) != GMM_OK) {
    printf("FAIL no device: %s\n", gmm_last_error_message());
    second_kill(&holder);
    second_kill(&importer);
    return 1;
  }
  read_device(0);
  tag = make_tag("faults", GMM_CONTENTS_HOST);
  double start = now_s();
  work_in_flight();
  verdict("work in flight on non-blocking streams", start);
  start = now_s();
  the_importer_is_killed(&importer);
  verdict("an importer is killed while the exporter pauses", start);
  start = now_s();
  host_memory_runs_out();
  verdict("host memory runs out", start);
  start = now_s();
  if (is_fake()) {
    second_kill(&holder);
    printf("SKIP out of memory at the resume: the fake driver's memory is an account of each process\n");
  } else {
    out_of_memory_at_the_resume(&holder);
    verdict("out of memory at the resume", start);
  }
  start = now_s();
  CHECK_EQUAL(stats().live_blocks, 0);
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(stats().reserved_bytes, 0);
  OK(gmm_context_release(context));
  context = NULL;
  verdict("everything went back", start);
  return failed != 0;
}
