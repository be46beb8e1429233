// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <cstdarg>
#include <cstdio>

#include "base/environment.h"

namespace gmm {
namespace {

constexpr const char *kNames[] = {"", "error", "warning", "info", "debug"};

}  // namespace

// The words of GMM_LOG stand in the order of the levels.
Log::Log(Fn fn, void *user) : fn_(fn), user_(user) {
  has_stderr_level_ = environment_word(Variable::kLog, &stderr_level_) == Reading::kGood;
}

void Log::write_text(uint32_t level, uint32_t stderr_level, const char *format, va_list arguments) const {
  if (fn_ == nullptr && level > stderr_level) return;
  char text[1024];
  std::vsnprintf(text, sizeof text, format, arguments);
  if (fn_ != nullptr) return fn_(user_, level, text);
  std::fprintf(stderr, "gmm %s: %s\n", kNames[level], text);
}

void Log::write(LogLevel level, const char *format, ...) const {
  va_list arguments;
  va_start(arguments, format);
  write_text(static_cast<uint32_t>(level), stderr_level_, format, arguments);
  va_end(arguments);
}

void Log::complain(const char *format, ...) const {
  const uint32_t warning = static_cast<uint32_t>(LogLevel::kWarning);
  va_list arguments;
  va_start(arguments, format);
  write_text(warning, has_stderr_level_ ? stderr_level_ : warning, format, arguments);
  va_end(arguments);
}

}  // namespace gmm
