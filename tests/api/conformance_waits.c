// SPDX-License-Identifier: Apache-2.0
// A pause, a resume, a trim, a snapshot and an import are each held up by a stopped stream, a callback or a stopped
// process. Another thread then calls every function that need not wait for the one that is held up. All calls return.
//
// The case counts steps and measures no time: it lets go after the last step has returned. A step that waits for what
// is held up never returns. The case then gives up after SOON_S, names the step and fails.
#include <fcntl.h>
#include <unistd.h>

#include "fault_support.h"
#include "ipc_second_process.h"

// What a step has to wait for, when that is what is held up.
enum {
  TRANSITION = 1,  // a pause or resume: one runs at a time
  EVERY_HEAP = 2,  // the heap of a pause or resume
  DEVICE_WORK = 4,
  IMPORT = 8,  // an import or a close: one runs at a time
};

static struct {
  int held;           // of these
  gmm_tag held_tag;   // what is held up
  gmm_tag tag;        // another one
  void *block;        // of it, VMM, dedicated
  gmm_stream stream;  // not the one that is held up
  gmm_ticket *ticket;
  gmm_ipc_handle handle;  // of the block, when others can import it
  bool is_exported;
  atomic_int steps, failures;
  const char *_Atomic step;
  unsigned round;
} world;

