// SPDX-License-Identifier: Apache-2.0
// A pause, a resume, a trim, a snapshot and an import are each held up by a stopped stream, a callback or a stopped
// process. Another thread then calls every function of the interface with other memory of the same context, and in
// another context those that may wait in the same one. All calls return, but for those that kWaits names.
//
// The case counts steps and measures no time: it lets go after the last step has returned. A step that waits for what
// is held up never returns. The case then gives up after SOON_S, names the step and fails. A function that no step
// calls fails the case too. The list of functions is made from the headers.
#include "fault_support.h"
#include "ipc_support.h"

enum {
#define FUNCTION(name) FN_##name,
#include "functions.def"
#undef FUNCTION
  FUNCTIONS
};
static const char *const kNames[] = {
#define FUNCTION(name) #name,
#include "functions.def"
#undef FUNCTION
};

// The reasons for which a call may have to wait: a case holds some of them up.
enum {
  TRANSITION = 1,   // a pause or resume of another tag
  EVERY_HEAP = 2,   // the heap of a pause or resume
  DEVICE_WORK = 4,  // a stream
};
// With other memory of the same context.
static const struct {
  int function, waits_for;
} kWaits[] = {
    {FN_gmm_pause, DEVICE_WORK},
    {FN_gmm_ticket_destroy, DEVICE_WORK},  // of a pause
    {FN_gmm_pause_range, DEVICE_WORK},
    {FN_gmm_heap_destroy, DEVICE_WORK},
    {FN_gmm_reset, TRANSITION | EVERY_HEAP | DEVICE_WORK},
};

static struct {
  int held;           // of these
  gmm_tag held_tag;   // what is held up
  gmm_tag tag;        // another one
  void *block;        // of it: VMM, dedicated
  gmm_tag kept_tag;   // a paused one
  void *kept;         // its block
  gmm_stream stream;  // not the one that is held up
  gmm_stream used;    // that heaps used which are held up now, or NULL
  gmm_ticket *ticket, *waiting[2];
  gmm_context *unreleased;
  void *imported[3];      // other mappings than the exporter's own; the last close of one waits for the device
  gmm_ipc_handle handle;  // of the block, when others can import it
  bool is_exported;
  second_process exporter;         // a living one
  gmm_ipc_handle exporter_handle;  // of its memory
  bool is_elsewhere;               // the step calls another context
  bool was_called[FUNCTIONS];
  atomic_int steps, failures;
  const char *_Atomic step;
  atomic_int function;  // that the step called last
  unsigned round;
} world;

static int waits_for(int function) {
  for (unsigned i = 0; i < sizeof kWaits / sizeof *kWaits; ++i)
    if (kWaits[i].function == function) return kWaits[i].waits_for;
  return 0;
}
static bool may_call(int function) { return (waits_for(function) & world.held) == 0; }
// The contexts of a GPU share its streams.
static bool shares_held_work(void) { return !on_host_backend() && (world.held & DEVICE_WORK) != 0; }

static void step_failed(const char *what, const char *why) {
  printf("# \"%s\": %s: %s\n", atomic_load(&world.step), what, why);
  atomic_fetch_add(&world.failures, 1);
}
static void note(int function) {
  if (!world.is_elsewhere && !may_call(function)) step_failed(kNames[function], "kWaits says that it waits");
  world.was_called[function] = true;
  atomic_store(&world.function, function);
}
static void check_result(int function, gmm_result result) {
  char why[512];
  if (result >= 0 || result == GMM_ERROR_NOT_SUPPORTED) return;
  snprintf(why, sizeof why, "%s: %s", gmm_result_name(result), gmm_last_error_message());
  step_failed(kNames[function], why);
}
#define CALL(function, ...) (note(FN_##function), function(__VA_ARGS__))
#define STEP(function, ...) check_result(FN_##function, CALL(function, __VA_ARGS__))

static gmm_alloc_desc desc_of(gmm_kind k, gmm_tag tag) {
  return *DESC(alloc_desc, .kind = k, .device = device, .tag = tag, .stream = world.stream);
}
static gmm_scope_desc of_tag(gmm_tag tag) { return scope_of(GMM_SCOPE_TAG, 0, tag, 0); }

