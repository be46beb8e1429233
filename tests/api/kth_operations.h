// SPDX-License-Identifier: Apache-2.0
// The operations of kth_failure.c: how the test prepares, runs and checks each.
#ifndef GMM_TESTS_KTH_OPERATIONS_H
#define GMM_TESTS_KTH_OPERATIONS_H

#include "../support/cuda_graph.h"
#include "../support/second_process.h"
#include "fake_driver.h"

// A step that is NULL does nothing.
typedef struct operation {
  const char *name;
  gmm_kind_mask kinds;
  void (*prepare)(void);
  gmm_result (*run)(void);
  void (*before)(void);   // holds while the operation has not happened
  void (*after)(void);    // holds when it has
  bool may_have_begun;    // a failure may leave a part of the work done, which the retry ends: trim, reset, destroy
  bool may_make_no_call;  // not every driver or cache state needs a call
  bool may_cache;         // memory that came before the failure may stay for the next allocation
  uint64_t size;          // of the block; 0: small
  uint32_t flags;         // of the allocations, or of the heap
  bool is_paused;         // after prepare(): all of it is paused
  bool is_watched;        // by a watcher of the tag
  gmm_contents contents;  // of the tag, and further flags of it and of the backup
  uint32_t tag_flags, backup;
  gmm_fd_type exported_as, imported_as;
} operation;
enum {
  DEVICE = 1 << GMM_KIND_DEVICE,
  VMM = 1 << GMM_KIND_VMM,
  HOST = 1 << GMM_KIND_HOST,
  MANAGED = 1 << GMM_KIND_MANAGED
};
static const operation *current;

enum { BLOCKS = 3, COMPACT_EACH = 4 * 1048576 };
static const uint64_t sizes[BLOCKS] = {3000, 300000, 2 * 1048576 + 100};
static uint8_t own[64 * 1024] __attribute__((aligned(4096)));

// The objects of the operation that runs. end_operation() ends those that are not NULL.
static struct {
  gmm_tag tag, other_tag;  // the second one is that of operations over two tags
  gmm_stream stream, other_stream;
  uint64_t size;  // of the block
  void *block, *blocks[BLOCKS], *kept[2], *imported;
  gmm_heap *heap;
  gmm_event *event;
  gmm_lease *lease;
  gmm_watcher *watcher;
  uint32_t last_event;    // that the watcher received
  gmm_state was[BLOCKS];  // when the operation began
  const void *contents;   // that were read
  gmm_ipc_handle handle;
  gmm_ipc_legacy_info legacy;
  uint64_t fd_size;
  int32_t fd;                      // -1: none
  bool is_on_device, is_captured;  // the thread has the device's context; the stream is captured
} made;

static void begin_operation(void) {
  memset(&made, 0, sizeof made);
  made.legacy.struct_size = sizeof made.legacy;
  made.fd = -1;
}
static void free_all(void **blocks, unsigned count) {
  for (unsigned i = 0; i < count; ++i)
    if (blocks[i] != NULL) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
}
static void end_operation(void) {
  if (made.is_captured) {  // no failure has ended the capture
    captured graph = end_capture(made.stream);
    CHECK(graph.executable != NULL);
    launch(&graph, made.stream);
    OK(gmm_stream_synchronize(context, made.stream));
    destroy_graph(&graph);
  }
  OK(gmm_watcher_destroy(made.watcher));
  OK(gmm_lease_destroy(made.lease));
  if (made.imported != NULL) OK(gmm_ipc_close(context, made.imported));
  CHECK_EQUAL(stats().imported_bytes, 0);
  if (made.block != NULL) OK(gmm_free(context, made.block, made.stream));
  free_all(made.blocks, BLOCKS);
  free_all(made.kept, 2);
  OK(gmm_event_destroy(made.event));
  close_streams();
  OK(gmm_heap_destroy(made.heap));
  if (made.fd >= 0) CHECK(close(made.fd) == 0);
  if (made.is_on_device) exit_device();
}

