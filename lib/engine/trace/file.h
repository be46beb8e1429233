// SPDX-License-Identifier: Apache-2.0
// The file of a trace: pieces that are written whole or not at all.
#ifndef GMM_ENGINE_TRACE_FILE_H
#define GMM_ENGINE_TRACE_FILE_H

#include <cstdint>

#include "base/lock.h"
#include "base/status.h"

namespace gmm {

class TraceFile {
 public:
  // BUSY when another trace, of this process or another, is writing the file.
  Status open(const char *path);
  // From any thread. False when the piece is not in the file, and nothing of it: the disk is full, or a limit stands in the way.
  // A file that cannot be put back to where it was takes nothing more.
  bool write(const void *bytes, uint64_t size);
  // IO when the system could not keep what it took.
  Status close();
  int error() const { return error_; }  // errno of the first failure

 private:
  bool write_all(const char *bytes, uint64_t size);
  Mutex mutex_;
  int fd_ = -1;
  int error_ = 0;
  bool dead_ = false;
  uint64_t size_ = 0;
};

}  // namespace gmm
#endif
