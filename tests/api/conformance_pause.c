// SPDX-License-Identifier: Apache-2.0
// pause.h: memory goes while its address stays.
#include <dirent.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/stat.h>

#include "pause_support.h"

#define BIG (64 * MIB)

// Resident pages of this process that belong to files and shared memory: what the host backend maps, without what
// malloc holds.
static uint64_t resident_shared(void) {
  unsigned long long total = 0, resident = 0, shared = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file == NULL || fscanf(file, "%llu %llu %llu", &total, &resident, &shared) != 3) shared = 0;
  if (file != NULL) fclose(file);
  return shared * (uint64_t)sysconf(_SC_PAGESIZE);
}

// Bytes that the memory files of this process really hold: unmapping alone would not give them back.
static uint64_t memory_file_bytes(void) {
  uint64_t sum = 0;
  DIR *directory = opendir("/proc/self/fd");
  if (directory == NULL) return 0;
  for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
    char path[320], target[256];
    snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0) continue;
    target[length] = 0;
    struct stat status;
    if (strstr(target, "memfd:") != NULL && stat(path, &status) == 0) sum += (uint64_t)status.st_blocks * 512;
  }
  closedir(directory);
  return sum;
}

VMM_CASE(pausing_gives_the_memory_back) {
  // With a size of its own the host backend counts what is free; else it asks the system, where other programs are at
  // work.
  gmm_context_release(context);
  gmm_context_desc own = {.struct_size = sizeof own, .host_memory = 1024 * MIB, .host_devices = 2};
  context = NULL;
  MUST(gmm_context_create(&own, &context));
  read_device(device);
  gmm_tag tag = make_tag("big", GMM_CONTENTS_DROP);
  char *block = FILLED_TAG(BIG, tag, 1);
  uint64_t resident = resident_shared(), files = memory_file_bytes(), on_device = free_device_bytes();
  uint64_t generation = query(block).generation;
  gmm_stats_info before = stats();
  uint64_t bytes = 0;
  gmm_pause_desc desc = one_tag(&tag);
  MUST(gmm_pause(context, &desc, &bytes));
  CHECK(bytes >= BIG);
  uint64_t resident_now = resident_shared(), files_now = memory_file_bytes(), on_device_now = free_device_bytes();
  CHECK_MESSAGE(on_device_now >= on_device + BIG * 9 / 10 || !on_host_backend(),
                "free memory of the device: %llu before, %llu paused", (unsigned long long)on_device,
                (unsigned long long)on_device_now);
  if (on_host_backend()) {
    CHECK_MESSAGE(resident >= resident_now + BIG * 9 / 10, "resident: %llu before, %llu paused",
                  (unsigned long long)resident, (unsigned long long)resident_now);
    CHECK_MESSAGE(files >= files_now + BIG * 9 / 10, "memory files hold %llu before, %llu paused",
                  (unsigned long long)files, (unsigned long long)files_now);
  } else {
    CHECK_MESSAGE(on_device_now >= on_device + BIG / 2, "free memory of the device: %llu before, %llu paused",
                  (unsigned long long)on_device, (unsigned long long)on_device_now);
  }
  gmm_pointer_info info = query(block + 12345);
  CHECK_EQUAL(info.state, GMM_STATE_PAUSED);
  CHECK(info.base == block);
  CHECK_EQUAL(info.size, BIG);
  CHECK_EQUAL(info.tag, tag);
  gmm_stats_info paused = stats();
  CHECK(paused.paused_bytes >= BIG);
  CHECK_EQUAL(paused.live_bytes, before.live_bytes);
  CHECK_EQUAL(paused.live_blocks, before.live_blocks);
  CHECK(paused.reserved_bytes + BIG <= before.reserved_bytes);
  uint64_t back = 0;
  MUST(gmm_resume(context, &desc, &back));
  CHECK_EQUAL(back, bytes);
  info = query(block + 12345);
  CHECK_EQUAL(info.state, GMM_STATE_ACTIVE);
  CHECK(info.base == block);
  CHECK(info.generation > generation);
  CHECK_EQUAL(stats().paused_bytes, 0);
  CHECK_EQUAL(stats().reserved_bytes, before.reserved_bytes);
  write_pattern(block, BIG, 2, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(block, BIG, 2);
}

VMM_CASE(dropped_memory_is_usable_again) {
  gmm_tag tag = make_tag("dropped", GMM_CONTENTS_DROP);
  allocate_blocks(tag, 200);
  gmm_pause_desc desc = one_tag(&tag);
  OK(gmm_pause(context, &desc, NULL));
  gmm_tag_info info = tag_info(tag);
  CHECK_EQUAL(info.backup_host_bytes, 0);
  CHECK_EQUAL(info.backup_file_bytes, 0);
  OK(gmm_resume(context, &desc, NULL));
  for (unsigned i = 0; i < BLOCKS; ++i) write_pattern(blocks[i], block_size(i), 300 + i, GMM_STREAM_DEFAULT);
  check_blocks(300);
}

VMM_CASE(a_paused_tag_still_allocates) {
  gmm_tag tag = make_tag("going on", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 10);
  gmm_pause_desc desc = one_tag(&tag);
  MUST(gmm_pause(context, &desc, NULL));
  void *fresh[20];
  for (unsigned i = 0; i < 20; ++i) {
    fresh[i] = ALLOC_TAG(block_size(i * 2), tag);
    CHECK_EQUAL(query(fresh[i]).state, GMM_STATE_ACTIVE);
    write_pattern(fresh[i], block_size(i * 2), 900 + i, GMM_STREAM_DEFAULT);
  }
  CHECK(tag_info(tag).active_bytes > 0 && tag_info(tag).paused_bytes > 0);
  uint64_t bytes = 0;
  OK(gmm_pause(context, &desc, &bytes));  // what came since
  CHECK(bytes > 0);
  CHECK_EQUAL(query(fresh[0]).state, GMM_STATE_PAUSED);
  OK(gmm_resume(context, &desc, NULL));
  check_blocks(10);
  for (unsigned i = 0; i < 20; ++i) {
    CHECK_PATTERN(fresh[i], block_size(i * 2), 900 + i);
    FREE(fresh[i]);
  }
}

VMM_CASE(cached_memory_of_a_paused_tag_is_not_given_out) {
  gmm_tag tag = make_tag("cached", GMM_CONTENTS_HOST);
  void *keep = ALLOC_TAG(1000, tag);
  for (unsigned i = 0; i < 200; ++i) {
    void *block = ALLOC_TAG(1000 + i, tag);
    FREE(block);
  }
  write_pattern(keep, 1000, 4, GMM_STREAM_DEFAULT);
  gmm_pause_desc desc = one_tag(&tag);
  OK(gmm_pause(context, &desc, NULL));
  for (unsigned i = 0; i < 200; ++i) {
    void *block = ALLOC_TAG(1000 + i, tag);
    CHECK_EQUAL(query(block).state, GMM_STATE_ACTIVE);
    write_pattern(block, 1000, i, GMM_STREAM_DEFAULT);
    if (i % 2) FREE(block);
  }
  OK(gmm_resume(context, &desc, NULL));
  CHECK_PATTERN(keep, 1000, 4);
}

VMM_CASE(paused_memory_may_be_freed) {
  gmm_tag tag = make_tag("freed", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 50);
  gmm_pause_desc desc = one_tag(&tag);
  MUST(gmm_pause(context, &desc, NULL));
  for (unsigned i = 0; i < BLOCKS; i += 2) {
    FREE(blocks[i]);
    RESULT(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT), GMM_ERROR_ALREADY_FREED);
    blocks[i] = NULL;
  }
  OK(gmm_resume(context, &desc, NULL));
  check_blocks(50);
  MUST(gmm_pause(context, &desc, NULL));
  free_blocks();
  CHECK_EQUAL(stats_of(GMM_SCOPE_TAG, 0, tag, 0).live_blocks, 0);
  gmm_result result = gmm_resume(context, &desc, NULL);
  CHECK_MESSAGE(result == GMM_OK || result == GMM_UNCHANGED, "%s: %s", gmm_result_name(result),
                gmm_last_error_message());
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(stats().reserved_bytes, 0);
  CHECK_EQUAL(stats().paused_bytes, 0);
}

