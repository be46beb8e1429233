// SPDX-License-Identifier: Apache-2.0
// Files for contents: without a name, past the system's cache where it can be, with room reserved before it is used.
#ifndef GMM_ENGINE_BACKUP_FILE_H
#define GMM_ENGINE_BACKUP_FILE_H

#include "base/lock.h"
#include "engine/backup/range_allocator.h"
#include "engine/backup/settings.h"
#include "engine/space/core.h"

namespace gmm {

// Room, buffers and sizes are multiples of this, as direct reads and writes want it.
inline constexpr uint64_t kBackupBlock = 4096;

// One file a folder. Room in it that is free again stays reserved: to free gigabytes of a file and to write to new ones costs about as much
// as the writing itself (ext4). The current file goes by close_unused(), or with its folder; one in an earlier folder when nothing is kept in it.
// Any thread, but one that reserves, takes, syncs and closes.
class BackupFile {
 public:
  explicit BackupFile(Core &core) : core_(core) {}
  ~BackupFile() { clear(); }
  BackupFile(const BackupFile &) = delete;
  BackupFile &operator=(const BackupFile &) = delete;

  // From here on room comes from a file in this folder, and this much is free and reserved on the disk. IO when not.
  Status reserve(const char *directory, uint64_t bytes);
  // Of the current file; reserves more where it must.
  Status take(uint64_t size, uint64_t hint, uint64_t *where);
  void give(uint64_t where, uint64_t size);
  // Closes the current file where nothing was taken of it.
  void close_unused();
  // What was written to the current file is on the disk.
  Status sync();

  // All of it, over short transfers and signals. 0, an errno, or kEnded when the file is shorter than it was.
  static constexpr int kEnded = -1;
  int write(uint64_t where, const char *data, uint64_t size) {
    return transfer(where, const_cast<char *>(data), size, true);
  }
  int read(uint64_t where, char *data, uint64_t size) { return transfer(where, data, size, false); }
  // The Status of such an answer.
  Status failed(int error, bool writing);

  uint64_t bytes();
  void clear();

 private:
  static constexpr uint32_t kMostFiles = 64, kFileShift = 48;
  struct File {
    std::atomic<int> descriptor{-1};
    BackupRoom *room = nullptr;
    uint64_t end = 0;  // reserved so far
  };

  Status open_current(const char *directory);
  Status extend(File &file, uint64_t bytes);
  void close_file(File &file);
  int transfer(uint64_t where, char *data, uint64_t size, bool writing);
  File &file_of(uint64_t where) { return files_[where >> kFileShift]; }

  Core &core_;
  Mutex mutex_;
  File files_[kMostFiles];
  int32_t current_ = -1;
  char directory_[BackupSettings::kMostPath] = {};
  bool reaped_ = false;  // this folder
};

// Deletes what processes left in the folder that are no more. They leave something only when they die between two system calls.
void reap_backup_files(const char *directory);

}  // namespace gmm
#endif
