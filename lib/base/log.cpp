// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "base/environment.h"
#include "base/hash_table.h"
#include "base/lock.h"
#include "base/status.h"

namespace gmm {

constexpr size_t kMaxMessage = 1024;

struct QueuedMessage {
  QueuedMessage *next;
  Log::Fn fn;
  void *user;
  uint32_t level;
  char text[kMaxMessage];
};

namespace {

constexpr const char *kLevelNames[] = {"", "error", "warning", "info", "debug"};

// The messages of the calling thread. malloc serves, as the host allocator is a context's.
constinit thread_local LogMessages t_queue = {};

// The hashes of the texts of complain(). A text beyond their number is written again.
constinit std::atomic<uint64_t> g_said[64] = {};

bool is_new(const char *text) {
  const uint64_t hash = hash_of_text(text) | 1;
  for (std::atomic<uint64_t> &each : g_said) {
    uint64_t known = 0;
    if (each.compare_exchange_strong(known, hash, std::memory_order_relaxed)) return true;
    if (known == hash) return false;
  }
  return true;
}

void call_log(Log::Fn fn, void *user, uint32_t level, const char *text) {
  check_may_call_program(ProgramCall::kLog);
  MessageGuard message_guard;  // the program may call gmm
  const int error = errno;
  fn(user, level, text);
  errno = error;
}

void queue_message(Log::Fn fn, void *user, uint32_t level, const char *text) {
  t_locks.has_messages = true;
  void *memory = std::malloc(sizeof(QueuedMessage));
  if (memory == nullptr) return;
  QueuedMessage *message = ::new (memory) QueuedMessage{nullptr, fn, user, level, {}};
  std::memcpy(message->text, text, kMaxMessage);
  (t_queue.first == nullptr ? t_queue.first : t_queue.last->next) = message;
  t_queue.last = message;
}

}  // namespace

void deliver_messages() {
  // A callback may call gmm and so queue and deliver messages of its own: those come after the ones of this queue that
  // were delivered already.
  while (t_queue.first != nullptr) {
    QueuedMessage *message = t_queue.first;
    t_queue.first = message->next;
    call_log(message->fn, message->user, message->level, message->text);
    std::free(message);
  }
  t_locks.has_messages = false;
}

LogMessages take_messages() {
  t_locks.has_messages = false;
  return std::exchange(t_queue, LogMessages{});
}

void adopt_messages(LogMessages messages) {
  if (messages.first == nullptr) return;
  (t_queue.first == nullptr ? t_queue.first : t_queue.last->next) = messages.first;
  t_queue.last = messages.last;
  t_locks.has_messages = true;
  if (t_locks.held == 0) deliver_messages();
}

// The words of GMM_LOG stand in the order of the levels.
Log::Log(Fn fn, void *user) : fn_(fn), user_(user) {
  has_stderr_level_ = environment_word(Variable::kLog, &stderr_level_) == Reading::kGood;
}

void Log::write_text(uint32_t level, uint32_t stderr_level, const char *text) const {
  if (fn_ == nullptr && level > stderr_level) return;
  if (fn_ == nullptr)
    std::fprintf(stderr, "gmm %s: %s\n", kLevelNames[level], text);
  else if (t_locks.held == 0)
    call_log(fn_, user_, level, text);
  else
    queue_message(fn_, user_, level, text);
}

void Log::write(LogLevel level, const char *format, ...) const {
  if (fn_ == nullptr && static_cast<uint32_t>(level) > stderr_level_) return;
  char text[kMaxMessage];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  write_text(static_cast<uint32_t>(level), stderr_level_, text);
}

void Log::complain(const char *format, ...) const {
  const uint32_t warning = static_cast<uint32_t>(LogLevel::kWarning);
  char text[kMaxMessage];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (is_new(text)) write_text(warning, has_stderr_level_ ? stderr_level_ : warning, text);
}

}  // namespace gmm
