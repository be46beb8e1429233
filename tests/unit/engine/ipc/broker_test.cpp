// SPDX-License-Identifier: Apache-2.0
// The broker against peers that misbehave: each test connects without the library's client.
#include "engine/ipc/broker.h"

#include <gmm/gmm.h>
#include <poll.h>
#include <sys/resource.h>

#include <mutex>
#include <thread>
#include <vector>

#include "engine/ipc/test_support.h"

namespace gmm::test {
namespace {

// A context that exported one block.
class IpcBrokerTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    context_ = make_context();
    gmm_alloc_desc of_block = {};
    of_block.struct_size = sizeof of_block;
    of_block.kind = GMM_KIND_VMM;
    ASSERT_EQ(gmm_alloc(context_, 4096, &of_block, &block_), GMM_OK) << gmm_last_error_message();
    ASSERT_EQ(gmm_ipc_export(context_, block_, &bytes_), GMM_OK) << gmm_last_error_message();
    ASSERT_TRUE(ipc_handle_decode(bytes_, &handle_).ok()) << last_message();
  }
  void TearDown() override {
    EXPECT_EQ(gmm_free(context_, block_, GMM_STREAM_DEFAULT), GMM_OK);
    EXPECT_EQ(gmm_context_release(context_), GMM_OK);
    FolderTest::TearDown();
  }
  gmm_context *make_context() {
    gmm_context_desc desc = {};
    desc.struct_size = sizeof desc;
    desc.backend = GMM_BACKEND_HOST;
    desc.host_memory = uint64_t{1} << 30;
    desc.log = {write, this};
    gmm_context *context = nullptr;
    EXPECT_EQ(gmm_context_create(&desc, &context), GMM_OK) << gmm_last_error_message();
    return context;
  }
  static void write(void *self, uint32_t, const char *message) {
    auto *test = static_cast<IpcBrokerTest *>(self);
    std::lock_guard<std::mutex> guard(test->mutex_);
    (test->log_ += message) += '\n';
    ++test->lines_;
  }
  bool log_has(const char *words) {
    std::lock_guard<std::mutex> guard(mutex_);
    return log_.find(words) != std::string::npos;
  }
  int raw() {
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect_to(handle_.exporter, fd), 0);
    return fd;
  }
  std::vector<uint8_t> request(IpcWant want = IpcWant::kDescriptors) const {
    IpcRequest request;
    request.want = want;
    request.allocation = handle_.allocation;
    std::memcpy(request.token, handle_.token, kIpcTokenSize);
    request.start_time = handle_.exporter.start_time;
    request.serial = handle_.exporter.serial;
    const auto *bytes = reinterpret_cast<const uint8_t *>(&request);
    return std::vector<uint8_t>(bytes, bytes + sizeof request);
  }
  static void send(int fd, const std::vector<uint8_t> &bytes) {
    EXPECT_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  // The result that the broker sends; 1 when it closes without an answer; 2 when it does neither.
  static int result_of(int fd) {
    pollfd ready = {fd, POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(kPatience)) <= 0) return 2;
    IpcReply reply;
    return ::recv(fd, &reply, sizeof reply, 0) <= 0 ? 1 : reply.result;
  }
  uint32_t importers() const {
    gmm_snapshot *snapshot = nullptr;
    gmm_extent_info extent = {};
    extent.struct_size = sizeof extent;
    EXPECT_EQ(gmm_snapshot_create(context_, nullptr, &snapshot), GMM_OK);
    EXPECT_EQ(gmm_snapshot_query_extent(snapshot, 0, &extent), GMM_OK);
    EXPECT_EQ(gmm_snapshot_destroy(snapshot), GMM_OK);
    return extent.importers;
  }
  // A correct importer is served, whatever else happens.
  void expect_service() {
    IpcImport import;
    ASSERT_TRUE(import.connect(handle_, IpcWant::kDescriptors, kPatience).ok()) << last_message();
  }
  // Waits until the broker runs, has closed the files that it opens at its start, and has no importer.
  void wait_until_idle() {
    expect_service();
    EXPECT_TRUE(eventually([&] { return importers() == 0; }));
  }

  gmm_context *context_ = nullptr;
  void *block_ = nullptr;
  gmm_ipc_handle bytes_ = {};
  std::mutex mutex_;
  std::string log_;
  int lines_ = 0;
};

