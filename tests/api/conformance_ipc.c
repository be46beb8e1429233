// SPDX-License-Identifier: Apache-2.0
// ipc.h between two processes. The second process is this program, started again.
#include <sys/mman.h>

#include "../support/gmm_test.h"
#include "../support/second_process.h"
#include "ipc_second_process.h"

#define SIZE (3 * MIB + 1000)
#define SHAREABLE ((1u << GMM_KIND_DEVICE) | (1u << GMM_KIND_VMM) | (1u << GMM_KIND_HOST))

// A block says by which routes it can be shared.
static bool can_share(void) {
  void *block = ALLOC(1000);
  bool can = query(block).ipc_routes != 0;
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  return can;
}
#define NEEDS_SHARING()                                                           \
  do {                                                                            \
    if (!can_share()) SKIP("the device cannot share %s memory", kind_name(kind)); \
  } while (0)

static void the_second_process_changes_the_bytes(void) {
  NEEDS_SHARING();
  static const uint64_t some[] = {1, 1000, 100000, SIZE};
  for (unsigned i = 0; i < 4; ++i) {
    gmm_ipc_handle handle;
    void *before = ALLOC(some[i]);  // so that the block does not start its allocation
    void *block = shared_block(some[i], 3 + i, &handle);
    second_process second = start("changed", some[i], 3 + i);
    CHECK(send_bytes(second.to, &handle, sizeof handle));
    CHECK_EQUAL(second_wait(&second), 0);
    CHECK_PATTERN(block, some[i], 4 + i);
    OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
    OK(gmm_free(context, before, GMM_STREAM_DEFAULT));
  }
}

