// SPDX-License-Identifier: Apache-2.0
// The broker against peers that misbehave, and against processes that are killed.
#include "engine/ipc/broker.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/un.h>

#include <thread>

#include "engine/ipc/second_process.h"

namespace gmm {
namespace {

using test::eventually;
using test::Exporter;
using test::kSize;
using test::Process;

class IpcBrokerTest : public ::testing::Test {
 protected:
  explicit IpcBrokerTest(uint64_t handshake_ms = IpcBroker::kHandshakeMs) : exporter_(handshake_ms) {}
  void SetUp() override {
    char path[] = "/tmp/gmm-ipc-test-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    directory_ = path;
    ::setenv("GMM_IPC_DIR", path, 1);
    ASSERT_TRUE(exporter_.start().ok()) << last_message();
  }
  void TearDown() override {
    exporter_.broker.stop();
    EXPECT_EQ(exporter_.importers, 0);
    ::unsetenv("GMM_IPC_DIR");
    // Only succeeds when the broker left nothing behind.
    EXPECT_EQ(::rmdir(directory_.c_str()), 0) << std::strerror(errno);
  }
  int raw() {
    const int fd = test::raw_connect(exporter_.handle.exporter);
    EXPECT_GE(fd, 0);
    return fd;
  }
  std::vector<uint8_t> request() {
    IpcRequest request;
    request.want = static_cast<uint16_t>(IpcWant::kDescriptors);
    request.allocation = test::kAllocation;
    std::memcpy(request.token, exporter_.token, kIpcTokenSize);
    request.start_time = exporter_.handle.exporter.start_time;
    request.serial = exporter_.handle.exporter.serial;
    std::vector<uint8_t> bytes(kIpcRequestSize);
    request.encode(bytes.data());
    return bytes;
  }
  // The result that the broker sends; 1 when it closes without an answer; 2 when it does neither.
  static int result_of(int fd) {
    uint8_t bytes[kIpcReplySize];
    size_t got = 0;
    while (got < sizeof bytes) {
      pollfd ready = {fd, POLLIN, 0};
      if (::poll(&ready, 1, static_cast<int>(test::kPatience)) <= 0) return 2;
      const ssize_t n = ::recv(fd, bytes + got, sizeof bytes - got, 0);
      if (n <= 0) return 1;
      got += static_cast<size_t>(n);
    }
    IpcReply reply;
    reply.decode(bytes);
    return reply.result;
  }
  // A correct importer is served, whatever else happens.
  void expect_service() {
    IpcImport import;
    ASSERT_TRUE(ipc_connect(exporter_.handle, IpcWant::kDescriptors, test::kPatience, &import).ok()) << last_message();
  }
  // Waits until the broker runs, has closed the files that it opens at its start, and has no importer.
  void wait_until_idle() {
    expect_service();
    EXPECT_TRUE(eventually([&] { return exporter_.broker.live() == 0 && exporter_.importers == 0; }));
  }

