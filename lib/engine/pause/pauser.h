// SPDX-License-Identifier: Apache-2.0
// Pause and resume: the physical memory of a tag's VMM heaps goes back to the driver and returns at the same addresses.
//
// This module owns the transitions of ExtentState (space/span.h), and the way through them as a transaction.
//
//   kActive -- save() unmaps --> kUnmapped -- commit_pause() --> kPaused
//   kPaused -- restore() fills --> kRestored -- commit_resume() --> kActive
//   kRestored -- gmm_resume_wait() returns for it --> kPromised -- the resume commits or is undone --> kActive
//   kUnmapped -- undo_pause() maps --> kActive
//   kUnmapped -- undo_pause() cannot map; a resume maps later --> kRestored
//   kRestored -- undo_resume() --> the state before the resume: kPaused or kUnmapped
//
// A pause.
// 0. The watchers of the memory agree (watch/watchers.h): nothing has changed yet.
// 1. Detach: the free memory of all regions leaves the heap's lists, so allocations go to new regions. The thread
//    caches come back, and the devices are synchronised. The watchers let go of the pages.
// 2. Plan, with the heaps locked to the end: frees wait.
// 3. Save: the backup copies contents out. Mappings of what is out go while the next contents are copied.
//    With GMM_PAUSE_HOLD all contents are copied before, while everything stays mapped, and the locks of the heaps go
//    until the ticket is committed. Then this step copies again what the program may have written.
// 4. Commit: the handles are released when everything is out and unmapped. Undo: everything is mapped again.
//
// A resume.
// 1. Plan, with the heaps locked to the end. Paused memory without a live block is given up.
// 2. Charge: the quotas take all bytes before the driver is asked for any.
//    With GMM_PAUSE_HOLD all pages are made before it, as handles of paused extents, and nothing is mapped.
// 3. Restore: groups of extents get memory and mappings while the extents before them are filled.
// 4. Commit: kept contents go, but for those of a read-only tag's large blocks, and with GMM_RESUME_RETAIN of any large
//    block. Undo: the memory goes back, and kept contents stay. Then, without the heaps, the watchers hear the end.
//
// Parts: a request with ranges.
// - A block of GMM_ALLOC_PAUSED lies alone in an elastic region (space/span.h), which has extents only where memory was
//   taken. A resume fills the gaps in its ranges by paused extents, of at most 64 MiB each, and goes on as any other.
//   An undo makes gaps of them again.
// - A pause takes whole extents, and only of such blocks: it detaches nothing. Those without kept contents become
//   spares (heap/extents.h): paused extents with a mapping, which only a resume of ranges wants. A pause of the tag
//   makes gaps of them.
// - GMM_PAUSE_ORDERED: a spare has the streams and the stamp of memory that is freed (heap/stream_order.h). The resume
//   puts its stream behind them; without the flag the device is waited for.
// - A gap is no paused memory: the pause and resume of a tag pass it by, so they bring back what was taken.
//
// Files.
// - pauser.h: the entry points, and what is kept of a heap (query, read, map, discard, forget).
// - transition.cpp: one pause or resume, as a transaction over heaps.
// - heap_transition.h: the state of one heap in it, with the steps of a pause (pause.cpp) and of a resume (resume.cpp);
//   the signal of gmm_resume_wait().
// - by_device.h: copies of several devices run side by side.
// - request.h: a request, its progress, and the state of its ticket.
// limits/tag_claims.h lets a tag have one operation at a time; those of different tags overlap.
//
// Invariants.
// - Handles are released only when the contents of all heaps are out, so a failure before loses nothing.
// - A transaction changes all of its heaps or none. Extents that gmm_resume_wait() promised are the exception: a failed
//   resume leaves them active.
// - After its commit a held pause goes on where the driver does not unmap: the mapping stays with its paused extent.
// - A paused extent may have a handle or a mapping that the driver did not take back. The next pause or resume goes on
//   with it.
// - While an extent is kUnmapped because of a failure, a pause of its tag is refused. A resume maps the extent.
// - Kept contents of active read-only memory serve a later pause only in the epoch of the tag in which it was saved. A
//   pause or discard that drops contents begins another epoch.
// - Contents that a resume retained of memory that is not read-only serve readers alone. The next pause drops it and
//   copies anew, and views of it keep their addresses.
//
// - Transactions that overlap have no heap in common. Their shared objects guard themselves: the backup, the quotas,
//   the ready signal, deferred releases.
//
// Locks, in their order: the claim of the tags, which every operation but wait_ready(), query(), read() and map() holds
// to its end; the locks of the heaps, in the order of their addresses; the ready lock (ReadySignal). A transaction
// visits its heaps (HeapSet), so none of them ends. It turns their locks into those of an operation: it waits with them
// for the device and for copies. So do read() and map() with one heap.
//
// Callers: context/transition.cpp pauses and resumes; api/pause.cpp calls the rest; context/ calls
// forget_all() after a reset, and clear() when the context ends.
#ifndef GMM_ENGINE_PAUSE_PAUSER_H
#define GMM_ENGINE_PAUSE_PAUSER_H

