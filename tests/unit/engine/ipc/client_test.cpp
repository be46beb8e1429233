// SPDX-License-Identifier: Apache-2.0
// The client against exporters that lie, are silent, or are other processes.
#include "engine/ipc/client.h"

#include <sys/mman.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "engine/ipc/test_support.h"

namespace gmm::test {
namespace {

// An exporter whose answer on one connection is up to the test.
class IpcClientTest : public FolderTest {
 protected:
  static constexpr size_t kReplySize = IpcReply::size_with(1);  // with one extent
  // The bytes of a reply, the files that come with it, and the size that it promises for its extent.
  struct Answer {
    IpcReply reply = good();
    unsigned files = 1;
    off_t length = kSize;
    uint64_t promised = kSize;
    size_t size = kReplySize;
  };
  static IpcReply good() {
    IpcReply reply;
    reply.extents = 1;
    reply.allocation_size = kSize;
    return reply;
  }
  Status import_from(const std::function<void(int)> &serve, IpcWant want = IpcWant::kDescriptors,
                     uint32_t timeout = kPatience) {
    const int listener = listen_as(handle_.exporter);
    std::thread thread([&] {
      const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
      IpcRequest request;
      EXPECT_EQ(::recv(fd, &request, sizeof request, MSG_WAITALL), static_cast<ssize_t>(sizeof request));
      serve(fd);
      ::close(fd);
    });
    IpcImport import;
    const Status status = import.connect(handle_, want, timeout);
    imported_ = true;
    thread.join();
    ::close(listener);
    remove(handle_.exporter);
    return status;
  }
  static void send(int fd, const Answer &answer) {
    const int memory = ::memfd_create("lie", MFD_CLOEXEC);
    EXPECT_EQ(::ftruncate(memory, answer.length), 0);
    // More files than os::send_bytes() takes.
    IpcReply reply = answer.reply;
    reply.sizes[0] = answer.promised;
    iovec part = {&reply, answer.size};
    alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int) * 200)] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (answer.files != 0) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(sizeof(int) * answer.files);
      cmsghdr *header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int) * answer.files);
      for (unsigned i = 0; i < answer.files; ++i)
        std::memcpy(CMSG_DATA(header) + i * sizeof(int), &memory, sizeof memory);
    }
    EXPECT_EQ(::sendmsg(fd, &message, MSG_NOSIGNAL), static_cast<ssize_t>(answer.size));
    ::close(memory);
  }
  std::atomic<bool> imported_{false};  // import_from() has the client's status
};

TEST_F(IpcClientTest, TakesAGoodReply) {
  EXPECT_TRUE(import_from([](int fd) { send(fd, Answer()); }).ok()) << last_message();
}

TEST_F(IpcClientTest, LiesAreRefused) {
  const auto reply = [](auto change) {
    IpcReply reply = good();
    change(reply);
    return Answer{.reply = reply};
  };
  const struct {
    Answer answer;
    gmm_result code;
    const char *words;
  } cases[] = {
      {Answer{.files = 0}, GMM_ERROR_IPC_REFUSED, "sent 0 file descriptors where 1"},
      {Answer{.files = 2}, GMM_ERROR_IPC_REFUSED, "sent 2 file descriptors where 1"},
      {Answer{.files = 193}, GMM_ERROR_IPC_REFUSED, "lost on the way"},
      {Answer{.promised = 4096}, GMM_ERROR_IPC_REFUSED, "not the memory"},
      {Answer{.promised = UINT64_MAX}, GMM_ERROR_IPC_REFUSED, "its file has"},
      {Answer{.length = 4096}, GMM_ERROR_IPC_REFUSED, "its file has 4096 bytes"},
      {reply([](IpcReply &r) { r.magic ^= 1; }), GMM_ERROR_IPC_REFUSED, "not a reply"},
      {reply([](IpcReply &r) { r.version = 9; }), GMM_ERROR_IPC_REFUSED, "speaks version 9"},
      {reply([](IpcReply &r) { r.reserved = 1; }), GMM_ERROR_IPC_REFUSED, "extents where 1"},
      {reply([](IpcReply &r) { r.extents = 0; }), GMM_ERROR_IPC_REFUSED, "extents where 1"},
      {reply([](IpcReply &r) { r.extents = 193; }), GMM_ERROR_IPC_REFUSED, "extents where 1"},
      {reply([](IpcReply &r) { r.result = 12345; }), GMM_ERROR_IPC_REFUSED, "12345"},
      {reply([](IpcReply &r) { r.result = GMM_ERROR_PAUSED; }), GMM_ERROR_IPC_REFUSED, "paused there"},
      {reply([](IpcReply &r) { r.allocation_size *= 2; }), GMM_ERROR_IPC_PEER_GONE, "freed or replaced"},
      {reply([](IpcReply &r) { r.allocation_size = 0; }), GMM_ERROR_IPC_PEER_GONE, "freed or replaced"},
      {reply([](IpcReply &r) { r.generation = 1; }), GMM_ERROR_IPC_PEER_GONE, "freed or replaced"},
      {Answer{.size = 31}, GMM_ERROR_IPC_REFUSED, "not a reply (31 bytes"},
      {Answer{.size = 39}, GMM_ERROR_IPC_REFUSED, "has 39 bytes"},
      {Answer{.size = 1}, GMM_ERROR_IPC_PEER_GONE, "without an answer"},
  };
  for (const auto &one : cases) {
    EXPECT_EQ(import_from([&](int fd) { send(fd, one.answer); }).code(), one.code) << one.words;
    EXPECT_NE(std::strstr(last_message(), one.words), nullptr) << last_message();
  }
  EXPECT_EQ(import_from([](int) {}).code(), GMM_ERROR_IPC_PEER_GONE);
  // A descriptor that nobody asked for.
  EXPECT_EQ(import_from([](int fd) { send(fd, Answer()); }, IpcWant::kCount).code(), GMM_ERROR_IPC_REFUSED);
}

