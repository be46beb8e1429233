// SPDX-License-Identifier: Apache-2.0
// A table of one value for each thread and key.
#ifndef GMM_BASE_PER_THREAD_H
#define GMM_BASE_PER_THREAD_H

#include "base/thread.h"
#include "base/vector.h"

namespace gmm {

// The table is not locked. A thread that has ended leaves its value to the next thread that needs one. The kernel's
// thread number tells whether the owner still runs. So no exit handler of a thread is needed, which could outlive the
// library.
template <typename Key, typename Value>
class PerThread {
 public:
  explicit PerThread(const HostAllocator &allocator) : entries_(allocator) {}

  // Returns the calling thread's value, or that of an ended thread, which becomes the caller's. Value(): there is none.
  Value find(const Key &key) {
    const int32_t self = thread_number();
    for (const Entry &each : entries_)
      if (each.thread == self && each.key == key) return each.value;
    for (Entry &each : entries_) {
      if (!(each.key == key) || thread_runs(each.thread)) continue;
      each.thread = self;
      return each.value;
    }
    return Value();
  }
  [[nodiscard]] bool reserve() { return entries_.reserve(entries_.size() + 1); }
  // Adds a value if find() had none. The caller has called reserve().
  void add_reserved(const Key &key, const Value &value) {
    entries_.push_back_reserved(Entry{thread_number(), key, value});
  }
  void clear() { entries_.clear(); }

 private:
  struct Entry {
    int32_t thread;
    Key key;
    Value value;
  };
  Vector<Entry> entries_;
};

}  // namespace gmm
#endif
