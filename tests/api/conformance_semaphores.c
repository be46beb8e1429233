// SPDX-License-Identifier: Apache-2.0
// Semaphores of other APIs as events (ipc.h). The other API is the test: functions of its own, a sync file that is an
// eventfd, and for the fake driver files with a counter.
#define _GNU_SOURCE  // memfd_create()
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../support/gmm_test.h"

// A timeline semaphore of the program.
typedef struct timeline {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  uint64_t value, waits, signals;
  int32_t answer;
} timeline;
#define TIMELINE \
  { .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER }

static int32_t wait_for_value(void *user, uint64_t value) {
  timeline *of = user;
  pthread_mutex_lock(&of->mutex);
  while (of->value < value) pthread_cond_wait(&of->changed, &of->mutex);
  ++of->waits;
  pthread_mutex_unlock(&of->mutex);
  return of->answer;
}
static int32_t signal_value(void *user, uint64_t value) {
  timeline *of = user;
  pthread_mutex_lock(&of->mutex);
  of->value = value;
  ++of->signals;
  pthread_cond_broadcast(&of->changed);
  pthread_mutex_unlock(&of->mutex);
  return of->answer;
}

static gmm_semaphore_desc calls_of(timeline *of) {
  return (gmm_semaphore_desc){.struct_size = sizeof(gmm_semaphore_desc),
                              .type = GMM_SEMAPHORE_CALLS,
                              .device = device,
                              .calls = {wait_for_value, signal_value, of}};
}
static gmm_semaphore_desc descriptor_of(gmm_semaphore_type type, int fd) {
  return (gmm_semaphore_desc){.struct_size = sizeof(gmm_semaphore_desc), .type = type, .device = device, .fd = fd};
}
static gmm_event *import(gmm_semaphore_desc desc) {
  gmm_event *event = NULL;
  MUST(gmm_event_import_semaphore(context, &desc, &event));
  return event;
}
// Only the host backend takes functions and sync files.
static bool imports(gmm_semaphore_desc desc) {
  gmm_event *event = (gmm_event *)0x1;
  if (on_host_backend()) return true;
  RESULT(gmm_event_import_semaphore(context, &desc, &event), GMM_ERROR_NOT_SUPPORTED);
  CHECK(event == NULL);
  return false;
}

// The stream waits for `value`, then fills the block and signals `value` + 1. `reached` stands behind all of it.
static void queue_behind(gmm_event *semaphore, uint64_t value, uint64_t answer, void *block, gmm_stream stream,
                         gmm_event *reached) {
  OK(gmm_stream_wait_event(context, stream, semaphore, value));
  OK(gmm_fill(context, block, 5, 1000, stream));
  OK(gmm_event_record(semaphore, answer, stream));
  OK(gmm_event_record(reached, 0, stream));
}
static bool has_passed(gmm_event *event) {
  uint64_t passed = 2;
  OK(gmm_event_query(event, &passed));
  return passed != 0;
}

VMM_CASE(functions_order_a_stream_and_the_program) {
  timeline counter = TIMELINE;
  gmm_semaphore_desc desc = calls_of(&counter);
  if (!imports(desc)) return;
  gmm_event *semaphore = import(desc), *reached = NULL;
  gmm_stream stream = NULL;
  uint8_t *block = ALLOC(1000);
  MUST(gmm_event_create(context, EVENT_ON(device), &reached));
  stream = open_stream();
  OK(gmm_fill(context, block, 1, 1000, stream));
  OK(gmm_stream_synchronize(context, stream));
  for (uint64_t round = 0; round < 20; ++round) {
    queue_behind(semaphore, 10 * round + 3, 10 * round + 4, block, stream, reached);
    CHECK(!has_passed(reached));
    CHECK_EQUAL(counter.value, round == 0 ? 0 : 10 * round - 6);
    signal_value(&counter, 10 * round + 2);
    CHECK(!has_passed(reached));
    signal_value(&counter, 10 * round + 3);
    wait_for_value(&counter, 10 * round + 4);  // gmm's signal
    OK(gmm_event_synchronize(reached, 0, GMM_FOREVER));
  }
  CHECK_EQUAL(counter.waits, 40);
  CHECK(is_filled(block, 1000, 5, stream));
  OK(gmm_event_destroy(semaphore));
  OK(gmm_event_destroy(reached));
}

