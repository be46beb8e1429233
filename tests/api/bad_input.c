// SPDX-License-Identifier: Apache-2.0
// Each row of bad_input.def is a call with bad input, its exact result, and words of which the message must hold one.
// The test fails when a row changed a counter, a block, or an output; but outputs that are pointers must be NULL then.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sys/mman.h>

#include "../support/gmm_test.h"

// The outputs of the rows. `marked` is compared with a copy after each row.
static struct {
  void *pointer;
  gmm_context *context;
  gmm_heap *heap;
  gmm_stream stream;
  gmm_event *event;
  gmm_ticket *ticket;
  gmm_snapshot *snapshot;
  gmm_watcher *watcher;
  gmm_lease *lease;
  gmm_tag tag;
  uint64_t bytes;
  gmm_ipc_handle handle;
  gmm_ipc_legacy_info legacy;
  gmm_ipc_fd_info file;
  gmm_context_info context_info;
  gmm_device_info device_info;
  gmm_pointer_info pointer_info;
  gmm_tag_info tag_info;
  gmm_stats_info statistics;
  gmm_ticket_info ticket_info;
  gmm_snapshot_info snapshot_info;
  gmm_block_info block_info;
  gmm_extent_info extent_info;
  gmm_compact_info compacted;
  gmm_lease_info lease_info;
  gmm_lease_entry_info entry;
  gmm_published_info published;
  gmm_backup_info backup_info;
} marked, marked_before;

static char *block;  // live, kind VMM where the device has it, 5,000 bytes
static char *device_block;
static char *managed;  // 5,000 bytes, or NULL
static char *freed;
static char *paused;  // under paused_tag
static gmm_tag tag, paused_tag;
static gmm_stream stream;
static gmm_stream dead_stream;
static gmm_heap *heap;
static gmm_event *event;
static gmm_snapshot *snapshot;
static gmm_ticket *ticket;
static gmm_lease *lease;
static gmm_watcher *watcher;
static uint8_t own[64 * 1024];
static char bytes[10000];
static char long_text[5000];
static gmm_ipc_handle garbage;
static uint64_t wild[64];
static gmm_tag unknown_tags[2];

static const uint32_t some_user = 65534;

// Made once; they end with the process.
static int32_t a_pipe(void) {
  static int ends[2] = {-1, -1};
  if (ends[0] < 0 && pipe(ends) != 0) exit(99);
  return ends[0];
}
static int32_t a_memory_file(void) {
  static int fd = -1;
  if (fd < 0) {
    fd = memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, 8192) != 0) exit(99);
  }
  return fd;
}

static gmm_result create_without_sycl(gmm_context **out) {
  const char *was = getenv("GMM_SYCL_LIBRARY");
  char copy[4096];
  snprintf(copy, sizeof copy, "%s", was != NULL ? was : "");
  setenv("GMM_SYCL_LIBRARY", "/nonexistent/libDPCTLSyclInterface.so", 1);
  const gmm_result result = gmm_context_create(DESC(context_desc, .backend = GMM_BACKEND_SYCL), out);
  if (was != NULL)
    setenv("GMM_SYCL_LIBRARY", copy, 1);
  else
    unsetenv("GMM_SYCL_LIBRARY");
  return result;
}

typedef struct newer_alloc {
  gmm_alloc_desc desc;
  uint8_t tail[24];
} newer_alloc;
typedef struct newer_scope {
  gmm_scope_desc scope;
  uint8_t tail[8];
} newer_scope;

#define WATCH_WITH(...) DESC(watch_desc, .callback = {ignore_watch, NULL}, __VA_ARGS__)
#define OUT (&marked.pointer)

enum {
  PLAIN_ROW = 0,
  NEEDS_HOST = 1,
  NEEDS_MANAGED = 2,
  NEEDS_VMM = 4,
  WANTS_MEMORY = 8,
  NEEDS_GPU = 16,
  NEEDS_FILES = 32
};
#define SIZE_BEYOND ((uint64_t)1 << 62)

typedef struct row {
  const char *name, *text, *words;
  gmm_result (*call)(int mistake);
  gmm_result expected;
  int needs;
  bool has_mistakes;
} row;

