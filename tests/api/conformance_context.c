// SPDX-License-Identifier: Apache-2.0
// context.h, types.h and version.h: how contexts open, and what they report.
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>

#include "fake_driver.h"

// A device that was started has lost some hundred MiB to the driver. The first case, as this process itself uses every
// device of a real driver from ends_begin() on.
static void a_context_starts_no_device_that_is_not_used(void) {
  gmm_device_info second = {.struct_size = sizeof second};
  context = OPEN(.host_devices = 2);
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  int (*get_state)(int device, unsigned int *flags, int *active) = NULL;
  if (library != NULL) *(void **)&get_state = dlsym(library, "cuDevicePrimaryCtxGetState");
  const char *missing = backend_id() != GMM_BACKEND_CUDA || get_state == NULL ? "not the CUDA backend"
                        : device_count() < 2                                  ? "one device"
                                                                              : NULL;
  if (missing == NULL) {
    kind = GMM_KIND_DEVICE;
    FREE(ALLOC(MIB));
    unsigned int flags = 0;
    int active[2] = {-1, -1};
    for (int i = 0; i < 2; ++i) CHECK(get_state(i, &flags, &active[i]) == 0);
    CHECK_MESSAGE(active[0] == 1 && active[1] == 0, "device 0 %d, device 1 %d", active[0], active[1]);
    OK(gmm_stream_synchronize(context, GMM_STREAM_DEFAULT));  // of every device
    OK(gmm_reset(context));
    OK(gmm_context_release(context));
    context = OPEN(.host_devices = 2);
    CHECK(get_state(1, &flags, &active[1]) == 0 && active[1] == 0);
    OK(gmm_device_query(context, 1, &second));  // free memory is the device's to tell
    CHECK(get_state(1, &flags, &active[1]) == 0 && active[1] == 1);
  }
  OK(gmm_context_release(context));
  context = NULL;
  if (library != NULL) dlclose(library);
  if (missing != NULL) SKIP("%s", missing);
}

CASE(version_agrees_with_the_header) {
  CHECK_EQUAL(gmm_version(), GMM_VERSION);
  char expected[32];
  snprintf(expected, sizeof expected, "%d.%d.%d%s", GMM_VERSION_MAJOR, GMM_VERSION_MINOR, GMM_VERSION_PATCH,
           GMM_VERSION_SUFFIX);
  CHECK(strcmp(gmm_version_string(), expected) == 0);
}

CASE(results_have_names_and_texts) {
#define NAMED(result) CHECK(strcmp(gmm_result_name(result), #result) == 0)
  NAMED(GMM_OK);
  NAMED(GMM_UNCHANGED);
  NAMED(GMM_ERROR_OUT_OF_MEMORY);
  NAMED(GMM_ERROR_IPC_TIMEOUT);
  CHECK(strcmp(gmm_result_name(-9999), "GMM_ERROR_UNKNOWN") == 0);
  CHECK(strcmp(gmm_result_name(9999), "GMM_ERROR_UNKNOWN") == 0);
  static const gmm_result all[] = {0,   1,   -1,  -2,  -3,  -4,  -5,  -6,  -7,  -8,  -9,  -10,
                                   -11, -12, -13, -14, -15, -16, -17, -20, -21, -22, -23, -24,
                                   -25, -26, -27, -28, -30, -31, -32, -40, -41, -42, -43};
  for (unsigned i = 0; i < sizeof all / sizeof all[0]; ++i) {
    CHECK_MESSAGE(strcmp(gmm_result_name(all[i]), "GMM_ERROR_UNKNOWN") != 0, "%d has no name", all[i]);
    CHECK_MESSAGE(strlen(gmm_result_text(all[i])) > 2, "%d has no text", all[i]);
    for (unsigned j = 0; j < i; ++j)
      CHECK_MESSAGE(strcmp(gmm_result_name(all[i]), gmm_result_name(all[j])) != 0 &&
                        strcmp(gmm_result_text(all[i]), gmm_result_text(all[j])) != 0,
                    "%d and %d share a name or a text", all[i], all[j]);
  }
  CHECK(gmm_result_text(-9999) != NULL);
}

