// SPDX-License-Identifier: Apache-2.0
// Events between processes (ipc.h). The second process records an event behind work that it holds up.
#include "ipc_support.h"

#define SIZE 100000
#define DEVICE_CASE(name) CASE_OF_KINDS(name, 1u << GMM_KIND_DEVICE)

static gmm_event *shared_event(void) {
  gmm_event *event = NULL;
  const gmm_result result = gmm_event_create(context, SHARED_EVENT_ON(device), &event);
  if (result != GMM_OK || !can_share()) SKIP("the device shares no events or no memory of this kind");
  return event;
}

// The other process makes memory and an event, whose handles these are.
static gmm_ipc_handle handles[2];
static second_process start(void) {
  OK(gmm_event_destroy(shared_event()));
  second_process process = start_other();
  handles[0] = other_makes(&process, SIZE, 1);
  const other_answer answer = OTHER(&process, .act = OTHER_MAKES_EVENT);
  CHECK_EQUAL(answer.result, GMM_OK);
  handles[1] = answer.handle;
  return process;
}
static void queue_work(second_process *other, uint8_t value) {
  OTHER_OK(other, .act = OTHER_QUEUES, .size = SIZE, .seed = value);
}
static void finish_work(second_process *other) { OTHER(other, .act = OTHER_LETS_GO); }
static void end(second_process *other) {
  OTHER_OK(other, .act = OTHER_DESTROYS_EVENT);
  end_other(other);
}
static bool has_passed(gmm_event *event) {
  uint64_t passed = 9;
  OK(gmm_event_query(event, &passed));
  return passed == 1;
}

CASE_OF_KINDS(a_stream_waits_for_the_other_processes_work, SHAREABLE) {
  second_process second = start();
  void *memory = NULL, *host = NULL;
  MUST(import(&handles[0], 60000, &memory));
  gmm_event *event = import_event(&handles[1]);
  gmm_stream stream = open_stream();
  // Page-locked: a copy into ordinary memory may hold up its caller.
  MUST(gmm_alloc(context, 2, DESC(alloc_desc, .kind = GMM_KIND_HOST, .device = device), &host));
  volatile uint8_t *seen = host;
  CHECK(has_passed(event));  // never recorded
  OK(gmm_event_synchronize(event, 0, GMM_FOREVER));
  for (uint8_t value = 2; value < 5; ++value) {
    seen[0] = seen[1] = 77;
    queue_work(&second, value);
    CHECK(!has_passed(event));
    OK(gmm_stream_wait_event(context, stream, event, 0));
    OK(gmm_copy(context, host, (char *)memory + SIZE - 2, 2, stream));
    sleep_ms(30);
    CHECK_EQUAL(seen[1], 77);  // the stream waits, and the call above did not
    finish_work(&second);
    OK(gmm_stream_synchronize(context, stream));
    CHECK_EQUAL(seen[0], value);
    CHECK_EQUAL(seen[1], value);
    OK(gmm_event_synchronize(event, 0, GMM_FOREVER));
    CHECK(has_passed(event));
  }
  RESULT(gmm_event_record(event, 0, stream), GMM_ERROR_INVALID_HANDLE);
  RESULT(gmm_event_export(event, &handles[0]), GMM_ERROR_INVALID_HANDLE);
  OK(gmm_event_destroy(event));
  OK(gmm_ipc_close(context, memory));
  end(&second);
}

DEVICE_CASE(a_destroyed_event_is_gone_for_importers) {
  second_process second = start();
  gmm_event *event = import_event(&handles[1]), *late = NULL;
  OTHER_OK(&second, .act = OTHER_DESTROYS_EVENT);
  gmm_result result = GMM_OK;
  uint64_t passed = 0;
  SOON((result = gmm_event_query(event, &passed)) != GMM_OK);
  CHECK_EQUAL(result, GMM_ERROR_IPC_PEER_GONE);
  RESULT(gmm_stream_wait_event(context, GMM_STREAM_DEFAULT, event, 0), GMM_ERROR_IPC_PEER_GONE);
  RESULT(gmm_event_synchronize(event, 0, GMM_FOREVER), GMM_ERROR_IPC_PEER_GONE);
  RESULT(gmm_event_import(context, &handles[1], IMPORT_WITHIN(60000), &late), GMM_ERROR_IPC_PEER_GONE);
  OK(gmm_event_destroy(event));
  end_other(&second);
}

