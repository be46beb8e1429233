// SPDX-License-Identifier: Apache-2.0
// pause.h: memory goes while its address stays.
#define _GNU_SOURCE  // pthread_timedjoin_np()
#include <pthread.h>
#include <semaphore.h>
#include <sys/stat.h>

#include "pause_support.h"

#define BIG (64 * MIB)

// Bytes that the memory files of this process really hold: unmapping alone would not give them back.
static void add_file_bytes(const char *path, const char *target, void *sum) {
  struct stat status;
  if (strstr(target, "memfd:") != NULL && stat(path, &status) == 0)
    *(uint64_t *)sum += (uint64_t)status.st_blocks * 512;
}
static uint64_t memory_file_bytes(void) {
  uint64_t sum = 0;
  each_descriptor(add_file_bytes, &sum);
  return sum;
}

VMM_CASE(pausing_gives_the_memory_back) {
  // With a size of its own the host backend counts what is free; else it asks the system, where other programs are at
  // work.
  reopen_with(1024 * MIB);
  gmm_tag tag = make_tag("big", GMM_CONTENTS_DROP);
  char *block = FILLED_TAG(BIG, tag, 1);
  uint64_t files = memory_file_bytes(), on_device = free_device_bytes();
  uint64_t generation = query(block).generation;
  gmm_stats_info before = stats();
  uint64_t bytes = 0;
  gmm_pause_desc desc = one_tag(&tag);
  MUST(gmm_pause(context, &desc, &bytes));
  CHECK(bytes >= BIG);
  uint64_t files_now = memory_file_bytes(), on_device_now = free_device_bytes();
  CHECK_MESSAGE(on_device_now >= on_device + (on_host_backend() ? BIG * 9 / 10 : BIG / 2),
                "free memory of the device: %llu before, %llu paused", (unsigned long long)on_device,
                (unsigned long long)on_device_now);
  if (on_host_backend())
    CHECK_MESSAGE(files >= files_now + BIG * 9 / 10, "memory files hold %llu before, %llu paused",
                  (unsigned long long)files, (unsigned long long)files_now);
  gmm_pointer_info info = query(block + 12345);
  CHECK(info.state == GMM_STATE_PAUSED && info.base == block && info.size == BIG && info.tag == tag);
  CHECK((info.flags & GMM_POINTER_HOST_ACCESSIBLE) == 0);
  gmm_stats_info paused = stats();
  CHECK(paused.live_bytes == before.live_bytes && paused.live_blocks == before.live_blocks);
  CHECK(paused.paused_bytes >= BIG && paused.reserved_bytes + BIG <= before.reserved_bytes);
  CHECK_EQUAL(tag_info(tag).backup_host_bytes + tag_info(tag).backup_file_bytes, 0);
  uint64_t back = 0;
  MUST(gmm_resume(context, &desc, &back));
  CHECK_EQUAL(back, bytes);
  info = query(block + 12345);
  CHECK(info.state == GMM_STATE_ACTIVE && info.base == block && info.generation > generation);
  CHECK_EQUAL(stats().paused_bytes, 0);
  CHECK_EQUAL(stats().reserved_bytes, before.reserved_bytes);
  write_pattern(block, BIG, 2, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(block, BIG, 2);
}

// Allocations of a paused tag are active. Not even a cache gives out paused memory.
VMM_CASE(a_paused_tag_still_allocates) {
  const gmm_tag tag = make_tag("going on", GMM_CONTENTS_HOST);
  void *fresh[20];
  allocate_blocks(tag, 10);
  for (unsigned i = 0; i < 200; ++i) FREE(ALLOC_TAG(1000 + i, tag));
  MUST(pause_of(tag));
  for (unsigned i = 0; i < 200; ++i) {
    void *block = FILLED_TAG(1000 + i, tag, i);
    CHECK_EQUAL(query(block).state, GMM_STATE_ACTIVE);
    if (i % 2) FREE(block);
  }
  for (unsigned i = 0; i < 20; ++i) {
    fresh[i] = FILLED_TAG(block_size(i * 2), tag, 900 + i);
    CHECK_EQUAL(query(fresh[i]).state, GMM_STATE_ACTIVE);
  }
  CHECK(tag_info(tag).active_bytes > 0 && tag_info(tag).paused_bytes > 0);
  OK(pause_of(tag));  // pauses what came since
  CHECK_EQUAL(query(fresh[0]).state, GMM_STATE_PAUSED);
  OK(resume_of(tag));
  check_blocks(10);
  for (unsigned i = 0; i < 20; ++i) CHECK_PATTERN(fresh[i], block_size(i * 2), 900 + i);
}

VMM_CASE(paused_memory_may_be_freed) {
  const gmm_tag tag = make_tag("freed", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 50);
  MUST(pause_of(tag));
  for (unsigned i = 0; i < BLOCKS; i += 2) {
    FREE(blocks[i]);
    RESULT(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT), GMM_ERROR_ALREADY_FREED);
    blocks[i] = NULL;
  }
  OK(resume_of(tag));
  check_blocks(50);
}

