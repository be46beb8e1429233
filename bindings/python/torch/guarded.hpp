// SPDX-License-Identifier: Apache-2.0
// How the functions that Python calls by ctypes fail: no exception leaves them, and the thread keeps the reason.
#ifndef GMM_TORCH_GUARDED_HPP
#define GMM_TORCH_GUARDED_HPP

#include <c10/util/Exception.h>

#include <cstdint>
#include <exception>
#include <string>

namespace {

std::string &last_error() {
  thread_local std::string text;
  return text;
}

// Runs the work. Returns 0, or -1 when it threw.
template <class Work>
int32_t guarded(Work work) {
  try {
    work();
    return 0;
  } catch (const c10::Error &error) {
    last_error() = error.what_without_backtrace();
  } catch (const std::exception &error) {
    last_error() = error.what();
  }
  return -1;
}

}  // namespace
#endif
