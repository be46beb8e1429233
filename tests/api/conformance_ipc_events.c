// SPDX-License-Identifier: Apache-2.0
// Events between processes (ipc.h). The second process records an event behind work that it holds up.
#include "ipc_support.h"

#define SIZE 100000

static bool can_share_events(void) {
  gmm_event *event = NULL;
  gmm_result result = gmm_event_create(context, SHARED_EVENT_ON(device), &event);
  if (result == GMM_OK) OK(gmm_event_destroy(event));
  return result == GMM_OK && can_share();
}
#define NEEDS_EVENTS() \
  if (!can_share_events()) SKIP("the device shares no events or no memory of this kind")

// The other process makes memory and an event.
static second_process start(gmm_ipc_handle handles[2]) {
  second_process process = start_other();
  handles[0] = other_makes(&process, SIZE, 1);
  const other_answer answer = OTHER(&process, .act = OTHER_MAKES_EVENT);
  CHECK_EQUAL(answer.result, GMM_OK);
  handles[1] = answer.handle;
  return process;
}
static void queue_work(second_process *other, uint8_t value) {
  CHECK_EQUAL(OTHER(other, .act = OTHER_QUEUES, .size = SIZE, .seed = value).result, GMM_OK);
}
static void finish_work(second_process *other) { OTHER(other, .act = OTHER_LETS_GO); }
static void end(second_process *other) {
  CHECK_EQUAL(OTHER(other, .act = OTHER_DESTROYS_EVENT).result, GMM_OK);
  end_other(other);
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
    queue_work(&second, value);
    OK(gmm_event_query(event, &passed));
    CHECK_EQUAL(passed, 0);
    OK(gmm_stream_wait_event(context, stream, event, 0));
    OK(gmm_copy(context, host, (char *)memory + SIZE - 2, 2, stream));
    sleep_ms(30);
    CHECK_EQUAL(seen[1], 77);  // the stream waits, and the call above did not
    finish_work(&second);
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
  end(&second);
}

static void a_destroyed_event_is_gone_for_importers(void) {
  NEEDS_EVENTS();
  gmm_ipc_handle handles[2];
  second_process second = start(handles);
  gmm_ipc_import_desc desc = import_desc(60000);
  gmm_event *event = NULL, *late = NULL;
  MUST(gmm_event_import(context, &handles[1], &desc, &event));
  CHECK_EQUAL(OTHER(&second, .act = OTHER_DESTROYS_EVENT).result, GMM_OK);
  gmm_result result = GMM_OK;
  uint64_t passed = 0;
  SOON((result = gmm_event_query(event, &passed)) != GMM_OK);
  CHECK_EQUAL(result, GMM_ERROR_IPC_PEER_GONE);
  RESULT(gmm_stream_wait_event(context, GMM_STREAM_DEFAULT, event, 0), GMM_ERROR_IPC_PEER_GONE);
  RESULT(gmm_event_synchronize(event, 0, GMM_FOREVER), GMM_ERROR_IPC_PEER_GONE);
  RESULT(gmm_event_import(context, &handles[1], &desc, &late), GMM_ERROR_IPC_PEER_GONE);
  OK(gmm_event_destroy(event));
  end_other(&second);
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
  queue_work(&second, 2);
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
    queue_work(&second, 2);
    OK(gmm_stream_wait_event(context, stream, imported, 0));
    OK(gmm_stream_call(context, stream, note_passed, &passed));
    sleep_ms(20);
    CHECK_EQUAL(atomic_load(&passed), 0);
    finish_work(&second);
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
  end(&second);
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
  if (count == 4 && strcmp(words[1], "--second") == 0) return other_main(words + 2);
  signal(SIGPIPE, SIG_IGN);
  KINDS(a_stream_waits_for_the_other_processes_work, SHAREABLE);
  KINDS(a_destroyed_event_is_gone_for_importers, 1u << GMM_KIND_DEVICE);
  KINDS(the_maker_may_die, 1u << GMM_KIND_DEVICE);
  KINDS(at_home_it_is_the_same_event, 1u << GMM_KIND_DEVICE);
  KINDS(a_stream_of_another_device_waits, 1u << GMM_KIND_DEVICE);
  KINDS(many_records_at_once, 1u << GMM_KIND_DEVICE);
  return finish_clean();
}
