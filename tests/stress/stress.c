// SPDX-License-Identifier: Apache-2.0
// Random stress. Threads take, write, read, share, hand over and free blocks of all kinds, sizes, streams and tags.
// Others pause and resume, trim, count, limit, ask, fork, and end with full caches. On the fake driver a thread makes
// driver calls fail.
//
//  stress [SEED [SECONDS [THREADS]]]      defaults: a seed from the clock, 10, 4
//
// The test runs in rounds. In a round every thread follows its own random numbers, made from the seed. Between rounds
// all threads stand still. Then gmm's counters, the model (model.h) and the bytes that the driver has given out
// (driver_view.h) must agree. In some rounds the test frees everything, and nothing may be left. STRESS_ROLES names the
// threads beside the workers, separated by commas.

#include "roles.h"

#if CHECK_SANITIZED
void __sanitizer_set_death_callback(void (*callback)(void));
#endif

enum { ROUND_OPERATIONS = 150, STUCK_AFTER_S = 240 };

static double seconds = 10;
static unsigned worker_count = 4;
static pthread_barrier_t round_begins, round_ends;
static atomic_int over;
static bool faulty_round;
static driver_view at_start, when_empty;
static unsigned rounds, empty_rounds, faulty_rounds;
static atomic_uint beat;

static const struct {
  const char *name;
  void (*round)(void);
} roles[] = {{"pauser", pauser_round},   {"second pauser", pauser_round}, {"reader", reader_round},
             {"limiter", limiter_round}, {"asker", asker_round},          {"spawner", spawner_round},
             {"forker", forker_round},   {"faulter", faulter_round}};

static void *run_worker(void *argument) {
  self = argument;
  for (;;) {
    pthread_barrier_wait(&round_begins);
    if (atomic_load(&over)) return NULL;
    worker_round(held[self->index - 1], ROUND_OPERATIONS + (unsigned)below(ROUND_OPERATIONS));
    atomic_fetch_sub(&working, 1);
    pthread_barrier_wait(&round_ends);
  }
}
static void *run_other(void *argument) {
  self = argument;
  unsigned role = 0;
  while (strcmp(roles[role].name, self->role) != 0) ++role;
  for (;;) {
    pthread_barrier_wait(&round_begins);
    if (atomic_load(&over)) return NULL;
    if (roles[role].round != faulter_round || faulty_round) roles[role].round();
    pthread_barrier_wait(&round_ends);
  }
}

// A round that does not end is a deadlock: says so, with what everybody did last.
static void *watch(void *unused) {
  (void)unused;
  for (unsigned seen_beat = 0, still = 0; !atomic_load(&over); sleep_ms(100)) {
    unsigned now = atomic_load(&beat);
    still = now == seen_beat ? still + 1 : 0;
    seen_beat = now;
    if (still < STUCK_AFTER_S * 10) continue;
    printf("# round %u has not ended for %d seconds\n", rounds, STUCK_AFTER_S);
    print_last_operations();
    abort();
  }
  return NULL;
}

// --- between rounds ----------------------------------------------------------------------------------------------
typedef struct sum {
  uint64_t bytes, blocks;
} sum;
static sum live_of[5][TAGS];

static void for_each_block(void (*function)(block *)) {
  for (unsigned w = 0; w < worker_count; ++w)
    for (unsigned i = 0; i < SLOTS; ++i)
      if (held[w][i].memory != NULL) function(&held[w][i]);
  for (unsigned i = 0; i < exchange.count; ++i)
    if (exchange.blocks[i].memory != NULL) function(&exchange.blocks[i]);
}
static void add_up(block *b) {
  live_of[b->kind][b->tag].bytes += b->size;
  ++live_of[b->kind][b->tag].blocks;
  settle(b);
}

