// SPDX-License-Identifier: Apache-2.0
// Text for a gmm_write_fn.
#ifndef GMM_BASE_TEXT_WRITER_H
#define GMM_BASE_TEXT_WRITER_H

#include <gmm/stats.h>

#include <cinttypes>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <type_traits>

#include "base/device_text.h"
#include "base/lock.h"

namespace gmm {

// Collects text and passes it on in large pieces. It remembers that the writer stopped.
class TextWriter {
 public:
  TextWriter(gmm_write_fn write, void *user) : write_(write), user_(user) {}
  [[gnu::format(printf, 2, 3)]] void print(const char *format, ...) {
    make_room();
    va_list arguments;
    va_start(arguments, format);
    const int written = std::vsnprintf(text_ + used_, kLine, format, arguments);
    va_end(arguments);
    if (written > 0) used_ += static_cast<uint64_t>(written) < kLine ? static_cast<uint64_t>(written) : kLine - 1;
  }
  void put(char character) {
    make_room();
    text_[used_++] = character;
  }
  // Writes a string, escaped for JSON, or for Prometheus, which takes control characters as they are. "</" would end a
  // script that has the JSON.
  void quote(const char *text, bool for_json = true) {
    put('"');
    for (; *text != '\0'; ++text) {
      const unsigned char c = static_cast<unsigned char>(*text);
      if (c == '"' || c == '\\' || c == '\n') put('\\');
      if (for_json && c != '\n' && (c < 0x20 || c == '<'))
        print("\\u%04x", c);
      else
        put(c == '\n' ? 'n' : *text);
    }
    put('"');
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

 protected:
  template <typename Number>
  void put_number(Number number) {
    make_room();
    // The table of std::to_chars() would keep a plug-in that carries the library from being unloaded.
    if constexpr (std::is_signed_v<Number>)
      used_ += static_cast<uint64_t>(std::snprintf(text_ + used_, kLine, "%" PRId64, static_cast<int64_t>(number)));
    else
      used_ += static_cast<uint64_t>(std::snprintf(text_ + used_, kLine, "%" PRIu64, static_cast<uint64_t>(number)));
  }

 private:
  void make_room() {
    if (sizeof text_ - used_ < kLine) flush();
  }
  static constexpr uint64_t kLine = 512;
  gmm_write_fn write_;
  void *user_;
  bool stopped_ = false;
  uint64_t used_ = 0;
  char text_[8192];
};

// A number as JSON's text, which holds all of its bits.
struct Hexadecimal {
  uint64_t number;
};

// JSON, with the commas.
class JsonWriter : public TextWriter {
 public:
  using TextWriter::TextWriter;
  // A bracket. The name is that of a field.
  void open(char bracket) {
    begin_value();
    put(bracket);
    is_first_ = true;
  }
  void open(const char *name, char bracket) {
    key(name);
    open(bracket);
  }
  void close(const char *brackets) {
    while (*brackets != '\0') put(*brackets++);
    is_first_ = false;
  }
  // A text, a number, a bool, or nullptr for null.
  template <typename T>
  void value(const T &of) {
    begin_value();
    if constexpr (std::is_same_v<T, bool>)
      print("%s", of ? "true" : "false");
    else if constexpr (std::is_same_v<T, Hexadecimal>)
      print("\"0x%" PRIx64 "\"", of.number);
    else if constexpr (std::is_null_pointer_v<T>)
      print("null");
    else if constexpr (std::is_integral_v<T>)
      put_number(of);
    else
      quote(of);
  }
  void key(const char *name) {
    value(name);
    put(':');
    is_first_ = true;
  }
  // Fields: their names and values.
  void fields() {}
  template <typename T, typename... More>
  void fields(const char *name, const T &of, const More &...more) {
    key(name);
    value(of);
    fields(more...);
  }
  // An array or, without brackets, a part of one.
  template <typename... T>
  void values(const T &...of) {
    (value(of), ...);
  }
  template <typename... T>
  void array(const T &...of) {
    open('[');
    values(of...);
    close("]");
  }
  template <typename... T>
  void object(const T &...of) {
    open('{');
    fields(of...);
    close("}");
  }

 private:
  void begin_value() {
    if (!is_first_) put(',');
    is_first_ = false;
  }
  bool is_first_ = true;
};

}  // namespace gmm
#endif
