// SPDX-License-Identifier: Apache-2.0
#include "gmm_test.h"

#include <sys/wait.h>

#include "ends.h"

gmm_context *context;
gmm_device device;
gmm_kind kind;
gmm_device_info device_info;

const char *kind_name(gmm_kind k) {
  static const char *const names[] = {"UNSPECIFIED", "DEVICE", "VMM", "HOST", "MANAGED"};
  return k < 5 ? names[k] : "?";
}

bool on_host_backend(void) { return (device_info.capabilities & GMM_DEVICE_IS_CPU) != 0; }

gmm_context_info context_info(void) {
  gmm_context_info info = {.struct_size = sizeof info};
  OK(gmm_context_query(context, &info));
  return info;
}

gmm_backend backend_id(void) { return context_info().backend; }
bool on_gpu_backend(void) { return backend_id() == GMM_BACKEND_CUDA || backend_id() == GMM_BACKEND_HIP; }

gmm_context *open_context(uint32_t host_devices) {
  ends_begin();
  gmm_context_desc desc = {.struct_size = sizeof desc, .host_devices = host_devices};
  gmm_context *opened = NULL;
  gmm_result result = gmm_context_create(&desc, &opened);
  if (result != GMM_OK) {
    printf("Bail out! no context: %s: %s\n", gmm_result_name(result), gmm_last_error_message());
    exit(99);
  }
  return opened;
}

gmm_context *open_of(const gmm_context_desc *desc) {
  gmm_context *opened = NULL;
  MUST(gmm_context_create(desc, &opened));
  return opened;
}

void read_device(gmm_device d) {
  device = d;
  memset(&device_info, 0, sizeof device_info);
  device_info.struct_size = sizeof device_info;
  if (gmm_device_query(context, d, &device_info) != GMM_OK) {
    printf("Bail out! no device %d: %s\n", d, gmm_last_error_message());
    exit(99);
  }
}

void reopen_with(uint64_t host_memory) {
  gmm_context_release(context);
  context = NULL;
  context = OPEN(.host_memory = host_memory, .host_devices = 2);
  read_device(device);
}

uint32_t device_count(void) { return context_info().device_count; }

bool has_kind(gmm_kind k) { return (device_info.kinds & (1u << k)) != 0; }

// CHECK_DEVICE=N runs the cases of one device. The first one has those of no device, too.
static bool is_wanted(uint32_t of) {
  const char *only = getenv("CHECK_DEVICE");
  return only == NULL || strtoul(only, NULL, 10) == of;
}

// Streams of open_stream() and their contexts.
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  gmm_context *of;
  gmm_stream stream;
} streams[2048];
static unsigned stream_count;

gmm_stream open_stream_on(gmm_device d) {
  gmm_stream stream = NULL;
  OK(gmm_stream_create(context, STREAM_ON(d), &stream));
  if (stream == NULL) check_leave();
  pthread_mutex_lock(&streams_lock);
  if (stream_count == sizeof streams / sizeof *streams) abort();
  streams[stream_count].of = context;
  streams[stream_count++].stream = stream;
  pthread_mutex_unlock(&streams_lock);
  return stream;
}
gmm_stream open_stream(void) { return open_stream_on(device); }

void close_streams(void) {
  while (stream_count != 0) {
    if (streams[--stream_count].of != context) continue;
    const gmm_result result = gmm_stream_destroy(context, streams[stream_count].stream);
    CHECK_MESSAGE(result == GMM_OK || result == GMM_ERROR_INVALID_HANDLE, "%s", gmm_last_error_message());
  }
}

static void (*case_function)(void);

static void run_and_reset(void) {
  case_function();
  if (context == NULL) return;
  close_streams();
  if (stats().live_blocks != 0) SOON(gmm_reset(context) == GMM_OK);  // another process may still close its imports
  CHECK_EQUAL(stats().live_blocks, 0);
  CHECK_EQUAL(stats().imported_bytes, 0);
  CHECK_EQUAL(stats().pinned_bytes, 0);
}

static void case_lacks_kind(void) { SKIP("the device has no %s memory", kind_name(kind)); }

static void run_case(const char *name, void (*function)(void), uint32_t d, gmm_kind k) {
  context = open_context(2);
  read_device((gmm_device)d);
  kind = k;
  stream_count = 0;
  case_function = has_kind(k) ? function : case_lacks_kind;
  check_run(name, run_and_reset);
  if (gmm_context_release(context) != GMM_OK) printf("# release: %s\n", gmm_last_error_message());
  context = NULL;
}

void run_plain(const char *name, void (*function)(void)) {
  check_label("%s", "");
  if (is_wanted(0)) run_case(name, function, 0, GMM_KIND_DEVICE);
}