static struct {
  const char *name;
  void (*call)(void);
} scenarios[64];
static int scenario_count;
// Defines a scenario, which calls steps.
#define SCENARIO(function)                                                      \
  static void function(void);                                                   \
  __attribute__((constructor)) static void add_##function(void) {               \
    if (scenario_count == (int)(sizeof scenarios / sizeof *scenarios)) abort(); \
    scenarios[scenario_count].name = #function;                                 \
    scenarios[scenario_count++].call = function;                                \
  }                                                                             \
  static void function(void)

static gmm_tag new_tag(gmm_context *c, const char *name) {
  gmm_tag tag = 0;
  char numbered[32];
  snprintf(numbered, sizeof numbered, "%s %u", name, ++world.round);
  STEP(gmm_tag_create, c, numbered, NULL, &tag);
  return tag;
}

// --- The scenarios: each calls steps, in the order of this file ------------------------------------------------------

SCENARIO(first_allocations_under_another_tag) {
  const gmm_tag tag = new_tag(context, "first");
  for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_MANAGED; ++k) {
    if (!has_kind(k)) continue;
    // A heap that grows again may first give memory back. cuMemFree() waits for the device then; VMM has no such call.
    const bool may_grow_twice = k == GMM_KIND_VMM || !shares_held_work();
    for (uint64_t size = 100; size <= (may_grow_twice ? 4 * MIB : 100); size *= 200) {
      gmm_alloc_desc desc = desc_of(k, tag);
      void *block = NULL;
      STEP(gmm_alloc, context, size, &desc, &block);
      STEP(gmm_fill, context, block, 1, size, world.stream);
      STEP(gmm_name, context, block, "a block");
      STEP(gmm_free, context, block, world.stream);
      // They would have to wait now and then, and say so.
      if (CALL(gmm_try_alloc, context, size, &desc, &block) != GMM_OK) STEP(gmm_alloc, context, size, &desc, &block);
      if (CALL(gmm_try_free, context, block, world.stream) != GMM_OK) STEP(gmm_free, context, block, world.stream);
    }
  }
}
SCENARIO(statistics) {
  gmm_stats_info out = {.struct_size = sizeof out};
  STEP(gmm_stats_query, context, NULL, &out);
  STEP(gmm_metrics_write, context, ignore_text, NULL);
  for (uint32_t flags = 0; flags < 8; ++flags) {
    gmm_scope_desc scope = scope_of(flags, device, world.held_tag, GMM_KIND_VMM);
    STEP(gmm_stats_query, context, &scope, &out);
  }
}
SCENARIO(texts) {
  note(FN_gmm_version);
  note(FN_gmm_version_string);
  note(FN_gmm_last_error_message);
  note(FN_gmm_last_native_code);
  if (gmm_version() == 0 || gmm_version_string() == NULL) step_failed("gmm_version", "no answer");
  if (gmm_free(context, &world, GMM_STREAM_DEFAULT) >= 0 || gmm_last_error_message()[0] == '\0')
    step_failed("gmm_last_error_message", "no message");
  (void)gmm_last_native_code();
  if (CALL(gmm_result_name, GMM_ERROR_BUSY) == NULL) step_failed("gmm_result_name", "NULL");
  if (CALL(gmm_result_text, GMM_ERROR_BUSY) == NULL) step_failed("gmm_result_text", "NULL");
}
SCENARIO(queries) {
  gmm_pointer_info info = {.struct_size = sizeof info};
  STEP(gmm_query, context, world.block, &info);
  STEP(gmm_query, context, world.kept, &info);
  STEP(gmm_query, context, &info, &info);
  gmm_tag_info tag = {.struct_size = sizeof tag};
  STEP(gmm_context_query, context, DESC(context_info));
  STEP(gmm_device_query, context, device, DESC(device_info));
  STEP(gmm_backup_query, context, DESC(backup_info));
  STEP(gmm_tag_query, context, world.tag, &tag);
  STEP(gmm_tag_query, context, world.kept_tag, &tag);
}
SCENARIO(tags) {
  const gmm_tag tag = new_tag(context, "tag");
  char name[32];
  snprintf(name, sizeof name, "tag %u", world.round);
  gmm_tag found = 0, all[64];
  uint32_t count = 0;
  STEP(gmm_tag_find, context, name, &found);
  if (found != tag) step_failed("gmm_tag_find", "another tag");
  STEP(gmm_tag_list, context, all, 64, &count);
  STEP(gmm_tag_configure, context, tag, DESC(tag_desc, .contents = GMM_CONTENTS_DROP));
  STEP(gmm_tag_push, context, tag);
  STEP(gmm_tag_pop, context);
  STEP(gmm_tag_set_default, context, GMM_TAG_DEFAULT);
  STEP(gmm_tag_destroy, context, tag);
}
SCENARIO(limits) {
  gmm_scope_desc scope = of_tag(world.tag);
  STEP(gmm_limit_set, context, &scope, 1024 * MIB);
  STEP(gmm_limit_set, context, &scope, GMM_NO_LIMIT);
  STEP(gmm_context_set_oom_handler, context, ignore_oom, NULL);
  STEP(gmm_context_set_oom_handler, context, NULL, NULL);
}
SCENARIO(trims) {
  gmm_scope_desc scope = of_tag(world.tag);
  STEP(gmm_trim, context, &scope, NULL);
  STEP(gmm_compact, context, NULL, NULL, DESC(compact_info));
  if ((world.held & (EVERY_HEAP | DEVICE_WORK)) == 0) STEP(gmm_trim, context, NULL, NULL);
}
SCENARIO(watches) {
  gmm_watch_desc desc = {.struct_size = sizeof desc,
                         .events = 0x1f,
                         .tag = world.tag,
                         .budget_bytes = 1,
                         .callback = {ignore_watch, NULL}};
  gmm_watcher *watcher = NULL;
  STEP(gmm_watch, context, &desc, &watcher);
  STEP(gmm_watcher_destroy, watcher);
  desc.tag = world.held_tag;
  STEP(gmm_watch, context, &desc, &watcher);
  STEP(gmm_watcher_destroy, watcher);
}
SCENARIO(leases) {
  gmm_tag tag = 0;  // without memory, so that nothing is drained
  gmm_lease *lease = NULL;
  STEP(gmm_tag_create, context, "of a lease", NULL, &tag);
  STEP(gmm_lease_create, context, DESC(lease_desc, .name = "one"), &lease);
  STEP(gmm_lease_offer, lease, tag, 1);
  STEP(gmm_lease_request, lease, NULL, NULL);
  STEP(gmm_lease_query, lease, DESC(lease_info));
  STEP(gmm_lease_list, context, 0, 60000, DESC(lease_entry_info));
  STEP(gmm_lease_return, lease);
  STEP(gmm_lease_destroy, lease);
}
SCENARIO(deferral) {
  STEP(gmm_defer_begin, context);
  STEP(gmm_defer_end, context);
  STEP(gmm_context_set_decommit, context, 1000);
  STEP(gmm_context_set_decommit, context, GMM_DECOMMIT_NEVER);
}
SCENARIO(streams) {
  gmm_stream stream = NULL;
  STEP(gmm_stream_create, context, STREAM_ON(device), &stream);
  STEP(gmm_stream_call, context, stream, ignore_call, NULL);
  STEP(gmm_stream_synchronize, context, stream);
  gmm_event *event = NULL;
  uint64_t passed = 0;
  STEP(gmm_event_create, context, EVENT_ON(device), &event);
  STEP(gmm_event_record, event, 0, stream);
  STEP(gmm_stream_wait_event, context, world.stream, event, 0);
  STEP(gmm_event_synchronize, event, 0, GMM_FOREVER);
  STEP(gmm_event_query, event, &passed);
  STEP(gmm_event_destroy, event);
  uint8_t bytes[64];
  STEP(gmm_copy, context, bytes, world.block, sizeof bytes, stream);
  STEP(gmm_stream_synchronize, context, stream);
  STEP(gmm_stream_forget, context, stream);
  STEP(gmm_stream_destroy, context, stream);
  if (world.used == NULL) return;
  STEP(gmm_stream_forget, context, world.used);
  STEP(gmm_stream_destroy, context, world.used);
}
SCENARIO(recorded_uses) {
  gmm_alloc_desc desc = desc_of(GMM_KIND_VMM, world.tag);
  void *block = NULL;
  STEP(gmm_alloc, context, 5000, &desc, &block);
  STEP(gmm_record_use, context, block, GMM_STREAM_DEFAULT);
  STEP(gmm_free, context, block, world.stream);
}
SCENARIO(heaps) {
  gmm_heap *heap = NULL;
  void *block = NULL;
  STEP(gmm_heap_create, context, DESC(heap_desc, .kind = GMM_KIND_VMM, .device = device, .tag = world.tag), &heap);
  STEP(gmm_heap_alloc, heap, 5000, 0, 0, world.stream, &block);
  STEP(gmm_free, context, block, world.stream);
  STEP(gmm_heap_reserve, heap, 4 * MIB);
  if (CALL(gmm_heap_try_alloc, heap, 5000, 0, 0, world.stream, &block) == GMM_OK)
    STEP(gmm_free, context, block, world.stream);
  if (may_call(FN_gmm_heap_destroy)) STEP(gmm_heap_destroy, heap);
}
SCENARIO(pins) {
  static uint8_t bytes[16384];
  const gmm_result result = CALL(gmm_pin, context, bytes, sizeof bytes, NULL, NULL);
  note(FN_gmm_unpin);
  if (result == GMM_OK) STEP(gmm_unpin, context, bytes);
}
SCENARIO(residency) {
  if (has_kind(GMM_KIND_MANAGED)) {
    gmm_alloc_desc desc = desc_of(GMM_KIND_MANAGED, world.tag);
    void *block = NULL;
    STEP(gmm_alloc, context, 65536, &desc, &block);
    STEP(gmm_advise, context, block, 65536, GMM_ADVISE_SET_PREFERRED_LOCATION, device);
    STEP(gmm_prefetch, context, block, 65536, device, world.stream);
    STEP(gmm_free, context, block, world.stream);
  }
  const gmm_result result = CALL(gmm_move, context, world.block, device, DESC(move_desc, .stream = world.stream));
  if (result != GMM_ERROR_BUSY) check_result(FN_gmm_move, result);  // BUSY: an importer holds it
}
static void close_unless_work_is_held(void **memory) {
  if (*memory == NULL || (world.held & DEVICE_WORK) != 0) return;
  STEP(gmm_ipc_close, context, *memory);
  *memory = NULL;
}
SCENARIO(exports) {
  if (!world.is_exported) return;
  gmm_ipc_handle handle;
  void *own = NULL;
  gmm_ipc_fd_info info = {.struct_size = sizeof info};
  STEP(gmm_ipc_export, context, world.block, &handle);
  STEP(gmm_ipc_import, context, &handle, IMPORT_WITHIN(60000), &own);
  STEP(gmm_ipc_close, context, own);
  STEP(gmm_ipc_export_fd, context, world.block, GMM_FD_DEFAULT, &info);
  STEP(gmm_ipc_import_fd, context, info.fd, DESC(ipc_fd_desc, .type = info.type, .device = device, .size = info.size),
       &world.imported[0]);
  close_unless_work_is_held(&world.imported[0]);
  close(info.fd);
  gmm_ipc_legacy_info legacy = {.struct_size = sizeof legacy};
  gmm_alloc_desc of_device = desc_of(GMM_KIND_DEVICE, world.tag);
  void *block = NULL;
  STEP(gmm_alloc, context, 5000, &of_device, &block);
  STEP(gmm_ipc_export_legacy, context, block, &legacy);
  STEP(gmm_free, context, block, world.stream);
}
SCENARIO(published_memory) {
  if (!world.is_exported) return;
  STEP(gmm_publish, context, world.block, "step", DESC(publish_desc, .timeout_ms = 60000));
  STEP(gmm_attach, context, "step", DESC(attach_desc, .timeout_ms = 60000), &world.imported[2]);
  STEP(gmm_published_list, context, 0, 60000, DESC(published_info));
  STEP(gmm_unpublish, context, "step");
  note(FN_gmm_detach);
  if ((world.held & DEVICE_WORK) != 0) return;
  STEP(gmm_detach, context, world.imported[2]);
  world.imported[2] = NULL;
}
SCENARIO(shared_events) {
  gmm_event *event = NULL, *same = NULL;
  gmm_ipc_handle handle;
  note(FN_gmm_event_export);
  note(FN_gmm_event_import);
  const gmm_result result = CALL(gmm_event_create, context, SHARED_EVENT_ON(device), &event);
  check_result(FN_gmm_event_create, result);
  if (result != GMM_OK) return;
  STEP(gmm_event_export, event, &handle);
  STEP(gmm_event_import, context, &handle, IMPORT_WITHIN(60000), &same);
  STEP(gmm_event_destroy, event);
  STEP(gmm_event_destroy, same);
}
SCENARIO(semaphores) {
  const gmm_semaphore_desc desc = {
      .struct_size = sizeof desc, .type = GMM_SEMAPHORE_CALLS, .device = device, .calls = {.wait = ignore_value}};
  gmm_event *event = NULL;
  const gmm_result result = CALL(gmm_event_import_semaphore, context, &desc, &event);
  if (result != GMM_ERROR_NOT_SUPPORTED) check_result(FN_gmm_event_import_semaphore, result);
  if (event != NULL) STEP(gmm_event_destroy, event);
}
SCENARIO(an_import_from_another_process) {
  if (!world.is_exported) return;
  STEP(gmm_ipc_import, context, &world.exporter_handle, IMPORT_WITHIN(60000), &world.imported[1]);
  close_unless_work_is_held(&world.imported[1]);
}
// Another process asks this one for memory of the other tag.
SCENARIO(an_importer) {
  if (!world.is_exported) return;
  second_process process = start_other();
  const gmm_result result = other_reads(&process, &world.handle, MIB, 3, 60000);
  if (result != GMM_OK) step_failed("an importer", gmm_result_name(result));
  end_other(&process);
}
SCENARIO(traces) {
  char path[64];
  snprintf(path, sizeof path, "/tmp/gmm-waits-%d.trace", (int)getpid());
  STEP(gmm_trace_begin, context, path, NULL);
  STEP(gmm_trace_end, context);
  STEP(gmm_trace_set_frames, NULL);
  unlink(path);
}
static void snapshots_of(const gmm_scope_desc *scope) {
  gmm_snapshot *snapshot = NULL;
  STEP(gmm_snapshot_create, context, scope, &snapshot);
  STEP(gmm_snapshot_query, snapshot, DESC(snapshot_info));
  STEP(gmm_snapshot_query_block, snapshot, 0, DESC(block_info));
  STEP(gmm_snapshot_query_extent, snapshot, 0, DESC(extent_info));
  STEP(gmm_snapshot_write, snapshot, ignore_text, NULL);
  STEP(gmm_snapshot_destroy, snapshot);
}
SCENARIO(snapshots) {
  gmm_scope_desc scope = of_tag(world.tag);
  snapshots_of(&scope);
  if ((world.held & EVERY_HEAP) == 0) snapshots_of(NULL);
}
SCENARIO(backups) {
  STEP(gmm_backup_configure, context, DESC(backup_desc));
  STEP(gmm_backup_reserve, context, device, MIB);
  uint8_t bytes[64];
  const void *mapped = NULL;
  STEP(gmm_backup_read, context, world.kept, sizeof bytes, bytes);
  STEP(gmm_backup_map, context, world.kept, sizeof bytes, &mapped);
  STEP(gmm_resume_wait, context, world.block, 64, 0);
}
SCENARIO(transitions) {
  gmm_pause_desc desc = one_tag(&world.kept_tag);
  STEP(gmm_resume_range, context, world.kept, MIB, NULL);
  if (may_call(FN_gmm_pause)) STEP(gmm_pause, context, &desc, NULL);
  STEP(gmm_backup_discard, context, &desc, NULL);
  STEP(gmm_resume, context, &desc, NULL);
}
SCENARIO(tickets) {
  gmm_ticket_info info = {.struct_size = sizeof info};
  if (world.ticket != NULL) {
    STEP(gmm_ticket_query, world.ticket, &info);
    if (CALL(gmm_ticket_wait, world.ticket, 0, NULL) != GMM_ERROR_NOT_READY)
      step_failed("gmm_ticket_wait", "what is held up has ended");
  }
  gmm_pause_desc desc = one_tag(&world.kept_tag);
  STEP(gmm_resume_async, context, &desc, &world.waiting[0]);
  STEP(gmm_pause_async, context, &desc, &world.waiting[1]);
  for (unsigned i = 0; i < 2; ++i) {
    STEP(gmm_ticket_query, world.waiting[i], &info);
    CALL(gmm_ticket_wait_held, world.waiting[i], 0);
    if (CALL(gmm_ticket_commit, world.waiting[i]) >= 0)
      step_failed("gmm_ticket_commit", "what is not held is committed");
    STEP(gmm_ticket_cancel, world.waiting[i]);
    CALL(gmm_ticket_wait, world.waiting[i], 0, NULL);  // CANCELLED, NOT_READY, or it was too late for that
    if (!may_call(FN_gmm_ticket_destroy)) continue;
    STEP(gmm_ticket_destroy, world.waiting[i]);
    world.waiting[i] = NULL;
  }
}
SCENARIO(references) {
  STEP(gmm_context_retain, context);
  STEP(gmm_context_release, context);
}

