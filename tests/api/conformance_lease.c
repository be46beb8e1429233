// SPDX-License-Identifier: Apache-2.0
// lease.h: several members share a device. A member is a context here; lease_processes.c has processes.
#include "lease_support.h"

enum { MEMBERS = 3, SHORT_MS = 300, LONG_MS = 30000 };

typedef struct party {
  gmm_context *context;
  gmm_lease *lease;
  gmm_tag tag;
  void *block;
  uint32_t seed;
  atomic_int asked, returns;  // calls; whether the call returns the lease
  gmm_lease_ask last;
  gmm_result inside[4];
  gmm_ticket *ticket;
} party;
static party parties[MEMBERS];

static int32_t hear(void *user, const gmm_lease_ask *ask) {
  CHECK_EQUAL(ask->struct_size, sizeof *ask);
  party *self = user;
  self->last = *ask;
  self->inside[0] = gmm_lease_request(self->lease, NULL, NULL);
  self->inside[1] = gmm_lease_destroy(self->lease);
  if (self->ticket != NULL) self->inside[3] = gmm_ticket_wait(self->ticket, LONG_MS, NULL);
  if (atomic_load(&self->returns)) self->inside[2] = gmm_lease_return(self->lease);
  atomic_fetch_add(&self->asked, 1);
  return 0;
}

// The cases rest on a device that processes share. A real one has room for all.
static void need_small_card(void) {
  if (device_info.total_memory != CARD) SKIP("a real device has room for all");
}
static void join_leases(uint32_t count, uint64_t floor_bytes) {
  need_small_card();
  gmm_context *const first = context;
  memset(parties, 0, sizeof parties);
  for (uint32_t i = 0; i < count; ++i) {
    party *self = &parties[i];
    char name[16];
    context = self->context = i == 0 ? first : open_context(2);
    self->seed = 40 + i;
    self->tag = make_tag("weights", GMM_CONTENTS_HOST);
    snprintf(name, sizeof name, "party%u", i);
    MUST(gmm_lease_create(context,
                          DESC(lease_desc, .name = name, .floor_bytes = i == 0 ? floor_bytes : 0, .residency_ms = 1,
                               .asked = {hear, self}),
                          &self->lease));
    OK(gmm_lease_offer(self->lease, make_tag("cache", GMM_CONTENTS_HOST), 2));
    OK(gmm_lease_offer(self->lease, self->tag, 1));
  }
  context = first;
}
static void leave_leases(uint32_t count) {
  for (uint32_t i = count; i-- != 0;) {
    OK(gmm_lease_destroy(parties[i].lease));
    if (i != 0) OK(gmm_context_release(parties[i].context));
  }
}
static gmm_result ask_for(party *self, uint64_t bytes, uint64_t timeout_ms) {
  return request_of(self->lease, bytes, timeout_ms);
}
static gmm_lease_info info_of(party *self) {
  gmm_lease_info info = {.struct_size = sizeof info};
  OK(gmm_lease_query(self->lease, &info));
  return info;
}
// In the context of the party.
static void check_contents(party *self) {
  gmm_context *const first = context;
  context = self->context;
  CHECK_PATTERN(self->block, PART, self->seed);
  context = first;
}
static void write_block(party *self) {
  gmm_context *const first = context;
  context = self->context;
  self->block = FILLED_TAG(PART, self->tag, self->seed);
  context = first;
}
static gmm_state state_in(party *self) {
  gmm_pointer_info info = {.struct_size = sizeof info};
  return gmm_query(self->context, self->block, &info) == GMM_OK ? info.state : 0;
}
// Each has PART bytes under its tag, and nobody uses them. The last one's are active.
static void fill(uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    MUST(ask_for(&parties[i], PART, LONG_MS));
    write_block(&parties[i]);
    OK(gmm_lease_return(parties[i].lease));
  }
}

