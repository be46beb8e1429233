// SPDX-License-Identifier: Apache-2.0
// Counters and snapshots of stats.h.
#include <glob.h>
#include <sys/resource.h>

#include "../support/gmm_test.h"

CASE(counters_add_up) {
  gmm_tag tags[3] = {GMM_TAG_DEFAULT, make_tag("x", GMM_CONTENTS_DROP), make_tag("y", GMM_CONTENTS_DROP)};
  enum { COUNT = 90 };
  void *blocks[COUNT];
  uint64_t live[3] = {0};
  uint32_t devices = device_count();
  for (unsigned i = 0; i < COUNT; ++i) {
    gmm_kind k = GMM_KIND_DEVICE + i % 4;
    if (!has_kind(k)) k = GMM_KIND_DEVICE;
    MUST(gmm_alloc(context, 1000 + i * 777,
                   DESC(alloc_desc, .kind = k, .device = (gmm_device)(i % devices), .tag = tags[i % 3]), &blocks[i]));
    live[i % 3] += 1000 + i * 777;
  }
  gmm_stats_info all = stats();
  CHECK_EQUAL(all.struct_size, sizeof all);
  CHECK_EQUAL(all.live_bytes, live[0] + live[1] + live[2]);
  CHECK(all.live_blocks == COUNT && all.live_tags == 3);
  CHECK(all.allocations == COUNT && all.frees == 0 && all.failures == 0);
  CHECK(all.reserved_bytes >= all.live_bytes && all.peak_reserved_bytes >= all.reserved_bytes &&
        all.peak_live_bytes >= all.live_bytes);
  CHECK(all.cached_bytes <= all.reserved_bytes - all.live_bytes);
  CHECK(all.extents > 0 && all.backend_calls > 0);
  // Whatever divides the context, the parts add up to it.
#define PARTS(of) \
  { of.live_bytes, of.live_blocks, of.reserved_bytes, of.cached_bytes, of.allocations, of.extents }
  const uint64_t whole[] = PARTS(all);
  for (uint32_t flags = 0; flags <= (GMM_SCOPE_DEVICE | GMM_SCOPE_TAG | GMM_SCOPE_KIND); ++flags) {
    uint64_t sums[6] = {0};
    for (unsigned t = 0; t < ((flags & GMM_SCOPE_TAG) != 0 ? 3 : 1); ++t)
      for (gmm_kind k = GMM_KIND_DEVICE; k <= ((flags & GMM_SCOPE_KIND) != 0 ? GMM_KIND_MANAGED : GMM_KIND_DEVICE); ++k)
        for (uint32_t d = 0; d < ((flags & GMM_SCOPE_DEVICE) != 0 ? devices : 1); ++d) {
          const gmm_stats_info s = stats_of(flags, (gmm_device)d, tags[t], k);
          if (flags == GMM_SCOPE_TAG) CHECK(s.live_bytes == live[t] && s.live_tags == 1);
          const uint64_t parts[] = PARTS(s);
          for (unsigned i = 0; i < 6; ++i) sums[i] += parts[i];
        }
    for (unsigned i = 0; i < 6; ++i)
      CHECK_MESSAGE(sums[i] == whole[i], "flags %u: the parts of number %u have %llu, the whole %llu", flags, i,
                    (unsigned long long)sums[i], (unsigned long long)whole[i]);
  }
  FREE_ALL(blocks, COUNT);
  all = stats();
  CHECK(all.live_blocks == 0 && all.live_bytes == 0 && all.frees == COUNT);
  CHECK_EQUAL(all.cached_bytes, all.reserved_bytes);
  CHECK(all.peak_live_bytes >= live[0] + live[1] + live[2]);
}

static int32_t stop_at_once(void *pieces, const char *text, uint64_t size) {
  (void)text, (void)size;
  return ++*(unsigned *)pieces;
}

