// SPDX-License-Identifier: Apache-2.0
// What is left on the device when either side of a sharing is killed, by the free memory that the driver tells.
#include <stdlib.h>

#include "../support/gmm_test.h"
#include "../support/second_process.h"

#define SIZE (256 * MIB)

static uint64_t free_memory(void) {
  gmm_device_info info = {.struct_size = sizeof info};
  MUST(gmm_device_query(context, device, &info));
  return info.free_memory;
}

// Waits for at least `bytes` to be free; the milliseconds, or -1 when they never are.
static int until_free(uint64_t bytes) {
  double begin = now_s();
  do {
    if (free_memory() >= bytes) return (int)((now_s() - begin) * 1000);
    sleep_ms(10);
  } while (now_s() - begin < SOON_S);
  return -1;
}

static int second_main(char **words) {
  kind = (gmm_kind)atoi(words[1]);
  context = open_context(1);
  read_device((gmm_device)atoi(words[2]));
  int out = dup(1);
  dup2(2, 1);
  gmm_ipc_handle handle;
  char go = 0;
  void *memory = NULL;
  if (strcmp(words[0], "export") == 0) {
    memory = ALLOC_FLAGS(SIZE, GMM_ALLOC_DEDICATED);
    if (memory == NULL || gmm_ipc_export(context, memory, &handle) != GMM_OK) return 10;
    if (!send_bytes(out, &handle, sizeof handle)) return 11;
  } else {
    if (!receive_bytes(0, &handle, sizeof handle)) return 12;
    gmm_ipc_import_desc desc = {.struct_size = sizeof desc, .device = device};
    if (gmm_ipc_import(context, &handle, &desc, &memory) != GMM_OK) return 13;
    if (!send_bytes(out, "i", 1)) return 14;
  }
  return read(0, &go, 1) == 1 ? 0 : 1;
}

static second_process start(const char *role) {
  char k[8], d[8];
  snprintf(k, sizeof k, "%u", kind);
  snprintf(d, sizeof d, "%u", device);
  second_process process;
  REQUIRE(second_start(&process, (const char *const[]){role, k, d}, 3));
  return process;
}

// The context of the second process takes memory too, so the bar is what was free before it began, less a little.
#define SLACK (64 * MIB)

static void a_killed_importer_leaves_nothing(void) {
  void *block = ALLOC_FLAGS(SIZE, GMM_ALLOC_DEDICATED);
  if (query(block).ipc_routes == 0) SKIP("the device cannot share %s memory", kind_name(kind));
  gmm_ipc_handle handle;
  MUST(gmm_ipc_export(context, block, &handle));
  uint64_t before = free_memory();
  second_process second = start("import");
  char told = 0;
  CHECK(send_bytes(second.to, &handle, sizeof handle));
  REQUIRE(receive_bytes(second.from, &told, 1));
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));  // kept aside: an importer has it
  OK(gmm_trim(context, NULL, NULL));
  CHECK(stats().reserved_bytes >= SIZE);
  second_kill(&second);
  double begin = now_s();
  while (stats().reserved_bytes != 0 && now_s() - begin < SOON_S) {
    sleep_ms(5);
    OK(gmm_trim(context, NULL, NULL));
  }
  printf("# figure %s: counted down and given back %.0f ms after the importer was killed\n", kind_name(kind),
         (now_s() - begin) * 1000);
  CHECK_EQUAL(stats().reserved_bytes, 0);
  CHECK(until_free(before + SIZE - SLACK) >= 0);
}

static void a_killed_exporter_leaves_nothing(void) {
  uint64_t before = free_memory();
  second_process second = start("export");
  gmm_ipc_handle handle;
  if (!receive_bytes(second.from, &handle, sizeof handle)) {
    second_wait(&second);
    SKIP("the device cannot share %s memory", kind_name(kind));
  }
  void *memory = NULL;
  gmm_ipc_import_desc desc = {.struct_size = sizeof desc, .device = device};
  MUST(gmm_ipc_import(context, &handle, &desc, &memory));
  second_kill(&second);
  double begin = now_s();
  while ((query(memory).flags & GMM_POINTER_PEER_GONE) == 0 && now_s() - begin < SOON_S) sleep_ms(1);
  printf("# figure %s: noticed %.0f ms after the exporter was killed\n", kind_name(kind), (now_s() - begin) * 1000);
  CHECK((query(memory).flags & GMM_POINTER_PEER_GONE) != 0);
  if (kind == GMM_KIND_VMM) {  // the descriptor keeps it alive
    // The fake driver of the tests counts it for the exporter alone.
    if (strstr(device_info.name, "Fake") == NULL) {
      uint64_t now = free_memory();
      CHECK_MESSAGE(now <= before - SIZE + SLACK, "%llu bytes are free, %llu were", (unsigned long long)now,
                    (unsigned long long)before);
    }
    OK(gmm_fill(context, memory, 7, SIZE, GMM_STREAM_DEFAULT));
    OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  }
  OK(gmm_ipc_close(context, memory));
  int ms = until_free(before - SLACK);
  CHECK_MESSAGE(ms >= 0, "%llu of %llu bytes are free again", (unsigned long long)free_memory(),
                (unsigned long long)before);
}

int main(int count, char **words) {
  if (count == 5 && strcmp(words[1], "--second") == 0) return second_main(words + 2);
  signal(SIGPIPE, SIG_IGN);
  const gmm_kind_mask on_device = (1u << GMM_KIND_DEVICE) | (1u << GMM_KIND_VMM);
  KINDS(a_killed_importer_leaves_nothing, on_device);
  KINDS(a_killed_exporter_leaves_nothing, on_device);
  return check_finish();
}
