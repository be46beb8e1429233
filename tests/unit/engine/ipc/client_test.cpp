// SPDX-License-Identifier: Apache-2.0
// The client against exporters that lie or are killed.
#include "engine/ipc/client.h"

#include <gtest/gtest.h>
#include <sys/un.h>

#include <functional>
#include <thread>
#include <vector>

#include "engine/ipc/second_process.h"

namespace gmm {
namespace {

using test::Process;

// An exporter whose answers on the first connection are up to the test.
class IpcClientTest : public ::testing::Test {
 protected:
  static constexpr size_t kReplySize = kIpcReplySize + 8;  // with one extent
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
    int fd = -1;
    name_ = test::listen_in(directory_, endpoint, &fd);
    return fd;
  }
  Status import_from(const std::function<void(int)> &serve, IpcWant want = IpcWant::kDescriptors,
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
    return status;
  }
  // Sends `size` bytes of a reply, and of the size of one extent, with `count` copies of a file of `length` bytes.
  static void send_reply(int fd, const IpcReply &reply, unsigned count, off_t length = test::kSize,
                         size_t size = kReplySize, uint64_t promised = test::kSize) {
    uint8_t bytes[kReplySize];
    reply.encode(bytes);
    store_little(bytes + kIpcReplySize, promised);
    iovec part = {bytes, size};
    alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int) * 200)] = {};
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
    reply.extents = 1;
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
  std::atomic<bool> imported_{false};  // import_from() has the client's status
};

TEST_F(IpcClientTest, TakesAGoodReplyEvenInPieces) {
  EXPECT_TRUE(import_from([](int fd) {
                send_reply(fd, good(), 1, test::kSize, 5);
                ::usleep(20000);
                uint8_t bytes[kReplySize];
                good().encode(bytes);
                store_little(bytes + kIpcReplySize, test::kSize);
                EXPECT_EQ(::send(fd, bytes + 5, sizeof bytes - 5, MSG_NOSIGNAL), 35);
              }).ok())
      << last_message();
}

TEST_F(IpcClientTest, LiesAreRefused) {
  const gmm_result refused = GMM_ERROR_IPC_REFUSED, gone = GMM_ERROR_IPC_PEER_GONE;
  expect([](int fd) { send_reply(fd, good(), 0); }, refused, "sent 0 file descriptors where 1");
  expect([](int fd) { send_reply(fd, good(), 2); }, refused, "sent 2 file descriptors where 1");
  expect([](int fd) { send_reply(fd, good(), 8); }, refused, "sent 8 file descriptors");
  expect([](int fd) { send_reply(fd, good(), 193); }, refused, "lost on the way");
  expect([](int fd) { send_reply(fd, good(), 1, test::kSize, kReplySize, 4096); }, refused, "not the memory");
  expect([](int fd) { send_reply(fd, good(), 1, test::kSize, kReplySize, UINT64_MAX); }, refused, "its file has");
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
      refused, "extents where 1");
  for (const uint16_t extents : {0, 193, 65535})
    expect(
        [=](int fd) {
          IpcReply r = good();
          r.extents = extents;
          send_reply(fd, r, 1);
        },
        refused, "extents where 1");
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
  EXPECT_EQ(import_from(say_nothing, IpcWant::kDescriptors, 300).code(), GMM_ERROR_IPC_TIMEOUT);
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
    os::socket_address(directory, name_.c_str(), &address);
    const bool connected = ::connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0;
    ::close(directory);
    if (!connected) break;
  }
  IpcImport import;
  EXPECT_EQ(ipc_connect(handle_, IpcWant::kDescriptors, 200, &import).code(), GMM_ERROR_IPC_TIMEOUT);
  for (int fd : waiting) ::close(fd);
  ::close(listener);
}

TEST_F(IpcClientTest, NobodyThere) {
  IpcImport import;
  EXPECT_EQ(ipc_connect(handle_, IpcWant::kDescriptors, test::kPatience, &import).code(), GMM_ERROR_IPC_PEER_GONE);
  ::close(listen_as(handle_.exporter));  // a file without a listener
  EXPECT_EQ(ipc_connect(handle_, IpcWant::kDescriptors, test::kPatience, &import).code(), GMM_ERROR_IPC_PEER_GONE);
  handle_.exporter.start_time ^= 1;  // the pid was given to another process
  EXPECT_EQ(ipc_connect(handle_, IpcWant::kDescriptors, test::kPatience, &import).code(), GMM_ERROR_IPC_PEER_GONE);
  EXPECT_NE(std::strstr(last_message(), "exporter ended"), nullptr) << last_message();
}

// Another process listens on a socket of the exporter's name.
TEST_F(IpcClientTest, AnotherProcessOnTheSocketIsRefused) {
  IpcEndpoint other = handle_.exporter;
  other.pid = 1;
  ASSERT_EQ(process_start_time(1, &other.start_time), 0);
  const int listener = listen_as(other);
  handle_.exporter = other;
  IpcImport import;
  EXPECT_EQ(ipc_connect(handle_, IpcWant::kDescriptors, test::kPatience, &import).code(), GMM_ERROR_IPC_REFUSED);
  EXPECT_NE(std::strstr(last_message(), "its socket belongs to process"), nullptr) << last_message();
  ::close(listener);
}