VMM_CASE(paused_memory_is_refused_everywhere) {
  gmm_tag tag = make_tag("refused", GMM_CONTENTS_HOST);
  char *block = FILLED_TAG(100000, tag, 1);
  OK(gmm_pause(context, NULL, NULL));
  char bytes[100];
  gmm_ipc_handle handle;
  gmm_ipc_fd_info file = {.struct_size = sizeof file, .fd = -1};
  RESULT(gmm_copy(context, block, bytes, 100, GMM_STREAM_DEFAULT), GMM_ERROR_PAUSED);
  RESULT(gmm_copy(context, bytes, block + 5000, 100, GMM_STREAM_DEFAULT), GMM_ERROR_PAUSED);
  RESULT(gmm_fill(context, block, 0, 100, GMM_STREAM_DEFAULT), GMM_ERROR_PAUSED);
  RESULT(gmm_ipc_export(context, block, &handle), GMM_ERROR_PAUSED);
  RESULT(gmm_ipc_export_fd(context, block, GMM_FD_DEFAULT, &file), GMM_ERROR_PAUSED);
  CHECK_EQUAL(file.fd, -1);
  CHECK(message_has("resume"));
  CHECK((query(block).flags & GMM_POINTER_HOST_ACCESSIBLE) == 0 || !"paused memory is not accessible");
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(block, 100000, 1);
}

