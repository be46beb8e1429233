// SPDX-License-Identifier: Apache-2.0
// The operations of kth_failure.c: how the test prepares, runs and checks each.
#ifndef GMM_TESTS_KTH_OPERATIONS_H
#define GMM_TESTS_KTH_OPERATIONS_H

#include "../support/cuda_graph.h"
#include "../support/fake_cuda/fake_cuda.h"
#include "../support/gmm_test.h"
#include "../support/second_process.h"

// A step that is NULL does nothing.
typedef struct operation {
  const char *name;
  gmm_kind_mask kinds;
  void (*prepare)(void);
  gmm_result (*run)(void);
  void (*before)(void);   // holds while the operation has not happened
  void (*after)(void);    // holds when it has
  void (*finish)(void);   // frees the rest
  bool may_have_begun;    // a failure may leave a part of the work done, which the retry ends: trim, reset, destroy
  bool may_make_no_call;  // not every driver or cache state needs a call
  bool may_cache;         // memory that came before the failure may stay for the next allocation
  uint64_t size;          // of the block; 0: small
  uint32_t flags;         // of the allocations
  bool is_paused;         // after prepare(): all of it is paused
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

enum { BLOCKS = 3 };
static const uint64_t sizes[BLOCKS] = {3000, 300000, 2 * 1048576 + 100};
static void *blocks[BLOCKS];
static gmm_tag tag;
static gmm_stream stream, other_stream;
static gmm_heap *heap;
static gmm_event *event;
static void (*live_now)(fake_cuda_live_t *out);
static uint8_t own[64 * 1024] __attribute__((aligned(4096)));

// --- alloc and free --------------------------------------------------------------------------------------------------
static uint64_t alloc_size;
static void *allocated;

static void prepare_stream(void) {
  alloc_size = current->size != 0 ? current->size : 3000;
  allocated = NULL;
  MUST(gmm_stream_create(context, STREAM_ON(device), &stream));
  MUST(gmm_stream_create(context, STREAM_ON(device), &other_stream));
}
static gmm_result run_alloc(void) {
  gmm_alloc_desc desc = alloc_desc();
  desc.stream = stream;
  desc.flags = current->flags;
  return gmm_alloc(context, alloc_size, &desc, &allocated);
}
static void not_allocated(void) { CHECK(allocated == NULL); }
static void is_allocated(void) {
  REQUIRE(allocated != NULL);
  CHECK_EQUAL(query(allocated).state, GMM_STATE_ACTIVE);
  CHECK_EQUAL(query(allocated).size, alloc_size);
  write_pattern(allocated, alloc_size, 3, stream);
  CHECK_PATTERN(allocated, alloc_size, 3);
}
static void end_streams(void) {
  OK(gmm_stream_destroy(context, stream));
  OK(gmm_stream_destroy(context, other_stream));
}
static void free_allocated(void) {
  OK(gmm_free(context, allocated, stream));
  end_streams();
}

static void prepare_freeing(void) {
  prepare_stream();
  MUST(run_alloc());
  write_pattern(allocated, alloc_size, 4, stream);
}
static void prepare_freeing_recorded(void) {
  prepare_freeing();
  MUST(gmm_record_use(context, allocated, other_stream));
  MUST(gmm_fill(context, allocated, 9, 1, other_stream));
  MUST(gmm_stream_synchronize(context, other_stream));
  write_pattern(allocated, alloc_size, 4, stream);
}
// The name is there until the block is freed.
static const char *name_of_allocated(void) {
  static gmm_block_info block;
  gmm_snapshot *snapshot = NULL;
  block = (gmm_block_info){.struct_size = sizeof block};
  if (gmm_snapshot_create(context, NULL, &snapshot) != GMM_OK) return "no snapshot";
  OK(gmm_snapshot_query_block(snapshot, 0, &block));
  OK(gmm_snapshot_destroy(snapshot));
  return block.name;
}
static void prepare_freeing_named(void) {
  prepare_freeing_recorded();
  MUST(gmm_name(context, allocated, "named"));
}
static gmm_result run_name(void) { return gmm_name(context, allocated, "named"); }
static void is_named(void) {
  CHECK(strcmp(name_of_allocated(), "named") == 0);
  OK(gmm_free(context, allocated, stream));
}
static gmm_result run_free(void) { return gmm_free(context, allocated, stream); }
static void not_freed(void) {
  CHECK_EQUAL(query(allocated).state, GMM_STATE_ACTIVE);
  CHECK_PATTERN(allocated, alloc_size, 4);
}
static void not_freed_and_named(void) {
  not_freed();
  CHECK(strcmp(name_of_allocated(), "named") == 0);
}
static void is_freed(void) {
  gmm_state state = query(allocated).state;
  CHECK(state == GMM_STATE_FREE || state == GMM_STATE_UNKNOWN);
  CHECK_EQUAL(stats().live_blocks, 0);
}

// A block that another stream's work stands behind is wanted on this one.
static void prepare_crossing(void) {
  prepare_freeing();
  OK(gmm_fill(context, allocated, 1, alloc_size, other_stream));
  MUST(gmm_free(context, allocated, other_stream));
  allocated = NULL;
}

// --- graph capture -------------------------------------------------------------------------------------------------
static captured graph;

static void prepare_capture(void) {
  prepare_stream();
  enter_device();
  begin_capture(stream, CAPTURE_GLOBAL);
}
static void is_allocated_in_capture(void) {
  REQUIRE(allocated != NULL);
  CHECK_EQUAL(query(allocated).state, GMM_STATE_ACTIVE);
  OK(gmm_fill(context, allocated, 1, alloc_size, stream));
}
static void leave_device(void) {
  end_streams();
  exit_device();
}
// No failure may have ended the capture.
static void end_capture_and_free(void) {
  graph = end_capture(stream);
  CHECK(graph.executable != NULL);
  launch(&graph, stream);
  OK(gmm_stream_synchronize(context, stream));
  destroy_graph(&graph);
  OK(gmm_free(context, allocated, stream));
  leave_device();
}
static void prepare_freeing_in_capture(void) {
  prepare_capture();
  MUST(run_alloc());
  MUST(gmm_record_use(context, allocated, other_stream));
}
static void not_freed_in_capture(void) { CHECK_EQUAL(stats().live_blocks, 1); }
static void is_freed_in_capture(void) { CHECK_EQUAL(stats().live_blocks, 0); }
static void end_empty_capture(void) {
  graph = end_capture(stream);
  CHECK(graph.executable != NULL);
  destroy_graph(&graph);
  leave_device();
}
// A graph that is gone, whose memory was not looked for yet.
static void prepare_ended_capture(void) {
  prepare_capture();
  MUST(run_alloc());
  MUST(gmm_free(context, allocated, stream));
  graph = end_capture(stream);
  destroy_graph(&graph);
  fake_cuda_live_t live = {.user_objects = 1};
  SOON((live_now(&live), live.user_objects == 0));
  REQUIRE(live.user_objects == 0);
}
static void nothing_is_reserved(void) {
  CHECK(gmm_trim(context, NULL, NULL) >= 0);
  CHECK_EQUAL(stats().reserved_bytes, 0);
}

// --- trim and reset --------------------------------------------------------------------------------------------------
static void prepare_trim(void) {
  prepare_stream();
  for (unsigned i = 0; i < BLOCKS; ++i) REQUIRE((blocks[i] = ALLOC(sizes[i])) != NULL);
  write_pattern(blocks[0], sizes[0], 5, GMM_STREAM_DEFAULT);
  for (unsigned i = 1; i < BLOCKS; ++i) MUST(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
}
static gmm_result run_trim(void) { return gmm_trim(context, NULL, NULL); }
static void is_trimmed(void) {
  CHECK_PATTERN(blocks[0], sizes[0], 5);
  OK(gmm_free(context, blocks[0], GMM_STREAM_DEFAULT));
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(stats().reserved_bytes, 0);
}

static void prepare_reset(void) {
  prepare_trim();
  for (unsigned i = 1; i < BLOCKS; ++i) REQUIRE((blocks[i] = ALLOC(sizes[i])) != NULL);
}
static gmm_result run_reset(void) { return gmm_reset(context); }
static void is_reset(void) {
  CHECK_EQUAL(stats().reserved_bytes, 0);
  CHECK_EQUAL(query(blocks[0]).state, GMM_STATE_UNKNOWN);
  void *fresh = ALLOC(1000);
  write_pattern(fresh, 1000, 1, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(fresh, 1000, 1);
  OK(gmm_free(context, fresh, GMM_STREAM_DEFAULT));
}

#include "kth_pause.h"

// --- sharing ---------------------------------------------------------------------------------------------------------
static gmm_ipc_handle handle;
static void prepare_export(void) {
  prepare_freeing();
  memset(&handle, 0, sizeof handle);
}
static gmm_result run_export(void) { return gmm_ipc_export(context, allocated, &handle); }
static void not_exported(void) {
  not_freed();
  for (unsigned i = 0; i < sizeof handle.bytes; ++i) CHECK_EQUAL(handle.bytes[i], 0);
}
static void is_exported(void) {
  void *imported = NULL;
  OK(gmm_ipc_import(context, &handle, NULL, &imported));
  CHECK(imported == allocated);
  OK(gmm_ipc_close(context, imported));
}

static int32_t exported_fd;
static void prepare_export_fd(void) {
  prepare_export();
  exported_fd = -1;
}
static gmm_result run_export_fd(void) {
  gmm_ipc_fd_info file = {.struct_size = sizeof file, .fd = -1};
  const gmm_result result = gmm_ipc_export_fd(context, allocated, GMM_FD_DEFAULT, &file);
  exported_fd = file.fd;
  return result;
}
static void no_fd(void) { CHECK_EQUAL(exported_fd, -1); }
static void has_fd(void) { CHECK(exported_fd >= 0 && close(exported_fd) == 0); }

// The driver's own handle, and a descriptor that comes back in.
static gmm_ipc_legacy_info legacy_handle, no_legacy_handle;
static void prepare_legacy(void) {
  prepare_export();
  legacy_handle = no_legacy_handle = (gmm_ipc_legacy_info){.struct_size = sizeof legacy_handle};
}
static gmm_result run_legacy(void) { return gmm_ipc_export_legacy(context, allocated, &legacy_handle); }
static void no_legacy(void) { CHECK(memcmp(&legacy_handle, &no_legacy_handle, sizeof legacy_handle) == 0); }
static void has_legacy(void) { CHECK(memcmp(&legacy_handle, &no_legacy_handle, sizeof legacy_handle) != 0); }
static uint64_t fd_size;
static void *from_fd;
static void prepare_import_fd(void) {
  exported_fd = -1;
  from_fd = NULL;
  allocated = ALLOC_FLAGS(5000, GMM_ALLOC_DEDICATED);
  write_pattern(allocated, 5000, 6, GMM_STREAM_DEFAULT);
  gmm_ipc_fd_info file = {.struct_size = sizeof file};
  MUST(gmm_ipc_export_fd(context, allocated, current->exported_as, &file));
  exported_fd = file.fd;
  fd_size = file.size;
}
static gmm_result run_import_fd(void) {
  gmm_ipc_fd_desc desc = {.struct_size = sizeof desc, .type = current->imported_as, .size = fd_size, .device = device};
  return gmm_ipc_import_fd(context, exported_fd, &desc, &from_fd);
}
static void not_from_fd(void) { CHECK(from_fd == NULL); }
static void is_from_fd(void) { CHECK_PATTERN(from_fd, 5000, 6); }
static void close_from_fd(void) {
  OK(gmm_ipc_close(context, from_fd));
  close(exported_fd);
  OK(gmm_free(context, allocated, GMM_STREAM_DEFAULT));
}
static void prepare_close_fd(void) {
  prepare_import_fd();
  MUST(run_import_fd());
}
static gmm_result run_close_fd(void) { return gmm_ipc_close(context, from_fd); }
static void free_exported(void) {
  close(exported_fd);
  OK(gmm_free(context, allocated, GMM_STREAM_DEFAULT));
}

// Events between processes.
static gmm_event *shared_event;
static gmm_ipc_handle event_handle;
static void no_shared_event(void) { shared_event = NULL; }
static gmm_result run_event_create(void) { return gmm_event_create(context, SHARED_EVENT_ON(device), &shared_event); }
static void not_made(void) { CHECK(shared_event == NULL); }
static void event_works(void) {
  OK(gmm_event_record(shared_event, 0, GMM_STREAM_DEFAULT));
  OK(gmm_event_synchronize(shared_event, 0, GMM_FOREVER));
}
static void end_shared_event(void) { OK(gmm_event_destroy(shared_event)); }
static void make_shared_event(void) { MUST(gmm_event_create(context, SHARED_EVENT_ON(device), &shared_event)); }
static gmm_result run_event_export(void) { return gmm_event_export(shared_event, &event_handle); }
static gmm_result run_event_destroy(void) { return gmm_event_destroy(shared_event); }
// Of another device, where there is one.
static gmm_stream far_stream;
static void prepare_far_wait(void) {
  make_shared_event();
  OK(gmm_event_record(shared_event, 0, GMM_STREAM_DEFAULT));
  MUST(gmm_stream_create(context, STREAM_ON(device_count() > 1 ? 1 : 0), &far_stream));
}
static gmm_result run_far_wait(void) { return gmm_stream_wait_event(context, far_stream, shared_event, 0); }
static void finish_far_wait(void) {
  OK(gmm_stream_synchronize(context, far_stream));
  OK(gmm_stream_destroy(context, far_stream));
  end_shared_event();
}

// One exporting process a kind serves every k.
static struct {
  second_process process;
  gmm_ipc_handle handle;
  bool started;
} exporters[5];
static void *imported;

static int export_for_others(int of_kind, int size) {
  context = open_context(0);
  read_device(0);
  kind = (gmm_kind)of_kind;
  gmm_ipc_handle made;
  void *memory = ALLOC((uint64_t)size);
  if (memory == NULL) return 10;
  write_pattern(memory, (uint64_t)size, 6, GMM_STREAM_DEFAULT);
  char end;
  if (gmm_ipc_export(context, memory, &made) != GMM_OK || !send_bytes(1, &made, sizeof made)) return 11;
  if (read(0, &end, 1) != 0) return 12;
  return gmm_context_release(context) == GMM_OK ? 0 : 13;
}
static void stop_exporters(void) {
  for (unsigned i = 0; i < 5; ++i)
    if (exporters[i].started) second_wait(&exporters[i].process);
}
static void prepare_import(void) {
  imported = NULL;
  if (exporters[kind].started) return;
  char words[2][16];
  snprintf(words[0], 16, "%u", kind);
  snprintf(words[1], 16, "%u", 5000);
  REQUIRE(second_start(&exporters[kind].process, (const char *const[]){words[0], words[1]}, 2));
  exporters[kind].started = true;
  REQUIRE(receive_bytes(exporters[kind].process.from, &exporters[kind].handle, sizeof(gmm_ipc_handle)));
}
static gmm_result run_import(void) { return gmm_ipc_import(context, &exporters[kind].handle, NULL, &imported); }
static void not_imported(void) { CHECK(imported == NULL); }
static void is_imported(void) {
  CHECK_EQUAL(query(imported).state, GMM_STATE_IMPORTED);
  CHECK_PATTERN(imported, 5000, 6);
}
static void close_imported(void) {
  OK(gmm_ipc_close(context, imported));
  CHECK_EQUAL(stats().imported_bytes, 0);
}
static void prepare_close(void) {
  prepare_import();
  MUST(run_import());
}
static gmm_result run_close(void) { return gmm_ipc_close(context, imported); }
static void is_closed(void) { CHECK_EQUAL(query(imported).state, GMM_STATE_UNKNOWN); }

// --- pins ------------------------------------------------------------------------------------------------------------
static gmm_result run_pin(void) { return gmm_pin(context, own + 100, 20000, NULL, NULL); }
static void not_pinned(void) {
  CHECK_EQUAL(query(own + 200).state, GMM_STATE_UNKNOWN);
  RESULT(gmm_unpin(context, own + 100), GMM_ERROR_NOT_PINNED);
}
static void is_pinned(void) {
  CHECK_EQUAL(query(own + 200).state, GMM_STATE_PINNED);
  CHECK_EQUAL(stats().pinned_bytes > 0, true);
}
static void unpin(void) { OK(gmm_unpin(context, own + 100)); }
static void prepare_unpin(void) { MUST(run_pin()); }
static gmm_result run_unpin(void) { return gmm_unpin(context, own + 100); }
static void prepare_second_pin(void) {
  MUST(run_pin());
  MUST(gmm_pin(context, own + 20100, 5000, NULL, NULL));
  MUST(gmm_unpin(context, own + 20100));
}
static gmm_result run_second_pin(void) { return gmm_pin(context, own + 20100, 5000, NULL, NULL); }
static void unpin_both(void) {
  OK(gmm_unpin(context, own + 100));
  OK(gmm_unpin(context, own + 20100));
}

// --- residency -------------------------------------------------------------------------------------------------------
static gmm_result run_move_to_host(void) {
  gmm_move_desc desc = {.struct_size = sizeof desc, .stream = stream};
  return gmm_move(context, allocated, GMM_DEVICE_HOST, &desc);
}
static gmm_result run_move_to_device(void) { return gmm_move(context, allocated, device, NULL); }
static void prepare_move_back(void) {
  prepare_freeing();
  MUST(run_move_to_host());
}
static gmm_result run_prefetch(void) { return gmm_prefetch(context, allocated, 0, device, stream); }
static gmm_result run_advise(void) {
  return gmm_advise(context, allocated, 0, GMM_ADVISE_SET_PREFERRED_LOCATION, device);
}

// --- heaps, streams, events ------------------------------------------------------------------------------------------
static void prepare_heap(void) { heap = NULL; }
static gmm_result run_heap_create(void) {
  gmm_heap_desc desc = {.struct_size = sizeof desc, .kind = kind};
  gmm_result result = heap == NULL ? gmm_heap_create(context, &desc, &heap) : GMM_OK;
  return result == GMM_OK ? gmm_heap_alloc(heap, 5000, 0, 0, GMM_STREAM_DEFAULT, &allocated) : result;
}
static void heap_works(void) {
  write_pattern(allocated, 5000, 7, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(allocated, 5000, 7);
  OK(gmm_free(context, allocated, GMM_STREAM_DEFAULT));
}
static void end_heap(void) { OK(gmm_heap_destroy(heap)); }
static void prepare_heap_destroy(void) {
  prepare_heap();
  MUST(run_heap_create());
  heap_works();
}
static void prepare_reserve(void) {
  prepare_heap_destroy();
  MUST(gmm_heap_reserve(heap, 4 * MIB));
}
static gmm_result run_reserve(void) { return gmm_heap_reserve(heap, 40 * MIB); }
static void is_reserved_as_before(void) {
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(stats().reserved_bytes, 4 * MIB);
}
static void is_reserved(void) {
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(stats().reserved_bytes, 40 * MIB);
  MUST(gmm_heap_alloc(heap, 5000, 0, 0, GMM_STREAM_DEFAULT, &allocated));
  heap_works();
}

static gmm_result run_exportable_alloc(void) {
  gmm_heap_desc desc = {.struct_size = sizeof desc, .kind = kind, .flags = GMM_HEAP_EXPORTABLE};
  gmm_result result = heap == NULL ? gmm_heap_create(context, &desc, &heap) : GMM_OK;
  return result == GMM_OK ? gmm_heap_alloc(heap, 60 * MIB, 0, 0, GMM_STREAM_DEFAULT, &allocated) : result;
}
static void prepare_exportable_reserve(void) {
  prepare_heap();
  gmm_heap_desc desc = {.struct_size = sizeof desc, .kind = kind, .flags = GMM_HEAP_EXPORTABLE};
  MUST(gmm_heap_create(context, &desc, &heap));
  MUST(gmm_heap_reserve(heap, 4 * MIB));
}
static void exportable_works(void) {
  gmm_ipc_fd_info info = {.struct_size = sizeof info};
  OK(gmm_ipc_export_fd(context, allocated, GMM_FD_DEFAULT, &info));
  CHECK(close(info.fd) == 0);
  heap_works();
}

// Six extents side by side. Blocks lie in the second and the fourth.
enum { COMPACT_EACH = 4 * 1048576 };
static void *compact_kept[2];
static void prepare_compact(void) {
  void *blocks[5];
  gmm_heap_desc desc = {.struct_size = sizeof desc, .kind = kind};
  MUST(gmm_heap_create(context, &desc, &heap));
  for (unsigned i = 1; i <= 6; ++i) MUST(gmm_heap_reserve(heap, (uint64_t)i * COMPACT_EACH));
  for (unsigned i = 0; i < 5; ++i) MUST(gmm_heap_alloc(heap, COMPACT_EACH, 0, 0, GMM_STREAM_DEFAULT, &blocks[i]));
  for (unsigned i = 0; i < 2; ++i) {
    compact_kept[i] = blocks[1 + 2 * i];
    write_pattern(compact_kept[i], COMPACT_EACH, 5 + i, GMM_STREAM_DEFAULT);
  }
  for (unsigned i = 0; i < 5; i += 2) MUST(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
  MUST(gmm_heap_reserve(heap, 5 * COMPACT_EACH));
}
// One extent goes back, and another one goes beside those at the end.
static gmm_result run_compact(void) {
  gmm_compact_info info = {.struct_size = sizeof info};
  return gmm_compact(context, NULL, NULL, &info);
}
static void contents_stay(void) {
  for (unsigned i = 0; i < 2; ++i) CHECK_PATTERN(compact_kept[i], COMPACT_EACH, 5 + i);
}
static void is_compact(void) {
  contents_stay();
  CHECK_EQUAL(stats().reserved_bytes, 5 * COMPACT_EACH);
  MUST(gmm_heap_alloc(heap, 3 * COMPACT_EACH, 0, 0, GMM_STREAM_DEFAULT, &allocated));
  CHECK_EQUAL(stats().reserved_bytes, 5 * COMPACT_EACH);
  heap_works();
}
// One extent of 16 MiB. Blocks lie in its second and fourth part; a part is 4 MiB.
static void prepare_compact_live(void) {
  void *blocks[4];
  gmm_heap_desc desc = {.struct_size = sizeof desc, .kind = kind, .minimum_extent = 4 * COMPACT_EACH};
  MUST(gmm_heap_create(context, &desc, &heap));
  MUST(gmm_heap_reserve(heap, 4 * COMPACT_EACH));
  for (unsigned i = 0; i < 4; ++i) MUST(gmm_heap_alloc(heap, COMPACT_EACH, 0, 0, GMM_STREAM_DEFAULT, &blocks[i]));
  for (unsigned i = 0; i < 2; ++i) {
    compact_kept[i] = blocks[1 + 2 * i];
    write_pattern(compact_kept[i], COMPACT_EACH, 5 + i, GMM_STREAM_DEFAULT);
    MUST(gmm_free(context, blocks[2 * i], GMM_STREAM_DEFAULT));
  }
  RESULT(run_compact(), GMM_UNCHANGED);  // it asks the stream, which is done
  MUST(gmm_heap_reserve(heap, 0));
}
static gmm_result run_compact_live(void) {
  gmm_compact_desc desc = {.struct_size = sizeof desc, .flags = GMM_COMPACT_LIVE};
  gmm_compact_info info = {.struct_size = sizeof info};
  return gmm_compact(context, NULL, &desc, &info);
}
static void is_compact_live(void) {
  contents_stay();
  CHECK_EQUAL(stats().reserved_bytes, 2 * COMPACT_EACH);
  MUST(gmm_heap_alloc(heap, COMPACT_EACH, 0, 0, GMM_STREAM_DEFAULT, &allocated));
  heap_works();
}
static void end_compact(void) {
  for (unsigned i = 0; i < 2; ++i) OK(gmm_free(context, compact_kept[i], GMM_STREAM_DEFAULT));
  end_heap();
}

static gmm_result run_heap_destroy(void) { return gmm_heap_destroy(heap); }
static void heap_is_gone(void) { CHECK_EQUAL(stats().reserved_bytes, 0); }

static gmm_result run_stream_create(void) { return gmm_stream_create(context, STREAM_ON(device), &stream); }
static void stream_works(void) { OK(gmm_stream_synchronize(context, stream)); }
static void end_stream(void) { OK(gmm_stream_destroy(context, stream)); }
static gmm_result run_copy(void) {
  gmm_result result = gmm_copy(context, allocated, own, 3000, stream);
  return result == GMM_OK ? gmm_stream_synchronize(context, stream) : result;
}
static gmm_result run_event(void) {
  gmm_result result = event == NULL ? gmm_event_create(context, EVENT_ON(device), &event) : GMM_OK;
  if (result == GMM_OK) result = gmm_event_record(event, 0, stream);
  if (result == GMM_OK) result = gmm_stream_wait_event(context, other_stream, event, 0);
  return result == GMM_OK ? gmm_event_synchronize(event, 0, GMM_FOREVER) : result;
}
// The file is the fake driver's semaphore, whose counter is ahead of every wait.
static int semaphore_file;
static void prepare_semaphore(void) {
  const uint64_t value = 100;
  event = NULL;
  prepare_stream();
  semaphore_file = memfd_create("semaphore", MFD_CLOEXEC);
  REQUIRE(semaphore_file >= 0 && write(semaphore_file, &value, sizeof value) == sizeof value);
}
static gmm_result run_semaphore_import(void) {
  const gmm_semaphore_desc desc = {
      .struct_size = sizeof desc, .type = GMM_SEMAPHORE_TIMELINE_FD, .device = device, .fd = semaphore_file};
  return gmm_event_import_semaphore(context, &desc, &event);
}
static gmm_result run_semaphore(void) {
  gmm_result result = gmm_stream_wait_event(context, stream, event, 5);
  return result == GMM_OK ? gmm_event_record(event, 100, stream) : result;
}
static gmm_result run_semaphore_destroy(void) { return gmm_event_destroy(event); }
static void prepare_semaphore_use(void) {
  prepare_semaphore();
  MUST(run_semaphore_import());
}
static void prepare_semaphore_destroy(void) {
  prepare_semaphore_use();
  MUST(run_semaphore());
}
static void close_semaphore(void) {
  end_streams();
  CHECK(close(semaphore_file) == 0);
}
static void end_semaphore(void) {
  OK(gmm_event_destroy(event));
  close_semaphore();
}
static void prepare_event(void) {
  event = NULL;
  prepare_stream();
}
static void end_event(void) {
  OK(gmm_event_destroy(event));
  end_streams();
}

static const operation operations[] = {
#define OPERATION(words, of, ...) {.name = words, .kinds = of, __VA_ARGS__},
#include "kth_operations.def"
};
static const unsigned operation_count = sizeof operations / sizeof operations[0];

#endif