// The number of a process in another pid namespace means nothing here, and neither does its start time.
TEST_F(IpcClientTest, NumbersOfAnotherPidNamespaceMeanNothing) {
  test::Exporter exporter;
  ASSERT_TRUE(exporter.start().ok()) << last_message();
  IpcHandle handle = exporter.handle;
  handle.exporter.pid_namespace ^= 1;
  IpcImport import;
  ASSERT_TRUE(ipc_connect(handle, IpcWant::kDescriptors, test::kPatience, &import).ok()) << last_message();
  EXPECT_TRUE(import.connection.alive());
  // The socket's name has pid and start of the other namespace.
  IpcEndpoint there = exporter.handle.exporter;
  there.pid = 1;
  there.start_time = 5;
  there.pid_namespace = 7;
  const int listener = listen_as(there);
  handle_.exporter = there;
  EXPECT_EQ(ipc_connect(handle_, IpcWant::kDescriptors, 300, &import).code(), GMM_ERROR_IPC_TIMEOUT) << last_message();
  ::close(listener);
  EXPECT_EQ(ipc_connect(handle_, IpcWant::kDescriptors, test::kPatience, &import).code(), GMM_ERROR_IPC_PEER_GONE);
}

class IpcClientProcessTest : public test::ProcessTest {};

TEST_F(IpcClientProcessTest, AKilledExporterIsNoticedAndItsSocketRemoved) {
  auto exporter = std::make_unique<Process>("exporter");
  IpcHandle handle;
  ASSERT_TRUE(ipc_handle_decode(test::from_hex(exporter->line().c_str()), &handle).ok()) << last_message();
  IpcImport import, late;
  ASSERT_TRUE(ipc_connect(handle, IpcWant::kDescriptors, test::kPatience, &import).ok()) << last_message();
  EXPECT_TRUE(import.connection.alive());
  exporter->kill();
  EXPECT_TRUE(test::eventually([&] { return !import.connection.alive(); }));
  // The memory stays readable, since the descriptor holds it.
  char byte;
  EXPECT_EQ(::pread(import.fds[0], &byte, 1, 0), 1);
  EXPECT_EQ(ipc_connect(handle, IpcWant::kDescriptors, test::kPatience, &late).code(), GMM_ERROR_IPC_PEER_GONE);
  EXPECT_EQ(files(), 1);
  test::Exporter next;
  ASSERT_TRUE(next.start().ok()) << last_message();
  EXPECT_TRUE(test::eventually([&] { return next.journal.has("of a process that has ended"); }));
  EXPECT_EQ(files(), 1) << "the dead exporter's socket should be gone";
}

TEST_F(IpcClientProcessTest, AChildThatHoldsTheSocketsDoesNotHideTheExportersDeath) {
  pid_t child = 0;
  IpcImport import, late;
  IpcHandle handle;
  {
    Process exporter("forking exporter");
    ASSERT_TRUE(ipc_handle_decode(test::from_hex(exporter.line().c_str()), &handle).ok()) << last_message();
    ASSERT_TRUE(ipc_connect(handle, IpcWant::kCount, test::kPatience, &import).ok()) << last_message();
    exporter.write_byte();
    child = std::atoi(exporter.line().c_str());
    ASSERT_GT(child, 0);
    exporter.kill();
    EXPECT_FALSE(import.connection.alive());
    EXPECT_EQ(ipc_connect(handle, IpcWant::kCount, test::kPatience, &late).code(), GMM_ERROR_IPC_PEER_GONE);
  }
  ::kill(child, SIGKILL);
  char name[kIpcNameSize];
  ipc_socket_name(handle.exporter, name);
  EXPECT_EQ(::unlink((directory_ + "/" + name).c_str()), 0);
}

TEST_F(IpcClientProcessTest, AStoppedExporterTimesOut) {
  Process exporter("exporter");
  IpcHandle handle;
  ASSERT_TRUE(ipc_handle_decode(test::from_hex(exporter.line().c_str()), &handle).ok());
  const pid_t child = static_cast<pid_t>(handle.exporter.pid);
  ASSERT_EQ(::kill(child, SIGSTOP), 0);
  // Until the last of its threads has stopped.
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(state));
  IpcImport import;
  EXPECT_EQ(ipc_connect(handle, IpcWant::kCount, 300, &import).code(), GMM_ERROR_IPC_TIMEOUT);
  ASSERT_EQ(::kill(child, SIGCONT), 0);
  EXPECT_TRUE(ipc_connect(handle, IpcWant::kCount, test::kPatience, &import).ok()) << last_message();
  import.connection.close();
  EXPECT_EQ(exporter.finish(), 0);
}

}  // namespace
}  // namespace gmm
