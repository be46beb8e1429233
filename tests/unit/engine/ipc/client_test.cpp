// SPDX-License-Identifier: Apache-2.0
// The client against exporters that lie or are killed, and its idle connections.
#include "engine/ipc/client.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
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
  std::atomic<bool> imported_{false};  // import_from() has the client's status
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
    os::socket_address(directory, name_.c_str(), &address);
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

// Another process listens on a socket of the exporter's name.
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

// The number of a process in another pid namespace means nothing here, and neither does its start time.
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

ino_t socket_of(const IpcConnection &connection) {
  struct stat status;
  return ::fstat(connection.fd(), &status) == 0 ? status.st_ino : 0;
}

class IpcIdleConnectionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/gmm-ipc-test-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    directory_ = path;
    ::setenv("GMM_IPC_DIR", path, 1);
    ASSERT_TRUE(exporter_.start().ok()) << last_message();
  }
  void TearDown() override {
    client_.close_idle();
    exporter_.broker.stop();
    EXPECT_EQ(exporter_.importers, 0);
    EXPECT_EQ(exporter_.broker.live(), 0u);
    ::unsetenv("GMM_IPC_DIR");
    EXPECT_EQ(::rmdir(directory_.c_str()), 0) << std::strerror(errno);
  }
  Status connect(IpcImport *import, IpcWant want = IpcWant::kCount) {
    return client_.connect(exporter_.handle, want, test::kPatience, import);
  }
  bool nobody() {
    return test::eventually([&] { return exporter_.importers == 0 && exporter_.broker.live() == 0; });
  }
  // Sends a request over a connection made by raw(). Returns the result of the reply; 1 when the connection ended.
  int32_t send_request(int fd, const IpcRequest &request, bool answered) {
    uint8_t bytes[kIpcRequestSize];
    request.encode(bytes);
    ::send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
    if (!answered) return 0;
    uint8_t said[kIpcReplySize];
    if (::recv(fd, said, sizeof said, MSG_WAITALL) != static_cast<ssize_t>(sizeof said)) return 1;
    IpcReply reply;
    reply.decode(said);
    return reply.result;
  }
  IpcRequest request(IpcWant want) const {
    IpcRequest made;
    made.want = static_cast<uint16_t>(want);
    made.allocation = test::kAllocation;
    if (want != IpcWant::kRelease) std::memcpy(made.token, exporter_.token, sizeof made.token);
    made.start_time = exporter_.handle.exporter.start_time;
    made.serial = exporter_.handle.exporter.serial;
    return made;
  }
  int raw() {
    const int fd = test::raw_connect(exporter_.handle.exporter);
    EXPECT_GE(fd, 0);
    return fd;
  }

  test::Exporter exporter_;
  IpcClient client_;
  std::string directory_;
};

TEST_F(IpcIdleConnectionTest, OneConnectionServesOneImportAfterAnother) {
  IpcImport first, second;
  ASSERT_TRUE(connect(&first, IpcWant::kDescriptor).ok()) << last_message();
  ::close(first.fd);
  const ino_t socket = socket_of(first.connection);
  EXPECT_EQ(exporter_.importers, 1);
  client_.release(static_cast<IpcConnection &&>(first.connection));
  EXPECT_FALSE(first.connection.open());
  EXPECT_TRUE(nobody());
  const int descriptors = test::open_descriptors();
  ASSERT_TRUE(connect(&second, IpcWant::kDescriptor).ok()) << last_message();
  EXPECT_EQ(socket_of(second.connection), socket);
  EXPECT_EQ(exporter_.importers, 1);
  EXPECT_EQ(exporter_.broker.live(), 1u);
  EXPECT_TRUE(second.connection.alive());
  ::close(second.fd);
  EXPECT_TRUE(test::eventually([&] { return test::open_descriptors() == descriptors; }));
  // The end of the connection releases what it was granted last.
  second.connection.close();
  EXPECT_TRUE(nobody());
}

