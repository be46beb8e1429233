// SPDX-License-Identifier: Apache-2.0
// A program of release 1.0: it uses every family of functions, and it is compiled with the headers of that release.
//
// Garbage stands behind each of its structs. A library that reads or writes past the end of a struct of this release
// fails here.
#include <gmm/gmm.h>
#include <stddef.h>
#include <sys/mman.h>

#include "../../support/check.h"

#define RESULT(call, expected)                                                                                         \
  do {                                                                                                                 \
    const gmm_result check_r = (call);                                                                                 \
    CHECK_MESSAGE(check_r == (expected), "%s gave %s: %s", #call, gmm_result_name(check_r), gmm_last_error_message()); \
  } while (0)
#define OK(call) RESULT(call, GMM_OK)

enum { AROUND = 64, GARBAGE = 0xa5, BLOCK = 100000 };

// A zeroed struct NAME.of with its size set and garbage behind it.
#define STRUCT(type, name)              \
  struct {                              \
    type of;                            \
    unsigned char behind[AROUND];       \
  } name;                               \
  memset(name.behind, GARBAGE, AROUND); \
  name.of = (type) { .struct_size = sizeof(type) }
#define INTACT(name)                                                                                   \
  do {                                                                                                 \
    CHECK_EQUAL(name.of.struct_size, sizeof name.of);                                                  \
    for (unsigned check_i = 0; check_i < AROUND; ++check_i)                                            \
      CHECK_MESSAGE(name.behind[check_i] == GARBAGE, "byte %u behind %s was written", check_i, #name); \
  } while (0)

static gmm_context *context;

static gmm_context *open_context(void) {
  STRUCT(gmm_context_desc, desc);
  desc.of.backend = GMM_BACKEND_HOST;
  desc.of.host_devices = 2;
  desc.of.host_memory = 64u << 20;
  gmm_context *made = NULL;
  OK(gmm_context_create(&desc.of, &made));
  INTACT(desc);
  REQUIRE(made != NULL);
  return made;
}

static void *allocate(gmm_kind kind, gmm_tag tag, gmm_stream stream) {
  STRUCT(gmm_alloc_desc, desc);
  desc.of.kind = kind;
  desc.of.tag = tag;
  desc.of.stream = stream;
  void *made = NULL;
  OK(gmm_alloc(context, BLOCK, &desc.of, &made));
  INTACT(desc);
  REQUIRE(made != NULL);
  return made;
}

static void the_library_is_no_older(void) {
  CHECK(gmm_version() >= GMM_VERSION);
  CHECK(gmm_version_string() != NULL);
  CHECK(strcmp(gmm_result_name(GMM_ERROR_PAUSED), "GMM_ERROR_PAUSED") == 0);
  CHECK(gmm_result_text(GMM_ERROR_PAUSED) != NULL);
}

static void contexts_and_devices(void) {
  context = open_context();
  OK(gmm_context_retain(context));
  OK(gmm_context_release(context));
  STRUCT(gmm_context_info, info);
  OK(gmm_context_query(context, &info.of));
  INTACT(info);
  CHECK_EQUAL(info.of.device_count, 2);
  CHECK(strcmp(info.of.backend_name, "host") == 0);
  CHECK(info.of.decommit_after_ms == GMM_DECOMMIT_NEVER);
  STRUCT(gmm_device_info, device);
  OK(gmm_device_query(context, 1, &device.of));
  INTACT(device);
  CHECK_EQUAL(device.of.device, 1);
  CHECK_EQUAL(device.of.total_memory, 64u << 20);
  CHECK((device.of.capabilities & GMM_DEVICE_CAN_PAUSE) != 0 && device.of.name[0] != 0 &&
        device.of.uuid[15] != GARBAGE);
  OK(gmm_context_set_decommit(context, GMM_DECOMMIT_NEVER));
  RESULT(gmm_context_retain(NULL), GMM_ERROR_NULL_ARGUMENT);
  CHECK(gmm_last_error_message()[0] != 0);
  CHECK_EQUAL(gmm_last_native_code(), 0);
}

static void blocks(void) {
  unsigned char *block = allocate(GMM_KIND_HOST, GMM_TAG_CURRENT, GMM_STREAM_DEFAULT);
  STRUCT(gmm_pointer_info, info);
  OK(gmm_query(context, block + 10, &info.of));
  INTACT(info);
  CHECK(info.of.base == block);
  CHECK_EQUAL(info.of.size, BLOCK);
  CHECK_EQUAL(info.of.kind, GMM_KIND_HOST);
  CHECK_EQUAL(info.of.state, GMM_STATE_ACTIVE);
  CHECK_EQUAL(info.of.tag, GMM_TAG_DEFAULT);
  CHECK_EQUAL(info.of.generation, 0);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_query(context, block, &info.of));
  CHECK_EQUAL(info.of.state, GMM_STATE_FREE);

  STRUCT(gmm_alloc_desc, desc);
  desc.of.kind = GMM_KIND_HOST;
  void *cached = NULL;
  OK(gmm_try_alloc(context, BLOCK, &desc.of, &cached));
  CHECK(cached == block);
  OK(gmm_try_free(context, cached, GMM_STREAM_DEFAULT));
  desc.of.alignment = 65536;
  desc.of.flags = GMM_ALLOC_ZERO;
  OK(gmm_alloc(context, BLOCK, &desc.of, &cached));
  CHECK((uintptr_t)cached % 65536 == 0 && ((unsigned char *)cached)[BLOCK - 1] == 0);
  OK(gmm_free(context, cached, GMM_STREAM_DEFAULT));
  OK(gmm_alloc(context, BLOCK, NULL, &cached));
  OK(gmm_free(context, cached, GMM_STREAM_DEFAULT));
  RESULT(gmm_free(context, cached, GMM_STREAM_DEFAULT), GMM_ERROR_ALREADY_FREED);

  STRUCT(gmm_heap_desc, heap_desc);
  heap_desc.of.kind = GMM_KIND_VMM;
  heap_desc.of.device = 1;
  heap_desc.of.limit = 32u << 20;
  gmm_heap *heap = NULL;
  OK(gmm_heap_create(context, &heap_desc.of, &heap));
  INTACT(heap_desc);
  void *large = NULL;
  OK(gmm_heap_alloc(heap, BLOCK, 4096, GMM_ALLOC_ZERO, GMM_STREAM_DEFAULT, &cached));
  RESULT(gmm_heap_alloc(heap, 48u << 20, 0, 0, GMM_STREAM_DEFAULT, &large), GMM_ERROR_LIMIT_EXCEEDED);
  RESULT(gmm_heap_destroy(heap), GMM_ERROR_BUSY);
  OK(gmm_free(context, cached, GMM_STREAM_DEFAULT));
  OK(gmm_heap_destroy(heap));
}

static void add_one(void *user) { ++*(int *)user; }

static void streams_and_events(void) {
  gmm_stream stream = NULL, other = NULL;
  gmm_event *event = NULL;
  int calls = 0;
  uint64_t passed = 0;
  STRUCT(gmm_stream_desc, stream_desc);
  STRUCT(gmm_event_desc, event_desc);
  OK(gmm_stream_create(context, &stream_desc.of, &stream));
  stream_desc.of.device = 1;
  OK(gmm_stream_create(context, &stream_desc.of, &other));
  OK(gmm_event_create(context, &event_desc.of, &event));
  INTACT(stream_desc);
  INTACT(event_desc);
  unsigned char *block = allocate(GMM_KIND_DEVICE, GMM_TAG_CURRENT, stream);
  unsigned char bytes[256] = {0};
  OK(gmm_fill(context, block, 7, sizeof bytes, stream));
  OK(gmm_stream_call(context, stream, add_one, &calls));
  OK(gmm_event_record(event, 0, stream));
  OK(gmm_stream_wait_event(context, other, event, 0));
  OK(gmm_copy(context, bytes, block, sizeof bytes, other));
  OK(gmm_record_use(context, block, other));
  OK(gmm_name(context, block, "one"));
  OK(gmm_event_synchronize(event, 0, GMM_FOREVER));
  OK(gmm_event_query(event, &passed));
  CHECK_EQUAL(passed, 1);
  OK(gmm_stream_synchronize(context, other));
  CHECK_EQUAL(calls, 1);
  CHECK(bytes[0] == 7 && bytes[255] == 7);
  OK(gmm_free(context, block, stream));
  OK(gmm_event_destroy(event));
  OK(gmm_stream_forget(context, other));
  OK(gmm_stream_destroy(context, other));
  OK(gmm_stream_destroy(context, stream));
}

static void pins_and_residency(void) {
  STRUCT(gmm_pin_desc, pin);
  void *own = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *seen = NULL;
  REQUIRE(own != MAP_FAILED);
  OK(gmm_pin(context, own, BLOCK, &pin.of, &seen));
  INTACT(pin);
  CHECK(seen == own);
  OK(gmm_unpin(context, own));
  munmap(own, BLOCK);
  void *managed = allocate(GMM_KIND_MANAGED, GMM_TAG_CURRENT, GMM_STREAM_DEFAULT);
  OK(gmm_advise(context, managed, 0, GMM_ADVISE_SET_PREFERRED_LOCATION, 1));
  OK(gmm_prefetch(context, managed, 0, 1, GMM_STREAM_DEFAULT));
  STRUCT(gmm_move_desc, move);
  OK(gmm_move(context, managed, GMM_DEVICE_HOST, &move.of));
  INTACT(move);
  OK(gmm_free(context, managed, GMM_STREAM_DEFAULT));
}

static int32_t go_on(void *user, uint64_t done, uint64_t total) {
  if (done <= total) ++*(int *)user;
  return 0;
}

static void tags_and_pauses(void) {
  STRUCT(gmm_tag_desc, tag_desc);
  tag_desc.of.contents = GMM_CONTENTS_HOST;
  tag_desc.of.priority = 3;
  gmm_tag tag = 0, found = 0, spare = 0, tags[8];
  uint32_t count = 0;
  OK(gmm_tag_create(context, "weights", &tag_desc.of, &tag));
  OK(gmm_tag_find(context, "weights", &found));
  CHECK_EQUAL(found, tag);
  OK(gmm_tag_configure(context, tag, &tag_desc.of));
  INTACT(tag_desc);
  OK(gmm_tag_set_default(context, GMM_TAG_DEFAULT));
  OK(gmm_tag_create(context, "spare", NULL, &spare));
  OK(gmm_tag_list(context, tags, 8, &count));
  CHECK_EQUAL(count, 3);
  OK(gmm_tag_destroy(context, spare));
  OK(gmm_tag_push(context, tag));
  unsigned char *block = allocate(GMM_KIND_VMM, GMM_TAG_CURRENT, GMM_STREAM_DEFAULT);
  OK(gmm_tag_pop(context));
  memset(block, 9, BLOCK);

  STRUCT(gmm_backup_desc, backup);
  backup.of.threads = 2;
  OK(gmm_backup_configure(context, &backup.of));
  INTACT(backup);
  OK(gmm_backup_reserve(context, 0, BLOCK));
  int calls = 0;
  uint64_t bytes = 0;
  STRUCT(gmm_pause_desc, pause);
  pause.of.tags = &tag;
  pause.of.tag_count = 1;
  pause.of.progress = (gmm_progress_callback){go_on, &calls};
  OK(gmm_pause(context, &pause.of, &bytes));
  CHECK(bytes >= BLOCK && calls > 0);
  RESULT(gmm_pause(context, &pause.of, &bytes), GMM_UNCHANGED);
  STRUCT(gmm_tag_info, state);
  OK(gmm_tag_query(context, tag, &state.of));
  INTACT(state);
  CHECK(state.of.paused_bytes >= BLOCK && state.of.backup_host_bytes >= BLOCK);
  CHECK_EQUAL(state.of.state, GMM_STATE_PAUSED);
  CHECK_EQUAL(state.of.priority, 3);
  CHECK(strcmp(state.of.name, "weights") == 0);
  STRUCT(gmm_backup_info, kept);
  OK(gmm_backup_query(context, &kept.of));
  INTACT(kept);
  CHECK(kept.of.arena_used + kept.of.pageable_bytes + kept.of.file_bytes >= BLOCK);
  unsigned char read = 0;
  const void *view = NULL;
  OK(gmm_backup_read(context, block + 5, 1, &read));
  OK(gmm_backup_map(context, block, BLOCK, &view));
  CHECK(read == 9 && view != NULL && ((const unsigned char *)view)[BLOCK - 1] == 9);
  OK(gmm_resume_range(context, block, BLOCK, NULL));
  OK(gmm_resume_wait(context, block, BLOCK, 0));
  RESULT(gmm_resume(context, &pause.of, &bytes), GMM_UNCHANGED);
  CHECK(block[0] == 9 && block[BLOCK - 1] == 9);

  gmm_ticket *ticket = NULL;
  OK(gmm_pause_async(context, &pause.of, &ticket));
  OK(gmm_ticket_wait(ticket, UINT64_MAX, &bytes));
  STRUCT(gmm_ticket_info, progress);
  OK(gmm_ticket_query(ticket, &progress.of));
  INTACT(progress);
  CHECK_EQUAL(progress.of.state, GMM_TICKET_DONE);
  CHECK_EQUAL(progress.of.result, GMM_OK);
  CHECK_EQUAL(progress.of.bytes, bytes);
  OK(gmm_ticket_cancel(ticket));
  OK(gmm_ticket_destroy(ticket));
  OK(gmm_backup_discard(context, &pause.of, &bytes));
  OK(gmm_resume_async(context, &pause.of, &ticket));
  OK(gmm_ticket_wait(ticket, UINT64_MAX, NULL));
  OK(gmm_ticket_destroy(ticket));
  INTACT(pause);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static void sharing(void) {
  STRUCT(gmm_ipc_desc, config);
  OK(gmm_ipc_configure(context, &config.of));
  INTACT(config);
  unsigned char *block = allocate(GMM_KIND_VMM, GMM_TAG_CURRENT, GMM_STREAM_DEFAULT);
  gmm_ipc_handle handle;
  OK(gmm_ipc_export(context, block, &handle));
  STRUCT(gmm_ipc_import_desc, import);
  import.of.timeout_ms = 60000;
  void *same = NULL, *mapped = NULL;
  OK(gmm_ipc_import(context, &handle, &import.of, &same));
  INTACT(import);
  CHECK(same == block);
  OK(gmm_ipc_close(context, same));
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));

  STRUCT(gmm_alloc_desc, alloc);
  alloc.of.kind = GMM_KIND_HOST;
  alloc.of.flags = GMM_ALLOC_DEDICATED;
  OK(gmm_alloc(context, BLOCK, &alloc.of, (void **)(void *)&block));
  memset(block, 3, BLOCK);
  STRUCT(gmm_ipc_fd_info, exported);
  STRUCT(gmm_ipc_fd_desc, file);
  OK(gmm_ipc_export_fd(context, block, GMM_FD_FILE, &exported.of));
  INTACT(exported);
  file.of.type = exported.of.type;
  file.of.size = exported.of.size;
  OK(gmm_ipc_import_fd(context, exported.of.fd, &file.of, &mapped));
  INTACT(file);
  CHECK(mapped != NULL && ((unsigned char *)mapped)[exported.of.offset + BLOCK - 1] == 3);
  close(exported.of.fd);
  OK(gmm_ipc_close(context, mapped));
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  STRUCT(gmm_ipc_legacy_info, legacy);
  CHECK(gmm_ipc_export_legacy(context, &legacy, &legacy.of) < 0);
  INTACT(legacy);

  gmm_event *event = NULL, *imported = NULL;
  STRUCT(gmm_event_desc, event_desc);
  event_desc.of.flags = GMM_EVENT_SHARED;
  OK(gmm_event_create(context, &event_desc.of, &event));
  OK(gmm_event_export(event, &handle));
  OK(gmm_event_import(context, &handle, &import.of, &imported));
  OK(gmm_event_destroy(imported));
  OK(gmm_event_destroy(event));
}

