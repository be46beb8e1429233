// SPDX-License-Identifier: Apache-2.0
// Structs of every size meet the library: each one of lib/api/structs.h, of 0 to 64 bytes more than the library knows,
// and with each byte of the part that it does not know set.
//
// A row of the table without a call here does not compile.
#define _GNU_SOURCE  // memfd_create()
#include <gmm/gmm.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../lib/api/structs.h"
#include "../support/check.h"

#define OK(call)                                                                                                   \
  do {                                                                                                             \
    const gmm_result check_r = (call);                                                                             \
    CHECK_MESSAGE(check_r == GMM_OK, "%s gave %s: %s", #call, gmm_result_name(check_r), gmm_last_error_message()); \
  } while (0)

enum {
  PAST = 64,       // bytes past the library's size that are tried
  LARGEST = 4096,  // a larger struct is garbage
  GARBAGE = 0xa5,  // the bytes around
  BLOCK = 4096
};

typedef struct row {
  const char *name;
  uint32_t minimum, size;
  gmm_result (*call)(void *bytes);
} row;
static const row *current;

static gmm_context *context;
static gmm_context *sharing;  // exports and imports
static void *block, *managed, *own;
static gmm_tag tag;
static gmm_ticket *ticket;
static gmm_snapshot *snapshot;
static gmm_ipc_handle handle;
static int file = -1;

static gmm_context *open_host(uint64_t memory) {
  gmm_context_desc desc = {.struct_size = sizeof desc, .backend = GMM_BACKEND_HOST, .host_memory = memory};
  gmm_context *made = NULL;
  OK(gmm_context_create(&desc, &made));
  REQUIRE(made != NULL);
  return made;
}

static void *allocate(gmm_context *from, gmm_kind kind) {
  gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = kind};
  void *made = NULL;
  OK(gmm_alloc(from, BLOCK, &desc, &made));
  REQUIRE(made != NULL);
  return made;
}

// --- A call for each descriptor -----------------------------------------------------------------------------------
// It sets the fields that the call needs, within the smallest size, and undoes a success.

// The result of several functions that read the same descriptor.
static gmm_result both(gmm_result one, gmm_result other) {
  CHECK_MESSAGE((one < 0) == (other < 0) && (one >= 0 || one == other), "one function gave %s and another %s",
                gmm_result_name(one), gmm_result_name(other));
  return one;
}

static gmm_result pass_gmm_context_desc(void *bytes) {
  ((gmm_context_desc *)bytes)->backend = GMM_BACKEND_HOST;
  gmm_context *made = NULL;
  const gmm_result result = gmm_context_create(bytes, &made);
  CHECK((result == GMM_OK) == (made != NULL));
  if (made != NULL) OK(gmm_context_release(made));
  return result;
}

static gmm_result pass_gmm_alloc_desc(void *bytes) {
  void *made = NULL;
  const gmm_result result = gmm_alloc(context, BLOCK, bytes, &made);
  CHECK((result == GMM_OK) == (made != NULL));
  if (result != GMM_OK) return result;
  OK(gmm_free(context, made, GMM_STREAM_DEFAULT));
  // Programs of every release have the quick path, as long as they use only fields of the first release.
  uint32_t later = current->minimum;
  while (later < ((gmm_alloc_desc *)bytes)->struct_size && ((unsigned char *)bytes)[later] == 0) ++later;
  const bool uses_later = later < ((gmm_alloc_desc *)bytes)->struct_size;
  const gmm_result cached = gmm_try_alloc(context, BLOCK, bytes, &made);
  CHECK_MESSAGE(cached == (uses_later ? GMM_ERROR_NOT_READY : GMM_OK), "the cache answers %s", gmm_result_name(cached));
  if (cached == GMM_OK) OK(gmm_free(context, made, GMM_STREAM_DEFAULT));
  return result;
}

static gmm_result pass_gmm_heap_desc(void *bytes) {
  gmm_heap *made = NULL;
  const gmm_result result = gmm_heap_create(context, bytes, &made);
  if (made != NULL) OK(gmm_heap_destroy(made));
  return result;
}

static gmm_result pass_gmm_stream_desc(void *bytes) {
  gmm_stream made = NULL;
  const gmm_result result = gmm_stream_create(context, bytes, &made);
  if (made != NULL) OK(gmm_stream_destroy(context, made));
  return result;
}