// The words of MISTAKES. Any other word names an argument that is NULL.
static const struct {
  const char *word;
  gmm_result expected;
  const char *message;  // holds one of these
} mistakes[] = {{"struct_size", GMM_ERROR_INVALID_DESCRIPTOR, "3|struct_size"},
                {"flags", GMM_ERROR_INVALID_FLAGS, "80000000|2147483648"},
                {"reserved", GMM_ERROR_INVALID_DESCRIPTOR, "reserved"},
                {"device", GMM_ERROR_INVALID_DEVICE, "99"},
                {"tag", GMM_ERROR_INVALID_TAG, "3993"},
                {"kind", GMM_ERROR_INVALID_KIND, "77"},
                {"GMM_SCOPE_DEVICE", GMM_ERROR_INVALID_DESCRIPTOR, "GMM_SCOPE_DEVICE"},
                {"GMM_SCOPE_TAG", GMM_ERROR_INVALID_DESCRIPTOR, "GMM_SCOPE_TAG"},
                {"GMM_SCOPE_KIND", GMM_ERROR_INVALID_DESCRIPTOR, "GMM_SCOPE_KIND"},
                {"unknown", GMM_ERROR_UNKNOWN_POINTER, ""},
                {"foreign", GMM_ERROR_UNKNOWN_POINTER, "0x"},
                {"freed", GMM_ERROR_ALREADY_FREED, "0x"}};
#define P(at, argument) (mistake == (at) ? NULL : (argument))
// An output: NULL, then too small.
#define INFO(at, type, output) (mistake == (at) + 1 ? &(gmm_##type){.struct_size = 3} : P(at, output))
// A descriptor: too small, then with a flag that nobody knows, then with a reserved field that is set.
#define D1(at, type) (mistake == (at) ? &(gmm_##type){.struct_size = 3} : DESC(type))
#define D2(at, type) (mistake == (at) + 1 ? DESC(type, .flags = 1u << 31) : D1(at, type))
#define D3(at, type) (mistake == (at) + 2 ? DESC(type, .reserved = 1) : D2(at, type))
// A pause's descriptor: as D2, then without its tags, then with an unknown one.
#define TAGS_WORDS "struct_size|flags|tags|tag"
#define TAGS(at)                                                                  \
  (mistake == (at) + 2   ? DESC(pause_desc, .tag_count = 2)                       \
   : mistake == (at) + 3 ? DESC(pause_desc, .tags = unknown_tags, .tag_count = 2) \
                         : D2(at, pause_desc))
// A scope, with each mistake.
#define SCOPE_WORDS "struct_size|flags|reserved|device|tag|GMM_SCOPE_DEVICE|GMM_SCOPE_TAG"
enum { SCOPES = 9 };
static const gmm_scope_desc *scope_with(int which) {
  static gmm_scope_desc scopes[SCOPES];
  gmm_scope_desc *const scope = &scopes[which];
  *scope = *DESC(scope_desc, .flags = which == 3 ? GMM_SCOPE_DEVICE : which == 4 ? GMM_SCOPE_TAG : 0);
  if (which == 0) scope->struct_size = 3;
  if (which == 1) scope->flags = 1u << 31;
  if (which == 2) scope->reserved = 1;
  if (which == 3 || which == 5) scope->device = 99;
  if (which == 4 || which == 6) scope->tag = 3993;
  if (which >= 7) scope->kind = 77;
  if (which == 8) scope->flags = GMM_SCOPE_KIND;
  return scope;
}
#define SCOPE(at) (mistake >= (at) && mistake < (at) + SCOPES ? scope_with(mistake - (at)) : NULL)
// Memory of nobody, then freed memory.
#define MEMORY(at, pointer) (mistake == (at) ? bytes : mistake == (at) + 1 ? freed : (pointer))

#define X(name, needs, expected, words, call) \
  static gmm_result row_##name(int mistake) { return (void)mistake, call; }
