// SPDX-License-Identifier: Apache-2.0
// Exporters and importers as processes of their own, which a test can kill or run as another user.
//
// The second process is this program, started again. The constructor below plays its part before main(), so no thread
// is alive at fork().
#ifndef GMM_TESTS_UNIT_ENGINE_IPC_SECOND_PROCESS_H
#define GMM_TESTS_UNIT_ENGINE_IPC_SECOND_PROCESS_H

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <memory>
#include <vector>

#include "engine/ipc/test_support.h"

namespace gmm::test {

inline void say(const char *text) {
  if (::write(1, text, std::strlen(text)) < 0) ::_exit(9);
}
inline void wait_for_end_of_input() {
  char byte;
  while (::read(0, &byte, 1) > 0) {
  }
}

[[noreturn]] inline void play_exporter() {
  {
    Exporter exporter;
    gmm_ipc_handle bytes;
    if (!exporter.start().ok()) ::_exit(1);
    ipc_handle_encode(exporter.handle, &bytes);
    say((to_hex(bytes) + "\n").c_str());
    wait_for_end_of_input();
  }
  ::_exit(0);
}

// Forks while its broker runs. The child outlives it and holds all its sockets.
[[noreturn]] inline void play_forking_exporter() {
  Exporter exporter;
  gmm_ipc_handle bytes;
  if (!exporter.start().ok()) ::_exit(1);
  ipc_handle_encode(exporter.handle, &bytes);
  say((to_hex(bytes) + "\n").c_str());
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

[[noreturn]] inline void play_importer(const char *hex) {
  IpcHandle handle;
  IpcImport import;
  Status status = ipc_handle_decode(from_hex(hex), &handle);
  if (status.ok()) status = ipc_connect(handle, IpcWant::kDescriptors, kPatience, &import);
  if (!status.ok()) {
    say(("failed " + std::to_string(status.code()) + "\n").c_str());
    ::_exit(1);
  }
  auto *memory = static_cast<char *>(::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED, import.fds[0], 0));
  if (memory == MAP_FAILED) ::_exit(2);
  memory[100] = 'i';
  say("imported\n");
  wait_for_end_of_input();
  ::_exit(0);
}

// Imports as another user. The test may have opened the directory to all users; then only the broker's check is left.
[[noreturn]] inline void play_stranger(const char *hex) {
  IpcHandle handle;
  if (!ipc_handle_decode(from_hex(hex), &handle).ok() || ::setgid(65534) != 0 || ::setuid(65534) != 0) ::_exit(1);
  IpcImport import;
  const Status status = ipc_connect(handle, IpcWant::kDescriptors, kPatience, &import);
  std::string answer = std::to_string(status.code());
  const int fd = raw_connect(handle.exporter);
  if (fd < 0) {
    answer += " no connection\n";
  } else {
    IpcRequest request;
    request.want = static_cast<uint16_t>(IpcWant::kDescriptors);
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

// Listens as another user, on a socket of the right name in the importer's directory.
[[noreturn]] inline void play_impostor() {
  IpcHandle handle;
  handle.kind = Kind::kVmm;
  handle.allocation_size = handle.block_size = kSize;
  handle.token[0] = 1;
  handle.exporter = {static_cast<uint32_t>(::getpid()), 1, 0};
  char name[kIpcNameSize], path[kIpcPathSize];
  int directory, error;
  if (process_start_time(::getpid(), &handle.exporter.start_time) != 0 || !ipc_directory_candidate(0, path) ||
      !ipc_directory_open(path, false, &directory, &error).ok())
    ::_exit(1);
  ipc_socket_name(handle.exporter, name);
  sockaddr_un address;
  os::socket_address(directory, name, &address);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  if (::bind(listener, reinterpret_cast<sockaddr *>(&address), sizeof address) != 0) ::_exit(2);
  if (::setgid(65534) != 0 || ::setuid(65534) != 0 || ::listen(listener, 5) != 0) ::_exit(3);
  gmm_ipc_handle bytes;
  ipc_handle_encode(handle, &bytes);
  say((to_hex(bytes) + "\n").c_str());
  const int fd = ::accept(listener, nullptr, nullptr);
  char byte;
  // The importer must close the connection before it sends anything, above all the token.
  say(::recv(fd, &byte, 1, 0) == 0 ? "received nothing\n" : "received something\n");
  ::_exit(0);
}

[[gnu::constructor]] inline void play() {
  const char *part = ::getenv("TEST_IPC_PART");
  if (part == nullptr) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char *hex = ::getenv("TEST_IPC_HANDLE");
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
    environment.push_back(std::string("TEST_IPC_PART=") + part);
    environment.push_back("TEST_IPC_HANDLE=" + hex);
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
  // Waits until the process ends by itself, and returns its exit status.
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

class ProcessTest : public ::testing::Test {
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
    return to_hex(bytes);
  }
  // The number of files in the directory.
  int files() const {
    int count = -2;
    DIR *listing = ::opendir(directory_.c_str());
    while (::readdir(listing) != nullptr) ++count;
    ::closedir(listing);
    return count;
  }
  std::string directory_;
};

}  // namespace gmm::test
#endif
