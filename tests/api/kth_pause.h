// SPDX-License-Identifier: Apache-2.0
// The operations of pause, resume and kept contents. kth_operations.h includes this file.
#ifndef GMM_TESTS_KTH_PAUSE_H
#define GMM_TESTS_KTH_PAUSE_H

enum { FIRST_SEED = 10 };

static gmm_tag other_tag;      // the second of operations over two tags
static bool of_two;            // blocks[2] belongs to it
static gmm_state was[BLOCKS];  // when the operation began
static uint8_t read_back[3 * 1048576];

static void write_blocks(void) {
  for (unsigned i = 0; i < BLOCKS; ++i) write_pattern(blocks[i], sizes[i], FIRST_SEED + i, GMM_STREAM_DEFAULT);
}
static void note_states(void) {
  for (unsigned i = 0; i < BLOCKS; ++i) was[i] = query(blocks[i]).state;
}
static gmm_tag tag_with(const char *name, gmm_contents contents, uint32_t flags) {
  gmm_tag_desc desc = {.struct_size = sizeof desc, .contents = contents, .flags = flags};
  gmm_tag made = 0;
  gmm_result result = gmm_tag_create(context, name, &desc, &made);
  if (result == GMM_ERROR_NOT_SUPPORTED && (flags & GMM_TAG_CHECKSUM) != 0) {
    gmm_context_release(context);
    SKIP("the library was built without xxhash");
  }
  MUST(result);
  return made;
}
static void prepare_blocks(uint32_t flags_of_third) {
  tag = tag_with("paused", current->contents, current->tag_flags);
  of_two = false;
  for (unsigned i = 0; i < BLOCKS; ++i)
    REQUIRE((blocks[i] = alloc_here(__LINE__, sizes[i], tag, GMM_STREAM_DEFAULT,
                                    i == 2 ? flags_of_third : current->flags)) != NULL);
  write_blocks();
  note_states();
}
static void prepare_pausing(void) {
  const gmm_backup_desc desc = {.struct_size = sizeof desc, .flags = current->backup};
  if (current->backup != 0) MUST(gmm_backup_configure(context, &desc));
  prepare_blocks(current->flags);
}

static gmm_pause_desc of_tags(gmm_tag list[2]) {
  list[0] = tag;
  list[1] = other_tag;
  return (gmm_pause_desc){.struct_size = sizeof(gmm_pause_desc), .tags = list, .tag_count = of_two ? 2 : 1};
}
static gmm_result run_pause(void) {
  gmm_tag list[2];
  gmm_pause_desc desc = of_tags(list);
  return gmm_pause(context, &desc, NULL);
}
static void pause_all(void) {
  gmm_backup_info info = {.struct_size = sizeof info};
  MUST(run_pause());
  note_states();
  OK(gmm_backup_query(context, &info));
  if (current->backup == GMM_BACKUP_NO_ARENA) CHECK(info.pageable_bytes > 0 && info.arena_used == 0);
}
static gmm_result run_resume(void) {
  gmm_tag list[2];
  gmm_pause_desc desc = of_tags(list);
  return gmm_resume(context, &desc, NULL);
}
static bool drops(void) {
  gmm_tag_info info = {.struct_size = sizeof info};
  OK(gmm_tag_query(context, tag, &info));
  return info.contents == GMM_CONTENTS_DROP;
}
static void all_active(void) {
  for (unsigned i = 0; i < BLOCKS; ++i) {
    CHECK_EQUAL(query(blocks[i]).state, GMM_STATE_ACTIVE);
    CHECK_PATTERN(blocks[i], sizes[i], FIRST_SEED + i);
  }
}
static void all_paused(void) {
  for (unsigned i = 0; i < BLOCKS; ++i) CHECK_EQUAL(query(blocks[i]).state, GMM_STATE_PAUSED);
  // A handle that the driver would not release stays, and is counted: nothing else does.
  fake_cuda_live_t live;
  live_now(&live);
  gmm_stats_info s = stats();
  CHECK_EQUAL(live.device_bytes, s.reserved_bytes);
  CHECK(s.paused_bytes > 0 || live.handles > 0);
}
static void paused_and_back(void) {
  all_paused();
  OK(run_resume());
  if (!drops()) all_active();
}
static void resumed(void) {
  if (!drops()) all_active();
  for (unsigned i = 0; i < BLOCKS; ++i) write_pattern(blocks[i], sizes[i], 40 + i, GMM_STREAM_DEFAULT);
  for (unsigned i = 0; i < BLOCKS; ++i) CHECK_PATTERN(blocks[i], sizes[i], 40 + i);
}
static void free_blocks(void) {
  for (unsigned i = 0; i < BLOCKS; ++i)
    if (blocks[i] != NULL) OK(gmm_free(context, blocks[i], GMM_STREAM_DEFAULT));
}