TEST_F(IpcIdleConnectionTest, AChecksConnectionIsCached) {
  ASSERT_TRUE(client_.check(exporter_.handle, test::kPatience).ok()) << last_message();
  const int descriptors = test::open_descriptors();
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(client_.check(exporter_.handle, test::kPatience).ok()) << last_message();
  EXPECT_EQ(test::open_descriptors(), descriptors);
  EXPECT_EQ(exporter_.importers, 0);
  IpcImport import;
  ASSERT_TRUE(connect(&import, IpcWant::kDescriptor).ok()) << last_message();
  ::close(import.fd);
  EXPECT_EQ(exporter_.importers, 1);
  exporter_.answer = GMM_ERROR_IPC_PEER_GONE;
  EXPECT_EQ(client_.check(exporter_.handle, test::kPatience).code(), GMM_ERROR_IPC_PEER_GONE);
  EXPECT_TRUE(import.connection.alive());
  import.connection.close();
  EXPECT_TRUE(nobody());
}

TEST_F(IpcIdleConnectionTest, AThousandImportsWithoutAWaitBetween) {
  for (int i = 0; i < 1000; ++i) {
    IpcImport import;
    ASSERT_TRUE(connect(&import).ok()) << last_message();
    ASSERT_EQ(exporter_.importers, 1);  // the release came first
    client_.release(static_cast<IpcConnection &&>(import.connection));
  }
  EXPECT_EQ(exporter_.resolved, 1000);
  EXPECT_TRUE(nobody());
  EXPECT_FALSE(exporter_.journal.has("dropped"));
}

TEST_F(IpcIdleConnectionTest, ThreadsShareThem) {
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 100; ++n) {
        IpcImport import;
        if (!connect(&import).ok()) ++failed;
        client_.release(static_cast<IpcConnection &&>(import.connection));
      }
    });
  for (std::thread &thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_TRUE(nobody());
}

TEST_F(IpcIdleConnectionTest, AtMostFourAreCached) {
  {
    // After the first answer the broker has read its directory and closed it.
    IpcImport import;
    ASSERT_TRUE(connect(&import).ok()) << last_message();
  }
  EXPECT_TRUE(nobody());
  const int before = test::open_descriptors();
  IpcImport imports[IpcClient::kMaxIdle + 3];
  for (IpcImport &import : imports) ASSERT_TRUE(connect(&import).ok()) << last_message();
  for (IpcImport &import : imports) client_.release(static_cast<IpcConnection &&>(import.connection));
  EXPECT_TRUE(nobody());
  // Each is two descriptors of the client and one of the broker, which is in this process too.
  EXPECT_TRUE(
      test::eventually([&] { return test::open_descriptors() == before + 3 * static_cast<int>(IpcClient::kMaxIdle); }));
  client_.close_idle();
  EXPECT_TRUE(test::eventually([&] { return test::open_descriptors() == before; }));
}

TEST_F(IpcIdleConnectionTest, ARevokedConnectionIsNotCachedAndAnIdleOneIsNotRevoked) {
  IpcImport import, after;
  ASSERT_TRUE(connect(&import).ok());
  exporter_.broker.revoke(test::kAllocation);
  EXPECT_TRUE(
      test::eventually([&] { return import.connection.state() == PeerState::kRevoked && exporter_.importers == 0; }));
  const ino_t revoked = socket_of(import.connection);
  client_.release(static_cast<IpcConnection &&>(import.connection));
  ASSERT_TRUE(connect(&after).ok()) << last_message();
  EXPECT_NE(socket_of(after.connection), revoked);
  EXPECT_TRUE(after.connection.alive());
  const ino_t socket = socket_of(after.connection);
  client_.release(static_cast<IpcConnection &&>(after.connection));
  EXPECT_TRUE(nobody());
  exporter_.broker.revoke(test::kAllocation);
  ASSERT_TRUE(connect(&import).ok()) << last_message();
  EXPECT_EQ(socket_of(import.connection), socket);
  EXPECT_TRUE(import.connection.alive());
  import.connection.close();
}

TEST_F(IpcIdleConnectionTest, ARefusalEndsTheConnectionAndSaysWhy) {
  IpcImport import;
  ASSERT_TRUE(connect(&import).ok());
  client_.release(static_cast<IpcConnection &&>(import.connection));
  exporter_.answer = GMM_ERROR_PAUSED;
  EXPECT_EQ(connect(&import).code(), GMM_ERROR_IPC_REFUSED);
  EXPECT_NE(std::strstr(last_message(), "paused"), nullptr) << last_message();
  exporter_.answer = GMM_OK;
  ASSERT_TRUE(connect(&import).ok()) << last_message();
  EXPECT_EQ(exporter_.importers, 1);
  import.connection.close();
}

