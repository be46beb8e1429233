// SPDX-License-Identifier: Apache-2.0
#include "preload/thread.h"

#include <gmm/gmm.h>

#include <cstdarg>
#include <cstdio>

#include "base/lock.h"

// base/lock.h needs the function from each library. This one queues no messages for a log.
void gmm::deliver_messages() {}

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

CUresult code_of(gmm_result result) {
  if (result >= 0) return CUDA_SUCCESS;
  switch (result) {
    case GMM_ERROR_OUT_OF_MEMORY:
    case GMM_ERROR_OUT_OF_HOST_MEMORY:
    case GMM_ERROR_LIMIT_EXCEEDED:
    case GMM_ERROR_SIZE_OVERFLOW:
      return CUDA_ERROR_OUT_OF_MEMORY;
    case GMM_ERROR_CAPTURING:
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    case GMM_ERROR_INVALID_DEVICE:
      return CUDA_ERROR_INVALID_DEVICE;
    case GMM_ERROR_INVALID_HANDLE:
      return CUDA_ERROR_INVALID_HANDLE;
    case GMM_ERROR_NOT_SUPPORTED:
      return CUDA_ERROR_NOT_SUPPORTED;
    case GMM_ERROR_DRIVER: {
      const auto native = static_cast<CUresult>(gmm_last_native_code());
      return native != CUDA_SUCCESS ? native : CUDA_ERROR_UNKNOWN;
    }
    case GMM_ERROR_SYSTEM:
    case GMM_ERROR_IO:
    case GMM_ERROR_CORRUPT:
    case GMM_ERROR_NO_BACKEND:
    case GMM_ERROR_FORKED:
      return CUDA_ERROR_UNKNOWN;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace gmm::preload

extern "C" {
__attribute__((visibility("default"))) const char *gmm_preload_last_error(void) noexcept;

const char *gmm_preload_last_error(void) noexcept { return gmm::preload::t_thread.message; }
}
