// SPDX-License-Identifier: Apache-2.0
// pause.h: a thread of the library pauses and resumes.
#include "pause_support.h"

static gmm_ticket_info ticket_info(gmm_ticket *ticket) {
  gmm_ticket_info info = {.struct_size = sizeof info};
  OK(gmm_ticket_query(ticket, &info));
  return info;
}

static void a_ticket_ends_with_what_it_came_to(void) {
  gmm_tag tag = make_tag("asleep", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 100);
  gmm_ticket *ticket = NULL;
  uint64_t went = 0, came = 0;
  {
    // The descriptor and its tags are copied.
    gmm_tag tags[1] = {tag};
    gmm_pause_desc desc = one_tag(tags);
    MUST(gmm_pause_async(context, &desc, &ticket));
    tags[0] = 3999;
    desc.tags = NULL;
  }
  OK(gmm_ticket_wait(ticket, UINT64_MAX, &went));
  gmm_ticket_info info = ticket_info(ticket);
  CHECK_EQUAL(info.done, 1);
  CHECK_EQUAL(info.result, GMM_OK);
  CHECK_EQUAL(info.bytes, went);
  CHECK(info.total_bytes > 0 && info.copied_bytes == info.total_bytes);
  OK(gmm_ticket_wait(ticket, 0, NULL));
  OK(gmm_ticket_cancel(ticket));  // too late
  OK(gmm_ticket_destroy(ticket));
  CHECK_EQUAL(query(blocks[0]).state, GMM_STATE_PAUSED);
  MUST(gmm_resume_async(context, NULL, &ticket));
  OK(gmm_resume_wait(context, blocks[39], block_size(39), UINT64_MAX));
  CHECK_PATTERN(blocks[39], block_size(39), 139);
  OK(gmm_ticket_wait(ticket, UINT64_MAX, &came));
  CHECK_EQUAL(came, went);
  OK(gmm_ticket_destroy(ticket));
  check_blocks(100);
  // Nothing to do is told too.
  MUST(gmm_resume_async(context, NULL, &ticket));
  RESULT(gmm_ticket_wait(ticket, UINT64_MAX, &came), GMM_UNCHANGED);
  OK(gmm_ticket_destroy(ticket));
  free_blocks();
  OK(gmm_ticket_destroy(NULL));
}

typedef struct blocker {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int inside, go;
} blocker;
static int32_t block_progress(void *user, uint64_t done, uint64_t total) {
  blocker *self = user;
  (void)done, (void)total;
  pthread_mutex_lock(&self->mutex);
  self->inside = 1;
  pthread_cond_broadcast(&self->changed);
  while (!self->go) pthread_cond_wait(&self->changed, &self->mutex);
  pthread_mutex_unlock(&self->mutex);
  return 0;
}

static void a_ticket_can_be_cancelled(void) {
  gmm_tag tag = make_tag("cancelled", GMM_CONTENTS_HOST);
  allocate_blocks(tag, 200);
  for (int pausing = 1; pausing >= 0; --pausing) {
    blocker hold = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};
    gmm_pause_desc desc = one_tag(&tag);
    desc.progress.fn = block_progress;
    desc.progress.user = &hold;
    gmm_ticket *ticket = NULL;
    MUST(pausing ? gmm_pause_async(context, &desc, &ticket) : gmm_resume_async(context, &desc, &ticket));
    pthread_mutex_lock(&hold.mutex);
    while (!hold.inside) pthread_cond_wait(&hold.changed, &hold.mutex);
    pthread_mutex_unlock(&hold.mutex);
    CHECK_EQUAL(ticket_info(ticket).done, 0);
    CHECK_EQUAL(ticket_info(ticket).result, GMM_ERROR_NOT_READY);
    RESULT(gmm_ticket_wait(ticket, 5, NULL), GMM_ERROR_NOT_READY);
    OK(gmm_ticket_cancel(ticket));
    pthread_mutex_lock(&hold.mutex);
    hold.go = 1;
    pthread_cond_broadcast(&hold.changed);
    pthread_mutex_unlock(&hold.mutex);
    uint64_t bytes = 77;
    RESULT(gmm_ticket_wait(ticket, UINT64_MAX, &bytes), GMM_ERROR_CANCELLED);
    CHECK_EQUAL(bytes, 77);
    CHECK(strstr(gmm_last_error_message(), "as before") != NULL);
    OK(gmm_ticket_destroy(ticket));
    CHECK_EQUAL(query(blocks[5]).state, pausing ? GMM_STATE_ACTIVE : GMM_STATE_PAUSED);
    if (pausing) {
      check_blocks(200);
      OK(gmm_pause(context, NULL, NULL));
    }
  }
  OK(gmm_resume(context, NULL, NULL));
  check_blocks(200);
  free_blocks();
}

static void a_ticket_outlives_the_last_reference(void) {
  gmm_context *own = open_context(1);
  gmm_tag tag = 0;
  gmm_tag_desc desc = {.struct_size = sizeof desc, .contents = GMM_CONTENTS_HOST};
  MUST(gmm_tag_create(own, "left", &desc, &tag));
  gmm_alloc_desc alloc = {.struct_size = sizeof alloc, .kind = GMM_KIND_VMM, .tag = tag};
  void *block = NULL;
  MUST(gmm_alloc(own, 8 * MIB, &alloc, &block));
  gmm_ticket *ticket = NULL;
  MUST(gmm_pause_async(own, NULL, &ticket));
  OK(gmm_context_release(own));
  OK(gmm_ticket_wait(ticket, UINT64_MAX, NULL));
  OK(gmm_ticket_destroy(ticket));
}

int main(void) {
  const gmm_kind_mask vmm = 1u << GMM_KIND_VMM;
  KINDS(a_ticket_ends_with_what_it_came_to, vmm);
  KINDS(a_ticket_can_be_cancelled, vmm);
  KINDS(a_ticket_outlives_the_last_reference, vmm);
  return finish_clean();
}
