// SPDX-License-Identifier: Apache-2.0
// job.h: several ranks pause and resume as one. A rank is a context and a thread here; test_job.py has processes.
#include <string.h>

#include "../support/gmm_test.h"

enum { MOST_RANKS = 3, REGISTERS = 200 };
enum { SHORT_MS = 800 };  // for ranks that wait in vain, on the first device alone
static const uint64_t SIZE = 3 * MIB;

// The exchange: registers in this process.
static struct {
  pthread_mutex_t lock;
  char key[REGISTERS][128], value[REGISTERS][GMM_EXCHANGE_VALUE];
  int count;
} board = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int find_register(const char *key) {
  for (int i = 0; i < board.count; ++i)
    if (strcmp(board.key[i], key) == 0) return i;
  return -1;
}
static int registers_set(void) {
  int set = 0;
  pthread_mutex_lock(&board.lock);
  for (int i = 0; i < board.count; ++i) set += board.key[i][0] != 0;
  pthread_mutex_unlock(&board.lock);
  return set;
}

typedef struct rank {
  gmm_context *context;
  gmm_job *job;
  gmm_tag tag;
  void *block;
  uint32_t seed;  // of the block's pattern
  uint32_t number;
  pthread_t thread;
  bool pauses;
  gmm_result result;
  char message[600];
  gmm_job_info info;
  atomic_int is_cut_off;   // it does not reach the exchange
  const char *cut_before;  // a part of the key from which on it does not
  void (*before_set)(struct rank *self, const char *key);
  double seconds;
} rank;
static rank ranks[MOST_RANKS];
static uint32_t rank_count;

static bool is_cut(rank *self, const char *key) {
  if (self->cut_before != NULL && strstr(key, self->cut_before) != NULL) atomic_store(&self->is_cut_off, 1);
  return atomic_load(&self->is_cut_off) != 0;
}
static gmm_result get_register(void *user, const char *key, char *out, uint64_t timeout_ms) {
  (void)timeout_ms;
  if (is_cut(user, key)) return GMM_ERROR_IO;
  pthread_mutex_lock(&board.lock);
  const int at = find_register(key);
  if (at >= 0) strcpy(out, board.value[at]);
  pthread_mutex_unlock(&board.lock);
  return at >= 0 ? GMM_OK : GMM_ERROR_NOT_READY;
}
static gmm_result set_register(void *user, const char *key, const char *value, char *out, uint64_t timeout_ms) {
  (void)timeout_ms;
  rank *self = user;
  if (self->before_set != NULL) self->before_set(self, key);
  if (is_cut(self, key)) return GMM_ERROR_IO;
  pthread_mutex_lock(&board.lock);
  int at = find_register(key);
  if (at < 0 && board.count < REGISTERS) {
    at = board.count++;
    strcpy(board.key[at], key);
    strcpy(board.value[at], value);
  }
  if (at >= 0) strcpy(out, board.value[at]);
  pthread_mutex_unlock(&board.lock);
  return at >= 0 ? GMM_OK : GMM_ERROR_IO;
}
static void erase_register(void *user, const char *key) {
  (void)user;
  pthread_mutex_lock(&board.lock);
  const int at = find_register(key);
  if (at >= 0) board.key[at][0] = 0;
  pthread_mutex_unlock(&board.lock);
}

static void make_job(uint32_t count, uint64_t timeout_ms) {
  gmm_context *const first = context;
  board.count = 0;
  rank_count = count;
  memset(ranks, 0, sizeof ranks);
  for (uint32_t i = 0; i < count; ++i) {
    rank *self = &ranks[i];
    self->number = i;
    self->context = i == 0 ? first : open_context(device_count());
    context = self->context;
    // Tags have other numbers on other ranks.
    for (uint32_t k = 0; k < i; ++k) make_tag(k == 0 ? "unused" : "further", GMM_CONTENTS_DROP);
    self->tag = make_tag("weights", GMM_CONTENTS_HOST);
    self->block = ALLOC_TAG(SIZE, self->tag);
    self->seed = 10 + i;
    write_pattern(self->block, SIZE, self->seed, GMM_STREAM_DEFAULT);
    const gmm_job_desc desc = {.struct_size = sizeof desc,
                               .name = "job",
                               .rank = i,
                               .ranks = count,
                               .timeout_ms = timeout_ms,
                               .exchange = {set_register, get_register, erase_register, self}};
    MUST(gmm_job_create(self->context, &desc, &self->job));
  }
  context = first;
}
static void end_job(void) {
  gmm_context *const first = context;
  for (uint32_t i = 0; i < rank_count; ++i) {
    OK(gmm_job_destroy(ranks[i].job));
    OK(gmm_free(ranks[i].context, ranks[i].block, GMM_STREAM_DEFAULT));
    if (i != 0) OK(gmm_context_release(ranks[i].context));
  }
  context = first;
}

