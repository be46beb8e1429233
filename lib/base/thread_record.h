// SPDX-License-Identifier: Apache-2.0
// The state of a thread: a part for each module that wants one, which the module itself defines and ends.
//
// A part ends with its thread, by the end function that the module gave with it. It also ends with the last context of
// the process: from then on the library has no thread key and nothing in any thread but the text of a failure, so it
// may be unloaded while the threads live. A part must therefore know contexts only by what it can look up
// (base/registry.h), and its end function must be right on another thread while no context lives.
//
// The record lies in the thread's static storage, where every access but one is a call of own_thread_record(). The
// exception is the memo: two words that the fast paths of engine/heap read with one load each.
//
// The record needs no initial-exec storage, which a library that is opened late may not get. It is reached through a
// TLS descriptor, for which the loader takes static storage while it has some. Then the record lies at one distance
// from the thread pointer in every thread, and g_memo_offset holds that. Without such storage g_memo_offset is 0, and
// OwnMemo::serial() reads the first word of the thread's control block, which is its own address and no serial. Every
// read of the memo is a miss then, and the slow path finds the record by the call.
#ifndef GMM_BASE_THREAD_RECORD_H
#define GMM_BASE_THREAD_RECORD_H

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/no_copy.h"

namespace gmm {

// The modules that have a part: each knows its own type.
enum class ThreadPart : uint32_t { kCaches, kTags, kTraceBuffers };
inline constexpr uint32_t kThreadParts = 3;

struct ThreadMessage;  // base/thread_message.h

struct ThreadRecord {
  // The last look-up of engine/heap: a heap's serial and the thread's cache of it.
  struct Memo {
    uint64_t serial;
    void *value;
  } memo;
  struct Part {
    void *state;
    void (*end)(void *state);
  } parts[kThreadParts];
  uint64_t id;             // never used again in the process; 0: no number yet
  ThreadMessage *message;  // the text of the thread's last failure
  uint64_t epoch;          // of the list that it is in (thread_record.cpp)
  ThreadRecord *next, *previous;
  bool hides_caches;  // an AllocationBan lives

  template <typename T>
  T *part(ThreadPart which) const {
    return static_cast<T *>(parts[static_cast<uint32_t>(which)].state);
  }
  void set_part(ThreadPart which, void *state, void (*end)(void *state)) {
    parts[static_cast<uint32_t>(which)] = Part{state, end};
  }
};

// The calling thread's record. Its parts end with the thread only after make_thread_record().
ThreadRecord &own_thread_record();
// own_thread_record(), listed so that its parts end. NULL: the process has no thread key left.
ThreadRecord *make_thread_record();
// make_thread_record() if anybody holds the records: else nobody would end the list.
void list_thread_record_if_held();
// A number of the calling thread that is never used again; 0 without a thread key.
uint64_t current_thread_id();

// While one lives, no heap gives memory to the calling thread. The thread runs a function of the program that must not
// allocate. Its caches are hidden, so the fast paths need not ask: they miss, and no new cache is made.
class AllocationBan : NoCopy {
 public:
  AllocationBan();
  ~AllocationBan();
  static bool is_set() { return own_thread_record().hides_caches; }

 private:
  ThreadRecord &record_;
  const ThreadRecord::Part caches_;
  const bool was_set_;
};

// A context holds the records from before its first other call until after its last. When nobody holds them any more,
// the parts of all threads end.
void hold_thread_records();
void release_thread_records();

#if defined(__x86_64__) && defined(__LP64__)
// NOLINTNEXTLINE(bugprone-dynamic-static-initializers): constinit says that it is not
__attribute__((visibility("hidden"))) extern constinit std::atomic<intptr_t> g_memo_offset asm("gmm_memo_offset");
#endif
// The calling thread's memo, as the fast paths read it. A serial that is not the memo's own is none of any object.
class OwnMemo {
 public:
#if defined(__x86_64__) && defined(__LP64__)
  // A relaxed load; the compiler makes two instructions of it.
  OwnMemo() { asm volatile("movq gmm_memo_offset(%%rip), %0" : "=r"(offset_)); }
  uint64_t serial() const {
    uint64_t word;
    asm volatile("movq %%fs:(%1), %0" : "=r"(word) : "r"(offset_));
    return word;
  }
  void *value() const {
    void *word;
    asm volatile("movq %%fs:%c2(%1), %0" : "=r"(word) : "r"(offset_), "i"(offsetof(ThreadRecord::Memo, value)));
    return word;
  }

 private:
  intptr_t offset_;
#else
  uint64_t serial() const { return t_record.memo.serial; }
  void *value() const { return t_record.memo.value; }
  // NOLINTNEXTLINE(bugprone-dynamic-static-initializers): constinit says that it is not
  __attribute__((tls_model("initial-exec"))) static constinit thread_local ThreadRecord t_record;
#endif
};

}  // namespace gmm
#endif