void run_kinds(const char *name, void (*function)(void), gmm_kind_mask kinds) {
  context = open_context(2);
  read_device(0);
  const uint32_t devices = device_count();
  const bool on_host = on_host_backend();
  gmm_context_release(context);
  for (uint32_t d = 0; d < devices; ++d)
    for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_MANAGED; ++k) {
      if (!is_wanted(d) || (kinds & (1u << k)) == 0 || (d > 0 && k != GMM_KIND_VMM && on_host)) continue;
      check_label("(%s, device %u)", kind_name(k), d);
      run_case(name, function, d, k);
    }
  check_label("%s", "");
}

static struct {
  const char *name;
  void (*function)(void);
  gmm_kind_mask kinds;
} cases[64];
static unsigned case_count;

void add_case(const char *name, void (*function)(void), gmm_kind_mask kinds) {
  if (case_count == sizeof cases / sizeof *cases) abort();
  cases[case_count].name = name;
  cases[case_count].function = function;
  cases[case_count++].kinds = kinds;
}

int run_cases(void) {
  for (unsigned i = 0; i < case_count; ++i)
    if (cases[i].kinds == 0)
      run_plain(cases[i].name, cases[i].function);
    else
      run_kinds(cases[i].name, cases[i].function, cases[i].kinds);
  return finish_clean();
}

gmm_alloc_desc alloc_desc(void) {
  return (gmm_alloc_desc){.struct_size = sizeof(gmm_alloc_desc), .kind = kind, .device = device};
}

void *alloc_here(int line, uint64_t size, gmm_tag tag, gmm_stream stream, uint32_t flags) {
  gmm_alloc_desc desc = alloc_desc();
  desc.tag = tag;
  desc.stream = stream;
  desc.flags = flags;
  void *memory = NULL;
  gmm_result result = gmm_alloc(context, size, &desc, &memory);
  if (result != GMM_OK)
    check_failed(__FILE__, line, "alloc of %llu bytes (line %d) gave %s: %s", (unsigned long long)size, line,
                 gmm_result_name(result), gmm_last_error_message());
  if (memory == NULL) check_leave();
  return memory;
}

void *filled_here(int line, uint64_t size, gmm_tag tag, uint32_t flags, uint32_t seed) {
  void *memory = alloc_here(line, size, tag, GMM_STREAM_DEFAULT, flags);
  write_pattern(memory, size, seed, GMM_STREAM_DEFAULT);
  return memory;
}

gmm_result try_alloc(uint64_t size, gmm_tag tag, void **out) {
  gmm_alloc_desc desc = alloc_desc();
  desc.tag = tag;
  return gmm_alloc(context, size, &desc, out);
}

void free_here(int line, gmm_stream stream, void *const *blocks, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    const gmm_result result = gmm_free(context, blocks[i], stream);
    if (result != GMM_OK)
      check_failed(__FILE__, line, "free of %p, number %llu (line %d), gave %s: %s", blocks[i], (unsigned long long)i,
                   line, gmm_result_name(result), gmm_last_error_message());
  }
}

gmm_heap *open_heap(const gmm_heap_desc *desc) {
  gmm_heap *heap = NULL;
  OK(gmm_heap_create(context, desc, &heap));
  if (heap == NULL) check_leave();
  return heap;
}

void *take_of(gmm_heap *heap, uint64_t size) {
  void *block = NULL;
  OK(gmm_heap_alloc(heap, size, 0, 0, GMM_STREAM_DEFAULT, &block));
  if (block == NULL) check_leave();
  return block;
}

void set_limit(uint32_t flags, gmm_tag tag, uint64_t bytes) {
  const gmm_scope_desc scope = scope_of(flags, device, tag, 0);
  OK(gmm_limit_set(context, &scope, bytes));
}

void run_threads(unsigned count, void *(*fn)(void *)) {
  pthread_t threads[64];
  REQUIRE(count <= sizeof threads / sizeof *threads);
  for (uintptr_t i = 0; i < count; ++i) REQUIRE(pthread_create(&threads[i], NULL, fn, (void *)i) == 0);
  for (unsigned i = 0; i < count; ++i) pthread_join(threads[i], NULL);
}

pthread_t start_thread(void *(*fn)(void *), void *argument) {
  pthread_t thread;
  REQUIRE(pthread_create(&thread, NULL, fn, argument) == 0);
  return thread;
}

int in_child(int (*fn)(void *), void *argument) {
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const int code = fn(argument);
    fflush(stdout);
    _exit(code);
  }
  int status = -1;
  REQUIRE(child > 0 && waitpid(child, &status, 0) == child);
  return status;
}

