// SPDX-License-Identifier: Apache-2.0
// Pause and resume: transactions over the extents of VMM heaps.
//
// Pause: free memory of the regions leaves the heap's lists (allocations go to new regions), the thread caches come back, the devices
// are synchronised; then, with the heaps locked (frees wait), contents are copied out (engine/backup/store.h) and mappings of what is out go while the next
// is copied. Handles are released only when all of it is out and unmapped. Until then nothing is lost, and a failure maps everything again.
// Resume: limits are charged for all of it, then extent after extent gets memory and mappings while those before it are filled. A failure
// gives all of it back and leaves what is kept, but for extents that gmm_resume_wait() told somebody are ready.
//
// An extent may be paused and still have a handle or a mapping that the driver would not take back: the next call, whichever it is, goes on
// from there. An extent that a failed pause left unmapped (ExtentState::kUnmapped) is mapped by a resume; another pause is refused until then.
#ifndef GMM_ENGINE_PAUSE_PAUSE_H
#define GMM_ENGINE_PAUSE_PAUSE_H

#include <gmm/pause.h>

#include "base/lock.h"
#include "engine/backup/store.h"
#include "engine/heap/heap_set.h"
#include "engine/limits/tag.h"

namespace gmm {

// What a ticket and its operation share.
struct TicketState {
  std::atomic<uint32_t> cancelled{0};
  std::atomic<uint64_t> copied{0}, total{0};
};

struct PauseRequest {
  const gmm_tag *tags = nullptr;  // checked
  uint32_t count = 0;             // 0: every tag
  uint32_t flags = 0;             // GMM_PAUSE_*
  gmm_progress_fn progress = nullptr;
  void *progress_user = nullptr;
  TicketState *ticket = nullptr;
};

// The extents of one heap that change state together, by address, with what of them is to be kept.
struct HeapShare {
  HeapShare(Heap &of, const HostAllocator &allocator)
      : heap(&of), extents(allocator), ranges(allocator), parts(allocator) {}
  Heap *heap;
  struct Planned {
    Extent *extent;
    ExtentState before;
    bool charged = false;  // resume: the quotas were charged for it
  };
  Vector<Planned> extents;
  Vector<ByteRange> ranges;                   // live memory in them
  Vector<BackupPart> parts;                   // one an extent, once the ranges are there
  uint64_t bytes = 0;                         // of the ranges
  uint64_t done = 0;                          // pause: extents that were offered to unmap()
  uint64_t backed = 0;                        // resume: extents that have memory
  gmm_contents contents = GMM_CONTENTS_DROP;  // pause: what becomes of them this time
  bool saved = false;                         // pause: they are out
};

class Pauser {
 public:
  Pauser(Core &core, BackupStore &backups, HeapSet &heaps, TagTable &tags);

  // GMM_UNCHANGED when nothing was active (or paused).
  Status pause(const PauseRequest &request, uint64_t *bytes);
  Status resume(const PauseRequest &request, uint64_t *bytes) { return resume(request, nullptr, bytes); }
  Status resume_range(const void *address, uint64_t size, uint64_t *bytes);
  Status wait_ready(const void *address, uint64_t size, uint64_t timeout_ms);

  void query(gmm_tag tag, gmm_pause_info *out);
  Status read(const void *address, uint64_t size, void *out);
  Status map(const void *address, uint64_t size, const void **out);
  Status discard(const PauseRequest &request, uint64_t *bytes);

  // The heap ends or is reset: what is kept of it goes, and its paused memory becomes empty addresses. Waits for a transition.
  void forget(Heap &heap);
  // What is kept of a tag's active memory goes. Waits for a transition.
  void forget_retained(gmm_tag tag);
  // What is kept of every heap goes. The context ends.
  void clear();

 private:
  class Shares;
  struct Progress;

  // pause.cpp
  Status select(const PauseRequest &request, Shares *shares);
  Status check(Heap &heap, uint32_t flags, bool *active);
  Status check_capture(Heap &heap, const char *operation);
  Status detach(Heap &heap);
  Status plan_pause(HeapShare &share, uint32_t flags);
  Status save(HeapShare &share, Progress &progress);
  uint64_t commit_pause(HeapShare &share);
  void undo_pause(HeapShare &share);
  void attach_active(Heap &heap);
  // resume.cpp
  Status select_range(const ByteRange &range, Shares *shares);
  Status plan_resume(HeapShare &share, const ByteRange *range);
  Status charge(HeapShare &share);
  Status back_up_to(HeapShare &share, uint64_t part);
  Status bring_back(HeapShare &share, Progress &progress);
  void ready(Extent &extent);
  uint64_t commit_resume(HeapShare &share);
  void undo_resume(HeapShare &share, uint64_t *bytes);
  Status resume(const PauseRequest &request, const ByteRange *range, uint64_t *bytes);
  void settle_kept(HeapShare &share);
  // pause_pages.cpp
  Status plan_ranges(HeapShare &share);
  Status unmap(HeapShare &share, uint64_t first, uint64_t count);
  Status map_group(HeapShare &share, uint64_t first, uint64_t count);
  // pause_contents.cpp
  [[nodiscard]] bool keep(Extent &extent);  // has an object for what is kept
  // fn(Extent &, ByteRange) -> Status for every extent of a range, with the lock of its heap.
  template <typename Fn>
  Status for_kept(const char *operation, const void *address, uint64_t size, Fn fn);

  Core &core_;
  BackupStore &backups_;
  HeapSet &heaps_;
  TagTable &tags_;
  Mutex mutex_;  // one transition at a time; before HeapSet::mutex
  // After a heap's lock: changes of Extent::state while a resume runs, and ends of paused extents.
  Mutex ready_mutex_;
  Condition ready_;
};

}  // namespace gmm
#endif