#define MISTAKES(name, needs, words, call) X(name, needs, , words, call)
#include "bad_input.def"
#undef X
#undef MISTAKES
#define X(name, needs, expected, words, call) {#name, #call, words, row_##name, GMM_ERROR_##expected, needs, false},
#define MISTAKES(name, needs, words, call) {#name, #call, words, row_##name, GMM_OK, needs, true},
static const row rows[] = {
#include "bad_input.def"
};
#undef X
#undef MISTAKES

static bool has_one_of(const char *message, const char *words) {
  char copy[200];
  snprintf(copy, sizeof copy, "%s", words);
  if (copy[0] == 0) return true;
  for (char *word = strtok(copy, "|"); word != NULL; word = strtok(NULL, "|"))
    if (strstr(message, word) != NULL) return true;
  return false;
}

// The outputs that are pointers, by how a row names them.
static const struct {
  const char *text;
  void *output;
} pointers[] = {{"OUT)", &marked.pointer},
                {"&marked.context)", &marked.context},
                {"&marked.heap)", &marked.heap},
                {"&marked.stream)", &marked.stream},
                {"&marked.event)", &marked.event},
                {"&marked.ticket)", &marked.ticket},
                {"&marked.snapshot)", &marked.snapshot},
                {"&marked.watcher)", &marked.watcher},
                {"&marked.lease)", &marked.lease}};

static void expect_null_pointers(const char *text) {
  for (unsigned i = 0; i < sizeof pointers / sizeof *pointers; ++i) {
    const size_t offset = (size_t)((char *)pointers[i].output - (char *)&marked);
    if (strstr(text, pointers[i].text) != NULL) memset((char *)&marked_before + offset, 0, sizeof(void *));
  }
}

static const row *current;
static void run_call(int mistake, gmm_result expected, const char *words, bool writes_null) {
  memcpy(&marked_before, &marked, sizeof marked);
  gmm_stats_info before = stats();
  gmm_result result = current->call(mistake);
  char message[1024];
  snprintf(message, sizeof message, "%s", gmm_last_error_message());
  CHECK_MESSAGE(result == expected, "%s, mistake %d, gave %s, expected %s: %s", current->text, mistake,
                gmm_result_name(result), gmm_result_name(expected), result < 0 ? message : "");
  CHECK_MESSAGE(strlen(message) >= 20, "the message says too little: \"%s\"", message);
  CHECK_MESSAGE(has_one_of(message, words), "the message of %s does not say \"%s\": %s", current->text, words, message);
  const __typeof__(marked) unwritten = marked_before;
  if (writes_null) expect_null_pointers(current->text);
  CHECK_MESSAGE(memcmp(&marked_before, &marked, sizeof marked) == 0, "%s left an output that is wrong", current->text);
  memcpy(&marked, &unwritten, sizeof marked);
  gmm_stats_info after = stats();
  if (current->needs & WANTS_MEMORY) {  // cached memory goes back before an allocation fails
    CHECK_EQUAL(after.failures, before.failures + 1);
    CHECK_EQUAL(after.live_bytes, before.live_bytes);
    CHECK_EQUAL(after.live_blocks, before.live_blocks);
    CHECK(after.reserved_bytes <= before.reserved_bytes);
    before = after;
  }
  CHECK_MESSAGE(memcmp(&before, &after, sizeof before) == 0, "%s changed a counter", current->text);
  CHECK_EQUAL(query(block).state, GMM_STATE_ACTIVE);
  CHECK_EQUAL(query(block).size, 5000);
}

static void run_row(void) {
  if ((current->needs & NEEDS_HOST) && !on_host_backend()) SKIP("a driver crashes on a wild stream");
  if ((current->needs & NEEDS_GPU) && on_host_backend()) SKIP("the host backend can do it");
  if ((current->needs & NEEDS_MANAGED) && managed == NULL) SKIP("the device has no managed memory");
  if ((current->needs & NEEDS_VMM) && !has_kind(GMM_KIND_VMM)) SKIP("the device has no VMM memory");
  if ((current->needs & NEEDS_FILES) && (device_info.capabilities & GMM_DEVICE_CAN_EXPORT_FD) == 0)
    SKIP("the device shares no memory as files");
  if (!current->has_mistakes) {
    run_call(-1, current->expected, current->words, true);
    return;
  }
  char words[160];
  snprintf(words, sizeof words, "%s", current->words);
  int at = 0;
  char *rest = NULL;
  for (char *word = strtok_r(words, "|", &rest); word != NULL; word = strtok_r(NULL, "|", &rest)) {
    gmm_result expected = GMM_ERROR_NULL_ARGUMENT;
    const char *message = word;
    for (unsigned i = 0; i < sizeof mistakes / sizeof *mistakes; ++i) {
      if (strcmp(mistakes[i].word, word) != 0) continue;
      expected = mistakes[i].expected;
      message = mistakes[i].message;
    }
    run_call(at++, expected, message, strcmp(word, "out") != 0);
  }
}