static gmm_result pass_gmm_event_desc(void *bytes) {
  gmm_event *made = NULL;
  const gmm_result result = gmm_event_create(context, bytes, &made);
  CHECK((result == GMM_OK) == (made != NULL));
  if (made != NULL) OK(gmm_event_destroy(made));
  return result;
}

static gmm_result pass_gmm_pin_desc(void *bytes) {
  const gmm_result result = gmm_pin(context, own, BLOCK, bytes, NULL);
  if (result == GMM_OK) OK(gmm_unpin(context, own));
  return result;
}

static gmm_result pass_gmm_move_desc(void *bytes) { return gmm_move(context, managed, 0, bytes); }

static gmm_result pass_gmm_tag_desc(void *bytes) {
  gmm_tag made = 0;
  return both(gmm_tag_create(context, "sizes", bytes, &made), gmm_tag_configure(context, tag, bytes));
}

static gmm_result wait_for(gmm_result result, gmm_ticket *started) {
  if (result == GMM_OK) {
    CHECK(gmm_ticket_wait(started, UINT64_MAX, NULL) >= 0);
    OK(gmm_ticket_destroy(started));
  }
  return result;
}

static gmm_result pass_gmm_pause_desc(void *bytes) {
  ((gmm_pause_desc *)bytes)->tags = &tag;
  ((gmm_pause_desc *)bytes)->tag_count = 1;
  gmm_ticket *started = NULL;
  gmm_result result = gmm_pause(context, bytes, NULL);
  result = both(result, gmm_backup_discard(context, bytes, NULL));
  result = both(result, gmm_resume(context, bytes, NULL));
  gmm_result begun = gmm_pause_async(context, bytes, &started);
  result = both(result, wait_for(begun, started));
  begun = gmm_resume_async(context, bytes, &started);
  return both(result, wait_for(begun, started));
}

static gmm_result pass_gmm_backup_desc(void *bytes) { return gmm_backup_configure(context, bytes); }

// The call must come before the context's first export or import.
static gmm_result pass_gmm_ipc_desc(void *bytes) { return gmm_ipc_configure(context, bytes); }

static gmm_result pass_gmm_ipc_import_desc(void *bytes) {
  void *made = NULL;
  const gmm_result result = gmm_ipc_import(sharing, &handle, bytes, &made);
  CHECK((result == GMM_OK) == (made != NULL));
  if (made != NULL) OK(gmm_ipc_close(sharing, made));
  return result;
}

static gmm_result pass_gmm_ipc_fd_desc(void *bytes) {
  ((gmm_ipc_fd_desc *)bytes)->type = GMM_FD_FILE;
  ((gmm_ipc_fd_desc *)bytes)->size = BLOCK;
  void *made = NULL;
  const gmm_result result = gmm_ipc_import_fd(sharing, file, bytes, &made);
  CHECK((result == GMM_OK) == (made != NULL));
  if (made != NULL) OK(gmm_ipc_close(sharing, made));
  return result;
}

static int32_t no_wait(void *user, uint64_t value) {
  (void)user;
  (void)value;
  return 0;
}
static gmm_result pass_gmm_semaphore_desc(void *bytes) {
  ((gmm_semaphore_desc *)bytes)->type = GMM_SEMAPHORE_CALLS;
  ((gmm_semaphore_desc *)bytes)->calls.wait = no_wait;
  gmm_event *made = NULL;
  const gmm_result result = gmm_event_import_semaphore(context, bytes, &made);
  CHECK((result == GMM_OK) == (made != NULL));
  if (made != NULL) OK(gmm_event_destroy(made));
  return result;
}

static gmm_result pass_gmm_scope_desc(void *bytes) {
  ((gmm_scope_desc *)bytes)->flags = GMM_SCOPE_DEVICE;
  gmm_stats_info sums = {.struct_size = sizeof sums};
  const gmm_result result = both(gmm_stats_query(context, bytes, &sums), gmm_trim(context, bytes, NULL));
  return both(result, gmm_limit_set(context, bytes, GMM_NO_LIMIT));
}

static gmm_result pass_gmm_compact_desc(void *bytes) {
  ((gmm_compact_desc *)bytes)->max_bytes = 1;  // less than any extent
  gmm_compact_info info = {.struct_size = sizeof info};
  const gmm_result result = gmm_compact(context, NULL, bytes, &info);
  return result == GMM_UNCHANGED ? GMM_OK : result;
}

