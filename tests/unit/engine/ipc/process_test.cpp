// SPDX-License-Identifier: Apache-2.0
// Exporter and importer as real processes, with either killed, and as different users.
//
// The other side is this program started again: the constructor below plays its part before main(), so that no
// thread is alive at fork() and any main() will do.
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <vector>

#include "engine/ipc/test_support.h"

namespace gmm {
namespace {

using test::eventually;
using test::Exporter;

void say(const char *text) {
  if (::write(1, text, std::strlen(text)) < 0) ::_exit(9);
}
void wait_for_end_of_input() {
  char byte;
  while (::read(0, &byte, 1) > 0) {
  }
}

[[noreturn]] void play_exporter() {
  {
    Exporter exporter;
    gmm_ipc_handle bytes;
    if (!exporter.start().ok()) ::_exit(1);
    ipc_handle_encode(exporter.handle, &bytes);
    say((test::to_hex(bytes) + "\n").c_str());
    wait_for_end_of_input();
  }
  ::_exit(0);
}

// Forks while its broker runs; the child outlives it and holds all its sockets.
[[noreturn]] void play_forking_exporter() {
  Exporter exporter;
  gmm_ipc_handle bytes;
  if (!exporter.start().ok()) ::_exit(1);
  ipc_handle_encode(exporter.handle, &bytes);
  say((test::to_hex(bytes) + "\n").c_str());
  char byte;
  if (::read(0, &byte, 1) != 1) ::_exit(1);
  const pid_t child = ::fork();
  if (child == 0) {
    wait_for_end_of_input();
    ::_exit(0);
  }
  say((std::to_string(child) + "\n").c_str());
  for (;;) ::pause();
}

[[noreturn]] void play_importer(const char *hex) {
  IpcHandle handle;
  IpcImport import;
  Status status = ipc_handle_decode(test::from_hex(hex), &handle);
  if (status.ok()) status = ipc_connect(handle, IpcWant::kDescriptor, test::kPatience, &import);
  if (!status.ok()) {
    say(("failed " + std::to_string(status.code()) + "\n").c_str());
    ::_exit(1);
  }
  auto *memory = static_cast<char *>(::mmap(nullptr, test::kSize, PROT_READ | PROT_WRITE, MAP_SHARED, import.fd, 0));
  if (memory == MAP_FAILED) ::_exit(2);
  memory[100] = 'i';
  say("imported\n");
  wait_for_end_of_input();
  ::_exit(0);
}

// As another user, past the directory's mode (the test opened it): only the broker's own check is left.
[[noreturn]] void play_stranger(const char *hex) {
  IpcHandle handle;
  if (!ipc_handle_decode(test::from_hex(hex), &handle).ok() || ::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(1);
  IpcImport import;
  const Status status = ipc_connect(handle, IpcWant::kDescriptor, test::kPatience, &import);
  std::string answer = std::to_string(status.code());
  const int fd = test::raw_connect(handle.exporter);
  if (fd < 0) {
    answer += " no connection\n";
  } else {
    IpcRequest request;
    request.want = static_cast<uint16_t>(IpcWant::kDescriptor);
    request.allocation = handle.allocation;
    std::memcpy(request.token, handle.token, kIpcTokenSize);
    request.start_time = handle.exporter.start_time;
    request.serial = handle.exporter.serial;
    uint8_t bytes[kIpcRequestSize], answered[kIpcReplySize] = {};
    request.encode(bytes);
    ::send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
    IpcReply reply;
    const ssize_t got = ::recv(fd, answered, sizeof answered, MSG_WAITALL);
    reply.decode(answered);
    answer += " answered " + std::to_string(got) + " bytes with " + std::to_string(reply.result) + "\n";
  }
  say(answer.c_str());
  ::_exit(0);
}

// Another user's process with a socket of the right name, in a directory of the importer's.
[[noreturn]] void play_impostor() {
  IpcHandle handle;
  handle.kind = Kind::kVmm;
  handle.allocation_size = handle.block_size = test::kSize;
  handle.token[0] = 1;
  handle.exporter = {static_cast<uint32_t>(::getpid()), 1, 0};
  char name[kIpcNameSize], path[kIpcPathSize];
  int directory, error;
  if (process_start_time(::getpid(), &handle.exporter.start_time) != 0 || !ipc_directory_candidate(0, path) ||
      !ipc_directory_open(path, false, &directory, &error).ok())
    ::_exit(1);
  ipc_socket_name(handle.exporter, name);
  sockaddr_un address;
  ipc_socket_address(directory, name, &address);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  if (::bind(listener, reinterpret_cast<sockaddr *>(&address), sizeof address) != 0) ::_exit(2);
  if (::setgid(65534) != 0 || ::setuid(65534) != 0 || ::listen(listener, 5) != 0) ::_exit(3);
  gmm_ipc_handle bytes;
  ipc_handle_encode(handle, &bytes);
  say((test::to_hex(bytes) + "\n").c_str());
  const int fd = ::accept(listener, nullptr, nullptr);
  char byte;
  // The importer must leave before it says anything, above all the token.
  say(::recv(fd, &byte, 1, 0) == 0 ? "told nothing\n" : "told something\n");
  ::_exit(0);
}

[[gnu::constructor]] void play() {
  const char *part = ::getenv("GMM_IPC_TEST_PART");
  if (part == nullptr) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char *hex = ::getenv("GMM_IPC_TEST_HANDLE");
  const std::string name = part;
  if (name == "exporter") play_exporter();
  if (name == "forking exporter") play_forking_exporter();
  if (name == "importer") play_importer(hex);
  if (name == "stranger") play_stranger(hex);
  if (name == "impostor") play_impostor();
  ::_exit(8);
}

class Process {
 public:
  explicit Process(const char *part, const std::string &hex = "") {
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) std::abort();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    std::vector<std::string> environment;
    for (char **one = environ; *one != nullptr; ++one) environment.emplace_back(*one);
    environment.push_back(std::string("GMM_IPC_TEST_PART=") + part);
    environment.push_back("GMM_IPC_TEST_HANDLE=" + hex);
    std::vector<char *> pointers;
    for (std::string &one : environment) pointers.push_back(one.data());
    pointers.push_back(nullptr);
    char program[] = "/proc/self/exe";
    char *arguments[] = {program, nullptr};
    if (::posix_spawn(&pid_, program, &actions, nullptr, arguments, pointers.data()) != 0) std::abort();
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  ~Process() {
    kill();
    ::close(out_);
  }
  Process(const Process &) = delete;
  Process &operator=(const Process &) = delete;
  std::string line() {
    std::string text;
    char byte;
    while (::read(out_, &byte, 1) == 1 && byte != '\n') text += byte;
    return text;
  }
  void write_byte() {
    if (::write(in_, "x", 1) != 1) std::abort();
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    finish();
  }
  // Lets it end by itself; the exit status.
  int finish() {
    if (pid_ <= 0) return -1;
    ::close(in_);
    int status = -1;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
};

class IpcProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/gmm-ipc-test-XXXXXX";
    ASSERT_NE(::mkdtemp(path), nullptr);
    directory_ = path;
    ::setenv("GMM_IPC_DIR", path, 1);
  }
  void TearDown() override {
    ::unsetenv("GMM_IPC_DIR");
    EXPECT_EQ(::rmdir(directory_.c_str()), 0) << std::strerror(errno);
  }
  static std::string hex_of(const IpcHandle &handle) {
    gmm_ipc_handle bytes;
    ipc_handle_encode(handle, &bytes);
    return test::to_hex(bytes);
  }
  // What is in the directory, without . and ..
  int files() const {
    int count = -2;
    DIR *listing = ::opendir(directory_.c_str());
    while (::readdir(listing) != nullptr) ++count;
    ::closedir(listing);
    return count;
  }
  std::string directory_;
};

TEST_F(IpcProcessTest, AnotherProcessWritesIntoTheMemory) {
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

TEST_F(IpcProcessTest, AKilledImporterIsNoticed) {
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

TEST_F(IpcProcessTest, AKilledExporterIsNoticedAndItsSocketRemoved) {
  auto exporter = std::make_unique<Process>("exporter");
  IpcHandle handle;
  ASSERT_TRUE(ipc_handle_decode(test::from_hex(exporter->line().c_str()), &handle).ok()) << last_message();
  IpcImport import, late;
  ASSERT_TRUE(ipc_connect(handle, IpcWant::kDescriptor, test::kPatience, &import).ok()) << last_message();
  EXPECT_TRUE(import.connection.alive());
  exporter->kill();
  EXPECT_TRUE(eventually([&] { return !import.connection.alive(); }));
  // The memory stays readable: the descriptor keeps it.
  char byte;
  EXPECT_EQ(::pread(import.fd, &byte, 1, 0), 1);
  EXPECT_EQ(ipc_connect(handle, IpcWant::kDescriptor, test::kPatience, &late).code(), GMM_ERROR_IPC_PEER_GONE);
  ::close(import.fd);
  EXPECT_EQ(files(), 1);
  Exporter next;
  ASSERT_TRUE(next.start().ok()) << last_message();
  EXPECT_TRUE(eventually([&] { return next.journal.has("of a process that is gone"); }));
  EXPECT_EQ(files(), 1) << "the dead exporter's socket should be gone";
}

TEST_F(IpcProcessTest, AnExporterThatEndsWellLeavesNothing) {
  Process exporter("exporter");
  IpcHandle handle;
  ASSERT_TRUE(ipc_handle_decode(test::from_hex(exporter.line().c_str()), &handle).ok());
  EXPECT_EQ(files(), 1);
  EXPECT_EQ(exporter.finish(), 0);
  EXPECT_EQ(files(), 0);
}

TEST_F(IpcProcessTest, AChildThatHoldsTheSocketsDoesNotHideTheExportersDeath) {
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

TEST_F(IpcProcessTest, AStoppedExporterTimesOut) {
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

TEST_F(IpcProcessTest, AnotherUserIsRefusedTwice) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to play another user";
  Exporter exporter;
  ASSERT_TRUE(exporter.start().ok()) << last_message();
  // With the directory as it is, there is no way to the socket.
  Process outside("stranger", hex_of(exporter.handle));
  EXPECT_EQ(outside.line(), std::to_string(GMM_ERROR_IPC_REFUSED) + " no connection");
  // With it open, the broker looks at who asks, even when the token is right.
  char name[kIpcNameSize];
  ipc_socket_name(exporter.handle.exporter, name);
  ASSERT_EQ(::chmod(directory_.c_str(), 0777), 0);
  ASSERT_EQ(::chmod((directory_ + "/" + name).c_str(), 0666), 0);
  Process inside("stranger", hex_of(exporter.handle));
  EXPECT_EQ(inside.line(),
            std::to_string(GMM_ERROR_IPC_REFUSED) + " answered 32 bytes with " + std::to_string(GMM_ERROR_IPC_REFUSED));
  EXPECT_EQ(exporter.resolved, 0);
  EXPECT_TRUE(exporter.journal.has("of user 65534: only user 0 may import"));
}

TEST_F(IpcProcessTest, AnotherUsersSocketIsToldNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to play another user";
  Process impostor("impostor");
  IpcHandle handle;
  ASSERT_TRUE(ipc_handle_decode(test::from_hex(impostor.line().c_str()), &handle).ok()) << last_message();
  IpcImport import;
  EXPECT_EQ(ipc_connect(handle, IpcWant::kCount, test::kPatience, &import).code(), GMM_ERROR_IPC_REFUSED);
  EXPECT_NE(std::strstr(last_message(), "belongs to user 65534"), nullptr) << last_message();
  EXPECT_EQ(impostor.line(), "told nothing");
  char name[kIpcNameSize];
  ipc_socket_name(handle.exporter, name);
  EXPECT_EQ(::unlink((directory_ + "/" + name).c_str()), 0);
}

}  // namespace
}  // namespace gmm
