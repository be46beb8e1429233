// SPDX-License-Identifier: Apache-2.0
// The bytes of gmm_ipc_handle.
//
// Version 1, little-endian, no padding that is not checked:
//   offset size  field
//        0    4  magic "gmmI"
//        4    2  version
//        6    1  route (IpcRoute)
//        7    1  kind (Kind: kDevice, kVmm or kHost; 5: an event)
//        8    4  device ordinal in the exporter; -1: host memory
//       12    4  serial of the exporter's broker
//       16   16  UUID of the device; zero: none
//       32    4  pid of the exporter
//       36    4  reserved, zero
//       40    8  start time of the exporter, in clock ticks since boot; differs where the pid was used again
//       48   16  random token, without which the exporter refuses a request; never zero. The first 8 bytes are those of
//                all blocks in the same allocation; the others belong to the block for as long as it lives
//       64    8  id of the export or event
//       72    8  size of the allocation
//       80    8  offset of the pointer in the allocation
//       88    8  size of the block that the pointer lies in
//       96    8  generation of the allocation's physical memory
//      104   64  the driver's legacy IPC handle, or its fabric handle; zero for kBroker
//      168    8  offset of the block in the allocation
//      176    8  number of the exporter's pid namespace; 0: unknown
//      184    8  number of the exporter's machine; 0 but for kFabric
//      192   60  reserved, zero
//      252    4  CRC-32C of bytes 0 to 251; finds damage, proves no origin
//
// The allocation is what the importer maps: all extents of the block, or the driver's allocation on the legacy route.
#ifndef GMM_ENGINE_IPC_HANDLE_H
#define GMM_ENGINE_IPC_HANDLE_H

#include <gmm/ipc.h>

#include <cstdint>

#include "backend/backend.h"
#include "base/status.h"

namespace gmm {

inline constexpr uint64_t kIpcTokenSize = 16;
inline constexpr uint64_t kIpcExtentsTokenSize = 8;  // of it, at its start: what the blocks of the same extents share

enum class IpcRoute : uint8_t {
  kBroker = 1,  // the exporter's broker sends a file descriptor
  kLegacy = 2,  // the driver opens the 64 bytes of its handle; the broker only counts the importer
  kFabric = 3,  // kBroker on the exporter's machine; on others the driver opens the 64 bytes, and nobody counts
};

// The address of a broker.
struct IpcEndpoint {
  uint32_t pid = 0;
  uint32_t serial = 0;
  uint64_t start_time = 0;
  uint64_t pid_namespace = 0;  // not part of the socket's name
  constexpr bool operator==(const IpcEndpoint &) const = default;
};

struct IpcHandle {
  IpcRoute route = IpcRoute::kBroker;
  bool event = false;  // of an event: it has no kind, and its sizes mean nothing
  Kind kind = Kind::kUnspecified;
  Device device;
  uint8_t device_uuid[16] = {};
  IpcEndpoint exporter;
  uint8_t token[kIpcTokenSize] = {};
  uint64_t allocation = 0;
  uint64_t allocation_size = 0;
  uint64_t offset = 0;
  uint64_t block_offset = 0;
  uint64_t block_size = 0;
  uint64_t generation = 0;
  uint8_t legacy[kLegacyHandleSize] = {};  // of kFabric: the fabric handle
  uint64_t machine = 0;
};

static_assert(kFabricHandleSize == kLegacyHandleSize);

void ipc_handle_encode(const IpcHandle &handle, gmm_ipc_handle *out);

// Fails with IPC_INVALID_HANDLE, and a message that names the wrong field, for bytes that ipc_handle_encode() never
// makes from valid fields. `out` is written only on success.
Status ipc_handle_decode(const gmm_ipc_handle &bytes, IpcHandle *out);

}  // namespace gmm
#endif
