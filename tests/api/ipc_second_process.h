// SPDX-License-Identifier: Apache-2.0
// The second process of conformance_ipc.c: the commands that it carries out.
#ifndef GMM_TESTS_IPC_SECOND_PROCESS_H
#define GMM_TESTS_IPC_SECOND_PROCESS_H

#include "../support/gmm_test.h"
#include "../support/second_process.h"

static gmm_ipc_import_desc import_desc(void) {
  return (gmm_ipc_import_desc){.struct_size = sizeof(gmm_ipc_import_desc), .device = device, .timeout_ms = 60000};
}

static void *second_import(const gmm_ipc_handle *handle) {
  gmm_ipc_import_desc desc = import_desc();
  void *memory = NULL;
  gmm_result result = gmm_ipc_import(context, handle, &desc, &memory);
  if (result != GMM_OK)
    fprintf(stderr, "# second process: import: %s: %s\n", gmm_result_name(result), gmm_last_error_message());
  return memory;
}

// second --second MODE KIND DEVICE SIZE SEED: the exit code is 0, or says which step failed.
static int second_main(char **words) {
  const char *mode = words[0];
  kind = (gmm_kind)atoi(words[1]);
  uint64_t size = strtoull(words[3], NULL, 10);
  uint32_t seed = (uint32_t)atoi(words[4]);
  context = open_context(2);
  read_device(atoi(words[2]));
  // Only now: another user may not be able to open the driver where this checkout lies. The exporter sees who connects.
  if (strcmp(mode, "as-nobody") == 0 && setuid(65534) != 0) return 90;
  // Failures of helpers below are noted in check_state and become the exit code.
  int out = dup(1);
  dup2(2, 1);
  char go = 0;
  gmm_ipc_handle handle;
  if (strcmp(mode, "export") == 0) {  // makes memory, shares it, waits
    void *memory = ALLOC(size);
    if (memory == NULL) return 10;
    write_pattern(memory, size, seed, GMM_STREAM_DEFAULT);
    if (gmm_ipc_export(context, memory, &handle) != GMM_OK || !send_bytes(out, &handle, sizeof handle)) return 11;
    if (read(0, &go, 1) == 1 && go == 'f') {  // frees it and goes on living
      if (gmm_free(context, memory, GMM_STREAM_DEFAULT) != GMM_OK) return 13;
      if (gmm_stream_synchronize(context, GMM_STREAM_DEFAULT) != GMM_OK || gmm_trim(context, NULL, NULL) != GMM_OK)
        return 14;
      if (!send_bytes(out, "d", 1)) return 15;
      if (read(0, &go, 1) != 1) return 16;
    }
    return gmm_context_release(context) == GMM_OK ? 0 : 12;
  }
  if (!receive_bytes(0, &handle, sizeof handle)) return 20;
  if (strcmp(mode, "as-nobody") == 0) {
    gmm_ipc_import_desc desc = import_desc();
    void *memory = NULL;
    gmm_result result = gmm_ipc_import(context, &handle, &desc, &memory);
    // Each user has a directory of sockets of its own: mostly the exporter is not even found.
    bool refused = result == GMM_ERROR_IPC_REFUSED || result == GMM_ERROR_IPC_PEER_GONE;
    if (!refused)
      fprintf(stderr, "# another user's import gave %s: %s\n", gmm_result_name(result), gmm_last_error_message());
    return refused ? 0 : 91;
  }
  char *memory = second_import(&handle);
  if (memory == NULL) return 21;
  gmm_pointer_info info = query(memory + size / 2);
  if (info.state != GMM_STATE_IMPORTED || info.kind != kind)
    fprintf(stderr, "# imported memory has state %u, kind %u\n", info.state, info.kind);
  if (info.state != GMM_STATE_IMPORTED) return 22;
  if (!check_pattern(__LINE__, memory, size, seed, GMM_STREAM_DEFAULT)) return 23;
  if (strcmp(mode, "revoked") == 0) {  // the other side takes it back
    if (!send_bytes(out, "i", 1)) return 70;
    if (read(0, &go, 1) != 1) return 71;
    uint8_t own[64] = {0};
    if (gmm_copy(context, own, memory, 64, GMM_STREAM_DEFAULT) != GMM_ERROR_IPC_REVOKED) return 72;
    if (gmm_fill(context, memory, 1, 64, GMM_STREAM_DEFAULT) != GMM_ERROR_IPC_REVOKED) return 73;
    if (query(memory).state != GMM_STATE_REVOKED) return 74;
    gmm_ipc_import_desc again_desc = import_desc();
    void *other = NULL;
    if (gmm_ipc_import(context, &handle, &again_desc, &other) != GMM_ERROR_IPC_REVOKED) return 75;
    const bool readable = (query(memory).flags & GMM_POINTER_HOST_ACCESSIBLE) != 0;
    if (readable && ((uint8_t *)memory)[7] != pattern_at(7, seed)) return 76;  // the old pages are still there
  } else if (strcmp(mode, "twice") == 0) {
    if (second_import(&handle) != memory) return 30;
    if (gmm_ipc_close(context, memory + 5) != GMM_OK) return 31;
    if (!check_pattern(__LINE__, memory, size, seed, GMM_STREAM_DEFAULT)) return 32;
    if (gmm_free(context, memory, GMM_STREAM_DEFAULT) != GMM_ERROR_INVALID_KIND) return 34;
  } else if (strcmp(mode, "hold") == 0) {  // keeps it while the other side does something
    if (!send_bytes(out, "i", 1)) return 40;
    if (read(0, &go, 1) != 1) return 41;
    if (!check_pattern(__LINE__, memory, size, seed + (go == 'n' ? 1 : 0), GMM_STREAM_DEFAULT)) return 42;
  } else if (strcmp(mode, "changed") == 0) {
    write_pattern(memory, size, seed + 1, GMM_STREAM_DEFAULT);
  }
  gmm_stats_info statistics = stats();
  if (statistics.imported_bytes == 0) return 50;
  if (gmm_ipc_close(context, memory) != GMM_OK) return 51;
  if (gmm_stream_synchronize(context, GMM_STREAM_DEFAULT) != GMM_OK) return 52;
  if (query(memory).state != GMM_STATE_UNKNOWN) return 53;
  if (stats().imported_bytes != 0) return 54;
  gmm_result again = gmm_ipc_close(context, memory);
  if (again != GMM_ERROR_UNKNOWN_POINTER && again != GMM_ERROR_UNBALANCED) return 55;
  if (gmm_context_release(context) != GMM_OK) return 56;
  return check_state.failures > 0 ? 60 : 0;
}

static second_process start(const char *mode, uint64_t size, uint32_t seed) {
  char k[8], d[8], s[32], e[16];
  snprintf(k, sizeof k, "%u", kind);
  snprintf(d, sizeof d, "%d", device);
  snprintf(s, sizeof s, "%llu", (unsigned long long)size);
  snprintf(e, sizeof e, "%u", seed);
  second_process process;
  REQUIRE(second_start(&process, (const char *const[]){mode, k, d, s, e}, 5));
  return process;
}

__attribute__((unused)) static void *shared_block(uint64_t size, uint32_t seed, gmm_ipc_handle *handle) {
  void *block = ALLOC(size);
  REQUIRE(block != NULL);
  write_pattern(block, size, seed, GMM_STREAM_DEFAULT);
  MUST(gmm_ipc_export(context, block, handle));
  return block;
}

#endif
