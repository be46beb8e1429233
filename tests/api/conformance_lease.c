// SPDX-License-Identifier: Apache-2.0
// lease.h: several members share a device. A member is a context here; lease_processes.c has processes.

#include "counted_allocator.h"
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

static void join_leases(uint32_t count, uint64_t floor_bytes) {
  gmm_context *const first = context;
  memset(parties, 0, sizeof parties);
  for (uint32_t i = 0; i < count; ++i) {
    party *self = &parties[i];
    context = self->context = i == 0 ? first : open_context(2);
    self->seed = 40 + i;
    self->tag = make_tag("weights", GMM_CONTENTS_HOST);
    char name[16];
    snprintf(name, sizeof name, "party%u", i);
    const gmm_lease_desc desc = {.struct_size = sizeof desc,
                                 .name = name,
                                 .floor_bytes = i == 0 ? floor_bytes : 0,
                                 .residency_ms = 1,
                                 .asked = {hear, self}};
    MUST(gmm_lease_create(self->context, &desc, &self->lease));
    OK(gmm_lease_offer(self->lease, self->tag, 1));
  }
  context = first;
}
static void leave_leases(uint32_t count) {
  gmm_context *const first = context;
  for (uint32_t i = count; i-- != 0;) {
    party *self = &parties[i];
    OK(gmm_lease_destroy(self->lease));
    if (self->block != NULL) OK(gmm_free(self->context, self->block, GMM_STREAM_DEFAULT));
    if (i != 0) OK(gmm_context_release(self->context));
  }
  context = first;
}
static gmm_result ask_for(party *self, uint64_t bytes, uint64_t timeout_ms) {
  const gmm_lease_amount amount = {.device = device, .bytes = bytes};
  const gmm_lease_request_desc desc = {
      .struct_size = sizeof desc, .amounts = &amount, .amount_count = bytes != 0 ? 1 : 0, .timeout_ms = timeout_ms};
  return gmm_lease_request(self->lease, &desc, NULL);
}
static gmm_lease_info info_of(party *self) {
  gmm_lease_info info = {.struct_size = sizeof info};
  OK(gmm_lease_query(self->lease, &info));
  return info;
}
// Of another context than the case's.
static void with_block(party *self, bool writes) {
  gmm_context *const first = context;
  context = self->context;
  if (writes) {
    self->block = ALLOC_TAG(PART, self->tag);
    if (self->block != NULL) write_pattern(self->block, PART, self->seed, GMM_STREAM_DEFAULT);
  } else {
    CHECK_PATTERN(self->block, PART, self->seed);
  }
  context = first;
}
static gmm_state state_of(party *self) {
  gmm_pointer_info info = {.struct_size = sizeof info};
  return gmm_query(self->context, self->block, &info) == GMM_OK ? info.state : 0;
}
// Each has PART bytes under its tag, and nobody uses them. The last one's are active.
static void fill(uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    MUST(ask_for(&parties[i], PART, LONG_MS));
    with_block(&parties[i], true);
    OK(gmm_lease_return(parties[i].lease));
  }
}

// The other cases rest on this: a process measures the memory of others, and cannot take it.
static void a_card_is_shared(void) {
  gmm_context *const first = context;
  void *const block = ALLOC(PART);
  context = open_context(2);
  read_device(device);
  CHECK_EQUAL(device_info.free_memory, CARD - PART);
  gmm_alloc_desc desc = alloc_desc();
  void *none = NULL;
  RESULT(gmm_alloc(context, PART, &desc, &none), GMM_ERROR_OUT_OF_MEMORY);
  void *const small = ALLOC(CARD - PART);
  OK(gmm_free(first, block, GMM_STREAM_DEFAULT));
  OK(gmm_trim(first, NULL, NULL));
  void *const large = ALLOC(PART);
  OK(gmm_free(context, small, GMM_STREAM_DEFAULT));
  OK(gmm_free(context, large, GMM_STREAM_DEFAULT));
  OK(gmm_context_release(context));
  context = first;
  read_device(device);
}

