// SPDX-License-Identifier: Apache-2.0
// Where the contents of paused memory wait: host memory or an unnamed file.
#ifndef GMM_ENGINE_BACKUP_H
#define GMM_ENGINE_BACKUP_H

#include <gmm/pause.h>

#include "base/vector.h"
#include "engine/core.h"

namespace gmm {

// A span whose contents are kept.
struct BackupPiece {
  uintptr_t base;
  uint64_t size;
  uint64_t offset;  // in the backup
};

class Heap;

// The contents of one heap's paused memory. Not thread-safe: under the pauser's lock.
class Backup {
 public:
  Backup(Core &core, Device device) : core_(core), device_(device), pieces_(core.allocator) {}
  ~Backup() { drop(); }
  Backup(const Backup &) = delete;
  Backup &operator=(const Backup &) = delete;

  // Plans: nothing is copied yet. False without host memory.
  [[nodiscard]] bool add(uintptr_t base, uint64_t size);
  // Gets the room for all pieces and copies them out. A failure leaves an empty backup.
  Status save(gmm_contents contents);
  // Copies back the pieces for which `wanted` says so.
  Status restore(bool (*wanted)(const Core &core, const Heap &heap, const BackupPiece &piece), const Heap &heap);
  void drop();

  bool empty() const { return pieces_.empty(); }
  uint64_t host_bytes() const { return file_ < 0 ? size_ : 0; }
  uint64_t file_bytes() const { return file_ >= 0 ? size_ : 0; }

 private:
  Status open_memory();
  Status open_file();
  Status transfer(const BackupPiece &piece, bool out, gmm_stream stream);
  Status file_transfer(const BackupPiece &piece, bool out, gmm_stream stream);

  Core &core_;
  const Device device_;
  Vector<BackupPiece> pieces_;
  uint64_t size_ = 0;       // bytes of all pieces
  char *memory_ = nullptr;  // the whole backup, or, for a file, a staging buffer
  uint64_t memory_size_ = 0;
  bool pinned_ = false;
  int32_t file_ = -1;
};

}  // namespace gmm
#endif