// --- alloc and free --------------------------------------------------------------------------------------------------
static void prepare_stream(void) {
  made.size = current->size != 0 ? current->size : 3000;
  made.stream = open_stream();
  made.other_stream = open_stream();
}
static gmm_result allocate(void) {
  return gmm_alloc(context, made.size, HERE(.stream = made.stream, .flags = current->flags), &made.block);
}
static void not_allocated(void) { CHECK(made.block == NULL); }
static void is_allocated(void) {
  REQUIRE(made.block != NULL);
  CHECK_EQUAL(query(made.block).state, GMM_STATE_ACTIVE);
  CHECK_EQUAL(query(made.block).size, made.size);
  write_pattern(made.block, made.size, 3, made.stream);
  CHECK_PATTERN(made.block, made.size, 3);
}
static void prepare_freeing(void) {
  prepare_stream();
  MUST(allocate());
  write_pattern(made.block, made.size, 4, made.stream);
}
static void prepare_freeing_recorded(void) {
  prepare_freeing();
  MUST(gmm_record_use(context, made.block, made.other_stream));
  MUST(gmm_fill(context, made.block, 9, 1, made.other_stream));
  MUST(gmm_stream_synchronize(context, made.other_stream));
  write_pattern(made.block, made.size, 4, made.stream);
}
static void has_name(const char *name) {
  gmm_block_info block = {.struct_size = sizeof block};
  gmm_snapshot *snapshot = NULL;
  MUST(gmm_snapshot_create(context, NULL, &snapshot));
  OK(gmm_snapshot_query_block(snapshot, 0, &block));
  OK(gmm_snapshot_destroy(snapshot));
  CHECK(strcmp(block.name, name) == 0);
}
static void is_unnamed(void) { has_name(""); }
static void is_named(void) { has_name("named"); }  // until it is freed
static void prepare_freeing_named(void) {
  prepare_freeing_recorded();
  MUST(gmm_name(context, made.block, "named"));
}
static void not_freed(void) {
  CHECK_EQUAL(query(made.block).state, GMM_STATE_ACTIVE);
  CHECK_PATTERN(made.block, made.size, 4);
}
static void not_freed_and_named(void) {
  not_freed();
  is_named();
}
static void is_freed(void) {
  const gmm_state state = query(made.block).state;
  CHECK(made.is_captured || state == GMM_STATE_FREE || state == GMM_STATE_UNKNOWN);
  CHECK_EQUAL(stats().live_blocks, 0);
  made.block = NULL;
}
// A block that another stream's work stands behind is wanted on this one.
static void prepare_crossing(void) {
  prepare_freeing();
  OK(gmm_fill(context, made.block, 1, made.size, made.other_stream));
  MUST(gmm_free(context, made.block, made.other_stream));
  made.block = NULL;
}

