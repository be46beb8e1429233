// SPDX-License-Identifier: Apache-2.0
#include "engine/ipc/semaphores.h"

#include <cinttypes>

namespace gmm {
namespace {

// A function of the program in the queue of a stream, which owns this.
struct QueuedCall {
  const HostAllocator allocator;
  const Log log;
  const gmm_semaphore_fn fn;
  void *const user;
  const uint64_t value;
  const char *const what;

  static void run(void *self) {
    QueuedCall *call = static_cast<QueuedCall *>(self);
    const int32_t answer = call->fn(call->user, call->value);
    if (answer != 0)
      call->log.write(LogLevel::kError,
                      "The program's function to %s a semaphore with the value %" PRIu64 " answered %" PRId32
                      "; the stream's further work runs.",
                      call->what, call->value, answer);
    const HostAllocator allocator = call->allocator;
    allocator.destroy(call);
  }
};

}  // namespace

Status Semaphore::import(const gmm_semaphore_desc &desc) {
  const gmm_semaphore_calls &calls = desc.calls;
  const bool by_calls = desc.type == GMM_SEMAPHORE_CALLS;
  if (by_calls ? desc.fd != 0 : calls.wait != nullptr || calls.signal != nullptr || calls.user != nullptr)
    return fail(GMM_ERROR_INVALID_VALUE, "gmm_semaphore_desc: %s; set it to zero.",
                by_calls ? "fd is set, but the type is GMM_SEMAPHORE_CALLS"
                         : "calls is set, but the type is one of a descriptor");
  if (by_calls && calls.wait == nullptr && calls.signal == nullptr)
    return fail(GMM_ERROR_INVALID_VALUE, "gmm_semaphore_desc.calls has no function; set wait, signal or both.");
  if (by_calls && !core_.backend->calls_may_wait())
    return fail(
        GMM_ERROR_NOT_SUPPORTED,
        "gmm_event_import_semaphore: the %s backend runs the functions of all streams on one thread, which must "
        "not wait; import a descriptor.",
        core_.backend->name());
  if (!by_calls) GMM_TRY(core_.backend->semaphore_import(desc.type, desc.fd, Device{desc.device}, &native_));
  desc_ = desc;
  return Status();
}

Status Semaphore::destroy() {
  const Device device{desc_.device};
  if (was_used_.load(std::memory_order_acquire)) GMM_TRY(core_.backend->synchronize(device));
  if (native_ != nullptr) GMM_TRY(core_.backend->semaphore_destroy(native_, device));
  return Status();
}

Status Semaphore::check_value(uint64_t value, const char *function) const {
  const bool counts = desc_.type == GMM_SEMAPHORE_TIMELINE_FD || desc_.type == GMM_SEMAPHORE_CALLS;
  if (value == 0 || counts) return Status();
  return fail(GMM_ERROR_INVALID_VALUE, "%s: value = %" PRIu64 ": the semaphore does not count; pass 0.", function,
              value);
}

Status Semaphore::call(gmm_semaphore_fn fn, gmm_stream stream, uint64_t value, const char *what) {
  if (fn == nullptr)
    return fail(GMM_ERROR_NOT_SUPPORTED, "The semaphore has no function to %s; set it in gmm_semaphore_desc.calls.",
                what);
  QueuedCall *queued =
      core_.allocator.create<QueuedCall>(QueuedCall{core_.allocator, core_.log, fn, desc_.calls.user, value, what});
  if (queued == nullptr)
    return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to queue the use of a semaphore; free memory.");
  const Status status = core_.backend->stream_call(Device{desc_.device}, stream, &QueuedCall::run, queued);
  if (!status.ok()) core_.allocator.destroy(queued);
  return status;
}

Status Semaphore::signal(gmm_stream stream, uint64_t value) {
  GMM_TRY(check_value(value, "gmm_event_record"));
  was_used_.store(true, std::memory_order_release);
  return native_ == nullptr ? call(desc_.calls.signal, stream, value, "signal")
                            : core_.backend->semaphore_signal(native_, Device{desc_.device}, stream, value);
}

Status Semaphore::wait(gmm_stream stream, uint64_t value) {
  GMM_TRY(check_value(value, "gmm_stream_wait_event"));
  was_used_.store(true, std::memory_order_release);
  return native_ == nullptr ? call(desc_.calls.wait, stream, value, "wait for")
                            : core_.backend->semaphore_wait(native_, Device{desc_.device}, stream, value);
}

}  // namespace gmm
