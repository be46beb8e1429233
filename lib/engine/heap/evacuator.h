// SPDX-License-Identifier: Apache-2.0
// GMM_COMPACT_LIVE in one heap: the free part of extents with live blocks goes back to the driver.
//
// The driver takes back and maps whole handles only. So what an extent holds of live memory is copied to new pages, in
// pieces of kExtentAlignment and their multiples. These are mapped at the same addresses, and the old pages go. Nobody
// may use the memory meanwhile.
//
// Extents of which less than half is free stay: the copy and the further handles cost more than they give. Extents
// stay, too, that importers hold or whose blocks are exported, of which the backup keeps contents, and that gmm_move()
// put elsewhere. Dedicated blocks and regions of one driver allocation have no free part.
//
// Lock: the heap's, held by the caller of every function; an operation's for evacuate(), which waits for the device.
// Caller: Heap.
#ifndef GMM_ENGINE_HEAP_EVACUATOR_H
#define GMM_ENGINE_HEAP_EVACUATOR_H

#include <cstdint>

#include "engine/heap/block_uses.h"
#include "engine/heap/compactor.h"
#include "engine/heap/extents.h"
#include "engine/heap/reclaim.h"

namespace gmm {

class Evacuator {
 public:
  // An extent and the first span that reaches into it.
  struct Choice {
    Extent *extent = nullptr;  // NULL: there is none
    Span *first = nullptr;
    uint64_t free_bytes = 0;  // that go back
  };

  Evacuator(Core &core, const HeapOptions &options, Runs &runs, BlockUses &uses, Extents &extents, Reclaim &reclaim)
      : core_(core), options_(options), runs_(runs), uses_(uses), extents_(extents), reclaim_(reclaim) {}

  // The extent of which the largest part is free, within the budget and above the reserve. Valid for as long as the
  // lock is held.
  Choice choose(const Compaction &work);
  Status evacuate(const Choice &choice, Compaction *work);

 private:
  static bool is_free(const Span &span) { return span.is(SpanState::kFree) && span.streams == 0; }
  // Of a free span, what lies in the extent and can go.
  static ByteRange free_part(const Span &span, const Extent &extent);
  bool may_evacuate(const Extent &extent) const;
  bool has_exports(const Choice &choice);
  Status cut(const Choice &choice, Vector<Span *> *holes, Vector<Extents::Piece> *pieces);

  Core &core_;
  const HeapOptions &options_;
  Runs &runs_;
  BlockUses &uses_;
  Extents &extents_;
  Reclaim &reclaim_;
};

}  // namespace gmm
#endif
