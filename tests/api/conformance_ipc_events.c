// SPDX-License-Identifier: Apache-2.0
// Events between processes (ipc.h). The second process makes an event and records it behind work that it holds up. The
// work ends when the first process says so.
#include "ipc_support.h"

#define SIZE 100000

static int gate_pipe[2];
static void wait_at_the_gate(void *user) {
  (void)user;
  char byte = 0;
  if (read(gate_pipe[0], &byte, 1) < 0) return;
}

// Memory and an event go out; on 'w' a fill is queued behind a gate and the event behind that ('q' comes back); 'g'
// opens the gate; the rest ends.
static int second_main(char **words) {
  kind = (gmm_kind)atoi(words[0]);
  context = open_context(2);
  read_device(atoi(words[1]));
  int out = dup(1);
  dup2(2, 1);
  gmm_ipc_handle handles[2];
  gmm_stream stream = NULL;
  gmm_event *event = NULL;
  void *memory = ALLOC(SIZE);
  if (memory == NULL || pipe(gate_pipe) != 0) return 10;
  if (gmm_stream_create(context, STREAM_ON(device), &stream) != GMM_OK) return 11;
  if (gmm_fill(context, memory, 1, SIZE, stream) != GMM_OK) return 12;
  if (gmm_stream_synchronize(context, stream) != GMM_OK) return 13;
  if (gmm_event_create(context, SHARED_EVENT_ON(device), &event) != GMM_OK) return 14;
  if (gmm_ipc_export(context, memory, &handles[0]) != GMM_OK) return 15;
  if (gmm_event_export(event, &handles[1]) != GMM_OK) return 16;
  if (!send_bytes(out, handles, sizeof handles)) return 17;
  char go = 0;
  uint32_t value = 1;
  while (read(0, &go, 1) == 1) {
    if (go == 'w') {
      if (gmm_stream_call(context, stream, wait_at_the_gate, NULL) != GMM_OK) return 20;
      if (gmm_fill(context, memory, ++value, SIZE, stream) != GMM_OK) return 21;
      if (gmm_event_record(event, 0, stream) != GMM_OK) return 22;
      if (!send_bytes(out, "q", 1)) return 23;
    } else if (go == 'g') {
      if (write(gate_pipe[1], "g", 1) != 1) return 24;
    } else if (go == 'd') {
      if (gmm_stream_synchronize(context, stream) != GMM_OK) return 25;
      if (gmm_event_destroy(event) != GMM_OK) return 26;
      event = NULL;
      if (!send_bytes(out, "d", 1)) return 27;
    } else {
      break;
    }
  }
  if (gmm_stream_destroy(context, stream) != GMM_OK) return 28;
  if (event != NULL && gmm_event_destroy(event) != GMM_OK) return 29;
  return gmm_context_release(context) == GMM_OK ? 0 : 30;
}

static second_process start(gmm_ipc_handle handles[2]) {
  char k[8], d[8];
  snprintf(k, sizeof k, "%u", kind);
  snprintf(d, sizeof d, "%d", device);
  second_process process;
  REQUIRE(second_start(&process, (const char *const[]){k, d}, 2));
  REQUIRE(receive_bytes(process.from, handles, 2 * sizeof *handles));
  return process;
}

static bool can_share_events(void) {
  gmm_event *event = NULL;
  gmm_result result = gmm_event_create(context, SHARED_EVENT_ON(device), &event);
  if (result == GMM_OK) OK(gmm_event_destroy(event));
  return result == GMM_OK && can_share();
}
#define NEEDS_EVENTS() \
  if (!can_share_events()) SKIP("the device shares no events or no memory of this kind")

static void tell(second_process *second, const char *word, char answer) {
  char told = 0;
  CHECK(send_bytes(second->to, word, 1));
  if (answer != 0) CHECK(receive_bytes(second->from, &told, 1) && told == answer);
}