#include <gmm/pause.h>

#include "engine/pause/heap_transition.h"

namespace gmm {

// A context has one. Thread-safe.
class Pauser : private TransitionContext {
 public:
  Pauser(Core &core, BackupStore &backups, HeapSet &heaps, TagTable &tags, Watchers &watchers)
      : TransitionContext{core, backups, heaps, tags, watchers} {}

  // UNCHANGED: nothing was active (or paused). is_last: a resume that lacks memory is not tried again, so the watchers
  // hear of the failure.
  Status pause(const PauseRequest &request, uint64_t *bytes);
  Status resume(const PauseRequest &request, bool is_last, uint64_t *bytes);
  // Checks the ranges of a request, where it has any, and names the tags that have memory there.
  Status add_tags(bool is_pause, PauseRequest *request, Vector<gmm_tag> *tags);
  // For a move or compaction of watched memory.
  using TransitionContext::claims;
  Status wait_ready(const void *address, uint64_t size, uint64_t timeout_ms);

  // Waits for a transaction that has a heap of the tag.
  void query(gmm_tag tag, gmm_tag_info *out);
  // gmm_backup_read(), gmm_backup_map(), gmm_backup_discard().
  Status read(const void *address, uint64_t size, void *out);
  Status map(const void *address, uint64_t size, const void **out);
  Status discard(const PauseRequest &request, uint64_t *bytes);

  // These wait for the transactions that run, but for give_up_freed().
  // The heaps were reset: what is kept of them goes, and their paused memory becomes empty addresses.
  void forget_all();
  // Memory of the heap that was freed while it was paused: its addresses and what is kept of it go. It waits for no
  // transaction but one of this heap.
  void give_up_freed(Heap &heap);
  // Drops the kept contents of a tag's active memory. Waits for a transaction of this tag.
  void forget_retained(gmm_tag tag);
  // Drops all kept contents. The context ends.
  void clear();

 private:
  // fn(const Block &, uint64_t size) -> Status, with the lock of the heap. `size` 0 is that of the rest of the block.
  template <typename Fn>
  Status in_block(const char *operation, const void *address, uint64_t size, Fn fn);
  // Copies the kept contents of a range of one block, with the lock of its heap. INVALID_VALUE: an extent is not
  // paused, or its contents were dropped.
  Status read_kept(const char *operation, ByteRange range, char *out);
  // fn(Heap &) for every VMM heap of these tags (`count` 0: of all), with its lock. The caller has the claim of the
  // tags, so no transition holds the lock.
  template <typename Fn>
  void for_heaps(const gmm_tag *tags, uint32_t count, Fn fn);
};

}  // namespace gmm
#endif
