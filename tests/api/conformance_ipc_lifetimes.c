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

CASE_OF_KINDS(nothing_reaches_past_an_import, SHAREABLE) {
  NEEDS_SHARING();
  second_process second = start_other();
  const gmm_ipc_handle handles[2] = {other_makes(&second, SMALL, 1), other_makes(&second, SMALL, 2)};
  void *memory = NULL;
  MUST(import(&handles[0], 60000, &memory));
  char *block = memory, *own = ALLOC(SIZE);
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
  RESULT(gmm_free(context, memory, GMM_STREAM_DEFAULT), GMM_ERROR_INVALID_KIND);
  char *const last = (char *)query(memory).allocation_base + whole - 1;
  if (last >= block + SMALL) CHECK(gmm_fill(context, last, 9, 1, GMM_STREAM_DEFAULT) < 0);
  if (last >= block + SMALL) CHECK(gmm_ipc_close(context, last) < 0);
  CHECK_PATTERN(block, SMALL, 1);  // and the call that failed wrote nothing
  OK(gmm_fill(context, block, 9, SMALL, GMM_STREAM_DEFAULT));
  OK(gmm_copy(context, own, block, SMALL, GMM_STREAM_DEFAULT));
  OK(gmm_fill(context, block + SMALL - 1, 9, 1, GMM_STREAM_DEFAULT));
  void *neighbour = NULL;
  MUST(import(&handles[1], 60000, &neighbour));
  CHECK_PATTERN(neighbour, SMALL, 2);
  OK(gmm_ipc_close(context, neighbour));
  // An import ends with its context.
  gmm_context *const late = open_context(2);
  OK(gmm_ipc_import(late, &handles[1], IMPORT_WITHIN(60000), &neighbour));
  OK(gmm_context_release(late));
  OK(gmm_ipc_close(context, memory));
  FREE(own);
  CHECK_EQUAL(stats().imported_bytes, 0);
  end_other(&second);
}

// The bytes of the freed block are mapped, and are another block's now.
CASE_OF_KINDS(a_handle_of_a_freed_block_gives_no_other_block, SHAREABLE) {
  NEEDS_SHARING();
  second_process second = start_other();
  const gmm_ipc_handle kept = other_makes(&second, SMALL, 1);
  other_order make = {.act = OTHER_MAKES, .slot = 1, .size = SMALL, .seed = 2};
  const other_answer freed = order_other(&second, make);
  void *first = NULL, *other = (void *)0x1;
  // Before any import: a connection for the first block would keep the second one's bytes too.
  OTHER_OK(&second, .act = OTHER_FREES, .slot = 1);
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

CASE_OF_KINDS(an_import_at_home_keeps_the_memory, SHAREABLE) {
  NEEDS_SHARING();
  const uint64_t sizes[] = {SMALL, SIZE};
  for (unsigned i = 0; i < 2; ++i) {
    uint64_t size = sizes[i];
    char *block = ALLOC(size);
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
    FREE(block);
    RESULT(gmm_free(context, block, GMM_STREAM_DEFAULT), GMM_ERROR_ALREADY_FREED);
    OK(gmm_trim(context, NULL, NULL));
    for (unsigned k = 0; k < 20; ++k) {  // none of them gets the bytes
      char *other = ALLOC(size);
      CHECK(other + size <= block || block + size <= other);
      OK(gmm_fill(context, other, 0xee, size, GMM_STREAM_DEFAULT));
      FREE(other);
    }
    const gmm_pointer_info info = query(memory);
    CHECK(info.state == GMM_STATE_IMPORTED && info.kind == kind && info.device == device);
    CHECK(info.base == block && info.size == size);
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
    NOTHING_STAYS_SOON();
  }
}

VMM_CASE(an_import_at_home_stays_through_a_pause) {
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
    FREE(blocks[i]);
  }
  OK(pause_of(tag));  // while only the imports hold them
  for (unsigned i = 0; i < 2; ++i) {
    CHECK_EQUAL(query(memory[i]).state, GMM_STATE_IMPORTED);
    RESULT(gmm_fill(context, memory[i], 1, 1, GMM_STREAM_DEFAULT), GMM_ERROR_PAUSED);
  }
  OK(resume_of(tag));
  for (unsigned i = 0; i < 2; ++i) {
    CHECK_PATTERN(memory[i], sizes[i], 6 + i);
    OK(gmm_ipc_close(context, memory[i]));
  }
  NOTHING_STAYS_SOON();
}

// --- Waits ----------------------------------------------------------------------------------------------------------

typedef struct waiting_import {
  gmm_ipc_handle handle;
  gmm_result result;
  void *memory;
} waiting_import;
static void *import_slowly(void *user) {
  waiting_import *self = user;
  self->result = import(&self->handle, 20000, &self->memory);
  return NULL;
}

// conformance_waits.c shows that nobody else waits.
CASE_OF_KINDS(a_stopped_exporter_holds_up_its_importers, SHAREABLE) {
  NEEDS_SHARING();
  second_process stopped = start_other();
  waiting_import slow[2] = {0};
  slow[0].handle = slow[1].handle = other_makes(&stopped, SIZE, 7);
  stop(&stopped);
  pthread_t threads[2];
  for (unsigned i = 0; i < 2; ++i) {  // the second one waits for the first
    threads[i] = start_thread(import_slowly, &slow[i]);
    sleep_ms(20);
  }
  kill(stopped.pid, SIGCONT);
  for (unsigned i = 0; i < 2; ++i) {
    pthread_join(threads[i], NULL);
    CHECK_EQUAL(slow[i].result, GMM_OK);
  }
  CHECK(slow[0].memory == slow[1].memory && slow[0].memory != NULL);
  OK(gmm_ipc_close(context, slow[0].memory));
  CHECK_PATTERN(slow[0].memory, SIZE, 7);
  // Stopped again: a close asks nobody.
  stop(&stopped);
  OK(gmm_ipc_close(context, slow[0].memory));
  CHECK_EQUAL(stats().imported_bytes, 0);
  kill(stopped.pid, SIGCONT);
  end_other(&stopped);
}