  Exporter exporter_;
  std::string directory_;
};

TEST_F(IpcBrokerTest, SendsTheDescriptorAndCountsTheImporter) {
  IpcImport import;
  ASSERT_TRUE(ipc_connect(exporter_.handle, IpcWant::kDescriptors, test::kPatience, &import).ok()) << last_message();
  EXPECT_EQ(exporter_.importers, 1);
  EXPECT_EQ(exporter_.broker.live(), 1u);
  EXPECT_TRUE(import.connection.alive());
  EXPECT_NE(::fcntl(import.fds[0], F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_NE(::fcntl(import.connection.peer().connection, F_GETFD) & FD_CLOEXEC, 0);
  auto *here = static_cast<char *>(::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, import.fds[0], 0));
  ASSERT_NE(here, MAP_FAILED);
  here[kSize - 1] = 'z';
  char there = 0;
  EXPECT_EQ(::pread(exporter_.memory, &there, 1, kSize - 1), 1);
  EXPECT_EQ(there, 'z');
  ::munmap(here, kSize);
  import.connection.close();
  EXPECT_TRUE(eventually([&] { return exporter_.importers == 0 && exporter_.broker.live() == 0; }));
}

TEST_F(IpcBrokerTest, OneReplyBringsAllExtents) {
  for (const uint32_t extents : {2u, kIpcMaxExtents}) {
    exporter_.extents = extents;
    ASSERT_TRUE(exporter_.start().ok()) << last_message();
    wait_until_idle();
    const int before = test::open_descriptors();
    {
      IpcImport import;
      ASSERT_TRUE(ipc_connect(exporter_.handle, IpcWant::kDescriptors, test::kPatience, &import).ok())
          << last_message();
      EXPECT_EQ(import.extents, extents);
      EXPECT_EQ(import.allocation_size, extents * kSize);
      EXPECT_EQ(import.sizes[extents - 1], kSize);
      EXPECT_GE(::fcntl(import.fds[extents - 1], F_GETFD), 0);
      EXPECT_EQ(exporter_.importers, 1);
    }
    EXPECT_TRUE(eventually([&] { return exporter_.importers == 0 && test::open_descriptors() == before; }));
  }
}

// A child of the importer holds the socket too. It does not count.
TEST_F(IpcBrokerTest, AClosedConnectionEndsInAForkedChildToo) {
  IpcImport import;
  ASSERT_TRUE(ipc_connect(exporter_.handle, IpcWant::kCount, test::kPatience, &import).ok()) << last_message();
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  import.connection.close();
  EXPECT_TRUE(eventually([&] { return exporter_.importers == 0; }));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_F(IpcBrokerTest, CountsWithoutADescriptor) {
  IpcImport import;
  ASSERT_TRUE(ipc_connect(exporter_.handle, IpcWant::kCount, test::kPatience, &import).ok()) << last_message();
  EXPECT_EQ(import.extents, 0u);
  EXPECT_EQ(exporter_.importers, 1);
}

TEST_F(IpcBrokerTest, AChecksAnswerCountsNobody) {
  IpcImport answer;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(ipc_connect(exporter_.handle, IpcWant::kCheck, test::kPatience, &answer).ok()) << last_message();
    EXPECT_EQ(answer.extents, 0u);
    EXPECT_EQ(answer.allocation_size, kSize);
    EXPECT_EQ(exporter_.importers, 0);
    EXPECT_EQ(exporter_.broker.live(), 0u);
    EXPECT_TRUE(eventually([&] { return answer.connection.state() == PeerState::kGone; }));
  }
  exporter_.answer = GMM_ERROR_IPC_PEER_GONE;
  EXPECT_EQ(ipc_connect(exporter_.handle, IpcWant::kCheck, test::kPatience, &answer).code(), GMM_ERROR_IPC_PEER_GONE);
  exporter_.answer = GMM_OK;
  expect_service();
}

// BUSY is no refusal: the importer asks again until it is served, and the log says nothing.
TEST_F(IpcBrokerTest, ABusyExporterIsAskedAgain) {
  exporter_.answer = GMM_ERROR_BUSY;
  IpcImport import;
  EXPECT_EQ(ipc_connect(exporter_.handle, IpcWant::kCount, 50, &import).code(), GMM_ERROR_IPC_TIMEOUT);
  std::thread ready([&] {
    EXPECT_TRUE(eventually([&] { return exporter_.resolved > 20; }));
    exporter_.answer = GMM_OK;
  });
  EXPECT_TRUE(ipc_connect(exporter_.handle, IpcWant::kCount, test::kPatience, &import).ok()) << last_message();
  ready.join();
  EXPECT_EQ(exporter_.journal.lines, 0);
}

// Somebody tidies the directory while the broker runs.
TEST_F(IpcBrokerTest, ADeletedSocketIsMadeAnew) {
  char name[kIpcNameSize];
  ipc_socket_name(exporter_.handle.exporter, name);
  const std::string path = directory_ + "/" + name;
  wait_until_idle();
  IpcImport held;
  ASSERT_TRUE(ipc_connect(exporter_.handle, IpcWant::kCount, test::kPatience, &held).ok()) << last_message();
  const int descriptors = test::open_descriptors();
  for (int i = 0; i < 30; ++i) {
    ASSERT_EQ(::unlink(path.c_str()), 0) << i;
    if (i % 10 == 3) {
      // gmm may have it again between the two.
      EXPECT_TRUE(eventually([&] {
        ::unlink(path.c_str());
        return ::rmdir(directory_.c_str()) == 0;
      }));
    }
    IpcEndpoint again;
    ASSERT_TRUE(exporter_.broker.ensure_running(&again).ok()) << last_message();
    EXPECT_EQ(again, exporter_.handle.exporter);
    ASSERT_EQ(::access(path.c_str(), F_OK), 0);
    expect_service();
  }
  EXPECT_TRUE(held.connection.alive()) << "connections from before stay";
  EXPECT_TRUE(eventually([&] { return test::open_descriptors() == descriptors; }));
  EXPECT_TRUE(eventually([&] { return exporter_.importers == 1; }));
}

// An importer may look for the socket just then: the name is not there, or it answers.
TEST_F(IpcBrokerTest, ASocketWithANameListens) {
  char name[kIpcNameSize];
  ipc_socket_name(exporter_.handle.exporter, name);
  const std::string path = directory_ + "/" + name;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path.c_str());
  const auto inode = [&] {
    struct stat file;
    return ::stat(path.c_str(), &file) == 0 ? file.st_ino : 0;
  };
  std::atomic<bool> done{false};
  int refusals = 0, connections = 0;
  std::thread importer([&] {
    while (!done.load()) {
      const ino_t before = inode();
      const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const int result = ::connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof address);
      const bool refused = result != 0 && errno == ECONNREFUSED;
      ::close(fd);
      connections += result == 0;
      refusals += refused && before != 0 && before == inode();
    }
  });
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(::unlink(path.c_str()), 0) << i;
    IpcEndpoint again;
    EXPECT_TRUE(exporter_.broker.ensure_running(&again).ok()) << last_message();
  }
  done.store(true);
  importer.join();
  EXPECT_EQ(refusals, 0) << "of " << connections << " connections";
}

