// SPDX-License-Identifier: Apache-2.0
// How failures leave C++: as PyTorch's exceptions towards PyTorch, as a number and a text towards ctypes.
#ifndef GMM_TORCH_GUARDED_HPP
#define GMM_TORCH_GUARDED_HPP

#include <c10/util/Exception.h>

#include <exception>
#include <string>

#include "context.hpp"

namespace gmm_torch {

inline void check(gmm_result result, const char *what) { TORCH_CHECK(result >= 0, "gmm: ", what, ": ", reason()); }

[[noreturn]] inline void throw_out_of_memory(const std::string &message) {
  throw c10::OutOfMemoryError({__func__, "gmm", 0}, message);
}

inline std::string &last_error() {
  thread_local std::string text;
  return text;
}

// Runs the work. Returns 0, or -1 when it threw: no exception may reach ctypes, and the thread keeps the reason.
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

}  // namespace gmm_torch

#endif