static void compare(const char *what, gmm_stats_info s, sum expected_sum) {
  CHECK_MESSAGE(s.live_bytes == expected_sum.bytes && s.live_blocks == expected_sum.blocks,
                "%s: gmm counts %llu bytes in %llu blocks, the model %llu in %llu", what,
                (unsigned long long)s.live_bytes, (unsigned long long)s.live_blocks,
                (unsigned long long)expected_sum.bytes, (unsigned long long)expected_sum.blocks);
}
static void compare_counters(void) {
  memset(live_of, 0, sizeof live_of);
  for_each_block(add_up);
  sum all = {0, 0}, of_tag[TAGS] = {{0, 0}};
  char what[64];
  for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_MANAGED; ++k) {
    sum of_kind = {0, 0};
    for (unsigned t = 0; t < TAGS; ++t) {
      sum here = live_of[k][t];
      of_kind.bytes += here.bytes, of_kind.blocks += here.blocks;
      of_tag[t].bytes += here.bytes, of_tag[t].blocks += here.blocks;
      snprintf(what, sizeof what, "%s, tag %u", kind_name(k), t);
      compare(what, stats_of(GMM_SCOPE_DEVICE | GMM_SCOPE_KIND | GMM_SCOPE_TAG, 0, tags[t], k), here);
    }
    all.bytes += of_kind.bytes, all.blocks += of_kind.blocks;
    compare(kind_name(k), stats_of(GMM_SCOPE_KIND, 0, 0, k), of_kind);
  }
  for (unsigned t = 0; t < TAGS; ++t) {
    snprintf(what, sizeof what, "tag %u", t);
    compare(what, stats_of(GMM_SCOPE_TAG, 0, tags[t], 0), of_tag[t]);
  }
  gmm_stats_info s = stats();
  compare("everything", s, all);
  compare("device 0", stats_of(GMM_SCOPE_DEVICE, 0, 0, 0), all);
  CHECK_EQUAL(model.blocks, all.blocks);
  CHECK_EQUAL(model.bytes, all.bytes);
  CHECK_EQUAL(s.allocations - s.frees, all.blocks);
  CHECK_MESSAGE(s.cached_bytes <= s.reserved_bytes, "%llu bytes cached, %llu reserved",
                (unsigned long long)s.cached_bytes, (unsigned long long)s.reserved_bytes);
}

static void compare_with_driver(void) {
  driver_view view = look_at_driver();
  uint64_t reserved[5], all = 0, backups = 0;
  for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_MANAGED; ++k)
    all += reserved[k] = stats_of(GMM_SCOPE_KIND, 0, 0, k).reserved_bytes;
  for (unsigned t = 0; t < TAGS; ++t) {
    gmm_tag_info info = {.struct_size = sizeof info};
    DO(gmm_tag_query(context, tags[t], &info));
    backups += info.backup_host_bytes + info.backup_file_bytes;
  }
  CHECK_EQUAL(stats().reserved_bytes, all);
  CHECK_EQUAL(reserved[GMM_KIND_DEVICE] + reserved[GMM_KIND_VMM], view.of_device - at_start.of_device);
  if (view.tells_kinds) {
    CHECK_EQUAL(reserved[GMM_KIND_DEVICE], view.device);
    CHECK_EQUAL(reserved[GMM_KIND_VMM], view.vmm);
  }
  CHECK_EQUAL(reserved[GMM_KIND_HOST], view.host);
  if (view.tells_managed) CHECK_EQUAL(reserved[GMM_KIND_MANAGED], view.managed - at_start.managed);
  if (check_state.failures == 0) return;
  gmm_stats_info s = stats();
  printf(
      "# gmm: reserved %llu DEVICE, %llu VMM, %llu HOST, %llu MANAGED, paused %llu, %llu extents; %llu bytes of "
      "backups\n",
      (unsigned long long)reserved[GMM_KIND_DEVICE], (unsigned long long)reserved[GMM_KIND_VMM],
      (unsigned long long)reserved[GMM_KIND_HOST], (unsigned long long)reserved[GMM_KIND_MANAGED],
      (unsigned long long)s.paused_bytes, (unsigned long long)s.extents, (unsigned long long)backups);
  if (fake.live == NULL) return;
  fake_cuda_live_t live;
  fake.live(&live);
  printf(
      "# driver: %llu allocations, %llu handles, %llu mappings, %llu reservations, %llu bytes of the device, %llu "
      "managed\n",
      (unsigned long long)live.allocations, (unsigned long long)live.handles, (unsigned long long)live.mappings,
      (unsigned long long)live.reservations, (unsigned long long)live.device_bytes,
      (unsigned long long)live.managed_bytes);
}

static void free_it(block *b) { give(b); }

// Everything is freed and resumed: nothing may be left.
static void nothing_is_left(void) {
  for_each_block(free_it);
  exchange.count = 0;
  gmm_result resumed = gmm_resume(context, NULL, NULL);
  CHECK_MESSAGE(resumed == GMM_OK || resumed == GMM_UNCHANGED, "resume: %s", gmm_last_error_message());
  for (unsigned i = 0; i < STREAMS; ++i) synchronize(streams[i]);
  synchronize(GMM_STREAM_DEFAULT);
  synchronize(GMM_STREAM_PER_THREAD);
  DO(gmm_trim(context, NULL, NULL));
  gmm_stats_info s = stats();
  CHECK_EQUAL(s.live_blocks, 0);
  CHECK_EQUAL(s.reserved_bytes, 0);
  CHECK_EQUAL(s.paused_bytes, 0);
  CHECK_EQUAL(s.cached_bytes, 0);
  CHECK_EQUAL(s.extents, 0);
  compare_with_driver();
  driver_view view = look_at_driver();
  if (empty_rounds++ == 0) when_empty = view;
  CHECK_MESSAGE(getenv("STRESS_ADDRESSES") == NULL || view.virtual_bytes < when_empty.virtual_bytes + 4096 * MIB,
                "%llu MiB of addresses when empty, %llu MiB before", (unsigned long long)(view.virtual_bytes / MIB),
                (unsigned long long)(when_empty.virtual_bytes / MIB));
}

