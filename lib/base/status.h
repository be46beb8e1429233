// SPDX-License-Identifier: Apache-2.0
// What an operation came to, with a message for the calling thread.
#ifndef GMM_BASE_STATUS_H
#define GMM_BASE_STATUS_H

#include <gmm/types.h>

#include <cstdarg>

namespace gmm {

class [[nodiscard]] Status {
 public:
  constexpr Status() = default;
  constexpr explicit Status(gmm_result code) : code_(code) {}
  constexpr bool ok() const { return code_ >= 0; }
  constexpr gmm_result code() const { return code_; }
  // For the rare place where a failure cannot be passed on and has been logged or does not matter; say why there.
  constexpr void ignore() const {}

 private:
  gmm_result code_ = GMM_OK;
};

// Sets the calling thread's message: what was asked, what stood in the way, what to do. printf-style.
[[gnu::format(printf, 2, 3)]] Status fail(gmm_result code, const char *format, ...);
// The same with the driver's or the system's own number.
[[gnu::format(printf, 3, 4)]] Status fail_native(gmm_result code, int32_t native, const char *format, ...);
// A remark: success, as Status(GMM_UNCHANGED), with a message.
[[gnu::format(printf, 2, 3)]] Status remark(gmm_result code, const char *format, ...);
// Puts words in front of the thread's message: used where a caller knows more of what was asked.
[[gnu::format(printf, 2, 3)]] Status prefix(Status status, const char *format, ...);

const char *last_message();
int32_t last_native();

// Saves the thread's message over clean-up work that may fail itself.
class MessageGuard {
 public:
  MessageGuard();
  ~MessageGuard();
  MessageGuard(const MessageGuard &) = delete;
  MessageGuard &operator=(const MessageGuard &) = delete;

 private:
  char text_[1024];
  int32_t native_;
};

// strerror without its static buffer.
const char *system_error_text(int error, char *buffer, unsigned long size);

}  // namespace gmm

// The one macro: C++20 without exceptions has no other way to return from the caller.
#define GMM_TRY(expression)                                                     \
  do {                                                                          \
    if (::gmm::Status gmm_try_ = (expression); !gmm_try_.ok()) return gmm_try_; \
  } while (false)

#endif