// destroy() returns when nothing queued will call the functions any more.
CASE(the_end_of_a_semaphore_waits_for_its_uses) {
  if (!on_host_backend()) SKIP("functions are the host backend's");
  for (unsigned round = 0; round < 50; ++round) {
    timeline counter = TIMELINE;
    gmm_event *semaphore = import(calls_of(&counter));
    gmm_stream one = NULL, other = NULL;
    one = open_stream();
    other = open_stream();
    // One stream waits for the other, whichever thread comes first.
    OK(gmm_stream_wait_event(context, one, semaphore, 2));
    OK(gmm_event_record(semaphore, 3, one));
    OK(gmm_event_record(semaphore, 2, other));
    OK(gmm_event_destroy(semaphore));
    CHECK_EQUAL(counter.waits, 1);
    CHECK_EQUAL(counter.signals, 2);
    close_streams();
  }
}

static void count_errors(void *user, gmm_log_level level, const char *message) {
  if (level == GMM_LOG_ERROR && strstr(message, "-7") != NULL) ++*(atomic_int *)user;
}
CASE(a_failed_function_is_logged_and_the_stream_goes_on) {
  if (!on_host_backend()) SKIP("functions are the host backend's");
  timeline counter = TIMELINE;
  counter.answer = -7;
  atomic_int errors = 0;
  const gmm_semaphore_desc calls = calls_of(&counter);
  gmm_context *logging = OPEN(.backend = GMM_BACKEND_HOST, .log = {count_errors, &errors});
  gmm_event *semaphore = NULL;
  MUST(gmm_event_import_semaphore(logging, &calls, &semaphore));
  OK(gmm_event_record(semaphore, 4, GMM_STREAM_DEFAULT));
  OK(gmm_stream_synchronize(logging, GMM_STREAM_DEFAULT));
  CHECK_EQUAL(counter.value, 4);
  CHECK_EQUAL(errors, 1);
  OK(gmm_event_destroy(semaphore));
  OK(gmm_context_release(logging));
}

VMM_CASE(a_sync_file_is_waited_for) {
  gmm_event *none = NULL;
  int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  gmm_semaphore_desc desc = descriptor_of(GMM_SEMAPHORE_SYNC_FD, file);
  RESULT(gmm_event_import_semaphore(context, &desc, &none),
         on_host_backend() ? GMM_ERROR_INVALID_VALUE : GMM_ERROR_NOT_SUPPORTED);
  close(file);
  file = eventfd(0, EFD_CLOEXEC);
  REQUIRE(file >= 0);
  desc = descriptor_of(GMM_SEMAPHORE_SYNC_FD, file);
  if (!imports(desc)) {
    close(file);
    return;
  }
  gmm_event *semaphore = import(desc), *reached = NULL;
  MUST(gmm_event_create(context, EVENT_ON(device), &reached));
  OK(gmm_stream_wait_event(context, GMM_STREAM_DEFAULT, semaphore, 0));
  OK(gmm_event_record(reached, 0, GMM_STREAM_DEFAULT));
  CHECK(!has_passed(reached));
  RESULT(gmm_event_record(semaphore, 0, GMM_STREAM_DEFAULT), GMM_ERROR_NOT_SUPPORTED);
  RESULT(gmm_stream_wait_event(context, GMM_STREAM_DEFAULT, semaphore, 1), GMM_ERROR_INVALID_VALUE);
  uint64_t one = 1;
  CHECK(write(file, &one, sizeof one) == sizeof one);
  OK(gmm_event_synchronize(reached, 0, GMM_FOREVER));
  OK(gmm_event_destroy(semaphore));
  OK(gmm_event_destroy(reached));
  CHECK(close(file) == 0);  // the descriptor stayed the test's
}

// --- Descriptors: files with a counter, which the fake driver takes for semaphores -----------------------------------