static void *operate(void *argument) {
  rank *self = argument;
  const gmm_pause_desc desc = {.struct_size = sizeof desc, .tags = &self->tag, .tag_count = 1};
  const double start = now_s();
  self->info = (gmm_job_info){.struct_size = sizeof self->info};
  self->result = self->pauses ? gmm_job_pause(self->job, &desc, NULL) : gmm_job_resume(self->job, &desc, NULL);
  if (self->result < 0) snprintf(self->message, sizeof self->message, "%s", gmm_last_error_message());
  self->seconds = now_s() - start;
  gmm_job_query(self->job, &self->info);
  return NULL;
}
static void start_rank(uint32_t i, bool pauses) {
  ranks[i].pauses = pauses;
  REQUIRE(pthread_create(&ranks[i].thread, NULL, operate, &ranks[i]) == 0);
}
// All ranks but one; MOST_RANKS: all.
static void operate_without(uint32_t absent, bool pauses) {
  for (uint32_t i = 0; i < rank_count; ++i)
    if (i != absent) start_rank(i, pauses);
  for (uint32_t i = 0; i < rank_count; ++i)
    if (i != absent) pthread_join(ranks[i].thread, NULL);
}
static void operate_all(bool pauses) { operate_without(MOST_RANKS, pauses); }

static void all_are(gmm_state state) {
  gmm_context *const first = context;
  for (uint32_t i = 0; i < rank_count; ++i) {
    context = ranks[i].context;
    CHECK_EQUAL(query(ranks[i].block).state, state);
    if (state == GMM_STATE_ACTIVE) CHECK_PATTERN(ranks[i].block, SIZE, ranks[i].seed);
  }
  context = first;
}
static void all_say(gmm_result result, gmm_job_state state, int32_t failed) {
  for (uint32_t i = 0; i < rank_count; ++i) {
    CHECK_MESSAGE(ranks[i].result == result, "rank %u: %s, %s", i, gmm_result_name(ranks[i].result), ranks[i].message);
    CHECK_EQUAL(ranks[i].info.state, state);
    CHECK_EQUAL(ranks[i].info.failed_rank, failed);
  }
}

static void ranks_pause_and_resume_as_one(void) {
  for (uint32_t count = 1; count <= MOST_RANKS; ++count) {
    make_job(count, 60000);
    for (uint64_t epoch = 1; epoch <= 6; epoch += 2) {
      operate_all(true);
      all_say(GMM_OK, GMM_JOB_COMMITTED, -1);
      all_are(GMM_STATE_PAUSED);
      CHECK_EQUAL(ranks[0].info.epoch, epoch);
      CHECK(ranks[0].info.bytes >= SIZE);
      CHECK_EQUAL(ranks[count - 1].info.job_bytes, count * ranks[0].info.bytes);
      operate_all(false);
      all_say(GMM_OK, GMM_JOB_COMMITTED, -1);
      all_are(GMM_STATE_ACTIVE);
      CHECK_EQUAL(ranks[0].info.job_bytes, count * ranks[0].info.bytes);
    }
    // Those of the last operation are left.
    CHECK_EQUAL(registers_set(), 3 * (int)count + 3);
    end_job();
  }
}

