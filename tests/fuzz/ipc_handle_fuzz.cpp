// SPDX-License-Identifier: Apache-2.0
// Any 256 bytes: refused, or decoded to fields that are sound and encode to the same bytes.
// The first input byte says whether the checksum is made to fit, so that the fuzzer gets behind it.
#include <cstdlib>
#include <cstring>

#include "base/bytes.h"
#include "engine/ipc/handle.h"
#include "standalone.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  using namespace gmm;
  if (size == 0) return 0;
  gmm_ipc_handle bytes = {}, again;
  std::memcpy(bytes.bytes, data + 1, size - 1 < sizeof bytes.bytes ? size - 1 : sizeof bytes.bytes);
  if ((data[0] & 1) != 0) {
    const uint32_t sum = crc32c(bytes.bytes, 252);
    std::memcpy(bytes.bytes + 252, &sum, sizeof sum);
  }
  IpcHandle handle;
  const Status status = ipc_handle_decode(bytes, &handle);
  if (!status.ok()) {
    if (status.code() != GMM_ERROR_IPC_INVALID_HANDLE || last_message()[0] == '\0') std::abort();
    return 0;
  }
  if (handle.offset < handle.block_offset || handle.offset - handle.block_offset >= handle.block_size ||
      handle.block_size > handle.allocation_size || handle.block_offset > handle.allocation_size - handle.block_size)
    std::abort();
  ipc_handle_encode(handle, &again);
  if (std::memcmp(&bytes, &again, sizeof bytes) != 0) std::abort();
  return 0;
}
