// SPDX-License-Identifier: Apache-2.0
#include "base/name.h"

#include <cinttypes>
#include <cstring>

namespace gmm {

uint64_t utf8_prefix(const char *text, uint64_t length) {
  const auto at = [&](uint64_t i) { return static_cast<uint8_t>(text[i]); };
  uint64_t done = 0;
  while (done < length) {
    const uint8_t lead = at(done);
    uint64_t size = 1;
    uint8_t low = 0x80, high = 0xbf;  // of the second byte; the others have the whole range
    if (lead >= 0x80) {
      if (lead < 0xc2 || lead > 0xf4) return done;
      size = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
      if (lead == 0xe0) low = 0xa0;
      if (lead == 0xed) high = 0x9f;
      if (lead == 0xf0) low = 0x90;
      if (lead == 0xf4) high = 0x8f;
    }
    if (size > length - done) return done;
    for (uint64_t i = 1; i < size; ++i, low = 0x80, high = 0xbf)
      if (at(done + i) < low || at(done + i) > high) return done;
    done += size;
  }
  return done;
}

Status check_name(const char *whose, const char *name, uint64_t size) {
  const uint64_t length = strnlen(name, size);
  if (length == 0 || length >= size)
    return fail(GMM_ERROR_INVALID_VALUE, "%s has 1 to %" PRIu64 " bytes; this one has %s.", whose, size - 1,
                length == 0 ? "none" : "more");
  const uint64_t text = utf8_prefix(name, length);
  if (text == length) return Status();
  // The message does not repeat bytes that are no text.
  return fail(GMM_ERROR_INVALID_VALUE,
              "%s is text in UTF-8, and byte %u of this one, 0x%02x, is not; encode the name as UTF-8.", whose,
              static_cast<unsigned>(text), static_cast<unsigned>(static_cast<unsigned char>(name[text])));
}

}  // namespace gmm