// A rank without memory of the tag takes part.
static void a_rank_without_memory_takes_part(void) {
  make_job(2, 60000);
  OK(gmm_pause(ranks[1].context, NULL, NULL));
  operate_all(true);
  all_say(GMM_OK, GMM_JOB_COMMITTED, -1);
  all_are(GMM_STATE_PAUSED);
  CHECK_EQUAL(ranks[1].info.bytes, 0);
  CHECK_EQUAL(ranks[1].info.job_bytes, ranks[0].info.bytes);
  operate_all(false);
  all_are(GMM_STATE_ACTIVE);
  end_job();
}

static int32_t refuse(void *user, const gmm_watch_info *info) {
  atomic_int *calls = user;
  atomic_fetch_add(calls, 1);
  return info->event == GMM_WATCH_PREPARE ? 5 : 0;
}
static void a_watcher_of_one_rank_stops_all(void) {
  make_job(3, 60000);
  atomic_int calls = 0;
  const gmm_watch_desc desc = {.struct_size = sizeof desc,
                               .events = GMM_WATCH_PREPARE,
                               .tag = ranks[1].tag,
                               .name = "windows",
                               .callback = {refuse, &calls}};
  gmm_watcher *watcher = NULL;
  MUST(gmm_watch(ranks[1].context, &desc, &watcher));
  operate_all(true);
  all_say(GMM_ERROR_BUSY, GMM_JOB_ABORTED, 1);
  CHECK_EQUAL(ranks[2].info.cause, GMM_ERROR_BUSY);
  CHECK_MESSAGE(strstr(ranks[2].message, "rank 1") != NULL && strstr(ranks[2].message, "windows") != NULL, "%s",
                ranks[2].message);
  all_are(GMM_STATE_ACTIVE);
  OK(gmm_watcher_destroy(watcher));
  operate_all(true);
  all_say(GMM_OK, GMM_JOB_COMMITTED, -1);
  operate_all(false);
  all_are(GMM_STATE_ACTIVE);
  end_job();
}

// One rank cannot have its pages: all stay paused, and no rank keeps the pages that it held.
static void all_hold_pages_or_none_resumes(void) {
  make_job(3, 60000);
  operate_all(true);
  gmm_scope_desc all = scope_of(0, 0, 0, 0);
  MUST(gmm_limit_set(ranks[2].context, &all, MIB));
  for (int again = 0; again < 2; ++again) {
    operate_all(false);
    all_say(GMM_ERROR_LIMIT_EXCEEDED, GMM_JOB_ABORTED, 2);
    all_are(GMM_STATE_PAUSED);
    gmm_context *const first = context;
    for (uint32_t i = 0; i < rank_count; ++i) {
      context = ranks[i].context;
      CHECK_EQUAL(stats().reserved_bytes, 0);
    }
    context = first;
  }
  MUST(gmm_limit_set(ranks[2].context, &all, GMM_NO_LIMIT));
  operate_all(false);
  all_say(GMM_OK, GMM_JOB_COMMITTED, -1);
  all_are(GMM_STATE_ACTIVE);
  end_job();
}

// A rank that never comes is named. Its own call finds the answer later, and the next operation is whole.
static void a_late_rank_is_named(void) {
  if (device != 0) return;
  for (uint32_t late = 0; late < MOST_RANKS; ++late) {
    make_job(3, SHORT_MS);
    operate_without(late, true);
    operate(&ranks[late]);
    all_say(GMM_ERROR_NOT_READY, GMM_JOB_ABORTED, (int32_t)late);
    char name[32];
    snprintf(name, sizeof name, "rank %u did not answer", late);
    CHECK_MESSAGE(strstr(ranks[(late + 1) % 3].message, name) != NULL, "%s", ranks[(late + 1) % 3].message);
    all_are(GMM_STATE_ACTIVE);
    end_job();
  }
}

// Ranks ask for different things.
static void different_calls_are_refused(void) {
  make_job(2, 60000);
  start_rank(0, true);
  start_rank(1, false);
  for (int i = 0; i < 2; ++i) pthread_join(ranks[i].thread, NULL);
  all_say(GMM_ERROR_INVALID_VALUE, GMM_JOB_ABORTED, 1);
  all_are(GMM_STATE_ACTIVE);
  end_job();
}

