// SPDX-License-Identifier: Apache-2.0
// The reach of an import, the memory that it keeps alive, and the calls that a stopped exporter holds up (ipc.h).
#include <dirent.h>
#include <sys/stat.h>

#include "fault_support.h"
#include "ipc_support.h"

#define SIZE (3 * MIB + 1000)
#define SMALL ((uint64_t)5000)

static void stop(const second_process *other) {
  int status = 0;
  CHECK(kill(other->pid, SIGSTOP) == 0);
  CHECK(waitpid(other->pid, &status, WUNTRACED) == other->pid && WIFSTOPPED(status));
}

// --- The reach of an import -----------------------------------------------------------------------------------------

static void nothing_reaches_past_an_import(void) {
  NEEDS_SHARING();
  second_process second = start_other();
  const gmm_ipc_handle handles[2] = {other_makes(&second, SMALL, 1), other_makes(&second, SMALL, 2)};
  void *memory = NULL;
  MUST(import(&handles[0], 60000, &memory));
  char *block = memory, *own = ALLOC(SIZE);
  REQUIRE(own != NULL);
  uint64_t whole = query(memory).allocation_size;
  CHECK(query(memory).base == memory);
  CHECK_EQUAL(query(memory).size, SMALL);
  const uint64_t past[] = {SMALL + 1, whole, whole + 1, UINT64_MAX};
  for (unsigned i = 0; i < 4; ++i) {
    RESULT(gmm_fill(context, block, 9, past[i], GMM_STREAM_DEFAULT), GMM_ERROR_INVALID_SIZE);
    RESULT(gmm_fill(context, block + SMALL - 1, 9, past[i], GMM_STREAM_DEFAULT), GMM_ERROR_INVALID_SIZE);
    CHECK(strlen(gmm_last_error_message()) > 20);
    if (past[i] > SIZE) continue;
    RESULT(gmm_copy(context, block, own, past[i], GMM_STREAM_DEFAULT), GMM_ERROR_INVALID_SIZE);
    RESULT(gmm_copy(context, own, block, past[i], GMM_STREAM_DEFAULT), GMM_ERROR_INVALID_SIZE);
  }
  CHECK_PATTERN(block, SMALL, 1);  // and the call that failed wrote nothing
  OK(gmm_fill(context, block, 9, SMALL, GMM_STREAM_DEFAULT));
  OK(gmm_copy(context, own, block, SMALL, GMM_STREAM_DEFAULT));
  OK(gmm_fill(context, block + SMALL - 1, 9, 1, GMM_STREAM_DEFAULT));
  void *neighbour = NULL;
  MUST(import(&handles[1], 60000, &neighbour));
  CHECK_PATTERN(neighbour, SMALL, 2);
  OK(gmm_ipc_close(context, neighbour));
  OK(gmm_ipc_close(context, memory));
  OK(gmm_free(context, own, GMM_STREAM_DEFAULT));
  CHECK_EQUAL(stats().imported_bytes, 0);
  end_other(&second);
}

// The bytes of the freed block are mapped, and are another block's now.
static void a_handle_of_a_freed_block_gives_no_other_block(void) {
  NEEDS_SHARING();
  second_process second = start_other();
  const gmm_ipc_handle kept = other_makes(&second, SMALL, 1);
  other_order make = {.act = OTHER_MAKES, .slot = 1, .size = SMALL, .seed = 2};
  const other_answer freed = order_other(&second, make);
  void *first = NULL, *other = (void *)0x1;
  // Before any import: a connection for the first block would keep the second one's bytes too.
  CHECK_EQUAL(OTHER(&second, .act = OTHER_FREES, .slot = 1).result, GMM_OK);
  make.seed = 3;
  const other_answer again = order_other(&second, make);
  CHECK(again.memory == freed.memory);
  MUST(import(&kept, 60000, &first));
  RESULT(import(&freed.handle, 60000, &other), GMM_ERROR_IPC_PEER_GONE);
  CHECK(other == NULL);
  MUST(import(&again.handle, 60000, &other));  // the new block's handle is good
  CHECK_PATTERN(other, SMALL, 3);
  CHECK_PATTERN(first, SMALL, 1);
  OK(gmm_ipc_close(context, first));
  CHECK_PATTERN(other, SMALL, 3);
  RESULT(import(&freed.handle, 60000, &first), GMM_ERROR_IPC_PEER_GONE);
  OK(gmm_ipc_close(context, other));
  CHECK_EQUAL(stats().imported_bytes, 0);
  end_other(&second);  // with its context
  RESULT(import(&kept, 60000, &first), GMM_ERROR_IPC_PEER_GONE);
}