// --- A call for each answer ---------------------------------------------------------------------------------------

static gmm_result fill_gmm_context_info(void *bytes) { return gmm_context_query(context, bytes); }
static gmm_result fill_gmm_device_info(void *bytes) { return gmm_device_query(context, 0, bytes); }
static gmm_result fill_gmm_pointer_info(void *bytes) { return gmm_query(context, block, bytes); }
static gmm_result fill_gmm_tag_info(void *bytes) { return gmm_tag_query(context, tag, bytes); }
static gmm_result fill_gmm_ticket_info(void *bytes) { return gmm_ticket_query(ticket, bytes); }
static gmm_result fill_gmm_backup_info(void *bytes) { return gmm_backup_query(context, bytes); }
static gmm_result fill_gmm_snapshot_info(void *bytes) { return gmm_snapshot_query(snapshot, bytes); }
static gmm_result fill_gmm_block_info(void *bytes) { return gmm_snapshot_query_block(snapshot, 0, bytes); }
static gmm_result fill_gmm_extent_info(void *bytes) { return gmm_snapshot_query_extent(snapshot, 0, bytes); }
static gmm_result fill_gmm_ipc_fd_info(void *bytes) {
  const gmm_result result = gmm_ipc_export_fd(context, block, GMM_FD_DEFAULT, bytes);
  if (result == GMM_OK) close(((gmm_ipc_fd_info *)bytes)->fd);
  return result;
}
static gmm_result fill_gmm_ipc_legacy_info(void *bytes) { return gmm_ipc_export_legacy(context, block, bytes); }
static int32_t agree(void *user, const gmm_watch_info *info) {
  (void)user, (void)info;
  return 0;
}
static gmm_result pass_gmm_lease_desc(void *bytes) {
  gmm_lease_desc *desc = bytes;
  desc->name = "sizes";
  gmm_lease *lease = NULL;
  const gmm_result result = gmm_lease_create(context, desc, &lease);
  OK(gmm_lease_destroy(lease));
  return result;
}
static gmm_lease *make_lease(gmm_context *of, const char *name, gmm_lease_ask_callback asked) {
  const gmm_lease_desc desc = {.struct_size = sizeof desc, .name = name, .residency_ms = 1, .asked = asked};
  gmm_lease *lease = NULL;
  OK(gmm_lease_create(of, &desc, &lease));
  return lease;
}
static gmm_result pass_gmm_lease_request_desc(void *bytes) {
  gmm_lease *lease = make_lease(context, "sizes", (gmm_lease_ask_callback){NULL, NULL});
  const gmm_result result = gmm_lease_request(lease, bytes, NULL);
  OK(gmm_lease_destroy(lease));
  return result;
}
// A lease makes sure that a server runs.
static gmm_result fill_gmm_lease_entry_info(void *bytes) {
  gmm_lease *lease = make_lease(context, "sizes", (gmm_lease_ask_callback){NULL, NULL});
  OK(gmm_lease_request(lease, NULL, NULL));
  const gmm_result result = gmm_lease_list(context, 0, 60000, bytes);
  OK(gmm_lease_destroy(lease));
  return result;
}
static gmm_result fill_gmm_lease_info(void *bytes) {
  gmm_lease *lease = make_lease(context, "sizes", (gmm_lease_ask_callback){NULL, NULL});
  const gmm_result result = gmm_lease_query(lease, bytes);
  OK(gmm_lease_destroy(lease));
  return result;
}
static gmm_result pass_gmm_watch_desc(void *bytes) {
  gmm_watch_desc *desc = bytes;
  desc->events = GMM_WATCH_PREPARE;
  desc->callback.fn = agree;
  gmm_watcher *watcher = NULL;
  const gmm_result result = gmm_watch(context, desc, &watcher);
  OK(gmm_watcher_destroy(watcher));
  return result;
}

static gmm_result fill_gmm_compact_info(void *bytes) {
  const gmm_compact_desc desc = {.struct_size = sizeof desc, .max_bytes = 1};
  const gmm_result result = gmm_compact(context, NULL, &desc, bytes);
  return result == GMM_UNCHANGED ? GMM_OK : result;
}
static gmm_result fill_gmm_stats_info(void *bytes) { return gmm_stats_query(context, NULL, bytes); }

