// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <initializer_list>

namespace gmm {

int start_thread(pthread_t *out, const pthread_attr_t *attributes, ThreadSignals signals, void *(*fn)(void *),
                 void *argument) {
  sigset_t blocked, before;
  sigfillset(&blocked);
  if (signals == ThreadSignals::kFaults)
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  const int error = pthread_create(out, attributes, fn, argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return error;
}

namespace {
constinit thread_local bool t_may_allocate = true;
}  // namespace

void forbid_allocations() { t_may_allocate = false; }

bool may_allocate() { return t_may_allocate; }

pid_t thread_number() { return static_cast<pid_t>(syscall(SYS_gettid)); }

bool thread_runs(pid_t thread) { return syscall(SYS_tgkill, getpid(), thread, 0) == 0 || errno != ESRCH; }

}  // namespace gmm
