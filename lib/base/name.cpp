// SPDX-License-Identifier: Apache-2.0
#include "base/name.h"

#include <cinttypes>
#include <cstring>

namespace gmm {

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
