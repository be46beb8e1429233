// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <cstdio>
#include <cstring>

namespace gmm {
namespace {

constexpr unsigned long kMessageSize = 1024;
thread_local char t_message[kMessageSize];
thread_local int32_t t_native;

void set_message(int32_t native, const char *format, va_list arguments) {
  std::vsnprintf(t_message, kMessageSize, format, arguments);
  t_native = native;
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

Status remark(gmm_result code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  set_message(0, format, arguments);
  va_end(arguments);
  return Status(code);
}

Status prefix(Status status, const char *format, ...) {
  char old[kMessageSize];
  std::memcpy(old, t_message, kMessageSize);
  va_list arguments;
  va_start(arguments, format);
  int written = std::vsnprintf(t_message, kMessageSize, format, arguments);
  va_end(arguments);
  if (written >= 0 && static_cast<unsigned long>(written) < kMessageSize)
    std::snprintf(t_message + written, kMessageSize - static_cast<unsigned long>(written), "%s", old);
  return status;
}

const char *last_message() { return t_message; }
int32_t last_native() { return t_native; }

MessageGuard::MessageGuard() : native_(t_native) { std::memcpy(text_, t_message, kMessageSize); }
MessageGuard::~MessageGuard() {
  std::memcpy(t_message, text_, kMessageSize);
  t_native = native_;
}

const char *system_error_text(int error, char *buffer, unsigned long size) {
#if defined(_GNU_SOURCE)
  return strerror_r(error, buffer, size);
#else
  return strerror_r(error, buffer, size) == 0 ? buffer : "unknown error";
#endif
}

}  // namespace gmm
