// SPDX-License-Identifier: Apache-2.0
// ipc.h between two processes. The second process is this program, started again.
#include "fault_support.h"
#include "ipc_support.h"

#define SIZE (3 * MIB + 1000)

CASE_OF_KINDS(the_other_process_changes_the_bytes, SHAREABLE) {
  NEEDS_SHARING();
  second_process other = start_other();
  // The largest one lies over many extents, as memory has come and gone.
  const uint64_t some[] = {1, 1000, 100000, SIZE, kind == GMM_KIND_VMM ? 20 * MIB : 2 * SIZE};
  for (uint32_t i = 0; i < 5; ++i) {
    gmm_ipc_handle handle, inside, again;
    void *before = ALLOC(some[i]);  // so that the block does not start its allocation
    char *block = shared_block(some[i], 3 + i, &handle);
    CHECK_EQUAL(other_imports(&other, &handle, some[i], 3 + i), GMM_OK);
    OTHER(&other, .act = OTHER_WRITES, .size = some[i], .seed = 50 + i);
    CHECK_PATTERN(block, some[i], 50 + i);
    write_pattern(block, some[i], 60 + i, GMM_STREAM_DEFAULT);
    OTHER(&other, .act = OTHER_CHECKS, .size = some[i], .seed = 60 + i);
    // An interior address is shared as well, and has one export.
    const uint64_t at = some[i] * 2 / 3, size = some[i] / 4 + 1;
    write_pattern(block + at, size, 9, GMM_STREAM_DEFAULT);
    MUST(gmm_ipc_export(context, block + at, &inside));
    MUST(gmm_ipc_export(context, block + at, &again));
    CHECK(memcmp(&inside, &again, sizeof again) == 0);
    OTHER_OK(&other, .act = OTHER_IMPORTS, .slot = 1, .handle = inside, .size = size, .seed = 9);
    OTHER(&other, .act = OTHER_WRITES, .slot = 1, .size = size, .seed = 10);
    CHECK_PATTERN(block + at, size, 10);
    CHECK_PATTERN(block, at, 60 + i);
    OTHER_OK(&other, .act = OTHER_CLOSES, .slot = 1);
    OTHER_OK(&other, .act = OTHER_CLOSES);
    FREE(block, before);
  }
  end_other(&other);
}

// Of one extent and of several. An import is counted, and its address is that of the first.
CASE_OF_KINDS(imports_of_a_block_are_one_mapping, SHAREABLE) {
  NEEDS_SHARING();
  second_process other = start_other();
  const uint64_t sizes[] = {5000, 5000, 5000, SIZE};
  void *blocks[4];
  for (uint32_t i = 0; i < 4; ++i) {
    gmm_ipc_handle handle;
    blocks[i] = shared_block(sizes[i], 40 + i, &handle);
    const other_order order = {
        .act = OTHER_IMPORTS, .handle = handle, .size = sizes[i], .seed = 40 + i, .timeout_ms = 60000};
    const other_answer first = order_other(&other, order), second = order_other(&other, order);
    CHECK(first.result == GMM_OK && second.result == GMM_OK && first.memory == second.memory);
    CHECK(OTHER(&other, .act = OTHER_COUNTS).value != 0);
    OTHER_OK(&other, .act = OTHER_CLOSES);
    OTHER(&other, .act = OTHER_CHECKS, .size = sizes[i], .seed = 40 + i);
    OTHER_OK(&other, .act = OTHER_CLOSES);
    CHECK_EQUAL(OTHER(&other, .act = OTHER_QUERIES).value, GMM_STATE_UNKNOWN);
    CHECK_EQUAL(OTHER(&other, .act = OTHER_COUNTS).value, 0);
    const gmm_result result = OTHER(&other, .act = OTHER_CLOSES).result;
    CHECK(result == GMM_ERROR_UNKNOWN_POINTER || result == GMM_ERROR_UNBALANCED);
  }
  for (uint32_t i = 0; i < 4; ++i) CHECK_PATTERN(blocks[i], sizes[i], 40 + i);
  end_other(&other);
}