// A wrong call of one rank counts as its operation, so all ranks stay in step.
static void a_wrong_call_of_one_rank_is_told_to_all(void) {
  make_job(2, 60000);
  const gmm_tag right = ranks[1].tag;
  ranks[1].tag = 3999;
  operate_all(true);
  all_say(GMM_ERROR_INVALID_TAG, GMM_JOB_ABORTED, 1);
  CHECK_MESSAGE(strstr(ranks[0].message, "3999") != NULL, "%s", ranks[0].message);
  ranks[1].tag = right;
  operate_all(true);
  all_say(GMM_OK, GMM_JOB_COMMITTED, -1);
  CHECK_EQUAL(ranks[1].info.epoch, 2);
  operate_all(false);
  all_are(GMM_STATE_ACTIVE);
  end_job();
}

// Two processes with one rank, or a name that was used before.
static void another_process_in_the_place_is_told(void) {
  make_job(1, 60000);
  operate_all(true);
  operate_all(false);
  board.count = 0;
  strcpy(board.key[board.count], "job/3/in/0");
  strcpy(board.value[board.count++], "0123456789abcdef pause");
  operate_all(true);
  all_say(GMM_ERROR_INVALID_VALUE, GMM_JOB_ABORTED, 0);
  all_are(GMM_STATE_ACTIVE);
  end_job();
}

// The exchange goes away on a rank. Before it agreed it undoes. Afterwards it is in doubt, and finds out what was
// decided.
static void a_rank_in_doubt_finds_out(void) {
  if (device != 0) return;
  static const char *const before[] = {"go", "ready", "decision", "end"};
  for (int at = 0; at < 4; ++at)
    for (uint32_t cut = at == 0 || at == 3 ? 1 : 0; cut < (at == 1 ? 1 : 2); ++cut) {
      make_job(2, SHORT_MS);
      ranks[cut].cut_before = before[at];
      operate_all(true);
      rank *other = &ranks[1 - cut], *self = &ranks[cut];
      const bool committed = other->info.state == GMM_JOB_COMMITTED;
      CHECK(other->info.state != GMM_JOB_IN_DOUBT);
      CHECK_EQUAL(self->info.state, at == 0                ? GMM_JOB_ABORTED
                                    : before[at][0] == 'e' ? GMM_JOB_COMMITTED
                                                           : GMM_JOB_IN_DOUBT);
      if (self->info.state == GMM_JOB_IN_DOUBT) {
        CHECK_EQUAL(self->result, GMM_ERROR_NOT_READY);
        // Its memory is usable, and waits for nobody.
        gmm_context *const first = context;
        context = self->context;
        CHECK_EQUAL(query(self->block).state, GMM_STATE_ACTIVE);
        CHECK_PATTERN(self->block, SIZE, self->seed);
        self->seed += 20;  // what it holds by the next call is kept
        write_pattern(self->block, SIZE, self->seed, GMM_STREAM_DEFAULT);
        context = first;
        CHECK_EQUAL(gmm_job_resume(self->job, NULL, NULL), GMM_ERROR_BUSY);
        self->cut_before = NULL;
        atomic_store(&self->is_cut_off, 0);
        operate(self);
        CHECK_EQUAL(self->info.state, other->info.state);
        CHECK_EQUAL(self->info.epoch, 1);
      }
      self->cut_before = NULL;
      atomic_store(&self->is_cut_off, 0);
      all_are(committed ? GMM_STATE_PAUSED : GMM_STATE_ACTIVE);
      operate_all(false);
      all_say(GMM_OK, GMM_JOB_COMMITTED, -1);
      all_are(GMM_STATE_ACTIVE);
      end_job();
    }
}

// Who gives up in doubt has its memory as before.
static void the_end_of_a_job_in_doubt_undoes(void) {
  if (device != 0) return;
  make_job(2, SHORT_MS);
  ranks[1].cut_before = "decision";
  operate_all(true);
  CHECK_EQUAL(ranks[1].info.state, GMM_JOB_IN_DOUBT);
  OK(gmm_job_destroy(ranks[1].job));
  ranks[1].job = NULL;
  gmm_context *const first = context;
  context = ranks[1].context;
  CHECK_EQUAL(query(ranks[1].block).state, GMM_STATE_ACTIVE);
  CHECK_PATTERN(ranks[1].block, SIZE, 11);
  OK(gmm_pause(context, NULL, NULL));
  OK(gmm_resume(context, NULL, NULL));
  CHECK_PATTERN(ranks[1].block, SIZE, 11);
  context = first;
  end_job();
}