static gmm_result (*const kTurn[])(gmm_context *, const gmm_pause_desc *, uint64_t *) = {gmm_pause, gmm_resume};

// The tag is as it was, and `bytes` is 0.
#define UNCHANGED(turn, desc)                                     \
  do {                                                            \
    uint64_t unchanged_bytes = 5;                                 \
    RESULT(turn(context, desc, &unchanged_bytes), GMM_UNCHANGED); \
    CHECK_EQUAL(unchanged_bytes, 0);                              \
  } while (0)

// Pauses and resumes of some tags leave the other tags, and kinds that cannot pause. Those of all tags change the rest.
VMM_CASE(only_the_named_tags_change) {
  const gmm_tag tags[] = {make_tag("a", GMM_CONTENTS_HOST), make_tag("b", GMM_CONTENTS_FILE), GMM_TAG_DEFAULT};
  void *of[3], *kinds[5] = {0};
  uint64_t size[2], bytes = 0;
  for (int i = 0; i < 3; ++i) of[i] = FILLED_TAG((5 + i) * MIB, tags[i], 11 + i);
  for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_MANAGED; ++k) {
    if (k == GMM_KIND_VMM || !has_kind(k)) continue;
    MUST(gmm_alloc(context, 100000, DESC(alloc_desc, .kind = k, .device = device, .tag = tags[0]), &kinds[k]));
    write_pattern(kinds[k], 100000, k, GMM_STREAM_DEFAULT);
  }
  for (int i = 0; i < 2; ++i) size[i] = stats_of(GMM_SCOPE_TAG | GMM_SCOPE_KIND, 0, tags[i], kind).reserved_bytes;
  const gmm_pause_desc a = one_tag(tags), both = {.struct_size = sizeof both, .tags = tags, .tag_count = 2};
  const gmm_tag thrice[] = {tags[0], tags[0], tags[0]};  // named more than once is once
  const gmm_pause_desc repeated = {.struct_size = sizeof repeated, .tags = thrice, .tag_count = 3};
  const struct {
    bool pauses;
    const gmm_pause_desc *desc;
    uint64_t bytes;            // 0: not looked at
    const char states[3 + 1];  // then: of the three blocks
  } steps[] = {{true, &a, size[0], "PAA"},    {true, &both, size[1], "PPA"}, {false, &repeated, size[0], "APA"},
               {false, NULL, size[1], "AAA"}, {true, NULL, 0, "PPP"},        {false, &both, size[0] + size[1], "AAP"},
               {false, NULL, 0, "AAA"}};
  for (unsigned i = 0; i < sizeof steps / sizeof *steps; ++i) {
    gmm_result (*const turn)(gmm_context *, const gmm_pause_desc *, uint64_t *) = kTurn[!steps[i].pauses];
    OK(turn(context, steps[i].desc, &bytes));
    if (steps[i].bytes != 0) CHECK_EQUAL(bytes, steps[i].bytes);
    UNCHANGED(turn, steps[i].desc);
    for (int j = 0; j < 3; ++j) {
      const bool is_active = steps[i].states[j] == 'A';
      CHECK_EQUAL(query(of[j]).state, is_active ? GMM_STATE_ACTIVE : GMM_STATE_PAUSED);
      if (is_active && (j < 2 || i < 4)) CHECK_PATTERN(of[j], (5 + j) * MIB, 11 + j);  // the default tag drops
    }
    for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_MANAGED; ++k)
      if (kinds[k] != NULL) CHECK_PATTERN(kinds[k], 100000, k);
  }
}