static void members_alternate(void) {
  join_leases(MEMBERS, 0);
  fill(MEMBERS);
  for (uint32_t round = 0; round < 6; ++round) {
    party *self = &parties[round % MEMBERS];
    OK(ask_for(self, 0, LONG_MS));
    CHECK_EQUAL(info_of(self).state, GMM_LEASE_IN_USE);
    CHECK_EQUAL(state_of(self), GMM_STATE_ACTIVE);
    with_block(self, false);
    for (uint32_t i = 0; i < MEMBERS; ++i)
      if (&parties[i] != self) CHECK_EQUAL(state_of(&parties[i]), GMM_STATE_PAUSED);
    OK(gmm_lease_return(self->lease));
    RESULT(gmm_lease_return(self->lease), GMM_UNCHANGED);
  }
  const gmm_lease_info info = info_of(&parties[0]);
  CHECK_EQUAL(info.grants, 3);
  CHECK(info.evictions >= 2 && info.evicted_bytes >= 2 * PART && info.paused_bytes >= PART && info.server != 0);
  CHECK(info.server_process > 0 && info.server_process != getpid());
  leave_leases(MEMBERS);
}

static void memory_in_use_stays(void) {
  join_leases(2, 0);
  fill(2);
  OK(ask_for(&parties[1], 0, LONG_MS));
  RESULT(ask_for(&parties[1], 0, LONG_MS), GMM_ERROR_BUSY);
  const double began = now_s();
  RESULT(ask_for(&parties[0], 0, SHORT_MS), GMM_ERROR_NOT_READY);
  CHECK(now_s() - began >= (SHORT_MS - 2) / 1000.0);
  CHECK_MESSAGE(strstr(gmm_last_error_message(), "\"party1\"") != NULL, "no holder in: %s", gmm_last_error_message());
  CHECK_EQUAL(info_of(&parties[0]).state, GMM_LEASE_IDLE);
  CHECK_EQUAL(state_of(&parties[1]), GMM_STATE_ACTIVE);
  with_block(&parties[1], false);
  CHECK(atomic_load(&parties[1].asked) >= 1);
  CHECK_EQUAL(strcmp(parties[1].last.name, "party0"), 0);
  CHECK(parties[1].last.bytes >= PART && parties[1].last.process == getpid());
  CHECK_EQUAL(parties[1].inside[0], GMM_ERROR_BUSY);
  CHECK_EQUAL(parties[1].inside[1], GMM_ERROR_BUSY);
  OK(gmm_lease_return(parties[1].lease));
  OK(ask_for(&parties[0], 0, LONG_MS));
  with_block(&parties[0], false);
  leave_leases(2);
}

static void impossible_requests_are_denied(void) {
  join_leases(2, 0);
  fill(2);
  const double began = now_s();
  const uint64_t amounts[] = {UINT64_MAX, UINT64_MAX - PART + 1, UINT64_C(1) << 56};
  for (uint32_t i = 0; i < sizeof amounts / sizeof *amounts; ++i)
    for (uint32_t k = 0; k < 2; ++k) RESULT(ask_for(&parties[k], amounts[i], LONG_MS), GMM_ERROR_OUT_OF_MEMORY);
  RESULT(ask_for(&parties[0], CARD, LONG_MS), GMM_ERROR_OUT_OF_MEMORY);
  CHECK(now_s() - began < LONG_MS / 1000.0);
  CHECK_MESSAGE(strstr(gmm_last_error_message(), "\"party1\"") != NULL, "no holder in: %s", gmm_last_error_message());
  // Nobody gave up anything for it.
  CHECK_EQUAL(state_of(&parties[1]), GMM_STATE_ACTIVE);
  // Memory that is not offered counts as gone.
  OK(gmm_lease_offer(parties[1].lease, parties[1].tag, GMM_LEASE_WITHDRAW));
  RESULT(ask_for(&parties[0], 0, LONG_MS), GMM_ERROR_OUT_OF_MEMORY);
  OK(gmm_lease_offer(parties[1].lease, parties[1].tag, 1));
  OK(ask_for(&parties[0], 0, LONG_MS));
  leave_leases(2);
}