static void *message_of_a_new_thread(void *unused) {
  (void)unused;
  CHECK(gmm_last_error_message() != NULL && gmm_last_error_message()[0] == 0);
  CHECK_EQUAL(gmm_last_native_code(), 0);
  void *memory = NULL;
  RESULT(gmm_alloc(context, 0, NULL, &memory), GMM_ERROR_INVALID_SIZE);
  CHECK(strlen(gmm_last_error_message()) > 10);
  return NULL;
}

CASE(messages_belong_to_the_thread) {
  RESULT(gmm_context_retain(NULL), GMM_ERROR_NULL_ARGUMENT);
  char mine[512];
  snprintf(mine, sizeof mine, "%s", gmm_last_error_message());
  CHECK(strlen(mine) > 10);
  run_threads(1, message_of_a_new_thread);
  CHECK(strcmp(mine, gmm_last_error_message()) == 0);
  OK(gmm_context_retain(context));  // a success leaves the message alone
  OK(gmm_context_release(context));
  CHECK(strcmp(mine, gmm_last_error_message()) == 0);
  CHECK_EQUAL(gmm_last_native_code(), 0);
}

// Creates a context while the environment names this backend; NULL: none.
static gmm_result create_on(const char *backend, const gmm_context_desc *desc, gmm_context **out) {
  const char *was = getenv("GMM_BACKEND");
  char copy[64];
  snprintf(copy, sizeof copy, "%s", was != NULL ? was : "");
  if (backend != NULL)
    setenv("GMM_BACKEND", backend, 1);
  else
    unsetenv("GMM_BACKEND");
  const gmm_result result = gmm_context_create(desc, out);
  unsetenv("GMM_BACKEND");
  if (was != NULL) setenv("GMM_BACKEND", copy, 1);
  return result;
}

// Also where there is no GPU.
CASE(the_choice_of_a_backend_is_no_failure) {
  gmm_context *other = NULL;
  char before[1024];
  RESULT(gmm_context_retain(NULL), GMM_ERROR_NULL_ARGUMENT);
  snprintf(before, sizeof before, "%s", gmm_last_error_message());
  OK(create_on(NULL, NULL, &other));
  CHECK_MESSAGE(strcmp(before, gmm_last_error_message()) == 0, "%s", gmm_last_error_message());
  OK(gmm_context_release(other));
}

static void count_warning(void *user, gmm_log_level level, const char *message) {
  CHECK(level >= GMM_LOG_ERROR && level <= GMM_LOG_DEBUG && message[0] != 0);
  if (level == GMM_LOG_WARNING && strstr(message, "in the environment") != NULL) ++*(int *)user;
}

CASE(the_environment_is_warned_of_once) {
  int warnings = 0;
  setenv("GMM_NO_SUCH_VARIABLE", "1", 1);
  setenv("GMM_BACKUP_DIR", "/proc", 1);  // nobody makes a file there
  for (unsigned i = 0; i < 4; ++i) {
    if (i == 3) setenv("GMM_NO_SUCH_VARIABLE_2", "1", 1);
    OK(gmm_context_release(OPEN(.log = {count_warning, &warnings})));
    CHECK_EQUAL(warnings, i < 3 ? 2 : 3);
  }
  unsetenv("GMM_NO_SUCH_VARIABLE");
  unsetenv("GMM_NO_SUCH_VARIABLE_2");
  unsetenv("GMM_BACKUP_DIR");
}

CASE(a_card_of_the_host_needs_its_file) {
  gmm_context *other = NULL;
  setenv("GMM_HOST_CARD", "/proc/card", 1);
  RESULT(create_on("host", NULL, &other), GMM_ERROR_SYSTEM);
  CHECK(message_has("GMM_HOST_CARD=/proc/card"));
  // A file of the program stays as it is, and a card that does not fit on the disk is refused, not found out later.
  char path[] = "/tmp/gmm-card-XXXXXX", bytes[8] = "";
  const int fd = mkstemp(path);
  REQUIRE(fd >= 0 && write(fd, "letters", 7) == 7);
  setenv("GMM_HOST_CARD", path, 1);
  RESULT(create_on("host", NULL, &other), GMM_ERROR_INVALID_VALUE);
  CHECK(pread(fd, bytes, 8, 0) == 7 && strcmp(bytes, "letters") == 0);
  REQUIRE(ftruncate(fd, 0) == 0);
  const struct rlimit one_page = {4096, RLIM_INFINITY};
  struct rlimit before;
  signal(SIGXFSZ, SIG_IGN);
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0 && setrlimit(RLIMIT_FSIZE, &one_page) == 0);
  RESULT(create_on("host", NULL, &other), GMM_ERROR_SYSTEM);
  CHECK_EQUAL(gmm_last_native_code(), EFBIG);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  signal(SIGXFSZ, SIG_DFL);
  MUST(create_on("host", NULL, &other));
  OK(gmm_context_release(other));
  close(fd);
  unlink(path);
  unsetenv("GMM_HOST_CARD");
}

