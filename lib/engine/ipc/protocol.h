// SPDX-License-Identifier: Apache-2.0
// The messages between an importer and a broker.
//
// A connection carries one request of the importer and one reply of the broker. If the request was granted and counts,
// the open connection is the importer from then on, until either side closes it. The broker then sends at most one
// byte, and only when it revokes the memory. A check asks only whether a block lives, and counts nobody.
//
// A VMM block may lie over several extents. The reply to kDescriptors brings them all: a descriptor of each, and behind
// the reply the size of each in 8 bytes.
//
// All numbers are little-endian. The first twelve bytes of both messages have the same meaning in
// every version.
#ifndef GMM_ENGINE_IPC_PROTOCOL_H
#define GMM_ENGINE_IPC_PROTOCOL_H

#include <cstdint>
#include <cstring>

#include "base/bytes.h"
#include "engine/ipc/handle.h"

namespace gmm {

inline constexpr uint32_t kIpcRequestMagic = 0x516d6d67;  // "gmmQ"
inline constexpr uint32_t kIpcReplyMagic = 0x526d6d67;    // "gmmR"
inline constexpr uint16_t kIpcProtocolVersion = 4;
inline constexpr uint32_t kIpcMaxImporters = 1024;  // of one broker

// Extents of one block. So many are 384 MiB where extents are small, and the system sends no more than 253 descriptors
// at once.
inline constexpr uint32_t kIpcMaxExtents = 192;

enum class IpcWant : uint16_t {
  kDescriptors = 1,  // a file descriptor of each extent, and to be counted as an importer
  kCount = 2,        // to be counted only: the legacy route
  kCheck = 3,        // whether the block lives
};

inline constexpr uint64_t kIpcRequestSize = 48;
struct IpcRequest {
  uint32_t magic = kIpcRequestMagic;       //  0
  uint16_t version = kIpcProtocolVersion;  //  4
  uint16_t want = 0;                       //  6  IpcWant
  uint64_t allocation = 0;                 //  8  the id of the export or event
  uint8_t token[kIpcTokenSize] = {};       // 16
  uint64_t start_time = 0;                 // 32  of the exporter's process
  uint32_t serial = 0;                     // 40  of the exporter's broker
  uint32_t reserved = 0;                   // 44

  void encode(uint8_t out[kIpcRequestSize]) const {
    store_little(out, magic);
    store_little(out + 4, version);
    store_little(out + 6, want);
    store_little(out + 8, allocation);
    std::memcpy(out + 16, token, sizeof token);
    store_little(out + 32, start_time);
    store_little(out + 40, serial);
    store_little(out + 44, reserved);
  }
  void decode(const uint8_t in[kIpcRequestSize]) {
    magic = load_little<uint32_t>(in);
    version = load_little<uint16_t>(in + 4);
    want = load_little<uint16_t>(in + 6);
    allocation = load_little<uint64_t>(in + 8);
    std::memcpy(token, in + 16, sizeof token);
    start_time = load_little<uint64_t>(in + 32);
    serial = load_little<uint32_t>(in + 40);
    reserved = load_little<uint32_t>(in + 44);
  }
};

inline constexpr uint64_t kIpcReplySize = 32;  // without the sizes
constexpr uint64_t ipc_reply_size(uint64_t extents) { return kIpcReplySize + extents * 8; }
inline constexpr uint64_t kIpcMaxReplySize = ipc_reply_size(kIpcMaxExtents);
struct IpcReply {
  uint32_t magic = kIpcReplyMagic;         //  0
  uint16_t version = kIpcProtocolVersion;  //  4
  uint16_t extents = 0;                    //  6  so many descriptors come with the reply, and so many sizes follow it
  int32_t result = 0;                      //  8  gmm_result; GMM_ERROR_BUSY: try again
  uint32_t reserved = 0;                   // 12
  uint64_t allocation_size = 0;            // 16
  uint64_t generation = 0;                 // 24

  void encode(uint8_t out[kIpcReplySize]) const {
    store_little(out, magic);
    store_little(out + 4, version);
    store_little(out + 6, extents);
    store_little(out + 8, static_cast<uint32_t>(result));
    store_little(out + 12, reserved);
    store_little(out + 16, allocation_size);
    store_little(out + 24, generation);
  }
  void decode(const uint8_t in[kIpcReplySize]) {
    magic = load_little<uint32_t>(in);
    version = load_little<uint16_t>(in + 4);
    extents = load_little<uint16_t>(in + 6);
    result = static_cast<int32_t>(load_little<uint32_t>(in + 8));
    reserved = load_little<uint32_t>(in + 12);
    allocation_size = load_little<uint64_t>(in + 16);
    generation = load_little<uint64_t>(in + 24);
  }
};

}  // namespace gmm
#endif