// So many that exports of freed memory give way: those that live are found, and each has a token of its own.
CASE_OF_KINDS(exports_come_and_go, SHAREABLE) {
  NEEDS_SHARING();
  enum { COUNT = 300 };
  static void *blocks[COUNT];
  static gmm_ipc_handle handles[COUNT];
  void *memory = NULL;
  for (uint32_t i = 0; i < COUNT; ++i) {
    blocks[i] = ALLOC(4096);
    MUST(gmm_ipc_export(context, blocks[i], &handles[i]));
    if (i % 3 != 0) FREE(blocks[i]);
  }
  for (uint32_t i = 0; i < COUNT; ++i) {
    if (i % 3 != 0) {
      RESULT(import(&handles[i], 60000, &memory), GMM_ERROR_IPC_PEER_GONE);
      continue;
    }
    OK(import(&handles[i], 60000, &memory));
    CHECK(memory == blocks[i]);
    OK(gmm_ipc_close(context, memory));
    FREE(blocks[i]);
  }
}

CASE_OF_KINDS(the_exporter_may_die, SHAREABLE) {
  NEEDS_SHARING();
  for (int forks = 0; forks < 2; ++forks) {  // a child of the exporter may hold its sockets
    second_process other = start_other();
    const gmm_ipc_handle handle = other_makes(&other, SIZE, 7);
    void *memory = NULL;
    MUST(import(&handle, 60000, &memory));
    CHECK_PATTERN(memory, SIZE, 7);
    CHECK((query(memory).flags & GMM_POINTER_PEER_GONE) == 0);
    const pid_t child = forks ? (pid_t)OTHER(&other, .act = OTHER_FORKS).value : 0;
    second_kill(&other);
    SOON((query(memory).flags & GMM_POINTER_PEER_GONE) != 0);
    CHECK_EQUAL(query(memory).state, GMM_STATE_IMPORTED);
    if (kind != GMM_KIND_DEVICE || on_host_backend()) {  // the driver's own IPC keeps nothing alive
      CHECK_PATTERN(memory, SIZE, 7);
      write_pattern(memory, SIZE, 8, GMM_STREAM_DEFAULT);
      CHECK_PATTERN(memory, SIZE, 8);
    } else {
      RESULT(gmm_fill(context, memory, 1, 10, GMM_STREAM_DEFAULT), GMM_ERROR_IPC_PEER_GONE);
    }
    OK(gmm_ipc_close(context, memory));
    RESULT(import(&handle, 60000, &memory), GMM_ERROR_IPC_PEER_GONE);
    CHECK(strlen(gmm_last_error_message()) > 20);
    CHECK_EQUAL(stats().imported_bytes, 0);
    if (forks) kill(child, SIGKILL);
  }
}

CASE_OF_KINDS(the_importer_may_die, SHAREABLE) {
  NEEDS_SHARING();
  gmm_ipc_handle handle;
  void *block = shared_block(SIZE, 5, &handle);
  second_process others[3];
  for (unsigned i = 0; i < 3; ++i) {
    others[i] = start_other();
    CHECK_EQUAL(other_imports(&others[i], &handle, SIZE, 5), GMM_OK);
  }
  for (unsigned i = 0; i < 3; ++i) second_kill(&others[i]);
  CHECK_PATTERN(block, SIZE, 5);
  if (kind == GMM_KIND_VMM) {
    OK(pause_soon(NULL));
    OK(gmm_resume(context, NULL, NULL));
  }
  FREE(block);
  NOTHING_STAYS_SOON();
}

// A pause may make one extent of several, which are other memory for importers then.
VMM_CASE(a_new_handle_after_a_pause_is_good) {
  enum { COUNT = 12 };
  char *blocks[COUNT];
  void *first = NULL, *again = NULL;
  for (unsigned i = 0; i < COUNT; ++i) blocks[i] = ALLOC(2 * MIB);
  gmm_ipc_handle handle;
  OK(gmm_ipc_export(context, blocks[0] + 5, &handle));
  OK(import(&handle, 60000, &first));
  for (unsigned round = 0; round < 3; ++round) {
    OK(gmm_pause(context, NULL, NULL));
    OK(gmm_resume(context, NULL, NULL));
    for (unsigned i = 0; i < COUNT; i += 3) {
      OK(gmm_ipc_export(context, blocks[i] + 7, &handle));
      OK(import(&handle, 60000, &again));
      CHECK(again == blocks[i] + 7);
      OK(gmm_ipc_close(context, again));
    }
  }
  OK(gmm_ipc_close(context, first));
  RESULT(gmm_ipc_close(context, first), GMM_ERROR_UNBALANCED);
}

