// SPDX-License-Identifier: Apache-2.0
#include "sleep.h"

atomic_uint working;
atomic_ullong pauses, cancels, discards, updates;

bool round_goes_on(void) { return atomic_load_explicit(&working, memory_order_relaxed) != 0; }

// Tags of which memory is paused: tags with a limit are not, as a resume could then fail at any time.
typedef struct chosen {
  gmm_tag list[2];
  unsigned which[2], count;
} chosen;
static chosen choose_tags(void) {
  chosen c = {.which = {TAG_HOST + (unsigned)below(3), TAGS}, .count = 1};
  if (one_in(3)) {
    c.which[1] = TAG_HOST + (unsigned)below(3);
    if (c.which[1] != c.which[0]) c.count = 2;
  }
  if (c.count == 2 && c.which[0] > c.which[1]) {
    unsigned swap = c.which[0];
    c.which[0] = c.which[1], c.which[1] = swap;
  }
  for (unsigned i = 0; i < c.count; ++i) c.list[i] = tags[c.which[i]];
  return c;
}
static void begin_writing(const chosen *c) {
  for (unsigned i = 0; i < c->count; ++i) pthread_rwlock_wrlock(&touching[c->which[i]]);
}
static void end_writing(const chosen *c) {
  for (unsigned i = 0; i < c->count; ++i) pthread_rwlock_unlock(&touching[c->which[i]]);
}

// Ends a transition at the call that was drawn; on any thread.
typedef struct stopper {
  atomic_uint calls;
  unsigned stop_at;  // 0: never
} stopper;
static int32_t stop_at_call(void *user, uint64_t done, uint64_t total) {
  stopper *at = user;
  (void)done, (void)total;
  return atomic_fetch_add(&at->calls, 1) + 1 == at->stop_at;
}

// BUSY is right after a failure that left memory half paused.
static void judge(const char *what, gmm_result result, bool may_be_cancelled) {
  if (result == GMM_OK || result == GMM_UNCHANGED || result == GMM_ERROR_BUSY) return;
  if (result == GMM_ERROR_CANCELLED && may_be_cancelled) {
    atomic_fetch_add(&cancels, 1);
    return;
  }
  // A heap of these tags with a limit of its own was filled while its other blocks were paused.
  if (result == GMM_ERROR_LIMIT_EXCEEDED && strcmp(what, "resume") == 0) return;
  if (!expected(result, TAG_DEFAULT))
    check_failed(__FILE__, __LINE__, "%s: %s: %s", what, gmm_result_name(result), gmm_last_error_message());
}

// By a call, or by a ticket that is waited for, asked, and cancelled now and then.
static gmm_result transition(bool pausing, gmm_pause_desc *desc, uint64_t *bytes, bool *may_be_cancelled) {
  stopper at = {.stop_at = one_in(5) ? 1 + (unsigned)below(6) : 0};
  if (at.stop_at != 0 || one_in(4)) {
    desc->progress.fn = stop_at_call;
    desc->progress.user = &at;
  }
  *may_be_cancelled = at.stop_at != 0;
  if (one_in(2)) return pausing ? gmm_pause(context, desc, bytes) : gmm_resume(context, desc, bytes);
  gmm_ticket *ticket = NULL;
  gmm_result result = pausing ? gmm_pause_async(context, desc, &ticket) : gmm_resume_async(context, desc, &ticket);
  if (result != GMM_OK) return result;
  if (one_in(3)) {
    if (one_in(2)) sleep_ms((long)below(3));
    DO(gmm_ticket_cancel(ticket));
    *may_be_cancelled = true;
  }
  gmm_ticket_info info = {.struct_size = sizeof info};
  DO(gmm_ticket_query(ticket, &info));
  while ((result = gmm_ticket_wait(ticket, one_in(2) ? 1 : UINT64_MAX, bytes)) == GMM_ERROR_NOT_READY) {
  }
  DO(gmm_ticket_query(ticket, &info));
  if (info.state != GMM_TICKET_DONE || info.result != result)
    check_failed(__FILE__, __LINE__, "a ticket that ended with %d says state %u, result %d", result, info.state,
                 info.result);
  DO(gmm_ticket_destroy(ticket));
  return result;
}

