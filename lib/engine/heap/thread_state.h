// SPDX-License-Identifier: Apache-2.0
// What gmm keeps of a thread: its number, its cache of each heap, its stack of tags, and its lanes of traces.
//
// A ThreadState is made at the first call that needs it, and ends with the thread. Its thread alone reads and writes
// it. A thread outlives contexts, and a context outlives threads: an entry names its heap, context or trace by a serial
// that is never used again in the process, so an entry of something that ended is never found.
#ifndef GMM_ENGINE_HEAP_THREAD_STATE_H
#define GMM_ENGINE_HEAP_THREAD_STATE_H

#include <gmm/types.h>

#include <cstdint>

namespace gmm {

struct HeapCache;

// The thread's cache of a heap. The index in the table is the heap's slot (engine/heap/heap_registry.h).
struct ThreadTableEntry {
  uint64_t serial;
  HeapCache *cache;
};
// A tag that the thread pushed (engine/limits/tag.h).
struct TagEntry {
  uint64_t context;  // serial of the tag table
  gmm_tag tag;
};
inline constexpr uint32_t kMaxTagDepth = 64;
// Where the thread records for a trace (engine/trace/trace.h). Two traces may share an entry: the one that lost it
// finds its lane again by the thread's number.
struct ThreadTraceEntry {
  uint64_t serial;
  void *lane;
};
inline constexpr uint32_t kTracesOfThread = 4;

struct ThreadState {
  ThreadTableEntry *table = nullptr;
  TagEntry *tags = nullptr;  // kMaxTagDepth entries, made at the first push
  uint32_t tag_depth = 0;
  uint32_t table_size = 0;
  uint64_t id = 0;
  ThreadTraceEntry traces[kTracesOfThread] = {};
  void (*end_traces)(uint64_t id) = nullptr;             // set with the first lane
  void (*end_tags)(const ThreadState &state) = nullptr;  // set with the first push

  // Makes room for the entry of a slot. False: there is no host memory.
  bool reserve_slot(uint32_t slot);
};

// The state of the calling thread; NULL before its first use. The initial-exec model makes it one load. Three words fit
// the space that the C library keeps for libraries opened late.
// NOLINTNEXTLINE(bugprone-dynamic-static-initializers): constinit says that it is not
__attribute__((tls_model("initial-exec"))) extern constinit thread_local ThreadState *t_state;
// The entry of the heap that the calling thread used last.
// NOLINTNEXTLINE(bugprone-dynamic-static-initializers): constinit says that it is not
__attribute__((tls_model("initial-exec"))) extern constinit thread_local ThreadTableEntry t_last;

// The state of the calling thread, made now where it has none; NULL without host memory.
ThreadState *make_thread_state();
// A number of the calling thread that is never used again; 0 without host memory.
uint64_t current_thread_id();

}  // namespace gmm
#endif