CASE(defaults_open_a_backend) {
  gmm_context *other = NULL;
  MUST(gmm_context_create(NULL, &other));
  CHECK(other != NULL && other != context);
  gmm_context_info info = {.struct_size = sizeof info};
  OK(gmm_context_query(other, &info));
  static const char *const names[] = {"", "host", "cuda", "sycl", "hip"};
  REQUIRE(info.backend >= GMM_BACKEND_HOST && info.backend <= GMM_BACKEND_HIP);
  CHECK(strcmp(info.backend_name, names[info.backend]) == 0);
  if (getenv("GMM_BACKEND") == NULL) CHECK(info.backend != GMM_BACKEND_SYCL);  // never chosen by itself
  CHECK(info.device_count >= 1);
  CHECK(info.driver_version[0] != 0);
  CHECK(memchr(info.driver_version, 0, sizeof info.driver_version) != NULL);
  const char *wanted = getenv("GMM_BACKEND");
  if (wanted != NULL && wanted[0] != 0) CHECK(strcmp(info.backend_name, wanted) == 0);
  void *memory = NULL;
  OK(gmm_alloc(other, 1000, NULL, &memory));
  OK(gmm_context_release(other));  // a live block goes with it
}

CASE(unknown_backends_are_refused) {
  gmm_context *other = (gmm_context *)0x1;
  RESULT(create_on("abacus", NULL, &other), GMM_ERROR_INVALID_VALUE);
  CHECK(message_has("abacus") && other == NULL);
  // Named in the descriptor: the environment is not asked.
  OK(create_on("abacus", DESC(context_desc, .backend = GMM_BACKEND_HOST), &other));
  OK(gmm_context_release(other));
}

CASE(references_are_counted) {
  gmm_context *other = open_context(1);
  OK(gmm_context_retain(other));
  OK(gmm_context_release(other));
  gmm_context_info info = {.struct_size = sizeof info};
  OK(gmm_context_query(other, &info));  // one reference is left
  OK(gmm_context_release(other));
  OK(gmm_context_release(NULL));
}

CASE(devices_are_described) {
  uint32_t count = device_count();
  REQUIRE(count >= 1);
  for (uint32_t d = 0; d < count; ++d) {
    gmm_device_info info = {.struct_size = sizeof info};
    OK(gmm_device_query(context, (gmm_device)d, &info));
    CHECK_EQUAL(info.struct_size, sizeof info);
    CHECK_EQUAL(info.device, d);
    CHECK((info.kinds & (1u << GMM_KIND_DEVICE)) != 0);
    CHECK((info.kinds & ~ALL_KINDS) == 0);
    CHECK(info.total_memory > 0 && info.free_memory > 0 && info.free_memory <= info.total_memory);
    CHECK(info.name[0] != 0 && memchr(info.name, 0, sizeof info.name) != NULL);
    if ((info.kinds & (1u << GMM_KIND_VMM)) != 0) {
      CHECK(info.granularity > 0 && (info.granularity & (info.granularity - 1)) == 0);
    }
    if ((info.capabilities & GMM_DEVICE_CAN_PAUSE) != 0) CHECK((info.kinds & (1u << GMM_KIND_VMM)) != 0);
    CHECK_EQUAL((info.capabilities & GMM_DEVICE_IS_CPU) != 0, backend_id() == GMM_BACKEND_HOST);
    // A program finds the device among Vulkan's.
    static const uint8_t none[16] = {0};
    CHECK(memcmp(info.uuid, none, 16) != 0);
    CHECK(memcmp(info.luid, none, 8) == 0 && info.node_mask == 0);
    for (uint32_t e = 0; e < d; ++e) {
      gmm_device_info before = {.struct_size = sizeof before};
      OK(gmm_device_query(context, (gmm_device)e, &before));
      CHECK_MESSAGE(memcmp(before.uuid, info.uuid, 16) != 0, "devices %u and %u share a uuid", e, d);
    }
  }
  RESULT(gmm_device_query(context, (gmm_device)count, DESC(device_info)), GMM_ERROR_INVALID_DEVICE);
}

