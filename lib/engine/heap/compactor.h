// SPDX-License-Identifier: Apache-2.0
// gmm_compact() in one heap: whole free extents above the reserve go back to the driver, and those of the reserve are
// mapped side by side, so that a large block fits later without a call of the driver.
//
// Only addresses of free memory change: the handle of a free extent is mapped at a hole beside a free run, and unmapped
// where it was. No page is copied. Extents stay that queued work may still use, that importers hold, that gmm_move()
// put elsewhere or that lie only partly in free memory. A heap whose regions are driver allocations only gives back.
//
// Target. It is the free run beside the most addresses: the largest one with a hole for all other free extents, or a
// fresh region. Each move makes it longer, so the next step finds it again, and nothing moves back and forth.
// Order. The smallest runs go first, and the largest run last. That one would be cut in two for a while. So it moves
// only where the budget reaches for all of it.
// Failure. Each move is undone by Extents, or done. The moves before it stay.
//
// GMM_COMPACT_LIVE. The free part of extents with live blocks goes back, too.
// The driver takes back and maps whole handles only. So what an extent holds of live memory is copied to new pages, in
// pieces of kExtentAlignment and their multiples. These are mapped at the same addresses, and the old pages go. Nobody
// may use the memory during the call.
//
// Extents of which less than half is free stay: the copy and the further handles cost more than they give. Extents
// stay, too, that importers hold or whose blocks are exported, of which the backup keeps contents, and that gmm_move()
// put elsewhere. Dedicated blocks and regions of one driver allocation have no free part.
//
// Lock: the heap's, held by the caller of every function; an operation's for evacuate(), which waits for the device. A
// step ends after kSlice bytes, so the lock is free again soon.
// Caller: Heap.
#ifndef GMM_ENGINE_HEAP_COMPACTOR_H
#define GMM_ENGINE_HEAP_COMPACTOR_H

#include <cstdint>

#include "base/process.h"
#include "engine/heap/heap_part.h"

namespace gmm {

// The rest of the budget of a call of gmm_compact(), and what the call did.
struct Compaction {
  uint64_t bytes_left = UINT64_MAX;  // to move and to give back
  uint64_t deadline = UINT64_MAX;    // a monotonic_us(); UINT64_MAX: none
  bool is_live = false;              // GMM_COMPACT_LIVE: nobody uses the memory
  uint64_t moved = 0, released = 0;  // bytes
  bool has_deadline() const { return deadline != UINT64_MAX; }
  bool is_over() const { return bytes_left == 0 || (has_deadline() && monotonic_us() >= deadline); }
  void count(uint64_t *of, uint64_t bytes) {
    *of += bytes;
    bytes_left -= bytes;
  }
};

class Compactor : HeapPart {
 public:
  using HeapPart::HeapPart;

  // Call it before the steps: memory that streams have finished with becomes free for all. False: a graph capture or
  // gmm_defer_begin() holds the memory.
  bool begin();
  // Whether neither a graph capture nor gmm_defer_begin() stands in the way.
  bool is_undisturbed() { return may_compact() && !streams_.any_capturing(); }
  // One step. *more: it did something, and another one may.
  Status step(Compaction *work, bool *more);

  // --- GMM_COMPACT_LIVE --------------------------------------------------------------------------------------------
  // An extent and the first span that reaches into it.
  struct Choice {
    Extent *extent = nullptr;  // NULL: there is none
    Span *first = nullptr;
    uint64_t free_bytes = 0;  // that go back
  };
  // The extent of which the largest part is free, within the budget and above the reserve. Valid for as long as the
  // lock is held.
  Choice choose(const Compaction &work);
  Status evacuate(const Choice &choice, Compaction *work);

 private:
  static constexpr uint64_t kSlice = uint64_t{32} << 20;
  // Where free extents are mapped next: a listed hole, at the end that touches the run.
  struct Target {
    Span *run = nullptr;  // NULL: none lies there yet
    Span *hole = nullptr;
    bool is_behind = false;  // the run lies behind the hole
  };
  bool may_move(const Extent &extent) const { return extent.mapped && extent.location == options_.device; }
  bool may_compact() const;
  uint64_t movable_in(const Span *run);
  Status find_target(uint64_t all, Target *out);
  Status move_run(Span *run, Target *target, Compaction *work, uint64_t *done);
  Status move(Extent *extent, Span *run, Target *target);
  static bool is_free(const Span &span) { return span.is(SpanState::kFree) && span.streams == 0; }
  // The part of a free span that lies in the extent and can go.
  static ByteRange free_part(const Span &span, const Extent &extent);
  bool may_evacuate(const Extent &extent) const;
  bool has_exports(const Choice &choice);
  Status cut(const Choice &choice, Vector<Span *> *holes, Vector<Piece> *pieces);
};

}  // namespace gmm
#endif
