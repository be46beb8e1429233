// SPDX-License-Identifier: Apache-2.0
// The file tier: one backup file for each folder, without a name, past the system's page cache where the file system
// allows that.
//
// reserve() takes blocks of the disk before a save changes anything, so a full disk is an error and not a lost backup.
// Freed ranges stay reserved for the next save: on ext4, to free gigabytes of a file and to write new ones costs about
// as much as the writing itself. close_unused() closes the current file once it keeps nothing. A file of an earlier
// folder closes with its last range.
//
// Some file systems cannot make a file without a name. There the name exists between open() and unlink() only, and the
// first save to a folder deletes the names of processes that ended in between.
//
// With GMM_BACKUP_NAMED_FILES each block has a file, whose name stays until the file is closed. reserve_named() makes
// the next file of the folder that keeps nothing the current one, or a new one, and beyond kMaxNamed of them shares
// those that there are.
#ifndef GMM_ENGINE_BACKUP_FILE_H
#define GMM_ENGINE_BACKUP_FILE_H

#include "base/lock.h"
#include "engine/backup/range_allocator.h"
#include "engine/backup/settings.h"
#include "engine/space/core.h"

namespace gmm {

// Any thread may call the functions. reserve() and the calls of allocate() that follow it need `placing`.
//
// A location names a file and an offset in it. Offsets and sizes are multiples of the block of direct I/O, 4096 bytes.
class BackupFile : NoCopy {
 public:
  explicit BackupFile(Core &core) : core_(core) {}
  ~BackupFile() { clear(); }

  // Held from reserve() to the last allocate() that it was for: no other save takes the blocks or changes the current
  // file in between.
  Mutex placing{LockRank::kBackupPlacing};

  // Makes the file of this folder the current one, with at least `bytes` that are free and reserved on the disk.
  // IO when that fails.
  Status reserve(const char *directory, uint64_t bytes);
  // Reserves in a file for one block alone, which has a name.
  Status reserve_named(const char *directory, uint64_t bytes);
  // Allocates from the current file. Reserves more of the disk when no free range is large enough.
  Status allocate(uint64_t size, uint64_t hint, uint64_t *location);
  void free(uint64_t location, uint64_t size);
  // Closes the current file, and files with names, when no range of them is allocated. Takes `placing`.
  void close_unused();
  // The bit of the file that has the location.
  static uint64_t bit_of(uint64_t location) { return uint64_t{1} << (location >> kFileShift); }
  // Returns once the data of these files is on the disk. Each has an allocated range until then.
  Status sync(uint64_t files);

  // Each transfers all bytes, through short transfers and signals. They return 0, an error number, or kTruncated: the
  // file is shorter than the range. Copy threads call them, so they do not set the thread's message.
  static constexpr int kTruncated = -1;
  int write(uint64_t location, const char *data, uint64_t size) {
    return transfer(location, const_cast<char *>(data), size, true);
  }
  int read(uint64_t location, char *data, uint64_t size) { return transfer(location, data, size, false); }
  // The Status for an error of write() or read().
  Status error_status(int error, bool is_writing);

  void clear();

 private:
  static constexpr uint32_t kMaxFiles = 64, kFileShift = 48;
  static constexpr uint64_t kOffsetMask = (uint64_t{1} << kFileShift) - 1;
  struct File {
    std::atomic<int> descriptor{-1};
    RangeAllocator *ranges = nullptr;  // NULL: this place is unused
    uint64_t end = 0;                  // bytes of the file, all reserved
    char *path = nullptr;              // NULL: the file has no name
  };

  // More would take too many descriptors from the program.
  static constexpr uint32_t kMaxNamed = 48;

  // Whether the file has a name in the current folder.
  bool is_named_here(const File &file) const;
  void change_folder_locked(const char *directory);
  Status open_file_locked(const char *directory, bool is_named);
  Status open_current_locked(const char *directory);
  Status reserve_in_current_locked(uint64_t bytes);
  Status extend_locked(File &file, uint64_t bytes);
  void close_locked(File &file);
  int transfer(uint64_t location, char *data, uint64_t size, bool is_writing);
  File &file_of(uint64_t location) { return files_[location >> kFileShift]; }

  Core &core_;
  Mutex mutex_{LockRank::kBackupFile};  // guards what follows; last in the lock order
  File files_[kMaxFiles];
  int32_t current_ = -1;
  char directory_[BackupSettings::kMaxDirectory] = {};  // of the current file
  bool has_deleted_orphans_ = false;                    // in this folder
};

}  // namespace gmm
#endif
