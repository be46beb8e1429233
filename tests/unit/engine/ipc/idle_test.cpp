// SPDX-License-Identifier: Apache-2.0
// Connections that are used for one import after another.
#include "engine/ipc/idle.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <thread>
#include <vector>

#include "engine/ipc/test_support.h"

namespace gmm {
namespace {

using test::eventually;

ino_t socket_of(const IpcConnection &connection) {
  struct stat status;
  return ::fstat(connection.fd(), &status) == 0 ? status.st_ino : 0;
}

class IpcIdleTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/gmm-ipc-test-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    directory_ = path;
    ::setenv("GMM_IPC_DIR", path, 1);
    ASSERT_TRUE(exporter_.start().ok()) << last_message();
  }
  void TearDown() override {
    idle_.clear();
    exporter_.broker.stop();
    EXPECT_EQ(exporter_.importers, 0);
    EXPECT_EQ(exporter_.broker.live(), 0u);
    ::unsetenv("GMM_IPC_DIR");
    EXPECT_EQ(::rmdir(directory_.c_str()), 0) << std::strerror(errno);
  }
  Status connect(IpcImport *import, IpcWant want = IpcWant::kCount) {
    return ipc_connect(exporter_.handle, want, test::kPatience, import, kIpcDefaultPolicy, true, &idle_);
  }
  bool nobody() {
    return eventually([&] { return exporter_.importers == 0 && exporter_.broker.live() == 0; });
  }
  // A connection by hand; what the broker said last on it: a result, 1 for its end.
  int32_t say(int fd, const IpcRequest &request, bool answered) {
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
  IpcIdleConnections idle_;
  std::string directory_;
};

TEST_F(IpcIdleTest, OneConnectionServesOneImportAfterAnother) {
  IpcImport first, second;
  ASSERT_TRUE(connect(&first, IpcWant::kDescriptor).ok()) << last_message();
  ::close(first.fd);
  const ino_t socket = socket_of(first.connection);
  EXPECT_EQ(exporter_.importers, 1);
  idle_.keep(static_cast<IpcConnection &&>(first.connection));
  EXPECT_FALSE(first.connection.open());
  EXPECT_TRUE(nobody());
  const int descriptors = test::open_descriptors();
  ASSERT_TRUE(connect(&second, IpcWant::kDescriptor).ok()) << last_message();
  EXPECT_EQ(socket_of(second.connection), socket);
  EXPECT_EQ(exporter_.importers, 1);
  EXPECT_EQ(exporter_.broker.live(), 1u);
  EXPECT_TRUE(second.connection.alive());
  ::close(second.fd);
  EXPECT_TRUE(eventually([&] { return test::open_descriptors() == descriptors; }));
  // The end of the connection takes back what it was granted last.
  second.connection.close();
  EXPECT_TRUE(nobody());
}

TEST_F(IpcIdleTest, AThousandImportsWithoutAWaitBetween) {
  for (int i = 0; i < 1000; ++i) {
    IpcImport import;
    ASSERT_TRUE(connect(&import).ok()) << last_message();
    ASSERT_EQ(exporter_.importers, 1);  // the release came first
    idle_.keep(static_cast<IpcConnection &&>(import.connection));
  }
  EXPECT_EQ(exporter_.resolved, 1000);
  EXPECT_TRUE(nobody());
  EXPECT_FALSE(exporter_.journal.has("dropped"));
}

TEST_F(IpcIdleTest, ThreadsShareThem) {
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      for (int n = 0; n < 100; ++n) {
        IpcImport import;
        if (!connect(&import).ok()) ++failed;
        idle_.keep(static_cast<IpcConnection &&>(import.connection));
      }
    });
  for (std::thread &thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_TRUE(nobody());
}

TEST_F(IpcIdleTest, OnlySoManyAreKept) {
  {
    // Until the broker has looked through its directory, and closed it.
    IpcImport import;
    ASSERT_TRUE(connect(&import).ok()) << last_message();
  }
  EXPECT_TRUE(nobody());
  const int before = test::open_descriptors();
  IpcImport imports[IpcIdleConnections::kMost + 3];
  for (IpcImport &import : imports) ASSERT_TRUE(connect(&import).ok()) << last_message();
  for (IpcImport &import : imports) idle_.keep(static_cast<IpcConnection &&>(import.connection));
  EXPECT_TRUE(nobody());
  // Two here and one in the broker, which is this process too.
  EXPECT_TRUE(
      eventually([&] { return test::open_descriptors() == before + 3 * static_cast<int>(IpcIdleConnections::kMost); }));
  idle_.clear();
  EXPECT_TRUE(eventually([&] { return test::open_descriptors() == before; }));
}

