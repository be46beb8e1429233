// SPDX-License-Identifier: Apache-2.0
// The client against exporters that lie, and the directory's checks.
#include "engine/ipc/client.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <functional>
#include <thread>
#include <vector>

#include "engine/ipc/test_support.h"

namespace gmm {
namespace {

// An exporter that does whatever a test says with the first connection.
class IpcClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/gmm-ipc-test-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    directory_ = path;
    ::setenv("GMM_IPC_DIR", path, 1);
    handle_.kind = Kind::kVmm;
    handle_.allocation_size = handle_.block_size = test::kSize;
    handle_.token[0] = 1;
    handle_.exporter.pid = static_cast<uint32_t>(::getpid());
    handle_.exporter.serial = 999999;
    ASSERT_EQ(process_start_time(::getpid(), &handle_.exporter.start_time), 0);
    handle_.exporter.pid_namespace = pid_namespace();
    descriptors_ = test::open_descriptors();
  }
  void TearDown() override {
    EXPECT_EQ(test::open_descriptors(), descriptors_) << "a descriptor was left open";
    ::unsetenv("GMM_IPC_DIR");
    if (!name_.empty()) ::unlink((directory_ + "/" + name_).c_str());
    EXPECT_EQ(::rmdir(directory_.c_str()), 0) << std::strerror(errno);
  }
  int listen_as(const IpcEndpoint &endpoint) {
    char name[kIpcNameSize];
    ipc_socket_name(endpoint, name);
    name_ = name;
    const int directory = ::open(directory_.c_str(), O_PATH | O_CLOEXEC);
    sockaddr_un address;
    ipc_socket_address(directory, name, &address);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr *>(&address), sizeof address), 0);
    ::close(directory);
    EXPECT_EQ(::listen(fd, 1), 0);
    return fd;
  }
  Status import_from(const std::function<void(int)> &serve, IpcWant want = IpcWant::kDescriptor,
                     uint32_t timeout = test::kPatience) {
    const int listener = listen_as(handle_.exporter);
    std::thread thread([&] {
      const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      uint8_t bytes[kIpcRequestSize];
      EXPECT_EQ(::recv(fd, bytes, sizeof bytes, MSG_WAITALL), static_cast<ssize_t>(sizeof bytes));
      serve(fd);
      ::close(fd);
    });
    IpcImport import;
    const Status status = ipc_connect(handle_, want, timeout, &import);
    imported_ = true;
    thread.join();
    ::close(listener);
    if (import.fd >= 0) ::close(import.fd);
    return status;
  }
  // Sends `size` bytes of a reply with `count` copies of a file of `length` bytes.
  static void send_reply(int fd, const IpcReply &reply, unsigned count, off_t length = test::kSize,
                         size_t size = kIpcReplySize) {
    uint8_t bytes[kIpcReplySize];
    reply.encode(bytes);
    iovec part = {bytes, size};
    alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int) * 32)] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    const int memory = ::memfd_create("lie", MFD_CLOEXEC);
    EXPECT_EQ(::ftruncate(memory, length), 0);
    if (count != 0) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
      cmsghdr *header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int) * count);
      for (unsigned i = 0; i < count; ++i) std::memcpy(CMSG_DATA(header) + i * sizeof(int), &memory, sizeof(int));
    }
    EXPECT_EQ(::sendmsg(fd, &message, MSG_NOSIGNAL), static_cast<ssize_t>(size));
    ::close(memory);
  }
  static IpcReply good() {
    IpcReply reply;
    reply.descriptors = 1;
    reply.allocation_size = test::kSize;
    return reply;
  }
  void expect(const std::function<void(int)> &serve, gmm_result code, const char *words) {
    EXPECT_EQ(import_from(serve).code(), code) << words;
    EXPECT_NE(std::strstr(last_message(), words), nullptr) << last_message();
    ::unlink((directory_ + "/" + name_).c_str());
  }

  IpcHandle handle_;
  std::string directory_, name_;
  int descriptors_ = 0;
  std::atomic<bool> imported_{false};  // import_from() has its answer
};

TEST_F(IpcClientTest, TakesAGoodReplyEvenInPieces) {
  EXPECT_TRUE(import_from([](int fd) {
                send_reply(fd, good(), 1, test::kSize, 5);
                ::usleep(20000);
                uint8_t bytes[kIpcReplySize];
                good().encode(bytes);
                EXPECT_EQ(::send(fd, bytes + 5, sizeof bytes - 5, MSG_NOSIGNAL), 27);
              }).ok())
      << last_message();
}