#define STEP_OK(call)                                                                              \
  do {                                                                                             \
    gmm_result step_result = (call);                                                               \
    if (step_result < 0) {                                                                         \
      printf("# %s gave %s: %s\n", #call, gmm_result_name(step_result), gmm_last_error_message()); \
      atomic_fetch_add(&world.failures, 1);                                                        \
    }                                                                                              \
  } while (0)

static gmm_alloc_desc desc_of(gmm_kind k, gmm_tag tag) {
  return (gmm_alloc_desc){
      .struct_size = sizeof(gmm_alloc_desc), .kind = k, .device = device, .tag = tag, .stream = world.stream};
}

static int32_t drop_text(void *user, const char *text, uint64_t size) {
  (void)user, (void)text, (void)size;
  return 0;
}
static int32_t no_more_memory(void *user, const gmm_oom_info *info) {
  (void)user, (void)info;
  return 0;
}
static void do_nothing(void *user) { (void)user; }

// --- The steps: each is named by what it calls -----------------------------------------------------------------------

static void first_allocations_under_another_tag(void) {
  gmm_tag tag = 0;
  char name[32];
  snprintf(name, sizeof name, "first %u", ++world.round);
  STEP_OK(gmm_tag_create(context, name, NULL, &tag));
  for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_MANAGED; ++k) {
    if (!has_kind(k)) continue;
    // A heap that grows again may first give memory back. cuMemFree() waits for the device then; VMM has no such call.
    const bool may_grow_twice = on_host_backend() || k == GMM_KIND_VMM || (world.held & DEVICE_WORK) == 0;
    for (uint64_t size = 100; size <= (may_grow_twice ? 4 * MIB : 100); size *= 200) {
      gmm_alloc_desc desc = desc_of(k, tag);
      void *block = NULL;
      STEP_OK(gmm_alloc(context, size, &desc, &block));
      STEP_OK(gmm_fill(context, block, 1, size, world.stream));
      STEP_OK(gmm_free(context, block, world.stream));
      if (gmm_try_alloc(context, size, &desc, &block) == GMM_OK && gmm_try_free(context, block, world.stream) != GMM_OK)
        STEP_OK(gmm_free(context, block, world.stream));
    }
  }
}
static void statistics(void) {
  gmm_stats_info out = {.struct_size = sizeof out};
  STEP_OK(gmm_stats_query(context, NULL, &out));
  for (uint32_t flags = 0; flags < 8; ++flags) {
    gmm_scope_desc scope = {.struct_size = sizeof scope, .flags = flags, .device = device, .tag = world.held_tag};
    scope.kind = GMM_KIND_VMM;
    STEP_OK(gmm_stats_query(context, &scope, &out));
  }
}
static void queries(void) {
  gmm_pointer_info info = {.struct_size = sizeof info};
  STEP_OK(gmm_query(context, world.block, &info));
  STEP_OK(gmm_query(context, &info, &info));
  gmm_context_info about = {.struct_size = sizeof about};
  STEP_OK(gmm_context_query(context, &about));
  gmm_device_info one = {.struct_size = sizeof one};
  STEP_OK(gmm_device_query(context, device, &one));
  gmm_backup_info backups = {.struct_size = sizeof backups};
  STEP_OK(gmm_backup_query(context, &backups));
}
static void pause_query(void) {
  gmm_tag_info info = {.struct_size = sizeof info};
  STEP_OK(gmm_tag_query(context, world.tag, &info));
}
static void tags(void) {
  gmm_tag found = 0;
  char name[32];
  snprintf(name, sizeof name, "tag %u", ++world.round);
  STEP_OK(gmm_tag_create(context, name, NULL, &found));
  STEP_OK(gmm_tag_find(context, name, &found));
  gmm_tag_desc desc = {.struct_size = sizeof desc, .contents = GMM_CONTENTS_DROP};
  STEP_OK(gmm_tag_configure(context, found, &desc));
  STEP_OK(gmm_tag_push(context, found));
  STEP_OK(gmm_tag_pop(context));
  STEP_OK(gmm_tag_set_default(context, GMM_TAG_DEFAULT));
}
static void limits(void) {
  gmm_scope_desc scope = {.struct_size = sizeof scope, .flags = GMM_SCOPE_TAG, .tag = world.tag};
  STEP_OK(gmm_limit_set(context, &scope, 1024 * MIB));
  STEP_OK(gmm_limit_set(context, &scope, GMM_NO_LIMIT));
  STEP_OK(gmm_context_set_oom_handler(context, no_more_memory, NULL));
  STEP_OK(gmm_context_set_oom_handler(context, NULL, NULL));
}
static void trim_of_another_tag(void) {
  gmm_scope_desc scope = {.struct_size = sizeof scope, .flags = GMM_SCOPE_TAG, .tag = world.tag};
  STEP_OK(gmm_trim(context, &scope, NULL));
}
static void deferral(void) {
  STEP_OK(gmm_defer_begin(context));
  STEP_OK(gmm_defer_end(context));
  STEP_OK(gmm_context_set_decommit(context, 1000));
  STEP_OK(gmm_context_set_decommit(context, GMM_DECOMMIT_NEVER));
}
static void streams(void) {
  gmm_stream stream = NULL;
  STEP_OK(gmm_stream_create(context, device, &stream));
  STEP_OK(gmm_stream_call(context, stream, do_nothing, NULL));
  STEP_OK(gmm_stream_synchronize(context, stream));
  gmm_event *event = NULL;
  uint32_t passed = 0;
  STEP_OK(gmm_event_create(context, device, &event));
  STEP_OK(gmm_event_record(context, event, stream));
  STEP_OK(gmm_stream_wait_event(context, world.stream, event));
  STEP_OK(gmm_event_synchronize(context, event));
  STEP_OK(gmm_event_query(context, event, &passed));
  STEP_OK(gmm_event_destroy(context, event));
  uint8_t bytes[64];
  STEP_OK(gmm_copy(context, bytes, world.block, sizeof bytes, stream));
  STEP_OK(gmm_stream_synchronize(context, stream));
  // The stream stays: gmm_stream_destroy() and gmm_stream_forget() are steps of their own.
}
static void streams_end(void) {
  gmm_stream stream = NULL;
  STEP_OK(gmm_stream_create(context, device, &stream));
  STEP_OK(gmm_stream_forget(context, stream));
  STEP_OK(gmm_stream_destroy(context, stream));
}
static void recorded_uses(void) {
  gmm_alloc_desc desc = desc_of(GMM_KIND_VMM, world.tag);
  void *block = NULL;
  STEP_OK(gmm_alloc(context, 5000, &desc, &block));
  STEP_OK(gmm_record_use(context, block, GMM_STREAM_DEFAULT));
  STEP_OK(gmm_free(context, block, world.stream));
}
static void heaps(void) {
  gmm_heap_desc desc = {.struct_size = sizeof desc, .kind = GMM_KIND_VMM, .device = device, .tag = world.tag};
  gmm_heap *heap = NULL;
  STEP_OK(gmm_heap_create(context, &desc, &heap));
  void *block = NULL;
  STEP_OK(gmm_heap_alloc(heap, 5000, world.stream, &block));
  STEP_OK(gmm_free(context, block, world.stream));
  if ((world.held & DEVICE_WORK) == 0) STEP_OK(gmm_heap_destroy(heap));
}
static void pins(void) {
  static uint8_t bytes[16384];
  gmm_result result = gmm_pin(context, bytes, sizeof bytes, NULL, NULL);
  if (result == GMM_OK) STEP_OK(gmm_unpin(context, bytes));
}
static void residency(void) {
  if (has_kind(GMM_KIND_MANAGED)) {
    gmm_alloc_desc desc = desc_of(GMM_KIND_MANAGED, world.tag);
    void *block = NULL;
    STEP_OK(gmm_alloc(context, 65536, &desc, &block));
    STEP_OK(gmm_advise(context, block, 65536, GMM_ADVISE_SET_PREFERRED_LOCATION, device));
    STEP_OK(gmm_prefetch(context, block, 65536, device, world.stream));
    STEP_OK(gmm_free(context, block, world.stream));
  }
  gmm_move_desc to = {.struct_size = sizeof to, .stream = world.stream};
  gmm_result result = gmm_move(context, world.block, device, &to);
  if (result != GMM_ERROR_BUSY) STEP_OK(result);  // an importer holds it
}
static void exports(void) {
  if (!world.is_exported) return;
  gmm_ipc_handle handle;
  STEP_OK(gmm_ipc_export(context, world.block, &handle));
  void *own = NULL;
  gmm_ipc_import_desc desc = import_desc();
  STEP_OK(gmm_ipc_import(context, &handle, &desc, &own));
  if ((world.held & IMPORT) == 0) STEP_OK(gmm_ipc_close(context, own));
  int32_t fd = -1;
  uint64_t offset = 0, size = 0;
  STEP_OK(gmm_ipc_export_fd(context, world.block, GMM_FD_DEFAULT, &fd, &offset, &size));
  if (fd >= 0) close(fd);
  gmm_event *event = NULL;
  gmm_result result = gmm_ipc_event_create(context, device, &event);
  if (result != GMM_OK) return;
  STEP_OK(gmm_event_export(context, event, &handle));
  STEP_OK(gmm_event_destroy(context, event));
}
// Another process asks this one for memory of the other tag.
static void an_importer(void) {
  if (!world.is_exported) return;
  second_process process = start("read", MIB, 3);
  if (!send_bytes(process.to, &world.handle, sizeof world.handle)) atomic_fetch_add(&world.failures, 1);
  const int code = second_wait(&process);
  if (code == 0) return;
  printf("# the importer ended with %d\n", code);
  atomic_fetch_add(&world.failures, 1);
}
static void traces(void) {
  char path[64];
  snprintf(path, sizeof path, "/tmp/gmm-waits-%d.trace", (int)getpid());
  STEP_OK(gmm_trace_begin(context, path));
  STEP_OK(gmm_trace_end(context));
  unlink(path);
}
static void tickets(void) {
  if (world.ticket == NULL) return;
  gmm_ticket_info info = {.struct_size = sizeof info};
  STEP_OK(gmm_ticket_query(world.ticket, &info));
  gmm_result result = gmm_ticket_wait(world.ticket, 0, NULL);
  if (result != GMM_NOT_READY) STEP_OK(result);
}
static void active_memory_is_ready(void) { STEP_OK(gmm_resume_wait(context, world.block, 64, 0)); }
static void snapshot(void) { STEP_OK(gmm_snapshot(context, drop_text, NULL)); }
static void backups(void) {
  gmm_backup_desc desc = {.struct_size = sizeof desc};
  STEP_OK(gmm_backup_configure(context, &desc));
}
static void pause_of_another_tag(void) {
  gmm_pause_desc desc = one_tag(&world.tag);
  desc.flags = GMM_PAUSE_FORCE;
  STEP_OK(gmm_pause(context, &desc, NULL));
  uint8_t bytes[64];
  STEP_OK(gmm_backup_read(context, world.block, sizeof bytes, bytes));
  desc.flags = 0;
  STEP_OK(gmm_backup_discard(context, &desc, NULL));
  STEP_OK(gmm_resume(context, &desc, NULL));
}
static void another_context(void) {
  gmm_context_desc desc = {.struct_size = sizeof desc, .host_devices = 2};
  gmm_context *other = NULL;
  STEP_OK(gmm_context_create(&desc, &other));
  void *block = NULL;
  STEP_OK(gmm_alloc(other, 100, NULL, &block));
  STEP_OK(gmm_free(other, block, GMM_STREAM_DEFAULT));
  // Its release waits for the devices, which contexts of a GPU share.
  if (on_host_backend() || (world.held & DEVICE_WORK) == 0) STEP_OK(gmm_context_release(other));
}
static void *live_and_end(void *unused) {
  (void)unused;
  gmm_alloc_desc desc = desc_of(GMM_KIND_VMM, world.tag);
  void *block = NULL;
  STEP_OK(gmm_alloc(context, 3000, &desc, &block));
  STEP_OK(gmm_free(context, block, world.stream));
  return NULL;
}
static void a_thread_that_ends(void) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, live_and_end, NULL) == 0) pthread_join(thread, NULL);
}