static int32_t no_more(void *user, const gmm_oom_info *info) {
  CHECK(GMM_HAS(info, gmm_oom_info, cause) && info->device == 0 && info->attempt == 1);
  CHECK(info->cause == GMM_ERROR_OUT_OF_MEMORY || info->cause == GMM_ERROR_LIMIT_EXCEEDED);
  CHECK(info->requested_bytes == 60u << 20 && info->reserved_bytes <= 64u << 20);
  ++*(int *)user;
  return 0;
}

static int32_t count_text(void *user, const char *text, uint64_t size) {
  *(uint64_t *)user += text != NULL ? size : 0;
  return 0;
}

static void limits_and_counters(void) {
  STRUCT(gmm_scope_desc, scope);
  scope.of.flags = GMM_SCOPE_DEVICE;
  OK(gmm_limit_set(context, &scope.of, 32u << 20));
  int asked = 0;
  void *none = NULL;
  OK(gmm_context_set_oom_handler(context, no_more, &asked));
  RESULT(gmm_alloc(context, 60u << 20, NULL, &none), GMM_ERROR_LIMIT_EXCEEDED);
  CHECK_EQUAL(asked, 1);
  OK(gmm_context_set_oom_handler(context, NULL, NULL));
  OK(gmm_limit_set(context, &scope.of, GMM_NO_LIMIT));
  void *block = allocate(GMM_KIND_VMM, GMM_TAG_CURRENT, GMM_STREAM_DEFAULT);
  STRUCT(gmm_stats_info, sums);
  OK(gmm_stats_query(context, &scope.of, &sums.of));
  INTACT(sums);
  INTACT(scope);
  CHECK_EQUAL(sums.of.live_bytes, BLOCK);
  CHECK_EQUAL(sums.of.live_blocks, 1);
  CHECK_EQUAL(sums.of.failures, 1);
  CHECK(sums.of.reserved_bytes >= BLOCK && sums.of.allocations == sums.of.frees + 1);
  uint64_t text = 0, bytes = 0;
  gmm_snapshot *snapshot = NULL;
  STRUCT(gmm_snapshot_info, whole);
  STRUCT(gmm_block_info, one);
  OK(gmm_snapshot_create(context, NULL, &snapshot));
  OK(gmm_snapshot_query(snapshot, &whole.of));
  OK(gmm_snapshot_query_block(snapshot, 0, &one.of));
  INTACT(whole);
  INTACT(one);
  CHECK(whole.of.block_count == 1 && whole.of.live_bytes == BLOCK && one.of.address == block && one.of.size == BLOCK);
  OK(gmm_snapshot_write(snapshot, count_text, &text));
  CHECK(text > 100);
  OK(gmm_snapshot_destroy(snapshot));
  OK(gmm_trace_begin(context, "/dev/null"));
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_trace_end(context));
  OK(gmm_defer_begin(context));
  RESULT(gmm_trim(context, NULL, &bytes), GMM_UNCHANGED);
  OK(gmm_defer_end(context));
  block = allocate(GMM_KIND_VMM, GMM_TAG_CURRENT, GMM_STREAM_DEFAULT);
  OK(gmm_reset(context));
  OK(gmm_stats_query(context, NULL, &sums.of));
  CHECK_EQUAL(sums.of.live_blocks, 0);
  OK(gmm_context_release(context));
}

int main(void) {
  RUN(the_library_is_no_older);
  RUN(contexts_and_devices);
  if (context == NULL) return check_finish();
  RUN(blocks);
  RUN(streams_and_events);
  RUN(pins_and_residency);
  RUN(tags_and_pauses);
  RUN(sharing);
  RUN(limits_and_counters);
  return check_finish();
}
