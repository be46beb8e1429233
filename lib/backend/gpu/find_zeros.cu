// SPDX-License-Identifier: Apache-2.0
// The kernel that finds which ranges of device memory are all zero, so that a backup need not copy them to find out.
#include "backend/backend.h"

// A range has gridDim.x blocks. Each thread reads 16 bytes at a time. A thread that finds a nonzero byte writes
// `nonzero` and ends, so memory in use is read only in part.
extern "C" __global__ void gmm_find_zeros(gmm::ZeroRange *ranges) {
  gmm::ZeroRange &range = ranges[blockIdx.y];
  const uint64_t end = range.base + range.size;
  const uint64_t stride = uint64_t{gridDim.x * blockDim.x} * 16;
  for (uint64_t at = range.base + uint64_t{blockIdx.x * blockDim.x + threadIdx.x} * 16; at < end; at += stride) {
    const ulonglong2 bytes = *reinterpret_cast<const ulonglong2 *>(at);
    if ((bytes.x | bytes.y) != 0) {
      range.nonzero = 1;
      return;
    }
  }
}
