// SPDX-License-Identifier: Apache-2.0
// Views: copies of kept contents in one piece, which gmm_backup_map() lends to the program until the block is resumed
// or freed. A resume with GMM_RESUME_RETAIN keeps them, and the next pause makes them stale.
#ifndef GMM_ENGINE_BACKUP_VIEWS_H
#define GMM_ENGINE_BACKUP_VIEWS_H

#include "base/host_allocator.h"
#include "base/lock.h"
#include "base/vector.h"
#include "engine/space/span.h"

namespace gmm {

// Any thread. Its lock comes after all others.
class BackupViews : NoCopy {
 public:
  explicit BackupViews(const HostAllocator &allocator) : allocator_(allocator), views_(allocator) {}
  ~BackupViews() { end(ByteRange{0, UINTPTR_MAX}); }

  // The view of the block that starts at `base`; NULL for none. *is_stale: its contents are those of an earlier pause,
  // and the caller writes the new ones there before it asks again.
  char *find(uintptr_t base, bool *is_stale);
  // The contents of the view are those of the last pause.
  void renew(uintptr_t base);
  // Takes over `memory`, which the context's allocator gave for the block. False without host memory: nothing changed.
  [[nodiscard]] bool add(ByteRange block, char *memory);
  // The views of all blocks that overlap the range are stale.
  // False: there is none in the range.
  bool make_stale(ByteRange range);
  // Ends the views of all blocks that overlap the range.
  void end(ByteRange range);

 private:
  struct View {
    ByteRange block;
    char *memory;
    bool is_stale;
  };

  const HostAllocator allocator_;
  Mutex mutex_{LockRank::kBackupViews};
  Vector<View> views_;
};

}  // namespace gmm
#endif