VMM_CASE(memory_with_importers_is_not_paused) {
  NEEDS_SHARING();
  gmm_tag tag = make_tag("shared", GMM_CONTENTS_HOST);
  void *block = FILLED_TAG(SIZE, tag, 5);
  gmm_ipc_handle handle;
  MUST(gmm_ipc_export(context, block, &handle));
  second_process other = start_other();
  CHECK_EQUAL(other_imports(&other, &handle, SIZE, 5), GMM_OK);
  gmm_pause_desc desc = one_tag(&tag);
  LEAVES_BYTES(gmm_pause(context, &desc, &bytes), GMM_ERROR_BUSY);
  CHECK_EQUAL(query(block).state, GMM_STATE_ACTIVE);
  CHECK_PATTERN(block, SIZE, 5);
  RESULT(gmm_reset(context), GMM_ERROR_BUSY);
  CHECK_PATTERN(block, SIZE, 5);
  desc.flags = GMM_PAUSE_FORCE;  // the importer keeps the old pages and sees the revocation; the block gets new ones
  OK(gmm_pause(context, &desc, NULL));
  OK(resume_of(tag));
  CHECK_PATTERN(block, SIZE, 5);
  write_pattern(block, SIZE, 77, GMM_STREAM_DEFAULT);
  desc = one_tag(&tag);
  OK(pause_soon(&desc));  // it is counted no more, though it has not closed the memory
  CHECK_EQUAL(OTHER(&other, .act = OTHER_COPIES).result, GMM_ERROR_IPC_REVOKED);
  CHECK_EQUAL(OTHER(&other, .act = OTHER_FILLS).result, GMM_ERROR_IPC_REVOKED);
  CHECK_EQUAL(OTHER(&other, .act = OTHER_QUERIES).value, GMM_STATE_REVOKED);
  CHECK_EQUAL(other_imports(&other, &handle, SIZE, 5), GMM_ERROR_IPC_REVOKED);
  OTHER_OK(&other, .act = OTHER_CLOSES);
  end_other(&other);
  OK(resume_of(tag));
  CHECK_PATTERN(block, SIZE, 77);
}

// The importer of a freed block goes while a forced pause has its heap.
VMM_CASE(an_importer_may_go_during_a_pause) {
  NEEDS_SHARING();
  gmm_tag tag = make_tag("held", GMM_CONTENTS_HOST);
  void *blocks[2] = {FILLED_TAG(SIZE, tag, 5), FILLED_TAG(SIZE, tag, 5)};
  gmm_ipc_handle handles[2];
  second_process other = start_other();
  for (uint32_t i = 0; i < 2; ++i) MUST(gmm_ipc_export(context, blocks[i], &handles[i]));
  CHECK_EQUAL(other_imports(&other, &handles[0], SIZE, 5), GMM_OK);
  void *own = NULL;
  OK(import(&handles[1], 60000, &own));
  FREE(blocks[0], blocks[1]);
  void *live = FILLED_TAG(SIZE, tag, 6);
  blocker hold = BLOCKER;
  gmm_ticket *ticket = start_held_with(GMM_PAUSE_FORCE, true, &tag, &hold);
  OTHER_OK(&other, .act = OTHER_CLOSES);
  OK(gmm_ipc_close(context, own));
  let_go(&hold);
  ENDS_WITH(ticket, GMM_OK);
  OK(resume_of(tag));
  CHECK_PATTERN(live, SIZE, 6);
  FREE(live);
  NOTHING_STAYS_SOON();
  end_other(&other);
}

int main(int count, char **words) { return run_cases_or(other_main, count, words); }
