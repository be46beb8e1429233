// SPDX-License-Identifier: Apache-2.0
// Each test lays out a tree like that of a machine and reads the limits in it.
#include "base/memory_group.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/os_memory.h"

namespace gmm {
namespace {

constexpr uint64_t kNone = UINT64_MAX;
constexpr uint64_t kMiB = uint64_t{1} << 20;

class MemoryGroupTest : public testing::Test {
 protected:
  MemoryGroupTest() {
    char name[] = "/tmp/gmm-group-test-XXXXXX";
    root_ = mkdtemp(name);
    write("/proc/meminfo", "MemTotal:  1048576 kB\nMemFree:  1048576 kB\nMemAvailable:   1048576 kB\n");
  }
  ~MemoryGroupTest() override { std::filesystem::remove_all(root_); }
  void write(const std::string &path, const std::string &text) {
    std::filesystem::create_directories((root_ + path).substr(0, (root_ + path).rfind('/')));
    std::ofstream(root_ + path) << text;
  }
  void is_in(const std::string &lines) { write("/proc/self/cgroup", lines); }
  void two(const std::string &group, const std::string &limit, uint64_t used, uint64_t cached = 0) {
    write("/sys/fs/cgroup" + group + "/memory.max", limit + "\n");
    write("/sys/fs/cgroup" + group + "/memory.current", std::to_string(used) + "\n");
    write("/sys/fs/cgroup" + group + "/memory.stat", "anon 77\ninactive_file " + std::to_string(cached / 2) +
                                                         "\nactive_file " + std::to_string(cached - cached / 2) +
                                                         "\nworkingset_refault_file 99\n");
  }
  void one(const std::string &group, uint64_t limit, uint64_t used) {
    write("/sys/fs/cgroup/memory" + group + "/memory.limit_in_bytes", std::to_string(limit) + "\n");
    write("/sys/fs/cgroup/memory" + group + "/memory.usage_in_bytes", std::to_string(used) + "\n");
  }
  void expect(uint64_t limit, uint64_t left) {
    const os::GroupLimit found = os::memory_group_limit(root_.c_str());
    EXPECT_EQ(found.limit, limit);
    EXPECT_EQ(found.left, left);
  }
  std::string root_;
};

TEST_F(MemoryGroupTest, TheGroupOfTheProcessCounts) {
  is_in("0::/system.slice/job.service\n");
  two("/system.slice", "max", 700 * kMiB);
  two("/system.slice/job.service", std::to_string(64 * kMiB), 24 * kMiB);
  two("/system.slice/other.service", std::to_string(kMiB), 0);
  expect(64 * kMiB, 40 * kMiB);
}

TEST_F(MemoryGroupTest, TheLeastOnTheWayUpCounts) {
  is_in("0::/slurm/job/step/task\n");
  two("/slurm", std::to_string(100 * kMiB), 95 * kMiB);
  two("/slurm/job", std::to_string(50 * kMiB), 10 * kMiB);
  two("/slurm/job/step", "max", 10 * kMiB);
  two("/slurm/job/step/task", std::to_string(80 * kMiB), 10 * kMiB);
  expect(50 * kMiB, 5 * kMiB);
  two("", std::to_string(40 * kMiB), 38 * kMiB);  // a container's own top
  expect(40 * kMiB, 2 * kMiB);
}

TEST_F(MemoryGroupTest, CachedFilesCountAsLeft) {
  is_in("0::/job\n");
  two("/job", std::to_string(64 * kMiB), 64 * kMiB, 30 * kMiB);
  expect(64 * kMiB, 30 * kMiB);
  two("/job", std::to_string(64 * kMiB), 70 * kMiB);
  expect(64 * kMiB, 0);
  two("/job", std::to_string(64 * kMiB), kMiB, 30 * kMiB);  // figures of two moments
  expect(64 * kMiB, 64 * kMiB);
}

TEST_F(MemoryGroupTest, VersionOneNamesItsControllers) {
  is_in("5:cpu,cpuacct:/other\n4:memory:/slurm/job\n0::/\n");
  one("", 0x7ffffffffffff000, 0);
  one("/slurm", 0x7ffffffffffff000, 0);
  one("/slurm/job", 64 * kMiB, 4 * kMiB);
  expect(64 * kMiB, 60 * kMiB);
  write("/sys/fs/cgroup/memory/slurm/job/memory.stat", "inactive_file 5\ntotal_inactive_file 1048576\n");
  expect(64 * kMiB, 61 * kMiB);
}

TEST_F(MemoryGroupTest, BothVersionsApply) {
  is_in("4:memory:/a\n0::/b\n");
  one("/a", 64 * kMiB, 0);
  two("/b", std::to_string(32 * kMiB), 0);
  expect(32 * kMiB, 32 * kMiB);
}

// Without a namespace of groups /proc names the path from the machine's top, and the folder has the container's group.
TEST_F(MemoryGroupTest, AContainerSeesItsOwnGroupAtTheTop) {
  is_in("0::/docker/abc\n");
  two("", std::to_string(64 * kMiB), kMiB);
  expect(64 * kMiB, 63 * kMiB);
  is_in("0::/docker/abc/inner\n");
  two("/inner", std::to_string(16 * kMiB), kMiB);
  expect(16 * kMiB, 15 * kMiB);
  is_in("0::/docker/abcd\n");  // another group, which is not mounted
  expect(64 * kMiB, 63 * kMiB);
  is_in("0::/../outside\n");
  expect(64 * kMiB, 63 * kMiB);
}

TEST_F(MemoryGroupTest, NamesMayHaveSpacesAndBeLong) {
  const std::string name = "/a b/" + std::string(200, 'x') + ":y";
  is_in("0::" + name + "\n");
  write("/sys/fs/cgroup" + name + "/memory.max", "4096");
  expect(4096, 4096);
  is_in("0::/" + std::string(20000, 'z') + "\n");
  expect(kNone, kNone);
}

TEST_F(MemoryGroupTest, NoGroupsAndDamagedFilesMeanNoLimit) {
  expect(kNone, kNone);
  for (const char *line : {"0::/\n", "", "\n\n", "0", "0:", "0::", "0::relative\n", ":::::\n", "memory\n"}) {
    is_in(line);
    expect(kNone, kNone);
  }
  is_in("0::/job\n");
  for (const char *limit : {"", "-1", "max", "many"}) {
    two("/job", limit, 5);
    expect(kNone, kNone);
  }
}

TEST_F(MemoryGroupTest, TheMachineHasWhatItsGroupHas) {
  os::MemoryInfo info;
  ASSERT_TRUE(os::memory_info(&info, root_.c_str()).ok()) << last_message();
  EXPECT_EQ(info.total, uint64_t{1} << 30);
  EXPECT_EQ(info.available, uint64_t{1} << 30);
  is_in("0::/job\n");
  two("/job", std::to_string(64 * kMiB), 24 * kMiB);
  ASSERT_TRUE(os::memory_info(&info, root_.c_str()).ok());
  EXPECT_EQ(info.total, 64 * kMiB);
  EXPECT_EQ(info.available, 40 * kMiB);
  // A limit above the machine's memory still has what others in the group left of it.
  two("/job", std::to_string(uint64_t{4} << 30), (uint64_t{4} << 30) - kMiB);
  ASSERT_TRUE(os::memory_info(&info, root_.c_str()).ok());
  EXPECT_EQ(info.total, uint64_t{1} << 30);
  EXPECT_EQ(info.available, kMiB);
}

}  // namespace
}  // namespace gmm