VMM_CASE(paused_memory_is_imported_after_its_resume) {
  const gmm_tag tag = make_tag("paused", GMM_CONTENTS_HOST);
  void *block = FILLED_TAG(SIZE, tag, 1);
  gmm_ipc_handle handle;
  second_process second = start_other();
  blocker hold = BLOCKER;
  MUST(gmm_ipc_export(context, block, &handle));
  gmm_ticket *ticket = start_held(true, &tag, &hold);
  CHECK_EQUAL(other_reads(&second, &handle, SMALL, 1, 200), GMM_ERROR_IPC_TIMEOUT);
  let_go(&hold);
  ENDS_WITH(ticket, GMM_OK);
  CHECK_EQUAL(other_reads(&second, &handle, SMALL, 1, 10000), GMM_ERROR_IPC_REFUSED);
  OK(resume_of(tag));
  MUST(gmm_ipc_export(context, block, &handle));
  CHECK_EQUAL(other_reads(&second, &handle, SMALL, 1, 60000), GMM_OK);
  end_other(&second);
  FREE(block);
  NOTHING_STAYS_SOON();
}

// An import that comes while a pause waits for the device is in the way like an earlier one.
VMM_CASE(an_import_during_a_pause_is_in_its_way) {
  gmm_tag tag = make_tag("shared", GMM_CONTENTS_HOST);
  void *block = FILLED_TAG(SIZE, tag, 2);
  gmm_ipc_handle handle;
  MUST(gmm_ipc_export(context, block, &handle));
  second_process second = start_other();
  static gate held;
  const gmm_stream stream = open_stream();
  gate_close(&held, stream, GATE_S);
  SOON(atomic_load(&held.entered));
  const gmm_pause_desc desc = one_tag(&tag);
  gmm_ticket *ticket = NULL;
  MUST(gmm_pause_async(context, &desc, &ticket));
  sleep_ms(50);  // so that it waits for the gate
  CHECK_EQUAL(other_imports(&second, &handle, SMALL, 2), GMM_OK);
  CHECK_EQUAL(gmm_ticket_wait(ticket, 0, NULL), GMM_ERROR_NOT_READY);
  atomic_store(&held.open, 1);
  ENDS_WITH(ticket, GMM_ERROR_BUSY);
  CHECK_EQUAL(query(block).state, GMM_STATE_ACTIVE);
  CHECK_PATTERN(block, SIZE, 2);
  OTHER_OK(&second, .act = OTHER_CLOSES);
  OK(pause_soon(&desc));
  OK(resume_of(tag));
  CHECK_PATTERN(block, SIZE, 2);
  end_other(&second);
  FREE(block);
  NOTHING_STAYS_SOON();
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

CASE_OF_KINDS(a_deleted_socket_is_made_anew, (1u << GMM_KIND_VMM) | (1u << GMM_KIND_DEVICE)) {
  NEEDS_SHARING();
  char folder[] = "/tmp/gmm-ipc-socket-XXXXXX", inner[64];
  REQUIRE(mkdtemp(folder) != NULL);
  snprintf(inner, sizeof inner, "%s/sockets", folder);
  setenv("GMM_IPC_DIR", inner, 1);
  void *block = FILLED(SIZE, 3);
  gmm_ipc_handle first, handle;
  MUST(gmm_ipc_export(context, block, &first));
  second_process second = start_other();
  CHECK_EQUAL(other_reads(&second, &first, SMALL, 3, 60000), GMM_OK);
  for (unsigned way = 0; way < 2; ++way) {  // the socket goes; its folder goes too
    CHECK(delete_sockets(inner) >= 1);
    if (way == 1) SOON((delete_sockets(inner), rmdir(inner)) == 0);  // gmm may have been faster
    OK(gmm_ipc_export(context, block, &handle));
    CHECK_EQUAL(other_reads(&second, &handle, SMALL, 3, 60000), GMM_OK);
    CHECK_EQUAL(other_reads(&second, &first, SMALL, 3, 60000), GMM_OK);  // earlier handles are good again
  }
  // A folder that cannot be made: a clear error, and a retry works.
  int file = -1;
  SOON((delete_sockets(inner), rmdir(inner), file = open(inner, O_CREAT | O_EXCL | O_CLOEXEC | O_WRONLY, 0600)) >= 0);
  close(file);
  RESULT(gmm_ipc_export(context, block, &handle), GMM_ERROR_SYSTEM);
  CHECK(strstr(gmm_last_error_message(), inner) != NULL);
  CHECK(unlink(inner) == 0);
  OK(gmm_ipc_export(context, block, &handle));
  CHECK_EQUAL(other_reads(&second, &handle, SMALL, 3, 60000), GMM_OK);
  end_other(&second);
  FREE(block);
  OK(gmm_context_release(context));
  context = open_context(2);
  CHECK_EQUAL(delete_sockets(inner), 0);  // the end of the context removed it
  CHECK(rmdir(inner) == 0 && rmdir(folder) == 0);
  unsetenv("GMM_IPC_DIR");
}

int main(int count, char **words) { return run_cases_or(other_main, count, words); }
