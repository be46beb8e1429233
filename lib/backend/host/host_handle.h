// SPDX-License-Identifier: Apache-2.0
// The form of a PhysicalHandle of the host backend: it names a file.
#ifndef GMM_BACKEND_HOST_HOST_HANDLE_H
#define GMM_BACKEND_HOST_HOST_HANDLE_H

#include "backend/backend.h"

namespace gmm {

// The handle has the file's number beside the descriptor. So a released handle is recognised even if the system has
// given its descriptor to another file.
struct HostHandle {
  static constexpr int32_t kMaxFd = (1 << 24) - 1;
  static constexpr uint32_t kNotCounted = 0xff;

  int32_t fd = -1;
  // device whose memory it counts against; imported and host memory counts against none
  uint32_t counted_device = kNotCounted;
  uint32_t file_number = 0;

  // The value is never 0, which is no handle.
  PhysicalHandle pack() const {
    return {uint64_t{file_number} << 32 | uint64_t{counted_device} << 24 | static_cast<uint64_t>(fd)};
  }
  static HostHandle unpack(PhysicalHandle handle) {
    HostHandle out;
    out.fd = static_cast<int32_t>(handle.value & kMaxFd);
    out.counted_device = static_cast<uint32_t>(handle.value >> 24) & 0xff;
    out.file_number = static_cast<uint32_t>(handle.value >> 32);
    return out;
  }
};

}  // namespace gmm
#endif
