// SPDX-License-Identifier: Apache-2.0
// Pause and resume: transactions over the VMM heaps of tags.
//
// Pause: the regions leave the heap's free lists (allocations go to new regions), the thread caches come back, the device is
// synchronised; then, with the heaps locked (frees wait): copy out, unmap everything, and only when all is
// unmapped release the handles. Until the first release nothing is lost, and a failure maps everything again.
// Resume: create all handles, map, allow access, copy in, and only then hand the regions back to the heap; a failure
// undoes all of it and leaves the backup. An extent whose handle the driver would not release keeps it, and resume maps it again.
#ifndef GMM_ENGINE_PAUSE_H
#define GMM_ENGINE_PAUSE_H

#include <gmm/pause.h>

#include "base/lock.h"
#include "engine/backup.h"
#include "engine/heap_set.h"
#include "engine/tag.h"

namespace gmm {

class Pauser {
 public:
  Pauser(Core &core, HeapSet &heaps, TagTable &tags)
      : core_(core), heaps_(heaps), tags_(tags), paused_(core.allocator) {}
  ~Pauser() { clear(); }

  // tags are checked; count 0: every tag. Status code GMM_UNCHANGED when nothing was active (or paused).
  Status pause(const gmm_tag *tags, uint32_t count, uint32_t flags, uint64_t *bytes);
  Status resume(const gmm_tag *tags, uint32_t count, uint64_t *bytes);
  void query(gmm_tag tag, gmm_pause_info *out);
  // The heap ends or is reset: its backups go, and its paused regions become empty addresses.
  void forget(Heap &heap);
  void clear();

 private:
  // The paused regions of one heap, from one pause.
  struct Entry {
    Heap *heap;
    Backup *backup;
    uint64_t bytes;
  };
  static bool wanted(const gmm_tag *tags, uint32_t count, gmm_tag tag);
  Status select(const gmm_tag *tags, uint32_t count, Vector<Heap *> *out);
  Status check(Heap &heap, uint32_t flags);
  Status plan(Heap &heap, Backup &backup);
  Status unmap_all(const Vector<Heap *> &heaps, uint64_t *extents);
  uint64_t release_all(Heap &heap);
  Status back_region(Heap &heap, Region &region, uint64_t *bytes);
  void unback_region(Heap &heap, Region &region);
  Backup *make_backup(Heap &heap);

  Core &core_;
  HeapSet &heaps_;
  TagTable &tags_;
  Mutex mutex_;  // one transition at a time; before HeapSet::mutex
  Vector<Entry> paused_;
};

}  // namespace gmm
#endif