// What took the name is no socket of this broker.
TEST_F(IpcBrokerTest, ASocketThatWasReplacedIsMadeAnew) {
  char name[kIpcNameSize];
  ipc_socket_name(exporter_.handle.exporter, name);
  const std::string path = directory_ + "/" + name, other = directory_ + "/other";
  const int file = ::open(other.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  ASSERT_GE(file, 0);
  ::close(file);
  ASSERT_EQ(::rename(other.c_str(), path.c_str()), 0);
  IpcEndpoint again;
  ASSERT_TRUE(exporter_.broker.ensure_running(&again).ok()) << last_message();
  expect_service();
}

TEST_F(IpcBrokerTest, RevokeEndsTheConnectionsOfOneAllocation) {
  IpcImport a, b;
  ASSERT_TRUE(ipc_connect(exporter_.handle, IpcWant::kCount, test::kPatience, &a).ok());
  ASSERT_TRUE(ipc_connect(exporter_.handle, IpcWant::kCount, test::kPatience, &b).ok());
  exporter_.broker.revoke(test::kAllocation + 1);
  EXPECT_TRUE(a.connection.alive());
  exporter_.broker.revoke(test::kAllocation);
  EXPECT_TRUE(eventually([&] { return !a.connection.alive() && !b.connection.alive() && exporter_.importers == 0; }));
  expect_service();
}

TEST_F(IpcBrokerTest, RevokedImportersSeeTheRevocationAndOthersOnlyTheEnd) {
  IpcImport a, b;
  ASSERT_TRUE(ipc_connect(exporter_.handle, IpcWant::kCount, test::kPatience, &a).ok());
  EXPECT_EQ(a.connection.state(), PeerState::kAlive);
  exporter_.broker.revoke(test::kAllocation);
  EXPECT_TRUE(eventually([&] { return a.connection.state() == PeerState::kRevoked; }));
  ASSERT_TRUE(ipc_connect(exporter_.handle, IpcWant::kCount, test::kPatience, &b).ok());
  exporter_.broker.disconnect(test::kAllocation);
  EXPECT_TRUE(eventually([&] { return b.connection.state() == PeerState::kGone; }));
  EXPECT_EQ(a.connection.state(), PeerState::kRevoked);  // state() does not consume the byte
  EXPECT_EQ(exporter_.importers, 0);
}

TEST_F(IpcBrokerTest, RevokeWhileTheImportIsUnderWayIsNotLost) {
  exporter_.revoke_inside = true;
  IpcImport import;
  ASSERT_TRUE(ipc_connect(exporter_.handle, IpcWant::kCount, test::kPatience, &import).ok());
  EXPECT_TRUE(eventually([&] { return !import.connection.alive() && exporter_.importers == 0; }));
}

TEST_F(IpcBrokerTest, StopIsSeenByImportersAndStartsAgain) {
  IpcImport import, other;
  ASSERT_TRUE(ipc_connect(exporter_.handle, IpcWant::kCount, test::kPatience, &import).ok());
  exporter_.broker.stop();
  EXPECT_EQ(exporter_.importers, 0);
  EXPECT_FALSE(import.connection.alive());
  EXPECT_EQ(ipc_connect(exporter_.handle, IpcWant::kCount, test::kPatience, &other).code(), GMM_ERROR_IPC_PEER_GONE);
  EXPECT_NE(std::strstr(last_message(), "context was destroyed"), nullptr) << last_message();
  const IpcEndpoint before = exporter_.handle.exporter;
  ASSERT_TRUE(exporter_.start().ok());
  EXPECT_FALSE(exporter_.handle.exporter == before);
  expect_service();
}

TEST_F(IpcBrokerTest, StartTwiceGivesTheSameEndpoint) {
  IpcEndpoint again;
  ASSERT_TRUE(exporter_.broker.start(&again).ok());
  EXPECT_EQ(again, exporter_.handle.exporter);
}

TEST_F(IpcBrokerTest, WrongTokenAndWrongIdAreRefused) {
  IpcImport import;
  for (unsigned i = 0; i < kIpcTokenSize; ++i) {
    IpcHandle handle = exporter_.handle;
    handle.token[i] ^= 1;
    EXPECT_EQ(ipc_connect(handle, IpcWant::kDescriptors, test::kPatience, &import).code(), GMM_ERROR_IPC_REFUSED);
  }
  IpcHandle handle = exporter_.handle;
  handle.allocation ^= 1;
  EXPECT_EQ(ipc_connect(handle, IpcWant::kDescriptors, test::kPatience, &import).code(), GMM_ERROR_IPC_REFUSED);
  EXPECT_EQ(import.extents, 0u);
  EXPECT_FALSE(import.connection.open());
  EXPECT_TRUE(exporter_.journal.has("wrong token"));
  expect_service();
}

TEST_F(IpcBrokerTest, TheResolversReasonReachesTheImporter) {
  IpcImport import;
  exporter_.answer = GMM_ERROR_IPC_PEER_GONE;
  EXPECT_EQ(ipc_connect(exporter_.handle, IpcWant::kCount, test::kPatience, &import).code(), GMM_ERROR_IPC_PEER_GONE);
  exporter_.answer = GMM_ERROR_PAUSED;
  EXPECT_EQ(ipc_connect(exporter_.handle, IpcWant::kCount, test::kPatience, &import).code(), GMM_ERROR_IPC_REFUSED);
  EXPECT_NE(std::strstr(last_message(), "paused"), nullptr) << last_message();
  exporter_.answer = GMM_ERROR_DRIVER;
  EXPECT_EQ(ipc_connect(exporter_.handle, IpcWant::kCount, test::kPatience, &import).code(), GMM_ERROR_IPC_REFUSED);
  EXPECT_NE(std::strstr(last_message(), "-30"), nullptr) << last_message();
}

TEST_F(IpcBrokerTest, AnotherGenerationIsGone) {
  IpcImport import;
  IpcHandle handle = exporter_.handle;
  ++handle.generation;
  EXPECT_EQ(ipc_connect(handle, IpcWant::kDescriptors, test::kPatience, &import).code(), GMM_ERROR_IPC_PEER_GONE);
  EXPECT_TRUE(eventually([&] { return exporter_.importers == 0; }));
}

TEST_F(IpcBrokerTest, EveryWrongFieldOfARequestIsRefused) {
  struct Case {
    unsigned at;
    const char *words;
  };
  const Case cases[] = {{0, "not a request"},   {4, "speaks version"},    {6, "unknown fields"},
                        {44, "unknown fields"}, {32, "another exporter"}, {40, "another exporter"},
                        {8, "wrong token"},     {31, "wrong token"}};
  for (const Case &one : cases) {
    const int fd = raw();
    std::vector<uint8_t> bytes = request();
    bytes[one.at] ^= 0x40;
    ASSERT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(result_of(fd), GMM_ERROR_IPC_REFUSED) << one.at;
    EXPECT_EQ(result_of(fd), 1) << "the connection should end";
    EXPECT_TRUE(exporter_.journal.has(one.words)) << one.words;
    ::close(fd);
  }
  expect_service();
}

TEST_F(IpcBrokerTest, TooLongTooShortAndTalkativePeersAreDropped) {
  std::vector<uint8_t> bytes = request();
  int fd = raw();  // too long
  std::vector<uint8_t> longer = bytes;
  longer.resize(100000, 0xab);
  ::send(fd, longer.data(), longer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  EXPECT_EQ(result_of(fd), GMM_ERROR_IPC_REFUSED);
  ::close(fd);
  fd = raw();  // too short
  ::send(fd, bytes.data(), 20, MSG_NOSIGNAL);
  ::shutdown(fd, SHUT_WR);
  EXPECT_EQ(result_of(fd), 1);
  ::close(fd);
  EXPECT_TRUE(exporter_.journal.has("after 20 of 48 bytes"));
  EXPECT_EQ(exporter_.resolved, 0);
  fd = raw();  // speaks again
  ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  EXPECT_EQ(result_of(fd), GMM_OK);
  ::send(fd, bytes.data(), 1, MSG_NOSIGNAL);
  EXPECT_EQ(result_of(fd), 1);
  ::close(fd);
  EXPECT_TRUE(eventually([&] { return exporter_.importers == 0; }));
  EXPECT_TRUE(exporter_.journal.has("spoke again"));
  expect_service();
}

TEST_F(IpcBrokerTest, ARequestMayComeByteByByte) {
  const std::vector<uint8_t> bytes = request();
  const int fd = raw();
  for (uint8_t byte : bytes) ASSERT_EQ(::send(fd, &byte, 1, MSG_NOSIGNAL), 1);
  EXPECT_EQ(result_of(fd), GMM_OK);
  ::close(fd);
}

TEST_F(IpcBrokerTest, DescriptorsSentToTheBrokerAreClosed) {
  wait_until_idle();
  const int before = test::open_descriptors();
  for (int i = 0; i < 20; ++i) {
    const int fd = raw();
    uint8_t byte = 0;
    iovec part = {&byte, 1};
    alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &exporter_.memory, sizeof(int));
    EXPECT_EQ(::sendmsg(fd, &message, MSG_NOSIGNAL), 1);
    ::close(fd);
  }
  EXPECT_TRUE(eventually([&] { return test::open_descriptors() == before; }));
}

TEST_F(IpcBrokerTest, SilentPeersAreDroppedInTime) {
  const uint64_t before = monotonic_ms();
  const int silent = raw(), slow = raw();
  const std::vector<uint8_t> bytes = request();
  ::send(slow, bytes.data(), 1, MSG_NOSIGNAL);
  expect_service();
  EXPECT_EQ(result_of(silent), 1);
  EXPECT_EQ(result_of(slow), 1);
  EXPECT_GE(monotonic_ms() - before, IpcBroker::kHandshakeMs);
  EXPECT_TRUE(exporter_.journal.has("sent 1 of 48 bytes"));
  ::close(silent);
  ::close(slow);
}

// The broker closes no silent peer, so importers are not served because silent peers were closed.
class IpcFloodTest : public IpcBrokerTest {
 protected:
  IpcFloodTest() : IpcBrokerTest(uint64_t{3600} * 1000) {}
};

TEST_F(IpcFloodTest, HoldsUpNobody) {
  const uint64_t before = monotonic_ms();
  std::vector<int> flood;
  for (int i = 0; i < 300; ++i) flood.push_back(raw());
  expect_service();
  EXPECT_TRUE(exporter_.journal.has("64 handshakes are under way"));
  // The messages are bounded too: 20 a second, and a summary.
  EXPECT_LE(static_cast<uint64_t>(exporter_.journal.lines), 21 * ((monotonic_ms() - before) / 1000 + 2));
  int busy = 0;
  for (int fd : flood) {
    uint8_t bytes[kIpcReplySize];
    if (::recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) == static_cast<ssize_t>(sizeof bytes)) {
      IpcReply reply;
      reply.decode(bytes);
      busy += reply.result == GMM_ERROR_BUSY;
    }
    ::close(fd);
  }
  EXPECT_GE(busy, 300 - static_cast<int>(IpcBroker::kMaxPending));
  expect_service();
}