// The functions that may wait in the same context.
SCENARIO(another_context) {
  gmm_context *other = NULL;
  gmm_ticket *ticket = NULL;
  gmm_heap *heap = NULL;
  void *block = NULL;
  world.is_elsewhere = true;
  STEP(gmm_context_create, DESC(context_desc, .host_devices = 2), &other);
  STEP(gmm_ipc_configure, other, NULL);
  const gmm_tag tag = new_tag(other, "other");
  const gmm_pause_desc desc = one_tag(&tag);
  STEP(gmm_alloc, other, 5000, DESC(alloc_desc, .kind = GMM_KIND_VMM, .device = device, .tag = tag), &block);
  if (shares_held_work()) {
    world.unreleased = other;
  } else {
    STEP(gmm_trim, other, NULL, NULL);
    STEP(gmm_pause, other, &desc, NULL);
    STEP(gmm_resume, other, &desc, NULL);
    STEP(gmm_pause_async, other, &desc, &ticket);
    STEP(gmm_ticket_wait, ticket, GMM_FOREVER, NULL);
    STEP(gmm_ticket_destroy, ticket);
    STEP(gmm_alloc, other, MIB, DESC(alloc_desc, .device = device, .tag = tag, .flags = GMM_ALLOC_PAUSED), &block);
    STEP(gmm_pause_range, other, block, MIB, 0, NULL);
    STEP(gmm_heap_create, other, DESC(heap_desc, .kind = GMM_KIND_VMM, .device = device, .tag = tag), &heap);
    STEP(gmm_heap_destroy, heap);
    STEP(gmm_reset, other);
    STEP(gmm_tag_destroy, other, tag);
    STEP(gmm_context_release, other);
  }
  world.is_elsewhere = false;
}
static void *live_and_end(void *unused) {
  (void)unused;
  gmm_alloc_desc desc = desc_of(GMM_KIND_VMM, world.tag);
  void *block = NULL;
  STEP(gmm_alloc, context, 3000, &desc, &block);
  STEP(gmm_free, context, block, world.stream);
  return NULL;
}
SCENARIO(a_thread_that_ends) { run_thread(live_and_end, NULL); }