// Calls without a mistake that name an object of the parent, and those that end one, for which NULL is none.
static int calls_in_a_child(void *unused) {
  (void)unused;
  int wrong = 0;
  for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    if (!rows[i].has_mistakes || strncmp(rows[i].words, "out", 3) == 0) continue;
    const gmm_result result = rows[i].call(-1);
    if (result == GMM_ERROR_FORKED && message_has("fork")) continue;
    printf("# in a child %s gave %s: %s\n", rows[i].text, gmm_result_name(result), gmm_last_error_message());
    ++wrong;
  }
  const gmm_result ends[] = {gmm_heap_destroy(heap),      gmm_event_destroy(event), gmm_snapshot_destroy(snapshot),
                             gmm_ticket_destroy(ticket),  gmm_lease_destroy(lease), gmm_watcher_destroy(watcher),
                             gmm_context_release(context)};
  for (unsigned i = 0; i < sizeof ends / sizeof *ends; ++i) wrong += ends[i] != GMM_ERROR_FORKED;
  return wrong != 0;
}
static void a_forked_child_is_refused(void) {
  CHECK_EQUAL(in_child(calls_in_a_child, NULL), 0);
  CHECK_PATTERN(block, 5000, 7);
}

static void odd_input_that_is_right(void) {
  OK(gmm_context_release(NULL));
  OK(gmm_free(context, NULL, stream));
  OK(gmm_heap_destroy(NULL));
  OK(gmm_event_destroy(NULL));
  OK(gmm_snapshot_destroy(NULL));
  void *memory = NULL;
  OK(gmm_alloc(context, 100, &(newer_alloc){.desc.struct_size = sizeof(newer_alloc)}.desc,
               &memory));  // a newer program's descriptor
  OK(gmm_free(context, memory, stream));
  gmm_pointer_info info = {.struct_size = sizeof info};
  OK(gmm_query(context, NULL, &info));
  CHECK_EQUAL(info.state, GMM_STATE_UNKNOWN);
  OK(gmm_copy(context, block, bytes, 0, stream));
  OK(gmm_copy(context, NULL, NULL, 0, stream));
  uint64_t back = 9;
  gmm_pause_desc desc = one_tag(&paused_tag);
  if (has_kind(GMM_KIND_VMM)) {
    RESULT(gmm_pause(context, &desc, &back), GMM_UNCHANGED);
    CHECK_EQUAL(back, 0);
    OK(gmm_resume(context, &desc, NULL));
    back = 9;
    RESULT(gmm_resume(context, &desc, &back), GMM_UNCHANGED);
    CHECK_EQUAL(back, 0);
    CHECK_PATTERN(paused, 5000, 8);
  }
}

static void after_all_that_everything_works(void) {
  CHECK_PATTERN(block, 5000, 7);
  OK(gmm_free(context, block, stream));
  OK(gmm_free(context, device_block, stream));
  if (managed != NULL) OK(gmm_free(context, managed, stream));
  if (paused != NULL) OK(gmm_free(context, paused, stream));
  CHECK_EQUAL(stats().live_blocks, 1);  // the heap's
  OK(gmm_reset(context));
  OK(gmm_heap_destroy(heap));
  OK(gmm_snapshot_destroy(snapshot));
  OK(gmm_ticket_destroy(ticket));
  OK(gmm_lease_destroy(lease));
  OK(gmm_watcher_destroy(watcher));
  OK(gmm_event_destroy(event));
  OK(gmm_stream_destroy(context, stream));
  CHECK_EQUAL(stats().reserved_bytes, 0);
}

