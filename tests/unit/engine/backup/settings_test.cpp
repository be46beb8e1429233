// SPDX-License-Identifier: Apache-2.0
#include "engine/backup/settings.h"

#include <cstdlib>

#include "base/os_memory.h"
#include "engine/backup/test_support.h"

namespace gmm::test {
namespace {

class SettingsTest : public BackupTest {
 public:
  SettingsTest() { clear_environment(); }
  ~SettingsTest() override { clear_environment(); }
  static void clear_environment() {
    for (const char *name : {"GMM_BACKUP_ARENA_LIMIT", "GMM_BACKUP_PAGEABLE_LIMIT", "GMM_BACKUP_DIR"}) unsetenv(name);
  }
  std::string directory() {
    char name[BackupSettings::kMaxDirectory];
    settings.directory(name);
    return name;
  }
  BackupLimits limits(uint64_t arena_bytes = 0, uint64_t pageable_bytes = 0) {
    BackupLimits limits;
    EXPECT_TRUE(settings.limits(arena_bytes, pageable_bytes, &limits).ok()) << last_message();
    return limits;
  }
  BackupSettings settings;
};

TEST_F(SettingsTest, AWrongDescriptorChangesNothing) {
  gmm_backup_desc desc = {};
  desc.arena_limit = 7;
  desc.directory = "/tmp/no such folder of gmm";
  EXPECT_EQ(settings.set(desc).code(), GMM_ERROR_IO);
  desc.directory = "/proc/self/cmdline";
  EXPECT_EQ(settings.set(desc).code(), GMM_ERROR_IO) << "not a folder";
  const std::string longer(5000, 'x');
  desc.directory = longer.c_str();
  EXPECT_EQ(settings.set(desc).code(), GMM_ERROR_INVALID_VALUE);
  EXPECT_EQ(directory(), "/tmp");
  EXPECT_NE(limits().arena, 7u);
}

TEST_F(SettingsTest, AWrongEnvironment) {
  for (const char *wrong : {"plenty", "-1", " 5", "5G", "0", "99999999999999999999"}) {
    setenv("GMM_BACKUP_ARENA_LIMIT", wrong, 1);
    BackupLimits out;
    EXPECT_EQ(settings.limits(0, 0, &out).code(), GMM_ERROR_INVALID_VALUE) << wrong;
    EXPECT_NE(std::string(last_message()).find("GMM_BACKUP_ARENA_LIMIT"), std::string::npos) << last_message();
  }
  device(kMiB);
  KeptContents kept{HostAllocator()};
  EXPECT_EQ(save({range(0, kMiB)}, kept).code(), GMM_ERROR_INVALID_VALUE);
  setenv("GMM_BACKUP_ARENA_LIMIT", "2097152", 1);
  EXPECT_TRUE(save({range(0, kMiB)}, kept).ok());
  EXPECT_EQ(info().arena_limit, 2 * kMiB);
  store.drop_all(kept);
}

}  // namespace
}  // namespace gmm::test