static void between_rounds(void) {
  if (faulty_round) {
    // What the driver refused to take back is offered again.
    DO(gmm_trim(context, NULL, NULL));
    void *memory = NULL;
    gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = GMM_KIND_VMM, .flags = GMM_ALLOC_DEDICATED};
    gmm_result result = gmm_alloc(context, MIB, &desc, &memory);  // its end gives the backend occasion too
    if (result == GMM_OK) DO(gmm_free(context, memory, GMM_STREAM_DEFAULT));
    if (result != GMM_ERROR_OUT_OF_MEMORY) DO(result);
    DO(gmm_trim(context, NULL, NULL));
  }
  compare_counters();
  compare_with_driver();
  for_each_block(check_block);
  if (rounds % 5 == 4) nothing_is_left();
  if (rounds % 40 == 3) thread_storm(1000);
  if (check_state.failures == 0) compare_counters();
}

static int32_t trim_when_short(void *unused, const gmm_oom_info *info) {
  (void)unused;
  gmm_result result = gmm_trim(context, NULL, NULL);
  if (result != GMM_UNCHANGED && !did(__FILE__, __LINE__, "trim in the handler", result)) return 0;
  return info->attempt < 3;
}

static bool wanted(const char *role) {
  const char *named = getenv("STRESS_ROLES");
  if (strstr(role, "pauser") != NULL && !has_kind(GMM_KIND_VMM)) return false;
  if (strcmp(role, "faulter") == 0 && fake.fail == NULL) return false;
  return named == NULL || strstr(named, role) != NULL;
}

static void stress(void) {
  pthread_t watcher;
  actor_count = 1;
  actor_init(&actors[0], "main", 0, 0);
  self = &actors[0];
  for (unsigned i = 0; i < worker_count; ++i, ++actor_count)
    actor_init(&actors[actor_count], "worker", actor_count, actor_count);
  for (unsigned i = 0; i < sizeof roles / sizeof roles[0]; ++i)
    if (wanted(roles[i].name)) {
      actor_init(&actors[actor_count], roles[i].name, actor_count, 100 + i);
      ++actor_count;
    }
  pthread_barrier_init(&round_begins, NULL, actor_count);
  pthread_barrier_init(&round_ends, NULL, actor_count);
  REQUIRE(pthread_create(&watcher, NULL, watch, NULL) == 0);
  for (unsigned i = 1; i < actor_count; ++i)
    REQUIRE(pthread_create(&actors[i].thread, NULL, i <= worker_count ? run_worker : run_other, &actors[i]) == 0);
  double end = now_s() + seconds;
  for (rounds = 0; now_s() < end && atomic_load(&check_state.failures) == 0; ++rounds) {
    faulty_round = fake.fail != NULL && wanted("faulter") && rounds % 3 == 2;
    faulty_rounds += faulty_round;
    atomic_store(&faults, faulty_round);
    DO(gmm_context_set_oom_handler(context, one_in(2) ? trim_when_short : NULL, NULL));
    // Free memory goes back by itself in half of the rounds, and never while the counts are compared.
    if (one_in(2)) DO(gmm_context_set_decommit(context, 1 + below(20)));
    atomic_store(&working, worker_count);
    pthread_barrier_wait(&round_begins);
    pthread_barrier_wait(&round_ends);
    DO(gmm_context_set_decommit(context, GMM_DECOMMIT_NEVER));
    atomic_store(&faults, 0);
    atomic_fetch_add(&beat, 1);
    between_rounds();
  }
  atomic_store(&over, 1);
  pthread_barrier_wait(&round_begins);
  for (unsigned i = 1; i < actor_count; ++i) pthread_join(actors[i].thread, NULL);
  pthread_join(watcher, NULL);
  if (check_state.failures == 0) nothing_is_left();
  gmm_stats_info s = stats();
  uint64_t allocations = 0, frees = 0, refused = 0, operations = 0;
  for (unsigned i = 0; i < actor_count; ++i) {
    allocations += actors[i].allocations, frees += actors[i].frees, refused += actors[i].refused;
    operations += actors[i].operations;
  }
  printf(
      "# %u rounds (%u with faults, %llu of them), %llu operations, %llu allocations, %llu refused, %llu pauses (%llu "
      "cancelled), %llu parts resumed, %llu looks at what is kept, %llu times forgotten, %llu tags changed, %llu "
      "snapshots, %llu forks, %llu threads and %llu heaps ended, %llu blocks shared, %llu handed over, %llu quota "
      "checks, "
      "%llu MiB at most\n",
      rounds, faulty_rounds, (unsigned long long)faults_seen, (unsigned long long)operations,
      (unsigned long long)allocations, (unsigned long long)refused, (unsigned long long)pauses,
      (unsigned long long)cancels, (unsigned long long)parts_resumed, (unsigned long long)kept_checked,
      (unsigned long long)discards, (unsigned long long)updates, (unsigned long long)snapshots,
      (unsigned long long)forks, (unsigned long long)threads_ended, (unsigned long long)heaps_ended,
      (unsigned long long)shared, (unsigned long long)moved_on, (unsigned long long)quota_checks,
      (unsigned long long)(s.peak_reserved_bytes / MIB));
  CHECK_EQUAL(allocations, frees);
  CHECK(operations > 100);
  if (check_state.failures != 0) print_last_operations();
}

