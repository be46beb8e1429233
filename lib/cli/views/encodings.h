// SPDX-License-Identifier: Apache-2.0
// How the views write numbers: JSON (base/text_writer.h), and Protocol Buffers
// (protobuf.dev/programming-guides/encoding).
#ifndef GMM_CLI_VIEWS_ENCODINGS_H
#define GMM_CLI_VIEWS_ENCODINGS_H

#include <cstdio>
#include <cstring>

#include "base/text_writer.h"
#include "cli/list.h"

namespace gmm {

// For a writer of text. Errors of the file are its owner's.
inline int32_t write_to_file(void *file, const char *text, uint64_t size) {
  std::fwrite(text, 1, size, static_cast<FILE *>(file));
  return 0;
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
  Message &message(uint32_t field, const Message &value) { return bytes(field, value.data(), value.size()); }
  // Numbers of a repeated field, packed.
  Message &varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.add(static_cast<uint8_t>(value | 0x80));
    bytes_.add(static_cast<uint8_t>(value));
    return *this;
  }
  const uint8_t *data() const { return bytes_.data(); }
  uint64_t size() const { return bytes_.size(); }

 private:
  Message &bytes(uint32_t field, const void *from, uint64_t count) {
    varint(uint64_t{field} << 3 | 2);
    varint(count);
    for (uint64_t i = 0; i < count; ++i) bytes_.add(static_cast<const uint8_t *>(from)[i]);
    return *this;
  }

  List<uint8_t> bytes_;
};

}  // namespace gmm
#endif
