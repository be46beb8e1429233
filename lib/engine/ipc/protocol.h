// SPDX-License-Identifier: Apache-2.0
// The messages between an importer and a broker.
//
// A connection carries one request of the importer and one reply of the broker (ipc.h has the rest of its life).
//
// A VMM block may lie over several extents. The reply to kDescriptors brings them all: a descriptor of each, and behind
// the reply the size of each in 8 bytes.
//
// Both processes run on one machine, so the structs are the bytes. Their first twelve bytes have the same meaning in
// every version.
#ifndef GMM_ENGINE_IPC_PROTOCOL_H
#define GMM_ENGINE_IPC_PROTOCOL_H

#include <cstddef>
#include <cstdint>

#include "base/local_socket.h"
#include "engine/ipc/handle.h"

namespace gmm {

inline constexpr uint16_t kIpcProtocolVersion = 4;
inline constexpr uint32_t kIpcMaxImporters = 1024;  // of one broker

// Extents of one block. So many are 384 MiB where extents are small, and the system sends no more than 253 descriptors
// at once.
inline constexpr uint32_t kIpcMaxExtents = os::Descriptors::kMost;

enum class IpcWant : uint16_t {
  kDescriptors = 1,  // a file descriptor of each extent, and to be counted as an importer
  kCount = 2,        // to be counted only: the legacy route
  kCheck = 3,        // whether the block lives
  kControl = 4,      // a ControlRequest (control_messages.h), which this one begins
};

struct IpcRequest {
  static constexpr uint32_t kMagic = 0x516d6d67;  // "gmmQ"
  uint32_t magic = kMagic;
  uint16_t version = kIpcProtocolVersion;
  IpcWant want = IpcWant::kDescriptors;
  uint64_t allocation = 0;  // the id of the export or event
  uint8_t token[kIpcTokenSize] = {};
  uint64_t start_time = 0;  // of the exporter's process
  uint32_t serial = 0;      // of the exporter's broker
  uint32_t reserved = 0;
};
static_assert(sizeof(IpcRequest) == 48);

struct IpcReply {
  static constexpr uint32_t kMagic = 0x526d6d67;  // "gmmR"
  uint32_t magic = kMagic;
  uint16_t version = kIpcProtocolVersion;
  uint16_t extents = 0;  // so many descriptors come with the reply
  int32_t result = 0;    // gmm_result; GMM_ERROR_BUSY: try again
  uint32_t reserved = 0;
  uint64_t allocation_size = 0;
  uint64_t generation = 0;
  uint64_t sizes[kIpcMaxExtents] = {};  // only those of the extents are sent

  static constexpr uint64_t size_with(uint64_t extents) { return offsetof(IpcReply, sizes) + extents * 8; }
};
static_assert(IpcReply::size_with(0) == 32);

// A reply and a descriptor of each extent.
struct IpcAnswer {
  IpcReply reply;
  os::Descriptors fds;
};

}  // namespace gmm
#endif
