// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/directory.h"

#include "engine/ipc/test_support.h"

namespace gmm::test {
namespace {

class IpcDirectoryTest : public FolderTest {};

TEST_F(IpcDirectoryTest, OfSeveralUsersMayBeSeenButNotWritten) {
  IpcPolicy policy;
  std::snprintf(policy.directory, sizeof policy.directory, "%s", folder_.c_str());
  policy.users[0] = 65534;
  policy.user_count = 1;
  EXPECT_TRUE(policy.allows(65534));
  EXPECT_TRUE(policy.allows(::geteuid()));
  EXPECT_FALSE(policy.allows(65533));
  char path[kIpcPathSize];
  EXPECT_TRUE(ipc_directory_candidate(0, path, policy));
  EXPECT_STREQ(path, folder_.c_str());
  EXPECT_FALSE(ipc_directory_candidate(1, path, policy));
  int fd, error;
  for (mode_t mode : {0700, 0711, 0755, 01777}) {
    ASSERT_EQ(::chmod(folder_.c_str(), mode), 0);
    ASSERT_TRUE(ipc_directory_open(folder_.c_str(), true, &fd, &error, policy).ok()) << last_message();
    ::close(fd);
  }
  for (mode_t mode : {0770, 0777, 0722}) {
    ASSERT_EQ(::chmod(folder_.c_str(), mode), 0);
    EXPECT_EQ(ipc_directory_open(folder_.c_str(), true, &fd, &error, policy).code(), GMM_ERROR_SYSTEM);
  }
  ASSERT_EQ(::chmod(folder_.c_str(), 0700), 0);
}

TEST_F(IpcDirectoryTest, OpenToOthersIsRefused) {
  int fd, error;
  for (mode_t mode : {0770, 0701, 0755, 0777}) {
    ASSERT_EQ(::chmod(folder_.c_str(), mode), 0);
    EXPECT_EQ(ipc_directory_open(folder_.c_str(), true, &fd, &error).code(), GMM_ERROR_SYSTEM);
    EXPECT_EQ(error, 0);
    EXPECT_NE(std::strstr(last_message(), "mode 0700"), nullptr) << last_message();
    IpcImport import;
    EXPECT_EQ(ipc_connect(handle_, IpcWant::kDescriptors, kPatience, &import).code(), GMM_ERROR_IPC_REFUSED);
  }
  ASSERT_EQ(::chmod(folder_.c_str(), 0700), 0);
}

TEST_F(IpcDirectoryTest, LinksAndFilesAreRefused) {
  const std::string link = folder_ + "-link";
  ASSERT_EQ(::symlink(folder_.c_str(), link.c_str()), 0);
  int fd, error;
  EXPECT_FALSE(ipc_directory_open(link.c_str(), true, &fd, &error).ok());
  ::setenv("GMM_IPC_DIR", (link + "//").c_str(), 1);
  char path[kIpcPathSize];
  bool runtime_directory_failed;
  EXPECT_FALSE(ipc_directory_open_own(&fd, path, &runtime_directory_failed).ok());
  EXPECT_FALSE(runtime_directory_failed);
  ::unlink(link.c_str());
  EXPECT_FALSE(ipc_directory_open("/etc/passwd", true, &fd, &error).ok());
  EXPECT_FALSE(ipc_directory_open("/proc/none/gmm", true, &fd, &error).ok());
}

TEST_F(IpcDirectoryTest, AnothersIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give a directory to another user";
  ASSERT_EQ(::chown(folder_.c_str(), 65534, 65534), 0);
  int fd, error;
  EXPECT_EQ(ipc_directory_open(folder_.c_str(), true, &fd, &error).code(), GMM_ERROR_SYSTEM);
  EXPECT_NE(std::strstr(last_message(), "belongs to user 65534"), nullptr) << last_message();
}

TEST_F(IpcDirectoryTest, ComesFromTheEnvironment) {
  char path[kIpcPathSize];
  ASSERT_TRUE(ipc_directory_candidate(0, path));
  EXPECT_EQ(path, folder_);
  ::unsetenv("GMM_IPC_DIR");
  EXPECT_FALSE(ipc_directory_candidate(0, path));
  const char *old = ::getenv("XDG_RUNTIME_DIR");
  const std::string saved = old == nullptr ? "" : old;
  ::setenv("XDG_RUNTIME_DIR", folder_.c_str(), 1);
  int fd = -1;
  bool runtime_directory_failed;
  ASSERT_TRUE(ipc_directory_open_own(&fd, path, &runtime_directory_failed).ok()) << last_message();
  EXPECT_FALSE(runtime_directory_failed);
  EXPECT_EQ(path, folder_ + "/gmm");
  struct stat status;
  ASSERT_EQ(::fstat(fd, &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700u);
  ::close(fd);
  ASSERT_EQ(::chmod(path, 0755), 0);  // not private, so /tmp is next
  const std::string last = "/tmp/gmm-" + std::to_string(::geteuid());
  EXPECT_TRUE(ipc_directory_open_own(&fd, path, &runtime_directory_failed).ok()) << last_message();
  EXPECT_TRUE(runtime_directory_failed);
  EXPECT_EQ(path, last);
  ::close(fd);  // the directory stays, since other programs may use it
  EXPECT_EQ(::rmdir((folder_ + "/gmm").c_str()), 0);
  ::setenv("XDG_RUNTIME_DIR", "relative", 1);
  EXPECT_FALSE(ipc_directory_candidate(1, path));
  ::setenv("XDG_RUNTIME_DIR", "/does/not/exist", 1);
  EXPECT_FALSE(ipc_directory_candidate(1, path));
  if (old == nullptr) {
    ::unsetenv("XDG_RUNTIME_DIR");
  } else {
    ::setenv("XDG_RUNTIME_DIR", saved.c_str(), 1);
  }
  ASSERT_TRUE(ipc_directory_candidate(2, path));
  EXPECT_EQ(path, last);
}

TEST_F(IpcDirectoryTest, OnlyAnAbsolutePathThatIsNotTooLongCounts) {
  const auto set = [](const std::string &value) { ::setenv("GMM_IPC_DIR", value.c_str(), 1); };
  char path[kIpcPathSize];
  const std::string longest = "/" + std::string(kIpcPathSize - 2, 'x');
  set(longest);
  EXPECT_TRUE(ipc_directory_candidate(0, path));
  EXPECT_EQ(path, longest);
  // It is refused, not truncated.
  for (const std::string &value : {longest + "x", "/" + std::string(2 * kIpcPathSize, 'x')}) {
    set(value);
    EXPECT_FALSE(ipc_directory_candidate(0, path));
  }
  for (const char *value : {"relative", "./here", "../there", "~/sockets"}) {
    set(value);
    EXPECT_FALSE(ipc_directory_candidate(0, path));
  }
  set("");
  EXPECT_FALSE(ipc_directory_candidate(0, path));
}

TEST_F(IpcDirectoryTest, StaleSocketsAreRemovedAndOthersStay) {
  const IpcEndpoint dead = {INT32_MAX, 1, 1};
  const IpcEndpoint elsewhere = {INT32_MAX - 1, 1, 1};  // invisible from here, but listens
  ::close(listen_as(dead));
  ::close(listen_as(handle_.exporter));  // alive, but does not listen yet
  const int listener = listen_as(elsewhere);
  const std::string other = folder_ + "/notes.txt";
  ::close(::open(other.c_str(), O_CREAT | O_WRONLY, 0600));
  const int directory = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ipc_directory_remove_stale(directory, Log(nullptr, nullptr));
  EXPECT_NE(::access(path_of(dead).c_str(), F_OK), 0);
  EXPECT_EQ(::access(other.c_str(), F_OK), 0);
  remove(handle_.exporter);
  remove(elsewhere);
  ::unlink(other.c_str());
  ::close(listener);
  ::close(directory);
}

TEST_F(IpcDirectoryTest, NamesAreReadStrictly) {
  IpcEndpoint endpoint;
  EXPECT_TRUE(ipc_socket_name_parse("12-34-5.sock", &endpoint));
  EXPECT_EQ(endpoint, (IpcEndpoint{12, 5, 34}));
  endpoint = IpcEndpoint{};
  EXPECT_TRUE(ipc_socket_name_parse("12-34-5.sock.new", &endpoint)) << "of a process that died before it listened";
  EXPECT_EQ(endpoint, (IpcEndpoint{12, 5, 34}));
  for (const char *bad : {"", "..", "12-34-5", "12-34-5.sock2", "12-34-5.sock.", "12-34-5.sock.new2", "12-34-5.new",
                          "012-34-5.sock", "-1-3-5.sock", " 1-3-5.sock", "4294967296-1-1.sock", "../12-34-5.sock"})
    EXPECT_FALSE(ipc_socket_name_parse(bad, &endpoint)) << bad;
}

}  // namespace
}  // namespace gmm::test
