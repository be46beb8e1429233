// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/directory.h"

#include "engine/ipc/test_support.h"

namespace gmm::test {
namespace {

class IpcDirectoryTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    std::snprintf(shared_.directory, sizeof shared_.directory, "%s", folder_.c_str());
    shared_.users[0] = 65534;
    shared_.user_count = 1;
  }
  // Whether exporters and importers take the folder, under a policy.
  void expect_taken(bool is_good, const IpcPolicy &policy) {
    int fd = -1, error = -1;
    const Status opened = ipc_directory_open(folder_.c_str(), true, &fd, &error, policy);
    EXPECT_EQ(opened.code(), is_good ? GMM_OK : GMM_ERROR_SYSTEM) << last_message();
    EXPECT_EQ(error, 0);
    if (is_good) ::close(fd);
    EXPECT_TRUE(is_good || std::strstr(last_message(), "it must belong to") != nullptr) << last_message();
    IpcImport import;
    EXPECT_EQ(import.connect(handle_, IpcWant::kDescriptors, kPatience, policy).code(),
              is_good ? GMM_ERROR_IPC_PEER_GONE : GMM_ERROR_IPC_REFUSED);
  }
  IpcPolicy alone_, shared_;  // with another user
};

TEST_F(IpcDirectoryTest, OwnersAndModesThatAreTaken) {
  const struct {
    mode_t mode;
    bool is_good_alone, is_good_shared;
  } cases[] = {{0700, true, true},   {0711, false, true},  {0755, false, true},  {01777, false, true},
               {0770, false, false}, {0722, false, false}, {0777, false, false}, {0701, false, true}};
  for (const auto &one : cases) {
    SCOPED_TRACE(one.mode);
    ASSERT_EQ(::chmod(folder_.c_str(), one.mode), 0);
    expect_taken(one.is_good_alone, alone_);
    expect_taken(one.is_good_shared, shared_);
  }
  ASSERT_EQ(::chmod(folder_.c_str(), 0700), 0);
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give a directory to another user";
  ASSERT_EQ(::chown(folder_.c_str(), 65534, 65534), 0);
  expect_taken(false, alone_);
  expect_taken(true, shared_);
  ASSERT_EQ(::chown(folder_.c_str(), 65533, 65533), 0);
  expect_taken(false, shared_);
}

TEST_F(IpcDirectoryTest, LinksAndFilesAreRefused) {
  const std::string link = folder_ + "-link";
  ASSERT_EQ(::symlink(folder_.c_str(), link.c_str()), 0);
  int fd, error;
  EXPECT_FALSE(ipc_directory_open(link.c_str(), true, &fd, &error).ok());
  ::setenv("GMM_IPC_DIR", (link + "//").c_str(), 1);
  char path[kIpcPathSize];
  bool runtime_directory_failed;
  EXPECT_FALSE(ipc_directory_open_own(&fd, path, kIpcDefaultPolicy, &runtime_directory_failed).ok());
  EXPECT_FALSE(runtime_directory_failed);
  ::unlink(link.c_str());
  EXPECT_FALSE(ipc_directory_open("/etc/passwd", true, &fd, &error).ok());
  EXPECT_FALSE(ipc_directory_open("/proc/none/gmm", true, &fd, &error).ok());
}

TEST_F(IpcDirectoryTest, CandidatesComeFromThePolicyAndTheEnvironment) {
  const std::string longest = "/" + std::string(kIpcPathSize - 2, 'x'),
                    last = "/tmp/gmm-" + std::to_string(::geteuid());
  const struct {
    unsigned n;
    const char *variable;
    std::string value, path;  // empty: the candidate does not apply
  } cases[] = {{0, "GMM_IPC_DIR", folder_, folder_},
               {0, "GMM_IPC_DIR", longest, longest},
               {0, "GMM_IPC_DIR", longest + "x", ""},  // it is not truncated
               {0, "GMM_IPC_DIR", "relative", ""},
               {0, "GMM_IPC_DIR", "~/sockets", ""},
               {0, "GMM_IPC_DIR", "", ""},
               {1, "XDG_RUNTIME_DIR", "relative", ""},
               {1, "XDG_RUNTIME_DIR", "/does/not/exist", ""},
               {2, "XDG_RUNTIME_DIR", "", last},
               {1, "XDG_RUNTIME_DIR", folder_, folder_ + "/gmm"}};
  char path[kIpcPathSize];
  for (const auto &one : cases) {
    ::setenv(one.variable, one.value.c_str(), 1);
    const bool applies = ipc_directory_candidate(one.n, path);
    EXPECT_EQ(applies ? path : "", one.path) << one.value;
  }
  ASSERT_TRUE(ipc_directory_candidate(0, path, shared_));
  EXPECT_EQ(path, folder_);
  EXPECT_FALSE(ipc_directory_candidate(1, path, shared_));
  // The runtime folder is the last row's. /tmp is next when it is not private.
  for (bool is_private : {true, false}) {
    int fd = -1;
    bool runtime_directory_failed;
    ASSERT_TRUE(ipc_directory_open_own(&fd, path, kIpcDefaultPolicy, &runtime_directory_failed).ok()) << last_message();
    EXPECT_EQ(runtime_directory_failed, !is_private);
    EXPECT_EQ(path, is_private ? folder_ + "/gmm" : last);
    struct stat status;
    ASSERT_EQ(::fstat(fd, &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0700u);
    ::close(fd);
    ASSERT_EQ(::chmod((folder_ + "/gmm").c_str(), 0755), 0);
  }
  EXPECT_EQ(::rmdir((folder_ + "/gmm").c_str()), 0);
  ::unsetenv("XDG_RUNTIME_DIR");
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
