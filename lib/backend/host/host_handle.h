// SPDX-License-Identifier: Apache-2.0
// How a PhysicalHandle of the host backend names its file.
#ifndef GMM_BACKEND_HOST_HOST_HANDLE_H
#define GMM_BACKEND_HOST_HOST_HANDLE_H

#include "backend/backend.h"

namespace gmm {

// The file's number stands next to the descriptor, so that a handle that was released is recognised even
// when the system gave its descriptor to another file.
struct HostHandle {
  static constexpr int32_t kMaxFd = (1 << 24) - 1;
  static constexpr uint32_t kNotCounted = 0xff;

  int32_t fd = -1;
  uint32_t counted_device = kNotCounted;  // from whose memory it was taken; imported and host memory from nobody's
  uint32_t file_number = 0;

  // Never 0, which is no handle.
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
