/* SPDX-License-Identifier: Apache-2.0 */
#include "native.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "oom.h"

_Thread_local int gmm_csharp_depth;
static _Thread_local uint32_t watch_event; /* the callback of a watcher runs here */
static _Thread_local int refused;          /* gmm_csharp_check_outside() did, not the library */

static gmm_csharp_fail_fn fail_delegate;
static gmm_csharp_perform_fn perform_delegate;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t asked = PTHREAD_COND_INITIALIZER;
static pthread_cond_t finished = PTHREAD_COND_INITIALIZER;
static gmm_csharp_request *first;
static gmm_csharp_request **last = &first;
static int stopped;

void gmm_csharp_register(gmm_csharp_fail_fn fail, gmm_csharp_perform_fn perform) {
  fail_delegate = fail;
  perform_delegate = perform;
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

/* Asks the program by a request, which has a copy of the info. Returns -1 when the host has no memory for it, and 0
 * when the program ends. */
static int32_t ask(gmm_csharp_request question, size_t size) {
  gmm_csharp_request *request = (gmm_csharp_request *)malloc(sizeof *request + size);
  if (!request) return -1;
  *request = question;
  if (size) request->info = memcpy(request + 1, question.info, size);
  pthread_mutex_lock(&mutex);
  if (!stopped) {
    *last = request;
    last = &request->next;
    pthread_cond_signal(&asked);
  }
  while (!request->done && !stopped) pthread_cond_wait(&finished, &mutex);
  /* At the end of the program another thread may still read it. */
  const int done = request->done;
  const int32_t answer = done ? request->answer : 0;
  pthread_mutex_unlock(&mutex);
  if (done) free(request);
  return answer;
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

/* A thread of the runtime runs the callback itself. */
static int32_t call_or_ask(gmm_csharp_request question, size_t size) {
  return gmm_csharp_depth > 0 ? perform_delegate(&question) : ask(question, size);
}

/* Without memory for the request the line is lost. */
static void log_line(void *user, gmm_log_level level, const char *message) {
  (void)call_or_ask((gmm_csharp_request){.user = user, .info = message, .first = level}, strlen(message) + 1);
}

/* Without memory for the request nobody is called, and the pause or resume goes on. */
static int32_t progress(void *user, uint64_t done, uint64_t total) {
  return call_or_ask((gmm_csharp_request){.user = user, .first = done, .second = total}, 0) > 0;
}

/* A watcher must hear, so this waits for host memory. */
static int32_t watch(void *user, const gmm_watch_info *info) {
  int32_t answer = -1;
  while ((answer = ask((gmm_csharp_request){.user = user, .info = info}, info->struct_size)) < 0) usleep(1000);
  return answer;
}

/* Without memory for the request it is not heard this time: the lease calls again. */
static int32_t lease_asked(void *user, const gmm_lease_ask *wanted) {
  (void)ask((gmm_csharp_request){.user = user, .info = wanted}, wanted->struct_size);
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

gmm_result gmm_csharp_check_outside(int32_t in_budget) {
  if (watch_event == 0 || (in_budget && watch_event == GMM_WATCH_BUDGET)) return GMM_OK;
  refused = 1;
  return GMM_ERROR_BUSY;
}

/* The library calls these on the thread of the caller. */
static int32_t ask_oom(void *user, const gmm_oom_info *info) {
  gmm_csharp_request question = {.user = user, .info = info, .first = UINT64_MAX};
  return perform_delegate(&question);
}
int32_t gmm_csharp_oom(void *user, const gmm_oom_info *info) { return gmm_oom_answer(user, info, ask_oom); }
int32_t gmm_csharp_write(void *user, const char *text, uint64_t size) {
  gmm_csharp_request question = {.user = user, .info = text, .first = size};
  return perform_delegate(&question);
}

/* A task must not be lost, so this waits for host memory. */
void gmm_csharp_run(void *user) {
  while (ask((gmm_csharp_request){.user = user}, 0) < 0) usleep(1000);
}
