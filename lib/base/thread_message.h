// SPDX-License-Identifier: Apache-2.0
// The text of a thread's last failure. A thread has none before its first failure.
//
// The text stays readable as long as its thread runs, also after the last context. So the end of a context frees none,
// and the text of an ended thread is found by the system's number of the thread.
#ifndef GMM_BASE_THREAD_MESSAGE_H
#define GMM_BASE_THREAD_MESSAGE_H

#include <cstdint>

namespace gmm {

struct ThreadMessage {
  static constexpr unsigned long kSize = 1024;
  char text[kSize];
  int32_t native;
  int32_t thread;  // 0: none has it
  ThreadMessage *next;
};

// The calling thread's message, made now where it has none; NULL without host memory.
ThreadMessage *make_thread_message();
// The thread has ended; NULL is allowed.
void end_thread_message(ThreadMessage *message);
// Messages of no thread go back to the system.
void trim_thread_messages();

}  // namespace gmm
#endif
