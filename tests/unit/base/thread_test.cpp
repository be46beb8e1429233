// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"

#include <gtest/gtest.h>

#include <csignal>

namespace gmm {
namespace {

struct Seen {
  sigset_t blocked;
  int32_t number;
};

void *look(void *seen) {
  pthread_sigmask(SIG_SETMASK, nullptr, &static_cast<Seen *>(seen)->blocked);
  static_cast<Seen *>(seen)->number = thread_number();
  return nullptr;
}

Seen run(ThreadSignals signals) {
  Seen seen = {};
  Thread thread;
  EXPECT_EQ(start_thread(&thread, signals, look, &seen), 0);
  join_thread(thread);
  return seen;
}

TEST(Thread, TheProgramsSignalsStayWithTheProgram) {
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  const Seen none = run(ThreadSignals::kNone), faults = run(ThreadSignals::kFaults);
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal : {SIGINT, SIGTERM, SIGUSR1, SIGALRM, SIGCHLD}) {
    EXPECT_EQ(sigismember(&none.blocked, signal), 1) << signal;
    EXPECT_EQ(sigismember(&faults.blocked, signal), 1) << signal;
    EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal)) << signal;
  }
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP}) {
    EXPECT_EQ(sigismember(&none.blocked, fault), 1) << fault;
    EXPECT_EQ(sigismember(&faults.blocked, fault), 0) << fault;
  }
}

TEST(Thread, NumbersTellThreadsApart) {
  const Seen other = run(ThreadSignals::kNone);
  EXPECT_NE(other.number, thread_number());
  EXPECT_TRUE(thread_runs(thread_number()));
}

}  // namespace
}  // namespace gmm
