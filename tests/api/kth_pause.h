// SPDX-License-Identifier: Apache-2.0
// The operations of pause, resume and kept contents. kth_operations.h includes this file.
#ifndef GMM_TESTS_KTH_PAUSE_H
#define GMM_TESTS_KTH_PAUSE_H

enum { FIRST_SEED = 10 };
static uint8_t read_back[3 * 1048576];

static void write_blocks(uint32_t seed) {
  for (unsigned i = 0; i < BLOCKS; ++i) write_pattern(made.blocks[i], sizes[i], seed + i, GMM_STREAM_DEFAULT);
}
static void note_states(void) {
  for (unsigned i = 0; i < BLOCKS; ++i) made.was[i] = query(made.blocks[i]).state;
}
static void prepare_blocks(uint32_t flags_of_third) {
  const gmm_result result = gmm_tag_create(
      context, "paused", DESC(tag_desc, .contents = current->contents, .flags = current->tag_flags), &made.tag);
  if (result == GMM_ERROR_NOT_SUPPORTED && (current->tag_flags & GMM_TAG_CHECKSUM) != 0) {
    gmm_context_release(context);
    SKIP("the library was built without xxhash");
  }
  MUST(result);
  for (unsigned i = 0; i < BLOCKS; ++i)
    made.blocks[i] =
        alloc_here(__LINE__, sizes[i], made.tag, GMM_STREAM_DEFAULT, i == 2 ? flags_of_third : current->flags);
  write_blocks(FIRST_SEED);
  note_states();
}
static void prepare_pausing(void) {
  if (current->backup != 0) MUST(gmm_backup_configure(context, DESC(backup_desc, .flags = current->backup)));
  prepare_blocks(current->flags);
}

// Undone: held, then cancelled, which counts as success.
typedef enum { AT_ONCE, RETAINING, IN_BACKGROUND, HELD, UNDONE } way;
static gmm_result change(bool pauses, way how) {
  const gmm_tag list[2] = {made.tag, made.other_tag};
  const gmm_pause_desc desc = {.struct_size = sizeof desc,
                               .tags = list,
                               .tag_count = made.other_tag != 0 ? 2 : 1,
                               .flags = how >= HELD        ? GMM_PAUSE_HOLD
                                        : how == RETAINING ? GMM_RESUME_RETAIN
                                                           : 0};
  if (how < IN_BACKGROUND) return (pauses ? gmm_pause : gmm_resume)(context, &desc, NULL);
  gmm_ticket *ticket = NULL;
  gmm_result result = (pauses ? gmm_pause_async : gmm_resume_async)(context, &desc, &ticket);
  if (result != GMM_OK) return result;
  if (how >= HELD && gmm_ticket_wait_held(ticket, GMM_FOREVER) == GMM_OK)
    OK(how == HELD ? gmm_ticket_commit(ticket) : gmm_ticket_cancel(ticket));
  result = gmm_ticket_wait(ticket, GMM_FOREVER, NULL);
  OK(gmm_ticket_destroy(ticket));
  return how == UNDONE && result == GMM_ERROR_CANCELLED ? GMM_OK : result;
}
static gmm_result pause_tags(way how) { return change(true, how); }
static gmm_result resume_tags(way how) { return change(false, how); }

static void pause_all(void) {
  MUST(pause_tags(AT_ONCE));
  note_states();
  const gmm_backup_info info = backup_info();
  if (current->backup == GMM_BACKUP_NO_ARENA) CHECK(info.pageable_bytes > 0 && info.arena_used == 0);
}
static void all_active(void) {
  for (unsigned i = 0; i < BLOCKS; ++i) {
    CHECK_EQUAL(query(made.blocks[i]).state, GMM_STATE_ACTIVE);
    CHECK_PATTERN(made.blocks[i], sizes[i], FIRST_SEED + i);
  }
}
static void all_paused(void) {
  for (unsigned i = 0; i < BLOCKS; ++i) CHECK_EQUAL(query(made.blocks[i]).state, GMM_STATE_PAUSED);
  // A handle that the driver would not release stays, and is counted: nothing else does.
  fake_cuda_live_t live;
  fake.live(&live);
  const gmm_stats_info s = stats();
  CHECK_EQUAL(live.device_bytes, s.reserved_bytes);
  CHECK(s.paused_bytes > 0 || live.handles > 0);
}
static void resumed(void) {
  if (current->contents != GMM_CONTENTS_DROP) all_active();
  write_blocks(40);
  for (unsigned i = 0; i < BLOCKS; ++i) CHECK_PATTERN(made.blocks[i], sizes[i], 40 + i);
}
static void paused_and_back(void) {
  all_paused();
  OK(resume_tags(AT_ONCE));
  resumed();
}
static void resumed_for_networks(void) {
  resumed();
  if (backend_id() == GMM_BACKEND_HIP) return;  // no fabric handles
  for (unsigned i = 0; i < BLOCKS; ++i) {
    CHECK((query(made.blocks[i]).ipc_routes & GMM_IPC_ROUTE_FABRIC) != 0);
    OK(gmm_ipc_export(context, made.blocks[i], &made.handle));
    CHECK_EQUAL(made.handle.bytes[6], 3);  // the route by fabric: the new pages have a handle, too
  }
}

