// SPDX-License-Identifier: Apache-2.0
// The memory limits of the control groups that this process is in: containers, Slurm jobs and systemd's MemoryMax.
//
// /proc/self/cgroup names the process's own group, and the groups are where systemd and containers mount them:
// /sys/fs/cgroup/memory of version 1, /sys/fs/cgroup of version 2. The limit of every group from there up to the top
// applies.
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

// `root`: a folder in front of /proc and /sys, for tests.
GroupLimit memory_group_limit(const char *root = "");

}  // namespace gmm::os
#endif