static const struct {
  const char *name;
  void (*call)(void);
  int waits_for;
} kSteps[] = {
    {"first allocations under another tag", first_allocations_under_another_tag, 0},
    {"gmm_stats_query", statistics, 0},
    {"gmm_query", queries, 0},
    {"gmm_tag_query", pause_query, 0},
    {"tags", tags, 0},
    {"limits", limits, 0},
    {"gmm_trim", trim_of_another_tag, 0},
    {"gmm_defer_begin", deferral, 0},
    {"streams", streams, 0},
    {"gmm_stream_destroy", streams_end, EVERY_HEAP},
    {"gmm_record_use", recorded_uses, 0},
    {"heaps", heaps, 0},
    {"pins", pins, 0},
    {"residency", residency, 0},
    {"exports", exports, 0},
    {"an importer", an_importer, 0},
    {"traces", traces, 0},
    {"tickets", tickets, 0},
    {"gmm_resume_wait", active_memory_is_ready, 0},
    {"gmm_snapshot", snapshot, EVERY_HEAP},
    {"gmm_backup_configure", backups, 0},
    {"pause of another tag", pause_of_another_tag, TRANSITION | EVERY_HEAP | DEVICE_WORK},
    {"another context", another_context, 0},
    {"a thread that ends", a_thread_that_ends, 0},
};
enum { STEPS = sizeof kSteps / sizeof kSteps[0] };

