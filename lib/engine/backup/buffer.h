// SPDX-License-Identifier: Apache-2.0
// A small piece of page-locked host memory that copies go through.
#ifndef GMM_ENGINE_BACKUP_BUFFER_H
#define GMM_ENGINE_BACKUP_BUFFER_H

#include "engine/space/core.h"

namespace gmm {

// Where the driver will not lock it, it is ordinary memory, and copies are slower. Not thread-safe.
class BackupBuffer {
 public:
  explicit BackupBuffer(Core &core) : core_(core) {}
  ~BackupBuffer() { close(); }
  BackupBuffer(const BackupBuffer &) = delete;
  BackupBuffer &operator=(const BackupBuffer &) = delete;

  // Does nothing where it is open already.
  Status open(Device device, uint64_t size);
  uint64_t close();  // bytes that went back
  // Copies may still touch it: it is left where it is, for good.
  void abandon();

  char *data() const { return data_; }
  uint64_t size() const { return size_; }
  // Where a device sees it; NULL when it does not.
  void *device_data() const { return device_data_; }

 private:
  Core &core_;
  char *data_ = nullptr;
  uint64_t size_ = 0;
  void *device_data_ = nullptr;
  bool pinned_ = false;
};

}  // namespace gmm
#endif