// While others decide, a free waits for nobody, an allocation is active, and another thread learns that it is busy.
static void *spare, *last_block;
static gmm_heap *ending;
static gmm_ipc_handle exported;
static void use_memory_meanwhile(rank *self, const char *key) {
  if (strstr(key, "ready/") == NULL || spare == NULL) return;
  OK(gmm_free(self->context, spare, GMM_STREAM_DEFAULT));
  gmm_alloc_desc desc = alloc_desc();
  desc.tag = self->tag;
  OK(gmm_alloc(self->context, SIZE, &desc, &spare));
  RESULT(gmm_job_pause(self->job, NULL, NULL), GMM_ERROR_BUSY);
  RESULT(gmm_job_destroy(self->job), GMM_ERROR_BUSY);
  // The job waits for this thread, so this thread cannot wait for the end of the job's visit.
  OK(gmm_free(self->context, last_block, GMM_STREAM_DEFAULT));
  RESULT(gmm_heap_destroy(ending), GMM_ERROR_BUSY);
  // An importer would be in the way of what this rank has agreed to: it waits.
  const gmm_ipc_import_desc soon = {.struct_size = sizeof soon, .device = device, .timeout_ms = 100};
  void *imported = NULL;
  RESULT(gmm_ipc_import(ranks[1].context, &exported, &soon, &imported), GMM_ERROR_IPC_TIMEOUT);
  gmm_job_info info = {.struct_size = sizeof info};
  OK(gmm_job_query(self->job, &info));
  CHECK_EQUAL(info.state, GMM_JOB_RUNNING);
}
static void memory_is_free_while_others_decide(void) {
  make_job(2, 60000);
  spare = ALLOC_TAG(SIZE, ranks[0].tag);
  void *const before = spare;
  const gmm_heap_desc desc = {.struct_size = sizeof desc, .kind = GMM_KIND_VMM, .device = device, .tag = ranks[0].tag};
  MUST(gmm_heap_create(context, &desc, &ending));
  MUST(gmm_heap_alloc(ending, SIZE, 0, 0, GMM_STREAM_DEFAULT, &last_block));
  OK(gmm_ipc_export(context, ranks[0].block, &exported));
  ranks[0].before_set = use_memory_meanwhile;
  operate_all(true);
  all_say(GMM_OK, GMM_JOB_COMMITTED, -1);
  CHECK(spare != before || query(spare).state == GMM_STATE_ACTIVE);
  CHECK_EQUAL(query(spare).state, GMM_STATE_ACTIVE);
  CHECK_EQUAL(query(ranks[0].block).state, GMM_STATE_PAUSED);
  ranks[0].before_set = NULL;
  OK(gmm_heap_destroy(ending));
  OK(gmm_free(context, spare, GMM_STREAM_DEFAULT));
  operate_all(false);
  all_are(GMM_STATE_ACTIVE);
  end_job();
}

int main(void) {
  const gmm_kind_mask vmm = 1u << GMM_KIND_VMM;
  KINDS(ranks_pause_and_resume_as_one, vmm);
  KINDS(a_rank_without_memory_takes_part, vmm);
  KINDS(a_watcher_of_one_rank_stops_all, vmm);
  KINDS(all_hold_pages_or_none_resumes, vmm);
  KINDS(a_late_rank_is_named, vmm);
  KINDS(different_calls_are_refused, vmm);
  KINDS(a_wrong_call_of_one_rank_is_told_to_all, vmm);
  KINDS(another_process_in_the_place_is_told, vmm);
  KINDS(a_rank_in_doubt_finds_out, vmm);
  KINDS(the_end_of_a_job_in_doubt_undoes, vmm);
  KINDS(memory_is_free_while_others_decide, vmm);
  return check_finish();
}
