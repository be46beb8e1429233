// SPDX-License-Identifier: Apache-2.0
// Sends any bytes, in any parts, to a server that lives in this process. It must go on serving.
//
// An input is a list of steps. The first byte of a step says what it does:
//   bits 0-1  0: sends the step's data; 1: sends a correct message in which the data changes bytes; 2: opens a new
//             connection; 3: shuts down the writing side
//   bit 2     first receives an answer
//   bits 3-4  which correct message
// The second byte is the length of the step's data, which follows.
#ifndef GMM_TESTS_FUZZ_SOCKET_FUZZ_H
#define GMM_TESTS_FUZZ_SOCKET_FUZZ_H

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "standalone.h"

namespace gmm {

inline void require(bool holds) {
  if (!holds) std::abort();
}

// A folder of its own for the socket.
struct FuzzFolder {
  char path[32] = "/tmp/gmm-fuzz-XXXXXX";
  FuzzFolder() { require(::mkdtemp(path) != nullptr); }
  ~FuzzFolder() { require(::rmdir(path) == 0); }
  int connect_to(const char *name) const {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", path, name);
    const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    require(fd >= 0 && ::connect(fd, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0);
    return fd;
  }
};

template <typename Message>
std::vector<uint8_t> bytes_of(const Message &message) {
  const auto *first = reinterpret_cast<const uint8_t *>(&message);
  return std::vector<uint8_t>(first, first + sizeof message);
}

// Target has connect(), the correct message(which) and the size of an answer, kAnswerSize. At most 8 connections are
// open at a time.
template <typename Target>
void send_steps(const Target &target, const uint8_t *data, size_t size) {
  std::vector<int> fds = {target.connect()};
  while (size >= 2) {
    const unsigned how = data[0] & 3u, which = data[0] >> 3 & 3u;
    const bool wait = (data[0] & 4u) != 0;
    size_t length = data[1];
    data += 2;
    size -= 2;
    if (length > size) length = size;
    if (wait) {
      pollfd answer = {fds.back(), POLLIN, 0};
      uint8_t bytes[Target::kAnswerSize];
      if (::poll(&answer, 1, 10) == 1) (void)!::recv(fds.back(), bytes, sizeof bytes, MSG_DONTWAIT);
    }
    if (how == 0) {
      ::send(fds.back(), data, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    } else if (how == 1) {
      std::vector<uint8_t> message = target.message(which);
      for (size_t i = 0; i + 2 < length; i += 3)
        message[(data[i] * size_t{256} + data[i + 1]) % message.size()] = data[i + 2];
      ::send(fds.back(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    } else if (how == 2 && fds.size() < 8) {
      fds.push_back(target.connect());
    } else {
      ::shutdown(fds.back(), SHUT_WR);
    }
    data += length;
    size -= length;
  }
  for (int fd : fds) ::close(fd);
}

}  // namespace gmm

#endif