// The context is gone: descriptors, threads and the driver's memory are as before it.
static void everything_went_back(void) {
  driver_view view = look_at_driver();
  CHECK_EQUAL(view.of_device, at_start.of_device);
  CHECK_EQUAL(view.host, 0);
  CHECK_EQUAL(view.managed, at_start.managed);
  if (fake.live == NULL) {
    CHECK_EQUAL(view.descriptors, at_start.descriptors);
    CHECK_EQUAL(view.threads, at_start.threads);
  } else {
    fake_cuda_live_t live;
    fake.live(&live);
    CHECK_EQUAL(live.allocations + live.reservations + live.handles + live.mappings + live.registrations, 0);
    CHECK_EQUAL(live.streams + live.events + live.imports + live.context_references, 0);
  }
}

static void *do_nothing(void *unused) { return unused; }

int main(int count, char **words) {
  seed_of_run = count > 1 ? strtoull(words[1], NULL, 10) : 0;
  if (seed_of_run == 0) seed_of_run = (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
  if (count > 2) seconds = strtod(words[2], NULL);
  if (count > 3) worker_count = (unsigned)atoi(words[3]);
  if (worker_count < 1 || worker_count > MOST_WORKERS || seconds <= 0) {
    fprintf(stderr, "use: stress [SEED [SECONDS [THREADS]]], 1 to %d threads; seed 0: from the clock\n", MOST_WORKERS);
    return 2;
  }
  printf("# seed %llu\n", (unsigned long long)seed_of_run);
  fflush(stdout);
#if CHECK_SANITIZED
  __sanitizer_set_death_callback(print_last_operations);
#endif
  // One run in three has a small device.
  short_of_memory = seed_of_run % 3 == 0;
  setenv("FAKE_CUDA_MEMORY", short_of_memory ? "402653184" : "8589934592", 1);
  find_fake_driver();
  model_open();
  pthread_t first;  // a sanitizer starts its own thread with it
  if (pthread_create(&first, NULL, do_nothing, NULL) == 0) pthread_join(first, NULL);
  at_start = look_at_driver();
  gmm_context_desc context_desc = {.struct_size = sizeof context_desc,
                                   .host_memory = short_of_memory ? 384 * MIB : 8192 * MIB};
  if (gmm_context_create(&context_desc, &context) != GMM_OK) {
    printf("Bail out! no context: %s\n", gmm_last_error_message());
    return 99;
  }
  read_device(0);
  for (unsigned i = 0; i < STREAMS; ++i)
    if (gmm_stream_create(context, NULL, &streams[i]) != GMM_OK) return 1;
  tags[TAG_DEFAULT] = GMM_TAG_DEFAULT;
  tags[TAG_HOST] = make_tag("host", GMM_CONTENTS_HOST);
  tags[TAG_FILE] = make_tag("file", GMM_CONTENTS_FILE);
  tags[TAG_DROP] = make_tag("drop", GMM_CONTENTS_DROP);
  tags[TAG_LIMITED] = make_tag("limited", GMM_CONTENTS_HOST);
  tag_states[TAG_HOST].contents = tag_states[TAG_LIMITED].contents = GMM_CONTENTS_HOST;
  tag_states[TAG_FILE].contents = GMM_CONTENTS_FILE;
  for (unsigned i = 0; i < TAGS; ++i) pthread_rwlock_init(&touching[i], NULL);
  RUN(stress);
  for (unsigned i = 0; i < STREAMS; ++i)
    if (gmm_stream_destroy(context, streams[i]) != GMM_OK) return 1;
  if (gmm_context_release(context) != GMM_OK) return 1;
  if (check_state.failed == 0) RUN(everything_went_back);
  return check_finish();
}