TEST_F(IpcClientTest, LiesAreRefused) {
  const gmm_result refused = GMM_ERROR_IPC_REFUSED, gone = GMM_ERROR_IPC_PEER_GONE;
  expect([](int fd) { send_reply(fd, good(), 0); }, refused, "sent 0 file descriptors where 1");
  expect([](int fd) { send_reply(fd, good(), 2); }, refused, "sent 2 file descriptors where 1");
  expect([](int fd) { send_reply(fd, good(), 8); }, refused, "sent 8 file descriptors");
  expect([](int fd) { send_reply(fd, good(), 30); }, refused, "lost on the way");
  expect([](int fd) { send_reply(fd, good(), 1, 4096); }, refused, "its file has 4096 bytes");
  expect(
      [](int fd) {
        IpcReply r = good();
        r.magic ^= 1;
        send_reply(fd, r, 1);
      },
      refused, "not a reply");
  expect(
      [](int fd) {
        IpcReply r = good();
        r.version = 9;
        send_reply(fd, r, 1);
      },
      refused, "speaks version 9");
  expect(
      [](int fd) {
        IpcReply r = good();
        r.reserved = 1;
        send_reply(fd, r, 1);
      },
      refused, "file descriptors");
  expect(
      [](int fd) {
        IpcReply r = good();
        r.result = 12345;
        send_reply(fd, r, 1);
      },
      refused, "12345");
  expect(
      [](int fd) {
        IpcReply r = good();
        r.allocation_size *= 2;
        send_reply(fd, r, 1);
      },
      gone, "freed or replaced");
  expect(
      [](int fd) {
        IpcReply r = good();
        r.generation = 1;
        send_reply(fd, r, 1);
      },
      gone, "freed or replaced");
  expect([](int fd) { send_reply(fd, good(), 1, test::kSize, 31); }, gone, "without an answer");
  expect([](int) {}, gone, "without an answer");
}

TEST_F(IpcClientTest, ADescriptorThatNobodyAskedForIsRefused) {
  IpcReply reply = good();
  EXPECT_EQ(import_from([&](int fd) { send_reply(fd, reply, 1); }, IpcWant::kCount).code(), GMM_ERROR_IPC_REFUSED);
}

TEST_F(IpcClientTest, ASilentExporterTimesOut) {
  const uint64_t before = monotonic_ms();
  const auto say_nothing = [&](int) { EXPECT_TRUE(test::eventually([&] { return imported_.load(); })); };
  EXPECT_EQ(import_from(say_nothing, IpcWant::kDescriptor, 300).code(), GMM_ERROR_IPC_TIMEOUT);
  EXPECT_GE(monotonic_ms() - before, 300u);
}

TEST_F(IpcClientTest, AFullQueueTimesOut) {
  const int listener = listen_as(handle_.exporter);
  std::vector<int> waiting;
  for (;;) {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    waiting.push_back(fd);
    const int directory = ::open(directory_.c_str(), O_PATH | O_CLOEXEC);
    sockaddr_un address;
    ipc_socket_address(directory, name_.c_str(), &address);
    const bool connected = ::connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0;
    ::close(directory);
    if (!connected) break;
  }
  IpcImport import;
  EXPECT_EQ(ipc_connect(handle_, IpcWant::kDescriptor, 200, &import).code(), GMM_ERROR_IPC_TIMEOUT);
  for (int fd : waiting) ::close(fd);
  ::close(listener);
}

TEST_F(IpcClientTest, NobodyThere) {
  IpcImport import;
  EXPECT_EQ(ipc_connect(handle_, IpcWant::kDescriptor, test::kPatience, &import).code(), GMM_ERROR_IPC_PEER_GONE);
  ::close(listen_as(handle_.exporter));  // a file without a listener
  EXPECT_EQ(ipc_connect(handle_, IpcWant::kDescriptor, test::kPatience, &import).code(), GMM_ERROR_IPC_PEER_GONE);
  handle_.exporter.start_time ^= 1;  // the pid was given to another process
  EXPECT_EQ(ipc_connect(handle_, IpcWant::kDescriptor, test::kPatience, &import).code(), GMM_ERROR_IPC_PEER_GONE);
  EXPECT_NE(std::strstr(last_message(), "exporter ended"), nullptr) << last_message();
}

// A process that took another one's socket name.
TEST_F(IpcClientTest, AnotherProcessOnTheSocketIsRefused) {
  IpcEndpoint other = handle_.exporter;
  other.pid = 1;
  ASSERT_EQ(process_start_time(1, &other.start_time), 0);
  const int listener = listen_as(other);
  handle_.exporter = other;
  IpcImport import;
  EXPECT_EQ(ipc_connect(handle_, IpcWant::kDescriptor, test::kPatience, &import).code(), GMM_ERROR_IPC_REFUSED);
  EXPECT_NE(std::strstr(last_message(), "its socket belongs to process"), nullptr) << last_message();
  ::close(listener);
}