// --- Memory that an import keeps alive ------------------------------------------------------------------------------

static void an_import_at_home_keeps_the_memory(void) {
  NEEDS_SHARING();
  const uint64_t sizes[] = {SMALL, SIZE};
  for (unsigned i = 0; i < 2; ++i) {
    uint64_t size = sizes[i];
    char *block = ALLOC(size);
    REQUIRE(block != NULL);
    write_pattern(block, size, 4, GMM_STREAM_DEFAULT);
    gmm_ipc_handle handle;
    void *memory = NULL, *more = NULL;
    gmm_result result = gmm_ipc_close(context, block);  // which nobody imported
    CHECK(result == GMM_ERROR_UNKNOWN_POINTER || result == GMM_ERROR_UNBALANCED);
    MUST(gmm_ipc_export(context, block + 10, &handle));
    MUST(import(&handle, 60000, &memory));
    MUST(import(&handle, 60000, &more));
    CHECK(memory == block + 10 && more == memory);
    CHECK_EQUAL(query(memory).state, GMM_STATE_ACTIVE);
    OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
    RESULT(gmm_free(context, block, GMM_STREAM_DEFAULT), GMM_ERROR_ALREADY_FREED);
    OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));
    OK(gmm_trim(context, NULL, NULL));
    for (unsigned k = 0; k < 20; ++k) {  // none of them gets the bytes
      char *other = ALLOC(size);
      REQUIRE(other != NULL);
      CHECK(other + size <= block || block + size <= other);
      OK(gmm_fill(context, other, 0xee, size, GMM_STREAM_DEFAULT));
      OK(gmm_free(context, other, GMM_STREAM_DEFAULT));
    }
    gmm_pointer_info info = query(memory);
    CHECK_EQUAL(info.state, GMM_STATE_IMPORTED);
    CHECK_EQUAL(info.kind, kind);
    CHECK_EQUAL(info.device, device);
    CHECK(info.base == block);
    CHECK_EQUAL(info.size, size);
    CHECK_PATTERN(block, size, 4);
    write_pattern(block, size, 5, GMM_STREAM_DEFAULT);
    RESULT(gmm_fill(context, block, 1, size + 1, GMM_STREAM_DEFAULT), GMM_ERROR_INVALID_SIZE);
    RESULT(import(&handle, 60000, &more), GMM_ERROR_IPC_PEER_GONE);  // the handle ended with the block
    RESULT(gmm_ipc_export(context, block, &handle), GMM_ERROR_ALREADY_FREED);
    OK(gmm_ipc_close(context, memory));
    CHECK_PATTERN(block, size, 5);
    OK(gmm_ipc_close(context, block));
    CHECK(query(memory).state != GMM_STATE_IMPORTED);
    result = gmm_ipc_close(context, block);
    CHECK(result == GMM_ERROR_ALREADY_FREED || result == GMM_ERROR_UNKNOWN_POINTER || result == GMM_ERROR_UNBALANCED);
    SOON(gmm_trim(context, NULL, NULL) >= 0 && stats().reserved_bytes == 0);
  }
}

static void an_import_at_home_stays_through_a_pause(void) {
  gmm_tag tag = make_tag("kept", GMM_CONTENTS_HOST);
  const uint64_t sizes[] = {SMALL, SIZE};
  char *blocks[2];
  void *memory[2];
  gmm_ipc_handle handle;
  for (unsigned i = 0; i < 2; ++i) {
    blocks[i] = ALLOC_TAG(sizes[i], tag);
    REQUIRE(blocks[i] != NULL);
    write_pattern(blocks[i], sizes[i], 6 + i, GMM_STREAM_DEFAULT);
    MUST(gmm_ipc_export(context, blocks[i], &handle));
    MUST(import(&handle, 60000, &memory[i]));
  }
  gmm_pause_desc desc = one_tag(&tag);
  OK(gmm_pause(context, &desc, NULL));  // while the blocks live
  OK(gmm_resume(context, &desc, NULL));
  for (unsigned i = 0; i < 2; ++i) {
    CHECK_PATTERN(blocks[i], sizes[i], 6 + i);
    OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  }
  OK(gmm_pause(context, &desc, NULL));  // while only the imports hold them
  for (unsigned i = 0; i < 2; ++i) {
    CHECK_EQUAL(query(memory[i]).state, GMM_STATE_IMPORTED);
    RESULT(gmm_fill(context, memory[i], 1, 1, GMM_STREAM_DEFAULT), GMM_ERROR_PAUSED);
  }
  OK(gmm_resume(context, &desc, NULL));
  for (unsigned i = 0; i < 2; ++i) {
    CHECK_PATTERN(memory[i], sizes[i], 6 + i);
    OK(gmm_ipc_close(context, memory[i]));
  }
  SOON(gmm_trim(context, NULL, NULL) >= 0 && stats().reserved_bytes == 0);
}

