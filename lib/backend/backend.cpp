// SPDX-License-Identifier: Apache-2.0
#include "backend/backend.h"

#include <cstring>

#include "base/process.h"

namespace gmm {

Status Backend::lacks(const char *operation) const {
  return fail(GMM_ERROR_NOT_SUPPORTED, "The %s backend has no %s; gmm_device_query() says what a device can do.",
              name(), operation);
}

Status Backend::device_use(Device device, DeviceUse *out) {
  gmm_device_info info = {};
  GMM_TRY(device_info(device, &info));
  *out = DeviceUse();
  for (uint32_t i = 0; i < sizeof out->uuid; ++i) out->uuid[i] = info.uuid[i];
  out->total = info.total_memory;
  out->used = info.total_memory - info.free_memory;
  return Status();
}

Status no_memory_for(const char *action) {
  return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "%s: the host has no memory for it; free memory.", action);
}

Status check_opener(const char *name, int32_t process) {
  if (process == 0 || process == process_number()) return Status();
  return fail(GMM_ERROR_NO_BACKEND,
              "%s was started in process %d before this process was forked from it, so it cannot be used here; start "
              "the child by exec or spawn, or create the first %s context after the fork.",
              name, process, name);
}

Status start_stream_thread(Thread *out, void *(*fn)(void *), void *stream) {
  const int error = start_thread(out, ThreadSignals::kFaults, fn, stream);
  if (error == 0) return Status();
  return fail_native(
      GMM_ERROR_SYSTEM, error,
      "Starting the thread of a stream: the system refused (%s); raise the limit of threads (ulimit -u), or use fewer "
      "streams.",
      ErrorText(error).text);
}

void make_uuid(uint64_t hash, Device device, uint8_t out[16]) {
  std::memcpy(out, &hash, sizeof hash);
  std::memset(out + 8, 0, 8);
  out[6] = static_cast<uint8_t>((out[6] & 0x0f) | 0x80);
  out[8] = 0x80;
  out[15] = static_cast<uint8_t>(device.ordinal);
}

}  // namespace gmm
