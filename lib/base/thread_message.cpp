// SPDX-License-Identifier: Apache-2.0
#include "base/thread_message.h"

#include <cstdlib>
#include <new>

#include "base/process_mutex.h"
#include "base/thread.h"
#include "base/thread_record.h"

namespace gmm {
namespace {

// The first messages are memory of the library's own: an unloaded library leaves nothing while few threads saw
// failures.
constexpr uint32_t kOwnMessages = 16;
constinit ProcessMutex g_messages_mutex{LockRank::kThreadMessages};
constinit ThreadMessage g_own[kOwnMessages] = {};
constinit uint32_t g_own_used = 0;
constinit ThreadMessage *g_all = nullptr;
constinit uint32_t g_count = 0, g_next_look = kOwnMessages;

// The parent's messages stay as they are: the thread that forked still reads one of them.
void reset_messages() {
  g_own_used = kOwnMessages;
  g_all = nullptr;
  g_count = 0;
}

ThreadMessage *find_free() {
  for (ThreadMessage *each = g_all; each != nullptr; each = each->next)
    if (each->thread == 0) return each;
  if (g_own_used == kOwnMessages && g_count >= g_next_look) {
    // Messages of threads that ended while nobody held the records.
    for (ThreadMessage *each = g_all; each != nullptr; each = each->next)
      if (!thread_runs(each->thread)) return each;
    g_next_look = g_count * 2;
  }
  return nullptr;
}

ThreadMessage *make() {
  ThreadMessage *made = nullptr;
  if (g_own_used < kOwnMessages)
    made = &g_own[g_own_used++];
  else if (void *memory = std::malloc(sizeof(ThreadMessage)))
    made = ::new (memory) ThreadMessage;
  if (made == nullptr) return nullptr;
  made->next = g_all;
  g_all = made;
  ++g_count;
  return made;
}

bool is_own(const ThreadMessage *message) { return message >= g_own && message < g_own + kOwnMessages; }

}  // namespace

ThreadMessage *make_thread_message() {
  ThreadRecord &record = own_thread_record();
  if (record.message != nullptr) return record.message;
  list_thread_record_if_held();
  const ProcessGuard guard(g_messages_mutex, reset_messages);
  ThreadMessage *message = find_free();
  if (message == nullptr) message = make();
  if (message == nullptr) return nullptr;
  message->text[0] = '\0';
  message->native = 0;
  message->thread = thread_number();
  return record.message = message;
}

void end_thread_message(ThreadMessage *message) {
  if (message == nullptr) return;
  const ProcessGuard guard(g_messages_mutex, reset_messages);
  message->thread = 0;
}

void trim_thread_messages() {
  const ProcessGuard guard(g_messages_mutex, reset_messages);
  for (ThreadMessage **link = &g_all; *link != nullptr;) {
    ThreadMessage *each = *link;
    if (is_own(each) || (each->thread != 0 && thread_runs(each->thread))) {
      link = &each->next;
      continue;
    }
    *link = each->next;
    --g_count;
    std::free(each);
  }
}

}  // namespace gmm
