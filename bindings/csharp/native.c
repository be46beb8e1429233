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
static gmm_oom_fn oom_delegate;
static gmm_write_fn write_delegate;
static gmm_progress_fn progress_delegate;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t asked = PTHREAD_COND_INITIALIZER;
static pthread_cond_t finished = PTHREAD_COND_INITIALIZER;
static gmm_csharp_request *first;
static gmm_csharp_request **last = &first;
static int stopped;

void gmm_csharp_register(gmm_csharp_fail_fn fail, gmm_csharp_log_fn log, gmm_oom_fn oom, gmm_write_fn write,
                         gmm_progress_fn progress) {
  fail_delegate = fail;
  log_delegate = log;
  oom_delegate = oom;
  write_delegate = write;
  progress_delegate = progress;
}

void gmm_csharp_throw(gmm_result result) {
  const int here = refused;
  refused = 0;
  if (here)
    fail_delegate(result, 0, gmm_result_name(result),
                  "The call comes from a watcher's callback, which must not make it; make it on another thread.");
  else
    fail_delegate(result, gmm_last_native_code(), gmm_result_name(result), gmm_last_error_message());
}

/* Returns false when the host has no memory for the request, which takes a copy of its info. */
static int ask(gmm_csharp_request question, const void *info, size_t size, int32_t *answer) {
  gmm_csharp_request *request = (gmm_csharp_request *)malloc(sizeof *request + size);
  if (!request) return 0;
  *request = question;
  request->info = request + 1;
  if (size) memcpy(request->info, info, size);
  pthread_mutex_lock(&mutex);
  if (!stopped) {
    *last = request;
    last = &request->next;
    pthread_cond_signal(&asked);
  }
  while (!request->done && !stopped) pthread_cond_wait(&finished, &mutex);
  /* At the end of the program another thread may still read it. */
  const int done = request->done;
  if (done && answer) *answer = request->answer;
  pthread_mutex_unlock(&mutex);
  if (done) free(request);
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

static void log_line(void *user, gmm_log_level level, const char *message) {
  const gmm_csharp_request line = {.user = user, .kind = GMM_CSHARP_LOG, .level = level};
  if (gmm_csharp_depth > 0)
    log_delegate(user, level, message);
  else
    (void)ask(line, message, strlen(message) + 1, NULL); /* without memory for it the line is lost */
}

/* Without memory for the request, or at the program's end, nobody is called, and the pause or resume goes on. */
static int32_t progress(void *user, uint64_t done, uint64_t total) {
  const gmm_csharp_request report = {.user = user, .kind = GMM_CSHARP_PROGRESS, .copied = done, .total = total};
  int32_t answer = 0;
  if (gmm_csharp_depth > 0) return progress_delegate(user, done, total);
  (void)ask(report, NULL, 0, &answer);
  return answer;
}

/* A watcher must hear, so this waits for host memory. At the program's end nobody is left to refuse. */
static int32_t watch(void *user, const gmm_watch_info *info) {
  const gmm_csharp_request event = {.user = user, .kind = GMM_CSHARP_WATCH};
  int32_t answer = 0;
  while (!ask(event, info, info->struct_size, &answer)) usleep(1000);
  return answer;
}

/* Without memory for the request it is not heard this time: the lease calls again. */
static int32_t lease_asked(void *user, const gmm_lease_ask *wanted) {
  const gmm_csharp_request request = {.user = user, .kind = GMM_CSHARP_ASKED};
  (void)ask(request, wanted, wanted->struct_size, NULL);
  return 0;
}

void *gmm_csharp_callback(const char *type) {
  void *found = NULL;
  if (strcmp(type, "gmm_log_callback") == 0) *(void (**)(void *, gmm_log_level, const char *)) & found = log_line;
  if (strcmp(type, "gmm_progress_callback") == 0) *(gmm_progress_fn *)&found = progress;
  if (strcmp(type, "gmm_watch_callback") == 0) *(gmm_watch_fn *)&found = watch;
  if (strcmp(type, "gmm_lease_ask_callback") == 0) *(gmm_lease_ask_fn *)&found = lease_asked;
  return found;
}

void gmm_csharp_enter_watch(uint32_t event) { watch_event = event; }

gmm_result gmm_csharp_check_outside(int in_budget) {
  if (watch_event == 0 || (in_budget && watch_event == GMM_WATCH_BUDGET)) return GMM_OK;
  refused = 1;
  return GMM_ERROR_BUSY;
}

/* The library calls these two on the thread of the caller. */
int32_t gmm_csharp_oom(void *user, const gmm_oom_info *info) { return oom_delegate(user, info); }
int32_t gmm_csharp_write(void *user, const char *text, uint64_t size) { return write_delegate(user, text, size); }

/* A task must not be lost, so this waits for host memory. */
void gmm_csharp_run(void *user) {
  const gmm_csharp_request task = {.user = user, .kind = GMM_CSHARP_TASK};
  while (!ask(task, NULL, 0, NULL)) usleep(1000);
}
