/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Thread_local int gmm_csharp_depth;
static _Thread_local uint32_t watch_event; /* the callback of a watcher runs here */
static _Thread_local int refused;          /* gmm_csharp_check_outside() did, not the library */

static gmm_csharp_fail_fn fail_delegate;
static gmm_csharp_log_fn log_delegate;
static gmm_csharp_oom_fn oom_delegate;
static gmm_write_fn write_delegate;
static gmm_progress_fn progress_delegate;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t asked = PTHREAD_COND_INITIALIZER;
static pthread_cond_t finished = PTHREAD_COND_INITIALIZER;
static gmm_csharp_request *first;
static gmm_csharp_request **last = &first;
static int stopped;

void gmm_csharp_register(gmm_csharp_fail_fn fail, gmm_csharp_log_fn log, gmm_csharp_oom_fn oom, gmm_write_fn write,
                         gmm_progress_fn progress) {
  fail_delegate = fail;
  log_delegate = log;
  oom_delegate = oom;
  write_delegate = write;
  progress_delegate = progress;
}

#define EXPORT __attribute__((visibility("default")))
/* Domain.cs calls these before SWIG's own functions register. */
EXPORT int32_t gmm_csharp_enter_domain(int32_t domain);
EXPORT void gmm_csharp_leave_domain(void);
static int32_t user_domain; /* 0: none */

int32_t gmm_csharp_enter_domain(int32_t domain) {
  pthread_mutex_lock(&mutex);
  const int free_for_it = user_domain == 0 || user_domain == domain;
  if (free_for_it) {
    user_domain = domain;
    stopped = 0;
  }
  pthread_mutex_unlock(&mutex);
  return free_for_it;
}

/* The domain is unloaded: no callback finds its code any more. Its objects are finalized after this. */
void gmm_csharp_leave_domain(void) {
  gmm_csharp_stop();
  gmm_csharp_register(NULL, NULL, NULL, NULL, NULL);
  pthread_mutex_lock(&mutex);
  user_domain = 0;
  pthread_mutex_unlock(&mutex);
}

void gmm_csharp_throw(gmm_result result) {
  const int here = refused;
  refused = 0;
  if (!fail_delegate) return;
  if (here)
    fail_delegate(result, 0, gmm_result_name(result),
                  "The call comes from a watcher's callback, which must not make it; make it on another thread.");
  else
    fail_delegate(result, gmm_last_native_code(), gmm_result_name(result), gmm_last_error_message());
}

/* Returns false when the host has no memory for the request. */
static int ask(const gmm_csharp_request *question, int32_t *answer) {
  gmm_csharp_request *request = (gmm_csharp_request *)malloc(sizeof *request);
  if (!request) return 0;
  *request = *question;
  if (question->message && !(request->message = strdup(question->message))) {
    free(request);
    return 0;
  }
  pthread_mutex_lock(&mutex);
  if (!stopped) {
    *last = request;
    last = &request->next;
    pthread_cond_signal(&asked);
  }
  while (!request->done && !stopped) pthread_cond_wait(&finished, &mutex);
  /* At the end of the program another thread may still read it. */
  int done = request->done;
  if (done && answer) *answer = request->answer;
  pthread_mutex_unlock(&mutex);
  if (done) {
    free(request->message);
    free(request);
  }
  return 1;
}

void *gmm_csharp_next(void) {
  pthread_mutex_lock(&mutex);
  while (!first && !stopped) pthread_cond_wait(&asked, &mutex);
  gmm_csharp_request *request = stopped ? NULL : first;
  if (request) {
    first = request->next;
    if (!first) last = &first;
  }
  pthread_mutex_unlock(&mutex);
  return request;
}

void gmm_csharp_finish(void *request, int32_t answer) {
  pthread_mutex_lock(&mutex);
  ((gmm_csharp_request *)request)->answer = answer;
  ((gmm_csharp_request *)request)->done = 1;
  pthread_cond_broadcast(&finished);
  pthread_mutex_unlock(&mutex);
}

void gmm_csharp_stop(void) {
  pthread_mutex_lock(&mutex);
  stopped = 1;
  pthread_cond_broadcast(&asked);
  pthread_cond_broadcast(&finished);
  pthread_mutex_unlock(&mutex);
}

void gmm_csharp_close(int32_t fd) { close(fd); }

void gmm_csharp_log(void *user, gmm_log_level level, const char *message) {
  const gmm_csharp_request line = {.user = user, .kind = GMM_CSHARP_LOG, .message = (char *)message, .level = level};
  if (!log_delegate) return;
  if (gmm_csharp_depth > 0)
    log_delegate(user, level, message);
  else
    (void)ask(&line, NULL); /* without memory for it the line is lost */
}

int32_t gmm_csharp_oom(void *user, const gmm_oom_info *info) {
  if (!oom_delegate) return 0;
  return oom_delegate(user, info->device, info->kind, info->tag, info->requested_bytes, info->reserved_bytes,
                      info->attempt, info->cause);
}

int32_t gmm_csharp_write(void *user, const char *text, uint64_t size) {
  return write_delegate ? write_delegate(user, text, size) : 1;
}

/* Without memory for the request, or at the program's end, nobody is called, and the pause or resume goes on. */
int32_t gmm_csharp_progress(void *user, uint64_t done, uint64_t total) {
  const gmm_csharp_request report = {.user = user, .kind = GMM_CSHARP_PROGRESS, .copied = done, .total = total};
  int32_t answer = 0;
  if (!progress_delegate) return 0;
  if (gmm_csharp_depth > 0) return progress_delegate(user, done, total);
  (void)ask(&report, &answer);
  return answer;
}

void gmm_csharp_enter_watch(uint32_t event) { watch_event = event; }

gmm_result gmm_csharp_check_outside(int in_budget) {
  if (watch_event == 0 || (in_budget && watch_event == GMM_WATCH_BUDGET)) return GMM_OK;
  refused = 1;
  return GMM_ERROR_BUSY;
}

/* A watcher must hear, so this waits for host memory. At the program's end nobody is left to refuse. */
int32_t gmm_csharp_watch(void *user, const gmm_watch_info *info) {
  const gmm_csharp_request event = {.user = user, .kind = GMM_CSHARP_WATCH, .watch = *info};
  int32_t answer = 0;
  while (!ask(&event, &answer)) usleep(1000);
  return answer;
}

/* Without memory for the request it is not heard this time: the lease calls again. */
int32_t gmm_csharp_asked(void *user, const gmm_lease_ask *wanted) {
  const gmm_csharp_request request = {.user = user, .kind = GMM_CSHARP_ASKED, .ask = *wanted};
  (void)ask(&request, NULL);
  return 0;
}

void gmm_csharp_run(void *user) {
  const gmm_csharp_request task = {.user = user, .kind = GMM_CSHARP_TASK};
  /* A task must not be lost, so this waits for host memory. */
  while (!ask(&task, NULL)) usleep(1000);
}
