// SPDX-License-Identifier: Apache-2.0
// The result of an operation, with a message for the calling thread.
#ifndef GMM_BASE_STATUS_H
#define GMM_BASE_STATUS_H

#include <gmm/types.h>

#include <cstdarg>

#include "base/no_copy.h"

namespace gmm {

class [[nodiscard]] Status {
 public:
  constexpr Status() = default;
  constexpr explicit Status(gmm_result code) : code_(code) {}
  constexpr bool ok() const { return code_ >= 0; }
  constexpr gmm_result code() const { return code_; }
  // For a failure that no caller can handle and that was logged or does not matter. The place says why.
  constexpr void ignore() const {}

 private:
  gmm_result code_ = GMM_OK;
};

inline gmm_result result_of(Status status) { return status.code(); }
// Of a call that returns an address or a handle, which is NULL after a failure.
template <typename T>
gmm_result result_of(Status status, T **out) {
  if (!status.ok() && out != nullptr) *out = nullptr;
  return status.code();
}

// Sets the calling thread's message, printf-style: what was asked, what stood in the way, what to do.
[[gnu::format(printf, 2, 3)]] Status fail(gmm_result code, const char *format, ...);
// fail() with the driver's or the system's own number.
[[gnu::format(printf, 3, 4)]] Status fail_native(gmm_result code, int32_t native, const char *format, ...);
// A success without effect, with a message.
inline Status unchanged(const char *message) { return fail(GMM_UNCHANGED, "%s", message); }
// Puts words in front of the thread's message of a failure. A caller that knows more about the request uses it.
[[gnu::format(printf, 2, 3)]] Status prefix(Status status, const char *format, ...);

const char *last_message();
int32_t last_native();

// Restores the thread's message after clean-up work that may itself fail.
class MessageGuard : NoCopy {
 public:
  MessageGuard();
  ~MessageGuard();

 private:
  char text_[1024];
  int32_t native_;
};

// Calls fn() -> Status. *first stays the first failure of several calls, and the thread's message stays that one's.
template <typename Fn>
void keep_first(Status *first, Fn fn) {
  if (first->ok()) {
    *first = fn();
    return;
  }
  MessageGuard message_guard;
  fn().ignore();
}

// The system's words for one of its errors (base/process.cpp). As strerror(), without its static buffer.
const char *system_error_text(int error, char *buffer, unsigned long size);
// The same with a buffer of its own, for the length of one message.
struct ErrorText {
  explicit ErrorText(int error) : text(system_error_text(error, buffer, sizeof buffer)) {}
  char buffer[128];
  const char *text;
};
inline Status system_failure(int error, const char *what) {
  return fail_native(GMM_ERROR_SYSTEM, error, "%s: %s", what, ErrorText(error).text);
}

}  // namespace gmm

// The project's only macro with control flow: C++20 without exceptions has no other way to return from the caller.
#define GMM_TRY(expression)                                                     \
  do {                                                                          \
    if (::gmm::Status gmm_try_ = (expression); !gmm_try_.ok()) return gmm_try_; \
  } while (false)

#endif