static void a_stream_waits_for_the_other_processes_work(void) {
  NEEDS_EVENTS();
  gmm_ipc_handle handles[2];
  second_process second = start(handles);
  gmm_ipc_import_desc desc = import_desc(60000);
  void *memory = NULL;
  gmm_event *event = NULL;
  gmm_stream stream = NULL;
  MUST(gmm_ipc_import(context, &handles[0], &desc, &memory));
  MUST(gmm_event_import(context, &handles[1], &desc, &event));
  MUST(gmm_stream_create(context, STREAM_ON(device), &stream));
  // Page-locked: a copy into ordinary memory may hold up its caller.
  gmm_alloc_desc page_locked = {.struct_size = sizeof page_locked, .kind = GMM_KIND_HOST, .device = device};
  void *host = NULL;
  MUST(gmm_alloc(context, 2, &page_locked, &host));
  volatile uint8_t *seen = host;
  uint64_t passed = 0;
  OK(gmm_event_query(event, &passed));
  CHECK_EQUAL(passed, 1);  // never recorded
  OK(gmm_event_synchronize(event, 0, GMM_FOREVER));
  for (uint8_t value = 2; value < 5; ++value) {
    seen[0] = seen[1] = 77;
    tell(&second, "w", 'q');
    OK(gmm_event_query(event, &passed));
    CHECK_EQUAL(passed, 0);
    OK(gmm_stream_wait_event(context, stream, event, 0));
    OK(gmm_copy(context, host, (char *)memory + SIZE - 2, 2, stream));
    sleep_ms(30);
    CHECK_EQUAL(seen[1], 77);  // the stream waits, and the call above did not
    tell(&second, "g", 0);
    OK(gmm_stream_synchronize(context, stream));
    CHECK_EQUAL(seen[0], value);
    CHECK_EQUAL(seen[1], value);
    OK(gmm_event_synchronize(event, 0, GMM_FOREVER));
    OK(gmm_event_query(event, &passed));
    CHECK_EQUAL(passed, 1);
  }
  RESULT(gmm_event_record(event, 0, stream), GMM_ERROR_INVALID_HANDLE);
  gmm_ipc_handle again;
  RESULT(gmm_event_export(event, &again), GMM_ERROR_INVALID_HANDLE);
  OK(gmm_event_destroy(event));
  OK(gmm_stream_destroy(context, stream));
  OK(gmm_free(context, host, GMM_STREAM_DEFAULT));
  OK(gmm_ipc_close(context, memory));
  CHECK(send_bytes(second.to, "e", 1));
  CHECK_EQUAL(second_wait(&second), 0);
}

static void a_destroyed_event_is_gone_for_importers(void) {
  NEEDS_EVENTS();
  gmm_ipc_handle handles[2];
  second_process second = start(handles);
  gmm_ipc_import_desc desc = import_desc(60000);
  gmm_event *event = NULL, *late = NULL;
  MUST(gmm_event_import(context, &handles[1], &desc, &event));
  tell(&second, "d", 'd');
  gmm_result result = GMM_OK;
  uint64_t passed = 0;
  SOON((result = gmm_event_query(event, &passed)) != GMM_OK);
  CHECK_EQUAL(result, GMM_ERROR_IPC_PEER_GONE);
  RESULT(gmm_stream_wait_event(context, GMM_STREAM_DEFAULT, event, 0), GMM_ERROR_IPC_PEER_GONE);
  RESULT(gmm_event_synchronize(event, 0, GMM_FOREVER), GMM_ERROR_IPC_PEER_GONE);
  RESULT(gmm_event_import(context, &handles[1], &desc, &late), GMM_ERROR_IPC_PEER_GONE);
  OK(gmm_event_destroy(event));
  CHECK(send_bytes(second.to, "e", 1));
  CHECK_EQUAL(second_wait(&second), 0);
}

// Nobody opens the gate any more: the wait has to end all the same. CUDA does not define the
// end of queued waits.
static void the_maker_may_die(void) {
  NEEDS_EVENTS();
  gmm_ipc_handle handles[2];
  second_process second = start(handles);
  gmm_ipc_import_desc desc = import_desc(60000);
  gmm_event *event = NULL;
  gmm_stream stream = NULL;
  MUST(gmm_event_import(context, &handles[1], &desc, &event));
  MUST(gmm_stream_create(context, STREAM_ON(device), &stream));
  tell(&second, "w", 'q');
  if (on_host_backend()) OK(gmm_stream_wait_event(context, stream, event, 0));
  second_kill(&second);
  OK(gmm_stream_synchronize(context, stream));
  RESULT(gmm_event_synchronize(event, 0, GMM_FOREVER), GMM_ERROR_IPC_PEER_GONE);
  uint64_t passed = 9;
  RESULT(gmm_event_query(event, &passed), GMM_ERROR_IPC_PEER_GONE);
  CHECK_EQUAL(passed, 9);
  OK(gmm_event_destroy(event));
  OK(gmm_stream_destroy(context, stream));
}

static void at_home_it_is_the_same_event(void) {
  NEEDS_EVENTS();
  gmm_event *event = NULL, *other = NULL, *plain = NULL;
  gmm_ipc_handle handle;
  gmm_ipc_import_desc desc = import_desc(60000);
  MUST(gmm_event_create(context, SHARED_EVENT_ON(device), &event));
  MUST(gmm_event_create(context, EVENT_ON(device), &plain));
  RESULT(gmm_event_export(plain, &handle), GMM_ERROR_INVALID_HANDLE);
  MUST(gmm_event_export(event, &handle));
  void *memory = (void *)0x1;
  RESULT(gmm_ipc_import(context, &handle, &desc, &memory), GMM_ERROR_IPC_INVALID_HANDLE);
  MUST(gmm_event_import(context, &handle, &desc, &other));
  OK(gmm_event_record(event, 0, GMM_STREAM_DEFAULT));
  OK(gmm_stream_wait_event(context, GMM_STREAM_DEFAULT, other, 0));
  OK(gmm_event_destroy(event));
  OK(gmm_event_synchronize(other, 0, GMM_FOREVER));
  OK(gmm_event_destroy(other));
  RESULT(gmm_event_import(context, &handle, &desc, &other), GMM_ERROR_IPC_PEER_GONE);
  void *block = ALLOC(1000);
  MUST(gmm_ipc_export(context, block, &handle));
  RESULT(gmm_event_import(context, &handle, &desc, &other), GMM_ERROR_IPC_INVALID_HANDLE);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_event_destroy(plain));
}