// --- Waits ----------------------------------------------------------------------------------------------------------

typedef struct waiting_import {
  gmm_ipc_handle handle;
  atomic_int entered, returned;
  gmm_result result;
  void *memory;
} waiting_import;
static void *import_slowly(void *user) {
  waiting_import *self = user;
  atomic_store(&self->entered, 1);
  self->result = import(&self->handle, 20000, &self->memory);
  atomic_store(&self->returned, 1);
  return NULL;
}

// An import that waits for a stopped exporter holds up no other import or close.
static void a_stopped_exporter_holds_up_its_importer_only(void) {
  NEEDS_SHARING();
  second_process stopped = start_other(), other = start_other();
  waiting_import slow[2] = {0};
  slow[0].handle = slow[1].handle = other_makes(&stopped, SIZE, 7);
  const gmm_ipc_handle handle = other_makes(&other, SIZE, 7);
  void *memory = NULL, *more = NULL;
  MUST(import(&handle, 60000, &memory));
  stop(&stopped);
  pthread_t threads[2];
  for (unsigned i = 0; i < 2; ++i) {  // the second one waits for the first
    REQUIRE(pthread_create(&threads[i], NULL, import_slowly, &slow[i]) == 0);
    SOON(atomic_load(&slow[i].entered));
    sleep_ms(20);
  }
  OK(import(&handle, 60000, &more));
  CHECK(more == memory);
  OK(gmm_ipc_close(context, more));
  OK(gmm_ipc_close(context, memory));
  OK(import(&handle, 60000, &memory));
  CHECK_PATTERN(memory, SIZE, 7);
  OK(gmm_ipc_close(context, memory));
  CHECK(!atomic_load(&slow[0].returned) && !atomic_load(&slow[1].returned));
  kill(stopped.pid, SIGCONT);
  for (unsigned i = 0; i < 2; ++i) {
    pthread_join(threads[i], NULL);
    CHECK_EQUAL(slow[i].result, GMM_OK);
  }
  CHECK(slow[0].memory == slow[1].memory && slow[0].memory != NULL);
  CHECK_PATTERN(slow[0].memory, SIZE, 7);
  OK(gmm_ipc_close(context, slow[0].memory));
  CHECK_PATTERN(slow[0].memory, SIZE, 7);
  // Stopped again: a close asks nobody.
  stop(&stopped);
  OK(gmm_ipc_close(context, slow[0].memory));
  CHECK_EQUAL(stats().imported_bytes, 0);
  kill(stopped.pid, SIGCONT);
  end_other(&stopped);
  end_other(&other);
}

