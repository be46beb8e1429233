// SPDX-License-Identifier: Apache-2.0
// ipc.h between two processes. The second process is this program, started again.
#include <sys/mman.h>

#include "fault_support.h"
#include "ipc_support.h"

#define SIZE (3 * MIB + 1000)

static void the_other_process_changes_the_bytes(void) {
  NEEDS_SHARING();
  second_process other = start_other();
  // The largest one lies over many extents, as memory has come and gone.
  const uint64_t some[] = {1, 1000, 100000, SIZE, kind == GMM_KIND_VMM ? 60 * MIB : 2 * SIZE};
  for (uint32_t i = 0; i < 5; ++i) {
    gmm_ipc_handle handle;
    void *before = ALLOC(some[i]);  // so that the block does not start its allocation
    void *block = shared_block(some[i], 3 + i, &handle);
    CHECK_EQUAL(other_imports(&other, &handle, some[i], 3 + i), GMM_OK);
    OTHER(&other, .act = OTHER_WRITES, .size = some[i], .seed = 50 + i);
    CHECK_PATTERN(block, some[i], 50 + i);
    write_pattern(block, some[i], 60 + i, GMM_STREAM_DEFAULT);
    OTHER(&other, .act = OTHER_CHECKS, .size = some[i], .seed = 60 + i);
    CHECK_EQUAL(OTHER(&other, .act = OTHER_CLOSES).result, GMM_OK);
    OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
    OK(gmm_free(context, before, GMM_STREAM_DEFAULT));
  }
  end_other(&other);
}

static void interior_addresses_are_shared(void) {
  NEEDS_SHARING();
  char *block = ALLOC(SIZE);
  REQUIRE(block != NULL);
  write_pattern(block, SIZE, 1, GMM_STREAM_DEFAULT);
  write_pattern(block + 70001, 5000, 9, GMM_STREAM_DEFAULT);
  gmm_ipc_handle handle, again;
  MUST(gmm_ipc_export(context, block + 70001, &handle));
  MUST(gmm_ipc_export(context, block + 70001, &again));
  CHECK(memcmp(&handle, &again, sizeof again) == 0);  // a block has one export
  second_process other = start_other();
  CHECK_EQUAL(other_imports(&other, &handle, 5000, 9), GMM_OK);
  OTHER(&other, .act = OTHER_WRITES, .size = 5000, .seed = 10);
  CHECK_PATTERN(block + 70001, 5000, 10);
  CHECK_PATTERN(block, 70001, 1);
  end_other(&other);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

// Of one extent and of several. An import is counted, and its address is that of the first.
static void imports_of_a_block_are_one_mapping(void) {
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
    CHECK_EQUAL(OTHER(&other, .act = OTHER_CLOSES).result, GMM_OK);
    OTHER(&other, .act = OTHER_CHECKS, .size = sizes[i], .seed = 40 + i);
    CHECK_EQUAL(OTHER(&other, .act = OTHER_CLOSES).result, GMM_OK);
    CHECK_EQUAL(OTHER(&other, .act = OTHER_QUERIES).value, GMM_STATE_UNKNOWN);
    CHECK_EQUAL(OTHER(&other, .act = OTHER_COUNTS).value, 0);
    const gmm_result result = OTHER(&other, .act = OTHER_CLOSES).result;
    CHECK(result == GMM_ERROR_UNKNOWN_POINTER || result == GMM_ERROR_UNBALANCED);
  }
  for (uint32_t i = 0; i < 4; ++i) {
    CHECK_PATTERN(blocks[i], sizes[i], 40 + i);
    OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  }
  end_other(&other);
}