// --- metrics ---------------------------------------------------------------------------------------------------------
// The value of the one sample with this name and with these labels among its own; -1: there is none, or a second one.
static double sample(const char *text, const char *name, const char *labels) {
  double value = -1;
  const size_t length = strlen(name);
  for (const char *line = text; *line != 0; line = strchr(line, '\n') + 1) {
    const char *end = strstr(line, "} "), *found = strstr(line, labels);
    if (strncmp(line, name, length) != 0 || line[length] != '{' || found == NULL || found > end) continue;
    if (value >= 0) return -1;
    value = strtod(end + 2, NULL);
  }
  return value;
}
// Checks a row of values that begins with a name and labels.
#define SAMPLES(...)                                                                                \
  do {                                                                                              \
    char *text = NULL;                                                                              \
    MUST(gmm_metrics_write(context, append_text, &text));                                           \
    const struct {                                                                                  \
      const char *name, *labels;                                                                    \
      uint64_t value;                                                                               \
    } wanted[] = {__VA_ARGS__};                                                                     \
    for (unsigned i = 0; i < sizeof wanted / sizeof *wanted; ++i) {                                 \
      const double value = sample(text, wanted[i].name, wanted[i].labels);                          \
      CHECK_MESSAGE(value == (double)wanted[i].value, "%s has %g, not %llu", wanted[i].name, value, \
                    (unsigned long long)wanted[i].value);                                           \
    }                                                                                               \
    free(text);                                                                                     \
  } while (0)

VMM_CASE(metrics_tell_what_happened) {
  const gmm_tag tag = make_tag("a \"tag\\", GMM_CONTENTS_HOST);
  const char *of_tag = "kind=\"vmm\",tag=\"a \\\"tag\\\\\"";
  const uint8_t *u = device_info.uuid;
  char uuid[64];
  snprintf(uuid, sizeof uuid, "UUID=\"GPU-%02x%02x%02x%02x-%02x%02x-", u[0], u[1], u[2], u[3], u[4], u[5]);
  FILLED_TAG(4 * MIB, tag, 1);
  FREE(ALLOC_TAG(1000, tag));
  const gmm_stats_info s = stats();
  set_limit(GMM_SCOPE_TAG, tag, s.reserved_bytes);
  void *none = NULL;
  RESULT(try_alloc(64 * MIB, tag, &none), GMM_ERROR_LIMIT_EXCEEDED);
  RESULT(gmm_resume(context, NULL, NULL), GMM_UNCHANGED);  // not counted
  SAMPLES({"gmm_live_bytes", of_tag, 4 * MIB}, {"gmm_live_bytes", uuid, 4 * MIB}, {"gmm_live_blocks", of_tag, 1},
          {"gmm_reserved_bytes", of_tag, stats().reserved_bytes}, {"gmm_cached_bytes", of_tag, stats().cached_bytes},
          {"gmm_paused_bytes", of_tag, 0}, {"gmm_kept_bytes", of_tag, 0}, {"gmm_allocations_total", of_tag, 2},
          {"gmm_frees_total", of_tag, 1}, {"gmm_out_of_memory_total", of_tag, 1}, {"gmm_copied_bytes_total", "", 0},
          {"gmm_pause_seconds_count", "", 0}, {"gmm_resume_seconds_count", "", 0});
  MUST(gmm_pause(context, NULL, NULL));
  SAMPLES({"gmm_live_bytes", of_tag, 4 * MIB}, {"gmm_reserved_bytes", of_tag, 0},
          {"gmm_paused_bytes", of_tag, stats().paused_bytes}, {"gmm_kept_bytes", of_tag, 4 * MIB},
          {"gmm_copied_bytes_total", "", 4 * MIB}, {"gmm_pause_seconds_count", "", 1},
          {"gmm_pause_seconds_bucket", "le=\"+Inf\"", 1}, {"gmm_pause_seconds_bucket", "le=\"10\"", 1},
          {"gmm_resume_seconds_count", "", 0});
  MUST(gmm_resume(context, NULL, NULL));
  SAMPLES({"gmm_resume_seconds_count", "", 1}, {"gmm_copied_bytes_total", "", 8 * MIB}, {"gmm_kept_bytes", of_tag, 0},
          {"gmm_lease_wait_seconds_count", "", 0});
  unsigned pieces = 0;
  RESULT(gmm_metrics_write(context, stop_at_once, &pieces), GMM_ERROR_IO);
  CHECK_EQUAL(pieces, 1);
}

