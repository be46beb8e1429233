// SPDX-License-Identifier: Apache-2.0
// gmm's default context under PyTorch, which all memory here comes from. The file compiles without PyTorch's headers.
#ifndef GMM_TORCH_CONTEXT_HPP
#define GMM_TORCH_CONTEXT_HPP

#include <gmm/gmm.h>

#include <atomic>
#include <cstdint>
#include <cstdio>

namespace gmm_torch {

inline std::atomic<gmm_context *> attached{nullptr};
inline std::atomic<bool> is_ending{false};  // the interpreter: the driver may be gone, and the process frees all
inline bool is_forked = false;  // memory of the parent is still about, which no context of this process knows

// NULL in a child after fork(), which every function of gmm refuses.
inline gmm_context *context() { return attached.load(std::memory_order_acquire); }

inline gmm_context *context_for_free() { return is_ending.load(std::memory_order_relaxed) ? nullptr : context(); }

// The reason of this thread's last failure.
inline const char *reason() {
  return context() == nullptr ? "the process was forked from one that uses gmm; start it by spawn"
                              : gmm_last_error_message();
}

// Writes a failure to stderr where nothing may be raised. A child after fork() is silent about its parent's memory.
inline void complain(gmm_result result, const char *what, const void *memory = nullptr) {
  if (result >= 0 || result == GMM_ERROR_FORKED || (is_forked && result == GMM_ERROR_UNKNOWN_POINTER)) return;
  fprintf(stderr, "gmm: %s(%p): %s: %s\n", what, memory, gmm_result_name(result), gmm_last_error_message());
}

// A struct of gmm with its size.
template <class Struct>
Struct sized() {
  Struct made{};
  made.struct_size = sizeof made;
  return made;
}

}  // namespace gmm_torch

#endif
