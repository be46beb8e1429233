// SPDX-License-Identifier: Apache-2.0
// The file of a trace: a sequence of blocks that threads fill in place. The blocks are mapped, so the bytes that a
// thread has put there survives the end of the program, however it ends. The blocks of a pipe are anonymous memory, and
// written when they are full.
#ifndef GMM_BASE_TRACE_FILE_H
#define GMM_BASE_TRACE_FILE_H

#include <cstdint>

#include "base/lock.h"
#include "base/status.h"

namespace gmm {

class TraceFile {
 public:
  // Fails with BUSY if another trace, of this process or another, writes the file.
  Status open(const char *path);
  // Any thread may call these two. A new block is zeros; `size` is a multiple of the system's page, the same for all
  // blocks of a file. NULL: the disk is full, a limit of the file size is reached, or there is no host memory. Then
  // nothing of it is in the file, and every later block is refused too.
  void *add_block(uint64_t size);
  // False: the pipe did not take the block.
  bool end_block(void *block, uint64_t size);
  // Fails with IO if the system could not store what it had accepted.
  Status close();
  int error() const { return error_; }  // errno of the first failure

 private:
  bool write_all(const char *bytes, uint64_t size);
  Mutex mutex_{LockRank::kTraceFile};
  int fd_ = -1;
  int error_ = 0;
  bool is_regular_ = false;
  uint64_t size_ = 0;
};

}  // namespace gmm
#endif