// --- graph capture -------------------------------------------------------------------------------------------------
static void prepare_capture(void) {
  prepare_stream();
  enter_device();
  begin_capture(made.stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  made.is_on_device = made.is_captured = true;
}
static void is_allocated_in_capture(void) {
  REQUIRE(made.block != NULL);
  CHECK_EQUAL(query(made.block).state, GMM_STATE_ACTIVE);
  OK(gmm_fill(context, made.block, 1, made.size, made.stream));
}
static void prepare_freeing_in_capture(void) {
  prepare_capture();
  MUST(allocate());
  MUST(gmm_record_use(context, made.block, made.other_stream));
}
static void not_freed_in_capture(void) { CHECK_EQUAL(stats().live_blocks, 1); }
// A graph that is gone, whose memory was not looked for yet.
static void prepare_ended_capture(void) {
  prepare_capture();
  MUST(allocate());
  MUST(gmm_free(context, made.block, made.stream));
  made.block = NULL;
  captured graph = end_capture(made.stream);
  made.is_captured = false;
  destroy_graph(&graph);
  fake_cuda_live_t live = {.user_objects = 1};
  SOON((fake.live(&live), live.user_objects == 0));
  REQUIRE(live.user_objects == 0);
}
static void nothing_is_reserved(void) {
  CHECK(gmm_trim(context, NULL, NULL) >= 0);
  CHECK_EQUAL(stats().reserved_bytes, 0);
}

// --- trim and reset --------------------------------------------------------------------------------------------------
static void prepare_reset(void) {
  prepare_stream();
  for (unsigned i = 0; i < BLOCKS; ++i) made.blocks[i] = ALLOC(sizes[i]);
  write_pattern(made.blocks[0], sizes[0], 5, GMM_STREAM_DEFAULT);
}
static void prepare_trim(void) {
  prepare_reset();
  free_all(made.blocks + 1, 2);
  made.blocks[1] = made.blocks[2] = NULL;
}
static gmm_result take_snapshot(void) {
  gmm_snapshot *snapshot = NULL;
  const gmm_result result = gmm_snapshot_create(context, NULL, &snapshot);
  return result == GMM_OK ? gmm_snapshot_destroy(snapshot) : result;
}
static void is_trimmed(void) {
  CHECK_PATTERN(made.blocks[0], sizes[0], 5);
  FREE(made.blocks[0]);
  made.blocks[0] = NULL;
  nothing_is_reserved();
}
static void is_reset(void) {
  // Without host memory to ask for the streams, memory goes back with the next trim.
  CHECK(stats().reserved_bytes == 0 || message_has("No host memory"));
  nothing_is_reserved();
  CHECK_EQUAL(query(made.blocks[0]).state, GMM_STATE_UNKNOWN);
  memset(made.blocks, 0, sizeof made.blocks);
  void *fresh = FILLED(1000, 1);
  CHECK_PATTERN(fresh, 1000, 1);
  FREE(fresh);
}

#include "kth_pause.h"

// --- sharing ---------------------------------------------------------------------------------------------------------
static void not_exported(void) {
  not_freed();
  for (unsigned i = 0; i < sizeof made.handle.bytes; ++i) CHECK_EQUAL(made.handle.bytes[i], 0);
}
static void is_exported(void) {
  void *imported = NULL;
  OK(gmm_ipc_import(context, &made.handle, NULL, &imported));
  CHECK(imported == made.block);
  OK(gmm_ipc_close(context, imported));
}
static gmm_result export_fd(gmm_fd_type type) {
  gmm_ipc_fd_info file = {.struct_size = sizeof file, .fd = -1};
  const gmm_result result = gmm_ipc_export_fd(context, made.block, type, &file);
  made.fd = file.fd;
  made.fd_size = file.size;
  return result;
}
static void no_fd(void) { CHECK_EQUAL(made.fd, -1); }
static void has_fd(void) { CHECK(made.fd >= 0 && made.fd_size >= made.size); }
static bool has_legacy_handle(void) {
  const gmm_ipc_legacy_info none = {.struct_size = sizeof none};
  return memcmp(&made.legacy, &none, sizeof none) != 0;
}
static void no_legacy(void) { CHECK(!has_legacy_handle()); }
static void has_legacy(void) { CHECK(has_legacy_handle()); }

// A descriptor that comes back in.
static gmm_result import_fd(void) {
  return gmm_ipc_import_fd(context, made.fd,
                           DESC(ipc_fd_desc, .type = current->imported_as, .size = made.fd_size, .device = device),
                           &made.imported);
}
static void prepare_import_fd(void) {
  made.block = FILLED_ALONE(5000, GMM_TAG_CURRENT, 6);
  MUST(export_fd(current->exported_as));
}
static void prepare_publishing(void) { made.block = FILLED_ALONE(5000, GMM_TAG_CURRENT, 6); }
static void prepare_close_fd(void) {
  prepare_import_fd();
  MUST(import_fd());
}

// One exporting process a kind serves every k.
static struct {
  second_process process;
  gmm_ipc_handle handle;
  bool started;
} exporters[5];

static int export_for_others(char **words) {
  (void)words;
  context = open_context(0);
  read_device(0);
  gmm_ipc_handle handle;
  char end;
  MUST(gmm_ipc_export(context, FILLED(5000, 6), &handle));
  REQUIRE(send_bytes(SECOND_OUT, &handle, sizeof handle) && read(0, &end, 1) == 0);
  OK(gmm_context_release(context));
  return 0;
}
static void stop_exporters(void) {
  for (unsigned i = 0; i < 5; ++i)
    if (exporters[i].started) second_wait(&exporters[i].process);
}
static void prepare_import(void) {
  if (exporters[kind].started) return;
  REQUIRE(second_start(&exporters[kind].process, NULL, 0));
  exporters[kind].started = true;
  REQUIRE(receive_bytes(exporters[kind].process.from, &exporters[kind].handle, sizeof(gmm_ipc_handle)));
}
static gmm_result import_handle(void) { return gmm_ipc_import(context, &exporters[kind].handle, NULL, &made.imported); }
static void not_imported(void) { CHECK(made.imported == NULL); }
static void is_imported(void) {
  CHECK_EQUAL(query(made.imported).state, GMM_STATE_IMPORTED);
  CHECK_PATTERN(made.imported, 5000, 6);
}
static uint64_t published_names(void) {
  gmm_published_info entry = {.struct_size = sizeof entry};
  return gmm_published_list(context, 0, 60000, &entry) < 0 ? 0 : entry.entry_count;
}
static void not_published(void) { CHECK_EQUAL(published_names(), 0); }
static void is_published(void) {
  CHECK_EQUAL(published_names(), 1);
  OK(gmm_unpublish(context, "kth"));
}
static void prepare_attach(void) {
  prepare_publishing();
  MUST(gmm_publish(context, made.block, "kth", NULL));
}
static gmm_result attach(void) {
  return gmm_attach(context, "kth", DESC(attach_desc, .flags = GMM_ATTACH_READ_ONLY), &made.imported);
}
static void is_attached(void) {
  is_imported();
  OK(gmm_unpublish(context, "kth"));
}
static void prepare_close(void) {
  prepare_import();
  MUST(import_handle());
}
static void is_closed(void) {
  CHECK_EQUAL(query(made.imported).state, GMM_STATE_UNKNOWN);
  made.imported = NULL;
}

// --- pins, which end with the context --------------------------------------------------------------------------------
static gmm_result pin(void) { return gmm_pin(context, own + 100, 20000, NULL, NULL); }
static void not_pinned(void) {
  CHECK_EQUAL(query(own + 200).state, GMM_STATE_UNKNOWN);
  RESULT(gmm_unpin(context, own + 100), GMM_ERROR_NOT_PINNED);
}
static void is_pinned(void) {
  CHECK_EQUAL(query(own + 200).state, GMM_STATE_PINNED);
  CHECK(stats().pinned_bytes > 0);
}
static void prepare_pinned(void) { MUST(pin()); }
static void prepare_second_pin(void) {
  MUST(pin());
  MUST(gmm_pin(context, own + 20100, 5000, NULL, NULL));
  MUST(gmm_unpin(context, own + 20100));
}

// Two pins share the second page, and the first one has gone.
static void prepare_shared_page(void) {
  MUST(gmm_pin(context, own, 4196, NULL, NULL));
  MUST(gmm_pin(context, own + 4196, 12000, NULL, NULL));
  MUST(gmm_unpin(context, own));
}
static void rest_is_pinned(void) { CHECK_EQUAL(state_of(own + 5000), GMM_STATE_PINNED); }
static void rest_is_not_pinned(void) { CHECK_EQUAL(state_of(own + 5000), GMM_STATE_UNKNOWN); }

// --- residency -------------------------------------------------------------------------------------------------------
static gmm_result move_to(gmm_device place) {
  return gmm_move(context, made.block, place,
                  DESC(move_desc, .stream = place == GMM_DEVICE_HOST ? made.stream : GMM_STREAM_DEFAULT));
}
static void prepare_move_back(void) {
  prepare_freeing();
  MUST(move_to(GMM_DEVICE_HOST));
}

// --- heaps, streams, events ------------------------------------------------------------------------------------------
static gmm_result create_heap(void) {
  return made.heap != NULL
             ? GMM_OK
             : gmm_heap_create(context, DESC(heap_desc, .kind = kind, .flags = current->flags), &made.heap);
}
static gmm_result use_heap(uint64_t size) {
  const gmm_result result = create_heap();
  return result == GMM_OK ? gmm_heap_alloc(made.heap, size, 0, 0, GMM_STREAM_DEFAULT, &made.block) : result;
}
static void heap_works(void) {
  write_pattern(made.block, 5000, 7, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(made.block, 5000, 7);
  FREE(made.block);
  made.block = NULL;
}
static void exportable_works(void) {
  MUST(export_fd(GMM_FD_DEFAULT));
  heap_works();
}
static void prepare_heap(void) {
  MUST(use_heap(5000));
  heap_works();
}
static void heap_is_gone(void) {
  CHECK_EQUAL(stats().reserved_bytes, 0);
  made.heap = NULL;
}
static void prepare_reserve(void) {
  MUST(create_heap());
  MUST(gmm_heap_reserve(made.heap, 4 * MIB));
}
static void is_reserved_as_before(void) {
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(stats().reserved_bytes, 4 * MIB);
}
static void is_reserved(void) {
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(stats().reserved_bytes, 40 * MIB);
  prepare_heap();
}

// Blocks of COMPACT_EACH bytes side by side, of which the second and the fourth stay.
static void keep_two_of(unsigned count) {
  void *blocks[5] = {NULL};
  for (unsigned i = 0; i < count; ++i) blocks[i] = take_of(made.heap, COMPACT_EACH);
  for (unsigned i = 0; i < count; i += 2) FREE(blocks[i]);
  for (unsigned i = 0; i < 2; ++i) {
    made.kept[i] = blocks[1 + 2 * i];
    write_pattern(made.kept[i], COMPACT_EACH, 5 + i, GMM_STREAM_DEFAULT);
  }
}
static gmm_result compact(uint32_t flags) {
  return gmm_compact(context, NULL, DESC(compact_desc, .flags = flags), DESC(compact_info));
}
// Six extents side by side. One goes back, and another one goes beside those at the end.
static void prepare_compact(void) {
  MUST(create_heap());
  for (unsigned i = 1; i <= 6; ++i) MUST(gmm_heap_reserve(made.heap, (uint64_t)i * COMPACT_EACH));
  keep_two_of(5);
  MUST(gmm_heap_reserve(made.heap, 5 * COMPACT_EACH));
}
// One extent of 16 MiB.
static void prepare_compact_live(void) {
  made.heap = HEAP(.minimum_extent = 4 * COMPACT_EACH);
  MUST(gmm_heap_reserve(made.heap, 4 * COMPACT_EACH));
  keep_two_of(4);
  RESULT(compact(0), GMM_UNCHANGED);  // it asks the stream, which has no more work
  MUST(gmm_heap_reserve(made.heap, 0));
}
static void contents_stay(void) {
  for (unsigned i = 0; i < 2; ++i) CHECK_PATTERN(made.kept[i], COMPACT_EACH, 5 + i);
}
static void is_compact(void) {
  contents_stay();
  CHECK_EQUAL(stats().reserved_bytes, 5 * COMPACT_EACH);
  MUST(use_heap(3 * COMPACT_EACH));
  CHECK_EQUAL(stats().reserved_bytes, 5 * COMPACT_EACH);
  heap_works();
}
static void is_compact_live(void) {
  contents_stay();
  CHECK_EQUAL(stats().reserved_bytes, 2 * COMPACT_EACH);
  MUST(use_heap(COMPACT_EACH));
  heap_works();
}

static void stream_works(void) {
  OK(gmm_stream_synchronize(context, made.stream));
  OK(gmm_stream_destroy(context, made.stream));
  made.stream = NULL;
}
static gmm_result copy(void) {
  const gmm_result result = gmm_copy(context, made.block, own, 3000, made.stream);
  return result == GMM_OK ? gmm_stream_synchronize(context, made.stream) : result;
}
static gmm_result use_event(void) {
  gmm_result result = made.event == NULL ? gmm_event_create(context, EVENT_ON(device), &made.event) : GMM_OK;
  if (result == GMM_OK) result = gmm_event_record(made.event, 0, made.stream);
  if (result == GMM_OK) result = gmm_stream_wait_event(context, made.other_stream, made.event, 0);
  return result == GMM_OK ? gmm_event_synchronize(made.event, 0, GMM_FOREVER) : result;
}
static void no_event(void) { CHECK(made.event == NULL); }
static void event_works(void) {
  OK(gmm_event_record(made.event, 0, GMM_STREAM_DEFAULT));
  OK(gmm_event_synchronize(made.event, 0, GMM_FOREVER));
}
static void event_is_gone(void) { made.event = NULL; }
static void prepare_shared_event(void) { MUST(gmm_event_create(context, SHARED_EVENT_ON(device), &made.event)); }
// The stream is another device's, where there is one.
static void prepare_far_wait(void) {
  prepare_shared_event();
  OK(gmm_event_record(made.event, 0, GMM_STREAM_DEFAULT));
  made.other_stream = open_stream_on(device_count() > 1 ? 1 : 0);
}
// The file is the fake driver's semaphore, whose counter is ahead of every wait.
static void prepare_semaphore(void) {
  const uint64_t value = 100;
  prepare_stream();
  made.fd = memfd_create("semaphore", MFD_CLOEXEC);
  REQUIRE(made.fd >= 0 && write(made.fd, &value, sizeof value) == sizeof value);
}
static gmm_result import_semaphore(void) {
  return gmm_event_import_semaphore(
      context, DESC(semaphore_desc, .type = GMM_SEMAPHORE_TIMELINE_FD, .device = device, .fd = made.fd), &made.event);
}
static gmm_result use_semaphore(void) {
  const gmm_result result = gmm_stream_wait_event(context, made.stream, made.event, 5);
  return result == GMM_OK ? gmm_event_record(made.event, 100, made.stream) : result;
}
static void prepare_semaphore_use(void) {
  prepare_semaphore();
  MUST(import_semaphore());
}
static void prepare_semaphore_destroy(void) {
  prepare_semaphore_use();
  MUST(use_semaphore());
}

// The call of a row is a function that is named after its line.
#define RUN_AT(line) run_in_line_##line
#define RUN_OF(line) RUN_AT(line)
#define OPERATION(words, of, call, ...) \
  static gmm_result RUN_OF(__LINE__)(void) { return call; }
#include "kth_operations.def"
#undef OPERATION
#define OPERATION(words, of, call, ...) {.name = words, .kinds = of, .run = RUN_OF(__LINE__), __VA_ARGS__},
static const operation operations[] = {
#include "kth_operations.def"
};
static const unsigned operation_count = sizeof operations / sizeof operations[0];

#endif