// The other cases rest on this: a process measures the memory of others, and cannot take it.
VMM_CASE(a_card_is_shared) {
  need_small_card();
  gmm_context *const first = context;
  void *const block = ALLOC(PART);
  context = open_context(2);
  read_device(device);
  CHECK_EQUAL(device_info.free_memory, CARD - PART);
  void *none = NULL;
  RESULT(try_alloc(PART, GMM_TAG_CURRENT, &none), GMM_ERROR_OUT_OF_MEMORY);
  ALLOC(CARD - PART);
  OK(gmm_free(first, block, GMM_STREAM_DEFAULT));
  OK(gmm_trim(first, NULL, NULL));
  ALLOC(PART);
  OK(gmm_context_release(context));
  context = first;
  read_device(device);
}

VMM_CASE(members_alternate) {
  join_leases(MEMBERS, 0);
  fill(MEMBERS);
  for (uint32_t round = 0; round < 6; ++round) {
    party *self = &parties[round % MEMBERS];
    OK(ask_for(self, 0, LONG_MS));
    CHECK_EQUAL(info_of(self).state, GMM_LEASE_IN_USE);
    CHECK_EQUAL(state_in(self), GMM_STATE_ACTIVE);
    check_contents(self);
    for (uint32_t i = 0; i < MEMBERS; ++i)
      if (&parties[i] != self) CHECK_EQUAL(state_in(&parties[i]), GMM_STATE_PAUSED);
    OK(gmm_lease_return(self->lease));
    RESULT(gmm_lease_return(self->lease), GMM_UNCHANGED);
  }
  const gmm_lease_info info = info_of(&parties[0]);
  CHECK_EQUAL(info.grants, 3);
  CHECK(info.evictions >= 2 && info.evicted_bytes >= 2 * PART && info.paused_bytes >= PART && info.server != 0);
  CHECK(info.server_process > 0 && info.server_process != getpid());
  leave_leases(MEMBERS);
}

VMM_CASE(memory_in_use_stays) {
  join_leases(2, 0);
  fill(2);
  OK(ask_for(&parties[1], 0, LONG_MS));
  RESULT(ask_for(&parties[1], 0, LONG_MS), GMM_ERROR_BUSY);
  const double began = now_s();
  RESULT(ask_for(&parties[0], 0, SHORT_MS), GMM_ERROR_NOT_READY);
  CHECK(now_s() - began >= (SHORT_MS - 2) / 1000.0);
  CHECK_MESSAGE(message_has("\"party1\""), "no holder in: %s", gmm_last_error_message());
  CHECK_EQUAL(info_of(&parties[0]).state, GMM_LEASE_IDLE);
  CHECK_EQUAL(state_in(&parties[1]), GMM_STATE_ACTIVE);
  check_contents(&parties[1]);
  CHECK(atomic_load(&parties[1].asked) >= 1);
  CHECK_EQUAL(strcmp(parties[1].last.name, "party0"), 0);
  CHECK(parties[1].last.bytes >= PART && parties[1].last.process == getpid());
  CHECK_EQUAL(parties[1].inside[0], GMM_ERROR_BUSY);
  CHECK_EQUAL(parties[1].inside[1], GMM_ERROR_BUSY);
  OK(gmm_lease_return(parties[1].lease));
  OK(ask_for(&parties[0], 0, LONG_MS));
  check_contents(&parties[0]);
  leave_leases(2);
}

