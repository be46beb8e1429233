// SPDX-License-Identifier: Apache-2.0
// The file of a trace. It consists of pieces, each of which is in the file completely or not at all, and of chunks that
// threads fill in place: they are mapped, so what a thread has put there survives the end of the program, however it
// ends.
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
  // Any thread may call it. False: nothing of the piece is in the file, because the disk is full or a limit of the file
  // size is reached. If the file cannot be cut back to its last whole piece, every later write fails.
  bool write(const void *bytes, uint64_t size);
  // Writes the header, behind which the first chunk begins at first_chunk(). False: as write().
  bool write_header(const void *bytes, uint64_t size);
  // A multiple of the system's page where chunks can be mapped. After open().
  uint64_t first_chunk(uint64_t header_size) const;
  // Adds a chunk of `size` bytes, a multiple of the system's page, that begins with the header and is 0 otherwise.
  // NULL: it can't be mapped, because this is no ordinary file, the disk is full, or a piece ended within a page. Then
  // nothing of it is in the file.
  void *add_chunk(const void *header, uint64_t header_size, uint64_t size);
  static void end_chunk(void *chunk, uint64_t size);
  // Fails with IO if the system could not store what it had accepted.
  Status close();
  int error() const { return error_; }  // errno of the first failure

 private:
  bool write_all(const char *bytes, uint64_t size);
  bool cut_back();
  Mutex mutex_{LockRank::kTraceFile};
  int fd_ = -1;
  int error_ = 0;
  bool is_regular_ = false;
  bool is_unwritable_ = false;
  uint64_t size_ = 0;
};

}  // namespace gmm
#endif