// --- Every size ---------------------------------------------------------------------------------------------------

// Sizes that are no size: larger than any struct, and such that additions wrap.
static const uint32_t wild[] = {LARGEST + 8, 65536, 0x7ffffff8u, 0x80000000u, 0xfffffff8u, 0xffffffffu};
enum { WILD = sizeof wild / sizeof *wild };

static bool is_size(const row *r, uint32_t size) { return size >= r->minimum && size <= LARGEST && size % 8 == 0; }

// A struct of zeros in memory of garbage.
static _Alignas(64) unsigned char bytes[LARGEST + 64];
static void prepare(uint32_t size) {
  memset(bytes, GARBAGE, sizeof bytes);
  memset(bytes, 0, size < LARGEST ? size : LARGEST);
  memcpy(bytes, &size, sizeof size);
}

static void check_input(const row *r) {
  for (uint32_t size = 0; size <= r->size + PAST + WILD; ++size) {
    const uint32_t asked = size <= r->size + PAST ? size : wild[size - r->size - PAST - 1];
    prepare(asked);
    const gmm_result result = r->call(bytes);
    if (is_size(r, asked))
      CHECK_MESSAGE(result >= 0, "%s of %u bytes: %s: %s", r->name, asked, gmm_result_name(result),
                    gmm_last_error_message());
    else
      CHECK_MESSAGE(result == GMM_ERROR_INVALID_DESCRIPTOR && strstr(gmm_last_error_message(), r->name) != NULL,
                    "%s of %u bytes: %s: %s", r->name, asked, gmm_result_name(result), gmm_last_error_message());
  }
  prepare(LARGEST);
  CHECK_MESSAGE(r->call(bytes) >= 0, "%s of %d bytes: %s", r->name, LARGEST, gmm_last_error_message());
}

static void check_strays(const row *r) {
  for (uint32_t size = r->size + 8; size <= r->size + PAST; size += 8)
    for (uint32_t at = r->size; at < size; ++at) {
      prepare(size);
      bytes[at] = (unsigned char)(1u << at % 8);
      char expected[96];
      snprintf(expected, sizeof expected, "Bytes %u to %u of %s", at & ~7u, (at & ~7u) + 7, r->name);
      const gmm_result result = r->call(bytes);
      CHECK_MESSAGE(result == GMM_ERROR_NOT_SUPPORTED && strstr(gmm_last_error_message(), expected) != NULL,
                    "%s of %u bytes, byte %u set: %s: %s", r->name, size, at, gmm_result_name(result),
                    gmm_last_error_message());
    }
  prepare(LARGEST);
  bytes[LARGEST - 1] = 1;
  CHECK_MESSAGE(r->call(bytes) == GMM_ERROR_NOT_SUPPORTED, "%s of %d bytes, the last one set", r->name, LARGEST);
  // Known fields are no newer release.
  for (uint32_t at = r->minimum; at < r->size; ++at) {
    prepare(r->size);
    bytes[at] = 1;
    CHECK_MESSAGE(r->call(bytes) >= 0, "%s: byte %u, which this library knows, is set: %s", r->name, at,
                  gmm_last_error_message());
  }
}

static bool is_all(const unsigned char *begin, const unsigned char *end, unsigned char value) {
  while (begin < end && *begin == value) ++begin;
  return begin == end;
}

static void check_output(const row *r) {
  for (uint32_t size = 0; size <= r->size + PAST + WILD; ++size) {
    const uint32_t asked = size <= r->size + PAST ? size : wild[size - r->size - PAST - 1];
    memset(bytes, GARBAGE, sizeof bytes);
    memcpy(bytes, &asked, sizeof asked);
    const gmm_result result = r->call(bytes);
    CHECK_MESSAGE(memcmp(bytes, &asked, sizeof asked) == 0, "%s of %u bytes: struct_size was changed", r->name, asked);
    if (!is_size(r, asked)) {
      CHECK_MESSAGE(result == GMM_ERROR_INVALID_DESCRIPTOR && strstr(gmm_last_error_message(), r->name) != NULL,
                    "%s of %u bytes: %s: %s", r->name, asked, gmm_result_name(result), gmm_last_error_message());
      CHECK_MESSAGE(is_all(bytes + 4, bytes + sizeof bytes, GARBAGE), "%s of %u bytes: a refused struct was written",
                    r->name, asked);
      continue;
    }
    CHECK_MESSAGE(result == GMM_OK, "%s of %u bytes: %s", r->name, asked, gmm_last_error_message());
    const uint32_t known = asked < r->size ? asked : r->size;
    CHECK_MESSAGE(!is_all(bytes + 4, bytes + 8, GARBAGE), "%s of %u bytes: bytes 4 to 7 were not written", r->name,
                  asked);
    for (uint32_t at = 8; at < known; at += 8)
      CHECK_MESSAGE(!is_all(bytes + at, bytes + at + 8, GARBAGE), "%s of %u bytes: bytes %u to %u were not written",
                    r->name, asked, at, at + 7);
    CHECK_MESSAGE(is_all(bytes + known, bytes + asked, 0), "%s of %u bytes: the unknown part is not zero", r->name,
                  asked);
    CHECK_MESSAGE(is_all(bytes + asked, bytes + sizeof bytes, GARBAGE), "%s of %u bytes: written past its end", r->name,
                  asked);
  }
}