void run_thread(void *(*fn)(void *), void *argument) {
  pthread_t thread;
  const bool runs = pthread_create(&thread, NULL, fn, argument) == 0;
  CHECK(runs);
  if (runs) pthread_join(thread, NULL);
}

gmm_pointer_info query(const void *address) {
  gmm_pointer_info info = {.struct_size = sizeof info};
  OK(gmm_query(context, address, &info));
  return info;
}

gmm_state state_of(const void *address) { return query(address).state; }

gmm_result write_snapshot(gmm_context *of, gmm_write_fn fn, void *user) {
  gmm_snapshot *snapshot = NULL;
  gmm_result result = gmm_snapshot_create(of, NULL, &snapshot);
  if (result != GMM_OK) return result;
  result = gmm_snapshot_write(snapshot, fn, user);
  OK(gmm_snapshot_destroy(snapshot));
  return result;
}

int32_t append_text(void *user, const char *piece, uint64_t size) {
  char **text = user;
  const uint64_t used = *text == NULL ? 0 : strlen(*text);
  *text = realloc(*text, used + size + 1);
  memcpy(*text + used, piece, size);
  (*text)[used + size] = 0;
  return 0;
}

char *snapshot_text(void) {
  char *text = NULL;
  MUST(write_snapshot(context, append_text, &text));
  return text;
}

gmm_scope_desc scope_of(uint32_t flags, gmm_device d, gmm_tag tag, gmm_kind k) {
  return (gmm_scope_desc){.struct_size = sizeof(gmm_scope_desc),
                          .flags = flags,
                          .device = (flags & GMM_SCOPE_DEVICE) != 0 ? d : 0,
                          .tag = (flags & GMM_SCOPE_TAG) != 0 ? tag : 0,
                          .kind = (flags & GMM_SCOPE_KIND) != 0 ? k : 0};
}

gmm_stats_info stats_of(uint32_t flags, gmm_device d, gmm_tag tag, gmm_kind k) {
  const gmm_scope_desc scope = scope_of(flags, d, tag, k);
  gmm_stats_info statistics = {.struct_size = sizeof statistics};
  OK(gmm_stats_query(context, &scope, &statistics));
  return statistics;
}

gmm_stats_info stats(void) { return stats_of(0, 0, 0, 0); }

gmm_backup_info backup_info(void) {
  gmm_backup_info info = {.struct_size = sizeof info};
  OK(gmm_backup_query(context, &info));
  return info;
}

gmm_ticket_info ticket_info(gmm_ticket *ticket) {
  gmm_ticket_info info = {.struct_size = sizeof info};
  OK(gmm_ticket_query(ticket, &info));
  return info;
}

gmm_tag_info tag_info(gmm_tag tag) {
  gmm_tag_info info = {.struct_size = sizeof info};
  OK(gmm_tag_query(context, tag, &info));
  return info;
}

gmm_tag make_tag_of(const char *name, gmm_contents contents, uint32_t flags) {
  gmm_tag_desc desc = {.struct_size = sizeof desc, .contents = contents, .flags = flags};
  gmm_tag tag = 0;
  OK(gmm_tag_create(context, name, &desc, &tag));
  return tag;
}

gmm_tag make_tag(const char *name, gmm_contents contents) { return make_tag_of(name, contents, 0); }

gmm_pause_desc one_tag(const gmm_tag *tag) { return *DESC(pause_desc, .tags = tag, .tag_count = 1); }
gmm_result pause_of(gmm_tag tag) {
  const gmm_pause_desc desc = one_tag(&tag);
  return gmm_pause(context, &desc, NULL);
}
gmm_result resume_of(gmm_tag tag) {
  const gmm_pause_desc desc = one_tag(&tag);
  return gmm_resume(context, &desc, NULL);
}

void ignore_call(void *user) { (void)user; }
int32_t ignore_text(void *user, const char *text, uint64_t size) {
  (void)user, (void)text, (void)size;
  return 0;
}
int32_t ignore_watch(void *user, const gmm_watch_info *info) {
  (void)user, (void)info;
  return 0;
}
int32_t ignore_oom(void *user, const gmm_oom_info *info) {
  (void)user, (void)info;
  return 0;
}
int32_t ignore_value(void *user, uint64_t value) {
  (void)user, (void)value;
  return 0;
}

bool message_has(const char *words) { return strstr(gmm_last_error_message(), words) != NULL; }

// Patterns are written and read so often that malloc() would ask the system for fresh pages each time: one buffer
// stays. A thread that finds it in use gets memory of its own.
static pthread_mutex_t pattern_lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *pattern_kept;

