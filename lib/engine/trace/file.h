// SPDX-License-Identifier: Apache-2.0
// The file of a trace. It consists of pieces, each of which is in the file completely or not at all.
#ifndef GMM_ENGINE_TRACE_FILE_H
#define GMM_ENGINE_TRACE_FILE_H

#include <cstdint>

#include "base/lock.h"
#include "base/status.h"

namespace gmm {

class TraceFile {
 public:
  // Fails with BUSY if another trace, of this process or another, writes the file.
  Status open(const char *path);
  // Any thread may call it. False: nothing of the piece is in the file, because the disk is full or a limit of the file
  // size is reached. If the file cannot be cut back to its last whole piece, every later write fails.
  bool write(const void *bytes, uint64_t size);
  // Fails with IO if the system could not store what it had accepted.
  Status close();
  int error() const { return error_; }  // errno of the first failure

 private:
  bool write_all(const char *bytes, uint64_t size);
  Mutex mutex_{LockRank::kTraceFile};
  int fd_ = -1;
  int error_ = 0;
  bool is_unwritable_ = false;
  uint64_t size_ = 0;
};

}  // namespace gmm
#endif
