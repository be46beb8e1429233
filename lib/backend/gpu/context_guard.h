// SPDX-License-Identifier: Apache-2.0
// Guards that change the driver's state of the calling thread for one operation and restore it at its end.
#ifndef GMM_BACKEND_GPU_CONTEXT_GUARD_H
#define GMM_BACKEND_GPU_CONTEXT_GUARD_H

#include "backend/gpu/driver.h"
#include "base/log.h"

namespace gmm::gpu {

// A second try after a failure, for calls whose failure nobody can handle.
template <typename Fn>
bool twice(Fn call) {
  for (int tries = 0; tries < 2; ++tries)
    if (call() == CUDA_SUCCESS) return true;
  return false;
}

// Makes a context current, and restores the thread's earlier one at the end. A thread that had none, such as a
// finalizer thread, has none afterwards.
class ContextGuard : NoCopy {
 public:
  ContextGuard(const Driver &driver, const Log &log) : driver_(driver), log_(log) {}
  ~ContextGuard() {
    for (; pushed_ != 0; --pushed_) pop();
  }

  // NULL: the thread has no context.
  Status current(CUcontext *out) {
    if (!known_) {
      GMM_TRY(GMM_CUDA_OF(driver_, cuCtxGetCurrent, &current_));
      before_ = current_;
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
    GMM_TRY(GMM_CUDA_OF(driver_, cuCtxPushCurrent, wanted));
    current_ = wanted;
    ++pushed_;
    return Status();
  }

 private:
  // The second try is there because otherwise the caller's thread keeps our context.
  void pop() {
    CUcontext popped = before_;  // HIP's looks at it
    CUresult result = driver_.cuCtxPopCurrent(&popped);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_DEINITIALIZED) result = driver_.cuCtxPopCurrent(&popped);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_DEINITIALIZED)
      log_.write(LogLevel::kError, "The driver did not restore the thread's context: cuCtxPopCurrent answered %d.",
                 static_cast<int>(result));
  }

  const Driver &driver_;
  const Log &log_;
  CUcontext current_ = nullptr, before_ = nullptr;
  uint32_t pushed_ = 0;
  bool known_ = false;
};

// Exempts the thread's driver calls from the captures of other threads. While any thread captures a stream in the
// global mode, the driver refuses allocations and event queries of every thread and ends that capture. gmm's calls are
// no part of the graph, so the thread declares them relaxed.
class CaptureGuard : NoCopy {
 public:
  explicit CaptureGuard(const Driver &driver) : driver_(driver) {
    // The second try is there because without the exchange the call that follows may end another thread's capture.
    changed_ = twice([&] { return driver_.cuThreadExchangeStreamCaptureMode(&mode_); });
  }
  ~CaptureGuard() {
    if (!changed_) return;
    // It fails twice only if the driver has shut down, and the mode with it.
    (void)twice([&] {
      CUstreamCaptureMode mode = mode_;
      return driver_.cuThreadExchangeStreamCaptureMode(&mode);
    });
  }

 private:
  const Driver &driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool changed_ = false;
};

}  // namespace gmm::gpu
#endif
