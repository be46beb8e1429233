// SPDX-License-Identifier: Apache-2.0
// Watchers: gmm calls the program before memory loses its pages, when contents are back, and when a budget shrinks.
//
// This module owns the watchers of a context, and the order of an operation's calls:
//
//   PREPARE    before the drain, ascending       an answer other than 0: BUSY, nothing has happened
//   LOSING     after the drain, ascending
//   RESTORED   after the commit, descending
//   FAILED     after the undo, descending
//
// An operation makes a WatchCalls. select() finds the watchers of the memory that it changes, and the other functions
// call those, on the operation's own thread. The operation holds the claim of the memory's tags until
// then (limits/tag_claims.h). So a watcher hears of one operation at a time, and of the next one after the end of this.
// The operation holds no lock of a heap during a call: the callback may use gmm.
//
// A thread of the context looks at the budgets of devices, and calls the watchers of BUDGET. It starts with the first
// of them.
//
// Invariants.
// - A call of the program finds no lock but the claim, which LocksAside hides from what the callback calls. No thread
//   asks for a claim while it holds a lock, so a lock that the callback takes cannot wait for this operation.
// - An operation allocates nothing for its watchers, so none of its calls fails for want of memory.
// - A thread that walks through the watchers uses one of them at a time, and holds no lock.
//
// Locks: Watchers::mutex_ is brief.
//
// Callers: api/watch.cpp; pause/ and context/ for their operations; Context ends the watchers that are left.
#ifndef GMM_ENGINE_WATCH_WATCHERS_H
#define GMM_ENGINE_WATCH_WATCHERS_H

#include <gmm/watch.h>

#include <atomic>

#include "base/list.h"
#include "base/lock.h"
#include "base/status.h"
#include "base/thread.h"
#include "engine/heap/heap_set.h"
#include "engine/limits/quota.h"
#include "engine/space/core.h"

namespace gmm {

class Context;
class WatchCalls;
class Watchers;

// The watched memory: a range, or a tag when the range is empty.
struct WatchTarget {
  gmm_tag tag = 0;
  ByteRange range = {};
  bool is_range() const { return range.size != 0; }
};

}  // namespace gmm

struct gmm_watcher : gmm::Link<gmm::Watchers> {
  static constexpr uint64_t kMagic = 0x676d6d2d77617463;
  static constexpr char kHandleName[] = "watcher";
  static constexpr uint64_t kNameSize = 64;

  uint64_t magic = kMagic;
  gmm::Context *context = nullptr;  // for the interface
  gmm::Watchers *owner = nullptr;
  uint64_t number = 0;  // by age
  gmm_watch_desc desc = {};
  gmm::WatchTarget target;
  char name[kNameSize] = {};
  bool was_below = false;  // its budget, at the last look

  // Of the operation that selected it; another one leaves them alone.
  std::atomic<const gmm::WatchCalls *> selected_by{nullptr};
  bool is_reached = false;  // it hears how the operation ends

  // The rest is guarded by Watchers::mutex_.
  bool is_ending = false;
  uint32_t users = 0;  // threads that look at it, or are inside its callback
  gmm::Condition unused;
};

namespace gmm {

// A context has one. Thread-safe.
class Watchers : NoCopy {
 public:
  // How often BUDGET looks, in milliseconds. include/gmm/watch.h promises it.
  static constexpr uint64_t kBudgetPeriod = 200;

  // held: the context's usage on all devices, held_on: on each.
  Watchers(Core &core, HeapSet &heaps, const Quota &held, const Quota *held_on)
      : core_(core), heaps_(heaps), held_(held), held_on_(held_on) {}

  // Whether there may be one. An operation that begins with none tells nobody.
  bool any() const { return count_.load(std::memory_order_acquire) != 0; }
  // The descriptor is checked.
  Status add(Context *context, const gmm_watch_desc &desc, gmm_watcher **out);
  // Waits for the callback. BUSY inside of one.
  Status destroy(gmm_watcher *watcher);
  // The context ends: so do all watchers.
  void clear();

  // BUSY: the calling thread is inside a watcher's callback, but for BUDGET.
  static Status check_no_operation(const char *function);
  // BUSY: the calling thread is inside a watcher's callback.
  static Status check_outside(const char *function);

 private:
  friend class WatchCalls;

  // Calls the program, and returns its answer: 0 where the watcher ends.
  int32_t call(gmm_watcher &watcher, uint32_t event, gmm_result cause, uint64_t budget);
  void look_at_budgets();
  bool budget_fell(gmm_watcher &watcher, uint64_t *budget);
  // The watcher behind one in the order of calls, or before it; NULL: the first. Ends the use of that one and begins
  // that of the result, which is NULL at the end.
  gmm_watcher *next(gmm_watcher *after, bool ascending);
  void leave(gmm_watcher *watcher);
  void end(gmm_watcher *watcher);

  Core &core_;
  HeapSet &heaps_;
  const Quota &held_;
  const Quota *const held_on_;
  std::atomic<uint64_t> count_{0};
  Mutex mutex_{LockRank::kWatchers};
  List<gmm_watcher, Watchers> list_;
  uint64_t last_number_ = 0;
  // The thread that looks at budgets.
  Thread thread_;
  bool has_thread_ = false, is_ending_ = false;
  uint32_t budgets_ = 0;  // watchers that it serves
  Condition wake_;
};

// The calls of one operation. Its maker holds the claim of the tags until end().
class WatchCalls : NoCopy {
 public:
  // `operation` begins the messages, for example "gmm_pause()".
  WatchCalls(Watchers &watchers, const char *operation) : watchers_(watchers), operation_(operation) {}
  ~WatchCalls() { end(Status(), false); }

  // Selects the watchers of which touches(const WatchTarget &) is true. The caller may visit heaps.
  template <typename Fn>
  void select(Fn touches) {
    if (!watchers_.any()) return;
    gmm_watcher *watcher = nullptr;
    while ((watcher = watchers_.next(watcher, true)) != nullptr) {
      if ((watcher->desc.events & ~uint32_t{GMM_WATCH_BUDGET}) == 0 || !touches(watcher->target)) continue;
      watcher->selected_by.store(this, std::memory_order_relaxed);
      has_selected_ = true;
    }
  }
  bool any() const { return has_selected_; }
  // BUSY: a watcher refused.
  Status prepare();
  void losing();
  // An operation without PREPARE: all that are selected hear how it ends.
  void reach_all();
  // Tells those that were reached how the operation ended: FAILED after a failure or UNCHANGED; after a success
  // RESTORED if `restores`, else nothing. Then none is selected.
  void end(const Status &status, bool restores);

 private:
  // Calls fn(gmm_watcher &) for the selected watchers until it is false.
  template <typename Fn>
  void for_selected(bool ascending, Fn fn);

  Watchers &watchers_;
  const char *const operation_;
  bool has_selected_ = false;
};

}  // namespace gmm
#endif