// A lease by itself. A driver that does not tell its free memory delays the grant, and memory that is short for once is
// asked for again.
static void prepare_lease(void) {
  prepare_pausing();
  MUST(gmm_lease_create(context, DESC(lease_desc, .name = "one"), &made.lease));
  MUST(gmm_lease_offer(made.lease, made.tag, 1));
}

// A watcher that received the beginning receives the failure.
static int32_t note_event(void *user, const gmm_watch_info *info) {
  (void)user;
  made.last_event = info->event;
  return 0;
}
static void begin_watch(void) {
  MUST(gmm_watch(context, DESC(watch_desc, .events = 0xf, .tag = made.tag, .callback = {note_event, NULL}),
                 &made.watcher));
}
static void watcher_knows(bool succeeded) {
  if (succeeded)
    CHECK_EQUAL(made.last_event, current->is_paused ? GMM_WATCH_RESTORED : GMM_WATCH_LOSING);
  else
    CHECK(made.last_event == 0 || made.last_event == GMM_WATCH_FAILED);
}

static void prepare_retained(void) {
  prepare_pausing();
  pause_all();
  MUST(resume_tags(RETAINING));
}
// The next pause copies nothing again.
static void prepare_read_only(void) {
  prepare_pausing();
  pause_all();
  MUST(resume_tags(AT_ONCE));
}

// --- a part ---
static gmm_result resume_third(void) { return gmm_resume_range(context, made.blocks[2], sizes[2], NULL); }
static void states_as_they_were(void) {
  for (unsigned i = 0; i < BLOCKS; ++i) {
    CHECK_EQUAL(query(made.blocks[i]).state, made.was[i]);
    if (made.was[i] == GMM_STATE_ACTIVE) CHECK_PATTERN(made.blocks[i], sizes[i], FIRST_SEED + i);
  }
}
static void part_is_there(void) {
  CHECK_EQUAL(query(made.blocks[2]).state, GMM_STATE_ACTIVE);
  CHECK_PATTERN(made.blocks[2], sizes[2], FIRST_SEED + 2);
  CHECK(resume_tags(AT_ONCE) >= 0);
  resumed();
}
// The large block has extents of its own, so that the rest stays away.
static void prepare_part(void) { prepare_blocks(GMM_ALLOC_DEDICATED); }
static void prepare_partly(void) {
  prepare_part();
  pause_all();
  MUST(resume_third());
  note_states();
  REQUIRE(made.was[0] == GMM_STATE_PAUSED && made.was[2] == GMM_STATE_ACTIVE);
}

