// SPDX-License-Identifier: Apache-2.0
// The CUDA driver is old, lacks an entry or an ability, fails, or serves a program that has contexts of its own. A call
// works or says NOT_SUPPORTED, as gmm_device_query() says, and the thread keeps its current context.
#define _GNU_SOURCE  // memfd_create()
#include <sys/mman.h>

#include "../support/cuda_functions.h"
#include "fault_support.h"

static struct cuda_driver cu;
static CUcontext expected;  // the current context of the thread
static const char *lacks = "";

static CUcontext current(void) {
  CUcontext now = NULL;
  CHECK_EQUAL(cu.cuCtxGetCurrent(&now), CUDA_SUCCESS);
  return now;
}

// Whether the call worked. One that is possible must, and another one may say that it is not supported.
static bool attempt(int line, const char *call, bool possible, gmm_result result) {
  CHECK_MESSAGE(result == GMM_OK || (!possible && result == GMM_ERROR_NOT_SUPPORTED), "line %d, device %d: %s: %s: %s",
                line, device, call, gmm_result_name(result), gmm_last_error_message());
  CHECK_MESSAGE(current() == expected, "line %d: %s changed the thread's context", line, call);
  return result == GMM_OK;
}
#define ATTEMPT(possible, call) attempt(__LINE__, #call, possible, call)
#define DO(call) ATTEMPT(true, call)

static bool can(uint32_t ability) { return (device_info.capabilities & ability) != 0; }

static void use_block(void *memory, bool is_dedicated, gmm_stream stream) {
  const bool managed = can(GMM_DEVICE_CAN_CONCURRENT_MANAGED);
  gmm_ipc_fd_info file = {.struct_size = sizeof file};
  gmm_ipc_legacy_info legacy = {.struct_size = sizeof legacy};
  gmm_ipc_handle handle;
  void *imported = NULL;
  DO(gmm_fill(context, memory, 7, 2 * MIB, stream));
  DO(gmm_record_use(context, memory, stream));
  CHECK_EQUAL(query(memory).device, device);
  write_pattern(memory, 2 * MIB, 5, stream);
  CHECK_PATTERN(memory, 2 * MIB, 5);
  if (kind == GMM_KIND_MANAGED) {
    for (gmm_advice advice = GMM_ADVISE_SET_READ_MOSTLY; advice <= GMM_ADVISE_UNSET_ACCESSED_BY; ++advice)
      ATTEMPT(managed, gmm_advise(context, memory, 0, advice, device));
    ATTEMPT(managed, gmm_prefetch(context, memory, 0, GMM_DEVICE_HOST, stream));
  } else if (kind == GMM_KIND_DEVICE) {
    ATTEMPT(can(GMM_DEVICE_CAN_LEGACY_IPC), gmm_ipc_export_legacy(context, memory, &legacy));
    ATTEMPT(can(GMM_DEVICE_CAN_LEGACY_IPC), gmm_ipc_export(context, memory, &handle));
  } else if (kind == GMM_KIND_VMM &&
             ATTEMPT(can(GMM_DEVICE_CAN_EXPORT_FD), gmm_ipc_export_fd(context, memory, GMM_FD_OPAQUE, &file))) {
    if (DO(gmm_ipc_import_fd(context, file.fd,
                             DESC(ipc_fd_desc, .type = GMM_FD_OPAQUE, .size = file.size, .device = device), &imported)))
      DO(gmm_ipc_close(context, imported));
    close(file.fd);
  }
  if (kind == GMM_KIND_VMM && is_dedicated &&
      ATTEMPT(can(GMM_DEVICE_CAN_HOST_NUMA), gmm_move(context, memory, GMM_DEVICE_HOST, NULL))) {
    CHECK_PATTERN(memory, 2 * MIB, 5);
    DO(gmm_move(context, memory, device, NULL));
  }
  DO(gmm_free(context, memory, stream));
}

