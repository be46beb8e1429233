// SPDX-License-Identifier: Apache-2.0
// The kernel that finds which ranges of device memory are all zero, so that a backup need not copy them to find out.
#include "backend/backend.h"

// A range has gridDim.x blocks. Each thread reads 16 bytes at a time. The first 32 threads also read the bytes before
// and behind whole 16 bytes. A thread that finds a nonzero byte writes `nonzero` and ends, so memory in use is read only
// in part.
extern "C" __global__ void gmm_find_zeros(gmm::ZeroRange *ranges) {
  gmm::ZeroRange &range = ranges[blockIdx.y];
  const uint64_t end = range.base + range.size;
  const uint64_t body = (range.base + 15) & ~uint64_t{15};  // above `end` for a range within 16 bytes
  const uint64_t tail = end & ~uint64_t{15};
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  const uint64_t stride = uint64_t{gridDim.x * blockDim.x} * 16;
  for (uint64_t at = body + uint64_t{thread} * 16; at < tail; at += stride) {
    const ulonglong2 bytes = *reinterpret_cast<const ulonglong2 *>(at);
    if ((bytes.x | bytes.y) != 0) {
      range.nonzero = 1;
      return;
    }
  }
  if (thread >= 32) return;
  const bool before = thread < 16;
  const uint64_t at = before ? range.base + thread : tail + (thread - 16);
  const bool is_edge = before ? at < body && at < end : at >= range.base && at < end;
  if (is_edge && *reinterpret_cast<const uint8_t *>(at) != 0) range.nonzero = 1;
}