TEST_F(IpcBrokerTest, TwoHundredImportersLeaveDescriptorsAsTheyWere) {
  wait_until_idle();
  const int before = test::open_descriptors();
  for (int i = 0; i < 200; ++i) {
    IpcImport import;
    ASSERT_TRUE(ipc_connect(exporter_.handle, IpcWant::kDescriptors, test::kPatience, &import).ok()) << last_message();
  }
  EXPECT_TRUE(eventually([&] { return exporter_.importers == 0 && test::open_descriptors() == before; }));
  EXPECT_EQ(exporter_.resolved, 201);
}

TEST_F(IpcBrokerTest, ImportersInManyThreads) {
  std::atomic<int> served{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 25; ++i) {
        IpcImport import;
        if (!ipc_connect(exporter_.handle, IpcWant::kDescriptors, test::kPatience, &import).ok()) continue;
        ++served;
        if (i % 5 == 0) exporter_.broker.revoke(test::kAllocation);
      }
    });
  for (std::thread &thread : threads) thread.join();
  EXPECT_EQ(served, 200);
  EXPECT_TRUE(eventually([&] { return exporter_.importers == 0; }));
}

// Changes the soft limit of open descriptors during its life.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    ::getrlimit(RLIMIT_NOFILE, &old_);
    rlimit changed = {limit, old_.rlim_max};
    ok_ = ::setrlimit(RLIMIT_NOFILE, &changed) == 0;
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &old_); }
  bool ok() const { return ok_; }

 private:
  rlimit old_;
  bool ok_;
};

