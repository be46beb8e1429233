// SPDX-License-Identifier: Apache-2.0
// Semaphores of other APIs. The descriptor is a file of at least 8 bytes, which a test makes: a counter. Binary: how
// often it is signalled and not yet waited for. Timeline: its value.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stream.h"

using namespace fake;

namespace {

struct Semaphore {
  Context *context;
  bool counts;
  std::atomic<uint64_t> *value = nullptr;
  std::atomic<uint64_t> queued{0};  // uses that are not done
  ~Semaphore() { munmap(static_cast<void *>(value), sizeof *value); }
};
std::map<CUexternalSemaphore, std::shared_ptr<Semaphore>> &semaphores() {
  return forever<std::map<CUexternalSemaphore, std::shared_ptr<Semaphore>>>();
}

// The stream's work: once for each semaphore.
template <class F>
CUresult use(CUexternalSemaphore handle, CUstream stream_handle, Context *context, F work) {
  auto it = semaphores().find(handle);
  if (it == semaphores().end()) return CUDA_ERROR_INVALID_HANDLE;
  auto semaphore = it->second;
  FAKE_CUDA_STREAM(stream, stream_handle);
  if (stream->context != semaphore->context) return CUDA_ERROR_INVALID_HANDLE;
  const bool runs = !stream->capture;
  if (runs) semaphore->queued++;
  auto run = [semaphore, runs, work] {
    work(*semaphore);
    if (runs) semaphore->queued--;
    return CUDA_SUCCESS;
  };
  CUresult result = enqueue(stream, run);
  if (result && runs) semaphore->queued--;
  return result;
}

void wait_until(const Semaphore &semaphore, uint64_t wanted) {
  for (;; std::this_thread::sleep_for(std::chrono::microseconds(100))) {
    uint64_t now = *semaphore.value;
    if (semaphore.counts && now >= wanted) return;
    if (!semaphore.counts && now > 0 && semaphore.value->compare_exchange_strong(now, now - 1)) return;
  }
}

}  // namespace

namespace fake {
uint64_t live_semaphores() { return semaphores().size(); }
}  // namespace fake

extern "C" {

CUresult cuImportExternalSemaphore(CUexternalSemaphore *out, const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC *desc) {
  FAKE_CUDA_IN_CONTEXT(cuImportExternalSemaphore,
                       !out || !desc || desc->flags ||
                           (desc->type != CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD &&
                            desc->type != CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD));
  struct stat status;
  if (fstat(desc->handle.fd, &status) != 0 || status.st_size < 8) return CUDA_ERROR_INVALID_VALUE;
  void *view = mmap(nullptr, 8, PROT_READ | PROT_WRITE, MAP_SHARED, desc->handle.fd, 0);
  if (view == MAP_FAILED) return CUDA_ERROR_INVALID_VALUE;
  close(desc->handle.fd);  // taken over on success only
  auto semaphore = std::make_shared<Semaphore>();
  semaphore->context = context;
  semaphore->counts = desc->type == CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD;
  semaphore->value = static_cast<std::atomic<uint64_t> *>(view);
  *out = reinterpret_cast<CUexternalSemaphore>(semaphore.get());
  semaphores()[*out] = semaphore;
  return CUDA_SUCCESS;
}

CUresult cuSignalExternalSemaphoresAsync(const CUexternalSemaphore *handles,
                                         const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS *parameters, unsigned int count,
                                         CUstream stream) {
  FAKE_CUDA_IN_CONTEXT(cuSignalExternalSemaphoresAsync, !handles || !parameters || count != 1 || parameters->flags);
  return use(*handles, stream, context, [value = parameters->params.fence.value](Semaphore &semaphore) {
    if (semaphore.counts)
      *semaphore.value = value;
    else
      ++*semaphore.value;
  });
}

CUresult cuWaitExternalSemaphoresAsync(const CUexternalSemaphore *handles,
                                       const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS *parameters, unsigned int count,
                                       CUstream stream) {
  FAKE_CUDA_IN_CONTEXT(cuWaitExternalSemaphoresAsync, !handles || !parameters || count != 1 || parameters->flags);
  return use(*handles, stream, context,
             [value = parameters->params.fence.value](Semaphore &semaphore) { wait_until(semaphore, value); });
}

CUresult cuDestroyExternalSemaphore(CUexternalSemaphore handle) {
  FAKE_CUDA_IN_CONTEXT(cuDestroyExternalSemaphore);
  auto it = semaphores().find(handle);
  if (it == semaphores().end()) return CUDA_ERROR_INVALID_HANDLE;
  if (it->second->queued != 0) crash("cuDestroyExternalSemaphore of a semaphore that queued work uses");
  semaphores().erase(it);
  return CUDA_SUCCESS;
}

}  // extern "C"
