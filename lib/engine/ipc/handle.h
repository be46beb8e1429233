// SPDX-License-Identifier: Apache-2.0
// The bytes of gmm_ipc_handle, which are those of IpcHandle.
//
// The importer maps the allocation of a handle: all extents of the block, or the driver's allocation on the
// legacy route. The checksum finds damage and proves no origin.
#ifndef GMM_ENGINE_IPC_HANDLE_H
#define GMM_ENGINE_IPC_HANDLE_H

#include <gmm/ipc.h>

#include <cstdint>

#include "backend/backend.h"
#include "base/status.h"

namespace gmm {

inline constexpr uint64_t kIpcTokenSize = 16;
inline constexpr uint64_t kIpcExtentsTokenSize = 8;  // its start, which the blocks of the same extents share

enum class IpcRoute : uint8_t {
  kBroker = 1,  // the exporter's broker sends a file descriptor
  kLegacy = 2,  // the driver opens the 64 bytes of its handle; the broker only counts the importer
  kFabric = 3,  // kBroker on the exporter's machine; on others the driver opens the 64 bytes, and nobody counts
};

// The address of a broker.
struct IpcEndpoint {
  uint32_t pid = 0;
  uint32_t serial = 0;         // of the broker
  uint64_t start_time = 0;     // of the process, in clock ticks since boot; differs where the pid was used again
  uint64_t pid_namespace = 0;  // not part of the socket's name; 0: unknown
  constexpr bool operator==(const IpcEndpoint &) const = default;
};

// Version 1, little-endian. Other releases and machines read it, so it does not change.
struct IpcHandle {
  static constexpr uint32_t kMagic = 0x496d6d67;  // "gmmI"
  static constexpr uint16_t kVersion = 1;
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  IpcRoute route = IpcRoute::kBroker;
  uint8_t event = 0;  // 1: of an event, which has no kind, and whose sizes mean nothing
  Kind kind = Kind::kUnspecified;
  Device device;  // in the exporter
  IpcEndpoint exporter;
  uint8_t token[kIpcTokenSize] = {};  // the exporter refuses a request without it; never zero
  uint64_t allocation = 0;            // the id of the export or event
  uint64_t allocation_size = 0;
  uint64_t offset = 0;  // of the pointer in the allocation
  uint64_t block_offset = 0;
  uint64_t block_size = 0;
  uint64_t generation = 0;                 // of the allocation's physical memory
  uint8_t legacy[kLegacyHandleSize] = {};  // the driver's handle, of kFabric the fabric handle; zero for kBroker
  uint64_t machine = 0;                    // the exporter's; 0 but for kFabric
  uint8_t reserved[76] = {};
  uint32_t checksum = 0;  // CRC-32C of the bytes before; ipc_handle_encode() writes it
};

static_assert(sizeof(IpcHandle) == sizeof(gmm_ipc_handle));
static_assert(kFabricHandleSize == kLegacyHandleSize);

void ipc_handle_encode(const IpcHandle &handle, gmm_ipc_handle *out);

// Fails with IPC_INVALID_HANDLE, and a message that names the wrong field, for bytes that ipc_handle_encode() never
// makes from valid fields. `out` is written only on success.
Status ipc_handle_decode(const gmm_ipc_handle &bytes, IpcHandle *out);

// The number of this machine in handles of fabric memory: a hash of the system's boot id, which containers share.
// 0: it is not known.
uint64_t ipc_machine();

}  // namespace gmm
#endif