static gmm_contents kept_by(unsigned tag, uint32_t flags) {
  if ((flags & GMM_PAUSE_DROP) != 0) return GMM_CONTENTS_DROP;
  if ((flags & GMM_PAUSE_KEEP_HOST) != 0) return GMM_CONTENTS_HOST;
  if ((flags & GMM_PAUSE_KEEP_FILE) != 0) return GMM_CONTENTS_FILE;
  return tag_states[tag].contents;
}

// With the tag's lock for writing.
static void update_tag(unsigned tag, bool just_paused) {
  gmm_tag_desc desc = {
      .struct_size = sizeof desc, .contents = (gmm_contents)below(3), .priority = (int32_t)below(7) - 3};
  const bool was_read_only = (tag_states[tag].flags & GMM_TAG_READ_ONLY) != 0;
  // The promise counts from a pause on, of contents that were copied then.
  if (was_read_only ? one_in(2) : just_paused && one_in(2)) desc.flags |= GMM_TAG_READ_ONLY;
  if (one_in(2)) desc.flags |= GMM_TAG_CHECKSUM;
  if (one_in(4)) desc.flags |= GMM_TAG_PAGEABLE;
  gmm_result result = gmm_tag_configure(context, tags[tag], &desc);
  if (result == GMM_ERROR_NOT_SUPPORTED && (desc.flags & GMM_TAG_CHECKSUM) != 0) {
    desc.flags &= ~(uint32_t)GMM_TAG_CHECKSUM;
    result = gmm_tag_configure(context, tags[tag], &desc);
  }
  note("tag update", result, NULL, tag, desc.flags * 10 + desc.contents);
  if (!DO(result)) return;
  tag_states[tag].contents = desc.contents;
  tag_states[tag].flags = desc.flags;
  atomic_fetch_add(&updates, 1);
}

static void pause_once(void) {
  static const uint32_t ways[] = {0, 0, GMM_PAUSE_DROP, GMM_PAUSE_KEEP_HOST, GMM_PAUSE_KEEP_FILE};
  chosen c = choose_tags();
  gmm_pause_desc desc = {.struct_size = sizeof desc, .flags = ways[below(5)], .tags = c.list, .tag_count = c.count};
  uint64_t bytes = 0;
  bool may_be_cancelled = false;
  begin_writing(&c);
  for (unsigned i = 0; i < c.count; ++i) ++tag_states[c.which[i]].pauses;
  gmm_result result = transition(true, &desc, &bytes, &may_be_cancelled);
  note("pause", result, NULL, bytes, c.which[0] + 10 * c.which[1] + 100 * desc.flags);
  judge("pause", result, may_be_cancelled);
  for (unsigned i = 0; i < c.count; ++i) {
    const unsigned tag = c.which[i];
    if (result == GMM_OK && kept_by(tag, desc.flags) == GMM_CONTENTS_DROP) ++tag_states[tag].drops;
    if (one_in(4))
      update_tag(tag, result == GMM_OK && (tag_states[tag].flags & GMM_TAG_READ_ONLY) == 0 &&
                          kept_by(tag, desc.flags) != GMM_CONTENTS_DROP);
    if (one_in(12)) {
      gmm_pause_desc one = {.struct_size = sizeof one, .tags = &tags[tag], .tag_count = 1};
      gmm_result forgotten = gmm_backup_discard(context, &one, &bytes);
      note("discard", forgotten, NULL, bytes, tag);
      if (forgotten != GMM_UNCHANGED && DO(forgotten)) {
        ++tag_states[tag].drops;
        atomic_fetch_add(&discards, 1);
      }
    }
  }
  end_writing(&c);
  sleep_ms((long)below(10));  // others allocate, free, read and bring back parts of the paused tag
  desc = (gmm_pause_desc){.struct_size = sizeof desc, .tags = c.list, .tag_count = c.count};
  if (one_in(3)) desc.flags = GMM_RESUME_RETAIN;
  // Nobody waits for it: who touches the memory asks whether it is there.
  result = transition(false, &desc, &bytes, &may_be_cancelled);
  note("resume", result, NULL, bytes, c.which[0] + 10 * c.which[1]);
  judge("resume", result, may_be_cancelled);
  atomic_fetch_add(&pauses, 1);
}
void pauser_round(void) {
  while (round_goes_on()) {
    pause_once();
    sleep_ms((long)below(10));
  }
}
