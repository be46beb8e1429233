// SPDX-License-Identifier: Apache-2.0
// The calls that a thread is inside of, as addresses, and the files whose code lies there. A reader of a trace finds
// the names later, in files with the same build-id.
#ifndef GMM_BASE_CALL_STACK_H
#define GMM_BASE_CALL_STACK_H

#include <gmm/stats.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "base/hash_table.h"
#include "base/lock.h"
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

// The stacks that a context has seen, with their interpreters' frames and the files of code that the process had: each
// once, by a number from 1, until the context ends. Two that have one hash of 63 bits count as one.
//
// Lock: mutex_. Neither the loader nor a function of the program runs under it.
class StackTable : NoCopy {
 public:
  static constexpr uint64_t kInterpreted = UINT64_C(1) << 63;
  static constexpr uint32_t kNameBytes = 64, kFileBytes = sizeof Module::path;
  static constexpr uint32_t kMostWords = 2 * kMostFrames;  // of a stack, which is longer than a frame

  explicit StackTable(const HostAllocator &allocator)
      : allocator_(allocator), known_(allocator), begins_(allocator), words_(allocator), modules_(allocator) {}
  // Of all tables of the process: gmm_trace_set_frames().
  static void set_frames(gmm_frames_fn fn);
  // Of the calling thread, which holds no lock: the interpreter's function may wait. 0: there is no host memory.
  uint32_t here();
  // Returns how many words the item of a number has. A stack has return addresses, or kInterpreted and a frame's
  // number, the innermost first; a frame its line, name and file, padded with zeros; a file of code its Module.
  uint32_t read(uint32_t number, uint64_t (&words)[kMostWords]) const;
  // The number of a file, by its place in the order in which they came. 0: there are no more.
  uint32_t module(uint64_t index) const;
  // A call as "NAME (FILE:LINE)", or as "FILE+0xPLACE" for addr2line; is_short: without folders.
  using CallText = char[kNameBytes + kFileBytes + 32];
  void name_call(uint64_t call, bool is_short, CallText &out) const;

 private:
  struct Stack;
  enum class Item : uint32_t { kModule, kFrame, kStack };
  static void add_frame(void *stack, const char *name, const char *file, uint32_t line);
  void add_modules();
  uint32_t add(Item item, const uint64_t *words, uint64_t count);

  const HostAllocator allocator_;
  mutable Mutex mutex_{LockRank::kStackTable};
  HashTable<uint32_t> known_;
  Vector<uint64_t> begins_, words_;  // of the items, by number
  Vector<uint32_t> modules_;
  std::atomic<uint64_t> loaded_{0};  // by the process, when modules_ was complete
};

// A stack in one line for people, as far as it fits: " at A < B < C"; "" for 0.
struct StackText {
  StackText(const StackTable &table, uint32_t stack, uint32_t most = kMostFrames);
  char text[400] = "";
};

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
