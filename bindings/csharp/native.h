/* SPDX-License-Identifier: Apache-2.0 */
/** @file native.h  The way back from C into C#: delegates on the runtime's thread, requests on one of the library. */
#ifndef GMM_CSHARP_NATIVE_H
#define GMM_CSHARP_NATIVE_H

#include <gmm/gmm.h>

typedef void (*gmm_csharp_fail_fn)(int32_t code, int32_t native_code, const char *name, const char *message);
/** How many calls from C# this thread is in. With none it is a thread of the library, which must not enter C#. */
extern _Thread_local int gmm_csharp_depth;

/**
 * A call of the program's function. On a thread of the library it is a request: the thread waits while a thread of the
 * runtime runs the callback, since Mono does not end while a thread that C made is attached to it.
 */
typedef struct gmm_csharp_request {
  void *user;
  const void *info; /**< a struct that the library lends, the text of a log line, or a piece of a snapshot */
  uint64_t first;   /**< the level of a log line, or UINT64_MAX when memory is exhausted; the size of a piece */
  uint64_t second;  /**< of progress: bytes in all, where `first` is those done */
  /* Callbacks.cs knows the layout so far. */
  int32_t answer, done;
  struct gmm_csharp_request *next;
} gmm_csharp_request;

/** Runs a callback. Returns its answer for C. */
typedef int32_t (*gmm_csharp_perform_fn)(gmm_csharp_request *request);

/** Sets the delegates, before any other call. */
void gmm_csharp_register(gmm_csharp_fail_fn fail, gmm_csharp_perform_fn perform);

/** The thread is inside the callback of a watcher for this event; 0: outside again. */
void gmm_csharp_enter_watch(uint32_t event);

/** BUSY inside the callback of a watcher; in_budget: it is allowed in that of GMM_WATCH_BUDGET. */
gmm_result gmm_csharp_check_outside(int32_t in_budget);

/** Waits for a request; NULL after gmm_csharp_stop(). */
void *gmm_csharp_next(void);

/** Lets the thread of the library go on. */
void gmm_csharp_finish(void *request, int32_t answer);

/** The runtime ends: nobody waits for it any more, and nothing is asked of it. */
void gmm_csharp_stop(void);

/** Leaves the failure of this thread's last call as the exception that the C# side throws when the wrapper returns. */
void gmm_csharp_throw(gmm_result result);

/** Closes a file descriptor. */
void gmm_csharp_close(int32_t fd);

/** The trampoline of a callback type of the headers, for a field of options. */
void *gmm_csharp_callback(const char *type);

int32_t gmm_csharp_oom(void *user, const gmm_oom_info *info);
int32_t gmm_csharp_write(void *user, const char *text, uint64_t size);
void gmm_csharp_run(void *user);

#endif