// The exporter's thread does not wait for a pause, so importers of other memory are served during it.
static void an_importer_waits_for_no_other_tags_pause(void) {
  gmm_tag paused = make_tag("paused", GMM_CONTENTS_HOST), active = make_tag("active", GMM_CONTENTS_HOST);
  void *away = ALLOC_TAG(SIZE, paused), *here = ALLOC_TAG(SIZE, active);
  REQUIRE(away != NULL && here != NULL);
  write_pattern(away, SIZE, 1, GMM_STREAM_DEFAULT);
  write_pattern(here, SIZE, 2, GMM_STREAM_DEFAULT);
  gmm_ipc_handle handles[2];
  MUST(gmm_ipc_export(context, away, &handles[0]));
  MUST(gmm_ipc_export(context, here, &handles[1]));
  second_process second = start_other();
  CHECK_EQUAL(other_reads(&second, &handles[0], SMALL, 1, 60000), GMM_OK);
  gmm_result result = GMM_ERROR_BUSY;  // until the exporter has heard of the close
  blocker hold = BLOCKER;
  gmm_pause_desc desc = one_tag(&paused);
  SOON((result = gmm_pause(context, &desc, NULL)) != GMM_ERROR_BUSY);
  OK(result);
  OK(gmm_resume(context, &desc, NULL));
  MUST(gmm_ipc_export(context, away, &handles[0]));
  gmm_ticket *ticket = start_held(true, &paused, &hold);
  CHECK_EQUAL(other_reads(&second, &handles[0], SMALL, 1, 200), GMM_ERROR_IPC_TIMEOUT);
  CHECK_EQUAL(other_reads(&second, &handles[1], SMALL, 2, 10000), GMM_OK);
  CHECK_EQUAL(other_reads(&second, &handles[1], SMALL, 2, 10000), GMM_OK);
  CHECK_EQUAL(gmm_ticket_wait(ticket, 0, NULL), GMM_ERROR_NOT_READY);  // all that was during the pause
  let_go(&hold);
  OK(gmm_ticket_wait(ticket, UINT64_MAX, NULL));
  OK(gmm_ticket_destroy(ticket));
  CHECK_EQUAL(other_reads(&second, &handles[0], SMALL, 1, 10000), GMM_ERROR_IPC_REFUSED);  // it is paused
  OK(gmm_resume(context, &desc, NULL));
  CHECK_PATTERN(away, SIZE, 1);
  MUST(gmm_ipc_export(context, away, &handles[0]));
  CHECK_EQUAL(other_reads(&second, &handles[0], SMALL, 1, 60000), GMM_OK);
  end_other(&second);
  OK(gmm_free(context, away, GMM_STREAM_DEFAULT));
  OK(gmm_free(context, here, GMM_STREAM_DEFAULT));
  SOON(gmm_trim(context, NULL, NULL) >= 0 && stats().reserved_bytes == 0);
}

// An import that comes while a pause waits for the device is in the way like an earlier one.
static void an_import_during_a_pause_is_in_its_way(void) {
  gmm_tag tag = make_tag("shared", GMM_CONTENTS_HOST), other = make_tag("other", GMM_CONTENTS_DROP);
  void *block = ALLOC_TAG(SIZE, tag), *elsewhere = ALLOC_TAG(SIZE, other);
  REQUIRE(block != NULL && elsewhere != NULL);
  write_pattern(block, SIZE, 2, GMM_STREAM_DEFAULT);
  write_pattern(elsewhere, SIZE, 3, GMM_STREAM_DEFAULT);
  gmm_ipc_handle handle, other_handle;
  MUST(gmm_ipc_export(context, block, &handle));
  MUST(gmm_ipc_export(context, elsewhere, &other_handle));
  second_process second = start_other(), third = start_other();
  gmm_stream stream = NULL;
  MUST(gmm_stream_create(context, &(gmm_stream_desc){.struct_size = sizeof(gmm_stream_desc), .device = device},
                         &stream));
  static gate held;
  gate_close(&held, stream, GATE_S);
  SOON(atomic_load(&held.entered));
  gmm_pause_desc desc = one_tag(&tag);
  gmm_ticket *ticket = NULL;
  MUST(gmm_pause_async(context, &desc, &ticket));
  sleep_ms(50);  // so that it waits for the gate
  CHECK_EQUAL(other_imports(&second, &handle, SMALL, 2), GMM_OK);
  CHECK_EQUAL(other_reads(&third, &other_handle, SMALL, 3, 10000), GMM_OK);
  CHECK_EQUAL(gmm_ticket_wait(ticket, 0, NULL), GMM_ERROR_NOT_READY);
  atomic_store(&held.open, 1);
  RESULT(gmm_ticket_wait(ticket, UINT64_MAX, NULL), GMM_ERROR_BUSY);
  RESULT(gmm_ticket_destroy(ticket), GMM_OK);
  CHECK_EQUAL(query(block).state, GMM_STATE_ACTIVE);
  CHECK_PATTERN(block, SIZE, 2);
  CHECK_EQUAL(OTHER(&second, .act = OTHER_CLOSES).result, GMM_OK);
  gmm_result result = GMM_ERROR_BUSY;
  SOON((result = gmm_pause(context, &desc, NULL)) != GMM_ERROR_BUSY);
  OK(result);
  OK(gmm_resume(context, &desc, NULL));
  CHECK_PATTERN(block, SIZE, 2);
  end_other(&second);
  end_other(&third);
  OK(gmm_stream_destroy(context, stream));
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_free(context, elsewhere, GMM_STREAM_DEFAULT));
  SOON(gmm_trim(context, NULL, NULL) >= 0 && stats().reserved_bytes == 0);
}