// A struct that the library fills on a driver only: here each right size gets past the check, and nothing is written.
static void check_refused(const row *r) {
  for (uint32_t size = 0; size <= r->size + PAST; ++size) {
    memset(bytes, GARBAGE, sizeof bytes);
    memcpy(bytes, &size, sizeof size);
    const gmm_result expected = is_size(r, size) ? GMM_ERROR_NOT_SUPPORTED : GMM_ERROR_INVALID_DESCRIPTOR;
    const gmm_result result = r->call(bytes);
    CHECK_MESSAGE(result == expected, "%s of %u bytes: %s: %s", r->name, size, gmm_result_name(result),
                  gmm_last_error_message());
    CHECK_MESSAGE(is_all(bytes + 4, bytes + sizeof bytes, GARBAGE), "%s of %u bytes: a refused struct was written",
                  r->name, size);
  }
}

// --- A struct that the library lends ------------------------------------------------------------------------------

static uint32_t lent_size;
static int32_t note_size(void *user, const gmm_oom_info *info) {
  (void)user;
  lent_size = info->struct_size;
  CHECK(GMM_HAS(info, gmm_oom_info, cause) && info->attempt == 1 && info->cause == GMM_ERROR_OUT_OF_MEMORY);
  return 0;
}

static int32_t note_watch_size(void *user, const gmm_watch_info *info) {
  (void)user;
  lent_size = info->struct_size;
  CHECK(GMM_HAS(info, gmm_watch_info, reserved) && info->event == GMM_WATCH_PREPARE && info->reserved == 0);
  return 0;
}

static void lend_gmm_watch_info(void) {
  gmm_context *watched = open_host(16u << 20);
  const gmm_watch_desc desc = {
      .struct_size = sizeof desc, .events = GMM_WATCH_PREPARE, .callback = {note_watch_size, NULL}};
  gmm_watcher *watcher = NULL;
  OK(gmm_watch(watched, &desc, &watcher));
  allocate(watched, GMM_KIND_VMM);
  OK(gmm_pause(watched, NULL, NULL));
  CHECK_EQUAL(lent_size, current->size);
  OK(gmm_context_release(watched));
}

static int32_t note_ask_size(void *user, const gmm_lease_ask *ask) {
  lent_size = ask->struct_size;
  CHECK(GMM_HAS(ask, gmm_lease_ask, name) && strcmp(ask->name, "other") == 0 && ask->bytes == 12u << 20);
  OK(gmm_lease_return(*(gmm_lease **)user));
  return 0;
}

// Two contexts share a card of 16 MiB.
static void lend_gmm_lease_ask(void) {
  char path[64];
  snprintf(path, sizeof path, "/tmp/gmm-card-%d", (int)getpid());
  setenv("GMM_HOST_CARD", path, 1);
  gmm_context *contexts[2] = {open_host(16u << 20), open_host(16u << 20)};
  unsetenv("GMM_HOST_CARD");
  const gmm_lease_amount amount = {.bytes = 12u << 20};
  const gmm_lease_request_desc desc = {.struct_size = sizeof desc, .amounts = &amount, .amount_count = 1};
  gmm_lease *user = NULL;
  user = make_lease(contexts[0], "user", (gmm_lease_ask_callback){note_ask_size, &user});
  gmm_lease *other = make_lease(contexts[1], "other", (gmm_lease_ask_callback){NULL, NULL});
  OK(gmm_lease_request(user, &desc, NULL));
  OK(gmm_lease_request(other, &desc, NULL));
  CHECK_EQUAL(lent_size, current->size);
  OK(gmm_lease_destroy(other));
  OK(gmm_lease_destroy(user));
  for (int i = 0; i < 2; ++i) OK(gmm_context_release(contexts[i]));
  unlink(path);
}