static void note_passed(void *user) { atomic_store((atomic_int *)user, 1); }

// The other process's event and an own one, each of this device; the stream is another device's.
static void a_stream_of_another_device_waits(void) {
  NEEDS_EVENTS();
  if (device_count() < 2) SKIP("there is one device");
  gmm_ipc_handle handles[2];
  second_process second = start(handles);
  gmm_ipc_import_desc desc = import_desc(60000);
  gmm_event *imported = NULL, *own = NULL;
  gmm_stream stream = NULL, near = NULL;
  static atomic_int passed;
  static gate held;
  MUST(gmm_event_import(context, &handles[1], &desc, &imported));
  MUST(gmm_event_create(context, SHARED_EVENT_ON(device), &own));
  MUST(gmm_stream_create(context, STREAM_ON(device == 0 ? 1 : 0), &stream));
  MUST(gmm_stream_create(context, STREAM_ON(device), &near));
  OK(gmm_stream_wait_event(context, stream, imported, 0));  // never recorded
  OK(gmm_stream_wait_event(context, stream, own, 0));
  OK(gmm_stream_synchronize(context, stream));
  for (unsigned i = 0; i < 3; ++i) {
    atomic_store(&passed, 0);
    tell(&second, "w", 'q');
    OK(gmm_stream_wait_event(context, stream, imported, 0));
    OK(gmm_stream_call(context, stream, note_passed, &passed));
    sleep_ms(20);
    CHECK_EQUAL(atomic_load(&passed), 0);
    tell(&second, "g", 0);
    OK(gmm_stream_synchronize(context, stream));
    CHECK_EQUAL(atomic_load(&passed), 1);
    atomic_store(&passed, 0);
    gate_close(&held, near, GATE_S);
    OK(gmm_event_record(own, 0, near));
    OK(gmm_stream_wait_event(context, stream, own, 0));
    OK(gmm_stream_call(context, stream, note_passed, &passed));
    sleep_ms(20);
    CHECK_EQUAL(atomic_load(&passed), 0);
    atomic_store(&held.open, 1);
    OK(gmm_stream_synchronize(context, stream));
    CHECK_EQUAL(atomic_load(&passed), 1);
  }
  OK(gmm_stream_destroy(context, stream));
  OK(gmm_stream_destroy(context, near));
  OK(gmm_event_destroy(own));
  OK(gmm_event_destroy(imported));
  CHECK(send_bytes(second.to, "e", 1));
  CHECK_EQUAL(second_wait(&second), 0);
}

static void many_records_at_once(void) {
  NEEDS_EVENTS();
  gmm_event *event = NULL;
  gmm_stream streams[3] = {NULL};
  MUST(gmm_event_create(context, SHARED_EVENT_ON(device), &event));
  for (unsigned i = 0; i < 3; ++i) MUST(gmm_stream_create(context, STREAM_ON(device), &streams[i]));
  gmm_result result = GMM_OK;
  for (unsigned i = 0; i < 2000; ++i) {
    result = gmm_event_record(event, 0, streams[i % 3]);
    if (result == GMM_ERROR_BUSY) OK(gmm_event_synchronize(event, 0, GMM_FOREVER));
    CHECK_MESSAGE(result == GMM_OK || result == GMM_ERROR_BUSY, "%s", gmm_last_error_message());
  }
  for (unsigned i = 0; i < 3; ++i) OK(gmm_stream_destroy(context, streams[i]));
  OK(gmm_event_record(event, 0, GMM_STREAM_DEFAULT));
  OK(gmm_event_synchronize(event, 0, GMM_FOREVER));
  OK(gmm_event_destroy(event));
}

int main(int count, char **words) {
  if (count == 4 && strcmp(words[1], "--second") == 0) return second_main(words + 2);
  signal(SIGPIPE, SIG_IGN);
  KINDS(a_stream_waits_for_the_other_processes_work, SHAREABLE);
  KINDS(a_destroyed_event_is_gone_for_importers, 1u << GMM_KIND_DEVICE);
  KINDS(the_maker_may_die, 1u << GMM_KIND_DEVICE);
  KINDS(at_home_it_is_the_same_event, 1u << GMM_KIND_DEVICE);
  KINDS(a_stream_of_another_device_waits, 1u << GMM_KIND_DEVICE);
  KINDS(many_records_at_once, 1u << GMM_KIND_DEVICE);
  return finish_clean();
}