TEST_F(IpcBrokerTest, EveryWrongFieldOfARequestIsRefused) {
  const struct {
    unsigned at;
    gmm_result result;
    const char *words;
  } cases[] = {{0, GMM_ERROR_IPC_REFUSED, "not a request"},     {4, GMM_ERROR_IPC_REFUSED, "speaks version"},
               {6, GMM_ERROR_IPC_REFUSED, "unknown fields"},    {44, GMM_ERROR_IPC_REFUSED, "unknown fields"},
               {32, GMM_ERROR_IPC_REFUSED, "another exporter"}, {40, GMM_ERROR_IPC_REFUSED, "another exporter"},
               {16, GMM_ERROR_IPC_REFUSED, "token is not"},     {23, GMM_ERROR_IPC_REFUSED, "token is not"},
               {31, GMM_ERROR_IPC_REFUSED, "token is not"},     {8, GMM_ERROR_IPC_PEER_GONE, "not exported any more"}};
  for (const auto &one : cases) {
    const int fd = raw();
    std::vector<uint8_t> bytes = request();
    bytes[one.at] ^= 0x40;
    send(fd, bytes);
    EXPECT_EQ(result_of(fd), one.result) << one.at;
    EXPECT_EQ(result_of(fd), 1) << "the connection should end";
    EXPECT_TRUE(log_has(one.words)) << one.words;
    ::close(fd);
  }
  expect_service();
}

TEST_F(IpcBrokerTest, TooLongTooShortAndTalkativePeersAreDropped) {
  for (size_t size : {100000u, 49u, 47u, 20u, 1u}) {
    const int fd = raw();
    std::vector<uint8_t> bytes = request();
    bytes.resize(size, 0xab);
    send(fd, bytes);
    EXPECT_EQ(result_of(fd), GMM_ERROR_IPC_REFUSED);
    EXPECT_EQ(result_of(fd), 1);
    ::close(fd);
    EXPECT_TRUE(log_has(size > 48 ? "longer than 48" : "shorter than 48"));
  }
  const int fd = raw();
  send(fd, request());
  EXPECT_EQ(result_of(fd), GMM_OK);
  EXPECT_EQ(importers(), 1u);
  send(fd, request());
  EXPECT_EQ(result_of(fd), 1);
  ::close(fd);
  EXPECT_TRUE(log_has("spoke again"));
  wait_until_idle();
}

TEST_F(IpcBrokerTest, DescriptorsSentToTheBrokerAreClosed) {
  wait_until_idle();
  const int before = open_descriptors();
  for (int i = 0; i < 20; ++i) {
    const int fd = raw();
    os::Descriptors sent;
    sent.each[sent.count++] = ::dup(0);
    EXPECT_EQ(os::send_bytes(fd, "x", 1, &sent), 1);
    ::close(fd);
  }
  EXPECT_TRUE(eventually([&] { return open_descriptors() == before; }));
}

TEST_F(IpcBrokerTest, SilentPeersAreDroppedInTime) {
  const uint64_t before = monotonic_ms();
  const int silent = raw();
  expect_service();
  EXPECT_EQ(result_of(silent), 1);
  EXPECT_GE(monotonic_ms() - before, IpcBroker::kHandshakeMs);
  EXPECT_TRUE(log_has("sent nothing in 2000 ms"));
  ::close(silent);
}

TEST_F(IpcBrokerTest, AFloodHoldsUpNobody) {
  const uint64_t before = monotonic_ms();
  std::vector<int> flood;
  for (int i = 0; i < 300; ++i) flood.push_back(raw());
  expect_service();
  EXPECT_TRUE(log_has("64 handshakes are under way"));
  // The messages are bounded too: 20 a second, and a summary.
  EXPECT_LE(static_cast<uint64_t>(lines_), 21 * ((monotonic_ms() - before) / 1000 + 2));
  int busy = 0;
  for (int fd : flood) {
    IpcReply reply;
    busy += ::recv(fd, &reply, IpcReply::size_with(0), MSG_DONTWAIT) > 0 && reply.result == GMM_ERROR_BUSY;
    ::close(fd);
  }
  EXPECT_GE(busy, 100);  // how many exactly depends on the time
  expect_service();
}