static void prepare(void) {
  memset(&marked, 0x5a, sizeof marked);
  memset(long_text, 'x', sizeof long_text - 1);
#define SIZE_OF(name) \
  { &marked.name.struct_size, sizeof marked.name }
  const struct {
    uint32_t *field, size;
  } sizes[] = {SIZE_OF(legacy),        SIZE_OF(file),       SIZE_OF(context_info), SIZE_OF(device_info),
               SIZE_OF(pointer_info),  SIZE_OF(tag_info),   SIZE_OF(statistics),   SIZE_OF(ticket_info),
               SIZE_OF(snapshot_info), SIZE_OF(block_info), SIZE_OF(extent_info),  SIZE_OF(compacted),
               SIZE_OF(lease_info),    SIZE_OF(entry),      SIZE_OF(backup_info),  SIZE_OF(published)};
  for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; ++i) *sizes[i].field = sizes[i].size;
  for (unsigned i = 0; i < sizeof garbage.bytes; ++i) garbage.bytes[i] = (uint8_t)(i * 37 + 11);
  kind = has_kind(GMM_KIND_VMM) ? GMM_KIND_VMM : GMM_KIND_DEVICE;
  MUST(gmm_stream_create(context, NULL, &stream));
  MUST(gmm_stream_create(context, NULL, &dead_stream));
  MUST(gmm_stream_destroy(context, dead_stream));
  MUST(gmm_event_create(context, NULL, &event));
  MUST(gmm_heap_create(context, DESC(heap_desc, .kind = GMM_KIND_DEVICE), &heap));
  void *of_heap = NULL;
  MUST(gmm_heap_alloc(heap, 100, 0, 0, stream, &of_heap));
  tag = make_tag("live", GMM_CONTENTS_DROP);
  paused_tag = make_tag("paused", GMM_CONTENTS_HOST);
  unknown_tags[0] = tag;
  unknown_tags[1] = 3993;
  REQUIRE((block = ALLOC_TAG(5000, tag)) != NULL);
  write_pattern(block, 5000, 7, GMM_STREAM_DEFAULT);
  if (has_kind(GMM_KIND_VMM)) {
    REQUIRE((paused = ALLOC_TAG(5000, paused_tag)) != NULL);
    write_pattern(paused, 5000, 8, GMM_STREAM_DEFAULT);
    MUST(gmm_pause(context, DESC(pause_desc, .tags = &paused_tag, .tag_count = 1), NULL));
  }
  MUST(gmm_alloc(context, 5000, DESC(alloc_desc, .kind = GMM_KIND_DEVICE), (void **)&device_block));
  if (has_kind(GMM_KIND_MANAGED))
    MUST(gmm_alloc(context, 5000, DESC(alloc_desc, .kind = GMM_KIND_MANAGED), (void **)&managed));
  REQUIRE((freed = ALLOC_TAG(700, tag)) != NULL);
  FREE(freed);
  MUST(gmm_snapshot_create(context, NULL, &snapshot));
  const gmm_tag nothing_paused = tag;
  MUST(gmm_resume_async(context, DESC(pause_desc, .tags = &nothing_paused, .tag_count = 1), &ticket));
  CHECK(gmm_ticket_wait(ticket, GMM_FOREVER, NULL) >= 0);
  MUST(gmm_lease_create(context, DESC(lease_desc, .name = "bad_input"), &lease));
  MUST(gmm_watch(context, WATCH_WITH(.events = GMM_WATCH_FAILED), &watcher));
}

int main(void) {
  a_pipe();
  a_memory_file();
  context = open_context(2);
  read_device(0);
  RUN(prepare);
  if (check_state.failed > 0) return finish_clean();
  for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    current = &rows[i];
    check_run(current->name, run_row);
  }
  RUN(a_forked_child_is_refused);
  RUN(odd_input_that_is_right);
  RUN(after_all_that_everything_works);
  if (gmm_context_release(context) != GMM_OK) return 1;
  return finish_clean();
}
