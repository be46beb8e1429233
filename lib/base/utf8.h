// SPDX-License-Identifier: Apache-2.0
// Text in UTF-8.
#ifndef GMM_BASE_UTF8_H
#define GMM_BASE_UTF8_H

#include <cstdint>
#include <cstring>

namespace gmm {

// The number of bytes at the start of a text that are whole characters of UTF-8 (RFC 3629): overlong forms, surrogates
// and numbers above U+10FFFF are none. `length`: all of the text is.
inline uint64_t utf8_prefix(const char *text, uint64_t length) {
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

// Ends a text that somebody else has made, and puts '?' for control characters and for what is not UTF-8.
inline void make_printable(char *text, uint64_t size) {
  text[size - 1] = '\0';
  for (char *at = text; *at != '\0'; ++at)
    if (static_cast<uint8_t>(*at) < 0x20 || *at == 0x7f) *at = '?';
  for (uint64_t length = std::strlen(text), good = 0; (good += utf8_prefix(text + good, length - good)) < length;)
    text[good] = '?';
}

}  // namespace gmm
#endif