// Changes the soft limit of open descriptors during its life.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    ::getrlimit(RLIMIT_NOFILE, &old_);
    rlimit changed = {limit, old_.rlim_max};
    ok_ = ::setrlimit(RLIMIT_NOFILE, &changed) == 0;
  }
  ~DescriptorLimit() {
    for (int filler : fill_) ::close(filler);
    ::setrlimit(RLIMIT_NOFILE, &old_);
  }
  bool ok() const { return ok_; }
  // No descriptor below the limit is free any more.
  void fill() {
    for (int filler = ::dup(0); filler >= 0; filler = ::dup(0)) fill_.push_back(filler);
  }

 private:
  rlimit old_;
  bool ok_;
  std::vector<int> fill_;
};

TEST_F(IpcBrokerTest, MoreImportersThanItTakesWaitForAPlace) {
  DescriptorLimit limit(4096);
  if (!limit.ok()) GTEST_SKIP() << "the system allows fewer than 4,096 descriptors";
  std::vector<IpcImport> imports(IpcBroker::kMaxLive);
  for (IpcImport &import : imports)
    ASSERT_TRUE(import.connect(handle_, IpcWant::kCount, kPatience).ok()) << last_message();
  IpcImport late;
  // Long enough for one answer, which says why.
  EXPECT_EQ(late.connect(handle_, IpcWant::kCount, 3000).code(), GMM_ERROR_IPC_TIMEOUT);
  EXPECT_NE(std::strstr(last_message(), "as many importers"), nullptr) << last_message();
  imports[500].connection.close();
  EXPECT_TRUE(late.connect(handle_, IpcWant::kCount, kPatience).ok()) << last_message();
}

double cpu_seconds() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

TEST_F(IpcBrokerTest, OutOfDescriptorsItWaitsWithoutSpinning) {
  wait_until_idle();
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  {
    DescriptorLimit limit(static_cast<rlim_t>(fd) + 1);
    limit.fill();
    ASSERT_EQ(connect_to(handle_.exporter, fd), 0);
    send(fd, request());
    EXPECT_TRUE(eventually([&] { return log_has("processes have to wait"); }));
    const double before = cpu_seconds();
    ::usleep(500000);
    EXPECT_LT(cpu_seconds() - before, 0.15);
  }
  EXPECT_EQ(result_of(fd), GMM_OK);
  ::close(fd);
}

// An importer may look for the socket just then: the name is not there, or it answers.
TEST_F(IpcBrokerTest, ASocketWithANameListens) {
  const std::string path = path_of(handle_.exporter);
  const auto inode = [&] {
    struct stat file;
    return ::stat(path.c_str(), &file) == 0 ? file.st_ino : 0;
  };
  std::atomic<bool> done{false};
  int refusals = 0, connections = 0;
  std::thread importer([&] {
    while (!done.load()) {
      const ino_t before = inode();
      const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
      const int error = connect_to(handle_.exporter, fd);
      ::close(fd);
      connections += error == 0;
      refusals += error == ECONNREFUSED && before != 0 && before == inode();
    }
  });
  gmm_ipc_handle again;
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(::unlink(path.c_str()), 0) << i;
    EXPECT_EQ(gmm_ipc_export(context_, block_, &again), GMM_OK) << gmm_last_error_message();
  }
  done.store(true);
  importer.join();
  EXPECT_EQ(refusals, 0) << "of " << connections << " connections";
  EXPECT_EQ(std::memcmp(&again, &bytes_, sizeof again), 0);
  wait_until_idle();
}

// The file that took the name is no socket of this broker.
TEST_F(IpcBrokerTest, ASocketThatWasReplacedIsMadeAnew) {
  const std::string other = folder_ + "/other";
  ::close(::open(other.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  ASSERT_EQ(::rename(other.c_str(), path_of(handle_.exporter).c_str()), 0);
  gmm_ipc_handle again;
  ASSERT_EQ(gmm_ipc_export(context_, block_, &again), GMM_OK) << gmm_last_error_message();
  expect_service();
}

}  // namespace
}  // namespace gmm::test
