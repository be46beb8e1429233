// SPDX-License-Identifier: Apache-2.0
// Waits for an effect of another thread, and tells whether another thread sleeps.
#ifndef GMM_TESTS_UNIT_SOON_H
#define GMM_TESTS_UNIT_SOON_H

#include <sys/types.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

namespace gmm::test {

// The limit is for an effect that never comes, however busy the machine is.
inline constexpr std::chrono::milliseconds kPatience{60000};
template <typename Condition>
bool soon(Condition condition, std::chrono::milliseconds within = kPatience) {
  const auto end = std::chrono::steady_clock::now() + within;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Whether a thread of this process waits in the kernel.
inline bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text;
  std::getline(file, text);
  const size_t name = text.rfind(')');
  return name != std::string::npos && text.compare(name + 2, 1, "S") == 0;
}

}  // namespace gmm::test
#endif