// In another pid namespace the exporter has another number here, or none, and its start is not looked at: the token decides.
TEST_F(IpcClientTest, NumbersOfAnotherPidNamespaceMeanNothing) {
  test::Exporter exporter;
  ASSERT_TRUE(exporter.start().ok()) << last_message();
  IpcHandle handle = exporter.handle;
  handle.exporter.pid_namespace ^= 1;
  IpcImport import;
  ASSERT_TRUE(ipc_connect(handle, IpcWant::kDescriptor, test::kPatience, &import).ok()) << last_message();
  EXPECT_TRUE(import.connection.alive());
  ::close(import.fd);
  // The socket's name has pid and start of the other namespace.
  IpcEndpoint there = exporter.handle.exporter;
  there.pid = 1;
  there.start_time = 5;
  there.pid_namespace = 7;
  const int listener = listen_as(there);
  handle_.exporter = there;
  EXPECT_EQ(ipc_connect(handle_, IpcWant::kDescriptor, 300, &import).code(), GMM_ERROR_IPC_TIMEOUT) << last_message();
  ::close(listener);
  EXPECT_EQ(ipc_connect(handle_, IpcWant::kDescriptor, test::kPatience, &import).code(), GMM_ERROR_IPC_PEER_GONE);
}

class IpcDirectoryTest : public IpcClientTest {};

TEST_F(IpcDirectoryTest, OfSeveralUsersMayBeSeenButNotWritten) {
  IpcPolicy policy;
  std::snprintf(policy.directory, sizeof policy.directory, "%s", directory_.c_str());
  policy.users[0] = 65534;
  policy.user_count = 1;
  EXPECT_TRUE(policy.allows(65534));
  EXPECT_TRUE(policy.allows(::geteuid()));
  EXPECT_FALSE(policy.allows(65533));
  char path[kIpcPathSize];
  EXPECT_TRUE(ipc_directory_candidate(0, path, policy));
  EXPECT_STREQ(path, directory_.c_str());
  EXPECT_FALSE(ipc_directory_candidate(1, path, policy));
  int fd, error;
  for (mode_t mode : {0700, 0711, 0755, 01777}) {
    ASSERT_EQ(::chmod(directory_.c_str(), mode), 0);
    ASSERT_TRUE(ipc_directory_open(directory_.c_str(), true, &fd, &error, policy).ok()) << last_message();
    ::close(fd);
  }
  for (mode_t mode : {0770, 0777, 0722}) {
    ASSERT_EQ(::chmod(directory_.c_str(), mode), 0);
    EXPECT_EQ(ipc_directory_open(directory_.c_str(), true, &fd, &error, policy).code(), GMM_ERROR_SYSTEM);
  }
  ASSERT_EQ(::chmod(directory_.c_str(), 0700), 0);
}

TEST_F(IpcDirectoryTest, OpenToOthersIsRefused) {
  int fd, error;
  for (mode_t mode : {0770, 0701, 0755, 0777}) {
    ASSERT_EQ(::chmod(directory_.c_str(), mode), 0);
    EXPECT_EQ(ipc_directory_open(directory_.c_str(), true, &fd, &error).code(), GMM_ERROR_SYSTEM);
    EXPECT_EQ(error, 0);
    EXPECT_NE(std::strstr(last_message(), "mode 0700"), nullptr) << last_message();
    IpcImport import;
    EXPECT_EQ(ipc_connect(handle_, IpcWant::kDescriptor, test::kPatience, &import).code(), GMM_ERROR_IPC_REFUSED);
  }
  ASSERT_EQ(::chmod(directory_.c_str(), 0700), 0);
}

TEST_F(IpcDirectoryTest, LinksAndFilesAreRefused) {
  const std::string link = directory_ + "-link";
  ASSERT_EQ(::symlink(directory_.c_str(), link.c_str()), 0);
  int fd, error;
  EXPECT_FALSE(ipc_directory_open(link.c_str(), true, &fd, &error).ok());
  ::setenv("GMM_IPC_DIR", (link + "//").c_str(), 1);
  char path[kIpcPathSize];
  bool fell_through;
  EXPECT_FALSE(ipc_directory_open_own(&fd, path, &fell_through).ok());
  EXPECT_FALSE(fell_through);
  ::unlink(link.c_str());
  EXPECT_FALSE(ipc_directory_open("/etc/passwd", true, &fd, &error).ok());
  EXPECT_FALSE(ipc_directory_open("/proc/none/gmm", true, &fd, &error).ok());
}