VMM_CASE(impossible_requests_are_denied) {
  join_leases(2, 0);
  fill(2);
  const double began = now_s();
  const uint64_t amounts[] = {UINT64_MAX, UINT64_MAX - PART + 1, UINT64_C(1) << 56};
  for (uint32_t i = 0; i < sizeof amounts / sizeof *amounts; ++i)
    for (uint32_t k = 0; k < 2; ++k) RESULT(ask_for(&parties[k], amounts[i], LONG_MS), GMM_ERROR_OUT_OF_MEMORY);
  RESULT(ask_for(&parties[0], CARD, LONG_MS), GMM_ERROR_OUT_OF_MEMORY);
  CHECK(now_s() - began < LONG_MS / 1000.0);
  CHECK_MESSAGE(message_has("\"party1\""), "no holder in: %s", gmm_last_error_message());
  // Nobody gave up anything for it.
  CHECK_EQUAL(state_in(&parties[1]), GMM_STATE_ACTIVE);
  // Memory that is not offered counts as gone.
  OK(gmm_lease_offer(parties[1].lease, parties[1].tag, GMM_LEASE_WITHDRAW));
  RESULT(ask_for(&parties[0], 0, LONG_MS), GMM_ERROR_OUT_OF_MEMORY);
  OK(gmm_lease_offer(parties[1].lease, parties[1].tag, 1));
  OK(ask_for(&parties[0], 0, LONG_MS));
  leave_leases(2);
}

VMM_CASE(amounts_are_kept) {
  join_leases(2, 0);
  OK(ask_for(&parties[0], PART, LONG_MS));
  // It has allocated nothing yet.
  RESULT(ask_for(&parties[1], PART, SHORT_MS), GMM_ERROR_NOT_READY);
  OK(ask_for(&parties[1], 4 * MIB, LONG_MS));
  write_block(&parties[0]);
  OK(gmm_lease_return(parties[1].lease));
  OK(gmm_lease_return(parties[0].lease));
  leave_leases(2);
}

// One of more than the device has is all of it, and others learn that. The server refuses no report of it.
VMM_CASE(a_floor_is_left) {
  const uint64_t floors[] = {8 * MIB, UINT64_MAX}, refused[] = {PART, 2 * MIB};
  for (uint32_t i = 0; i < 2; ++i) {
    join_leases(2, floors[i]);
    OK(ask_for(&parties[0], 2 * MIB, LONG_MS));  // the device is one that it uses
    OK(gmm_lease_return(parties[0].lease));
    RESULT(ask_for(&parties[1], refused[i], LONG_MS), GMM_ERROR_OUT_OF_MEMORY);
    CHECK_MESSAGE(message_has("\"party0\""), "no holder in: %s", gmm_last_error_message());
    if (i == 0) OK(ask_for(&parties[1], 7 * MIB, LONG_MS));
    if (i == 1) OK(ask_for(&parties[0], PART, LONG_MS));
    leave_leases(2);
  }
}

// Of the only lease.
static gmm_lease_entry_info entry_of_one(void) {
  gmm_lease_entry_info entry = {.struct_size = sizeof entry};
  OK(gmm_lease_list(context, 0, LONG_MS, &entry));
  CHECK_EQUAL(entry.entry_count, 1);
  return entry;
}
// Also while nobody waits.
VMM_CASE(an_offer_is_reported_at_once) {
  join_leases(1, 0);
  fill(1);
  SOON(entry_of_one().offered_bytes == PART);
  OK(gmm_lease_offer(parties[0].lease, parties[0].tag, GMM_LEASE_WITHDRAW));
  SOON(entry_of_one().offered_bytes == 0);
  OK(gmm_lease_offer(parties[0].lease, parties[0].tag, 1));
  SOON(entry_of_one().offered_bytes == PART);
  leave_leases(1);
}

VMM_CASE(one_lease_offers_a_tag) {
  join_leases(1, 0);
  gmm_lease *second = NULL;
  MUST(gmm_lease_create(context, DESC(lease_desc, .name = "second"), &second));
  RESULT(gmm_lease_offer(second, parties[0].tag, 1), GMM_ERROR_OFFERED);
  CHECK(message_has("\"weights\""));
  OK(gmm_lease_offer(second, parties[0].tag, GMM_LEASE_WITHDRAW));
  RESULT(gmm_lease_offer(second, parties[0].tag, 1), GMM_ERROR_OFFERED);
  OK(gmm_lease_offer(parties[0].lease, parties[0].tag, 2));
  OK(gmm_lease_offer(parties[0].lease, parties[0].tag, GMM_LEASE_WITHDRAW));
  OK(gmm_lease_offer(second, parties[0].tag, 1));
  RESULT(gmm_lease_offer(parties[0].lease, parties[0].tag, 1), GMM_ERROR_OFFERED);
  OK(gmm_lease_destroy(second));
  OK(gmm_lease_offer(parties[0].lease, parties[0].tag, 1));
  leave_leases(1);
}