// A pause or resume that is held, then committed or undone. CANCELLED counts as done when it is undone.
static gmm_result run_held(bool pauses, bool commits) {
  gmm_tag list[2];
  gmm_pause_desc desc = of_tags(list);
  desc.flags = GMM_PAUSE_HOLD;
  gmm_ticket *ticket = NULL;
  gmm_result result = pauses ? gmm_pause_async(context, &desc, &ticket) : gmm_resume_async(context, &desc, &ticket);
  if (result != GMM_OK) return result;
  result = gmm_ticket_wait_held(ticket, GMM_FOREVER);
  if (result == GMM_OK) {
    OK(commits ? gmm_ticket_commit(ticket) : gmm_ticket_cancel(ticket));
    result = gmm_ticket_wait(ticket, GMM_FOREVER, NULL);
    if (!commits && result == GMM_ERROR_CANCELLED) result = GMM_OK;
  }
  OK(gmm_ticket_destroy(ticket));
  return result;
}
static gmm_result run_held_pause(void) { return run_held(true, true); }
static gmm_result run_held_resume(void) { return run_held(false, true); }
static gmm_result run_undone_pause(void) { return run_held(true, false); }
static gmm_result run_undone_resume(void) { return run_held(false, false); }
// A lease by itself. A driver that does not tell its free memory delays the grant, and memory that is short for once is
// asked for again.
static gmm_lease *lease;
static void prepare_lease(void) {
  prepare_pausing();
  pause_all();
  const gmm_lease_desc desc = {.struct_size = sizeof desc, .name = "one"};
  MUST(gmm_lease_create(context, &desc, &lease));
  MUST(gmm_lease_offer(lease, tag, 1));
}
static gmm_result run_lease_request(void) { return gmm_lease_request(lease, NULL, NULL); }
static void end_lease(void) {
  OK(gmm_lease_destroy(lease));
  free_blocks();
}

// A watcher that heard of the beginning hears of the failure.
static gmm_watcher *watcher;
static uint32_t last_event;
static int32_t note_event(void *user, const gmm_watch_info *info) {
  (void)user;
  last_event = info->event;
  return 0;
}
static void begin_watch(void) {
  gmm_watch_desc desc = {.struct_size = sizeof desc, .events = 0xf, .tag = tag, .callback = {note_event, NULL}};
  last_event = 0;
  MUST(gmm_watch(context, &desc, &watcher));
}
static void prepare_pause_watched(void) {
  prepare_pausing();
  begin_watch();
}
static void prepare_resume_watched(void) {
  prepare_pausing();
  pause_all();
  begin_watch();
}
static void none_is_left_alone(void) { CHECK(last_event == 0 || last_event == GMM_WATCH_FAILED); }
static void all_active_and_told(void) {
  all_active();
  none_is_left_alone();
}
static void all_paused_and_told(void) {
  all_paused();
  none_is_left_alone();
}
static void paused_and_back_and_told(void) {
  CHECK_EQUAL(last_event, GMM_WATCH_LOSING);
  paused_and_back();
  CHECK_EQUAL(last_event, GMM_WATCH_RESTORED);
}
static void resumed_and_told(void) {
  CHECK_EQUAL(last_event, GMM_WATCH_RESTORED);
  resumed();
}
static void end_watch(void) {
  OK(gmm_watcher_destroy(watcher));
  free_blocks();
}
static void resumed_for_networks(void) {
  resumed();
  for (unsigned i = 0; i < BLOCKS; ++i) CHECK((query(blocks[i]).ipc_routes & GMM_IPC_ROUTE_FABRIC) != 0);
  gmm_ipc_handle exported;
  for (unsigned i = 0; i < BLOCKS; ++i) {
    OK(gmm_ipc_export(context, blocks[i], &exported));
    CHECK_EQUAL(exported.bytes[6], 3);  // the route by fabric: the new pages have a handle, too
  }
}
static gmm_result run_resume_retaining(void) {
  gmm_tag list[2];
  gmm_pause_desc desc = of_tags(list);
  desc.flags = GMM_RESUME_RETAIN;
  return gmm_resume(context, &desc, NULL);
}
static void prepare_retained(void) {
  prepare_pausing();
  pause_all();
  MUST(run_resume_retaining());
}
// The next pause copies nothing again.
static void prepare_read_only(void) {
  prepare_pausing();
  pause_all();
  MUST(run_resume());
}