// The text of the one file in the folder; NULL: another number of files.
static const char *file_of_metrics(const char *folder) {
  static char text[1 << 16], pattern[64];
  glob_t found = {0};
  snprintf(pattern, sizeof pattern, "%s/*", folder);
  FILE *file = glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc == 1 ? fopen(found.gl_pathv[0], "r") : NULL;
  globfree(&found);
  if (file == NULL) return NULL;
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  fclose(file);
  return text;
}

static void count_complaints(void *user, gmm_log_level level, const char *message) {
  *(unsigned *)user += level == GMM_LOG_WARNING && strstr(message, "GMM_METRICS=") != NULL;
}

CASE(metrics_go_to_a_folder) {
  char folder[] = "/tmp/gmm-metrics-XXXXXX", stale[64];
  REQUIRE(mkdtemp(folder) != NULL);
  snprintf(stale, sizeof stale, "%s/gmm-metrics-999999999-1-1.prom", folder);  // of a process that was killed
  fclose(fopen(stale, "w"));
  unsigned complaints = 0;
  const gmm_log_callback log = {count_complaints, &complaints};
  setenv("GMM_METRICS", folder, 1);
  gmm_context *with = OPEN(.log = log, .flags = GMM_CONTEXT_NO_LEAK_REPORT);
  const char *text = file_of_metrics(folder);
  CHECK(text != NULL && strstr(text, "# TYPE gmm_live_bytes gauge\n") != NULL);
  void *block = NULL;
  MUST(gmm_alloc(with, 12345, NULL, &block));
  OK(gmm_context_set_decommit(with, GMM_DECOMMIT_NEVER));
  SOON((text = file_of_metrics(folder)) != NULL && sample(text, "gmm_live_bytes", "") == 12345);
  OK(gmm_context_release(with));
  // A full disk, as a limit of the size of files tells it.
  struct rlimit most = {0}, none = {0};
  getrlimit(RLIMIT_FSIZE, &most);
  none.rlim_max = most.rlim_max;
  setrlimit(RLIMIT_FSIZE, &none);
  CHECK_EQUAL(complaints, 0);
  with = OPEN(.log = log);
  setrlimit(RLIMIT_FSIZE, &most);
  CHECK_EQUAL(complaints, 1);
  OK(gmm_context_release(with));
  CHECK(rmdir(folder) == 0);  // nothing is left
  with = OPEN(.log = log);
  CHECK_EQUAL(complaints, 2);
  OK(gmm_context_release(with));
  unsetenv("GMM_METRICS");
}

// --- snapshot --------------------------------------------------------------------------------------------------------
CASE(snapshots_are_written) {
  const char *odd = "a \"quoted\\ name\twith\n\x01 things \xc3\xbc";
  const gmm_tag tag = make_tag(odd, GMM_CONTENTS_DROP);
  void *block = NULL;
  for (unsigned i = 0; i < 50; ++i) {
    kind = has_kind(GMM_KIND_DEVICE + i % 4) ? GMM_KIND_DEVICE + i % 4 : GMM_KIND_DEVICE;
    block = ALLOC_TAG(1234 + i * 1000, i % 2 ? tag : GMM_TAG_DEFAULT);
  }
  OK(gmm_name(context, block, odd));
  RESULT(gmm_pause(context, NULL, NULL), has_kind(GMM_KIND_VMM) ? GMM_OK : GMM_UNCHANGED);
  char *text = snapshot_text(), address[32];
  snprintf(address, sizeof address, "%llx", (unsigned long long)(uintptr_t)block);
  const char *const parts[] = {"\"gmm-snapshot\"",
                               "\"version\"",
                               "\"devices\":[{\"device\":0,\"uuid\":\"",
                               address,
                               "50234",  // the size of the block
                               "\"name\":\"a \\\"quoted"};
  for (unsigned i = 0; i < sizeof parts / sizeof *parts; ++i)
    CHECK_MESSAGE(strstr(text, parts[i]) != NULL, "the snapshot has no %s", parts[i]);
  unsigned pieces = 0;
  RESULT(write_snapshot(context, stop_at_once, &pieces), GMM_ERROR_IO);
  CHECK_EQUAL(pieces, 1);
  free(text);
  RESULT(gmm_resume(context, NULL, NULL), has_kind(GMM_KIND_VMM) ? GMM_OK : GMM_UNCHANGED);
}

