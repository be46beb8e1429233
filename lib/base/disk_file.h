// SPDX-License-Identifier: Apache-2.0
// Files on a disk that keep contents while their process runs, past the system's page cache.
//
// A function that returns int returns 0 or an error number of <cerrno>, and does not set the thread's message.
#ifndef GMM_BASE_DISK_FILE_H
#define GMM_BASE_DISK_FILE_H

#include <cstdint>

namespace gmm::os {

// A path with a file's name: a folder of at most 3072 bytes and 128 more.
inline constexpr uint64_t kMaxFilePath = 3200;

// Whether the path is a folder in which the process may make files.
int check_folder(const char *path);
const char *temporary_folder();

// Both make a new file of this user alone. The name begins with `prefix` and tells the process and its start time.
// Other processes delete the file only when that process has ended.
int make_unnamed_file(const char *folder, const char *prefix, int32_t *out);
int make_named_file(const char *folder, const char *prefix, char path[kMaxFilePath], int32_t *out);
// Deletes such files of processes that have ended.
void delete_orphaned_files(const char *folder, const char *prefix);
int delete_file(const char *path);
// Closes such a file, which takes the place of `path`, complete and readable for every user. With an error, or after
// one, it is deleted instead.
int publish_file(int32_t file, const char *temporary, const char *path, int error);

// Takes blocks of the disk for `size` bytes behind the first `end` bytes, or none. EFBIG: also past the process's limit
// of a file's size, where a write would end the program.
int reserve_blocks(int32_t file, uint64_t end, uint64_t size);
// Returns once the data is on the disk.
int sync_file(int32_t file);
// Each transfers all bytes, through short transfers and signals. kFileTruncated: the file is shorter than the range.
inline constexpr int kFileTruncated = -1;
int write_file(int32_t file, uint64_t offset, const char *data, uint64_t size);
int read_file(int32_t file, uint64_t offset, char *data, uint64_t size);

}  // namespace gmm::os
#endif