TEST_F(IpcIdleConnectionTest, AnExporterThatEndedIsSeen) {
  IpcImport import;
  ASSERT_TRUE(connect(&import).ok());
  client_.release(static_cast<IpcConnection &&>(import.connection));
  exporter_.broker.stop();
  EXPECT_EQ(connect(&import).code(), GMM_ERROR_IPC_PEER_GONE);
  EXPECT_NE(std::strstr(last_message(), "context was destroyed"), nullptr) << last_message();
}

// When all places are taken, the broker closes idle connections first. Their client connects again.
TEST_F(IpcIdleConnectionTest, IdleConnectionsMakeWay) {
  rlimit limit;
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit old = limit;
  limit.rlim_cur = 4096;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) GTEST_SKIP() << "the system allows fewer than 4,096 descriptors";
  IpcImport import;
  ASSERT_TRUE(connect(&import).ok());
  const ino_t socket = socket_of(import.connection);
  client_.release(static_cast<IpcConnection &&>(import.connection));
  {
    std::vector<IpcImport> imports(IpcBroker::kMaxLive);
    for (IpcImport &other : imports)
      ASSERT_TRUE(
          ipc_connect(exporter_.handle, IpcWant::kCount, test::kPatience, &other, kIpcDefaultPolicy, false).ok())
          << last_message();
    EXPECT_EQ(exporter_.broker.live(), IpcBroker::kMaxLive);
    imports[7].connection.close();
    ASSERT_TRUE(connect(&import).ok()) << last_message();
    EXPECT_NE(socket_of(import.connection), socket);
    import.connection.close();
  }
  EXPECT_TRUE(nobody());
  ::setrlimit(RLIMIT_NOFILE, &old);
}

TEST_F(IpcIdleConnectionTest, OnlyWhatWasGrantedIsReleasedAndOnlyOnce) {
  int fd = raw();  // before any grant
  EXPECT_EQ(send_request(fd, request(IpcWant::kRelease), true), GMM_ERROR_IPC_REFUSED);
  ::close(fd);
  fd = raw();  // another allocation: the connection ends, and with it the grant
  EXPECT_EQ(send_request(fd, request(IpcWant::kCount), true), GMM_OK);
  IpcRequest other = request(IpcWant::kRelease);
  other.allocation = test::kAllocation + 1;
  EXPECT_EQ(send_request(fd, other, true), 1);
  ::close(fd);
  EXPECT_TRUE(nobody());
  fd = raw();  // twice
  EXPECT_EQ(send_request(fd, request(IpcWant::kCount), true), GMM_OK);
  send_request(fd, request(IpcWant::kRelease), false);
  EXPECT_EQ(send_request(fd, request(IpcWant::kRelease), true), GMM_ERROR_IPC_REFUSED);
  ::close(fd);
  EXPECT_TRUE(nobody());
  fd = raw();  // a wrong token is refused on a connection that had the right one before
  EXPECT_EQ(send_request(fd, request(IpcWant::kCount), true), GMM_OK);
  send_request(fd, request(IpcWant::kRelease), false);
  IpcRequest wrong = request(IpcWant::kCount);
  wrong.token[3] ^= 1;
  EXPECT_EQ(send_request(fd, wrong, true), GMM_ERROR_IPC_REFUSED);
  EXPECT_EQ(send_request(fd, request(IpcWant::kCount), true), 1);
  ::close(fd);
  EXPECT_TRUE(nobody());
}

class IpcClientProcessTest : public test::ProcessTest {};

TEST_F(IpcClientProcessTest, AKilledExporterIsNoticedAndItsSocketRemoved) {
  auto exporter = std::make_unique<Process>("exporter");
  IpcHandle handle;
  ASSERT_TRUE(ipc_handle_decode(test::from_hex(exporter->line().c_str()), &handle).ok()) << last_message();
  IpcImport import, late;
  ASSERT_TRUE(ipc_connect(handle, IpcWant::kDescriptor, test::kPatience, &import).ok()) << last_message();
  EXPECT_TRUE(import.connection.alive());
  exporter->kill();
  EXPECT_TRUE(test::eventually([&] { return !import.connection.alive(); }));
  // The memory stays readable, since the descriptor holds it.
  char byte;
  EXPECT_EQ(::pread(import.fd, &byte, 1, 0), 1);
  EXPECT_EQ(ipc_connect(handle, IpcWant::kDescriptor, test::kPatience, &late).code(), GMM_ERROR_IPC_PEER_GONE);
  ::close(import.fd);
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
