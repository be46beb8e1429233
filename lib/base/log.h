// SPDX-License-Identifier: Apache-2.0
// Messages to the program's callback. Without one they go to stderr if GMM_LOG is set. Faults of the environment go
// there if it is not set, too.
//
// The callback may take the program's own locks, run a garbage collector, or call gmm. So it never runs while its
// thread holds a lock of the library: a message is queued then, and Mutex::unlock() delivers the queue of the thread
// when the last lock is given up (base/lock.h). The thread's message and errno are the same before and after a call.
#ifndef GMM_BASE_LOG_H
#define GMM_BASE_LOG_H

#include <cstdint>

namespace gmm {

enum class LogLevel : uint32_t { kError = 1, kWarning = 2, kInfo = 3, kDebug = 4 };

class Log {
 public:
  using Fn = void (*)(void *user, uint32_t level, const char *message);
  // Without `fn` messages go to stderr, up to the level that GMM_LOG names: error, warning, info or debug. If GMM_LOG
  // is not set, there are none.
  Log(Fn fn, void *user);
  // Any thread, with or without locks.
  [[gnu::format(printf, 3, 4)]] void write(LogLevel level, const char *format, ...) const;
  // Writes a warning of a setting of the environment that has no effect. It goes to stderr unless GMM_LOG says off or
  // error. The same words come once in a process.
  [[gnu::format(printf, 2, 3)]] void complain(const char *format, ...) const;

 private:
  void write_text(uint32_t level, uint32_t stderr_level, const char *text) const;

  Fn fn_;
  void *user_;
  uint32_t stderr_level_ = 0;
  bool has_stderr_level_ = false;  // GMM_LOG holds a level
};

// The messages of a thread while it held a lock, oldest first; without those for which there was no host memory.
struct QueuedMessage;
struct LogMessages {
  QueuedMessage *first, *last;
};
// A thread that works for another one hands its messages over before it ends. The other delivers them after those of
// its own, at once if it holds no lock.
LogMessages take_messages();
void adopt_messages(LogMessages messages);

}  // namespace gmm
#endif
