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
static void ask_to_close(void) { OTHER_OK(&other, .act = OTHER_CLOSES); }

static gmm_tag tag;
static char *allocate(uint32_t flags) {
  tag = make_tag("fabric", GMM_CONTENTS_HOST);
  return alloc_here(__LINE__, SIZE, tag, GMM_STREAM_DEFAULT, flags);
}

static bool has_fabric(const void *block) { return (query(block).ipc_routes & GMM_IPC_ROUTE_FABRIC) != 0; }

VMM_CASE(another_machine_imports) {
  char *block = allocate(GMM_ALLOC_COMM);
  if (!has_fabric(block)) SKIP("the device has no fabric handles");
  write_pattern(block + INSIDE, SIZE - INSIDE, 1, GMM_STREAM_DEFAULT);
  OK(gmm_ipc_export(context, block + INSIDE, &handle));
  other = start_other();
  OK(ask_to_import());
  RESULT(pause_of(tag), GMM_ERROR_BUSY);  // an importer of this machine is counted
  ask_to_close();
  OK(pause_soon(NULL));
  OK(resume_of(tag));
  OK(gmm_ipc_export(context, block + INSIDE, &handle));
  move_to_another_machine();
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
  OK(resume_of(tag));
  CHECK_PATTERN(block + INSIDE, SIZE - INSIDE, 2);
  ask_to_close();
  OK(gmm_pause(context, &desc, &went));
  CHECK_EQUAL(tag_info(tag).foreign_bytes, 0);
  OK(gmm_resume(context, &desc, NULL));
  FREE(block);
  OK(gmm_trim(context, NULL, NULL));
  CHECK(ask_to_import() < 0);
  end_other(&other);
}

VMM_CASE(ordinary_memory_has_no_fabric_handle) { CHECK(!has_fabric(allocate(GMM_ALLOC_DEDICATED))); }

int main(int count, char **words) { return run_cases_or(other_main, count, words); }