TEST_F(IpcIdleTest, WhatWasRevokedIsNotKeptAndWhatIsIdleIsNotRevoked) {
  IpcImport import, after;
  ASSERT_TRUE(connect(&import).ok());
  exporter_.broker.revoke(test::kAllocation);
  EXPECT_TRUE(eventually([&] { return import.connection.state() == PeerState::kRevoked && exporter_.importers == 0; }));
  const ino_t revoked = socket_of(import.connection);
  idle_.keep(static_cast<IpcConnection &&>(import.connection));
  ASSERT_TRUE(connect(&after).ok()) << last_message();
  EXPECT_NE(socket_of(after.connection), revoked);
  EXPECT_TRUE(after.connection.alive());
  const ino_t socket = socket_of(after.connection);
  idle_.keep(static_cast<IpcConnection &&>(after.connection));
  EXPECT_TRUE(nobody());
  exporter_.broker.revoke(test::kAllocation);
  ASSERT_TRUE(connect(&import).ok()) << last_message();
  EXPECT_EQ(socket_of(import.connection), socket);
  EXPECT_TRUE(import.connection.alive());
  import.connection.close();
}

TEST_F(IpcIdleTest, ARefusalEndsTheConnectionAndSaysWhy) {
  IpcImport import;
  ASSERT_TRUE(connect(&import).ok());
  idle_.keep(static_cast<IpcConnection &&>(import.connection));
  exporter_.answer = GMM_ERROR_PAUSED;
  EXPECT_EQ(connect(&import).code(), GMM_ERROR_IPC_REFUSED);
  EXPECT_NE(std::strstr(last_message(), "paused"), nullptr) << last_message();
  exporter_.answer = GMM_OK;
  ASSERT_TRUE(connect(&import).ok()) << last_message();
  EXPECT_EQ(exporter_.importers, 1);
  import.connection.close();
}

TEST_F(IpcIdleTest, AnExporterThatEndedIsSeen) {
  IpcImport import;
  ASSERT_TRUE(connect(&import).ok());
  idle_.keep(static_cast<IpcConnection &&>(import.connection));
  exporter_.broker.stop();
  EXPECT_EQ(connect(&import).code(), GMM_ERROR_IPC_PEER_GONE);
  EXPECT_NE(std::strstr(last_message(), "context was destroyed"), nullptr) << last_message();
}

// When all places are taken, the idle ones go first, and whose connection went connects again.
TEST_F(IpcIdleTest, IdleConnectionsMakeWay) {
  rlimit limit;
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit old = limit;
  limit.rlim_cur = 4096;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) GTEST_SKIP() << "the system allows fewer than 4,096 descriptors";
  IpcImport import;
  ASSERT_TRUE(connect(&import).ok());
  const ino_t socket = socket_of(import.connection);
  idle_.keep(static_cast<IpcConnection &&>(import.connection));
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

TEST_F(IpcIdleTest, OnlyWhatWasGrantedIsReleasedAndOnlyOnce) {
  int fd = raw();  // before any grant
  EXPECT_EQ(say(fd, request(IpcWant::kRelease), true), GMM_ERROR_IPC_REFUSED);
  ::close(fd);
  fd = raw();  // another allocation: the connection ends, and with it the grant
  EXPECT_EQ(say(fd, request(IpcWant::kCount), true), GMM_OK);
  IpcRequest other = request(IpcWant::kRelease);
  other.allocation = test::kAllocation + 1;
  EXPECT_EQ(say(fd, other, true), 1);
  ::close(fd);
  EXPECT_TRUE(nobody());
  fd = raw();  // twice
  EXPECT_EQ(say(fd, request(IpcWant::kCount), true), GMM_OK);
  say(fd, request(IpcWant::kRelease), false);
  EXPECT_EQ(say(fd, request(IpcWant::kRelease), true), GMM_ERROR_IPC_REFUSED);
  ::close(fd);
  EXPECT_TRUE(nobody());
  fd = raw();  // a wrong token is refused on a connection that had the right one before
  EXPECT_EQ(say(fd, request(IpcWant::kCount), true), GMM_OK);
  say(fd, request(IpcWant::kRelease), false);
  IpcRequest wrong = request(IpcWant::kCount);
  wrong.token[3] ^= 1;
  EXPECT_EQ(say(fd, wrong, true), GMM_ERROR_IPC_REFUSED);
  EXPECT_EQ(say(fd, request(IpcWant::kCount), true), 1);
  ::close(fd);
  EXPECT_TRUE(nobody());
}

}  // namespace
}  // namespace gmm