static void *walk(void *unused) {
  (void)unused;
  for (int i = 0; i < scenario_count; ++i) {
    atomic_store(&world.step, scenarios[i].name);
    scenarios[i].call();
    atomic_fetch_add(&world.steps, 1);
  }
  return NULL;
}

static pthread_t walker;
static void set_up(int held) {
  if (!has_kind(GMM_KIND_VMM)) SKIP("the device has no VMM memory");
  memset(&world, 0, sizeof world);
  world.held = held;
  world.held_tag = make_tag("held up", GMM_CONTENTS_HOST);
  world.tag = make_tag("other", GMM_CONTENTS_HOST);
  world.kept_tag = make_tag("kept", GMM_CONTENTS_HOST);
  world.stream = open_stream();
  kind = GMM_KIND_VMM;
  world.block = alloc_here(__LINE__, MIB, world.tag, world.stream, GMM_ALLOC_DEDICATED);
  write_pattern(world.block, MIB, 3, world.stream);
  world.kept = ALLOC_TAG(MIB, world.kept_tag);
  write_pattern(world.kept, MIB, 4, world.stream);
  OK(gmm_stream_synchronize(context, world.stream));
  MUST(pause_of(world.kept_tag));
  world.is_exported = gmm_ipc_export(context, world.block, &world.handle) == GMM_OK;
  if (!world.is_exported) return;
  world.exporter = start_other();
  world.exporter_handle = other_makes(&world.exporter, MIB, 8);
}
// All steps return while it is held up, and call every function.
static void walk_all(void) {
  REQUIRE(pthread_create(&walker, NULL, walk, NULL) == 0);
  bool all = false;
  for (double end = now_s() + SOON_S; !(all = atomic_load(&world.steps) == scenario_count) && now_s() < end;)
    sleep_ms(1);
  CHECK_MESSAGE(all, "%s in \"%s\" does not return; %d of %d steps did", kNames[atomic_load(&world.function)],
                atomic_load(&world.step), atomic_load(&world.steps), scenario_count);
  if (!all) return;
  for (int i = 0; i < FUNCTIONS; ++i) {
    // The other context has it all, unless it shares what is held up.
    const bool may_miss = shares_held_work() && !may_call(i);
    CHECK_MESSAGE(world.was_called[i] || may_miss, "no step calls %s", kNames[i]);
  }
}
// After what was held up goes on.
static void tear_down(void) {
  pthread_join(walker, NULL);
  CHECK_EQUAL(atomic_load(&world.steps), scenario_count);
  CHECK_EQUAL(atomic_load(&world.failures), 0);
  for (unsigned i = 0; i < 2; ++i) OK(gmm_ticket_destroy(world.waiting[i]));
  for (unsigned i = 0; i < 3; ++i)
    if (world.imported[i] != NULL) OK(gmm_ipc_close(context, world.imported[i]));
  if (world.unreleased != NULL) OK(gmm_context_release(world.unreleased));
  CHECK(resume_of(world.kept_tag) >= 0);
  if (world.is_exported) end_other(&world.exporter);
}

