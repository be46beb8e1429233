// SPDX-License-Identifier: Apache-2.0
// The messages between an importer and a broker.
//
// The importer sends one request and gets one reply. The open connection then counts as the importer, until the
// importer closes it or sends a release. A release has no reply; the connection is idle after it and may carry the next
// request. A check asks only whether a block lives, and counts nobody. The broker sends one byte on a live connection,
// and only when it revokes the memory.
//
// A VMM block may lie over several extents. Each is a piece of the export. A reply carries one descriptor, so the
// importer asks for piece after piece over one connection, which counts as the importer of all that it was granted. A
// piece that is BUSY ends nothing: the importer asks for it again.
//
// Requests and replies are little-endian and of fixed size. Their first twelve bytes have the same meaning in every
// version.
#ifndef GMM_ENGINE_IPC_PROTOCOL_H
#define GMM_ENGINE_IPC_PROTOCOL_H

#include <cstdint>
#include <cstring>

#include "base/bytes.h"
#include "engine/ipc/handle.h"

namespace gmm {

inline constexpr uint32_t kIpcRequestMagic = 0x516d6d67;  // "gmmQ"
inline constexpr uint32_t kIpcReplyMagic = 0x526d6d67;    // "gmmR"
inline constexpr uint16_t kIpcProtocolVersion = 3;
inline constexpr uint32_t kIpcMaxImporters = 1024;  // of one broker

// Piece k is requested under the export's id with k in the top 16 bits. So many are 384 MiB where extents are small.
inline constexpr uint32_t kIpcMaxPieces = 192;
inline constexpr unsigned kIpcPieceShift = 48;
constexpr uint64_t ipc_piece_id(uint64_t export_id, uint32_t piece) {
  return export_id | static_cast<uint64_t>(piece) << kIpcPieceShift;
}
constexpr uint64_t ipc_export_id(uint64_t piece_id) { return piece_id & ((uint64_t{1} << kIpcPieceShift) - 1); }
constexpr uint32_t ipc_piece_index(uint64_t piece_id) { return static_cast<uint32_t>(piece_id >> kIpcPieceShift); }

enum class IpcWant : uint16_t {
  kDescriptor = 1,  // the piece's file descriptor, and to be counted as an importer
  kCount = 2,       // to be counted only: the legacy route
  kRelease = 3,     // to be counted no more; names what the connection was granted first, with a token of zeros
  kCheck = 4,       // whether the block lives; the connection is idle after the reply
};

inline constexpr uint64_t kIpcRequestSize = 48;
struct IpcRequest {
  uint32_t magic = kIpcRequestMagic;       //  0
  uint16_t version = kIpcProtocolVersion;  //  4
  uint16_t want = 0;                       //  6  IpcWant
  uint64_t allocation = 0;                 //  8  the id of a piece
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

inline constexpr uint64_t kIpcReplySize = 32;
struct IpcReply {
  uint32_t magic = kIpcReplyMagic;         //  0
  uint16_t version = kIpcProtocolVersion;  //  4
  uint16_t descriptors = 0;                //  6  that come with the reply: 0 or 1
  int32_t result = 0;                      //  8  gmm_result; GMM_ERROR_BUSY: try again
  uint32_t reserved = 0;                   // 12
  uint64_t allocation_size = 0;            // 16
  uint64_t generation = 0;                 // 24

  void encode(uint8_t out[kIpcReplySize]) const {
    store_little(out, magic);
    store_little(out + 4, version);
    store_little(out + 6, descriptors);
    store_little(out + 8, static_cast<uint32_t>(result));
    store_little(out + 12, reserved);
    store_little(out + 16, allocation_size);
    store_little(out + 24, generation);
  }
  void decode(const uint8_t in[kIpcReplySize]) {
    magic = load_little<uint32_t>(in);
    version = load_little<uint16_t>(in + 4);
    descriptors = load_little<uint16_t>(in + 6);
    result = static_cast<int32_t>(load_little<uint32_t>(in + 8));
    reserved = load_little<uint32_t>(in + 12);
    allocation_size = load_little<uint64_t>(in + 16);
    generation = load_little<uint64_t>(in + 24);
  }
};

}  // namespace gmm
#endif