TEST_F(IpcClientTest, ASilentExporterTimesOut) {
  const uint64_t before = monotonic_ms();
  const auto say_nothing = [&](int) { EXPECT_TRUE(eventually([&] { return imported_.load(); })); };
  EXPECT_EQ(import_from(say_nothing, IpcWant::kDescriptors, 300).code(), GMM_ERROR_IPC_TIMEOUT);
  EXPECT_GE(monotonic_ms() - before, 300u);
}

TEST_F(IpcClientTest, AFullQueueTimesOut) {
  const int listener = listen_as(handle_.exporter);
  std::vector<int> waiting;
  do {
    waiting.push_back(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  } while (connect_to(handle_.exporter, waiting.back()) == 0);
  IpcImport import;
  EXPECT_EQ(import.connect(handle_, IpcWant::kDescriptors, 200).code(), GMM_ERROR_IPC_TIMEOUT);
  for (int fd : waiting) ::close(fd);
  ::close(listener);
  remove(handle_.exporter);
}

TEST_F(IpcClientTest, AMissingExporterIsGone) {
  IpcImport import;
  EXPECT_EQ(import.connect(handle_, IpcWant::kDescriptors, kPatience).code(), GMM_ERROR_IPC_PEER_GONE);
  EXPECT_NE(std::strstr(last_message(), "context was destroyed"), nullptr) << last_message();
  ::close(listen_as(handle_.exporter));  // a file without a listener
  EXPECT_EQ(import.connect(handle_, IpcWant::kDescriptors, kPatience).code(), GMM_ERROR_IPC_PEER_GONE);
  remove(handle_.exporter);
  handle_.exporter.start_time ^= 1;  // the pid was given to another process
  EXPECT_EQ(import.connect(handle_, IpcWant::kDescriptors, kPatience).code(), GMM_ERROR_IPC_PEER_GONE);
  EXPECT_NE(std::strstr(last_message(), "exporter ended"), nullptr) << last_message();
}

TEST_F(IpcClientTest, AnotherProcessOnTheSocketIsRefused) {
  handle_.exporter.pid = 1;
  ASSERT_EQ(process_start_time(1, &handle_.exporter.start_time), 0);
  const int listener = listen_as(handle_.exporter);
  IpcImport import;
  EXPECT_EQ(import.connect(handle_, IpcWant::kDescriptors, kPatience).code(), GMM_ERROR_IPC_REFUSED);
  EXPECT_NE(std::strstr(last_message(), "its socket belongs to process"), nullptr) << last_message();
  // The number of a process in another pid namespace means nothing here, and neither does its start time.
  handle_.exporter.pid_namespace = 7;
  EXPECT_EQ(import.connect(handle_, IpcWant::kDescriptors, 300).code(), GMM_ERROR_IPC_TIMEOUT) << last_message();
  ::close(listener);
  EXPECT_EQ(import.connect(handle_, IpcWant::kDescriptors, kPatience).code(), GMM_ERROR_IPC_PEER_GONE);
  remove(handle_.exporter);
}

}  // namespace
}  // namespace gmm::test