// Nobody opens the gate any more: the wait has to end all the same. CUDA does not define the end of queued waits.
DEVICE_CASE(the_maker_may_die) {
  second_process second = start();
  gmm_event *event = import_event(&handles[1]);
  gmm_stream stream = open_stream();
  queue_work(&second, 2);
  if (on_host_backend()) OK(gmm_stream_wait_event(context, stream, event, 0));
  second_kill(&second);
  OK(gmm_stream_synchronize(context, stream));
  RESULT(gmm_event_synchronize(event, 0, GMM_FOREVER), GMM_ERROR_IPC_PEER_GONE);
  uint64_t passed = 9;
  RESULT(gmm_event_query(event, &passed), GMM_ERROR_IPC_PEER_GONE);
  CHECK_EQUAL(passed, 9);
  OK(gmm_event_destroy(event));
}

DEVICE_CASE(the_maker_imports_the_same_event) {
  gmm_event *event = shared_event(), *other = NULL, *plain = NULL;
  void *memory = (void *)0x1;
  MUST(gmm_event_create(context, EVENT_ON(device), &plain));
  RESULT(gmm_event_export(plain, &handles[0]), GMM_ERROR_INVALID_HANDLE);
  MUST(gmm_event_export(event, &handles[0]));
  RESULT(import(&handles[0], 60000, &memory), GMM_ERROR_IPC_INVALID_HANDLE);
  other = import_event(&handles[0]);
  OK(gmm_event_record(event, 0, GMM_STREAM_DEFAULT));
  OK(gmm_stream_wait_event(context, GMM_STREAM_DEFAULT, other, 0));
  OK(gmm_event_destroy(event));
  OK(gmm_event_synchronize(other, 0, GMM_FOREVER));
  OK(gmm_event_destroy(other));
  RESULT(gmm_event_import(context, &handles[0], IMPORT_WITHIN(60000), &other), GMM_ERROR_IPC_PEER_GONE);
  MUST(gmm_ipc_export(context, ALLOC(1000), &handles[0]));
  RESULT(gmm_event_import(context, &handles[0], IMPORT_WITHIN(60000), &other), GMM_ERROR_IPC_INVALID_HANDLE);
  OK(gmm_event_destroy(plain));
}

static void note_passed(void *user) { atomic_store((atomic_int *)user, 1); }

// The other process's event and an own one, each of this device; the stream is another device's.
DEVICE_CASE(a_stream_of_another_device_waits) {
  if (device_count() < 2) SKIP("there is one device");
  second_process second = start();
  gmm_event *events[2] = {import_event(&handles[1]), shared_event()};
  gmm_stream stream = open_stream_on(device == 0 ? 1 : 0), near = open_stream();
  static atomic_int passed;
  static gate held;
  for (unsigned own = 0; own < 2; ++own) OK(gmm_stream_wait_event(context, stream, events[own], 0));  // never recorded
  OK(gmm_stream_synchronize(context, stream));
  for (unsigned i = 0; i < 6; ++i) {
    const unsigned own = i % 2;
    atomic_store(&passed, 0);
    if (own) {
      gate_close(&held, near, GATE_S);
      OK(gmm_event_record(events[own], 0, near));
    } else {
      queue_work(&second, 2);
    }
    OK(gmm_stream_wait_event(context, stream, events[own], 0));
    OK(gmm_stream_call(context, stream, note_passed, &passed));
    sleep_ms(20);
    CHECK_EQUAL(atomic_load(&passed), 0);
    if (own)
      atomic_store(&held.open, 1);
    else
      finish_work(&second);
    OK(gmm_stream_synchronize(context, stream));
    CHECK_EQUAL(atomic_load(&passed), 1);
  }
  for (unsigned own = 0; own < 2; ++own) OK(gmm_event_destroy(events[own]));
  end(&second);
}

DEVICE_CASE(many_records_at_once) {
  gmm_event *event = shared_event();
  gmm_stream streams[3] = {open_stream(), open_stream(), open_stream()};
  for (unsigned i = 0; i < 2000; ++i) {
    const gmm_result result = gmm_event_record(event, 0, streams[i % 3]);
    if (result == GMM_ERROR_BUSY) OK(gmm_event_synchronize(event, 0, GMM_FOREVER));
    CHECK_MESSAGE(result == GMM_OK || result == GMM_ERROR_BUSY, "%s", gmm_last_error_message());
  }
  close_streams();
  OK(gmm_event_record(event, 0, GMM_STREAM_DEFAULT));
  OK(gmm_event_synchronize(event, 0, GMM_FOREVER));
  OK(gmm_event_destroy(event));
}

int main(int count, char **words) { return run_cases_or(other_main, count, words); }