VMM_CASE(a_second_pause_changes_nothing) {
  gmm_tag tag = make_tag("twice", GMM_CONTENTS_HOST);
  gmm_pause_desc desc = one_tag(&tag);
  uint64_t bytes = 5;
  RESULT(gmm_resume(context, &desc, &bytes), GMM_UNCHANGED);
  CHECK_EQUAL(bytes, 0);
  bytes = 5;
  RESULT(gmm_pause(context, &desc, &bytes), GMM_UNCHANGED);  // nothing there
  CHECK_EQUAL(bytes, 0);
  void *block = FILLED_TAG(100000, tag, 1);
  bytes = 5;
  RESULT(gmm_resume(context, &desc, &bytes), GMM_UNCHANGED);
  CHECK_EQUAL(bytes, 0);
  OK(gmm_pause(context, &desc, NULL));
  bytes = 5;
  RESULT(gmm_pause(context, &desc, &bytes), GMM_UNCHANGED);
  CHECK_EQUAL(bytes, 0);
  OK(gmm_resume(context, &desc, NULL));
  bytes = 5;
  RESULT(gmm_resume(context, &desc, &bytes), GMM_UNCHANGED);
  CHECK_EQUAL(bytes, 0);
  CHECK_PATTERN(block, 100000, 1);
}

VMM_CASE(other_tags_and_kinds_stay) {
  gmm_tag tag = make_tag("a", GMM_CONTENTS_HOST), other = make_tag("b", GMM_CONTENTS_HOST);
  void *paused = ALLOC_TAG(100000, tag), *stays = ALLOC_TAG(100000, other), *plain = ALLOC(100000), *kinds[5] = {0};
  for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_MANAGED; ++k) {
    if (k == GMM_KIND_VMM || !has_kind(k)) continue;
    gmm_alloc_desc desc = {.struct_size = sizeof desc, .kind = k, .device = device, .tag = tag};
    MUST(gmm_alloc(context, 100000, &desc, &kinds[k]));
    write_pattern(kinds[k], 100000, k, GMM_STREAM_DEFAULT);
  }
  write_pattern(paused, 100000, 11, GMM_STREAM_DEFAULT);
  write_pattern(stays, 100000, 12, GMM_STREAM_DEFAULT);
  write_pattern(plain, 100000, 13, GMM_STREAM_DEFAULT);
  gmm_pause_desc desc = one_tag(&tag);
  OK(gmm_pause(context, &desc, NULL));
  CHECK_EQUAL(query(paused).state, GMM_STATE_PAUSED);
  CHECK_EQUAL(query(stays).state, GMM_STATE_ACTIVE);
  CHECK_PATTERN(stays, 100000, 12);
  CHECK_PATTERN(plain, 100000, 13);
  for (gmm_kind k = GMM_KIND_DEVICE; k <= GMM_KIND_MANAGED; ++k)
    if (kinds[k] != NULL) CHECK_PATTERN(kinds[k], 100000, k);
  const gmm_tag both[] = {tag, other};
  gmm_pause_desc list = {.struct_size = sizeof list, .tags = both, .tag_count = 2};
  OK(gmm_pause(context, &list, NULL));
  CHECK_EQUAL(query(stays).state, GMM_STATE_PAUSED);
  CHECK_EQUAL(query(plain).state, GMM_STATE_ACTIVE);
  OK(gmm_resume(context, NULL, NULL));  // every tag
  CHECK_PATTERN(paused, 100000, 11);
  CHECK_PATTERN(stays, 100000, 12);
  OK(gmm_pause(context, NULL, NULL));  // the default tag too, which drops
  CHECK_EQUAL(query(plain).state, GMM_STATE_PAUSED);
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(paused, 100000, 11);
}