// A copy: it stays as it was, is read by index, and asks nothing of the heaps.
static bool lies_in_an_extent(gmm_snapshot *snapshot, const gmm_block_info *block) {
  gmm_snapshot_info info = {.struct_size = sizeof info};
  OK(gmm_snapshot_query(snapshot, &info));
  for (uint64_t i = 0; i < info.extent_count; ++i) {
    gmm_extent_info extent = {.struct_size = sizeof extent};
    OK(gmm_snapshot_query_extent(snapshot, i, &extent));
    CHECK(extent.kind == block->kind && extent.tag == block->tag && extent.device == block->device);
    CHECK(extent.state == block->state && extent.importers == 0 && extent.heap == block->heap);
    const uint64_t at = (uint64_t)((char *)block->address - (char *)extent.address);
    if (at < extent.size && block->size <= extent.size - at) return true;
  }
  return false;
}

CASE(snapshots_are_read_by_index) {
  const gmm_tag tag = make_tag("in a snapshot", GMM_CONTENTS_DROP);
  gmm_heap *heap = HEAP();
  gmm_snapshot *all = NULL, *of_tag = NULL;
  void *blocks[20], *own = take_of(heap, 700);
  for (unsigned i = 0; i < 20; ++i) blocks[i] = ALLOC_TAG(1000 + i, tag);
  MUST(gmm_snapshot_create(context, NULL, &all));
  const gmm_scope_desc scope = scope_of(GMM_SCOPE_TAG, 0, tag, 0);
  MUST(gmm_snapshot_create(context, &scope, &of_tag));
  const gmm_stats_info s = stats();
  FREE_ALL(blocks, 20);
  gmm_snapshot_info info = {.struct_size = sizeof info};
  OK(gmm_snapshot_query(all, &info));
  CHECK_EQUAL(info.backend, backend_id());
  CHECK_EQUAL(info.block_count, 21);
  CHECK_EQUAL(info.live_bytes, s.live_bytes);
  CHECK_EQUAL(info.extent_count, s.extents);
  CHECK(info.heap_count >= 2);
  OK(gmm_snapshot_query(of_tag, &info));
  CHECK_EQUAL(info.block_count, 20);
  unsigned seen = 0;
  for (uint64_t i = 0; i < 20; ++i) {
    gmm_block_info block = {.struct_size = sizeof block};
    OK(gmm_snapshot_query_block(of_tag, i, &block));
    for (unsigned k = 0; k < 20; ++k)
      if (block.address == blocks[k]) {
        seen |= 1u << k;
        CHECK_EQUAL(block.size, 1000 + k);
        CHECK(block.reserved_size >= block.size);
      }
    CHECK(block.kind == kind && block.tag == tag && block.state == GMM_STATE_ACTIVE && block.heap == NULL);
    CHECK_EQUAL(block.name[0], 0);
    CHECK(lies_in_an_extent(of_tag, &block));
  }
  CHECK_EQUAL(seen, 0xfffff);
  bool found = false;
  for (uint64_t i = 0; i < 21; ++i) {
    gmm_block_info block = {.struct_size = sizeof block};
    OK(gmm_snapshot_query_block(all, i, &block));
    if (block.address == own) found = block.heap == heap && block.size == 700;
  }
  CHECK(found);
  OK(gmm_snapshot_destroy(all));
  OK(gmm_snapshot_destroy(of_tag));
}