TEST_F(IpcBrokerTest, MoreImportersThanItTakesWaitForAPlace) {
  DescriptorLimit limit(4096);
  if (!limit.ok()) GTEST_SKIP() << "the system allows fewer than 4,096 descriptors";
  std::vector<IpcImport> imports(IpcBroker::kMaxLive);
  for (IpcImport &import : imports)
    ASSERT_TRUE(ipc_connect(exporter_.handle, IpcWant::kCount, test::kPatience, &import).ok()) << last_message();
  IpcImport late;
  // Long enough for one answer, which says why.
  EXPECT_EQ(ipc_connect(exporter_.handle, IpcWant::kCount, 3000, &late).code(), GMM_ERROR_IPC_TIMEOUT);
  EXPECT_NE(std::strstr(last_message(), "as many importers"), nullptr) << last_message();
  imports[500].connection.close();
  EXPECT_TRUE(ipc_connect(exporter_.handle, IpcWant::kCount, test::kPatience, &late).ok()) << last_message();
}

double cpu_seconds() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

TEST_F(IpcBrokerTest, OutOfDescriptorsItWaitsWithoutSpinning) {
  wait_until_idle();
  char name[kIpcNameSize];
  ipc_socket_name(exporter_.handle.exporter, name);
  const int directory = ::open(directory_.c_str(), O_PATH | O_CLOEXEC);
  sockaddr_un address;
  os::socket_address(directory, name, &address);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const std::vector<uint8_t> bytes = request();
  {
    DescriptorLimit limit(static_cast<rlim_t>(fd) + 1);  // descriptors below may be free: fill them
    std::vector<int> fill;
    for (int filler = ::dup(0); filler >= 0; filler = ::dup(0)) fill.push_back(filler);
    ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof address), 0);
    ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    EXPECT_TRUE(eventually([&] { return exporter_.journal.has("importers have to wait"); }));
    const double before = cpu_seconds();
    ::usleep(500000);
    EXPECT_LT(cpu_seconds() - before, 0.15);
    for (int filler : fill) ::close(filler);
  }
  EXPECT_EQ(result_of(fd), GMM_OK);
  ::close(fd);
  ::close(directory);
}

