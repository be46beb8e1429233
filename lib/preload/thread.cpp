// SPDX-License-Identifier: Apache-2.0
#include "preload/thread.h"

#include <gmm/gmm.h>

#include <cstdarg>
#include <cstdio>

namespace gmm::preload {

void say(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(t_thread.message, sizeof t_thread.message, format, arguments);
  va_end(arguments);
}

void say_gmm(gmm_result result, const char *what) {
  say("%s: %s: %s", what, gmm_result_name(result), gmm_last_error_message());
}

Code code_of(gmm_result result) {
  if (result >= 0) return kSuccess;
  switch (result) {
    case GMM_ERROR_OUT_OF_MEMORY:
    case GMM_ERROR_OUT_OF_HOST_MEMORY:
    case GMM_ERROR_LIMIT_EXCEEDED:
    case GMM_ERROR_SIZE_OVERFLOW:
      return kOutOfMemory;
    case GMM_ERROR_CAPTURING:
      return kCaptureUnsupported;
    case GMM_ERROR_INVALID_DEVICE:
      return kInvalidDevice;
    case GMM_ERROR_INVALID_HANDLE:
      return kInvalidHandle;
    case GMM_ERROR_NOT_SUPPORTED:
      return kNotSupported;
    case GMM_ERROR_DRIVER: {
      const Code native = gmm_last_native_code();
      return native != kSuccess ? native : kUnknown;
    }
    case GMM_ERROR_SYSTEM:
    case GMM_ERROR_IO:
    case GMM_ERROR_CORRUPT:
    case GMM_ERROR_NO_BACKEND:
    case GMM_ERROR_FORKED:
      return kUnknown;
    default:
      return kInvalidValue;
  }
}

}  // namespace gmm::preload

extern "C" {
__attribute__((visibility("default"))) const char *gmm_preload_last_error(void) noexcept;
__attribute__((visibility("default"))) const char *tms_last_error(void) noexcept;

const char *gmm_preload_last_error(void) noexcept { return gmm::preload::t_thread.message; }
const char *tms_last_error(void) noexcept { return gmm::preload::t_thread.message; }
}