// Imports of memory that this process did not export.
static void use_descriptors(void) {
  const int file = memfd_create("file", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  int pipes[2];
  void *imported = NULL;
  REQUIRE(file >= 0 && ftruncate(file, 2 * MIB) == 0 && pipe(pipes) == 0);
  gmm_ipc_fd_desc desc = {.struct_size = sizeof desc, .type = GMM_FD_FILE, .size = 2 * MIB, .device = device};
  if (ATTEMPT(has_kind(GMM_KIND_HOST), gmm_ipc_import_fd(context, file, &desc, &imported)))
    DO(gmm_ipc_close(context, imported));
  desc.type = GMM_FD_OPAQUE;
  const gmm_result result = gmm_ipc_import_fd(context, pipes[0], &desc, &imported);
  CHECK_EQUAL(result == GMM_ERROR_NOT_SUPPORTED, !can(GMM_DEVICE_CAN_EXPORT_FD));
  CHECK(result < 0);
  close(file);
  close(pipes[0]);
  close(pipes[1]);
}

static void use_streams(gmm_stream stream) {
  gmm_event *event = NULL;
  uint64_t value = 0;
  DO(gmm_stream_call(context, stream, ignore_call, NULL));
  DO(gmm_event_create(context, EVENT_ON(device), &event));
  DO(gmm_event_record(event, 0, stream));
  DO(gmm_stream_wait_event(context, GMM_STREAM_DEFAULT, event, 0));
  DO(gmm_event_synchronize(event, 0, GMM_FOREVER));
  DO(gmm_event_query(event, &value));
  DO(gmm_event_destroy(event));
  if (ATTEMPT(false, gmm_event_create(context, SHARED_EVENT_ON(device), &event))) DO(gmm_event_destroy(event));
  DO(gmm_stream_synchronize(context, stream));
}

static void use_pause(void) {
  gmm_tag tag = make_tag("paused", GMM_CONTENTS_HOST);
  void *memory = ALLOC_TAG(8 * MIB, tag);
  DO(gmm_fill(context, memory, 0, 8 * MIB, GMM_STREAM_DEFAULT));
  write_pattern(memory, 5000, 6, GMM_STREAM_DEFAULT);
  if (ATTEMPT(can(GMM_DEVICE_CAN_PAUSE), pause_of(tag))) DO(resume_of(tag));
  CHECK_PATTERN(memory, 5000, 6);
  DO(gmm_free(context, memory, GMM_STREAM_DEFAULT));
}

static void use_pins(void) {
  void *own = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *address = NULL;
  REQUIRE(own != MAP_FAILED);
  const bool pins = can(GMM_DEVICE_CAN_PIN), pins_read_only = pins && strcmp(lacks, "readonly_register") != 0;
  for (uint32_t flags = 0; flags <= GMM_PIN_READ_ONLY; flags += GMM_PIN_READ_ONLY)
    if (ATTEMPT(flags == 0 ? pins : pins_read_only,
                gmm_pin(context, own, 2 * MIB, DESC(pin_desc, .flags = flags, .device = device), &address)))
      DO(gmm_unpin(context, own));
  munmap(own, 2 * MIB);
}

// Everything that the backend does, on each device.
static void use_everything(void) {
  const uint32_t devices = device_count();
  for (uint32_t d = 0; d < devices; ++d) {
    read_device((gmm_device)d);
    const gmm_stream stream = open_stream();
    CHECK(current() == expected);
    for (kind = GMM_KIND_DEVICE; kind <= GMM_KIND_MANAGED; ++kind)
      for (int dedicated = 0; dedicated < 2; ++dedicated) {
        void *memory = NULL;
        if (ATTEMPT(has_kind(kind),
                    gmm_alloc(context, 2 * MIB, HERE(.flags = dedicated ? GMM_ALLOC_DEDICATED : 0), &memory)))
          use_block(memory, dedicated != 0, stream);
      }
    use_streams(stream);
    use_streams(GMM_STREAM_PER_THREAD);
    kind = GMM_KIND_VMM;
    if (has_kind(kind)) use_pause();
    use_pins();
    use_descriptors();
    DO(gmm_stream_destroy(context, stream));
    DO(gmm_trim(context, NULL, NULL));
  }
}

static void push(CUcontext pushed) {
  CHECK_EQUAL(cu.cuCtxPushCurrent_v2(pushed), CUDA_SUCCESS);
  expected = pushed;
}
static CUcontext pop(void) {
  CUcontext popped = NULL;
  CHECK_EQUAL(cu.cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
  expected = current();
  return popped;
}

static void contexts_of_the_thread_stay(void) {
  CUcontext first = NULL, last = NULL;
  const int beyond = (int)device_count() - 1;
  CHECK_EQUAL(current() != NULL, false);
  use_everything();
  CHECK_EQUAL(cu.cuDevicePrimaryCtxRetain(&first, 0), CUDA_SUCCESS);
  CHECK_EQUAL(cu.cuDevicePrimaryCtxRetain(&last, beyond), CUDA_SUCCESS);
  for (int below = 0; below < 2; ++below) {
    CUcontext const stack[] = {below ? last : first, first, below ? last : first};
    for (int i = 0; i < 3; ++i) push(stack[i]);
    use_everything();
    for (int i = 2; i >= 0; --i) CHECK(pop() == stack[i]);
    CHECK(expected == NULL);
  }
  CHECK_EQUAL(cu.cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  CHECK_EQUAL(cu.cuDevicePrimaryCtxRelease_v2(beyond), CUDA_SUCCESS);
}

static void set_soon(void *done) {
  sleep_ms(50);
  atomic_store((atomic_int *)done, 1);
}
// That context is none that makes the device started. Its default stream is the one that the caller means.
static void the_default_stream_of_the_callers_own_context_is_waited_for(void) {
  CUcontext own = NULL;
  CHECK_EQUAL(cu.cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
  gmm_stream const streams[] = {GMM_STREAM_DEFAULT, GMM_STREAM_PER_THREAD};
  for (int i = 0; i < 2; ++i) {
    atomic_int done = 0;
    OK(gmm_stream_call(context, streams[i], set_soon, &done));
    OK(gmm_stream_synchronize(context, streams[i]));
    CHECK_EQUAL(atomic_load(&done), 1);
    SOON(atomic_load(&done) == 1);
  }
  CHECK_EQUAL(cu.cuCtxDestroy_v2(own), CUDA_SUCCESS);
}

static void without_each_entry(void) {
  unsigned without_backend = 0;
  gmm_context *case_context = context;
  for (uint64_t k = 1; k < 200; ++k) {
    const uint64_t failures = fake.failures();
    fake.fail("cuGetProcAddress", k, CUDA_ERROR_NOT_FOUND);
    context = NULL;
    const gmm_result result = gmm_context_create(DESC(context_desc, .backend = GMM_BACKEND_CUDA), &context);
    const bool happened = fake.failures() != failures;
    fake.fail(NULL, 0, 0);
    if (!happened) {
      CHECK_EQUAL(result, GMM_OK);
      OK(gmm_context_release(context));
      break;
    }
    ++without_backend;
    REQUIRE(result == GMM_ERROR_NO_BACKEND && message_has("has no cu"));
  }
  context = case_context;
  CHECK_MESSAGE(without_backend > 70, "%u", without_backend);
}

static void libraries_that_are_no_driver(void) {
  static const char *const rows[][2] = {{"/nonexistent/libcuda.so.1", "/nonexistent/libcuda.so.1"},
                                        {"libm.so.6", "cuGetProcAddress_v2"}};
  for (int i = 0; i < 2; ++i) {
    gmm_context *opened = NULL;
    setenv("GMM_CUDA_DRIVER", rows[i][0], 1);
    RESULT(gmm_context_create(DESC(context_desc, .backend = GMM_BACKEND_CUDA), &opened), GMM_ERROR_NO_BACKEND);
    CHECK(message_has(rows[i][1]));
  }
  unsetenv("GMM_CUDA_DRIVER");
}

static void answers_of_the_driver_are_translated(void) {
  static const struct {
    int driver;
    gmm_result expected;
  } rows[] = {{CUDA_ERROR_INVALID_HANDLE, GMM_ERROR_INVALID_HANDLE},
              {CUDA_ERROR_CONTEXT_IS_DESTROYED, GMM_ERROR_INVALID_HANDLE},
              {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, GMM_ERROR_CAPTURING},
              {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, GMM_ERROR_CAPTURING},
              {CUDA_ERROR_CAPTURED_EVENT, GMM_ERROR_CAPTURING},
              {CUDA_ERROR_NOT_SUPPORTED, GMM_ERROR_NOT_SUPPORTED},
              {CUDA_ERROR_OPERATING_SYSTEM, GMM_ERROR_SYSTEM},
              {CUDA_ERROR_INVALID_DEVICE, GMM_ERROR_INVALID_DEVICE},
              {CUDA_ERROR_ILLEGAL_ADDRESS, GMM_ERROR_DRIVER},
              {CUDA_ERROR_INVALID_PTX, GMM_ERROR_DRIVER}};  // the fake has no name for the last one
  for (unsigned i = 0; i < sizeof rows / sizeof *rows; ++i) {
    void *memory = NULL;
    fake.fail("cuMemAlloc", 1, rows[i].driver);
    RESULT(gmm_alloc(context, 2 * MIB, HERE(.flags = GMM_ALLOC_DEDICATED), &memory), rows[i].expected);
    CHECK_EQUAL(gmm_last_native_code(), rows[i].driver);
    CHECK_MESSAGE(message_has("cuMemAlloc") && message_has("2097152 bytes on device 0"), "%s",
                  gmm_last_error_message());
  }
  char own[8192];
  fake.fail("cuMemHostRegister", 1, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  RESULT(gmm_pin(context, own, sizeof own, NULL, NULL), GMM_ERROR_OVERLAP);
}

// Two failures, the second of the undoing of the first, leave no page locked: the retry works.
static void a_pin_can_be_tried_again(void) {
  char own[8192];
  fake.fail("cuMemHostGetDevicePointer", 1, CUDA_ERROR_UNKNOWN);
  fake.fail("cuMemHostUnregister", 1, CUDA_ERROR_UNKNOWN);
  const gmm_result result = gmm_pin(context, own, sizeof own, NULL, NULL);
  fake.fail("cuMemHostGetDevicePointer", 0, 0);
  fake.fail("cuMemHostUnregister", 0, 0);
  if (result != GMM_OK) OK(gmm_pin(context, own, sizeof own, NULL, NULL));
  OK(gmm_unpin(context, own));
}

static void note_message(void *user, gmm_log_level level, const char *message) {
  if (level > GMM_LOG_WARNING) return;
  printf("# %s\n", message);
  ++*(int *)user;
}

// As when the process ends.
static void a_driver_that_is_shut_down_is_taken_as_gone(void) {
  int messages = 0;
  gmm_context *other = OPEN(.log = {note_message, &messages});
  void *memory = NULL;
  OK(gmm_alloc(other, 100, NULL, &memory));
  OK(gmm_free(other, memory, GMM_STREAM_DEFAULT));
  fake.fail("cuDevicePrimaryCtxRelease", 1, CUDA_ERROR_DEINITIALIZED);
  OK(gmm_context_release(other));
  CHECK_EQUAL(messages, 0);
  CHECK_EQUAL(cu.cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);  // the driver only pretended to have lost it
}

// --- Other drivers, each in a process of its own ---------------------------------------------------------------------

static const struct {
  const char *lacks;
  gmm_kind_mask kinds;
  uint32_t capabilities;
} lacking[] = {
    {"vmm", 1u << GMM_KIND_VMM, GMM_DEVICE_CAN_PAUSE | GMM_DEVICE_CAN_EXPORT_FD | GMM_DEVICE_CAN_HOST_NUMA},
    {"fd", 0, GMM_DEVICE_CAN_EXPORT_FD},
    {"managed", 1u << GMM_KIND_MANAGED, GMM_DEVICE_CAN_CONCURRENT_MANAGED},
    {"concurrent", 0, GMM_DEVICE_CAN_CONCURRENT_MANAGED},
    {"register", 1u << GMM_KIND_HOST, GMM_DEVICE_CAN_PIN},
    {"readonly_register", 0, 0},
    {"same_address", 1u << GMM_KIND_HOST, 0},
    {"host_vmm", 0, GMM_DEVICE_CAN_HOST_NUMA},
    {"ipc", 0, GMM_DEVICE_CAN_LEGACY_IPC},
};
enum { LACKING = sizeof lacking / sizeof *lacking };

static void can_what_is_left(void) {
  const uint32_t all_capabilities =
      lacking[0].capabilities | GMM_DEVICE_CAN_CONCURRENT_MANAGED | GMM_DEVICE_CAN_PIN | GMM_DEVICE_CAN_LEGACY_IPC;
  for (unsigned i = 0; i < LACKING; ++i) {
    if (strcmp(lacks, lacking[i].lacks) != 0) continue;
    CHECK_EQUAL(device_info.kinds, ALL_KINDS & ~lacking[i].kinds);
    CHECK_EQUAL(device_info.capabilities & all_capabilities, all_capabilities & ~lacking[i].capabilities);
  }
  use_everything();
}

static const char *no_backend_words;
static void is_no_backend(void) {
  gmm_context *opened = NULL;
  RESULT(gmm_context_create(NULL, &opened), GMM_ERROR_NO_BACKEND);
  CHECK(message_has(no_backend_words));
}

static void run_on(const char *variables) {
  char command[200];
  snprintf(command, sizeof command, "%s /proc/%d/exe --other >&2", variables, (int)getpid());
  CHECK_MESSAGE(system(command) == 0, "%s", command);
}
static void other_drivers(void) {
  static const char *const rows[] = {"FAKE_CUDA_VERSION=12000",
                                     "FAKE_CUDA_VERSION=12020",
                                     "FAKE_CUDA_UNALIGNED=1",
                                     "FAKE_CUDA_DEVICES=3",
                                     "FAKE_CUDA_VERSION=11080 NO_BACKEND=11.8",
                                     "FAKE_CUDA_DEVICES=0 NO_BACKEND=CUDA_VISIBLE_DEVICES"};
  for (unsigned i = 0; i < sizeof rows / sizeof *rows; ++i) run_on(rows[i]);
  for (unsigned i = 0; i < LACKING; ++i) {
    char row[64];
    snprintf(row, sizeof row, "FAKE_CUDA_LACKS=%s", lacking[i].lacks);
    run_on(row);
  }
}

int main(int count, char **words) {
  (void)words;
  context = NULL;
  no_backend_words = getenv("NO_BACKEND");
  if (no_backend_words != NULL) {
    RUN(is_no_backend);
    return check_finish();
  }
  context = open_context(0);
  const bool is_fake = find_fake_driver(), is_cuda = backend_id() == GMM_BACKEND_CUDA && cuda_driver_open(&cu) == NULL;
  gmm_context_release(context);
  if (!is_cuda) {
    printf("1..0 # SKIP the backend is not CUDA\n");
    return 0;
  }
  if (getenv("FAKE_CUDA_LACKS") != NULL) lacks = getenv("FAKE_CUDA_LACKS");
  if (count == 2) {
    PLAIN(can_what_is_left);
    PLAIN(contexts_of_the_thread_stay);
    return finish_clean();
  }
  PLAIN(contexts_of_the_thread_stay);
  PLAIN(the_default_stream_of_the_callers_own_context_is_waited_for);
  if (!is_fake) return finish_clean();  // the further cases ask for faults
  PLAIN(without_each_entry);
  PLAIN(libraries_that_are_no_driver);
  PLAIN(answers_of_the_driver_are_translated);
  PLAIN(a_pin_can_be_tried_again);
  PLAIN(a_driver_that_is_shut_down_is_taken_as_gone);
  RUN(other_drivers);
  return finish_clean();
}
