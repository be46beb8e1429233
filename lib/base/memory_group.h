// SPDX-License-Identifier: Apache-2.0
// The memory limits of the control groups that this process is in: containers, Slurm jobs and systemd's MemoryMax.
//
// /proc/self/cgroup names the process's own group, and /proc/self/mountinfo the folder where the groups are. The limit
// of every group from there up to the top of that folder applies. Versions 1 and 2 of control groups are read; where a
// machine has both, both apply.
#ifndef GMM_BASE_MEMORY_GROUP_H
#define GMM_BASE_MEMORY_GROUP_H

#include <cstdint>

namespace gmm::os {

// UINT64_MAX: there is no limit.
struct GroupLimit {
  uint64_t limit = UINT64_MAX;  // bytes: the least limit
  // The least that a group with a limit has left. Cached pages of files count as free, since the kernel drops them
  // before it kills.
  uint64_t left = UINT64_MAX;
};

// `root`: a folder in front of /proc and of every mount point, for tests.
GroupLimit memory_group_limit(const char *root = "");

}  // namespace gmm::os
#endif