static void lend_gmm_oom_info(void) {
  gmm_context *small = open_host(16u << 20);
  OK(gmm_context_set_oom_handler(small, note_size, NULL));
  void *none = NULL;
  CHECK(gmm_alloc(small, 64u << 20, NULL, &none) == GMM_ERROR_OUT_OF_MEMORY);
  CHECK_EQUAL(lent_size, current->size);
  OK(gmm_context_release(small));
}

static void a_field_of_a_later_release_can_be_asked_for(void) {
  struct lent {
    uint32_t struct_size, first;
    uint64_t later[2];
  } info = {.struct_size = offsetof(struct lent, later)};
  CHECK(GMM_HAS(&info, struct lent, first) && !GMM_HAS(&info, struct lent, later));
  info.struct_size = sizeof info - 8;
  CHECK(!GMM_HAS(&info, struct lent, later));
  info.struct_size = sizeof info;
  CHECK(GMM_HAS(&info, struct lent, later));
}

// --- All of them --------------------------------------------------------------------------------------------------

static void run_input(void) { check_input(current); }
static void run_strays(void) { check_strays(current); }
static void run_output(void) { check_output(current); }
static void run_refused(void) { check_refused(current); }

#define RUN_IN(type)                            \
  row_.call = pass_##type;                      \
  check_run(#type " of every size", run_input); \
  check_run(#type " with a stray byte", run_strays);
#define RUN_OUT(type)      \
  row_.call = fill_##type; \
  check_run(#type " of every size", run_output);
#define RUN_DRIVER(type)   \
  row_.call = fill_##type; \
  check_run(#type " of every size", run_refused);
#define RUN_LENT(type) check_run(#type " has the library's size", lend_##type);
#define ROW(type, direction, minimum, size)                                                           \
  {                                                                                                   \
    _Static_assert(sizeof(type) == (size), "the size of " #type " is not that of lib/api/structs.h"); \
    row row_ = {#type, minimum, size, NULL};                                                          \
    current = &row_;                                                                                  \
    RUN_##direction(type)                                                                             \
  }

static void open_all(void) {
  context = open_host(0);
  sharing = open_host(0);
  block = allocate(context, GMM_KIND_VMM);
  managed = allocate(context, GMM_KIND_MANAGED);
  own = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(own != MAP_FAILED);
  file = memfd_create("struct_sizes", MFD_ALLOW_SEALING);
  REQUIRE(file >= 0 && ftruncate(file, BLOCK) == 0);
  OK(gmm_tag_create(context, "sizes", NULL, &tag));
  OK(gmm_snapshot_create(context, NULL, &snapshot));
  OK(gmm_pause_async(context, NULL, &ticket));
  CHECK(gmm_ticket_wait(ticket, UINT64_MAX, NULL) >= 0);
  CHECK(gmm_resume(context, NULL, NULL) >= 0);
  OK(gmm_ipc_export(sharing, allocate(sharing, GMM_KIND_VMM), &handle));
}

static void close_all(void) {
  OK(gmm_ticket_destroy(ticket));
  OK(gmm_snapshot_destroy(snapshot));
  gmm_stats_info sums = {.struct_size = sizeof sums};
  OK(gmm_stats_query(context, NULL, &sums));
  CHECK_EQUAL(sums.live_blocks, 2);
  CHECK_EQUAL(sums.pinned_bytes, 0);
  OK(gmm_stats_query(sharing, NULL, &sums));
  CHECK_EQUAL(sums.live_blocks, 1);
  CHECK_EQUAL(sums.imported_bytes, 0);
  OK(gmm_context_release(sharing));
  OK(gmm_context_release(context));
  close(file);
  munmap(own, BLOCK);
}

int main(void) {
  RUN(open_all);
  if (check_state.failed == 0) {
    GMM_GROWING_STRUCTS(ROW)
    RUN(a_field_of_a_later_release_can_be_asked_for);
    RUN(close_all);
  }
  return check_finish();
}