static void amounts_are_kept(void) {
  join_leases(2, 0);
  OK(ask_for(&parties[0], PART, LONG_MS));
  // It has allocated nothing yet.
  RESULT(ask_for(&parties[1], PART, SHORT_MS), GMM_ERROR_NOT_READY);
  OK(ask_for(&parties[1], 16 * MIB, LONG_MS));
  with_block(&parties[0], true);
  OK(gmm_lease_return(parties[1].lease));
  OK(gmm_lease_return(parties[0].lease));
  leave_leases(2);
}

// One of more than the device has is all of it, and others learn that. The server refuses no report of it.
static void a_floor_is_left(void) {
  const uint64_t floors[] = {32 * MIB, UINT64_MAX}, refused[] = {PART, 2 * MIB};
  for (uint32_t i = 0; i < 2; ++i) {
    join_leases(2, floors[i]);
    OK(ask_for(&parties[0], 2 * MIB, LONG_MS));  // the device is one that it uses
    OK(gmm_lease_return(parties[0].lease));
    RESULT(ask_for(&parties[1], refused[i], LONG_MS), GMM_ERROR_OUT_OF_MEMORY);
    CHECK_MESSAGE(strstr(gmm_last_error_message(), "\"party0\"") != NULL, "no holder in: %s", gmm_last_error_message());
    if (i == 0) OK(ask_for(&parties[1], 30 * MIB, LONG_MS));
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
static void an_offer_is_reported_at_once(void) {
  join_leases(1, 0);
  fill(1);
  SOON(entry_of_one().offered_bytes == PART);
  OK(gmm_lease_offer(parties[0].lease, parties[0].tag, GMM_LEASE_WITHDRAW));
  SOON(entry_of_one().offered_bytes == 0);
  OK(gmm_lease_offer(parties[0].lease, parties[0].tag, 1));
  SOON(entry_of_one().offered_bytes == PART);
  leave_leases(1);
}

static void one_lease_offers_a_tag(void) {
  join_leases(1, 0);
  const gmm_lease_desc desc = {.struct_size = sizeof desc, .name = "second"};
  gmm_lease *second = NULL;
  MUST(gmm_lease_create(context, &desc, &second));
  RESULT(gmm_lease_offer(second, parties[0].tag, 1), GMM_ERROR_OFFERED);
  CHECK(strstr(gmm_last_error_message(), "\"weights\"") != NULL);
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
static void an_asked_lease_may_return(void) {
  join_leases(2, 0);
  fill(2);
  party *const user = &parties[1];
  MUST(gmm_lease_request(user->lease, NULL, &user->ticket));
  OK(gmm_ticket_wait(user->ticket, LONG_MS, NULL));
  atomic_store(&user->returns, 1);
  OK(ask_for(&parties[0], 0, LONG_MS));
  CHECK_EQUAL(user->inside[3], GMM_ERROR_BUSY);
  CHECK_EQUAL(user->inside[2], GMM_OK);
  CHECK_EQUAL(state_of(user), GMM_STATE_PAUSED);
  with_block(&parties[0], false);
  OK(gmm_ticket_wait(user->ticket, 0, NULL));
  OK(gmm_ticket_destroy(user->ticket));
  leave_leases(2);
}

static void a_ticket_waits(void) {
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
  with_block(&parties[0], false);
  OK(gmm_ticket_destroy(ticket));
  leave_leases(2);
}

static int32_t refuse(void *user, const gmm_watch_info *info) {
  (void)user;
  return info->event == GMM_WATCH_PREPARE;
}
static void a_watcher_keeps_memory(void) {
  join_leases(2, 0);
  fill(2);
  const gmm_watch_desc desc = {.struct_size = sizeof desc,
                               .events = GMM_WATCH_PREPARE,
                               .tag = parties[1].tag,
                               .name = "keeper",
                               .callback = {refuse, NULL}};
  gmm_watcher *watcher = NULL;
  MUST(gmm_watch(parties[1].context, &desc, &watcher));
  RESULT(ask_for(&parties[0], 0, SHORT_MS), GMM_ERROR_NOT_READY);
  CHECK_EQUAL(state_of(&parties[1]), GMM_STATE_ACTIVE);
  with_block(&parties[1], false);
  OK(gmm_watcher_destroy(watcher));
  OK(ask_for(&parties[0], 0, LONG_MS));
  with_block(&parties[0], false);
  leave_leases(2);
}

// The end of a tag ends its offer; another lease may offer the tags that the first one had.
static void a_destroyed_tag_is_not_offered(void) {
  join_leases(2, 0);
  fill(2);
  OK(gmm_free(parties[1].context, parties[1].block, GMM_STREAM_DEFAULT));
  parties[1].block = NULL;
  OK(gmm_tag_destroy(parties[1].context, parties[1].tag));
  OK(ask_for(&parties[0], 0, LONG_MS));
  OK(gmm_lease_return(parties[0].lease));
  OK(ask_for(&parties[1], 0, LONG_MS));
  CHECK_EQUAL(info_of(&parties[1]).active_bytes, 0);
  OK(gmm_lease_offer(parties[1].lease, parties[1].tag, GMM_LEASE_WITHDRAW));
  leave_leases(2);
}

// A server has as many members as come, and lists them all.
static void a_hundred_leases_are_listed(void) {
  enum { MANY = 100 };
  gmm_lease *leases[MANY] = {NULL};
  gmm_lease_info info = {.struct_size = sizeof info};
  for (uint32_t i = 0; i < MANY; ++i) {
    char name[16];
    snprintf(name, sizeof name, "lease%u", i);
    const gmm_lease_desc desc = {.struct_size = sizeof desc, .name = name, .priority = (int32_t)i};
    MUST(gmm_lease_create(context, &desc, &leases[i]));
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

// The list starts no server.
static void a_missing_server_is_named(void) {
  gmm_context *const first = context;
  char path[96];
  snprintf(path, sizeof path, "%s/none", folder);
  context = open_context(1);
  const gmm_ipc_desc ipc = {.struct_size = sizeof ipc, .directory = path};
  OK(gmm_ipc_configure(context, &ipc));
  gmm_lease_entry_info entry = {.struct_size = sizeof entry};
  RESULT(gmm_lease_list(context, 0, SHORT_MS, &entry), GMM_ERROR_NOT_READY);
  CHECK(strstr(gmm_last_error_message(), path) != NULL);
  OK(gmm_context_release(context));
  rmdir(path);
  context = first;
}

static void a_lost_server_is_named(void) {
  gmm_context *const first = context;
  char path[96], name[128];
  snprintf(path, sizeof path, "%s/lost", folder);
  snprintf(name, sizeof name, "%s/serve.sock", path);
  context = open_context(1);
  const gmm_ipc_desc ipc = {.struct_size = sizeof ipc, .directory = path};
  OK(gmm_ipc_configure(context, &ipc));
  const gmm_lease_desc desc = {.struct_size = sizeof desc, .name = "lost"};
  gmm_lease *lease = NULL;
  MUST(gmm_lease_create(context, &desc, &lease));
  gmm_lease_info info = {.struct_size = sizeof info};
  SOON(gmm_lease_query(lease, &info) == GMM_OK && info.server != 0);
  const uint64_t before = info.server;
  // The deleted socket's server ends, and the next one makes it anew.
  OK(unlink(name));
  SOON(gmm_lease_query(lease, &info) == GMM_OK && info.server > before);
  OK(unlink(name));
  OK(rmdir(path));
  SOON(gmm_lease_query(lease, &info) == GMM_OK && info.server == 0);
  const gmm_lease_amount amount = {.device = 0, .bytes = MIB};
  const gmm_lease_request_desc request = {
      .struct_size = sizeof request, .amounts = &amount, .amount_count = 1, .timeout_ms = SHORT_MS};
  RESULT(gmm_lease_request(lease, &request, NULL), GMM_ERROR_NOT_READY);
  CHECK_MESSAGE(
      strstr(gmm_last_error_message(), "`gmm serve`") != NULL && strstr(gmm_last_error_message(), path) != NULL, "%s",
      gmm_last_error_message());
  OK(gmm_lease_destroy(lease));
  OK(gmm_context_release(context));
  unlink(name);
  rmdir(path);
  context = first;
}

// The k-th allocation of host memory fails, in the caller's thread or in the lease's. Each call fails clearly or
// succeeds, and nothing is lost. Without memory for a report the lease's thread tries again.
static gmm_result use_a_lease(gmm_tag tag, const void *block) {
  const gmm_lease_desc desc = {.struct_size = sizeof desc, .name = "poor"};
  gmm_lease *lease = NULL;
  gmm_result result = gmm_lease_create(context, &desc, &lease);
  if (result < 0) CHECK(lease == NULL);
  if (result >= 0) result = gmm_lease_offer(lease, tag, 1);
  gmm_ticket *ticket = NULL;
  if (result >= 0) result = gmm_lease_request(lease, NULL, &ticket);
  if (result >= 0) result = gmm_ticket_wait(ticket, LONG_MS, NULL);
  OK(gmm_ticket_destroy(ticket));
  gmm_lease_info info = {.struct_size = sizeof info};
  if (lease != NULL) OK(gmm_lease_query(lease, &info));
  CHECK((info.state == GMM_LEASE_IN_USE) == (result >= 0));
  if (result >= 0) CHECK_EQUAL(query(block).state, GMM_STATE_ACTIVE);
  if (info.state == GMM_LEASE_IN_USE) OK(gmm_lease_return(lease));
  OK(gmm_lease_destroy(lease));
  return result;
}
static void host_memory_may_lack(void) {
  gmm_context *const first = context;
  gmm_context_desc desc = counted_desc();
  desc.host_devices = 2;
  MUST(gmm_context_create(&desc, &context));
  const gmm_tag tag = make_tag("poor", GMM_CONTENTS_HOST);
  void *const block = ALLOC_TAG(4 * MIB, tag);
  write_pattern(block, 4 * MIB, 3, GMM_STREAM_DEFAULT);
  const gmm_pause_desc pause = {.struct_size = sizeof pause, .tags = &tag, .tag_count = 1};
  int failures = 0;
  for (int64_t k = 0;; ++k) {
    OK(gmm_pause(context, &pause, NULL));
    atomic_store(&counted.fail_at, atomic_load(&counted.calls) + k);
    const gmm_result result = use_a_lease(tag, block);
    const bool has_failed = atomic_load(&counted.calls) > atomic_load(&counted.fail_at);
    atomic_store(&counted.fail_at, -1);
    CHECK_MESSAGE(result == GMM_OK || (has_failed && result == GMM_ERROR_OUT_OF_HOST_MEMORY), "k = %lld: %s",
                  (long long)k, gmm_result_name(result));
    failures += result < 0;
    const gmm_result resumed = gmm_resume(context, &pause, NULL);
    CHECK(resumed == (result == GMM_OK ? GMM_UNCHANGED : GMM_OK));
    CHECK_PATTERN(block, 4 * MIB, 3);
    if (!has_failed || atomic_load(&check_state.failures) != 0) break;
  }
  CHECK(failures != 0);
  OK(gmm_free(context, block, GMM_STREAM_DEFAULT));
  OK(gmm_context_release(context));
  CHECK_EQUAL(atomic_load(&counted.blocks), 0);
  CHECK_EQUAL(atomic_load(&counted.wrong), 0);
  context = first;
}

int main(void) {
  atomic_store(&counted.fail_at, -1);
  make_card();
  const gmm_kind_mask vmm = 1u << GMM_KIND_VMM;
  context = open_context(2);
  read_device(0);
  const bool is_small = device_info.total_memory == CARD;
  gmm_context_release(context);
  if (is_small) {
    KINDS(a_card_is_shared, vmm);
    KINDS(members_alternate, vmm);
    KINDS(memory_in_use_stays, vmm);
    KINDS(an_asked_lease_may_return, vmm);
    KINDS(impossible_requests_are_denied, vmm);
    KINDS(amounts_are_kept, vmm);
    KINDS(a_floor_is_left, vmm);
    KINDS(an_offer_is_reported_at_once, vmm);
    KINDS(one_lease_offers_a_tag, vmm);
    KINDS(a_ticket_waits, vmm);
    KINDS(a_watcher_keeps_memory, vmm);
    KINDS(a_destroyed_tag_is_not_offered, vmm);
    KINDS(host_memory_may_lack, vmm);
  }
  PLAIN(a_hundred_leases_are_listed);
  PLAIN(a_missing_server_is_named);
  PLAIN(a_lost_server_is_named);
  remove_card();
  return check_finish();
}