static void *walk(void *unused) {
  (void)unused;
  for (unsigned i = 0; i < STEPS; ++i) {
    atomic_store(&world.step, kSteps[i].name);
    if ((kSteps[i].waits_for & world.held) == 0) kSteps[i].call();
    atomic_fetch_add(&world.steps, 1);
  }
  return NULL;
}

static pthread_t walker;
static void set_up(int held) {
  memset(&world, 0, sizeof world);
  world.held = held;
  world.held_tag = make_tag("held up", GMM_CONTENTS_HOST);
  world.tag = make_tag("other", GMM_CONTENTS_HOST);
  MUST(gmm_stream_create(context, device, &world.stream));
  gmm_alloc_desc desc = desc_of(GMM_KIND_VMM, world.tag);
  desc.flags = GMM_ALLOC_DEDICATED;
  MUST(gmm_alloc(context, MIB, &desc, &world.block));
  kind = GMM_KIND_VMM;
  write_pattern(world.block, MIB, 3, world.stream);
  OK(gmm_stream_synchronize(context, world.stream));
  world.is_exported = gmm_ipc_export(context, world.block, &world.handle) == GMM_OK;
}
// All steps return while it is held up.
static void walk_all(void) {
  REQUIRE(pthread_create(&walker, NULL, walk, NULL) == 0);
  bool all = false;
  for (double end = now_s() + SOON_S; !(all = atomic_load(&world.steps) == STEPS) && now_s() < end;) sleep_ms(1);
  CHECK_MESSAGE(all, "\"%s\" does not return; %d of %d steps did", atomic_load(&world.step), atomic_load(&world.steps),
                (int)STEPS);
}
// After what was held up goes on.
static void tear_down(void) {
  pthread_join(walker, NULL);
  CHECK_EQUAL(atomic_load(&world.steps), STEPS);
  CHECK_EQUAL(atomic_load(&world.failures), 0);
  OK(gmm_free(context, world.block, world.stream));
  OK(gmm_stream_destroy(context, world.stream));
}

// --- What is held up -------------------------------------------------------------------------------------------------

static void a_pause_that_waits_for_a_stream(void) {
  set_up(TRANSITION | DEVICE_WORK);
  kind = GMM_KIND_VMM;
  void *block = ALLOC_TAG(MIB, world.held_tag);
  REQUIRE(block != NULL);
  gmm_stream stopped;
  MUST(gmm_stream_create(context, device, &stopped));
  gate hold;
  gate_close(&hold, stopped, 2 * GATE_S);
  SOON(atomic_load(&hold.entered) != 0);
  gmm_pause_desc desc = one_tag(&world.held_tag);
  MUST(gmm_pause_async(context, &desc, &world.ticket));
  sleep_ms(20);  // it waits by then, or soon: what follows holds either way
  walk_all();
  atomic_store(&hold.open, 1);
  OK(gmm_ticket_wait(world.ticket, UINT64_MAX, NULL));
  tear_down();
  OK(gmm_ticket_destroy(world.ticket));
  OK(gmm_resume(context, &desc, NULL));
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_stream_destroy(context, stopped));
}

