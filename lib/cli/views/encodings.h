// SPDX-License-Identifier: Apache-2.0
// How the views write text and numbers: JSON, and Protocol Buffers (protobuf.dev/programming-guides/encoding).
#ifndef GMM_CLI_VIEWS_ENCODINGS_H
#define GMM_CLI_VIEWS_ENCODINGS_H

#include <cstdio>
#include <cstring>

#include "base/vector.h"

namespace gmm {

// A text as JSON has it. "</" would end a script that the text stands in.
inline void put_json(FILE *out, const char *text) {
  std::fputc('"', out);
  for (; *text != '\0'; ++text) {
    const auto byte = static_cast<unsigned char>(*text);
    if (byte < 0x20 || byte == '<')
      std::fprintf(out, "\\u%04x", byte);
    else if (byte == '"' || byte == '\\')
      std::fprintf(out, "\\%c", byte);
    else
      std::fputc(byte, out);
  }
  std::fputc('"', out);
}

// Before each element of a list of JSON.
inline void separate(FILE *out, bool *is_first) {
  if (!*is_first) std::fputs(",\n", out);
  *is_first = false;
}

// A message: fields that are numbers, bytes or messages.
class Message {
 public:
  Message &number(uint32_t field, uint64_t value) {
    varint(uint64_t{field} << 3);
    varint(value);
    return *this;
  }
  Message &text(uint32_t field, const char *value) { return bytes(field, value, std::strlen(value)); }
  Message &message(uint32_t field, const Message &value) {
    is_whole_ = is_whole_ && value.is_whole_;
    return bytes(field, value.bytes_.data(), value.size());
  }
  // Numbers of a repeated field, packed.
  Message &varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) push(static_cast<uint8_t>(value | 0x80));
    push(static_cast<uint8_t>(value));
    return *this;
  }
  const uint8_t *data() const { return bytes_.data(); }
  uint64_t size() const { return bytes_.size(); }
  bool is_whole() const { return is_whole_; }  // false: there was no memory

 private:
  Message &bytes(uint32_t field, const void *from, uint64_t count) {
    varint(uint64_t{field} << 3 | 2);
    varint(count);
    for (uint64_t i = 0; i < count; ++i) push(static_cast<const uint8_t *>(from)[i]);
    return *this;
  }
  void push(uint8_t byte) { is_whole_ = bytes_.push_back(byte) && is_whole_; }

  Vector<uint8_t> bytes_;
  bool is_whole_ = true;
};

}  // namespace gmm
#endif
