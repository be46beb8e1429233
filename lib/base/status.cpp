// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <cstdio>
#include <cstring>

#include "base/thread_message.h"
#include "base/thread_record.h"

namespace gmm {
namespace {

constexpr unsigned long kMessageSize = ThreadMessage::kSize;

void set_message(int32_t native, const char *format, va_list arguments) {
  ThreadMessage *message = make_thread_message();
  if (message == nullptr) return;
  std::vsnprintf(message->text, kMessageSize, format, arguments);
  message->native = native;
}

}  // namespace

Status fail(gmm_result code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  set_message(0, format, arguments);
  va_end(arguments);
  return Status(code);
}

Status fail_native(gmm_result code, int32_t native, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  set_message(native, format, arguments);
  va_end(arguments);
  return Status(code);
}

Status prefix(Status status, const char *format, ...) {
  ThreadMessage *message = status.ok() ? nullptr : make_thread_message();
  if (message == nullptr) return status;
  char old[kMessageSize];
  std::memcpy(old, message->text, kMessageSize);
  va_list arguments;
  va_start(arguments, format);
  int written = std::vsnprintf(message->text, kMessageSize, format, arguments);
  va_end(arguments);
  if (written >= 0 && static_cast<unsigned long>(written) < kMessageSize)
    std::snprintf(message->text + written, kMessageSize - static_cast<unsigned long>(written), "%s", old);
  return status;
}

const char *last_message() {
  const ThreadMessage *message = own_thread_record().message;
  return message == nullptr ? "" : message->text;
}

int32_t last_native() {
  const ThreadMessage *message = own_thread_record().message;
  return message == nullptr ? 0 : message->native;
}

MessageGuard::MessageGuard() : native_(last_native()) {
  text_[0] = '\0';
  if (const ThreadMessage *message = own_thread_record().message) std::memcpy(text_, message->text, kMessageSize);
}

MessageGuard::~MessageGuard() {
  ThreadMessage *message = own_thread_record().message;
  if (message == nullptr) return;
  std::memcpy(message->text, text_, text_[0] == '\0' ? 1 : kMessageSize);
  message->native = native_;
}

}  // namespace gmm