// Ends a resume when the memory of one tag is back. Memory for which gmm_resume_wait() has returned stays.
static struct { const void *first, *second; } order;
static int32_t stop_after_the_first(void *user, uint64_t done, uint64_t total) {
  (void)user, (void)done, (void)total;
  const bool has_first = gmm_resume_wait(context, order.first, 1, 0) == GMM_OK;
  RESULT(gmm_resume_wait(context, order.second, 1, 0), GMM_ERROR_NOT_READY);
  return has_first;
}
VMM_CASE(higher_priorities_resume_first) {
  gmm_tag first = 0, second = 0;
  OK(gmm_tag_create(context, "low", DESC(tag_desc, .contents = GMM_CONTENTS_HOST, .priority = -5), &second));
  OK(gmm_tag_create(context, "high", DESC(tag_desc, .contents = GMM_CONTENTS_HOST, .priority = 9), &first));
  CHECK_EQUAL(tag_info(second).priority, -5);
  CHECK_EQUAL(tag_info(first).priority, 9);
  void *one = FILLED_TAG(100000, first, 1), *two = FILLED_TAG(100000, second, 2);
  order.first = one;
  order.second = two;
  OK(gmm_pause(context, NULL, NULL));
  RESULT(gmm_resume(context, DESC(pause_desc, .progress = {stop_after_the_first, NULL}), NULL), GMM_ERROR_CANCELLED);
  CHECK_EQUAL(query(one).state, GMM_STATE_ACTIVE);
  CHECK_EQUAL(query(two).state, GMM_STATE_PAUSED);
  CHECK_PATTERN(one, 100000, 1);
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(one, 100000, 1);
  CHECK_PATTERN(two, 100000, 2);
}

// A thread with a cache ends while a pause of its heap runs. The runtime of a language that collects garbage in the
// progress may wait for that.
static struct {
  pthread_t thread;
  pthread_barrier_t filled;
  sem_t end;
  int joined;
} ending;
static void *use_the_heap(void *tag) {
  FREE_ON(GMM_STREAM_PER_THREAD, alloc_here(__LINE__, 5000, *(gmm_tag *)tag, GMM_STREAM_PER_THREAD, 0));
  pthread_barrier_wait(&ending.filled);
  sem_wait(&ending.end);
  return NULL;
}
static int32_t end_the_thread(void *user, uint64_t done, uint64_t total) {
  (void)user, (void)done, (void)total;
  if (ending.joined == 0) return 0;
  sem_post(&ending.end);
  struct timespec limit;
  clock_gettime(CLOCK_REALTIME, &limit);
  limit.tv_sec += 20;
  ending.joined = pthread_timedjoin_np(ending.thread, NULL, &limit);
  return 0;
}
VMM_CASE(a_thread_ends_during_a_pause) {
  gmm_tag tag = make_tag("left", GMM_CONTENTS_HOST);
  void *memory = FILLED_TAG(100000, tag, 3);
  ending.joined = -1;
  pthread_barrier_init(&ending.filled, NULL, 2);
  sem_init(&ending.end, 0, 0);
  REQUIRE(pthread_create(&ending.thread, NULL, use_the_heap, &tag) == 0);
  pthread_barrier_wait(&ending.filled);
  const gmm_pause_desc desc = {.struct_size = sizeof desc, .progress = {end_the_thread, NULL}};
  OK(gmm_pause(context, &desc, NULL));
  CHECK_EQUAL(ending.joined, 0);
  if (ending.joined != 0) pthread_join(ending.thread, NULL);
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(memory, 100000, 3);
  FREE_ON(GMM_STREAM_PER_THREAD, alloc_here(__LINE__, 5000, tag, GMM_STREAM_PER_THREAD, 0));
  sem_destroy(&ending.end);
  pthread_barrier_destroy(&ending.filled);
}

int main(void) { return run_cases(); }