static void an_import_at_home_gives_the_original(void) {
  NEEDS_SHARING();
  gmm_ipc_handle handle;
  char *block = ALLOC(SIZE);
  write_pattern(block, SIZE, 6, GMM_STREAM_DEFAULT);
  MUST(gmm_ipc_export(context, block + 500, &handle));
  void *memory = NULL;
  for (int i = 0; i < 2; ++i) {
    OK(import(&handle, 60000, &memory));
    CHECK(memory == block + 500);
  }
  OK(gmm_ipc_close(context, memory));
  OK(gmm_ipc_close(context, memory));
  gmm_result result = gmm_ipc_close(context, memory);
  CHECK(result == GMM_ERROR_UNBALANCED || result == GMM_ERROR_UNKNOWN_POINTER);
  CHECK_PATTERN(block, SIZE, 6);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

// So many that exports of freed memory give way: those that live are found, and each has a token of its own.
static void exports_come_and_go(void) {
  NEEDS_SHARING();
  enum { COUNT = 300 };
  static void *blocks[COUNT];
  static gmm_ipc_handle handles[COUNT];
  void *memory = NULL;
  for (uint32_t i = 0; i < COUNT; ++i) {
    blocks[i] = ALLOC(4096);
    MUST(gmm_ipc_export(context, blocks[i], &handles[i]));
    if (i % 3 != 0) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  }
  for (uint32_t i = 0; i < COUNT; ++i) {
    if (i % 3 != 0) {
      RESULT(import(&handles[i], 60000, &memory), GMM_ERROR_IPC_PEER_GONE);
      continue;
    }
    OK(import(&handles[i], 60000, &memory));
    CHECK(memory == blocks[i]);
    OK(gmm_ipc_close(context, memory));
    OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  }
}

static void the_exporter_may_die(void) {
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

static void a_handle_of_freed_memory_is_gone(void) {
  NEEDS_SHARING();
  second_process other = start_other();
  gmm_ipc_handle handle = other_makes(&other, SIZE, 7);
  CHECK_EQUAL(OTHER(&other, .act = OTHER_FREES).result, GMM_OK);
  void *memory = (void *)0x1;
  RESULT(import(&handle, 60000, &memory), GMM_ERROR_IPC_PEER_GONE);
  CHECK(memory == NULL);
  handle = other_makes(&other, SIZE, 7);
  end_other(&other);  // with its context
  RESULT(import(&handle, 60000, &memory), GMM_ERROR_IPC_PEER_GONE);
}

static void the_importer_may_die(void) {
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
    gmm_result result = GMM_ERROR_BUSY;  // the exporter learns of the death a moment later
    SOON((result = gmm_pause(context, NULL, NULL)) != GMM_ERROR_BUSY);
    CHECK_MESSAGE(result == GMM_OK, "%s: %s", gmm_result_name(result), gmm_last_error_message());
    OK(gmm_resume(context, NULL, NULL));
  }
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  SOON(gmm_trim(context, NULL, NULL) >= 0 && stats().reserved_bytes == 0);
}

// A pause may make one extent of several, which are other memory for importers then.
static void a_new_handle_after_a_pause_is_good(void) {
  enum { COUNT = 12 };
  char *blocks[COUNT];
  void *first = NULL, *again = NULL;
  for (unsigned i = 0; i < COUNT; ++i) REQUIRE((blocks[i] = ALLOC(2 * MIB)) != NULL);
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
  for (unsigned i = 0; i < COUNT; ++i) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
}

static void memory_with_importers_is_not_paused(void) {
  NEEDS_SHARING();
  gmm_tag tag = make_tag("shared", GMM_CONTENTS_HOST);
  void *block = ALLOC_TAG(SIZE, tag);
  write_pattern(block, SIZE, 5, GMM_STREAM_DEFAULT);
  gmm_ipc_handle handle;
  MUST(gmm_ipc_export(context, block, &handle));
  second_process other = start_other();
  CHECK_EQUAL(other_imports(&other, &handle, SIZE, 5), GMM_OK);
  gmm_pause_desc desc = {.struct_size = sizeof desc, .tags = &tag, .tag_count = 1};
  uint64_t bytes = 3;
  RESULT(gmm_pause(context, &desc, &bytes), GMM_ERROR_BUSY);
  CHECK_EQUAL(bytes, 3);
  CHECK_EQUAL(query(block).state, GMM_STATE_ACTIVE);
  CHECK_PATTERN(block, SIZE, 5);
  RESULT(gmm_reset(context), GMM_ERROR_BUSY);
  CHECK_PATTERN(block, SIZE, 5);
  desc.flags = GMM_PAUSE_FORCE;  // the importer keeps the old pages and sees the revocation; the block gets new ones
  OK(gmm_pause(context, &desc, &bytes));
  desc.flags = 0;
  OK(gmm_resume(context, &desc, NULL));
  CHECK_PATTERN(block, SIZE, 5);
  write_pattern(block, SIZE, 77, GMM_STREAM_DEFAULT);
  gmm_result result = GMM_ERROR_BUSY;  // it is counted no more, though it has not closed the memory
  SOON((result = gmm_pause(context, &desc, NULL)) != GMM_ERROR_BUSY);
  CHECK_EQUAL(result, GMM_OK);
  CHECK_EQUAL(OTHER(&other, .act = OTHER_COPIES).result, GMM_ERROR_IPC_REVOKED);
  CHECK_EQUAL(OTHER(&other, .act = OTHER_FILLS).result, GMM_ERROR_IPC_REVOKED);
  CHECK_EQUAL(OTHER(&other, .act = OTHER_QUERIES).value, GMM_STATE_REVOKED);
  CHECK_EQUAL(other_imports(&other, &handle, SIZE, 5), GMM_ERROR_IPC_REVOKED);
  CHECK_EQUAL(OTHER(&other, .act = OTHER_CLOSES).result, GMM_OK);
  end_other(&other);
  OK(gmm_resume(context, &desc, NULL));
  CHECK_PATTERN(block, SIZE, 77);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

// The importer of a freed block goes while a forced pause has its heap.
static void an_importer_may_go_during_a_pause(void) {
  NEEDS_SHARING();
  gmm_tag tag = make_tag("held", GMM_CONTENTS_HOST);
  void *blocks[2] = {ALLOC_TAG(SIZE, tag), ALLOC_TAG(SIZE, tag)};
  gmm_ipc_handle handles[2];
  second_process other = start_other();
  for (uint32_t i = 0; i < 2; ++i) {
    write_pattern(blocks[i], SIZE, 5, GMM_STREAM_DEFAULT);
    MUST(gmm_ipc_export(context, blocks[i], &handles[i]));
  }
  CHECK_EQUAL(other_imports(&other, &handles[0], SIZE, 5), GMM_OK);
  void *own = NULL;
  OK(import(&handles[1], 60000, &own));
  for (uint32_t i = 0; i < 2; ++i) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  void *live = ALLOC_TAG(SIZE, tag);
  write_pattern(live, SIZE, 6, GMM_STREAM_DEFAULT);
  blocker hold = BLOCKER;
  gmm_pause_desc desc = one_tag(&tag);
  desc.flags = GMM_PAUSE_FORCE;
  desc.progress.fn = block_progress;
  desc.progress.user = &hold;
  gmm_ticket *ticket = NULL;
  MUST(gmm_pause_async(context, &desc, &ticket));
  wait_until_inside(&hold);
  CHECK_EQUAL(OTHER(&other, .act = OTHER_CLOSES).result, GMM_OK);
  OK(gmm_ipc_close(context, own));
  let_go(&hold);
  OK(gmm_ticket_wait(ticket, UINT64_MAX, NULL));
  OK(gmm_ticket_destroy(ticket));
  desc = one_tag(&tag);
  OK(gmm_resume(context, &desc, NULL));
  CHECK_PATTERN(live, SIZE, 6);
  OK(gmm_free(context, live, GMM_STREAM_DEFAULT));
  SOON(gmm_trim(context, NULL, NULL) >= 0 && stats().reserved_bytes == 0);
  end_other(&other);
}

static void bad_exports_are_refused(void) {
  NEEDS_SHARING();
  gmm_ipc_handle handle, before;
  memset(&handle, 0x77, sizeof handle);
  before = handle;
  int own = 0;
  RESULT(gmm_ipc_export(context, &own, &handle), GMM_ERROR_UNKNOWN_POINTER);
  char *block = ALLOC(SIZE);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  RESULT(gmm_ipc_export(context, block, &handle), GMM_ERROR_ALREADY_FREED);
  gmm_ipc_fd_info file = {.struct_size = sizeof file, .fd = -7};
  RESULT(gmm_ipc_export_fd(context, &own, GMM_FD_DEFAULT, &file), GMM_ERROR_UNKNOWN_POINTER);
  CHECK_EQUAL(file.fd, -7);
  CHECK(memcmp(&handle, &before, sizeof handle) == 0);
}

static void managed_memory_is_refused(void) {
  void *block = ALLOC(SIZE);
  gmm_ipc_handle handle;
  gmm_ipc_fd_info file = {.struct_size = sizeof file, .fd = -7};
  RESULT(gmm_ipc_export(context, block, &handle), GMM_ERROR_INVALID_KIND);
  RESULT(gmm_ipc_export_fd(context, block, GMM_FD_DEFAULT, &file), GMM_ERROR_INVALID_KIND);
  CHECK_EQUAL(file.fd, -7);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void changed_handles_are_refused(void) {
  NEEDS_SHARING();
  second_process other = start_other();
  const gmm_ipc_handle handle = other_makes(&other, 100000, 7);
  gmm_ipc_import_desc desc = import_desc(500);
  void *memory = NULL;
  gmm_ipc_handle bad;
  memset(&bad, 0, sizeof bad);
  RESULT(gmm_ipc_import(context, &bad, &desc, &memory), GMM_ERROR_IPC_INVALID_HANDLE);
  memset(&bad, 0xff, sizeof bad);
  RESULT(gmm_ipc_import(context, &bad, &desc, &memory), GMM_ERROR_IPC_INVALID_HANDLE);
  for (unsigned i = 0; i < sizeof bad.bytes; ++i) {
    bad = handle;
    bad.bytes[i] ^= 0x41;
    gmm_result result = gmm_ipc_import(context, &bad, &desc, &memory);
    bool fine = result == GMM_OK || result == GMM_ERROR_IPC_INVALID_HANDLE || result == GMM_ERROR_IPC_PEER_GONE ||
                result == GMM_ERROR_IPC_REFUSED || result == GMM_ERROR_IPC_TIMEOUT ||
                result == GMM_ERROR_INVALID_DEVICE || result == GMM_ERROR_DRIVER || result == GMM_ERROR_NOT_SUPPORTED;
    CHECK_MESSAGE(fine, "byte %u changed: %s: %s", i, gmm_result_name(result), gmm_last_error_message());
    if (result == GMM_OK) OK(gmm_ipc_close(context, memory));
  }
  desc.timeout_ms = 60000;
  OK(gmm_ipc_import(context, &handle, &desc, &memory));  // the exporter took no harm
  CHECK_PATTERN(memory, 100000, 7);
  OK(gmm_ipc_close(context, memory));
  desc.flags = 1;
  RESULT(gmm_ipc_import(context, &handle, &desc, &memory), GMM_ERROR_INVALID_FLAGS);
  desc.flags = 0;
  desc.device = 99;
  RESULT(gmm_ipc_import(context, &handle, &desc, &memory), GMM_ERROR_INVALID_DEVICE);
  end_other(&other);
}

static void close_tells_its_mistakes_apart(void) {
  int own = 0;
  RESULT(gmm_ipc_close(context, &own), GMM_ERROR_UNKNOWN_POINTER);
  void *block = ALLOC(1000);
  gmm_result result = gmm_ipc_close(context, block);
  CHECK_MESSAGE(result == GMM_ERROR_UNBALANCED || result == GMM_ERROR_UNKNOWN_POINTER, "%s", gmm_result_name(result));
  CHECK_EQUAL(query(block).state, GMM_STATE_ACTIVE);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void descriptors_carry_the_memory(void) {
  if ((device_info.capabilities & GMM_DEVICE_CAN_EXPORT_FD) == 0) SKIP("the device exports no descriptors");
  // A block over several driver allocations has no one descriptor; a dedicated one always has.
  char *before = ALLOC(5000), *block = ALLOC_FLAGS(SIZE, GMM_ALLOC_DEDICATED);
  REQUIRE(before != NULL && block != NULL);
  write_pattern(block, SIZE, 5, GMM_STREAM_DEFAULT);
  gmm_ipc_fd_info file = {.struct_size = sizeof file};
  MUST(gmm_ipc_export_fd(context, block + 1000, GMM_FD_DEFAULT, &file));
  const int32_t fd = file.fd;
  const uint64_t offset = file.offset, size = file.size;
  CHECK(fd >= 0);
  CHECK_EQUAL(file.type, kind == GMM_KIND_VMM && !on_host_backend() ? GMM_FD_OPAQUE : GMM_FD_FILE);
  CHECK_EQUAL(file.device, device);
  CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  gmm_pointer_info info = query(block);
  CHECK_EQUAL(size, info.allocation_size);
  CHECK_EQUAL(offset, (uint64_t)(block + 1000 - (char *)info.allocation_base));
  CHECK(offset + SIZE - 1000 <= size);
  if (on_host_backend()) {
    uint8_t *seen = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(seen != MAP_FAILED);
    for (uint64_t i = 0; i < SIZE - 1000; ++i)
      if (seen[offset + i] != pattern_at(1000 + i, 5)) {
        CHECK(!"the file shows the bytes of the block");
        break;
      }
    seen[offset] = (uint8_t)(pattern_at(1000, 5) + 1);
    uint8_t byte = 0;
    OK(gmm_copy(context, &byte, block + 1000, 1, GMM_STREAM_DEFAULT));
    OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
    CHECK_EQUAL(byte, (uint8_t)(pattern_at(1000, 5) + 1));
    munmap(seen, size);
  }
  close(fd);
  gmm_ipc_fd_info other = {.struct_size = sizeof other};
  OK(gmm_ipc_export_fd(context, block, GMM_FD_DEFAULT, &other));
  CHECK(other.fd >= 0);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
  OK(gmm_trim(context, NULL, NULL));
  CHECK(close(other.fd) == 0);  // still ours
  OK(gmm_free(context, before, GMM_STREAM_DEFAULT));
}

// A GPU's plain memory has no descriptor; memory of the host backend is a file. The query says which.
static void device_memory_has_a_descriptor_when_the_query_says_so(void) {
  void *block = ALLOC(SIZE);
  bool has = (query(block).ipc_routes & GMM_IPC_ROUTE_FD) != 0;
  gmm_ipc_fd_info file = {.struct_size = sizeof file, .fd = -7};
  gmm_result result = gmm_ipc_export_fd(context, block, GMM_FD_DEFAULT, &file);
  if (has)
    CHECK(result == GMM_OK && close(file.fd) == 0);
  else
    CHECK_MESSAGE((result == GMM_ERROR_INVALID_KIND || result == GMM_ERROR_NOT_SUPPORTED) && file.fd == -7, "%s",
                  gmm_result_name(result));
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

int main(int count, char **words) {
  if (count == 4 && strcmp(words[1], "--second") == 0) return other_main(words + 2);
  signal(SIGPIPE, SIG_IGN);
  KINDS(the_other_process_changes_the_bytes, SHAREABLE);
  KINDS(interior_addresses_are_shared, SHAREABLE);
  KINDS(imports_of_a_block_are_one_mapping, SHAREABLE);
  KINDS(an_import_at_home_gives_the_original, SHAREABLE);
  KINDS(exports_come_and_go, SHAREABLE);
  KINDS(the_exporter_may_die, SHAREABLE);
  KINDS(a_handle_of_freed_memory_is_gone, WITH_FILES);
  KINDS(the_importer_may_die, SHAREABLE);
  KINDS(a_new_handle_after_a_pause_is_good, 1u << GMM_KIND_VMM);
  KINDS(memory_with_importers_is_not_paused, 1u << GMM_KIND_VMM);
  KINDS(an_importer_may_go_during_a_pause, 1u << GMM_KIND_VMM);
  KINDS(bad_exports_are_refused, SHAREABLE);
  KINDS(managed_memory_is_refused, 1u << GMM_KIND_MANAGED);
  KINDS(changed_handles_are_refused, SHAREABLE);
  KINDS(close_tells_its_mistakes_apart, ALL_KINDS);
  KINDS(descriptors_carry_the_memory, WITH_FILES);
  KINDS(device_memory_has_a_descriptor_when_the_query_says_so, 1u << GMM_KIND_DEVICE);
  return finish_clean();
}