// In `asked`, which must not wait for its own ticket.
VMM_CASE(an_asked_lease_may_return) {
  join_leases(2, 0);
  fill(2);
  party *const user = &parties[1];
  MUST(gmm_lease_request(user->lease, NULL, &user->ticket));
  OK(gmm_ticket_wait(user->ticket, LONG_MS, NULL));
  atomic_store(&user->returns, 1);
  OK(ask_for(&parties[0], 0, LONG_MS));
  CHECK_EQUAL(user->inside[3], GMM_ERROR_BUSY);
  CHECK_EQUAL(user->inside[2], GMM_OK);
  CHECK_EQUAL(state_in(user), GMM_STATE_PAUSED);
  check_contents(&parties[0]);
  OK(gmm_ticket_wait(user->ticket, 0, NULL));
  OK(gmm_ticket_destroy(user->ticket));
  leave_leases(2);
}

VMM_CASE(a_ticket_waits) {
  join_leases(2, 0);
  fill(2);
  OK(ask_for(&parties[1], 0, LONG_MS));
  gmm_ticket *ticket = NULL;
  MUST(gmm_lease_request(parties[0].lease, NULL, &ticket));
  RESULT(gmm_ticket_wait(ticket, SHORT_MS, NULL), GMM_ERROR_NOT_READY);
  SOON(info_of(&parties[0]).state == GMM_LEASE_WAITING);
  RESULT(gmm_lease_destroy(parties[0].lease), GMM_ERROR_BUSY);
  OK(gmm_ticket_cancel(ticket));
  RESULT(gmm_ticket_wait(ticket, LONG_MS, NULL), GMM_ERROR_CANCELLED);
  OK(gmm_ticket_destroy(ticket));
  MUST(gmm_lease_request(parties[0].lease, NULL, &ticket));
  OK(gmm_lease_return(parties[1].lease));
  uint64_t bytes = 0;
  OK(gmm_ticket_wait(ticket, LONG_MS, &bytes));
  CHECK(bytes >= PART);
  check_contents(&parties[0]);
  OK(gmm_ticket_destroy(ticket));
  leave_leases(2);
}

static int32_t refuse(void *user, const gmm_watch_info *info) {
  (void)user;
  return info->event == GMM_WATCH_PREPARE;
}
VMM_CASE(a_watcher_keeps_memory) {
  join_leases(2, 0);
  fill(2);
  gmm_watcher *watcher = NULL;
  MUST(gmm_watch(parties[1].context,
                 DESC(watch_desc, .events = GMM_WATCH_PREPARE, .tag = parties[1].tag, .name = "keeper",
                      .callback = {refuse, NULL}),
                 &watcher));
  RESULT(ask_for(&parties[0], 0, SHORT_MS), GMM_ERROR_NOT_READY);
  CHECK_EQUAL(state_in(&parties[1]), GMM_STATE_ACTIVE);
  check_contents(&parties[1]);
  OK(gmm_watcher_destroy(watcher));
  OK(ask_for(&parties[0], 0, LONG_MS));
  check_contents(&parties[0]);
  leave_leases(2);
}

// The end of a tag ends its offer; another lease may offer the tags that the first one had.
VMM_CASE(a_destroyed_tag_is_not_offered) {
  join_leases(2, 0);
  fill(2);
  OK(gmm_free(parties[1].context, parties[1].block, GMM_STREAM_DEFAULT));
  OK(gmm_tag_destroy(parties[1].context, parties[1].tag));
  OK(ask_for(&parties[0], 0, LONG_MS));
  OK(gmm_lease_return(parties[0].lease));
  OK(ask_for(&parties[1], 0, LONG_MS));
  CHECK_EQUAL(info_of(&parties[1]).active_bytes, 0);
  OK(gmm_lease_offer(parties[1].lease, parties[1].tag, GMM_LEASE_WITHDRAW));
  leave_leases(2);
}