CASE(host_backend_shows_the_devices_asked_for) {
  gmm_context *other = OPEN(.backend = GMM_BACKEND_HOST, .host_devices = 5, .host_memory = 64 * MIB);
  gmm_context_info info = {.struct_size = sizeof info};
  OK(gmm_context_query(other, &info));
  CHECK_EQUAL(info.device_count, 5);
  gmm_device_info described = {.struct_size = sizeof described};
  OK(gmm_device_query(other, 4, &described));
  CHECK_EQUAL(described.total_memory, 64 * MIB);
  CHECK(described.free_memory <= 64 * MIB);
  gmm_alloc_desc alloc = {.struct_size = sizeof alloc, .device = 4};
  void *memory = NULL;
  RESULT(gmm_alloc(other, 65 * MIB, &alloc, &memory), GMM_ERROR_OUT_OF_MEMORY);
  CHECK(memory == NULL);
  OK(gmm_alloc(other, 40 * MIB, &alloc, &memory));
  OK(gmm_device_query(other, 4, &described));
  CHECK(described.free_memory <= 24 * MIB);
  OK(gmm_context_release(other));
}

CASE(fields_of_a_newer_program_are_zero) {
  struct {
    gmm_context_info info;
    uint8_t tail[16];
  } answer;
  memset(&answer, 0x5a, sizeof answer);
  answer.info.struct_size = sizeof answer;
  OK(gmm_context_query(context, &answer.info));
  CHECK(answer.info.device_count >= 1 && answer.info.device_count < 1000);
  CHECK_EQUAL(answer.info.struct_size, sizeof answer);
  for (size_t i = 0; i < sizeof answer.tail; ++i) CHECK_EQUAL(answer.tail[i], 0);
}

CASE(contexts_do_not_know_each_other) {
  gmm_context *other = open_context(1);
  void *mine = FILLED(4096, 1), *theirs = NULL;
  MUST(gmm_alloc(other, 4096, NULL, &theirs));
  CHECK(mine != theirs);
  for (kind = GMM_KIND_DEVICE; kind <= GMM_KIND_MANAGED; ++kind) {
    void *of_kind = NULL;
    if (!has_kind(kind)) continue;
    MUST(gmm_alloc(other, 3 * MIB, DESC(alloc_desc, .kind = kind), &of_kind));
    CHECK_EQUAL(state_of(of_kind), GMM_STATE_UNKNOWN);
  }
  RESULT(gmm_free(context, theirs, GMM_STREAM_DEFAULT), GMM_ERROR_UNKNOWN_POINTER);
  RESULT(gmm_free(other, mine, GMM_STREAM_DEFAULT), GMM_ERROR_UNKNOWN_POINTER);
  gmm_tag tag = 0, found = 0;
  OK(gmm_tag_create(other, "only here", NULL, &tag));
  RESULT(gmm_tag_find(context, "only here", &found), GMM_ERROR_INVALID_TAG);
  gmm_stats_info before = stats();
  OK(gmm_free(other, theirs, GMM_STREAM_DEFAULT));
  OK(gmm_context_release(other));
  gmm_stats_info after = stats();
  CHECK(memcmp(&before, &after, sizeof before) == 0);
  CHECK_PATTERN(mine, 4096, 1);
}

CASE(a_query_tells_flags_and_budget) {
  gmm_context *usual = context;
  context = OPEN(.backend = backend_id(), .flags = GMM_CONTEXT_NO_CAPTURE, .host_memory = 256 * MIB);
  CHECK_EQUAL(context_info().flags, GMM_CONTEXT_NO_CAPTURE);
  gmm_device_info info = {.struct_size = sizeof info};
  OK(gmm_device_query(context, 0, &info));
  CHECK_EQUAL(info.held_bytes, 0);
  CHECK_EQUAL(info.budget_bytes, info.free_memory);
  CHECK(info.numa_node >= -1);
  ALLOC(20 * MIB);
  OK(gmm_limit_set(context, NULL, 64 * MIB));
  OK(gmm_device_query(context, 0, &info));
  CHECK(info.held_bytes >= 20 * MIB);
  CHECK_EQUAL(info.held_bytes, stats().reserved_bytes);
  CHECK_EQUAL(info.budget_bytes, 64 * MIB);
  OK(gmm_context_release(context));
  context = usual;
}

