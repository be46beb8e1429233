// SPDX-License-Identifier: Apache-2.0
// Handles of memory that another machine imports. The test rewrites the machine in a handle, so that the second process
// takes the exporter for one on another machine. It must not ask the exporter then: nobody counts it.
#include <stdlib.h>

#include "../support/second_process.h"
#include "pause_support.h"

enum { SIZE = 6 * 1048576 - 5, INSIDE = 4096 };

// Imports what comes, tells the result, and follows commands: r(ead), w(rite), c(lose), a byte each.
static int second_main(char **words) {
  context = open_context(2);
  read_device(atoi(words[0]));
  device = atoi(words[0]);
  int out = dup(1);
  dup2(2, 1);
  gmm_ipc_handle handle;
  char *memory = NULL, command = 0;
  while (receive_bytes(0, &handle, sizeof handle) && receive_bytes(0, &command, 1) && command != 'q') {
    gmm_result result = GMM_OK;
    if (command == 'i') {
      const gmm_ipc_import_desc desc = {.struct_size = sizeof desc, .device = device, .timeout_ms = 60000};
      result = gmm_ipc_import(context, &handle, &desc, (void **)&memory);
      if (result != GMM_OK) fprintf(stderr, "# second: %s\n", gmm_last_error_message());
    }
    if (command == 'r') result = check_pattern(__LINE__, memory, SIZE - INSIDE, 1, GMM_STREAM_DEFAULT) ? GMM_OK : -1;
    if (command == 's') result = query(memory).state == GMM_STATE_IMPORTED ? GMM_OK : -1;
    if (command == 'w') write_pattern(memory, SIZE - INSIDE, 2, GMM_STREAM_DEFAULT);
    if (command == 'c') result = gmm_ipc_close(context, memory);
    if (!send_bytes(out, &result, sizeof result)) return 10;
  }
  return gmm_context_release(context) == GMM_OK ? 0 : 11;
}

static second_process other;
static gmm_ipc_handle handle;

static void start(void) {
  char number[16];
  snprintf(number, sizeof number, "%d", device);
  const char *const words[] = {number};
  REQUIRE(second_start(&other, words, 1));
}

// Puts another machine's number into the handle, and the checksum that belongs to it: lib/engine/ipc/handle.h.
static void move_to_another_machine(void) {
  enum { AT_MACHINE = 184, AT_CHECKSUM = 252 };
  handle.bytes[AT_MACHINE] ^= 2;
  uint32_t sum = ~0u;
  for (int i = 0; i < AT_CHECKSUM; ++i) {
    sum ^= handle.bytes[i];
    for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ ((sum & 1) != 0 ? 0x82f63b78u : 0);  // CRC-32C
  }
  for (int i = 0; i < 4; ++i) handle.bytes[AT_CHECKSUM + i] = (uint8_t)(~sum >> 8 * i);
}

static gmm_result ask(char command) {
  gmm_result result = -1000;
  CHECK(send_bytes(other.to, &handle, sizeof handle) && send_bytes(other.to, &command, 1));
  CHECK(receive_bytes(other.from, &result, sizeof result));
  return result;
}

static void stop(void) {
  const char quit = 'q';
  CHECK(send_bytes(other.to, &handle, sizeof handle) && send_bytes(other.to, &quit, 1));
  CHECK_EQUAL(second_wait(&other), 0);
}

static gmm_tag tag;
static char *allocate(uint32_t flags) {
  tag = make_tag("fabric", GMM_CONTENTS_HOST);
  const gmm_alloc_desc desc = {
      .struct_size = sizeof desc, .kind = GMM_KIND_VMM, .device = device, .tag = tag, .flags = flags};
  void *block = NULL;
  MUST(gmm_alloc(context, SIZE, &desc, &block));
  return block;
}

static bool has_fabric(const void *block) { return (query(block).ipc_routes & GMM_IPC_ROUTE_FABRIC) != 0; }

static void another_machine_imports(void) {
  char *block = allocate(GMM_ALLOC_COMM);
  if (!has_fabric(block)) {
    OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
    SKIP("the device has no fabric handles");
  }
  write_pattern(block + INSIDE, SIZE - INSIDE, 1, GMM_STREAM_DEFAULT);
  OK(gmm_ipc_export(context, block + INSIDE, &handle));
  move_to_another_machine();
  start();
  OK(ask('i'));
  OK(ask('r'));
  OK(ask('s'));
  OK(ask('i'));  // counts on the same mapping
  OK(ask('c'));
  OK(ask('w'));
  CHECK_PATTERN(block + INSIDE, SIZE - INSIDE, 2);
  // Nobody counts it: a pause goes on, and tells what did not come back.
  gmm_pause_desc desc = one_tag(&tag);
  uint64_t went = 1;
  OK(gmm_pause(context, &desc, &went));
  CHECK_EQUAL(went, 0);
  CHECK_EQUAL(pause_info(tag).foreign_bytes, query(block).allocation_size);
  OK(gmm_resume(context, &desc, NULL));
  CHECK_PATTERN(block + INSIDE, SIZE - INSIDE, 2);
  OK(ask('c'));
  OK(gmm_pause(context, &desc, &went));
  CHECK_EQUAL(pause_info(tag).foreign_bytes, 0);
  OK(gmm_resume(context, &desc, NULL));
  // Memory that is gone has no importer.
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_trim(context, NULL, NULL));
  CHECK(ask('i') < 0);
  stop();
}

static void this_machine_asks_the_exporter(void) {
  char *block = allocate(GMM_ALLOC_COMM);
  write_pattern(block, SIZE, 1, GMM_STREAM_DEFAULT);
  OK(gmm_ipc_export(context, block, &handle));
  start();
  OK(ask('i'));
  gmm_pause_desc desc = one_tag(&tag);
  RESULT(gmm_pause(context, &desc, NULL), GMM_ERROR_BUSY);  // it is counted
  OK(ask('c'));
  SOON(gmm_pause(context, &desc, NULL) == GMM_OK);
  OK(gmm_resume(context, &desc, NULL));
  void *own = NULL;
  OK(gmm_ipc_import(context, &handle, NULL, &own));
  CHECK(own == block);
  OK(gmm_ipc_close(context, own));
  stop();
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void ordinary_memory_stays_here(void) {
  char *block = allocate(GMM_ALLOC_DEDICATED);
  CHECK(!has_fabric(block));
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

int main(int argc, char **argv) {
  if (argc > 2 && strcmp(argv[1], "--second") == 0) return second_main(argv + 2);
  KINDS(another_machine_imports, 1u << GMM_KIND_VMM);
  KINDS(this_machine_asks_the_exporter, 1u << GMM_KIND_VMM);
  KINDS(ordinary_memory_stays_here, 1u << GMM_KIND_VMM);
  return check_finish();
}
