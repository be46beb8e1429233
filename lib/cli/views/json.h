// SPDX-License-Identifier: Apache-2.0
// A text as JSON has it.
#ifndef GMM_CLI_VIEWS_JSON_H
#define GMM_CLI_VIEWS_JSON_H

#include <cstdio>

namespace gmm {

// "</" would end a script that the text stands in.
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

}  // namespace gmm
#endif