static void interior_addresses_are_shared(void) {
  NEEDS_SHARING();
  char *block = ALLOC(SIZE);
  REQUIRE(block != NULL);
  write_pattern(block, SIZE, 1, GMM_STREAM_DEFAULT);
  write_pattern(block + 70001, 5000, 9, GMM_STREAM_DEFAULT);
  gmm_ipc_handle handle;
  MUST(gmm_ipc_export(context, block + 70001, &handle));
  second_process second = start("changed", 5000, 9);
  CHECK(send_bytes(second.to, &handle, sizeof handle));
  CHECK_EQUAL(second_wait(&second), 0);
  CHECK_PATTERN(block + 70001, 5000, 10);
  CHECK_PATTERN(block, 70001, 1);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void many_blocks_of_one_extent_are_shared(void) {
  NEEDS_SHARING();
  void *blocks[6];
  for (unsigned i = 0; i < 6; ++i) {
    gmm_ipc_handle handle;
    blocks[i] = shared_block(5000, 40 + i, &handle);
    second_process second = start("twice", 5000, 40 + i);
    CHECK(send_bytes(second.to, &handle, sizeof handle));
    CHECK_EQUAL(second_wait(&second), 0);
  }
  for (unsigned i = 0; i < 6; ++i) {
    CHECK_PATTERN(blocks[i], 5000, 40 + i);
    OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  }
}

static void a_second_import_is_the_same_mapping(void) {
  NEEDS_SHARING();
  gmm_ipc_handle handle;
  void *block = shared_block(SIZE, 5, &handle);
  second_process second = start("twice", SIZE, 5);
  CHECK(send_bytes(second.to, &handle, sizeof handle));
  CHECK_EQUAL(second_wait(&second), 0);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void an_import_at_home_gives_the_original(void) {
  NEEDS_SHARING();
  gmm_ipc_handle handle;
  char *block = ALLOC(SIZE);
  write_pattern(block, SIZE, 6, GMM_STREAM_DEFAULT);
  MUST(gmm_ipc_export(context, block + 500, &handle));
  gmm_ipc_import_desc desc = import_desc();
  void *memory = NULL;
  OK(gmm_ipc_import(context, &handle, &desc, &memory));
  CHECK(memory == block + 500);
  OK(gmm_ipc_import(context, &handle, &desc, &memory));
  CHECK(memory == block + 500);
  OK(gmm_ipc_close(context, memory));
  OK(gmm_ipc_close(context, memory));
  CHECK_PATTERN(block, SIZE, 6);
  gmm_result result = gmm_ipc_close(context, memory);
  CHECK(result == GMM_ERROR_UNBALANCED || result == GMM_ERROR_UNKNOWN_POINTER);
  CHECK_PATTERN(block, SIZE, 6);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void the_exporter_may_die(void) {
  NEEDS_SHARING();
  second_process second = start("export", SIZE, 7);
  gmm_ipc_handle handle;
  REQUIRE(receive_bytes(second.from, &handle, sizeof handle));
  gmm_ipc_import_desc desc = import_desc();
  void *memory = NULL;
  MUST(gmm_ipc_import(context, &handle, &desc, &memory));
  CHECK_PATTERN(memory, SIZE, 7);
  CHECK((query(memory).flags & GMM_POINTER_PEER_GONE) == 0);
  second_kill(&second);
  SOON((query(memory).flags & GMM_POINTER_PEER_GONE) != 0);
  CHECK_EQUAL(query(memory).state, GMM_STATE_IMPORTED);
  bool legacy = kind == GMM_KIND_DEVICE && !on_host_backend();
  if (!legacy) {  // the driver's own IPC keeps nothing alive
    CHECK_PATTERN(memory, SIZE, 7);
    write_pattern(memory, SIZE, 8, GMM_STREAM_DEFAULT);
    CHECK_PATTERN(memory, SIZE, 8);
  } else {
    RESULT(gmm_fill(context, memory, 1, 10, GMM_STREAM_DEFAULT), GMM_ERROR_IPC_PEER_GONE);
  }
  OK(gmm_ipc_close(context, memory));
  RESULT(gmm_ipc_import(context, &handle, &desc, &memory), GMM_ERROR_IPC_PEER_GONE);
  CHECK(strlen(gmm_last_error_message()) > 20);
  CHECK_EQUAL(stats().imported_bytes, 0);
}

static void a_handle_of_freed_memory_is_gone(void) {
  NEEDS_SHARING();
  second_process second = start("export", SIZE, 7);
  gmm_ipc_handle handle;
  REQUIRE(receive_bytes(second.from, &handle, sizeof handle));
  char done = 0;
  CHECK(send_bytes(second.to, "f", 1));
  REQUIRE(receive_bytes(second.from, &done, 1));
  gmm_ipc_import_desc desc = import_desc();
  void *memory = (void *)0x1;
  RESULT(gmm_ipc_import(context, &handle, &desc, &memory), GMM_ERROR_IPC_PEER_GONE);
  CHECK(memory == NULL);
  CHECK(send_bytes(second.to, "e", 1));
  CHECK_EQUAL(second_wait(&second), 0);
}

static void the_exporter_may_end_its_context(void) {
  NEEDS_SHARING();
  second_process second = start("export", SIZE, 7);
  gmm_ipc_handle handle;
  REQUIRE(receive_bytes(second.from, &handle, sizeof handle));
  CHECK(send_bytes(second.to, "e", 1));
  CHECK_EQUAL(second_wait(&second), 0);
  gmm_ipc_import_desc desc = import_desc();
  void *memory = NULL;
  RESULT(gmm_ipc_import(context, &handle, &desc, &memory), GMM_ERROR_IPC_PEER_GONE);
}

static void the_importer_may_die(void) {
  NEEDS_SHARING();
  gmm_ipc_handle handle;
  void *block = shared_block(SIZE, 5, &handle);
  second_process second = start("hold", SIZE, 5);
  CHECK(send_bytes(second.to, &handle, sizeof handle));
  char told = 0;
  CHECK(receive_bytes(second.from, &told, 1));
  second_kill(&second);
  CHECK_PATTERN(block, SIZE, 5);
  if (kind == GMM_KIND_VMM) {
    gmm_result result = GMM_ERROR_BUSY;  // the exporter hears of the death a moment later
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
  enum { BLOCKS = 12 };
  char *blocks[BLOCKS];
  gmm_ipc_import_desc desc = import_desc();
  void *first = NULL, *again = NULL;
  for (unsigned i = 0; i < BLOCKS; ++i) REQUIRE((blocks[i] = ALLOC(2 * MIB)) != NULL);
  gmm_ipc_handle handle;
  OK(gmm_ipc_export(context, blocks[0] + 5, &handle));
  OK(gmm_ipc_import(context, &handle, &desc, &first));
  for (unsigned round = 0; round < 3; ++round) {
    OK(gmm_pause(context, NULL, NULL));
    OK(gmm_resume(context, NULL, NULL));
    for (unsigned i = 0; i < BLOCKS; i += 3) {
      OK(gmm_ipc_export(context, blocks[i] + 7, &handle));
      OK(gmm_ipc_import(context, &handle, &desc, &again));
      CHECK(again == blocks[i] + 7);
      OK(gmm_ipc_close(context, again));
    }
  }
  OK(gmm_ipc_close(context, first));
  RESULT(gmm_ipc_close(context, first), GMM_ERROR_UNBALANCED);
  for (unsigned i = 0; i < BLOCKS; ++i) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
}

static void memory_with_importers_is_not_paused(void) {
  NEEDS_SHARING();
  gmm_tag tag = make_tag("shared", GMM_CONTENTS_HOST);
  void *block = ALLOC_TAG(SIZE, tag);
  write_pattern(block, SIZE, 5, GMM_STREAM_DEFAULT);
  gmm_ipc_handle handle;
  MUST(gmm_ipc_export(context, block, &handle));
  second_process second = start("revoked", SIZE, 5);
  CHECK(send_bytes(second.to, &handle, sizeof handle));
  char told = 0;
  CHECK(receive_bytes(second.from, &told, 1));
  gmm_pause_desc desc = {.struct_size = sizeof desc, .tags = &tag, .tag_count = 1};
  uint64_t bytes = 3;
  RESULT(gmm_pause(context, &desc, &bytes), GMM_ERROR_BUSY);
  CHECK_EQUAL(bytes, 3);
  CHECK_EQUAL(query(block).state, GMM_STATE_ACTIVE);
  CHECK_PATTERN(block, SIZE, 5);
  RESULT(gmm_reset(context), GMM_ERROR_BUSY);
  CHECK_PATTERN(block, SIZE, 5);
  desc.flags = GMM_PAUSE_FORCE;  // the importer keeps the old pages but is told, we get new ones
  OK(gmm_pause(context, &desc, &bytes));
  desc.flags = 0;
  OK(gmm_resume(context, &desc, NULL));
  CHECK_PATTERN(block, SIZE, 5);
  write_pattern(block, SIZE, 77, GMM_STREAM_DEFAULT);
  gmm_result result = GMM_ERROR_BUSY;  // it is counted no more, though it has not closed the memory
  SOON((result = gmm_pause(context, &desc, NULL)) != GMM_ERROR_BUSY);
  CHECK_EQUAL(result, GMM_OK);
  CHECK(send_bytes(second.to, "o", 1));
  CHECK_EQUAL(second_wait(&second), 0);
  OK(gmm_resume(context, &desc, NULL));
  CHECK_PATTERN(block, SIZE, 77);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void the_importer_sees_later_changes(void) {
  NEEDS_SHARING();
  gmm_ipc_handle handle;
  void *block = shared_block(SIZE, 5, &handle);
  second_process second = start("hold", SIZE, 5);
  CHECK(send_bytes(second.to, &handle, sizeof handle));
  char told = 0;
  CHECK(receive_bytes(second.from, &told, 1));
  write_pattern(block, SIZE, 6, GMM_STREAM_DEFAULT);
  CHECK(send_bytes(second.to, "n", 1));
  CHECK_EQUAL(second_wait(&second), 0);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void several_importers_at_once(void) {
  NEEDS_SHARING();
  gmm_ipc_handle handle;
  void *block = shared_block(SIZE, 5, &handle);
  second_process second[4];
  char told = 0;
  for (unsigned i = 0; i < 4; ++i) second[i] = start("hold", SIZE, 5);
  for (unsigned i = 0; i < 4; ++i) CHECK(send_bytes(second[i].to, &handle, sizeof handle));
  for (unsigned i = 0; i < 4; ++i) CHECK(receive_bytes(second[i].from, &told, 1));
  for (unsigned i = 0; i < 4; ++i) CHECK(send_bytes(second[i].to, "o", 1));
  for (unsigned i = 0; i < 4; ++i) CHECK_EQUAL(second_wait(&second[i]), 0);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void another_user_is_refused(void) {
  NEEDS_SHARING();
  if (geteuid() != 0) SKIP("needs root to become another user");
  if (kind == GMM_KIND_DEVICE && !on_host_backend()) SKIP("the driver decides about its own handles");
  gmm_ipc_handle handle;
  void *block = shared_block(SIZE, 5, &handle);
  second_process second = start("as-nobody", SIZE, 5);
  CHECK(send_bytes(second.to, &handle, sizeof handle));
  CHECK_EQUAL(second_wait(&second), 0);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void bad_exports_are_refused(void) {
  NEEDS_SHARING();
  gmm_ipc_handle handle, before;
  memset(&handle, 0x77, sizeof handle);
  before = handle;
  int foreign = 0;
  RESULT(gmm_ipc_export(context, &foreign, &handle), GMM_ERROR_UNKNOWN_POINTER);
  char *block = ALLOC(SIZE);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  RESULT(gmm_ipc_export(context, block, &handle), GMM_ERROR_ALREADY_FREED);
  gmm_ipc_fd_info file = {.struct_size = sizeof file, .fd = -7};
  RESULT(gmm_ipc_export_fd(context, &foreign, GMM_FD_DEFAULT, &file), GMM_ERROR_UNKNOWN_POINTER);
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
  second_process second = start("export", 100000, 7);
  gmm_ipc_handle handle;
  REQUIRE(receive_bytes(second.from, &handle, sizeof handle));
  gmm_ipc_import_desc desc = import_desc();
  desc.timeout_ms = 500;
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
  CHECK(send_bytes(second.to, "e", 1));
  CHECK_EQUAL(second_wait(&second), 0);
}

static void close_tells_its_mistakes_apart(void) {
  int foreign = 0;
  RESULT(gmm_ipc_close(context, &foreign), GMM_ERROR_UNKNOWN_POINTER);
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

// A GPU's plain memory has no descriptor; what the host backend gives is a file. The query says which.
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
  if (count == 7 && strcmp(words[1], "--second") == 0) return second_main(words + 2);
  signal(SIGPIPE, SIG_IGN);
  const gmm_kind_mask files = (1u << GMM_KIND_VMM) | (1u << GMM_KIND_HOST);
  KINDS(the_second_process_changes_the_bytes, SHAREABLE);
  KINDS(interior_addresses_are_shared, SHAREABLE);
  KINDS(many_blocks_of_one_extent_are_shared, SHAREABLE);
  KINDS(a_second_import_is_the_same_mapping, SHAREABLE);
  KINDS(an_import_at_home_gives_the_original, SHAREABLE);
  KINDS(the_exporter_may_die, SHAREABLE);
  KINDS(a_handle_of_freed_memory_is_gone, files);
  KINDS(the_exporter_may_end_its_context, files);
  KINDS(the_importer_may_die, SHAREABLE);
  KINDS(the_importer_sees_later_changes, SHAREABLE);
  KINDS(several_importers_at_once, SHAREABLE);
  KINDS(a_new_handle_after_a_pause_is_good, 1u << GMM_KIND_VMM);
  KINDS(memory_with_importers_is_not_paused, 1u << GMM_KIND_VMM);
  KINDS(another_user_is_refused, SHAREABLE);
  KINDS(bad_exports_are_refused, SHAREABLE);
  KINDS(managed_memory_is_refused, 1u << GMM_KIND_MANAGED);
  KINDS(changed_handles_are_refused, SHAREABLE);
  KINDS(close_tells_its_mistakes_apart, ALL_KINDS);
  KINDS(descriptors_carry_the_memory, files);
  KINDS(device_memory_has_a_descriptor_when_the_query_says_so, 1u << GMM_KIND_DEVICE);
  return finish_clean();
}
