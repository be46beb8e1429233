// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace gmm {
namespace {

constexpr const char *kNames[] = {"off", "error", "warning", "info", "debug"};

}  // namespace

Log::Log(Fn fn, void *user) : fn_(fn), user_(user) {
  const char *wanted = std::getenv("GMM_LOG");
  if (wanted == nullptr) return;
  for (uint32_t level = 0; level < 5; ++level)
    if (std::strcmp(wanted, kNames[level]) == 0) stderr_level_ = level;
}

void Log::write(LogLevel level, const char *format, ...) const {
  const uint32_t number = static_cast<uint32_t>(level);
  if (fn_ == nullptr && number > stderr_level_) return;
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  if (fn_ != nullptr) return fn_(user_, number, text);
  std::fprintf(stderr, "gmm %s: %s\n", kNames[number], text);
}

}  // namespace gmm
