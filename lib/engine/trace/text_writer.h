// SPDX-License-Identifier: Apache-2.0
// Text for a gmm_write_fn.
#ifndef GMM_ENGINE_TRACE_TEXT_WRITER_H
#define GMM_ENGINE_TRACE_TEXT_WRITER_H

#include <gmm/stats.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>

#include "backend/backend.h"
#include "base/device_text.h"
#include "base/lock.h"

namespace gmm {

// Collects text and passes it on in large pieces. It remembers that the writer stopped.
class TextWriter {
 public:
  TextWriter(gmm_write_fn write, void *user) : write_(write), user_(user) {}
  [[gnu::format(printf, 2, 3)]] void print(const char *format, ...) {
    if (sizeof text_ - used_ < kLine) flush();
    va_list arguments;
    va_start(arguments, format);
    const int written = std::vsnprintf(text_ + used_, kLine, format, arguments);
    va_end(arguments);
    if (written > 0) used_ += static_cast<uint64_t>(written) < kLine ? static_cast<uint64_t>(written) : kLine - 1;
  }
  // Writes a string, escaped for JSON, or for Prometheus, which takes control characters as they are.
  void quote(const char *text, bool escapes_controls = true) {
    print("\"");
    for (; *text != '\0'; ++text) {
      const unsigned char c = static_cast<unsigned char>(*text);
      if (c == '"' || c == '\\' || c == '\n')
        print("\\%c", c == '\n' ? 'n' : c);
      else
        print(c < 0x20 && escapes_controls ? "\\u%04x" : "%c", c);
    }
    print("\"");
  }
  void uuid(const uint8_t bytes[16]) {
    char text[UUID_TEXT_SIZE];
    uuid_text(bytes, text);
    print("%s", text);
  }
  void flush() {
    check_may_call_program(ProgramCall::kWrite);
    if (used_ != 0 && !stopped_) stopped_ = write_(user_, text_, used_) != 0;
    used_ = 0;
  }
  bool stopped() const { return stopped_; }

 private:
  static constexpr uint64_t kLine = 512;
  gmm_write_fn write_;
  void *user_;
  bool stopped_ = false;
  uint64_t used_ = 0;
  char text_[8192];
};

}  // namespace gmm
#endif
