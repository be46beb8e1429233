// SPDX-License-Identifier: Apache-2.0
// Handles of memory that another machine imports. The test rewrites the machine in a handle, so that the second process
// takes the exporter for one on another machine. It must not ask the exporter then: nobody counts it.
#include "ipc_support.h"
#include "pause_support.h"

enum { SIZE = 6 * 1048576 - 5, INSIDE = 4096 };

static second_process other;
static gmm_ipc_handle handle;

// Puts another machine's number into the handle, and the checksum that belongs to it: lib/engine/ipc/handle.h.
static void move_to_another_machine(void) {
  enum { AT_MACHINE = 168, AT_CHECKSUM = 252 };
  handle.bytes[AT_MACHINE] ^= 2;
  uint32_t sum = ~0u;
  for (int i = 0; i < AT_CHECKSUM; ++i) {
    sum ^= handle.bytes[i];
    for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ ((sum & 1) != 0 ? 0x82f63b78u : 0);  // CRC-32C
  }
  for (int i = 0; i < 4; ++i) handle.bytes[AT_CHECKSUM + i] = (uint8_t)(~sum >> 8 * i);
}

static gmm_result ask_to_import(void) { return other_imports(&other, &handle, SIZE - INSIDE, 1); }
static void ask_to_close(void) { CHECK_EQUAL(OTHER(&other, .act = OTHER_CLOSES).result, GMM_OK); }

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
  other = start_other();
  OK(ask_to_import());
  OK(ask_to_import());  // counts on the same mapping
  ask_to_close();
  OTHER(&other, .act = OTHER_WRITES, .size = SIZE - INSIDE, .seed = 2);
  CHECK_PATTERN(block + INSIDE, SIZE - INSIDE, 2);
  // Nobody counts it: a pause goes on, and reports the memory that did not come back.
  gmm_pause_desc desc = one_tag(&tag);
  uint64_t went = 1;
  OK(gmm_pause(context, &desc, &went));
  CHECK_EQUAL(went, 0);
  CHECK_EQUAL(tag_info(tag).foreign_bytes, query(block).allocation_size);
  OK(gmm_resume(context, &desc, NULL));
  CHECK_PATTERN(block + INSIDE, SIZE - INSIDE, 2);
  ask_to_close();
  OK(gmm_pause(context, &desc, &went));
  CHECK_EQUAL(tag_info(tag).foreign_bytes, 0);
  OK(gmm_resume(context, &desc, NULL));
  // Memory that is gone has no importer.
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_trim(context, NULL, NULL));
  CHECK(ask_to_import() < 0);
  end_other(&other);
}

static void this_machine_asks_the_exporter(void) {
  char *block = allocate(GMM_ALLOC_COMM);
  write_pattern(block, SIZE, 1, GMM_STREAM_DEFAULT);
  OK(gmm_ipc_export(context, block, &handle));
  other = start_other();
  OK(ask_to_import());
  gmm_pause_desc desc = one_tag(&tag);
  RESULT(gmm_pause(context, &desc, NULL), GMM_ERROR_BUSY);  // it is counted
  ask_to_close();
  SOON(gmm_pause(context, &desc, NULL) == GMM_OK);
  OK(gmm_resume(context, &desc, NULL));
  void *own = NULL;
  OK(gmm_ipc_import(context, &handle, NULL, &own));
  CHECK(own == block);
  OK(gmm_ipc_close(context, own));
  end_other(&other);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void ordinary_memory_stays_here(void) {
  char *block = allocate(GMM_ALLOC_DEDICATED);
  CHECK(!has_fabric(block));
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

int main(int argc, char **argv) {
  if (argc > 2 && strcmp(argv[1], "--second") == 0) return other_main(argv + 2);
  KINDS(another_machine_imports, 1u << GMM_KIND_VMM);
  KINDS(this_machine_asks_the_exporter, 1u << GMM_KIND_VMM);
  KINDS(ordinary_memory_stays_here, 1u << GMM_KIND_VMM);
  return check_finish();
}