// A server has as many members as come, and lists them all.
CASE(a_hundred_leases_are_listed) {
  enum { MANY = 100 };
  gmm_lease *leases[MANY] = {NULL};
  gmm_lease_info info = {.struct_size = sizeof info};
  for (uint32_t i = 0; i < MANY; ++i) {
    char name[16];
    snprintf(name, sizeof name, "lease%u", i);
    MUST(gmm_lease_create(context, DESC(lease_desc, .name = name, .priority = (int32_t)i), &leases[i]));
  }
  for (uint32_t i = 0; i < MANY; ++i) SOON(gmm_lease_query(leases[i], &info) == GMM_OK && info.server != 0);
  gmm_lease_entry_info entry = {.struct_size = sizeof entry};
  bool is_listed[MANY] = {false};
  for (uint64_t i = 0; gmm_lease_list(context, i, LONG_MS, &entry) == GMM_OK; ++i) {
    CHECK_EQUAL(entry.entry_count, MANY);
    CHECK(entry.process == getpid() && entry.server == info.server && entry.server_process == info.server_process);
    CHECK(entry.state == GMM_LEASE_IDLE && entry.priority >= 0 && entry.priority < MANY);
    is_listed[entry.priority] = atoi(entry.name + 5) == entry.priority;
  }
  for (uint32_t i = 0; i < MANY; ++i) CHECK(is_listed[i]);
  RESULT(gmm_lease_list(context, MANY, LONG_MS, &entry), GMM_UNCHANGED);
  CHECK_EQUAL(entry.entry_count, MANY);
  for (uint32_t i = 0; i < MANY; ++i) OK(gmm_lease_destroy(leases[i]));
}

// A context whose server has this folder of the test.
static gmm_context *open_in(const char *path) {
  gmm_context *const opened = open_context(1);
  const uint32_t user = (uint32_t)getuid();
  OK(gmm_ipc_configure(opened, DESC(ipc_desc, .directory = path, .users = &user, .user_count = 1)));
  return opened;
}

// The list starts no server.
CASE(a_missing_server_is_named) {
  char path[96];
  snprintf(path, sizeof path, "%s/none", folder);
  gmm_context *const of = open_in(path);
  RESULT(gmm_lease_list(of, 0, SHORT_MS, DESC(lease_entry_info)), GMM_ERROR_NOT_READY);
  CHECK(message_has(path));
  OK(gmm_context_release(of));
  rmdir(path);
}

CASE(a_lost_server_is_named) {
  char path[96], name[128];
  snprintf(path, sizeof path, "%s/lost", folder);
  snprintf(name, sizeof name, "%s/serve.sock", path);
  gmm_context *const of = open_in(path);
  gmm_lease *lease = NULL;
  MUST(gmm_lease_create(of, DESC(lease_desc, .name = "lost"), &lease));
  gmm_lease_info info = {.struct_size = sizeof info};
  SOON(gmm_lease_query(lease, &info) == GMM_OK && info.server != 0);
  const uint64_t before = info.server;
  // The deleted socket's server ends, and the next one makes it anew.
  OK(unlink(name));
  SOON(gmm_lease_query(lease, &info) == GMM_OK && info.server > before);
  OK(unlink(name));
  OK(rmdir(path));
  SOON(gmm_lease_query(lease, &info) == GMM_OK && info.server == 0);
  RESULT(request_of(lease, MIB, SHORT_MS), GMM_ERROR_NOT_READY);
  CHECK_MESSAGE(message_has("`gmm serve`") && message_has(path), "%s", gmm_last_error_message());
  OK(gmm_lease_destroy(lease));
  OK(gmm_context_release(of));
  unlink(name);
  rmdir(path);
}

int main(void) {
  make_card();
  const int code = run_cases();
  remove_card();
  return code;
}