TEST_F(IpcBrokerTest, AClientWithoutDescriptorsSaysSo) {
  IpcImport import;
  std::vector<int> fill;
  wait_until_idle();
  {
    const int highest = ::dup(0);
    ::close(highest);
    DescriptorLimit limit(static_cast<rlim_t>(highest));
    for (int filler = ::dup(0); filler >= 0; filler = ::dup(0)) fill.push_back(filler);
    EXPECT_EQ(ipc_connect(exporter_.handle, IpcWant::kDescriptors, test::kPatience, &import).code(), GMM_ERROR_SYSTEM);
    EXPECT_EQ(last_native(), EMFILE);
    EXPECT_NE(std::strstr(last_message(), "Too many open files"), nullptr) << last_message();
    for (int filler : fill) ::close(filler);
  }
  expect_service();
}

TEST_F(IpcBrokerTest, AForkedChildLeavesTheParentsBrokerAlone) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    IpcEndpoint endpoint;
    const bool refused = exporter_.broker.start(&endpoint).code() == GMM_ERROR_FORKED;
    exporter_.broker.revoke(test::kAllocation);
    exporter_.broker.stop();
    exporter_.broker.~IpcBroker();
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  expect_service();
}

class IpcBrokerProcessTest : public test::ProcessTest {};