// --- names -----------------------------------------------------------------------------------------------------------
// The name of a block in a snapshot; NULL: the snapshot does not have the block.
static const char *name_of(const void *memory) {
  static gmm_block_info block;
  gmm_snapshot *snapshot = NULL;
  gmm_snapshot_info info = {.struct_size = sizeof info};
  MUST(gmm_snapshot_create(context, NULL, &snapshot));
  OK(gmm_snapshot_query(snapshot, &info));
  bool found = false;
  for (uint64_t i = 0; i < info.block_count && !found; ++i) {
    memset(&block, 0, sizeof block);
    block.struct_size = sizeof block;
    OK(gmm_snapshot_query_block(snapshot, i, &block));
    found = block.address == memory;
  }
  OK(gmm_snapshot_destroy(snapshot));
  return found ? block.name : NULL;
}
#define CHECK_NAME(memory, expected)                                                                              \
  do {                                                                                                            \
    const char *got = name_of(memory);                                                                            \
    CHECK_MESSAGE(got != NULL && strcmp(got, expected) == 0, "the name is \"%s\"", got == NULL ? "(none)" : got); \
  } while (0)

CASE_OF_KINDS(names_go_with_their_blocks, ALL_KINDS) {
  const char *longest = "63 bytes: \xe2\x82\xac 0123456789012345678901234567890123456789012345678";
  REQUIRE(strlen(longest) == 63);
  gmm_heap *heap = HEAP();
  char *small = ALLOC(5000), *large = ALLOC(3 * MIB), *own = take_of(heap, 700);
  CHECK_NAME(small, "");
  OK(gmm_name(context, small, "small"));
  OK(gmm_name(context, large + MIB, longest));
  OK(gmm_name(context, own, "small"));  // a second one of this name
  CHECK_NAME(small, "small");
  CHECK_NAME(large, longest);
  CHECK_NAME(own, "small");
  OK(gmm_name(context, large, "other"));
  RESULT(gmm_name(context, large, "no text: \xff"), GMM_ERROR_INVALID_VALUE);
  CHECK_NAME(large, "other");
  OK(gmm_name(context, own, NULL));
  OK(gmm_name(context, own, NULL));
  CHECK_NAME(own, "");
  CHECK_EQUAL(query(small).size, 5000);
  if (kind == GMM_KIND_VMM) {
    OK(gmm_pause(context, NULL, NULL));
    CHECK_NAME(small, "small");
    OK(gmm_name(context, large, longest));
    OK(gmm_resume(context, NULL, NULL));
    CHECK_NAME(large, longest);
  }
  // The next block in the memory has no name.
  FREE(small);
  CHECK(ALLOC(5000) == small);
  CHECK_NAME(small, "");
  OK(gmm_name(context, small, "again"));
  OK(gmm_reset(context));
  small = ALLOC(5000);
  large = ALLOC(3 * MIB);
  CHECK_NAME(small, "");
  CHECK_NAME(large, "");
}

// --- the report of leaks ---------------------------------------------------------------------------------------------
enum { MOST_LINES = 64 };
static struct {
  unsigned count;
  char lines[MOST_LINES][256];
} heard;
static void hear_warnings(void *user, gmm_log_level level, const char *message) {
  (void)user;
  if (level != GMM_LOG_WARNING || heard.count == MOST_LINES) return;
  snprintf(heard.lines[heard.count++], sizeof heard.lines[0], "%s", message);
}
static gmm_context *open_heard(uint32_t flags) {
  gmm_context *opened = OPEN(.flags = flags, .log = {hear_warnings, NULL});
  memset(&heard, 0, sizeof heard);
  return opened;
}
static void *leak(gmm_context *of, uint64_t size, gmm_kind k, gmm_tag tag, const char *name) {
  void *block = NULL;
  MUST(gmm_alloc(of, size, DESC(alloc_desc, .kind = k, .tag = tag), &block));
  if (name != NULL) OK(gmm_name(of, block, name));
  return block;
}
#define CHECK_LINE(number, expected) \
  CHECK_MESSAGE(strcmp(heard.lines[number], expected) == 0, "line %u: %s", (unsigned)(number), heard.lines[number])