VMM_CASE(bad_pauses_are_refused) {
  gmm_tag tag = make_tag("bad", GMM_CONTENTS_HOST);
  void *block = FILLED_TAG(100000, tag, 3);
  const gmm_tag tags[] = {tag, 3999};
  gmm_pause_desc desc = {.struct_size = sizeof desc, .tags = tags, .tag_count = 2};
  uint64_t bytes = 9;
  RESULT(gmm_pause(context, &desc, &bytes), GMM_ERROR_INVALID_TAG);
  CHECK(message_has("3999"));
  CHECK_EQUAL(query(block).state, GMM_STATE_ACTIVE);
  desc.tags = NULL;
  RESULT(gmm_pause(context, &desc, &bytes), GMM_ERROR_NULL_ARGUMENT);
  RESULT(gmm_resume(context, &desc, &bytes), GMM_ERROR_NULL_ARGUMENT);
  desc.tags = &tag;
  desc.tag_count = 1;
  desc.flags = 0x40;
  RESULT(gmm_pause(context, &desc, &bytes), GMM_ERROR_INVALID_FLAGS);
  desc.flags = GMM_PAUSE_FORCE;
  RESULT(gmm_resume(context, &desc, &bytes), GMM_ERROR_INVALID_FLAGS);
  desc.flags = 0;
  desc.reserved = 1;
  RESULT(gmm_pause(context, &desc, &bytes), GMM_ERROR_INVALID_DESCRIPTOR);
  CHECK_EQUAL(bytes, 9);
  CHECK_PATTERN(block, 100000, 3);
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
  gmm_tag_desc low = {.struct_size = sizeof low, .contents = GMM_CONTENTS_HOST, .priority = -5}, high = low;
  high.priority = 9;
  gmm_tag first = 0, second = 0;
  OK(gmm_tag_create(context, "low", &low, &second));
  OK(gmm_tag_create(context, "high", &high, &first));
  CHECK_EQUAL(tag_info(second).priority, -5);
  CHECK_EQUAL(tag_info(first).priority, 9);
  void *one = FILLED_TAG(100000, first, 1), *two = FILLED_TAG(100000, second, 2);
  order.first = one;
  order.second = two;
  OK(gmm_pause(context, NULL, NULL));
  const gmm_pause_desc desc = {.struct_size = sizeof desc, .progress = {stop_after_the_first, NULL}};
  RESULT(gmm_resume(context, &desc, NULL), GMM_ERROR_CANCELLED);
  CHECK_EQUAL(query(one).state, GMM_STATE_ACTIVE);
  CHECK_EQUAL(query(two).state, GMM_STATE_PAUSED);
  CHECK_PATTERN(one, 100000, 1);
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(one, 100000, 1);
  CHECK_PATTERN(two, 100000, 2);
}

// A pause waits for the device, and a call in a stream holds that up, until another thread has got memory of the same
// tag.
static struct {
  gmm_tag tag;
  sem_t pause_waits, done;
  void *block, *at_hand;
} meanwhile;
static void let_the_other_allocate(void *unused) {
  (void)unused;
  sem_post(&meanwhile.pause_waits);
  sem_wait(&meanwhile.done);
}
// What a thread has at hand is given out until the pause has taken the heap's memory out of use.
static bool is_out_of_use(const gmm_alloc_desc *desc) {
  void *block = NULL;
  if (gmm_try_alloc(context, 1000, desc, &block) == GMM_ERROR_NOT_READY) return true;
  if (gmm_try_free(context, block, GMM_STREAM_DEFAULT) == GMM_OK) return false;
  meanwhile.at_hand = block;  // the pause came in between
  return true;
}
static void *allocate_meanwhile(void *unused) {
  (void)unused;
  gmm_alloc_desc desc = alloc_desc();
  desc.tag = meanwhile.tag;
  FREE(ALLOC_TAG(1000, meanwhile.tag));
  sem_wait(&meanwhile.pause_waits);
  SOON(is_out_of_use(&desc));  // the call runs before the pause does, which then waits
  meanwhile.block = ALLOC_TAG(3 * MIB, meanwhile.tag);
  sem_post(&meanwhile.done);
  return NULL;
}
VMM_CASE(memory_that_comes_during_a_pause_stays_active) {
  meanwhile.tag = make_tag("meanwhile", GMM_CONTENTS_DROP);
  sem_init(&meanwhile.pause_waits, 0, 0);
  sem_init(&meanwhile.done, 0, 0);
  meanwhile.block = meanwhile.at_hand = NULL;
  void *before = ALLOC_TAG(100000, meanwhile.tag);
  gmm_stream stream = open_stream();
  pthread_t other;
  REQUIRE(pthread_create(&other, NULL, allocate_meanwhile, NULL) == 0);
  MUST(gmm_stream_call(context, stream, let_the_other_allocate, NULL));
  gmm_pause_desc desc = one_tag(&meanwhile.tag);
  OK(gmm_pause(context, &desc, NULL));
  pthread_join(other, NULL);
  REQUIRE(meanwhile.block != NULL);
  CHECK_EQUAL(query(before).state, GMM_STATE_PAUSED);
  CHECK_EQUAL(query(meanwhile.block).state, GMM_STATE_ACTIVE);
  write_pattern(meanwhile.block, 3 * MIB, 5, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(meanwhile.block, 3 * MIB, 5);
  // Its heap goes on with what is active: nothing that is allocated is paused.
  for (unsigned i = 0; i < 50; ++i) {
    char *more = ALLOC_TAG(50000, meanwhile.tag);
    CHECK_EQUAL(query(more).state, GMM_STATE_ACTIVE);
    FREE(more);
  }
  OK(gmm_resume(context, &desc, NULL));
  CHECK_PATTERN(meanwhile.block, 3 * MIB, 5);
  OK(gmm_stream_destroy(context, stream));
}

int main(void) { return run_cases(); }