TEST_F(IpcDirectoryTest, AnothersIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to give a directory to another user";
  ASSERT_EQ(::chown(directory_.c_str(), 65534, 65534), 0);
  int fd, error;
  EXPECT_EQ(ipc_directory_open(directory_.c_str(), true, &fd, &error).code(), GMM_ERROR_SYSTEM);
  EXPECT_NE(std::strstr(last_message(), "belongs to user 65534"), nullptr) << last_message();
}

TEST_F(IpcDirectoryTest, ComesFromTheEnvironment) {
  char path[kIpcPathSize];
  ASSERT_TRUE(ipc_directory_candidate(0, path));
  EXPECT_EQ(path, directory_);
  ::unsetenv("GMM_IPC_DIR");
  EXPECT_FALSE(ipc_directory_candidate(0, path));
  const char *old = ::getenv("XDG_RUNTIME_DIR");
  const std::string saved = old == nullptr ? "" : old;
  ::setenv("XDG_RUNTIME_DIR", directory_.c_str(), 1);
  int fd = -1;
  bool fell_through;
  ASSERT_TRUE(ipc_directory_open_own(&fd, path, &fell_through).ok()) << last_message();
  EXPECT_FALSE(fell_through);
  EXPECT_EQ(path, directory_ + "/gmm");
  struct stat status;
  ASSERT_EQ(::fstat(fd, &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700u);
  ::close(fd);
  ASSERT_EQ(::chmod(path, 0755), 0);  // not private: /tmp it is
  const std::string last = "/tmp/gmm-" + std::to_string(::geteuid());
  EXPECT_TRUE(ipc_directory_open_own(&fd, path, &fell_through).ok()) << last_message();
  EXPECT_TRUE(fell_through);
  EXPECT_EQ(path, last);
  ::close(fd);  // it stays: other programs may be about to use it
  EXPECT_EQ(::rmdir((directory_ + "/gmm").c_str()), 0);
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
  // A path that does not fit is not cut.
  ::setenv("GMM_IPC_DIR", std::string(2 * kIpcPathSize, 'x').c_str(), 1);
  EXPECT_FALSE(ipc_directory_candidate(0, path));
}

TEST_F(IpcDirectoryTest, ALongPathWorks) {
  const std::string longer = directory_ + "/" + std::string(200, 'd');
  ::setenv("GMM_IPC_DIR", longer.c_str(), 1);
  {
    test::Exporter exporter;
    ASSERT_TRUE(exporter.start().ok()) << last_message();
    IpcImport import;
    EXPECT_TRUE(ipc_connect(exporter.handle, IpcWant::kCount, test::kPatience, &import).ok()) << last_message();
  }
  EXPECT_EQ(::rmdir(longer.c_str()), 0);
}

TEST_F(IpcDirectoryTest, SocketsOfTheDeadAreRemovedAndOthersKept) {
  const IpcEndpoint dead = {INT32_MAX, 1, 1};
  ::close(listen_as(dead));
  const std::string dead_name = name_;
  IpcEndpoint silent = handle_.exporter;  // lives, does not listen yet
  ::close(listen_as(silent));
  const std::string own_name = name_;
  const IpcEndpoint elsewhere = {INT32_MAX - 1, 1, 1};  // not seen from here, but listens
  const int listener = listen_as(elsewhere);
  const std::string elsewhere_name = name_;
  const std::string other = directory_ + "/notes.txt";
  ::close(::open(other.c_str(), O_CREAT | O_WRONLY, 0600));
  const int directory = ::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ipc_directory_reap(directory, Log(nullptr, nullptr));
  EXPECT_NE(::faccessat(directory, dead_name.c_str(), F_OK, 0), 0);
  EXPECT_EQ(::faccessat(directory, own_name.c_str(), F_OK, 0), 0);
  EXPECT_EQ(::faccessat(directory, elsewhere_name.c_str(), F_OK, 0), 0);
  EXPECT_EQ(::access(other.c_str(), F_OK), 0);
  ::unlinkat(directory, own_name.c_str(), 0);
  ::unlink(other.c_str());
  ::close(listener);
  ::close(directory);
}

TEST_F(IpcDirectoryTest, NamesAreReadStrictly) {
  IpcEndpoint endpoint;
  EXPECT_TRUE(ipc_socket_name_parse("12-34-5.sock", &endpoint));
  EXPECT_EQ(endpoint, (IpcEndpoint{12, 5, 34}));
  for (const char *bad : {"", "..", "12-34-5", "12-34-5.sock2", "012-34-5.sock", "-1-3-5.sock", " 1-3-5.sock",
                          "4294967296-1-1.sock", "../12-34-5.sock"})
    EXPECT_FALSE(ipc_socket_name_parse(bad, &endpoint)) << bad;
}

}  // namespace
}  // namespace gmm