TEST_F(IpcBrokerProcessTest, AnotherProcessWritesIntoTheMemory) {
  Exporter exporter;
  ASSERT_TRUE(exporter.start().ok()) << last_message();
  Process importer("importer", hex_of(exporter.handle));
  ASSERT_EQ(importer.line(), "imported");
  EXPECT_EQ(exporter.importers, 1);
  char byte = 0;
  EXPECT_EQ(::pread(exporter.memory, &byte, 1, 100), 1);
  EXPECT_EQ(byte, 'i');
  EXPECT_EQ(importer.finish(), 0);
  EXPECT_TRUE(eventually([&] { return exporter.importers == 0; }));
}

TEST_F(IpcBrokerProcessTest, AKilledImporterIsNoticed) {
  Exporter exporter;
  ASSERT_TRUE(exporter.start().ok()) << last_message();
  Process first("importer", hex_of(exporter.handle)), second("importer", hex_of(exporter.handle));
  ASSERT_EQ(first.line(), "imported");
  ASSERT_EQ(second.line(), "imported");
  EXPECT_EQ(exporter.importers, 2);
  first.kill();
  EXPECT_TRUE(eventually([&] { return exporter.importers == 1; }));
  second.kill();
  EXPECT_TRUE(eventually([&] { return exporter.importers == 0; }));
}

TEST_F(IpcBrokerProcessTest, AnExporterThatEndsWellLeavesNothing) {
  Process exporter("exporter");
  IpcHandle handle;
  ASSERT_TRUE(ipc_handle_decode(test::from_hex(exporter.line().c_str()), &handle).ok());
  EXPECT_EQ(files(), 1);
  EXPECT_EQ(exporter.finish(), 0);
  EXPECT_EQ(files(), 0);
}

}  // namespace
}  // namespace gmm
