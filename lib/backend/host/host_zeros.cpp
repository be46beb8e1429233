// SPDX-License-Identifier: Apache-2.0
// Which ranges are all zero.
#include <cstring>

#include "backend/host/host_class.h"

namespace gmm {
namespace {

bool is_zero(const char *bytes, uint64_t size) {
  // What begins with a zero byte and equals itself one byte on is all zero, and the C library compares fast.
  constexpr uint64_t kPart = uint64_t{64} << 10;
  if (size == 0) return true;
  if (bytes[0] != 0) return false;
  for (uint64_t at = 0; at + 1 < size; at += kPart) {
    const uint64_t left = size - 1 - at;
    if (std::memcmp(bytes + at, bytes + at + 1, left < kPart ? left : kPart) != 0) return false;
  }
  return true;
}

struct Search {
  HostAllocator allocator;
  ZeroRange *ranges;
  uint64_t count;

  static void run(void *self) {
    Search *search = static_cast<Search *>(self);
    for (uint64_t i = 0; i < search->count; ++i) {
      ZeroRange &range = search->ranges[i];
      if (!is_zero(reinterpret_cast<const char *>(range.base), range.size)) range.nonzero = 1;
    }
    const HostAllocator allocator = search->allocator;
    allocator.destroy(search);
  }
};

}  // namespace

Status HostBackend::find_zeros(Device device, gmm_stream stream, ZeroRange *ranges, uint64_t count) {
  Search *search = allocator_.create<Search>(Search{allocator_, ranges, count});
  if (search == nullptr) return fail(GMM_ERROR_OUT_OF_HOST_MEMORY, "No host memory to look for zeros; free memory.");
  const Status status = stream_call(device, stream, &Search::run, search);
  if (!status.ok()) allocator_.destroy(search);
  return status;
}

}  // namespace gmm
