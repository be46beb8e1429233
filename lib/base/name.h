// SPDX-License-Identifier: Apache-2.0
// The check of a name that the program gives.
#ifndef GMM_BASE_NAME_H
#define GMM_BASE_NAME_H

#include <cstdint>

#include "base/status.h"
#include "base/utf8.h"

namespace gmm {

// INVALID_VALUE unless the name has 1 to size - 1 bytes and is UTF-8: snapshots, traces and messages show it as text.
// `whose` begins the message, for example "A tag's name".
Status check_name(const char *whose, const char *name, uint64_t size);

// A name that stands in file names and command lines as it is: 1 to 63 letters, digits, '.', '-' and '_', no '.' first.
inline constexpr uint64_t kPlainNameSize = 64;
inline bool is_plain_name(const char *name) {
  uint64_t length = 0;
  for (; length < kPlainNameSize && name[length] != 0; ++length) {
    const char c = name[length];
    const bool is_sign = c == '-' || c == '_' || (c == '.' && length != 0);
    if (!is_sign && !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9')) return false;
  }
  return length != 0 && length < kPlainNameSize;
}

}  // namespace gmm
#endif