CASE(leaks_are_reported) {
  gmm_context *of = open_heard(0);
  gmm_tag tag = 0;
  OK(gmm_tag_create(of, "layers", NULL, &tag));
  for (unsigned i = 0; i < 3; ++i) leak(of, 4000, GMM_KIND_DEVICE, GMM_TAG_DEFAULT, NULL);
  for (unsigned i = 0; i < 2; ++i) leak(of, 4000, GMM_KIND_DEVICE, GMM_TAG_DEFAULT, "activations");
  for (unsigned i = 0; i < 2; ++i) leak(of, 2 * MIB, GMM_KIND_HOST, tag, "weights");
  OK(gmm_free(of, leak(of, 4000, GMM_KIND_DEVICE, GMM_TAG_DEFAULT, "freed"), GMM_STREAM_DEFAULT));
  OK(gmm_context_release(of));
  CHECK_EQUAL(heard.count, 4);
  CHECK_LINE(0, "Leak: 2 x 2097152 bytes of HOST memory on device 0, tag \"layers\", name \"weights\".");
  CHECK_LINE(1, "Leak: 3 x 4000 bytes of DEVICE memory on device 0, tag \"default\".");
  CHECK_LINE(2, "Leak: 2 x 4000 bytes of DEVICE memory on device 0, tag \"default\", name \"activations\".");
  CHECK_LINE(3,
             "Leaks: the context ends, and 7 blocks of 4214304 bytes in all are live; free them before, or set "
             "GMM_CONTEXT_NO_LEAK_REPORT.");
}

CASE(no_leak_is_no_line) {
  gmm_context *of = open_heard(0);
  void *block = leak(of, 4000, GMM_KIND_DEVICE, GMM_TAG_DEFAULT, "freed");
  OK(gmm_free(of, block, GMM_STREAM_DEFAULT));
  OK(gmm_context_release(of));
  CHECK_EQUAL(heard.count, 0);
  of = open_heard(GMM_CONTEXT_NO_LEAK_REPORT);
  leak(of, 4000, GMM_KIND_DEVICE, GMM_TAG_DEFAULT, "kept");
  OK(gmm_context_release(of));
  CHECK_EQUAL(heard.count, 0);
}

// However many groups there are, the report has few lines, and the largest groups are in it.
CASE(the_report_is_bounded) {
  enum { GROUPS = 5000 };
  gmm_context *of = open_heard(0);
  char name[32];
  uint64_t bytes = 0;
  for (unsigned i = 0; i < GROUPS; ++i) {
    const uint64_t size = 256 + (i * 2741u) % GROUPS;  // each once, in no order
    snprintf(name, sizeof name, "block %u", i);
    leak(of, size, GMM_KIND_DEVICE, GMM_TAG_DEFAULT, name);
    bytes += size;
  }
  OK(gmm_context_release(of));
  CHECK_EQUAL(heard.count, 33);
  for (unsigned i = 0; i < 32; ++i) {
    snprintf(name, sizeof name, "Leak: 1 x %u bytes", 256 + GROUPS - 1 - i);
    CHECK_MESSAGE(strncmp(heard.lines[i], name, strlen(name)) == 0, "line %u: %s", i, heard.lines[i]);
  }
  char sum[64];
  snprintf(sum, sizeof sum, "and 5000 blocks of %llu bytes in all", (unsigned long long)bytes);
  CHECK_MESSAGE(strstr(heard.lines[32], sum) != NULL, "%s", heard.lines[32]);
}

int main(void) { return run_cases(); }