static void hold_in_progress(bool pausing) {
  set_up(TRANSITION | EVERY_HEAP);
  allocate_blocks(world.held_tag, 60);
  gmm_pause_desc desc = one_tag(&world.held_tag);
  if (!pausing) MUST(gmm_pause(context, &desc, NULL));
  blocker hold = BLOCKER;
  world.ticket = start_held(pausing, &world.held_tag, &hold);
  walk_all();
  let_go(&hold);
  OK(gmm_ticket_wait(world.ticket, UINT64_MAX, NULL));
  tear_down();
  OK(gmm_ticket_destroy(world.ticket));
  if (pausing) OK(gmm_resume(context, &desc, NULL));
  check_blocks(60);
  free_blocks();
}
static void a_pause_whose_progress_does_not_return(void) { hold_in_progress(true); }
static void a_resume_whose_progress_does_not_return(void) { hold_in_progress(false); }

static atomic_int trim_ended;
static void *trim_the_held_tag(void *unused) {
  (void)unused;
  gmm_scope_desc scope = {.struct_size = sizeof scope, .flags = GMM_SCOPE_TAG, .tag = world.held_tag};
  OK(gmm_trim(context, &scope, NULL));
  atomic_store(&trim_ended, 1);
  return NULL;
}
static void a_trim_that_waits_for_a_stream(void) {
  set_up(DEVICE_WORK);
  gmm_stream stopped;
  MUST(gmm_stream_create(context, device, &stopped));
  gmm_alloc_desc desc = desc_of(GMM_KIND_VMM, world.held_tag);
  desc.stream = stopped;
  void *block = NULL;
  MUST(gmm_alloc(context, 8 * MIB, &desc, &block));
  gate hold;
  gate_close(&hold, stopped, 2 * GATE_S);
  SOON(atomic_load(&hold.entered) != 0);
  OK(gmm_free(context, block, stopped));
  atomic_store(&trim_ended, 0);
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, trim_the_held_tag, NULL) == 0);
  sleep_ms(20);  // it waits by then, or soon: what follows holds either way
  walk_all();
  CHECK_EQUAL(atomic_load(&trim_ended), 0);
  atomic_store(&hold.open, 1);
  pthread_join(thread, NULL);
  tear_down();
  OK(gmm_stream_destroy(context, stopped));
}

static int32_t hold_the_writer(void *user, const char *text, uint64_t size) {
  (void)text, (void)size;
  return block_progress(user, 0, 0);
}
static void *write_a_snapshot(void *hold) {
  OK(gmm_snapshot(context, hold_the_writer, hold));
  return NULL;
}
static void a_snapshot_whose_writer_does_not_return(void) {
  set_up(0);
  void *block = ALLOC_TAG(MIB, world.held_tag);
  REQUIRE(block != NULL);
  blocker hold = BLOCKER;
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, write_a_snapshot, &hold) == 0);
  wait_until_inside(&hold);
  walk_all();
  let_go(&hold);
  pthread_join(thread, NULL);
  tear_down();
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
}

static struct {
  gmm_ipc_handle handle;
  void *memory;
  gmm_result result;
} foreign;
static void *import_from_the_stopped(void *unused) {
  (void)unused;
  gmm_ipc_import_desc desc = import_desc();
  desc.timeout_ms = 2 * GATE_S * 1000;
  foreign.result = gmm_ipc_import(context, &foreign.handle, &desc, &foreign.memory);
  return NULL;
}
static void an_import_from_a_stopped_process(void) {
  set_up(IMPORT);
  if (!world.is_exported) SKIP("the backend shares no VMM memory");
  second_process exporter = start("export", MIB, 9);
  REQUIRE(receive_bytes(exporter.from, &foreign.handle, sizeof foreign.handle));
  REQUIRE(kill(exporter.pid, SIGSTOP) == 0);
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, import_from_the_stopped, NULL) == 0);
  sleep_ms(20);  // it waits by then, or soon: what follows holds either way
  walk_all();
  REQUIRE(kill(exporter.pid, SIGCONT) == 0);
  pthread_join(thread, NULL);
  CHECK_EQUAL(foreign.result, GMM_OK);
  tear_down();
  OK(gmm_ipc_close(context, foreign.memory));
  CHECK(send_bytes(exporter.to, "e", 1));
  CHECK_EQUAL(second_wait(&exporter), 0);
}

int main(int argc, char **argv) {
  if (argc > 2 && strcmp(argv[1], "--second") == 0) return second_main(argv + 2);
  PLAIN(a_pause_that_waits_for_a_stream);
  PLAIN(a_pause_whose_progress_does_not_return);
  PLAIN(a_resume_whose_progress_does_not_return);
  PLAIN(a_trim_that_waits_for_a_stream);
  PLAIN(a_snapshot_whose_writer_does_not_return);
  PLAIN(an_import_from_a_stopped_process);
  return check_finish();
}