// --- The operations that are held up ---------------------------------------------------------------------------------

CASE(a_pause_that_waits_for_a_stream) {
  set_up(TRANSITION | DEVICE_WORK);
  ALLOC_TAG(MIB, world.held_tag);
  gmm_stream stopped = open_stream();
  static gate hold;
  gate_close(&hold, stopped, 2 * GATE_S);
  SOON(atomic_load(&hold.entered) != 0);
  gmm_pause_desc desc = one_tag(&world.held_tag);
  MUST(gmm_pause_async(context, &desc, &world.ticket));
  sleep_ms(20);  // it waits by then, or soon: what follows holds either way
  walk_all();
  atomic_store(&hold.open, 1);
  OK(gmm_ticket_wait(world.ticket, GMM_FOREVER, NULL));
  tear_down();
  OK(gmm_ticket_destroy(world.ticket));
  OK(gmm_resume(context, &desc, NULL));
}

static void hold_in_progress(bool pausing) {
  set_up(TRANSITION | EVERY_HEAP);
  allocate_blocks(world.held_tag, 60);
  world.used = open_stream();
  for (uint64_t size = 1000; size <= 10 * MIB; size *= 100)
    FREE_ON(world.used, alloc_here(__LINE__, size, world.held_tag, world.used, 0));
  OK(gmm_record_use(context, blocks[0], world.used));
  OK(gmm_record_use(context, blocks[BLOCKS - 1], world.used));
  if (!pausing) MUST(pause_of(world.held_tag));
  blocker hold = BLOCKER;
  world.ticket = start_held(pausing, &world.held_tag, &hold);
  walk_all();
  let_go(&hold);
  OK(gmm_ticket_wait(world.ticket, GMM_FOREVER, NULL));
  tear_down();
  OK(gmm_ticket_destroy(world.ticket));
  if (pausing) OK(resume_of(world.held_tag));
  check_blocks(60);
}
CASE(a_pause_whose_progress_does_not_return) { hold_in_progress(true); }
CASE(a_resume_whose_progress_does_not_return) { hold_in_progress(false); }