static uint8_t *pattern_buffer(uint64_t size) {
  static uint64_t capacity;
  if (pthread_mutex_trylock(&pattern_lock) != 0) return malloc(size);
  if (size > capacity) {
    free(pattern_kept);
    pattern_kept = malloc(size);
    capacity = size;
  }
  return pattern_kept;
}

static void pattern_done(uint8_t *bytes) {
  if (bytes == pattern_kept)
    pthread_mutex_unlock(&pattern_lock);
  else
    free(bytes);
}

// Within PATTERN_PAGE bytes each byte is 31 more than the one before it. So every page is a part of one table, whose
// byte of value v has the index 223 v: 223 * 31 is 1 modulo 256. Runs write and check GiB, so pages are taken whole.
enum { PATTERN_PAGE = 4096 };
static uint8_t pattern_table[PATTERN_PAGE + 256];
static pthread_once_t pattern_once = PTHREAD_ONCE_INIT;

static void make_pattern_table(void) {
  for (unsigned k = 0; k < sizeof pattern_table; ++k) pattern_table[k] = (uint8_t)(k * 31);
}
static const uint8_t *pattern_page(uint64_t i, uint32_t seed) {
  pthread_once(&pattern_once, make_pattern_table);
  return pattern_table + (uint8_t)(pattern_at(i, seed) * 223);
}

void fill_pattern(void *memory, uint64_t size, uint32_t seed) {
  for (uint64_t i = 0; i < size; i += PATTERN_PAGE)
    memcpy((uint8_t *)memory + i, pattern_page(i, seed), size - i < PATTERN_PAGE ? size - i : PATTERN_PAGE);
}

uint64_t pattern_length(const void *memory, uint64_t size, uint32_t seed) {
  const uint8_t *bytes = memory;
  for (uint64_t i = 0; i < size; i += PATTERN_PAGE) {
    const uint8_t *const page = pattern_page(i, seed);
    const uint64_t length = size - i < PATTERN_PAGE ? size - i : PATTERN_PAGE;
    if (memcmp(bytes + i, page, length) == 0) continue;
    for (uint64_t k = 0; k < length; ++k)
      if (bytes[i + k] != page[k]) return i + k;
  }
  return size;
}

void write_pattern(void *memory, uint64_t size, uint32_t seed, gmm_stream stream) {
  uint8_t *bytes = pattern_buffer(size);
  fill_pattern(bytes, size, seed);
  OK(gmm_copy(context, memory, bytes, size, stream));
  OK(gmm_stream_synchronize(context, stream));
  pattern_done(bytes);
}

bool check_pattern(int line, const void *memory, uint64_t size, uint32_t seed, gmm_stream stream) {
  uint8_t *bytes = pattern_buffer(size);
  memset(bytes, 0xee, size);
  gmm_result result = gmm_copy(context, bytes, memory, size, stream);
  if (result == GMM_OK) result = gmm_stream_synchronize(context, stream);
  bool same = result == GMM_OK;
  if (!same)
    check_failed(__FILE__, line, "reading %p (line %d): %s: %s", memory, line, gmm_result_name(result),
                 gmm_last_error_message());
  const uint64_t length = same ? pattern_length(bytes, size, seed) : size;
  if (length != size) {
    check_failed(__FILE__, line, "line %d: byte %llu of %llu is %u, expected %u", line, (unsigned long long)length,
                 (unsigned long long)size, bytes[length], pattern_at(length, seed));
    same = false;
  }
  pattern_done(bytes);
  return same;
}

bool is_filled(const void *memory, uint64_t size, uint8_t value, gmm_stream stream) {
  uint8_t *bytes = malloc(size);
  memset(bytes, (uint8_t)~value, size);
  OK(gmm_copy(context, bytes, memory, size, stream));
  OK(gmm_stream_synchronize(context, stream));
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < size; ++i) wrong += bytes[i] != value;
  free(bytes);
  return wrong == 0;
}

void sleep_ms(long ms) {
  struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
  while (nanosleep(&time, &time) != 0) {
  }
}

double now_s(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

uint64_t free_device_bytes(void) {
  gmm_device_info info = {.struct_size = sizeof info};
  OK(gmm_device_query(context, device, &info));
  return info.free_memory;
}

static void gate_wait(void *user) {
  gate *g = user;
  atomic_store(&g->entered, 1);
  double end = now_s() + g->seconds;
  while (atomic_load(&g->open) == 0 && now_s() < end) sleep_ms(1);
  atomic_store(&g->passed, 1);
}

void gate_close(gate *g, gmm_stream stream, double seconds) {
  atomic_store(&g->open, 0);
  atomic_store(&g->entered, 0);
  atomic_store(&g->passed, 0);
  g->seconds = seconds;
  OK(gmm_stream_call(context, stream, gate_wait, g));
}