// --- parts of a block that was born paused: page 1 is taken before, and pages 0 to 2 and 8 are the operation's ---
enum { PAGE = 2 * 1048576, PAGES = 4 };
static char *page(unsigned i) { return (char *)made.block + i * (uint64_t)PAGE; }
static gmm_result change_parts(bool pauses, uint32_t flags) {
  const gmm_range parts[] = {{page(8), PAGE}, {page(0), 3 * PAGE}};
  return (pauses ? gmm_pause : gmm_resume)(context, DESC(pause_desc, .flags = flags, .ranges = parts, .range_count = 2),
                                           NULL);
}
static gmm_result reserve_parts(void) {
  return gmm_alloc(context, (uint64_t)1 << 40, HERE(.tag = made.tag, .flags = GMM_ALLOC_PAUSED), &made.block);
}
static void prepare_one_part(void) {
  MUST(gmm_tag_create(context, "born paused", DESC(tag_desc, .contents = current->contents), &made.tag));
  MUST(reserve_parts());
  MUST(gmm_resume_range(context, page(1), PAGE, NULL));
  write_pattern(page(1), PAGE, FIRST_SEED, GMM_STREAM_DEFAULT);
}
static void parts_are_taken(void) {
  CHECK_EQUAL(stats().reserved_bytes, PAGES * PAGE);
  CHECK_PATTERN(page(1), PAGE, FIRST_SEED);
  write_pattern(page(8), PAGE, FIRST_SEED + 1, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(page(8), PAGE, FIRST_SEED + 1);
}
static void one_part_is_taken(void) {
  CHECK_EQUAL(stats().reserved_bytes, PAGE);
  CHECK_PATTERN(page(1), PAGE, FIRST_SEED);
}
static void prepare_parts(void) {
  prepare_one_part();
  MUST(change_parts(false, 0));
  parts_are_taken();
}
static void parts_are_given_back(void) {
  fake_cuda_live_t live;
  fake.live(&live);
  CHECK_EQUAL(live.device_bytes, stats().reserved_bytes);  // 0, or a handle that the driver would not release
  MUST(change_parts(false, 0));
  if (current->contents == GMM_CONTENTS_DROP) write_pattern(page(1), PAGE, FIRST_SEED, GMM_STREAM_DEFAULT);
  parts_are_taken();
}
// Three pages and one, given back on a stream of their own.
static gmm_result take_after(void) { return change_parts(false, GMM_PAUSE_ORDERED); }
static void spares_are_there(void) {
  CHECK_EQUAL(stats().live_bytes, 0);
  CHECK_EQUAL(query(page(1)).state, GMM_STATE_PAUSED);
}
static void prepare_spares(void) {
  MUST(gmm_tag_create(context, "born paused", DESC(tag_desc, .contents = GMM_CONTENTS_DROP), &made.tag));
  MUST(reserve_parts());
  const gmm_range parts[] = {{page(8), PAGE}, {page(0), 3 * PAGE}};
  MUST(gmm_stream_create(context, STREAM_ON(device), &made.stream));
  MUST(change_parts(false, 0));
  MUST(gmm_pause(context,
                 DESC(pause_desc, .flags = GMM_PAUSE_ORDERED, .ranges = parts, .range_count = 2, .stream = made.stream),
                 NULL));
}
static void is_taken(unsigned i, unsigned pages) {
  CHECK_EQUAL(stats().live_bytes, pages * (uint64_t)PAGE);
  write_pattern(page(i), PAGE, FIRST_SEED, GMM_STREAM_DEFAULT);
  CHECK_PATTERN(page(i), PAGE, FIRST_SEED);
}
static void spares_are_taken(void) { is_taken(8, PAGES); }
static void other_part_is_taken(void) { is_taken(20, 1); }
static void first_page_is_taken(void) { is_taken(0, 1); }
static void pages_are_ahead(void) {
  CHECK_EQUAL(stats().live_bytes, PAGE);
  MUST(change_parts(false, 0));
  parts_are_taken();
}
static void is_reserved_paused(void) {
  CHECK_EQUAL(query(page(1)).state, GMM_STATE_PAUSED);
  MUST(change_parts(false, 0));
}

// --- two tags, one of them in front; two devices ---
static void replace_third(gmm_device where, gmm_tag of) {
  FREE(made.blocks[2]);
  MUST(gmm_alloc(context, sizes[2], DESC(alloc_desc, .kind = kind, .device = where, .tag = of), &made.blocks[2]));
  write_blocks(FIRST_SEED);
  OK(gmm_trim(context, NULL, NULL));
}
static void prepare_two(void) {
  prepare_pausing();
  MUST(gmm_tag_create(context, "in front", DESC(tag_desc, .contents = GMM_CONTENTS_HOST, .priority = 5),
                      &made.other_tag));
  replace_third(device, made.other_tag);
}
static void prepare_devices(void) {
  if (device_count() < 2) {
    gmm_context_release(context);
    SKIP("one device");
  }
  prepare_pausing();
  replace_third(1, made.tag);
}

// --- kept contents ---
static void arena_is_there(void) {
  CHECK(backup_info().arena_bytes >= 8 * MIB);
  CHECK_EQUAL(backup_info().arena_used, 0);
  OK(gmm_trim(context, NULL, NULL));
  CHECK_EQUAL(backup_info().arena_bytes, 0);
}
static gmm_result read_third(void) {
  made.contents = read_back;
  return gmm_backup_read(context, made.blocks[2], sizes[2], read_back);
}
static void was_read(void) {
  CHECK_EQUAL(pattern_length(made.contents, sizes[2], FIRST_SEED + 2), sizes[2]);
  paused_and_back();
}
static void was_discarded(void) {
  const gmm_tag_info info = tag_info(made.tag);
  CHECK_EQUAL(info.backup_host_bytes + info.backup_file_bytes + info.backup_zero_bytes, 0);
  all_paused();
  OK(resume_tags(AT_ONCE));
  for (unsigned i = 0; i < BLOCKS; ++i) CHECK_EQUAL(query(made.blocks[i]).state, GMM_STATE_ACTIVE);
}
static void third_is_freed(void) {
  made.blocks[2] = NULL;
  CHECK_EQUAL(query(made.blocks[0]).state, GMM_STATE_PAUSED);
}

#endif