static atomic_int trim_ended;
static void *trim_the_held_tag(void *unused) {
  (void)unused;
  const gmm_scope_desc scope = of_tag(world.held_tag);
  OK(gmm_trim(context, &scope, NULL));
  atomic_store(&trim_ended, 1);
  return NULL;
}
CASE(a_trim_that_waits_for_a_stream) {
  set_up(DEVICE_WORK);
  gmm_stream stopped = open_stream();
  void *block = alloc_here(__LINE__, 8 * MIB, world.held_tag, stopped, 0);
  static gate hold;
  gate_close(&hold, stopped, 2 * GATE_S);
  SOON(atomic_load(&hold.entered) != 0);
  OK(gmm_free(context, block, stopped));
  atomic_store(&trim_ended, 0);
  const pthread_t thread = start_thread(trim_the_held_tag, NULL);
  sleep_ms(20);  // it waits by then, or soon: what follows holds either way
  walk_all();
  CHECK_EQUAL(atomic_load(&trim_ended), 0);
  atomic_store(&hold.open, 1);
  pthread_join(thread, NULL);
  tear_down();
}

static int32_t hold_the_writer(void *user, const char *text, uint64_t size) {
  (void)text, (void)size;
  return block_progress(user, 0, 0);
}
static void *write_and_wait(void *hold) {
  OK(write_snapshot(context, hold_the_writer, hold));
  return NULL;
}
CASE(a_snapshot_whose_writer_does_not_return) {
  set_up(0);
  ALLOC_TAG(MIB, world.held_tag);
  blocker hold = BLOCKER;
  const pthread_t thread = start_thread(write_and_wait, &hold);
  wait_until_inside(&hold);
  walk_all();
  let_go(&hold);
  pthread_join(thread, NULL);
  tear_down();
}