// --- a part ---
static gmm_result run_resume_range(void) { return gmm_resume_range(context, blocks[2], sizes[2], NULL); }
static void states_as_they_were(void) {
  for (unsigned i = 0; i < BLOCKS; ++i) {
    CHECK_EQUAL(query(blocks[i]).state, was[i]);
    if (was[i] == GMM_STATE_ACTIVE) CHECK_PATTERN(blocks[i], sizes[i], FIRST_SEED + i);
  }
}
static void part_is_there(void) {
  CHECK_EQUAL(query(blocks[2]).state, GMM_STATE_ACTIVE);
  CHECK_PATTERN(blocks[2], sizes[2], FIRST_SEED + 2);
  gmm_result rest = run_resume();
  CHECK(rest == GMM_OK || rest == GMM_UNCHANGED);
  resumed();
}
// The large block has extents of its own, so that the rest stays away.
static void prepare_part(void) { prepare_blocks(GMM_ALLOC_DEDICATED); }
static void prepare_partly(void) {
  prepare_part();
  pause_all();
  MUST(run_resume_range());
  note_states();
  REQUIRE(was[0] == GMM_STATE_PAUSED && was[2] == GMM_STATE_ACTIVE);
}

// --- two tags, one of them in front; two devices ---
static void add_second(gmm_device where) {
  gmm_tag_desc desc = {.struct_size = sizeof desc, .contents = GMM_CONTENTS_HOST, .priority = 5};
  other_tag = tag;
  if (where == device) MUST(gmm_tag_create(context, "in front", &desc, &other_tag));
  of_two = where == device;
  gmm_alloc_desc alloc = alloc_desc();
  alloc.tag = other_tag;
  alloc.device = where;
  OK(gmm_free(context, blocks[2], GMM_STREAM_DEFAULT));
  MUST(gmm_alloc(context, sizes[2], &alloc, &blocks[2]));
  write_blocks();
  OK(gmm_trim(context, NULL, NULL));
}
static void prepare_two(void) {
  prepare_pausing();
  add_second(device);
}
static void prepare_devices(void) {
  if (device_count() < 2) {
    gmm_context_release(context);
    SKIP("one device");
  }
  prepare_pausing();
  add_second(1);
}
// --- in the background ---
static gmm_result end_ticket(gmm_result started, gmm_ticket **ticket) {
  if (started != GMM_OK) return started;
  gmm_result result = gmm_ticket_wait(*ticket, UINT64_MAX, NULL);
  OK(gmm_ticket_destroy(*ticket));
  return result;
}
static gmm_result run_pause_async(void) {
  gmm_tag list[2];
  gmm_pause_desc desc = of_tags(list);
  gmm_ticket *ticket = NULL;
  return end_ticket(gmm_pause_async(context, &desc, &ticket), &ticket);
}
static gmm_result run_resume_async(void) {
  gmm_tag list[2];
  gmm_pause_desc desc = of_tags(list);
  gmm_ticket *ticket = NULL;
  return end_ticket(gmm_resume_async(context, &desc, &ticket), &ticket);
}

// --- kept contents ---
static gmm_result run_backup_prepare(void) { return gmm_backup_reserve(context, device, 8 * MIB); }
static void arena_is_there(void) {
  gmm_backup_info info = {.struct_size = sizeof info};
  OK(gmm_backup_query(context, &info));
  CHECK(info.arena_bytes >= 8 * MIB);
  CHECK_EQUAL(info.arena_used, 0);
}
static void arena_goes(void) {
  OK(gmm_trim(context, NULL, NULL));
  gmm_backup_info info = {.struct_size = sizeof info};
  OK(gmm_backup_query(context, &info));
  CHECK_EQUAL(info.arena_bytes, 0);
}
static gmm_result run_backup_read(void) { return gmm_backup_read(context, blocks[2], sizes[2], read_back); }
static void was_read(void) {
  CHECK_EQUAL(pattern_length(read_back, sizes[2], FIRST_SEED + 2), sizes[2]);
  all_paused();
  OK(run_resume());
  resumed();
}
static const void *view;
static gmm_result run_backup_map(void) { return gmm_backup_map(context, blocks[2], sizes[2], &view); }
static void was_mapped(void) {
  CHECK_EQUAL(pattern_length(view, sizes[2], FIRST_SEED + 2), sizes[2]);
  all_paused();
  OK(run_resume());
  resumed();
}
static gmm_result run_discard(void) { return gmm_backup_discard(context, NULL, NULL); }
static void was_discarded(void) {
  gmm_tag_info info = {.struct_size = sizeof info};
  OK(gmm_tag_query(context, tag, &info));
  CHECK_EQUAL(info.backup_host_bytes + info.backup_file_bytes + info.backup_zero_bytes, 0);
  all_paused();
  OK(run_resume());
  for (unsigned i = 0; i < BLOCKS; ++i) CHECK_EQUAL(query(blocks[i]).state, GMM_STATE_ACTIVE);
}

// --- the end of paused memory: the blocks are freed while it is away, and the context goes with it ---
static gmm_result run_free_paused(void) { return gmm_free(context, blocks[2], GMM_STREAM_DEFAULT); }
static void third_is_freed(void) {
  blocks[2] = NULL;
  gmm_state state = query(blocks[0]).state;
  CHECK_EQUAL(state, GMM_STATE_PAUSED);
}

#endif
