// SPDX-License-Identifier: Apache-2.0
// The driver's state of the calling thread, changed for one operation and put back.
#ifndef GMM_BACKEND_CUDA_CONTEXT_GUARD_H
#define GMM_BACKEND_CUDA_CONTEXT_GUARD_H

#include "backend/cuda/driver.h"
#include "base/log.h"

namespace gmm::cuda {

// Makes a context current where another one, or none, is; what was current before is current again afterwards. A
// thread without a context (a finalizer thread) has none afterwards.
class ContextGuard {
 public:
  ContextGuard(const Driver &driver, const Log &log) : driver_(driver), log_(log) {}
  ~ContextGuard() {
    for (; pushed_ != 0; --pushed_) pop();
  }
  ContextGuard(const ContextGuard &) = delete;
  ContextGuard &operator=(const ContextGuard &) = delete;

  // NULL when the thread has none.
  Status current(CUcontext *out) {
    if (!known_) {
      GMM_TRY(driver_.check(driver_.cuCtxGetCurrent(&current_), "cuCtxGetCurrent"));
      known_ = true;
    }
    *out = current_;
    return Status();
  }

  Status enter(CUcontext wanted) {
    CUcontext now = nullptr;
    GMM_TRY(current(&now));
    if (now == wanted) [[likely]]
      return Status();
    GMM_TRY(driver_.check(driver_.cuCtxPushCurrent(wanted), "cuCtxPushCurrent"));
    current_ = wanted;
    ++pushed_;
    return Status();
  }

 private:
  // A second try, because the alternative is to leave the caller's thread with our context.
  void pop() {
    CUcontext popped = nullptr;
    CUresult result = driver_.cuCtxPopCurrent(&popped);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_DEINITIALIZED) result = driver_.cuCtxPopCurrent(&popped);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_DEINITIALIZED)
      log_.write(LogLevel::kError, "The thread's CUDA context could not be put back: cuCtxPopCurrent answered %d.",
                 static_cast<int>(result));
  }

  const Driver &driver_;
  const Log &log_;
  CUcontext current_ = nullptr;
  uint32_t pushed_ = 0;
  bool known_ = false;
};

// While any thread captures a stream in the global mode, the driver refuses allocations and event queries of every thread, and
// ends the capture for it. They are no part of the graph, so this thread says that it knows what it does.
class CaptureGuard {
 public:
  explicit CaptureGuard(const Driver &driver) : driver_(driver) {
    if (driver_.cuThreadExchangeStreamCaptureMode == nullptr) return;
    // A second try, because without it the call that follows may end somebody's capture.
    changed_ = driver_.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS ||
               driver_.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;
  }
  ~CaptureGuard() {
    if (!changed_) return;
    CUstreamCaptureMode mode = mode_;
    if (driver_.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS) return;
    mode = mode_;
    (void)driver_.cuThreadExchangeStreamCaptureMode(&mode);  // fails only when the driver is gone, and the mode with it
  }
  CaptureGuard(const CaptureGuard &) = delete;
  CaptureGuard &operator=(const CaptureGuard &) = delete;

 private:
  const Driver &driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool changed_ = false;
};

}  // namespace gmm::cuda
#endif
