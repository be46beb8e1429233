// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <initializer_list>

namespace gmm {
namespace {

static_assert(sizeof(pthread_t) <= sizeof(uintptr_t) && sizeof(pthread_key_t) <= sizeof(uintptr_t));
pthread_t native(Thread thread) { return (pthread_t)thread.handle; }  // a number or a pointer

}  // namespace

int start_thread(Thread *out, ThreadSignals signals, void *(*fn)(void *), void *argument, uint64_t stack_size) {
  pthread_attr_t attributes;
  if (const int error = pthread_attr_init(&attributes); error != 0) return error;
  if (stack_size != 0) pthread_attr_setstacksize(&attributes, stack_size);  // fails only below the system's minimum
  sigset_t blocked, before;
  sigfillset(&blocked);
  if (signals == ThreadSignals::kFaults)
    for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_SETMASK, &blocked, &before);
  // The thread may look at *out, so the system writes there before the thread begins.
  const int error = pthread_create(reinterpret_cast<pthread_t *>(&out->handle), &attributes, fn, argument);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return error;
}

void join_thread(Thread thread) { pthread_join(native(thread), nullptr); }

bool is_calling_thread(Thread thread) { return pthread_equal(pthread_self(), native(thread)) != 0; }

void detach_calling_thread() { pthread_detach(pthread_self()); }

void name_thread(const char *name) {
  char text[16];
  std::snprintf(text, sizeof text, "%s", name);
  pthread_setname_np(pthread_self(), text);
}

void yield_thread() { sched_yield(); }

void sleep_us(uint64_t microseconds) {
  const timespec time = {static_cast<time_t>(microseconds / 1000000), static_cast<long>(microseconds % 1000000) * 1000};
  nanosleep(&time, nullptr);
}

int32_t thread_number() { return static_cast<int32_t>(syscall(SYS_gettid)); }

bool thread_runs(int32_t thread) { return syscall(SYS_tgkill, getpid(), thread, 0) == 0 || errno != ESRCH; }

bool create_thread_key(ThreadKey *out, void (*end)(void *value)) {
  pthread_key_t key;
  if (pthread_key_create(&key, end) != 0) return false;
  out->number = key;
  return true;
}

bool set_thread_key(ThreadKey key, void *value) {
  return pthread_setspecific(static_cast<pthread_key_t>(key.number), value) == 0;
}

void delete_thread_key(ThreadKey key) { pthread_key_delete(static_cast<pthread_key_t>(key.number)); }

}  // namespace gmm