VMM_CASE(descriptors_order_a_stream_and_the_other_api) {
  if (on_host_backend()) SKIP("the host backend takes no such descriptor");
  if (!on_host_or_fake_driver()) SKIP("a real driver takes real semaphores: tests/vulkan");
  gmm_event *reached = NULL;
  gmm_stream stream = open_stream();
  MUST(gmm_event_create(context, EVENT_ON(device), &reached));
  void *block = ALLOC(1000);
  for (gmm_semaphore_type type = GMM_SEMAPHORE_BINARY_FD; type <= GMM_SEMAPHORE_TIMELINE_FD; ++type) {
    int file = memfd_create("semaphore", MFD_CLOEXEC);
    REQUIRE(file >= 0 && ftruncate(file, 4096) == 0);
    _Atomic uint64_t *value = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    REQUIRE(value != MAP_FAILED);
    gmm_event *semaphore = import(descriptor_of(type, file));
    CHECK(close(file) == 0);
    const bool counts = type == GMM_SEMAPHORE_TIMELINE_FD;
    OK(gmm_stream_wait_event(context, stream, semaphore, counts ? 7 : 0));
    OK(gmm_fill(context, block, 5, 1000, stream));
    OK(gmm_event_record(reached, 0, stream));
    CHECK(!has_passed(reached));
    if (counts) *value = 6;
    CHECK(!has_passed(reached));
    *value = counts ? 7 : 1;
    OK(gmm_event_synchronize(reached, 0, GMM_FOREVER));
    CHECK_EQUAL(*value, counts ? 7 : 0);  // the wait for a binary semaphore resets it
    OK(gmm_event_record(semaphore, counts ? 9 : 0, stream));
    if (!counts) {
      RESULT(gmm_event_record(semaphore, 1, stream), GMM_ERROR_INVALID_VALUE);
      RESULT(gmm_stream_wait_event(context, stream, semaphore, 1), GMM_ERROR_INVALID_VALUE);
    }
    OK(gmm_event_destroy(semaphore));  // waits for the signal
    CHECK_EQUAL(*value, counts ? 9 : 1);
    munmap((void *)value, 4096);
  }
  OK(gmm_event_destroy(reached));
}

VMM_CASE(impossible_requests_are_refused) {
  int file = on_host_backend() ? eventfd(0, EFD_CLOEXEC) : memfd_create("semaphore", MFD_CLOEXEC);
  REQUIRE(file >= 0 && (on_host_backend() || ftruncate(file, 4096) == 0));
  gmm_semaphore_desc desc = descriptor_of(on_host_backend() ? GMM_SEMAPHORE_SYNC_FD : GMM_SEMAPHORE_TIMELINE_FD, file);
  gmm_event *semaphore = NULL, *none = (gmm_event *)0x1;
  if (gmm_event_import_semaphore(context, &desc, &semaphore) != GMM_OK) SKIP("%s", gmm_last_error_message());
  uint64_t passed = 3;
  gmm_ipc_handle handle;
  RESULT(gmm_event_query(semaphore, &passed), GMM_ERROR_NOT_SUPPORTED);
  CHECK_EQUAL(passed, 3);
  RESULT(gmm_event_synchronize(semaphore, 0, 0), GMM_ERROR_NOT_SUPPORTED);
  RESULT(gmm_event_export(semaphore, &handle), GMM_ERROR_INVALID_HANDLE);
  gmm_context *other = open_context(1);
  RESULT(gmm_stream_wait_event(other, GMM_STREAM_DEFAULT, semaphore, 0), GMM_ERROR_INVALID_HANDLE);
  OK(gmm_context_release(other));
  OK(gmm_event_destroy(semaphore));
  CHECK(close(file) == 0);
  desc.fd = -1;
  CHECK(gmm_event_import_semaphore(context, &desc, &none) < 0);
  CHECK(none == NULL);
  if (!on_host_backend()) return;
  timeline counter = TIMELINE;
  desc = calls_of(&counter);
  desc.calls.signal = NULL;
  semaphore = import(desc);
  RESULT(gmm_event_record(semaphore, 1, GMM_STREAM_DEFAULT), GMM_ERROR_NOT_SUPPORTED);
  OK(gmm_stream_wait_event(context, GMM_STREAM_DEFAULT, semaphore, 0));
  OK(gmm_event_destroy(semaphore));
}

int main(void) { return run_cases(); }