// --- The socket -----------------------------------------------------------------------------------------------------

static unsigned delete_sockets(const char *folder) {
  unsigned deleted = 0;
  DIR *listing = opendir(folder);
  for (struct dirent *entry; listing != NULL && (entry = readdir(listing)) != NULL;) {
    char path[512];
    snprintf(path, sizeof path, "%s/%.255s", folder, entry->d_name);
    if (strstr(entry->d_name, ".sock") != NULL && unlink(path) == 0) ++deleted;
  }
  if (listing != NULL) closedir(listing);
  return deleted;
}

static void a_deleted_socket_is_made_anew(void) {
  NEEDS_SHARING();
  char folder[] = "/tmp/gmm-ipc-socket-XXXXXX", inner[64];
  REQUIRE(mkdtemp(folder) != NULL);
  snprintf(inner, sizeof inner, "%s/sockets", folder);
  setenv("GMM_IPC_DIR", inner, 1);
  void *block = ALLOC(SIZE);
  REQUIRE(block != NULL);
  write_pattern(block, SIZE, 3, GMM_STREAM_DEFAULT);
  gmm_ipc_handle first, handle;
  MUST(gmm_ipc_export(context, block, &first));
  second_process second = start_other();
  CHECK_EQUAL(other_reads(&second, &first, SMALL, 3, 60000), GMM_OK);
  second_process late[3];
  for (unsigned way = 0; way < 3; ++way) {  // the socket goes; it goes twice; its folder goes too
    for (unsigned times = 0; times < (way == 1 ? 2u : 1u); ++times) CHECK(delete_sockets(inner) >= 1 || times == 1);
    if (way == 2) SOON((delete_sockets(inner), rmdir(inner)) == 0);  // gmm may have been faster
    OK(gmm_ipc_export(context, block, &handle));
    late[way] = start_other();  // with no connection from before
    CHECK_EQUAL(other_reads(&late[way], &handle, SMALL, 3, 60000), GMM_OK);
    CHECK_EQUAL(other_reads(&late[way], &first, SMALL, 3, 60000), GMM_OK);  // earlier handles are good again
    CHECK_EQUAL(other_reads(&second, &first, SMALL, 3, 60000), GMM_OK);
  }
  for (unsigned way = 0; way < 3; ++way) end_other(&late[way]);
  end_other(&second);
  // A folder that cannot be made: a clear error, and a retry works.
  int file = -1;
  SOON((delete_sockets(inner), rmdir(inner), file = open(inner, O_CREAT | O_EXCL | O_CLOEXEC | O_WRONLY, 0600)) >= 0);
  close(file);
  RESULT(gmm_ipc_export(context, block, &handle), GMM_ERROR_SYSTEM);
  CHECK(strstr(gmm_last_error_message(), inner) != NULL);
  CHECK(unlink(inner) == 0);
  OK(gmm_ipc_export(context, block, &handle));
  second = start_other();
  CHECK_EQUAL(other_reads(&second, &handle, SMALL, 3, 60000), GMM_OK);
  end_other(&second);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_context_release(context));
  context = open_context(2);
  CHECK_EQUAL(delete_sockets(inner), 0);  // the end of the context removed it
  CHECK(rmdir(inner) == 0 && rmdir(folder) == 0);
  unsetenv("GMM_IPC_DIR");
}

int main(int count, char **words) {
  if (count == 4 && strcmp(words[1], "--second") == 0) return other_main(words + 2);
  signal(SIGPIPE, SIG_IGN);
  KINDS(nothing_reaches_past_an_import, SHAREABLE);
  KINDS(a_handle_of_a_freed_block_gives_no_other_block, SHAREABLE);
  KINDS(an_import_at_home_keeps_the_memory, SHAREABLE);
  KINDS(an_import_at_home_stays_through_a_pause, 1u << GMM_KIND_VMM);
  KINDS(a_stopped_exporter_holds_up_its_importer_only, SHAREABLE);
  KINDS(an_importer_waits_for_no_other_tags_pause, 1u << GMM_KIND_VMM);
  KINDS(an_import_during_a_pause_is_in_its_way, 1u << GMM_KIND_VMM);
  KINDS(a_deleted_socket_is_made_anew, (1u << GMM_KIND_VMM) | (1u << GMM_KIND_DEVICE));
  return finish_clean();
}
