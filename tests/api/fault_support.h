// SPDX-License-Identifier: Apache-2.0
// Helpers of the tests of faults during pause and resume.
#ifndef GMM_TESTS_FAULT_SUPPORT_H
#define GMM_TESTS_FAULT_SUPPORT_H

#include "fake_driver.h"
#include "pause_support.h"

// The leak sanitizer asks here: children leave what their parent owns, and some end without giving back anything.
int __lsan_is_turned_off(void);
static int leaks_are_wanted;
int __lsan_is_turned_off(void) { return leaks_are_wanted; }

// A progress function that holds its transition until let_go(), with the transition's locks held.
typedef struct blocker {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int inside, go;
  int32_t answer;
} blocker;
#define BLOCKER \
  { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0 }
__attribute__((unused)) static int32_t block_progress(void *user, uint64_t done, uint64_t total) {
  blocker *self = user;
  (void)done, (void)total;
  pthread_mutex_lock(&self->mutex);
  self->inside = 1;
  pthread_cond_broadcast(&self->changed);
  while (!self->go) pthread_cond_wait(&self->changed, &self->mutex);
  int32_t answer = self->answer;
  pthread_mutex_unlock(&self->mutex);
  return answer;
}
__attribute__((unused)) static void wait_until_inside(blocker *self) {
  pthread_mutex_lock(&self->mutex);
  while (!self->inside) pthread_cond_wait(&self->changed, &self->mutex);
  pthread_mutex_unlock(&self->mutex);
}
__attribute__((unused)) static void let_go(blocker *self) {
  pthread_mutex_lock(&self->mutex);
  self->go = 1;
  pthread_cond_broadcast(&self->changed);
  pthread_mutex_unlock(&self->mutex);
}
// Starts a pause or resume of the tag in the background and returns when it is held inside.
__attribute__((unused)) static gmm_ticket *start_held_with(uint32_t flags, bool pausing, const gmm_tag *tag,
                                                           blocker *hold) {
  gmm_pause_desc desc = one_tag(tag);
  desc.flags = flags;
  desc.progress = (gmm_progress_callback){block_progress, hold};
  gmm_ticket *ticket = NULL;
  MUST((pausing ? gmm_pause_async : gmm_resume_async)(context, &desc, &ticket));
  wait_until_inside(hold);
  return ticket;
}
__attribute__((unused)) static gmm_ticket *start_held(bool pausing, const gmm_tag *tag, blocker *hold) {
  return start_held_with(0, pausing, tag, hold);
}

#endif