static void *import_from_the_stopped(void *handle) {
  void *memory = NULL;
  OK(import(handle, 2 * GATE_S * 1000, &memory));
  return memory;
}
CASE(an_import_from_a_stopped_process) {
  set_up(0);
  if (!world.is_exported) SKIP("the backend shares no VMM memory");
  second_process exporter = start_other();
  gmm_ipc_handle handle = other_makes(&exporter, MIB, 9);
  REQUIRE(kill(exporter.pid, SIGSTOP) == 0);
  const pthread_t thread = start_thread(import_from_the_stopped, &handle);
  sleep_ms(20);  // it waits by then, or soon: what follows holds either way
  walk_all();
  REQUIRE(kill(exporter.pid, SIGCONT) == 0);
  void *memory = NULL;
  pthread_join(thread, &memory);
  tear_down();
  OK(gmm_ipc_close(context, memory));
  end_other(&exporter);
}

int main(int count, char **words) {
  if (count == 1 && getenv("GMM_BACKEND") != NULL && strcmp(getenv("GMM_BACKEND"), "cuda") == 0) {
    gmm_context_release(open_context(1));  // opens the driver
    if (!on_host_or_fake_driver()) {
      printf("1..0 # SKIP calls of a real driver wait for the device, and so for the stream that is stopped here\n");
      return 0;
    }
  }
  if (count > 1) return run_cases_or(other_main, count, words);
  // A server of leases of its own, whatever else runs on the machine. It ends with its socket.
  char folder[] = "/tmp/gmm-waits-XXXXXX", server[64];
  if (mkdtemp(folder) == NULL || setenv("GMM_IPC_DIR", folder, 1) != 0) return 99;
  snprintf(server, sizeof server, "%s/serve.sock", folder);
  const int code = run_cases_or(other_main, count, words);
  unlink(server);
  rmdir(folder);
  return code;
}
