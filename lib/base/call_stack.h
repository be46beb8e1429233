// SPDX-License-Identifier: Apache-2.0
// The calls that a thread is inside of, as addresses, and the files whose code lies there. A reader of a trace finds
// the names later, in files with the same build-id.
#ifndef GMM_BASE_CALL_STACK_H
#define GMM_BASE_CALL_STACK_H

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "base/vector.h"

namespace gmm {

inline constexpr uint32_t kMostFrames = 64;

struct Module {
  uint64_t base;        // what the file's addresses have been moved by
  uint64_t begin, end;  // its addresses in this process
  uint64_t build_id_bytes;
  uint8_t build_id[32];
  char path[512];
};

// Before the first call_stack(): loads the unwinder. libunwind, where it is installed, keeps what it learns from the
// unwind tables, so a frame costs 8 ns. The C library reads the tables again for each frame, which costs 155 ns.
void prepare_call_stacks();
// Writes at most kMostFrames return addresses of the calling thread, the innermost first, without those in gmm's own
// library. Returns how many. No frame pointers are needed.
uint32_t call_stack(uint64_t *out);
// Grows with each file that the process loads.
uint64_t loaded_modules();
// False: no host memory for all.
bool copy_modules(Vector<Module> *out);

// Finds the build-id in the notes of an ELF file. Returns its bytes; 0: there is none.
inline uint64_t find_build_id(const void *notes, uint64_t size, uint8_t (&out)[32]) {
  for (uint64_t at = 0; size - at >= 16;) {
    uint32_t words[4];  // sizes of name and contents, the type, the name
    std::memcpy(words, static_cast<const char *>(notes) + at, sizeof words);
    const uint64_t name = at + 12, contents = name + ((uint64_t{words[0]} + 3) & ~UINT64_C(3));
    const uint64_t end = contents + ((uint64_t{words[1]} + 3) & ~UINT64_C(3));
    if (end > size) return 0;
    if (words[2] == 3 && words[0] == 4 && std::memcmp(&words[3], "GNU", 4) == 0 && words[1] <= sizeof out) {
      std::memcpy(out, static_cast<const char *>(notes) + contents, words[1]);
      return words[1];
    }
    at = end;
  }
  return 0;
}

// In hexadecimal digits.
inline void build_id_text(const uint8_t (&id)[32], uint64_t bytes, char (&out)[65]) {
  for (uint64_t i = 0; i < bytes; ++i) std::snprintf(out + 2 * i, 3, "%02x", id[i]);
  out[2 * bytes] = '\0';
}

}  // namespace gmm
#endif
