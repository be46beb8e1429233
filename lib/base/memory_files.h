// SPDX-License-Identifier: Apache-2.0
// Memory without an address: pieces of memory files.
//
// A descriptor opens its whole file. So memory whose descriptor may leave the process has a file of its own, and all
// other memory lies side by side in one sparse file, whose descriptor never leaves. A process that holds much memory
// keeps few descriptors that way. Pieces that follow each other in the file and in the addresses are one mapping of the
// kernel's, whose number is limited, too. Pages of a released piece go back to the system as a hole of the file.
// Offsets are not used again as long as the file has any memory: it has 4 EiB of them.
//
// Ordinary memory has files of its own as well, as long as there are fewer than kOwnFiles of them. So a program that
// shares a little of its memory need not know of this.
// Owns: the descriptors. Locks: mutex_, a leaf beside system calls. Callers: the backends.
#ifndef GMM_BASE_MEMORY_FILES_H
#define GMM_BASE_MEMORY_FILES_H

#include <cstdint>

#include "base/host_allocator.h"
#include "base/lock.h"
#include "base/status.h"

namespace gmm {

struct MemoryPiece {
  int32_t fd = -1;
  bool is_shared_file = false;  // the descriptor must not leave the process
  bool is_ordinary = false;     // has one of the kOwnFiles
  int32_t user = -1;            // a note of the caller
  uint64_t offset = 0;          // in the file
  uint64_t size = 0;
};

class MemoryFiles {
 public:
  static constexpr uint32_t kOwnFiles = 32;  // of memory that nobody asked to be exportable

  explicit MemoryFiles(const HostAllocator &allocator) : allocator_(allocator) {}
  ~MemoryFiles();

  // `exportable`: the piece has a file of its own. Errors: OUT_OF_HOST_MEMORY, those of os::memory_file_create().
  Status create(const char *name, uint64_t size, bool exportable, MemoryPiece **out);
  // A piece of another process: `fd` becomes the piece's own after a success.
  Status adopt(int32_t fd, uint64_t size, MemoryPiece **out) { return keep({.fd = fd, .size = size}, out); }
  // After adopt(): the descriptor is the caller's again.
  void forget(MemoryPiece *piece) { allocator_.destroy(piece); }
  // The piece has no mapping, or one that nobody uses.
  Status release(MemoryPiece *piece);

 private:
  static constexpr uint64_t kSharedSize = uint64_t{1} << 62;  // bytes of the sparse file

  Status keep(const MemoryPiece &piece, MemoryPiece **out);
  Status end(const MemoryPiece &piece);
  Status take(const char *name, bool exportable, MemoryPiece *piece);
  // False: the process has a limit of file sizes or no descriptor, so each piece has a file of its own.
  bool open_shared();

  const HostAllocator allocator_;
  Mutex mutex_{LockRank::kMemoryFiles};
  uint32_t own_files_ = 0;    // of memory that nobody asked to be exportable
  int32_t shared_fd_ = -1;    // the sparse file; -1: none was needed yet
  uint64_t shared_end_ = 0;   // no piece lies behind it
  uint64_t shared_live_ = 0;  // pieces in it
};

}  // namespace gmm
#endif