// --- The library may be called from the log --------------------------------------------------------------------------

static struct {
  gmm_context *context;
  atomic_int calls, inside, wrong, ended;
} from_log;

// Acts as a garbage collection inside the callback does, and more.
static void call_the_library(void *user, gmm_log_level level, const char *message) {
  (void)user, (void)level, (void)message;
  if (from_log.context == NULL || atomic_exchange(&from_log.inside, 1) != 0) return;
  for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_VMM; ++k) {
    void *block = NULL;
    if (gmm_alloc(from_log.context, 3 * MIB, DESC(alloc_desc, .kind = k), &block) != GMM_OK ||
        gmm_free(from_log.context, block, GMM_STREAM_DEFAULT) != GMM_OK)
      atomic_fetch_add(&from_log.wrong, 1);
  }
  gmm_stats_info statistics = {.struct_size = sizeof statistics};
  gmm_tag_info info = {.struct_size = sizeof info};
  if (gmm_stats_query(from_log.context, NULL, &statistics) != GMM_OK ||
      gmm_backup_query(from_log.context, DESC(backup_info)) != GMM_OK ||
      gmm_tag_query(from_log.context, GMM_TAG_DEFAULT, &info) != GMM_OK ||
      gmm_free(from_log.context, &info, GMM_STREAM_DEFAULT) == GMM_OK)
    atomic_fetch_add(&from_log.wrong, 1);
  atomic_fetch_add(&from_log.calls, 1);
  atomic_store(&from_log.inside, 0);
}

// Each of these refusals is logged while the heap works.
static void *let_the_driver_refuse(void *unused) {
  static const char *const entries[] = {"cuMemAddressFree", "cuMemUnmap", "cuMemRelease", "cuMemFree_v2"};
  (void)unused;
  for (unsigned i = 0; i < sizeof entries / sizeof *entries; ++i) {
    for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_VMM; ++k) {
      void *block = NULL;
      OK(gmm_alloc(from_log.context, 80 * MIB, DESC(alloc_desc, .kind = k), &block));
      OK(gmm_free(from_log.context, block, GMM_STREAM_DEFAULT));
      fake.fail(entries[i], 1, 999);
      gmm_result refused = gmm_trim(from_log.context, NULL, NULL);
      fake.fail(NULL, 0, 0);
      // The callback's calls leave the message of this call as it is.
      if (refused < 0) CHECK(strstr(gmm_last_error_message(), "gmm_free") == NULL);
      OK(gmm_trim(from_log.context, NULL, NULL));
    }
  }
  // A pause warns that the device finds no zeros.
  void *block = NULL;
  OK(gmm_alloc(from_log.context, 4 * MIB, DESC(alloc_desc, .kind = GMM_KIND_VMM), &block));
  const int before = atomic_load(&from_log.calls);
  fake.fail("cuLaunchKernel", 1, 999);
  OK(gmm_pause(from_log.context, DESC(pause_desc, .flags = GMM_PAUSE_KEEP_HOST), NULL));
  CHECK_EQUAL(atomic_load(&from_log.calls), before + 1);
  OK(gmm_resume(from_log.context, NULL, NULL));
  OK(gmm_free(from_log.context, block, GMM_STREAM_DEFAULT));
  atomic_store(&from_log.ended, 1);
  return NULL;
}

CASE(the_log_may_call_the_library) {
  if (!find_fake_driver()) SKIP("only the fake driver refuses on demand");
  memset(&from_log, 0, sizeof from_log);
  from_log.context = OPEN(.log = {call_the_library, NULL});
  const pthread_t thread = start_thread(let_the_driver_refuse, NULL);
  SOON(atomic_load(&from_log.ended) != 0);
  if (atomic_load(&from_log.ended) == 0) {
    printf("Bail out! The thread waits for a lock that it holds.\n");
    exit(1);
  }
  pthread_join(thread, NULL);
  CHECK(atomic_load(&from_log.calls) > 0);
  CHECK_EQUAL(atomic_load(&from_log.wrong), 0);
  OK(gmm_context_release(from_log.context));
}

int main(void) {
  check_run("a_context_starts_no_device_that_is_not_used", a_context_starts_no_device_that_is_not_used);
  return run_cases();
}
